//! The change that puts the relay in front of a stdio server in a configuration, and takes it away
//! again: edits of the text, so that formatting, comments and order stay.
//!
//! `"command": "npx", "args": ["-y", "x"]` becomes
//! `"command": "/usr/bin/acrfence", "args": ["mcp", "--", "npx", "-y", "x"]`. The original command
//! is moved as the piece of text it was, so that taking the relay away gives the very bytes back.

use std::ops::Range;

use super::jsonc::{Malformed, Node};

/// Marks an argument list that was not there before.
pub(super) const ADDED: &str = "--added-args";

/// What a server in a configuration is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// A stdio server behind the relay.
    Wrapped,
    /// A stdio server that is not.
    Unwrapped,
    /// Not a stdio server: its HTTP calls cross the network boundary.
    Remote,
    /// Its entry is none that is understood; it is left alone.
    Odd,
}

/// A server in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    /// Where it is: `mcpServers.bank`.
    pub(super) name: String,
    pub(super) state: State,
    entry: Option<Entry>,
}

/// The texts that a change is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Where the command stands.
    pub(super) command: Range<usize>,
    /// Where the argument list stands and where its items do; none when there is none.
    pub(super) arguments: Option<(Range<usize>, Vec<Range<usize>>)>,
    /// What an argument list that is put in begins and ends with, and where it goes.
    pub(super) addition: Addition,
    /// How many items of the list are the relay's, with the command it took in as the last one.
    pub(super) ours: usize,
    /// Whether the list as a whole is the relay's.
    pub(super) added: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Addition {
    pub(super) at: usize,
    pub(super) before: String,
    /// Where an added list begins, when there is one: what is taken out again.
    pub(super) from: usize,
}

/// How the relay is started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Relay {
    /// The program.
    pub(super) program: String,
    /// Options before `--`.
    pub(super) options: Vec<String>,
}

/// A replacement of a piece of text.
type Edit = (Range<usize>, String);

impl Server {
    pub(super) fn new(name: String, state: State, entry: Option<Entry>) -> Self {
        Self { name, state, entry }
    }
}

/// The servers of a JSON configuration.
pub(super) fn servers_in_json(text: &str) -> Result<Vec<Server>, Malformed> {
    let root = Node::read(text)?;
    let mut found = Vec::new();
    let mut table = |node: Option<&Node>, path: &str| {
        for member in node.map(Node::members).unwrap_or_default() {
            let name = format!("{path}.{}", member.name);
            found.push(json_server(text, &member.value, name));
        }
    };
    table(root.get("mcpServers"), "mcpServers");
    // Visual Studio Code: a file of its own, or part of the settings.
    table(root.get("servers"), "servers");
    table(
        root.get("mcp").and_then(|mcp| mcp.get("servers")),
        "mcp.servers",
    );
    // Claude Code keeps those of a project in the file of the user.
    let projects = root.get("projects").map(Node::members).unwrap_or_default();
    for project in projects {
        let path = format!("projects.{}.mcpServers", project.name);
        table(project.value.get("mcpServers"), &path);
    }
    Ok(found)
}

fn json_server(text: &str, node: &Node, name: String) -> Server {
    let Some(command) = node.get("command") else {
        let is_remote = ["url", "serverUrl", "httpUrl"]
            .iter()
            .any(|member| node.get(member).is_some());
        let state = if is_remote { State::Remote } else { State::Odd };
        return Server::new(name, state, None);
    };
    let odd = |name| Server::new(name, State::Odd, None);
    let Some(program) = command.as_str() else {
        return odd(name);
    };
    let arguments = match node.get("args") {
        None => None,
        Some(list) => {
            let Some(items) = list.as_array() else {
                return odd(name);
            };
            Some((list.span.clone(), items))
        }
    };
    let words: Vec<Option<&str>> = arguments
        .iter()
        .flat_map(|(_, items)| items.iter().map(Node::as_str))
        .collect();
    let relay = relay_of(program, &words);
    let entry = Entry {
        command: command.span.clone(),
        arguments: arguments
            .map(|(span, items)| (span, items.iter().map(|item| item.span.clone()).collect())),
        addition: Addition {
            at: command.span.end,
            before: ", \"args\": ".to_owned(),
            from: command.span.end,
        },
        ours: relay.map_or(0, |(ours, _)| ours),
        added: relay.is_some_and(|(_, added)| added),
    };
    // An added list is only taken out where it was put in.
    if entry.added && !text[entry.command.end..].starts_with(&entry.addition.before) {
        return odd(name);
    }
    let state = match relay {
        Some(_) => State::Wrapped,
        None => State::Unwrapped,
    };
    Server::new(name, state, Some(entry))
}

/// How many arguments of `program` are those of the relay, the command it took in included, and
/// whether it says that there were none before; none when it is not the relay.
pub(super) fn relay_of(program: &str, arguments: &[Option<&str>]) -> Option<(usize, bool)> {
    let is_ours = program.rsplit('/').next() == Some("acrfence");
    if !is_ours || arguments.first() != Some(&Some("mcp")) {
        return None;
    }
    let dashes = arguments.iter().position(|word| *word == Some("--"))?;
    // The command must be there, and be text that can stand in its old place.
    arguments.get(dashes + 1).copied().flatten()?;
    let added = arguments[..dashes].contains(&Some(ADDED)) && arguments.len() == dashes + 2;
    Some((dashes + 2, added))
}

/// The text with the relay in front of every stdio server that has none, and their names. `quote`
/// writes a string in the language of the text.
pub(super) fn wrapped(
    text: &str,
    servers: &[Server],
    relay: &Relay,
    quote: impl Fn(&str) -> String,
) -> (String, Vec<String>) {
    change(text, servers, State::Unwrapped, |entry, edits| {
        let command = &text[entry.command.clone()];
        let words = |added: bool| {
            let options = relay.options.iter().map(String::as_str);
            let added = added.then_some(ADDED);
            let words: Vec<String> = ["mcp"]
                .into_iter()
                .chain(options)
                .chain(added)
                .chain(["--"])
                .map(&quote)
                .collect();
            format!("{}, {command}", words.join(", "))
        };
        edits.push((entry.command.clone(), quote(&relay.program)));
        match &entry.arguments {
            None => {
                let at = entry.addition.at;
                let list = format!("{}[{}]", entry.addition.before, words(true));
                edits.push((at..at, list));
            }
            Some((list, items)) => match items.first() {
                Some(first) => {
                    edits.push((first.start..first.start, format!("{}, ", words(false))));
                }
                None => edits.push((list.start + 1..list.start + 1, words(false))),
            },
        }
    })
}

/// The text without the relay, and the names of the servers that had it.
pub(super) fn unwrapped(text: &str, servers: &[Server]) -> (String, Vec<String>) {
    change(text, servers, State::Wrapped, |entry, edits| {
        let Some((list, items)) = &entry.arguments else {
            return;
        };
        let (Some(first), Some(command)) = (items.first(), items.get(entry.ours - 1)) else {
            return;
        };
        edits.push((entry.command.clone(), text[command.clone()].to_owned()));
        if entry.added {
            edits.push((entry.addition.from..list.end, String::new()));
        } else {
            let end = items.get(entry.ours).map_or(command.end, |next| next.start);
            edits.push((first.start..end, String::new()));
        }
    })
}

fn change(
    text: &str,
    servers: &[Server],
    state: State,
    mut edit: impl FnMut(&Entry, &mut Vec<Edit>),
) -> (String, Vec<String>) {
    let mut edits = Vec::new();
    let mut names = Vec::new();
    for server in servers.iter().filter(|server| server.state == state) {
        if let Some(entry) = &server.entry {
            edit(entry, &mut edits);
            names.push(server.name.clone());
        }
    }
    edits.sort_by_key(|(span, _)| (span.start, span.end));
    let mut changed = String::with_capacity(text.len() + 200 * edits.len());
    let mut at = 0;
    for (span, with) in edits {
        changed.push_str(&text[at..span.start]);
        changed.push_str(&with);
        at = span.end;
    }
    changed.push_str(&text[at..]);
    (changed, names)
}

/// A string as JSON.
pub(super) fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn relay() -> Relay {
        Relay {
            program: "/opt/a b/acrfence".to_owned(),
            options: Vec::new(),
        }
    }

    fn wrap(text: &str) -> (String, Vec<String>) {
        wrapped(text, &servers_in_json(text).unwrap(), &relay(), json_string)
    }

    fn unwrap(text: &str) -> (String, Vec<String>) {
        unwrapped(text, &servers_in_json(text).unwrap())
    }

    const PROJECT: &str = r#"{
  // for the team
  "mcpServers": {
    "bank": {
      "command": "npx", // as published
      "args": [
        "-y",
        "bank-mcp"
      ],
      "env": {"A": "b",},
    },
    "bare": { "command": "b\u0061re" },
    "empty": { "args": [ ], "command": "e" },
    "far": { "type": "http", "url": "https://x" },
    "odd": { "command": ["no", "text"] },
  }
}
"#;

    #[test]
    fn every_stdio_server_gets_the_relay_and_nothing_else_moves() {
        let (text, names) = wrap(PROJECT);
        assert_eq!(
            names,
            ["mcpServers.bank", "mcpServers.bare", "mcpServers.empty"]
        );
        let expected = PROJECT
            .replace(r#""npx""#, r#""/opt/a b/acrfence""#)
            .replace(r#""-y""#, r#""mcp", "--", "npx", "-y""#)
            .replace(
                r#""command": "b\u0061re""#,
                r#""command": "/opt/a b/acrfence", "args": ["mcp", "--added-args", "--", "b\u0061re"]"#,
            )
            .replace(
                r#""args": [ ], "command": "e""#,
                r#""args": ["mcp", "--", "e" ], "command": "/opt/a b/acrfence""#,
            );
        assert_eq!(text, expected);
        let states: Vec<State> = servers_in_json(&text)
            .unwrap()
            .iter()
            .map(|server| server.state)
            .collect();
        use State::{Odd, Remote, Wrapped};
        assert_eq!(states, [Wrapped, Wrapped, Wrapped, Remote, Odd]);
        assert_eq!(wrap(&text), (text.clone(), vec![]));
        assert_eq!(unwrap(&text).0, PROJECT);
        assert_eq!(unwrap(PROJECT), (PROJECT.to_owned(), vec![]));
    }

    #[test]
    fn servers_are_found_where_each_program_keeps_them() {
        let text = r#"{"servers":{"a":{"command":"x"}},"mcp":{"servers":{"b":{"command":"x"}}},"projects":{"/p":{"mcpServers":{"c":{"command":"x"}}}}}"#;
        let names: Vec<String> = servers_in_json(text)
            .unwrap()
            .into_iter()
            .map(|server| server.name)
            .collect();
        assert_eq!(
            names,
            ["servers.a", "mcp.servers.b", "projects./p.mcpServers.c"]
        );
    }

    #[test]
    fn options_of_the_relay_are_taken_out_with_it() {
        let text = r#"{"mcpServers":{"a":{"command":"acrfence","args":["mcp","--socket","/s","--","x","y"]}}}"#;
        assert_eq!(
            unwrap(text).0,
            r#"{"mcpServers":{"a":{"command":"x","args":["y"]}}}"#
        );
    }

    fn configuration() -> impl Strategy<Value = String> {
        let space = || {
            prop_oneof![
                Just(""),
                Just(" "),
                Just("\n\t"),
                Just(" /* c */ "),
                Just("// c\n")
            ]
        };
        let string = || {
            prop_oneof![
                "[a-z./-]{0,8}".prop_map(|s| format!("\"{s}\"")),
                Just("\"mcp\"".to_owned()),
                Just("\"--\"".to_owned()),
                Just(r#""\u00e9\"\\""#.to_owned()),
            ]
        };
        let list = (
            prop::collection::vec(string(), 0..4),
            space(),
            any::<bool>(),
        )
            .prop_map(|(items, space, trailing)| {
                let comma = if trailing && !items.is_empty() {
                    ","
                } else {
                    ""
                };
                format!(
                    "[{space}{}{comma}{space}]",
                    items.join(&format!(",{space}"))
                )
            });
        let server = (string(), prop::option::of(list), space(), any::<bool>()).prop_map(
            |(command, list, space, list_first)| {
                let command = format!("\"command\":{space}{command}");
                let list = list.map(|list| format!("\"args\"{space}:{list}"));
                let members: Vec<String> = match (list, list_first) {
                    (Some(list), true) => vec![list, command],
                    (Some(list), false) => vec![command, list],
                    (None, _) => vec!["\"env\":{}".to_owned(), command],
                };
                format!("{{{space}{}{space}}}", members.join(&format!("{space},")))
            },
        );
        (prop::collection::vec(server, 0..4), space()).prop_map(|(servers, space)| {
            let members: Vec<String> = servers
                .iter()
                .enumerate()
                .map(|(n, server)| format!("\"s{n}\":{space}{server}"))
                .collect();
            format!("{{\"mcpServers\":{{{}}}}}{space}", members.join(","))
        })
    }

    proptest! {
        #[test]
        fn taking_the_relay_away_gives_the_very_bytes_back(text in configuration()) {
            let count = servers_in_json(&text).unwrap().len();
            let (with, names) = wrap(&text);
            prop_assert_eq!(names.len(), count);
            prop_assert!(servers_in_json(&with).unwrap().iter().all(|s| s.state == State::Wrapped), "{}", with);
            prop_assert_eq!(&wrap(&with).0, &with);
            prop_assert_eq!(unwrap(&with).0, text);
        }
    }
}
