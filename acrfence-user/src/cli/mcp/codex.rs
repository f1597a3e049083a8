//! Codex keeps its servers in TOML: the same change, found in another language.

use std::ops::Range;

use toml_edit::{Document, Item, TableLike};

use super::wrap::{Addition, Entry, Server, State, relay_of};

/// The servers of a TOML configuration.
pub(super) fn servers_in_toml(text: &str) -> Result<Vec<Server>, toml_edit::TomlError> {
    let document = Document::parse(text)?;
    let servers = document
        .as_table()
        .get("mcp_servers")
        .and_then(Item::as_table_like);
    Ok(servers
        .into_iter()
        .flat_map(TableLike::iter)
        .map(|(name, item)| {
            let name = format!("mcp_servers.{name}");
            server(text, item, name)
        })
        .collect())
}

fn server(text: &str, item: &Item, name: String) -> Server {
    let odd = |name| Server::new(name, State::Odd, None);
    let Some(table) = item.as_table_like() else {
        return odd(name);
    };
    let Some(command) = table.get("command") else {
        let state = if table.contains_key("url") {
            State::Remote
        } else {
            State::Odd
        };
        return Server::new(name, state, None);
    };
    let (Some(program), Some(span)) = (command.as_str(), command.span()) else {
        return odd(name);
    };
    let mut words = Vec::new();
    let mut arguments = None;
    if let Some(list) = table.get("args") {
        let (Some(items), Some(span)) = (list.as_array(), list.span()) else {
            return odd(name);
        };
        words = items.iter().map(toml_edit::Value::as_str).collect();
        let spans: Option<Vec<Range<usize>>> = items.iter().map(toml_edit::Value::span).collect();
        let Some(spans) = spans else {
            return odd(name);
        };
        arguments = Some((span, spans));
    }
    let relay = relay_of(program, &words);
    let list_start = arguments.as_ref().map(|(list, _)| list.start);
    let entry = Entry {
        addition: addition(text, &span, item.is_inline_table(), list_start),
        command: span,
        arguments,
        ours: relay.map_or(0, |(ours, _)| ours),
        added: relay.is_some_and(|(_, added)| added),
    };
    if entry.added
        && let Some(list) = list_start
        && text.get(entry.addition.from..list) != Some(entry.addition.before.as_str())
    {
        return odd(name);
    }
    let state = match relay {
        Some(_) => State::Wrapped,
        None => State::Unwrapped,
    };
    Server::new(name, state, Some(entry))
}

/// Where a list of arguments goes that was not there: behind the command in an inline table, on
/// the next line in another.
fn addition(text: &str, command: &Range<usize>, is_inline: bool, list: Option<usize>) -> Addition {
    if is_inline {
        return Addition {
            at: command.end,
            before: ", args = ".to_owned(),
            from: command.end,
        };
    }
    let line = text[..command.start].rfind('\n').map_or(0, |at| at + 1);
    let key = &text[line..command.start];
    // The last word of the key, which may be dotted or quoted.
    let key = match key.rfind("command") {
        Some(at) => format!("{}args{}", &key[..at], &key[at + "command".len()..]),
        None => "args = ".to_owned(),
    };
    let rest = &text[command.end..];
    let at = command.end + rest.find('\n').unwrap_or(rest.len());
    let (at, newline) = if text[..at].ends_with('\r') {
        (at - 1, "\r\n")
    } else {
        (at, "\n")
    };
    let before = format!("{newline}{key}");
    let from = list.map_or(at, |list| list.saturating_sub(before.len()));
    Addition { at, before, from }
}

/// A string as TOML.
pub(super) fn toml_string(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::wrap::{self, Relay};
    use super::*;

    fn wrap(text: &str) -> (String, Vec<String>) {
        let relay = Relay {
            program: "/opt/acrfence".to_owned(),
            options: vec!["--socket".to_owned(), "/s".to_owned()],
        };
        wrap::wrapped(text, &servers_in_toml(text).unwrap(), &relay, toml_string)
    }

    fn unwrap(text: &str) -> String {
        wrap::unwrapped(text, &servers_in_toml(text).unwrap()).0
    }

    #[test]
    fn codex_servers_get_the_relay() {
        let text = "model = \"x\" # mine\r\n\r\n[mcp_servers.bank]\r\n  command = 'npx' # as published\r\nenabled = true\r\n\r\n[mcp_servers.\"b c\"]\r\nargs = [ # two\r\n  \"a\",\r\n]\r\ncommand = \"x\"\r\n[mcp_servers.far]\r\nurl = \"https://x\"\r\n";
        let (with, names) = wrap(text);
        assert_eq!(names, ["mcp_servers.bank", "mcp_servers.b c"]);
        let expected = text
            .replace("'npx' # as published\r\n", "\"/opt/acrfence\" # as published\r\n  args = [\"mcp\", \"--socket\", \"/s\", \"--added-args\", \"--\", 'npx']\r\n")
            .replace("  \"a\",", "  \"mcp\", \"--socket\", \"/s\", \"--\", \"x\", \"a\",")
            .replace("command = \"x\"", "command = \"/opt/acrfence\"");
        assert_eq!(with, expected);
        assert_eq!(wrap(&with).0, with);
        assert_eq!(unwrap(&with), text);
    }

    #[test]
    fn other_ways_to_write_a_table() {
        for text in [
            "mcp_servers = { bank = { command = \"x\" } }",
            "mcp_servers.bank = { command = \"x\", args = [] }\n",
            "mcp_servers.bank.command = \"x\"",
            "[mcp_servers]\nbank.\"command\" = \"\"\"x\"\"\"\n",
            "[mcp_servers.bank]\ncommand = \"x\"",
        ] {
            let (with, names) = wrap(text);
            assert_eq!(names, ["mcp_servers.bank"], "{text}");
            let servers = servers_in_toml(&with).unwrap();
            assert_eq!(servers[0].state, State::Wrapped, "{with}");
            assert_eq!(unwrap(&with), text);
        }
        assert!(servers_in_toml("mcp_servers = 5").unwrap().is_empty());
        assert!(servers_in_toml("x = ").is_err());
    }

    proptest! {
        #[test]
        fn taking_the_relay_away_gives_the_very_bytes_back(
            servers in prop::collection::vec((
                prop_oneof![Just("\"x\""), Just("'a b'"), Just("\"mcp\"")],
                prop::option::of(prop_oneof![Just("[]"), Just("[ \"a\" ]"), Just("[\n\"--\", # c\n'b',\n]")]),
                any::<bool>(),
                prop_oneof![Just(""), Just(" # c"), Just("  ")],
            ), 0..4)
        ) {
            let mut text = "a = 1\n".to_owned();
            for (n, (command, list, first, end)) in servers.iter().enumerate() {
                let command = format!("command = {command}{end}\n");
                let list = list.map(|list| format!("args = {list}{end}\n")).unwrap_or_default();
                let (one, other) = if *first { (&list, &command) } else { (&command, &list) };
                text.push_str(&format!("[mcp_servers.s{n}]\n{one}{other}"));
            }
            let (with, names) = wrap(&text);
            prop_assert_eq!(names.len(), servers.len());
            prop_assert_eq!(&wrap(&with).0, &with);
            prop_assert_eq!(unwrap(&with), text);
        }
    }
}
