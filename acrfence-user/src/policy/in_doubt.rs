//! `in_doubt` of a `[[rule]]`: how to find out what became of an effect whose outcome is not known
//! (DESIGN.md §7). Without it a person finds out.

use serde::{Deserialize, Serialize};

use super::template::Template;
use super::units::Duration;

/// What an equal call may cause when the effect it repeats is in doubt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InDoubt {
    /// Ask the other side; its answer tells.
    Query(Box<Query>),
    /// Send the original bytes again under the original idempotency key; the other side promises to
    /// carry out a key once.
    Resend(Resend),
}

/// A question whose answer tells whether an effect happened. It must change nothing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Query {
    /// Where to ask with GET: a path on the host of the effect, with `{body:/…}`, `{header:…}` and
    /// `{argument:/…}` filled in from the original request.
    #[serde(default)]
    pub url: Option<Template>,
    /// Or which tool of the same MCP server to call.
    #[serde(default)]
    pub tool: Option<String>,
    /// Its arguments; texts in them may have places to fill in.
    #[serde(default)]
    pub arguments: serde_json::Map<String, serde_json::Value>,
    /// Answers that say: it happened.
    pub happened: Tells,
    /// Answers that say: it did not happen. Without it nothing does.
    #[serde(default)]
    pub did_not_happen: Option<Tells>,
    /// Which part of the answer (a JSON pointer) equal calls are answered with; all of it when absent.
    #[serde(default)]
    pub response: Option<String>,
    /// How long after the call ended in doubt "did not happen" counts: before that it may be on its way.
    #[serde(default = "usual_settling")]
    pub settled_after: Duration,
    /// How long the answer may take.
    #[serde(default = "usual_patience")]
    pub timeout: Duration,
}

/// Which answers say something. Every key that is set must fit.
///
/// Whatever is written here, only a plain success (2xx) can say that an effect happened, and only a
/// success, 404 or 410 that it did not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tells {
    /// HTTP status codes.
    pub status: Option<Statuses>,
    /// A JSON pointer into the answer; what it points at must be there.
    pub json: Option<String>,
    /// What it must be: a text as it is, anything else as compact JSON.
    pub is: Option<Template>,
    /// A text that the answer must contain.
    pub contains: Option<Template>,
}

/// One status code or several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Statuses {
    /// One.
    One(u16),
    /// Several.
    Several(Vec<u16>),
}

/// When the original request may be sent again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Resend {
    /// Where the original idempotency key stands: `{header:Idempotency-Key}`, `{body:/reference}` or
    /// `{argument:/reference}`. A request without one is not sent again.
    pub key: Template,
    /// How long after the original call the other side is known to remember keys.
    #[serde(default = "usual_memory")]
    pub valid_for: Duration,
    /// How long the answer may take.
    #[serde(default = "usual_patience")]
    pub timeout: Duration,
}

fn usual_settling() -> Duration {
    Duration::secs(60)
}

fn usual_patience() -> Duration {
    Duration::secs(10)
}

fn usual_memory() -> Duration {
    Duration::secs(60 * 60)
}

impl InDoubt {
    /// Says what is wrong with it, if anything is.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Self::Query(query) => query.check(),
            Self::Resend(resend) if resend.key.places().count() != 1 => Err(
                "`in_doubt.resend.key` must name the one place of the idempotency key, like `{header:Idempotency-Key}`".into(),
            ),
            Self::Resend(_) => Ok(()),
        }
    }
}

impl Query {
    fn check(&self) -> Result<(), String> {
        match (&self.url, &self.tool) {
            (None, None) => return Err("`in_doubt.query` needs `url` or `tool`".into()),
            (Some(_), Some(_)) => {
                return Err("`in_doubt.query` takes `url` or `tool`, not both".into());
            }
            (Some(url), None) if !url.text().starts_with('/') || url.text().starts_with("//") => {
                return Err(
                    "`in_doubt.query.url` is a path on the host of the effect and begins with one `/`"
                        .into(),
                );
            }
            (Some(_), None) if !self.arguments.is_empty() => {
                return Err("`in_doubt.query.arguments` are for a `tool`".into());
            }
            _ => {}
        }
        let mut names_it = self
            .url
            .as_ref()
            .is_some_and(|url| url.places().count() > 0);
        for value in self.arguments.values() {
            names_it |= Template::in_value(value)?;
        }
        for (name, tells) in [
            ("happened", Some(&self.happened)),
            ("did_not_happen", self.did_not_happen.as_ref()),
        ] {
            let Some(tells) = tells else { continue };
            if *tells == Tells::default() {
                return Err(format!(
                    "`in_doubt.query.{name}` is empty, so every answer would say so"
                ));
            }
            if tells.is.is_some() && tells.json.is_none() {
                return Err(format!(
                    "`in_doubt.query.{name}.is` needs `json`: what is to be compared"
                ));
            }
            let texts = tells.is.iter().chain(&tells.contains);
            names_it |= name == "happened"
                && texts.fold(false, |any, text| any | (text.places().count() > 0));
        }
        let pointers = [&self.response, &self.happened.json];
        let pointers = pointers
            .into_iter()
            .chain(self.did_not_happen.iter().map(|t| &t.json));
        for pointer in pointers.flatten() {
            if !(pointer.is_empty() || pointer.starts_with('/')) {
                return Err(format!(
                    "`{pointer}` is no JSON pointer: it begins with `/`"
                ));
            }
        }
        if !names_it {
            return Err(
                "`in_doubt.query` asks the same whatever the effect was; name the effect with a place to fill in, like `{body:/reference}`".into(),
            );
        }
        Ok(())
    }
}

impl Statuses {
    /// Whether this code is among them.
    pub fn has(&self, code: u16) -> bool {
        match self {
            Self::One(one) => *one == code,
            Self::Several(several) => several.contains(&code),
        }
    }
}
