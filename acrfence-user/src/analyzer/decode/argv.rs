//! Command lines. Both are read together: whether a flag takes a value is known for common
//! programs, and for others from how the two lines use it. Where that leaves a doubt, the reading
//! that keeps more differences is taken.

use std::borrow::Cow;

use super::super::value::Value;
use super::programs::{self, Known, Program};
use super::{content, shell, url};

/// Most words of a command line that is taken apart.
const MOST_WORDS: usize = 4096;

/// Deepest nesting of commands in commands (`sudo ssh host sh -c …`).
const DEEPEST: usize = 4;

/// Reads two command lines as trees: program, subcommand, flags by their long names, arguments.
pub(in crate::analyzer) fn pair(
    one: &[String],
    two: &[String],
) -> (Value<'static>, Value<'static>) {
    nested(one, two, DEEPEST)
}

fn nested(one: &[String], two: &[String], depth: usize) -> (Value<'static>, Value<'static>) {
    let (Some(first), Some(second)) = (one.first(), two.first()) else {
        return (raw(one), raw(two));
    };
    let name = base(first);
    if name != base(second) || one.len() > MOST_WORDS || two.len() > MOST_WORDS || depth == 0 {
        return (raw(one), raw(two));
    }
    let spec_one = programs::find(name, &plain_words(&one[1..]));
    let spec_two = programs::find(name, &plain_words(&two[1..]));
    let spec = match (spec_one, spec_two) {
        (Some(a), Some(b)) if a.name == b.name => Some(a),
        (None, None) => None,
        // Another subcommand: no common reading is needed.
        _ => return (raw(one), raw(two)),
    };
    let mut a = parse(one, two, name, spec);
    let mut b = parse(two, one, name, spec);
    match name {
        "git" => {
            refspecs(&mut a);
            refspecs(&mut b);
        }
        "systemctl" => {
            units(&mut a);
            units(&mut b);
        }
        "curl" => return (http(a), http(b)),
        _ => {}
    }
    let (rest_a, rest_b) = (std::mem::take(&mut a.rest), std::mem::take(&mut b.rest));
    let mut tree_a = a.into_entries();
    let mut tree_b = b.into_entries();
    if !(rest_a.is_empty() && rest_b.is_empty()) {
        let (x, y) = match name {
            "sudo" => nested(&rest_a, &rest_b, depth - 1),
            // ssh joins its words with blanks and gives them to a shell.
            "ssh" => script(&rest_a.join(" "), &rest_b.join(" "), depth - 1),
            _ => (raw(&rest_a), raw(&rest_b)),
        };
        tree_a.push(("rest".into(), x));
        tree_b.push(("rest".into(), y));
    }
    if matches!(name, "bash" | "sh") {
        nest_script(&mut tree_a, &mut tree_b, depth - 1);
    }
    (Value::Map(tree_a), Value::Map(tree_b))
}

/// Reads two shell texts: simple commands as command lines, anything else piece by piece.
pub(in crate::analyzer) fn script(
    one: &str,
    two: &str,
    depth: usize,
) -> (Value<'static>, Value<'static>) {
    if depth > 0
        && let (Some(a), Some(b)) = (shell::simple_command(one), shell::simple_command(two))
    {
        return nested(&a, &b, depth);
    }
    match (shell::read(one), shell::read(two)) {
        (Ok(a), Ok(b)) => (a, b),
        _ => (Value::text(one), Value::text(two)),
    }
}

/// Like [`script`], for a text field that holds a command.
pub(in crate::analyzer) fn command_text(
    one: &str,
    two: &str,
) -> Option<(Value<'static>, Value<'static>)> {
    if let (Some(a), Some(b)) = (shell::simple_command(one), shell::simple_command(two)) {
        return Some(nested(&a, &b, DEEPEST));
    }
    Some((shell::read(one).ok()?, shell::read(two).ok()?))
}

fn nest_script(one: &mut Entries, two: &mut Entries, depth: usize) {
    let find = |entries: &Entries| entries.iter().position(|(n, _)| n == "--c");
    if let (Some(i), Some(j)) = (find(one), find(two))
        && let (Some(a), Some(b)) = (one[i].1.as_text(), two[j].1.as_text())
    {
        let (x, y) = script(a, b, depth);
        one[i].1 = x;
        two[j].1 = y;
    }
}

fn raw(words: &[String]) -> Value<'static> {
    Value::Map(vec![(
        "argv".into(),
        Value::List(words.iter().map(|w| Value::text(w.clone())).collect()),
    )])
}

/// The name of a program that is found in a usual place; any other path stays whole, because
/// `./deploy.sh` and `../old/deploy.sh` are two programs.
fn base(program: &str) -> &str {
    const USUAL: &[&str] = &[
        "/bin/",
        "/usr/bin/",
        "/usr/local/bin/",
        "/sbin/",
        "/usr/sbin/",
        "/usr/local/sbin/",
        "/opt/homebrew/bin/",
    ];
    USUAL
        .iter()
        .find_map(|dir| program.strip_prefix(dir))
        .filter(|name| !name.is_empty() && !name.contains('/'))
        .unwrap_or(program)
}

fn plain_words(words: &[String]) -> Vec<&str> {
    words
        .iter()
        .map(String::as_str)
        .filter(|w| !w.starts_with('-'))
        .take(3)
        .collect()
}

type Entries = Vec<(Cow<'static, str>, Value<'static>)>;

struct Line {
    program: String,
    commands: Vec<String>,
    /// Long names with their values in the order given; none for a switch.
    flags: Vec<(String, Option<String>)>,
    args: Vec<String>,
    rest: Vec<String>,
}

impl Line {
    fn into_entries(self) -> Entries {
        let mut entries: Entries = vec![("program".into(), Value::text(self.program))];
        if !self.commands.is_empty() {
            entries.push(("command".into(), Value::text(self.commands.join(" "))));
        }
        for (name, value) in self.flags {
            let value = match value {
                Some(text) => Value::text(text),
                None => Value::Bool(true),
            };
            let name = Cow::Owned(format!("--{name}"));
            // A switch given twice (`-v -v`) says it once more; keep it as a list.
            super::add_repeatable(&mut entries, name, value);
        }
        if !self.args.is_empty() {
            let args = self.args.into_iter().map(Value::text).collect();
            entries.push(("args".into(), Value::List(args)));
        }
        entries
    }

    fn take(&mut self, name: &str) -> Vec<String> {
        let mut taken = Vec::new();
        self.flags.retain(|(n, value)| {
            let is = n == name;
            if is {
                taken.push(value.clone().unwrap_or_default());
            }
            !is
        });
        taken
    }
}

fn parse(words: &[String], other: &[String], name: &str, spec: Option<&'static Program>) -> Line {
    let mut line = Line {
        program: name.to_owned(),
        commands: Vec::new(),
        flags: Vec::new(),
        args: Vec::new(),
        rest: Vec::new(),
    };
    let commands = spec.map_or(0, |s| s.commands);
    let stop = spec.and_then(|s| s.stop);
    let mut words = words[1..].iter().peekable();
    while let Some(word) = words.next() {
        if stop.is_some_and(|n| line.args.len() >= n) && line.commands.len() >= commands {
            let optional = word.starts_with('-')
                && word.len() > 1
                && line.args.len() == stop.unwrap_or(0)
                && stop == Some(0);
            if !optional {
                line.rest.push(word.clone());
                line.rest.extend(words.cloned());
                break;
            }
        }
        if word == "--" {
            // After it every word is an argument; the marker itself is kept, because some programs
            // tell paths from names by it.
            line.args.push("--".into());
            line.args.extend(words.cloned());
            break;
        }
        let Some(flag) = word
            .strip_prefix('-')
            .filter(|f| !f.is_empty() && !is_number(f))
        else {
            if line.commands.len() < commands {
                line.commands.push(word.clone());
            } else {
                line.args.push(word.clone());
            }
            continue;
        };
        let long = flag.strip_prefix('-');
        let bare = long.unwrap_or(flag);
        if let Some((flag_name, value)) = bare.split_once('=') {
            let canonical = match spec.and_then(|s| s.flag(flag_name)) {
                Some(Known::Switch(n) | Known::Value(n)) => n.to_owned(),
                None if long.is_some() || spec.is_some() => flag_name.to_owned(),
                // `-Dx=y` of an unknown program: order may matter, so it stays an argument.
                None => {
                    line.args.push(word.clone());
                    continue;
                }
            };
            line.flags.push((canonical, Some(value.to_owned())));
            continue;
        }
        match spec.and_then(|s| s.flag(bare)) {
            Some(Known::Switch(n)) => {
                line.flags.push((n.to_owned(), None));
                continue;
            }
            Some(Known::Value(n)) => {
                let value = words.next().cloned().unwrap_or_default();
                line.flags.push((n.to_owned(), Some(value)));
                continue;
            }
            None => {}
        }
        if let Some(spec) = spec
            && long.is_none()
            && let Some(split) = short_flags(spec, flag)
        {
            let mut missing = None;
            for (n, value) in split {
                if value.as_deref() == Some("\0") {
                    missing = Some(n);
                } else {
                    line.flags.push((n.to_owned(), value));
                }
            }
            if let Some(n) = missing {
                let value = words.next().cloned().unwrap_or_default();
                line.flags.push((n.to_owned(), Some(value)));
            }
            continue;
        }
        if long.is_none() && spec.is_none() {
            // Single-dash words of an unknown program: `find` works through them in order.
            line.args.push(word.clone());
            continue;
        }
        let follows = words.peek().filter(|w| !is_flag(w));
        match follows {
            Some(value) if takes_value(word, value, other) => {
                line.flags.push((bare.to_owned(), Some((*value).clone())));
                words.next();
            }
            _ => line.flags.push((bare.to_owned(), None)),
        }
    }
    line
}

/// Whether an unknown flag takes the word after it as its value, as far as the other command line
/// tells: it does not where the flag stands last there or before another flag.
fn takes_value(flag: &str, _value: &str, other: &[String]) -> bool {
    let mut seen_alone = false;
    for (i, word) in other.iter().enumerate() {
        if word == flag {
            seen_alone |= other.get(i + 1).is_none_or(|next| is_flag(next));
        }
    }
    !seen_alone
}

fn is_flag(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !is_number(&word[1..])
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

/// `-av` as `-a -v`, `-ofile` as `-o file`. A value of "\0" says that the next word is the value.
fn short_flags(spec: &'static Program, flag: &str) -> Option<Vec<(&'static str, Option<String>)>> {
    let mut out = Vec::new();
    let mut rest = flag;
    while let Some(c) = rest.chars().next() {
        let (one, after) = rest.split_at(c.len_utf8());
        match spec.flag(one)? {
            Known::Switch(name) => out.push((name, None)),
            Known::Value(name) => {
                let value = if after.is_empty() { "\0" } else { after };
                out.push((name, Some(value.trim_start_matches('=').to_owned())));
                return Some(out);
            }
        }
        rest = after;
    }
    Some(out)
}

/// `x` and `refs/heads/x:refs/heads/x` name the same push. Only inside one kind of spelling: a bare
/// name could also be a tag, so it is not made a branch.
fn refspecs(line: &mut Line) {
    if line.commands.first().map(String::as_str) != Some("push") {
        return;
    }
    for spec in line.args.iter_mut().skip(1) {
        let (force, bare) = match spec.strip_prefix('+') {
            Some(bare) => ("+", bare),
            None => ("", spec.as_str()),
        };
        if let Some((from, to)) = bare.split_once(':')
            && from == to
            && !from.is_empty()
        {
            *spec = format!("{force}{from}");
        }
    }
}

/// `nginx` is `nginx.service`.
fn units(line: &mut Line) {
    const SUFFIXES: &[&str] = &[
        ".service",
        ".socket",
        ".timer",
        ".target",
        ".mount",
        ".path",
        ".slice",
        ".scope",
        ".device",
        ".automount",
        ".swap",
    ];
    for unit in &mut line.args {
        if !SUFFIXES.iter().any(|s| unit.ends_with(s))
            && !unit.contains(['/', '*', '?'])
            && unit != "--"
        {
            unit.push_str(".service");
        }
    }
}

/// A curl command as the request it sends.
fn http(mut line: Line) -> Value<'static> {
    let mut headers: Entries = Vec::new();
    let mut content_type = None;
    for header in line.take("header") {
        let Some((name, value)) = header.split_once(':') else {
            super::add_repeatable(&mut headers, Cow::Owned(header), Value::Bool(true));
            continue;
        };
        let name = name.trim().to_ascii_lowercase();
        if name == "content-type" {
            content_type = Some(value.trim().to_owned());
        }
        super::add_repeatable(&mut headers, Cow::Owned(name), Value::text(value.trim()));
    }
    let mut data: Vec<String> = Vec::new();
    let mut encoded: Entries = Vec::new();
    for name in ["data", "data-raw", "data-binary", "data-ascii"] {
        data.extend(line.take(name));
    }
    for pair in line.take("data-urlencode") {
        let (name, value) = pair.split_once('=').unwrap_or(("", &pair));
        super::add_repeatable(
            &mut encoded,
            Cow::Owned(name.to_owned()),
            Value::text(value),
        );
    }
    let json = line.take("json");
    if !json.is_empty() {
        content_type.get_or_insert_with(|| "application/json".into());
        data.extend(json);
    }
    let has_body = !data.is_empty() || !encoded.is_empty();
    let get = !line.take("get").is_empty();
    let head = !line.take("head").is_empty();
    let method = line.take("request").pop().unwrap_or_else(|| {
        if head {
            "HEAD"
        } else if get || !has_body {
            "GET"
        } else {
            "POST"
        }
        .into()
    });
    let mut urls = line.take("url");
    urls.append(&mut line.args);
    let mut entries: Entries = vec![
        ("program".into(), Value::text("curl")),
        ("method".into(), Value::text(method.to_ascii_uppercase())),
    ];
    for address in urls {
        let read = url::read(&address).map(Value::into_owned);
        super::add_repeatable(
            &mut entries,
            "url".into(),
            read.unwrap_or(Value::text(address)),
        );
    }
    // `--location`, `--silent` and the like stay as flags.
    entries.extend(
        Line {
            program: String::new(),
            commands: Vec::new(),
            flags: line.flags,
            args: Vec::new(),
            rest: Vec::new(),
        }
        .into_entries()
        .into_iter()
        .skip(1),
    );
    entries.push(("headers".into(), Value::Map(headers)));
    if has_body {
        // curl sends a form unless a header says otherwise.
        let kind = content_type.unwrap_or_else(|| "application/x-www-form-urlencoded".into());
        let joined = data.join("&");
        let body = match content(Some(&kind), &joined, 2).into_owned() {
            Value::Map(mut fields) => {
                for (name, value) in encoded {
                    super::add_repeatable(&mut fields, name, value);
                }
                Value::Map(fields)
            }
            other if encoded.is_empty() => other,
            other => Value::List(vec![other, Value::Map(encoded)]),
        };
        let body = if data.iter().any(|d| d.starts_with('@')) {
            // What a file holds is not known.
            Value::Code(Cow::Owned(format!("contents of {}", data.join(", "))))
        } else {
            body
        };
        entries.push(("body".into(), body));
    }
    Value::Map(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(one: &str, two: &str) -> bool {
        let words = |t: &str| shell::simple_command(t).unwrap();
        let (a, b) = pair(&words(one), &words(two));
        canonical(&a) == canonical(&b)
    }

    fn canonical(value: &Value<'_>) -> String {
        match value {
            Value::Map(entries) => {
                let mut parts: Vec<String> = entries
                    .iter()
                    .map(|(n, v)| format!("{n}={}", canonical(v)))
                    .collect();
                parts.sort();
                format!("{{{}}}", parts.join(","))
            }
            Value::List(items) => {
                format!(
                    "[{}]",
                    items.iter().map(canonical).collect::<Vec<_>>().join(",")
                )
            }
            leaf => leaf.show(),
        }
    }

    #[test]
    fn spellings_of_one_command() {
        for (one, two) in [
            (
                "kubectl -n shop scale deployment/api --replicas=4",
                "kubectl scale deployment/api --replicas 4 --namespace=shop",
            ),
            ("git push -u origin x", "git push origin x --set-upstream"),
            ("rsync -av a/ b/", "rsync -a -v a/ b/"),
            ("systemctl restart nginx", "systemctl restart nginx.service"),
            (
                "git push origin refs/heads/x",
                "git push origin refs/heads/x:refs/heads/x",
            ),
            (
                "curl -sS -X POST https://h/a -H 'A: 1' -d x=1",
                "curl --silent --show-error --data x=1 -H 'A: 1' --request POST https://H:443/a",
            ),
            (
                "ssh web1 \"sudo  systemctl restart 'nginx'\"",
                "ssh web1 sudo systemctl restart nginx",
            ),
            ("/usr/bin/git push origin main", "git push origin main"),
            (
                "giftctl redeem --code X --account A",
                "giftctl redeem --account A --code X",
            ),
            (
                "docker run -d --name w1 img:1",
                "docker run --detach --name=w1 img:1",
            ),
        ] {
            assert!(same(one, two), "{one} / {two}");
        }
    }

    #[test]
    fn other_commands() {
        for (one, two) in [
            ("git push origin main", "git push --force origin main"),
            ("git push origin main", "git push origin main -f"),
            ("git push origin main", "git push origin +main"),
            ("git push origin x", "git push origin :x"),
            ("find . -name x -delete", "find . -delete -name x"),
            ("cp --from x --to y", "cp --from y --to x"),
            ("tool -a x -b y", "tool -b x -a y"),
            ("scp a web1:b", "scp web1:b a"),
            ("kubectl delete pod a", "kubectl delete pod --all"),
            ("docker run img -e A=1", "docker run -e A=1 img"),
            ("curl https://h/a", "curl https://h/b"),
            ("curl -d @a.json https://h", "curl -d @b.json https://h"),
            ("git commit -m a -- f", "git commit -a -m a"),
            ("ssh web1 rm x", "ssh web2 rm x"),
            ("redis-cli SET a 1", "redis-cli SET a 2"),
            ("rm -r a", "rm -rf a"),
            ("./deploy.sh now", "../old/deploy.sh now"),
            ("/data/live/ x", "/data/backup/ x"),
        ] {
            assert!(!same(one, two), "{one} / {two}");
        }
    }
}
