//! The pair corpus: recorded and restored calls with the verdict they deserve
//! (`testdata/corpus/SPEC.md`).

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::words::{
    Body, ExecRequest, ExecResponse, Header, HttpRequest, HttpResponse, McpRequest, McpResponse,
    Request, Response, Timestamp,
};

/// Longest line of a corpus.
pub const LONGEST_LINE: usize = 16 << 20;

/// A pair of calls.
#[derive(Clone, Debug)]
pub struct Pair {
    /// Its name.
    pub id: String,
    /// `http`, `mcp` or `exec`.
    pub transport: String,
    /// Calls before the checkpoint, which the agent still knows.
    pub prior: Vec<(Request, Response)>,
    /// The call that took effect.
    pub recorded: Request,
    /// When it did.
    pub recorded_at: Timestamp,
    /// What was answered.
    pub answer: Option<Response>,
    /// The call of the restored agent.
    pub restored: Request,
    /// When it was made.
    pub restored_at: Timestamp,
    /// The verdict it deserves, where somebody said so.
    pub expected: Option<PairVerdict>,
    /// The phenomena it exercises.
    pub tags: Vec<String>,
}

/// A verdict on a pair.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, serde::Serialize,
)]
#[serde(rename_all = "snake_case")]
pub enum PairVerdict {
    /// The same intended effect.
    Replay,
    /// Another effect.
    Diverge,
    /// A spent single-use credential, for something else.
    Credential,
    /// Not decided: a person is asked.
    Hold,
}

impl PairVerdict {
    /// The word in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Replay => "replay",
            Self::Diverge => "diverge",
            Self::Credential => "credential",
            Self::Hold => "hold",
        }
    }
}

/// Reads one line of a corpus.
pub fn read(line: &str) -> Result<Pair, String> {
    if line.len() > LONGEST_LINE {
        return Err(format!(
            "it has {} bytes; at most {LONGEST_LINE} are read",
            line.len()
        ));
    }
    let raw: RawPair<'_> = serde_json::from_str(line).map_err(|e| format!("it is no pair: {e}"))?;
    let transport = raw.transport;
    let mut prior = Vec::new();
    for call in raw.prior {
        prior.push((
            request(&transport, call.request)?,
            response(&transport, call.response)?,
        ));
    }
    Ok(Pair {
        id: raw.id,
        prior,
        recorded: request(&transport, raw.recorded.request)?,
        recorded_at: time(&raw.recorded.at)?,
        answer: raw
            .recorded
            .response
            .map(|r| response(&transport, r))
            .transpose()?,
        restored: request(&transport, raw.restored.request)?,
        restored_at: time(&raw.restored.at)?,
        expected: raw.expected,
        tags: raw.tags,
        transport,
    })
}

#[derive(Deserialize)]
struct RawPair<'a> {
    id: String,
    transport: String,
    #[serde(borrow, default)]
    prior: Vec<RawPrior<'a>>,
    #[serde(borrow)]
    recorded: RawCall<'a>,
    #[serde(borrow)]
    restored: RawCall<'a>,
    #[serde(default)]
    expected: Option<PairVerdict>,
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct RawPrior<'a> {
    #[serde(borrow)]
    request: &'a RawValue,
    #[serde(borrow)]
    response: &'a RawValue,
}

#[derive(Deserialize)]
struct RawCall<'a> {
    at: String,
    #[serde(borrow)]
    request: &'a RawValue,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawHttp {
    method: String,
    url: String,
    #[serde(default, deserialize_with = "headers")]
    headers: Vec<Header>,
    #[serde(default)]
    body: String,
}

#[derive(Deserialize)]
struct RawHttpAnswer {
    status: u16,
    #[serde(default, deserialize_with = "headers")]
    headers: Vec<Header>,
    #[serde(default)]
    body: String,
}

#[derive(Deserialize)]
struct RawMcp<'a> {
    server: String,
    name: String,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawExec {
    argv: Vec<String>,
    #[serde(default)]
    cwd: String,
    #[serde(default)]
    env: std::collections::BTreeMap<String, String>,
    #[serde(default)]
    stdin: Option<String>,
}

#[derive(Deserialize)]
struct RawExecAnswer {
    exit: i32,
    #[serde(default)]
    stdout: String,
    #[serde(default)]
    stderr: String,
}

fn request(transport: &str, raw: &RawValue) -> Result<Request, String> {
    let bad = |e: serde_json::Error| format!("its {transport} request cannot be read: {e}");
    Ok(match transport {
        "http" => {
            let raw: RawHttp = serde_json::from_str(raw.get()).map_err(bad)?;
            Request::Http(HttpRequest {
                method: raw.method,
                url: raw.url,
                headers: raw.headers,
                body: Body::whole(raw.body),
                rpc: Vec::new(),
            })
        }
        "mcp" => {
            let raw: RawMcp<'_> = serde_json::from_str(raw.get()).map_err(bad)?;
            Request::Mcp(McpRequest {
                server: raw.server,
                name: raw.name,
                arguments: raw
                    .arguments
                    .map_or_else(|| "{}".into(), |a| a.get().to_owned()),
                meta: raw.meta.map(|m| m.get().to_owned()),
                headers: Vec::new(),
                extra: None,
            })
        }
        "exec" => {
            let raw: RawExec = serde_json::from_str(raw.get()).map_err(bad)?;
            Request::Exec(ExecRequest {
                argv: raw.argv,
                cwd: raw.cwd,
                env: raw.env.into_iter().collect(),
                stdin: raw.stdin.map(Body::whole),
            })
        }
        other => return Err(format!("`{other}` is no transport; use http, mcp or exec")),
    })
}

fn response(transport: &str, raw: &RawValue) -> Result<Response, String> {
    let bad = |e: serde_json::Error| format!("its {transport} response cannot be read: {e}");
    Ok(match transport {
        "http" => {
            let raw: RawHttpAnswer = serde_json::from_str(raw.get()).map_err(bad)?;
            Response::Http(HttpResponse {
                status: raw.status,
                headers: raw.headers,
                body: Body::whole(raw.body),
                trailers: Vec::new(),
            })
        }
        "mcp" => {
            #[derive(Deserialize)]
            #[serde(rename_all = "camelCase")]
            struct Flag {
                #[serde(default)]
                is_error: bool,
            }
            let flag: Flag = serde_json::from_str(raw.get()).map_err(bad)?;
            Response::Mcp(McpResponse {
                is_result: true,
                answer: raw.get().to_owned(),
                is_error: flag.is_error,
            })
        }
        _ => {
            let raw: RawExecAnswer = serde_json::from_str(raw.get()).map_err(bad)?;
            Response::Exec(ExecResponse {
                exit: raw.exit,
                stdout: Body::whole(raw.stdout),
                stderr: Body::whole(raw.stderr),
            })
        }
    })
}

fn time(text: &str) -> Result<Timestamp, String> {
    text.parse()
}

/// Header fields as an object (a value may be a list) or as a list of pairs.
fn headers<'de, D: serde::Deserializer<'de>>(d: D) -> Result<Vec<Header>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    struct Fields;
    impl<'de> serde::de::Visitor<'de> for Fields {
        type Value = Vec<Header>;
        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("header fields")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(
            self,
            mut map: A,
        ) -> Result<Vec<Header>, A::Error> {
            let mut out = Vec::new();
            while let Some((name, value)) = map.next_entry::<String, OneOrMany>()? {
                match value {
                    OneOrMany::One(value) => out.push(Header::new(name, value)),
                    OneOrMany::Many(values) => {
                        out.extend(values.into_iter().map(|v| Header::new(name.clone(), v)));
                    }
                }
            }
            Ok(out)
        }
        fn visit_seq<A: serde::de::SeqAccess<'de>>(
            self,
            mut seq: A,
        ) -> Result<Vec<Header>, A::Error> {
            let mut out = Vec::new();
            while let Some((name, value)) = seq.next_element::<(String, String)>()? {
                out.push(Header::new(name, value));
            }
            Ok(out)
        }
    }
    d.deserialize_any(Fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_or_refused_with_a_reason() {
        let line = r#"{"id":"a","transport":"http","recorded":{"at":"2031-01-01T00:00:00Z","request":{"method":"POST","url":"https://h/","headers":{"A":"1"},"body":"x"},"response":{"status":200,"headers":{},"body":""}},"restored":{"at":"2031-01-01T00:01:00Z","request":{"method":"POST","url":"https://h/","headers":[["A","1"]],"body":"x"}},"expected":"replay"}"#;
        let pair = read(line).unwrap();
        assert_eq!(pair.recorded, pair.restored);
        assert_eq!(pair.expected, Some(PairVerdict::Replay));
        for bad in [
            "",
            "{}",
            "[]",
            &line.replace("\"http\"", "\"smtp\""),
            &line.replace("2031-01-01T00:00:00Z", "yesterday"),
            &line.replace("\"method\":\"POST\",", ""),
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn arguments_stay_as_they_were_sent() {
        let line = r#"{"id":"a","transport":"mcp","recorded":{"at":"2031-01-01T00:00:00Z","request":{"server":"s","name":"t","arguments":{"a":1.50,"a":12345678901234567890}}},"restored":{"at":"2031-01-01T00:01:00Z","request":{"server":"s","name":"t"}}}"#;
        let Request::Mcp(recorded) = read(line).unwrap().recorded else {
            panic!()
        };
        assert_eq!(recorded.arguments, r#"{"a":1.50,"a":12345678901234567890}"#);
    }
}
