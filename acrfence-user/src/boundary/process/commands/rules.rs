//! The rules: by program, subcommand and flags.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::sql;
use super::words::{Known, Words, has_flag};
use crate::probe::NamedProgram;
use crate::words::Body;

/// A kind of command that is gated, or, with `gate = false`, one that is not.
///
/// Every condition that is given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Rule {
    /// Names of programs, without directory.
    pub program: Vec<String>,
    /// The command says one of these (`push`, `rollout restart`); none given: whatever it says.
    pub subcommand: Vec<String>,
    /// Not when the command says one of these.
    pub except: Vec<String>,
    /// One of its words, wherever it stands, is one of these.
    pub word: Vec<String>,
    /// One of its words contains one of these.
    pub argument: Vec<String>,
    /// One of these options is given; none given: whatever is given.
    pub with: Vec<String>,
    /// Not when one of these options is given.
    pub unless: Vec<String>,
    /// Options whose value is the next word.
    pub value_flags: Vec<String>,
    /// Whether subcommands are the same in capitals.
    pub ignore_case: bool,
    /// Whether what it reads from standard input says what it does.
    pub stdin: bool,
    /// Options whose values are SQL: statements that only read are not gated, when every other option
    /// is in `value_flags` or `switches`.
    pub sql: Vec<String>,
    /// Options without a value.
    pub switches: Vec<String>,
    /// Whether such a command is gated; the first rule that fits decides.
    pub gate: Option<bool>,
}

/// Rules in the order in which they are asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules(Vec<Rule>);

/// Why rules are no rules.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// Not the right TOML.
    #[error("the rules for commands cannot be read: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A rule without a program would gate everything.
    #[error("a rule for commands names no program; name one in `program`")]
    NoProgram,
    /// A program's name that the kernel's table does not take.
    #[error(
        "`{0}` cannot be gated: a program is named without its directory, in 1 to 31 bytes of UTF-8"
    )]
    Name(String),
}

/// The form of rules in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    command: Vec<Rule>,
}

impl Rules {
    /// What is gated unless policy says otherwise.
    pub fn shipped() -> Self {
        #[expect(
            clippy::expect_used,
            reason = "the text is part of this program, and a test reads it"
        )]
        Self::from_toml(include_str!("shipped.toml")).expect("the shipped rules")
    }

    /// Reads rules: an array `command` of tables.
    pub fn from_toml(text: &str) -> Result<Self, RulesError> {
        let file: File = toml::from_str(text)?;
        Self::new(file.command)
    }

    /// These rules.
    pub fn new(rules: Vec<Rule>) -> Result<Self, RulesError> {
        for rule in &rules {
            if rule.program.is_empty() {
                return Err(RulesError::NoProgram);
            }
            for name in &rule.program {
                if name.is_empty() || name.len() > 31 || name.contains('/') {
                    return Err(RulesError::Name(name.clone()));
                }
            }
        }
        Ok(Self(rules))
    }

    /// These rules, and behind them others.
    pub fn before(mut self, others: Self) -> Self {
        self.0.extend(others.0);
        self
    }

    /// All programs that some rule gates: what the kernel must stop. A command line that has none of a
    /// program's words is none that a rule gates; one that has may be.
    pub fn telltales(&self) -> Vec<NamedProgram<'_>> {
        let mut all: BTreeMap<&str, Option<BTreeSet<&str>>> = BTreeMap::new();
        for rule in self.0.iter().filter(|rule| rule.gate != Some(false)) {
            let own = rule.telltales();
            for name in &rule.program {
                let known = all.entry(name).or_insert_with(|| Some(BTreeSet::new()));
                match (known.as_mut(), &own) {
                    (Some(known), Some(own)) => known.extend(own),
                    _ => *known = None,
                }
            }
        }
        let all = all.into_iter();
        all.map(|(name, words)| NamedProgram {
            name,
            words: words.map(|words| words.into_iter().collect()),
        })
        .collect()
    }

    /// The rule that gates a command, if one does. `argv` begins with the program as it was named;
    /// see [`Self::command_line`].
    pub fn gating(&self, argv: &[String]) -> Option<&Rule> {
        let (program, arguments) = argv.split_first()?;
        let program = base_name(program);
        self.0
            .iter()
            .find(|rule| rule.fits(program, arguments))
            .filter(|rule| rule.gate != Some(false))
    }

    /// The command line as it was meant, when it is that of a program some rule names.
    ///
    /// `argv` is what the process has: for a script the kernel put its interpreter before it, and
    /// `argv[0]` may be anything. `started` is the path that was executed, `file` the program file
    /// that runs.
    pub fn command_line(&self, argv: &[String], started: &str, file: &str) -> Option<Vec<String>> {
        let is_known = |name: &str| self.0.iter().any(|rule| rule.names(base_name(name)));
        let program = [started, file].into_iter().find(|name| is_known(name))?;
        let script = (1..=LATEST).find(|&at| {
            base_name(file) != base_name(started) && argv.get(at).is_some_and(|w| w == started)
        });
        let arguments = argv.iter().skip(script.unwrap_or(0) + 1);
        Some(
            std::iter::once(program.to_owned())
                .chain(arguments.cloned())
                .collect(),
        )
    }
}

impl Rules {
    /// A command line without the interpreter that the kernel put before a script, as far as the words
    /// alone tell.
    pub fn as_meant(&self, mut argv: Vec<String>) -> Vec<String> {
        let mut words = argv.iter().take(1 + LATEST);
        let program = words.position(|word| self.know(word));
        argv.split_off(program.unwrap_or(0))
    }

    /// Whether some rule names this program.
    pub fn know(&self, program: &str) -> bool {
        self.0.iter().any(|rule| rule.names(base_name(program)))
    }
}

/// An interpreter and one argument of it may stand before a script.
const LATEST: usize = 2;

impl Rule {
    /// Whether a command that this rule gates says nothing but SQL that reads.
    pub fn only_reads(&self, argv: &[String], stdin: Option<&Body>) -> bool {
        if self.sql.is_empty() {
            return false;
        }
        let known = Known {
            wanted: &self.sql,
            valued: &self.value_flags,
            switches: &self.switches,
        };
        let Some(statements) = known.values(argv.get(1..).unwrap_or_default()) else {
            return false;
        };
        match (&statements[..], stdin) {
            ([], Some(body)) if body.is_whole() && !body.kept.is_empty() => {
                std::str::from_utf8(&body.kept).is_ok_and(sql::only_reads)
            }
            ([], _) => false,
            (statements, _) => statements.iter().all(|text| sql::only_reads(text)),
        }
    }

    /// Words of which a command line must have one for the rule to fit; none when it needs no word.
    fn telltales(&self) -> Option<Vec<&str>> {
        let said = [&self.subcommand, &self.word];
        let said = said.into_iter().find(|said| !said.is_empty())?;
        // All words of `rollout restart` must be there; the last says most.
        let last = said.iter().map(|said| said.rsplit(' ').next());
        last.collect::<Option<Vec<_>>>()
            .filter(|_| !self.ignore_case)
    }

    fn names(&self, program: &str) -> bool {
        self.program.iter().any(|name| name == program)
    }

    fn fits(&self, program: &str, arguments: &[String]) -> bool {
        if !self.names(program) {
            return false;
        }
        let words = Words::of(arguments, &self.value_flags);
        let case = self.ignore_case;
        let any = |list: &[String], holds: &dyn Fn(&str) -> bool| {
            list.is_empty() || list.iter().any(|item| holds(item))
        };
        any(&self.subcommand, &|wanted| words.begin_with(wanted, case))
            && any(&self.word, &|wanted| words.contain(wanted))
            && any(&self.argument, &|part| {
                arguments.iter().any(|word| word.contains(part))
            })
            && any(&self.with, &|flag| has_flag(arguments, flag))
            && !self
                .except
                .iter()
                .any(|wanted| words.surely_begin_with(wanted, case))
            && !self.unless.iter().any(|flag| has_flag(arguments, flag))
    }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn argv(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn what_acts_outside_is_gated() {
        let rules = Rules::shipped();
        for line in [
            "git push",
            "/usr/bin/git -C /src push origin main",
            "git -c core.sshCommand=x push --force",
            // An option nobody here knows, which may take a value.
            "git --frobnicate x push",
            "ssh host uptime",
            "rsync -a dir host:dir",
            "psql",
            "psql -f load.sql",
            "redis-cli -h db SET a 1",
            "redis-cli --odd get x",
            "sendmail -t",
            "systemctl --user restart bank",
            "service bank restart",
            "kubectl -n prod rollout restart deployment/bank",
            "kubectl apply -f x.yaml",
            "helm upgrade bank ./chart",
            "terraform -chdir=infra apply -auto-approve",
            "docker --context far push bank:1",
            "docker image push bank:1",
            "npm publish",
            "cargo publish",
            "twine upload dist/x",
            "crontab -",
        ] {
            assert!(rules.gating(&argv(line)).is_some(), "{line}");
        }
    }

    #[test]
    fn what_reads_or_stays_here_is_not() {
        let rules = Rules::shipped();
        for line in [
            "git status",
            "git log --grep push",
            "git commit -m push",
            "git push --dry-run",
            "git stash push",
            "rsync -a one two",
            "psql --version",
            "redis-cli GET a",
            "redis-cli config get maxmemory",
            "systemctl status bank",
            "service bank status",
            "kubectl get pods",
            "kubectl apply -f x.yaml --dry-run=server",
            "kubectl rollout status deployment/bank",
            "terraform plan",
            "docker build .",
            "docker run bank",
            "npm install",
            "npm run publish",
            "cargo build",
            "crontab -l",
            "ls push",
        ] {
            assert_eq!(rules.gating(&argv(line)), None, "{line}");
        }
    }

    #[test]
    fn scripts_and_links_are_seen_through() {
        let rules = Rules::shipped();
        let line = |words: &str, started: &str, file: &str| {
            rules
                .command_line(&argv(words), started, file)
                .map(|argv| argv.join(" "))
        };
        let psql = "/usr/bin/psql";
        assert_eq!(
            line("/usr/bin/perl -w /usr/bin/psql -c x", psql, "/usr/bin/perl").unwrap(),
            "/usr/bin/psql -c x"
        );
        let npm = "/usr/bin/npm";
        assert_eq!(
            line(
                "/usr/bin/env node /usr/bin/npm publish",
                npm,
                "/usr/bin/env"
            )
            .unwrap(),
            "/usr/bin/npm publish"
        );
        let git = "/usr/bin/git";
        assert_eq!(
            line("odd push", "/tmp/odd", git).unwrap(),
            "/usr/bin/git push"
        );
        assert_eq!(line("-x push", "git", git).unwrap(), "git push");
        assert_eq!(line("git git push", "git", git).unwrap(), "git git push");
        assert_eq!(line("ls ssh", "/bin/ls", "/bin/ls"), None);
        let meant = |words: &str| rules.as_meant(argv(words)).join(" ");
        assert_eq!(meant("/bin/sh /bin/git push"), "/bin/git push");
        assert_eq!(meant("git push ssh"), "git push ssh");
        assert_eq!(meant("odd push"), "odd push");
    }

    #[test]
    fn sql_that_only_reads_is_told_apart() {
        let rules = Rules::shipped();
        let reads = |line: &[&str], stdin: Option<&str>| {
            let argv: Vec<String> = line.iter().map(|word| (*word).to_owned()).collect();
            let stdin = stdin.map(|text| Body::whole(text.to_owned()));
            rules
                .gating(&argv)
                .unwrap()
                .only_reads(&argv, stdin.as_ref())
        };
        assert!(reads(&["psql", "-c", "SELECT 1"], None));
        assert!(reads(&["psql", "-cSELECT 1", "--command=\\dt"], None));
        assert!(reads(&["psql", "db"], Some("select * from t;\n")));
        assert!(!reads(
            &["psql", "-c", "SELECT 1", "-c", "DELETE FROM t"],
            None
        ));
        assert!(!reads(&["psql", "-c", "SELECT 1", "-f", "x.sql"], None));
        assert!(!reads(&["psql", "db"], None));
        let pooled = [
            "psql",
            "-h",
            "/run/pg",
            "--username=bank",
            "-XAtc",
            "SELECT 1",
        ];
        assert!(reads(&pooled, None));
        assert!(reads(&["mysql", "-uroot", "-NBe", "SELECT 1"], None));
        // A statement may hide behind an option that nobody here knows.
        assert!(!reads(
            &["psql", "-c", "SELECT 1", "-qc", "DELETE FROM t"],
            None
        ));
        assert!(!reads(
            &["psql", "-c", "SELECT 1", "-Yc", "DELETE FROM t"],
            None
        ));
        assert!(!reads(
            &["psql", "--comm=DELETE FROM t", "-c", "SELECT 1"],
            None
        ));
        assert!(!reads(&["psql", "-o", "|sh", "-c", "SELECT 1"], None));
        assert!(!reads(&["psql", "-c"], None));
        assert!(!reads(&["ssh", "host"], Some("select 1")));
    }

    #[test]
    fn policy_comes_first() {
        let own = "[[command]]\nprogram = ['git']\nargument = ['scratch']\ngate = false\n[[command]]\nprogram = ['pay']\n";
        let rules = Rules::from_toml(own).unwrap().before(Rules::shipped());
        assert_eq!(rules.gating(&argv("git push scratch")), None);
        assert!(rules.gating(&argv("git push origin")).is_some());
        assert!(rules.gating(&argv("pay 5")).is_some());
        assert!(
            rules
                .telltales()
                .iter()
                .any(|program| program.name == "pay")
        );
        for bad in [
            "[[command]]\nsubcommand = ['x']",
            "[[command]]\nprogram = ['/bin/x']",
            "[[command]]\nprogram = ['x']\ncolour = 1",
        ] {
            assert!(Rules::from_toml(bad).is_err(), "{bad}");
        }
    }

    /// What the kernel does with [`Rules::telltales`].
    fn may_be_gated(rules: &Rules, argv: &[String]) -> bool {
        let programs = rules.telltales();
        let program = programs
            .iter()
            .find(|program| program.name == base_name(&argv[0]));
        program.is_some_and(|program| {
            let has = |wanted: &&str| argv.iter().any(|word| word == wanted);
            program.words.as_ref().is_none_or(|w| w.iter().any(has))
        })
    }

    #[test]
    fn what_no_rule_means_is_told_by_its_words() {
        let rules = Rules::shipped();
        for line in [
            "git status",
            "git log",
            "kubectl get pods",
            "npm install",
            "cargo build",
            "systemctl status x",
            "ls push",
        ] {
            assert!(!may_be_gated(&rules, &argv(line)), "{line}");
        }
        for line in ["git stash push", "redis-cli get x", "docker image push x"] {
            assert!(may_be_gated(&rules, &argv(line)), "{line}");
        }
        let own = "[[command]]\nprogram = ['git']\nargument = ['scratch']";
        let all = Rules::from_toml(own).unwrap().before(Rules::shipped());
        assert!(may_be_gated(&all, &argv("git status")));
        let never = "[[command]]\nprogram = ['git']\ngate = false";
        let some = Rules::from_toml(never).unwrap().before(Rules::shipped());
        assert!(may_be_gated(&some, &argv("git push")));
    }

    proptest! {
        /// The kernel refuses by telltales what no rule could be asked about: nothing that a rule gates
        /// may lack them.
        #[test]
        fn what_is_gated_has_its_telltale(
            program in prop::sample::select(
                Rules::shipped().0.iter().flat_map(|rule| rule.program.clone()).collect::<Vec<_>>()
            ),
            words in prop::collection::vec(prop_oneof![
                prop::sample::select(
                    Rules::shipped().0.iter()
                        .flat_map(|rule| rule.subcommand.iter().chain(&rule.word))
                        .flat_map(|said| said.split(' ').map(str::to_owned).collect::<Vec<_>>())
                        .collect::<Vec<_>>()
                ),
                "-{1,2}[a-z]{1,4}", "[a-z:]{1,6}",
            ], 0..6),
        ) {
            let rules = Rules::shipped();
            let mut line = vec![program];
            line.extend(words);
            prop_assert!(rules.gating(&line).is_none() || may_be_gated(&rules, &line));
        }

        /// Options before the subcommand, known or not, do not hide it.
        #[test]
        fn options_do_not_hide_what_is_said(
            flags in prop::collection::vec(prop_oneof![
                Just("-C dir"), Just("-c a=b"), Just("--no-pager"), Just("-p"), Just("--git-dir=x"),
            ], 0..5),
            unknown in prop::option::of("--[a-z]{4,8} [a-z]{1,5}"),
        ) {
            let mut line = vec!["git".to_owned()];
            line.extend(flags.iter().map(|flag| flag.to_string()));
            line.extend(unknown);
            line.push("push origin".to_owned());
            prop_assert!(Rules::shipped().gating(&argv(&line.join(" "))).is_some());
        }
    }
}
