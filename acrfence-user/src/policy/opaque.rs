//! `[after_restore]`: what a restored agent may do that cannot be fenced (DESIGN.md §5), and whose model
//! is told of the restore (§9).

use serde::{Deserialize, Serialize};

use super::rule::{any_fits, glob};
use crate::words::OpaqueClass;

/// What a restored agent may do until somebody forks it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AfterRestore {
    /// Connections that go through the hook and are not understood.
    pub opaque: Opaqueness,
    /// Commands that policy names and that are typed into an interactive shell: they cannot be compared
    /// with what was done before.
    pub interactive: Opaqueness,
    /// `[[after_restore.class]]`: exceptions; the first that fits decides.
    pub class: Vec<ClassRule>,
    /// Hosts of models that are told what was done already (`*` stands for any run of characters): the
    /// note discloses it to them.
    pub inform: Vec<String>,
}

/// Whether opaque traffic is let through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opaqueness {
    /// It is, and counts as not fenced.
    #[default]
    Allow,
    /// It is refused.
    Deny,
}

/// An exception for some opaque traffic; every key that is set must fit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassRule {
    /// Kinds of traffic.
    #[serde(default)]
    pub kind: Vec<OpaqueClass>,
    /// Address, or name in the TLS handshake, without port; `*` stands for any run of characters.
    #[serde(default)]
    pub host: Option<String>,
    /// Ports.
    #[serde(default)]
    pub port: Vec<u16>,
    /// What becomes of it.
    pub opaque: Opaqueness,
}

/// What is known of a connection that cannot be fenced.
#[derive(Clone, Copy, Debug)]
pub struct OpaqueTo<'a> {
    /// Which kind.
    pub class: OpaqueClass,
    /// The names of the other side: its address, and the name in the TLS handshake if there is one.
    pub hosts: &'a [&'a str],
    /// Port.
    pub port: u16,
}

impl Default for AfterRestore {
    fn default() -> Self {
        Self {
            opaque: Opaqueness::Allow,
            // It may be done a second time, and who types it can be told.
            interactive: Opaqueness::Deny,
            class: Vec::new(),
            inform: Vec::new(),
        }
    }
}

impl AfterRestore {
    /// Whether the model at this host is told what was done already.
    pub fn informs(&self, host: &str) -> bool {
        any_fits(&self.inform, host)
    }

    /// Whether `inform` can be obeyed.
    pub(super) fn check(&self) -> Result<(), String> {
        let anybody = |pattern: &&String| pattern.chars().all(|c| matches!(c, '*' | '.'));
        match self.inform.iter().find(anybody) {
            Some(pattern) => Err(format!(
                "`after_restore.inform` must name the hosts that may be told; `{pattern}` names none"
            )),
            None => Ok(()),
        }
    }

    /// What becomes of a connection, and who says so.
    pub fn decide(&self, to: &OpaqueTo<'_>) -> (Opaqueness, String) {
        for (n, rule) in self.class.iter().enumerate() {
            if rule.fits(to) {
                return (rule.opaque, format!("`after_restore.class` {}", n + 1));
            }
        }
        (self.opaque, "`after_restore.opaque`".into())
    }

    /// Whether anything is ever refused.
    pub fn denies_anything(&self) -> bool {
        self.opaque == Opaqueness::Deny || self.class.iter().any(|c| c.opaque == Opaqueness::Deny)
    }
}

impl ClassRule {
    /// Whether the rule says something that can be done.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.kind.is_empty() && self.host.is_none() && self.port.is_empty() {
            return Err("it names neither kind nor host nor port, so it would fit everything; set `after_restore.opaque` instead".into());
        }
        if self.kind.contains(&OpaqueClass::Command) {
            return Err("`command` is no connection; set `after_restore.interactive`".into());
        }
        let past_the_hook =
            |kind: &&OpaqueClass| matches!(kind, OpaqueClass::Unix | OpaqueClass::Udp);
        match self.kind.iter().find(past_the_hook) {
            Some(kind) if self.opaque == Opaqueness::Deny => Err(format!(
                "`{}` does not go through the hook: it can be counted, not refused",
                kind.as_str()
            )),
            _ => Ok(()),
        }
    }

    fn fits(&self, to: &OpaqueTo<'_>) -> bool {
        let fits_host = |pattern: &String| {
            let pattern = pattern.to_ascii_lowercase();
            to.hosts
                .iter()
                .any(|host| glob(pattern.as_bytes(), host.to_ascii_lowercase().as_bytes()))
        };
        (self.kind.is_empty() || self.kind.contains(&to.class))
            && self.host.as_ref().is_none_or(fits_host)
            && (self.port.is_empty() || self.port.contains(&to.port))
    }
}

/// What opaque traffic is, from why it is opaque and where it goes. Only for people and policy: a
/// server may listen at any port.
pub fn class_of(why: &str, port: u16) -> OpaqueClass {
    // `…, through a tunnel to HOST`
    let what = why.split(',').next().unwrap_or_default();
    match what {
        "PostgreSQL" | "MongoDB" | "Redis" => return OpaqueClass::Database,
        "SSH" => return OpaqueClass::Shell,
        "MQTT" | "AMQP" => return OpaqueClass::Broker,
        _ => {}
    }
    if why.starts_with("WebSocket") || why.starts_with("upgrade to") {
        return OpaqueClass::Upgrade;
    }
    match port {
        1433
        | 1521
        | 3306
        | 5432
        | 6379
        | 6432
        | 7687
        | 8529
        | 9042
        | 11211
        | 26257
        | 27017..=27019
        | 33060 => OpaqueClass::Database,
        25 | 110 | 143 | 465 | 587 | 993 | 995 | 2525 => OpaqueClass::Mail,
        22 | 23 | 2222 => OpaqueClass::Shell,
        1883 | 4222 | 5671 | 5672 | 8883 | 9092 | 61613..=61616 => OpaqueClass::Broker,
        _ if why.starts_with("TLS") || why.starts_with("passed through by policy") => {
            OpaqueClass::Tls
        }
        _ => OpaqueClass::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Config;

    fn decide(config: &str, class: OpaqueClass, hosts: &[&str], port: u16) -> Opaqueness {
        let config = Config::parse(config).unwrap();
        config
            .after_restore
            .decide(&OpaqueTo { class, hosts, port })
            .0
    }

    #[test]
    fn the_first_class_that_fits_decides_and_the_rest_is_the_default() {
        let config = "[after_restore]\nopaque = \"deny\"\n\
            [[after_restore.class]]\nkind = [\"mail\"]\nport = [25]\nopaque = \"allow\"\n\
            [[after_restore.class]]\nhost = \"*.Example.com\"\nopaque = \"allow\"\n";
        use Opaqueness::{Allow, Deny};
        let ip = &["10.0.0.1"];
        assert_eq!(decide(config, OpaqueClass::Mail, ip, 25), Allow);
        assert_eq!(decide(config, OpaqueClass::Mail, ip, 587), Deny);
        assert_eq!(decide(config, OpaqueClass::Database, ip, 25), Deny);
        let named = &["10.0.0.1", "db.example.COM"];
        assert_eq!(decide(config, OpaqueClass::Tls, named, 443), Allow);
        assert_eq!(decide("", OpaqueClass::Database, ip, 5432), Allow);
    }

    #[test]
    fn only_hosts_that_are_named_are_told_of_a_restore() {
        let config = "[after_restore]\ninform = [\"api.anthropic.com\", \"*.openai.com\"]";
        let after_restore = Config::parse(config).unwrap().after_restore;
        assert!(after_restore.informs("API.anthropic.com"));
        assert!(after_restore.informs("api.openai.com"));
        assert!(!after_restore.informs("openai.com.example.org"));
        assert!(!Config::default().after_restore.informs("api.anthropic.com"));
        for anybody in ["*", "*.*", ""] {
            let error = Config::parse(&format!("[after_restore]\ninform = [\"{anybody}\"]"));
            assert!(error.unwrap_err().contains("names none"));
        }
    }

    #[test]
    fn a_class_that_names_nothing_is_refused() {
        let error = Config::parse("[[after_restore.class]]\nopaque = \"deny\"").unwrap_err();
        assert!(
            error.contains("line 1, column 1: after_restore.class 1"),
            "{error}"
        );
        let unknown =
            Config::parse("[[after_restore.class]]\nkind = [\"databse\"]\nopaque = \"deny\"")
                .unwrap_err();
        assert!(unknown.contains("line 2"), "{unknown}");
    }

    #[test]
    fn what_is_typed_is_refused_unless_policy_allows_it() {
        assert_eq!(
            Config::default().after_restore.interactive,
            Opaqueness::Deny
        );
        let own = Config::parse("[after_restore]\nopaque = \"deny\"\ninteractive = \"allow\"");
        assert_eq!(own.unwrap().after_restore.interactive, Opaqueness::Allow);
        let class = "[[after_restore.class]]\nkind = [\"command\"]\nopaque = \"deny\"";
        let error = Config::parse(class).unwrap_err();
        assert!(error.contains("after_restore.interactive"), "{error}");
    }

    #[test]
    fn classes() {
        for (why, port, class) in [
            ("PostgreSQL", 7000, OpaqueClass::Database),
            ("the server speaks first", 3306, OpaqueClass::Database),
            ("the server speaks first", 587, OpaqueClass::Mail),
            ("WebSocket", 443, OpaqueClass::Upgrade),
            ("passed through by policy", 443, OpaqueClass::Tls),
            (
                "TLS for postgresql, not for HTTP",
                5432,
                OpaqueClass::Database,
            ),
            ("neither TLS nor HTTP", 4000, OpaqueClass::Other),
        ] {
            assert_eq!(class_of(why, port), class, "{why} {port}");
        }
    }
}
