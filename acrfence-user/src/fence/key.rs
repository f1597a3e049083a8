//! What makes two calls candidates for being the same effect.

use crate::words::{ExecRequest, HttpRequest, McpRequest, Request, ToolKey};

/// The tool key of a request (DESIGN.md §9): MCP server and tool; HTTP method, host and path shape,
/// with the operation where one path serves many (GraphQL, SOAP, AWS); program and subcommand.
///
/// A key that is too wide makes the fence compare more and block more, one that is too narrow lets a
/// different call pass as new. So what looks like the name of a *thing* is left out of the key and
/// what looks like the name of an *operation* is kept.
pub fn tool_key(request: &Request) -> ToolKey {
    ToolKey(match request {
        Request::Http(http) => http_key(http),
        Request::Mcp(mcp) => mcp_key(mcp),
        Request::Exec(exec) => exec_key(exec),
    })
}

fn http_key(http: &HttpRequest) -> String {
    let method = http.method.to_ascii_uppercase();
    let Ok(url) = url::Url::parse(&http.url) else {
        return format!("{method} {}", http.url);
    };
    let mut key = format!("{method} {}", url.host_str().unwrap_or("?"));
    if let Some(port) = url.port() {
        key.push_str(&format!(":{port}"));
    }
    for segment in url.path().split('/').skip(1) {
        key.push('/');
        key.push_str(if names_a_thing(segment) { "*" } else { segment });
    }
    if let Some(operation) = operation(http, &url) {
        key.push('#');
        key.push_str(&operation);
    }
    key
}

/// The operation inside the request, where the path does not name it.
fn operation(http: &HttpRequest, url: &url::Url) -> Option<String> {
    let header = |name: &str| {
        http.headers
            .iter()
            .find(|h| h.is(name))
            .and_then(|h| h.text())
    };
    if let Some(action) = header("soapaction").or_else(|| header("x-amz-target")) {
        return Some(action.trim_matches('"').to_owned());
    }
    let body = std::str::from_utf8(&http.body.kept).ok()?;
    if url.path().ends_with("graphql") {
        let json: serde_json::Value = serde_json::from_str(body).ok()?;
        return graphql_roots(json.get("query")?.as_str()?);
    }
    let form = url::form_urlencoded::parse(body.as_bytes());
    let query = url.query_pairs();
    query
        .chain(form)
        .find(|(name, _)| name == "Action")
        .map(|(_, action)| action.into_owned())
}

/// Root fields of a GraphQL document, sorted: aliases and arguments do not name the operation.
fn graphql_roots(document: &str) -> Option<String> {
    use graphql_parser::query::{Definition, OperationDefinition, Selection};
    let parsed = graphql_parser::parse_query::<&str>(document).ok()?;
    let mut roots = Vec::new();
    for definition in &parsed.definitions {
        let Definition::Operation(operation) = definition else {
            continue;
        };
        let (kind, set) = match operation {
            OperationDefinition::Query(q) => ("query", &q.selection_set),
            OperationDefinition::SelectionSet(set) => ("query", set),
            OperationDefinition::Mutation(m) => ("mutation", &m.selection_set),
            OperationDefinition::Subscription(s) => ("subscription", &s.selection_set),
        };
        for selection in &set.items {
            if let Selection::Field(field) = selection {
                roots.push(format!("{kind}.{}", field.name));
            }
        }
    }
    roots.sort_unstable();
    (!roots.is_empty()).then(|| roots.join("+"))
}

/// Whether a path segment names a thing (an id, a number, an address), not an operation or a kind.
fn names_a_thing(segment: &str) -> bool {
    let version = segment
        .strip_prefix(['v', 'V'])
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()) && rest.len() <= 8);
    if version {
        return false;
    }
    segment
        .bytes()
        .any(|b| b.is_ascii_digit() || b == b'@' || b == b'%')
        || segment.len() >= 32
}

fn mcp_key(mcp: &McpRequest) -> String {
    format!("{} {}", mcp.server, mcp.name)
}

/// Programs whose first plain word is a subcommand. For any other program that word may be a thing
/// (a host, a file), so the program alone is the key.
const WITH_SUBCOMMANDS: &[&str] = &[
    "aws",
    "az",
    "cargo",
    "docker",
    "doctl",
    "flyctl",
    "gcloud",
    "gh",
    "git",
    "glab",
    "helm",
    "heroku",
    "kubectl",
    "mc",
    "npm",
    "nomad",
    "pip",
    "pnpm",
    "podman",
    "pulumi",
    "stripe",
    "systemctl",
    "terraform",
    "tofu",
    "twine",
    "vault",
    "vercel",
    "wrangler",
    "yarn",
];

fn exec_key(exec: &ExecRequest) -> String {
    let program = exec
        .argv
        .first()
        .map_or("?", |p| p.rsplit('/').next().unwrap_or(p));
    if !WITH_SUBCOMMANDS.contains(&program) {
        return program.to_owned();
    }
    let is_word = |w: &str| {
        !w.is_empty()
            && w.bytes().all(|b| b.is_ascii_lowercase() || b == b'-')
            && !w.starts_with('-')
    };
    let words: Vec<_> = exec
        .argv
        .iter()
        .skip(1)
        .filter(|w| is_word(w))
        .take(1)
        .map(String::as_str)
        .collect();
    std::iter::once(program)
        .chain(words)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, Header};

    fn http(method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> String {
        let headers = headers
            .iter()
            .map(|(n, v)| Header::new(*n, v.as_bytes().to_vec()))
            .collect();
        let body = Body::whole(body.as_bytes().to_vec());
        tool_key(&Request::Http(HttpRequest {
            method: method.into(),
            url: url.into(),
            headers,
            body,
            rpc: vec![],
        }))
        .0
    }

    #[test]
    fn things_are_left_out_and_operations_kept() {
        assert_eq!(
            http("post", "https://bank.example/v1/transfers?x=1", &[], ""),
            "POST bank.example/v1/transfers"
        );
        assert_eq!(
            http(
                "POST",
                "https://b.example:8443/v2/customers/cus_9f/charge",
                &[],
                ""
            ),
            "POST b.example:8443/v2/customers/*/charge"
        );
        assert_eq!(
            http("PUT", "https://b.example/users/a@b.c", &[], ""),
            "PUT b.example/users/*"
        );
    }

    #[test]
    fn one_path_for_many_operations() {
        let q = r#"{"query":"mutation($i:I!){ b: createIssue(input:$i){id} a: addLabel{id} }"}"#;
        assert_eq!(
            http("POST", "https://g.example/graphql", &[], q),
            "POST g.example/graphql#mutation.addLabel+mutation.createIssue"
        );
        assert_eq!(
            http(
                "POST",
                "https://ec2.example/",
                &[],
                "Action=RunInstances&N=1"
            ),
            "POST ec2.example/#RunInstances"
        );
        assert_eq!(
            http(
                "POST",
                "https://s.example/svc",
                &[("SOAPAction", "\"urn:Pay\"")],
                "<x/>"
            ),
            "POST s.example/svc#urn:Pay"
        );
    }

    #[test]
    fn commands_by_program_and_subcommand() {
        let key = |argv: &[&str]| {
            let argv = argv.iter().map(|a| a.to_string()).collect();
            tool_key(&Request::Exec(ExecRequest {
                argv,
                cwd: "/".into(),
                env: vec![],
                stdin: None,
            }))
            .0
        };
        assert_eq!(
            key(&["/usr/bin/git", "-c", "a=b", "push", "origin"]),
            "git push"
        );
        assert_eq!(key(&["ssh", "web", "reboot"]), "ssh");
        assert_eq!(key(&[]), "?");
    }
}
