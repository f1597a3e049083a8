//! What became of an effect, from how its call ended (DESIGN.md §7).

use crate::words::{Ending, HttpResponse, Outcome, Response, Status};

/// Makes an outcome of an ending. In doubt unless something says otherwise.
pub fn outcome_of(ending: Ending) -> Outcome {
    match ending {
        Ending::NotSent { why } => Outcome::Failed {
            why,
            response: None,
        },
        Ending::Broken { why, partial } => Outcome::InDoubt {
            why,
            response: partial,
        },
        Ending::Response(response) => match judge(&response) {
            Said::Done => Outcome::Completed(response),
            Said::Refused(why) => Outcome::Failed {
                why,
                response: Some(response),
            },
            Said::Unclear(why) => Outcome::InDoubt {
                why,
                response: Some(response),
            },
        },
    }
}

/// The status that an ending gives an effect: that of [`outcome_of`].
pub fn status_of(ending: &Ending) -> Status {
    match ending {
        Ending::NotSent { .. } => Status::Failed,
        Ending::Broken { .. } => Status::InDoubt,
        Ending::Response(response) => match judge(response) {
            Said::Done => Status::Completed,
            Said::Refused(_) => Status::Failed,
            Said::Unclear(_) => Status::InDoubt,
        },
    }
}

enum Said {
    Done,
    Refused(String),
    Unclear(String),
}

fn judge(response: &Response) -> Said {
    match response {
        Response::Http(http) => judge_http(http),
        Response::Mcp(mcp) if !mcp.is_result => {
            Said::Refused("the server answered with a JSON-RPC error".into())
        }
        Response::Mcp(mcp) if mcp.is_error => Said::Refused("the tool answered isError".into()),
        Response::Mcp(mcp) if wants_input(&mcp.answer) => Said::Refused(
            "the server asked for input before it acts; the second leg is a call of its own".into(),
        ),
        Response::Mcp(_) => Said::Done,
        // A command that ran to its end did what it did, whatever its status; shells say 128 + n for
        // one that a signal ended.
        Response::Exec(exec) if exec.exit > 128 => {
            Said::Unclear(format!("ended by signal {}", exec.exit - 128))
        }
        Response::Exec(_) => Said::Done,
    }
}

fn judge_http(http: &HttpResponse) -> Said {
    if let Some(status) = grpc_status(http) {
        return match status {
            0 => Said::Done,
            // INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED,
            // FAILED_PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED, UNAUTHENTICATED
            3 | 5..=9 | 11 | 12 | 16 => Said::Refused(format!("gRPC status {status}")),
            _ => Said::Unclear(format!("gRPC status {status}")),
        };
    }
    match http.status {
        ..400 => Said::Done,
        // The server, or something before it, gave up waiting: it may have acted.
        408 | 499 => Said::Unclear(format!("HTTP {}", http.status)),
        400..500 => Said::Refused(format!("HTTP {}", http.status)),
        _ => Said::Unclear(format!("HTTP {}", http.status)),
    }
}

/// The gRPC status of a gRPC response: in the trailers, or in the headers when it has only those.
fn grpc_status(http: &HttpResponse) -> Option<u16> {
    let is_grpc = http
        .headers
        .iter()
        .any(|h| h.is("content-type") && h.value.starts_with(b"application/grpc"));
    let status = http
        .trailers
        .iter()
        .chain(&http.headers)
        .find(|h| h.is("grpc-status"));
    match status {
        _ if !is_grpc => None,
        Some(status) => Some(status.text().and_then(|t| t.parse().ok()).unwrap_or(2)),
        // A gRPC answer without a status broke off.
        None => Some(2),
    }
}

/// Whether a response asks for input before the tool acts.
pub fn asks_for_input(response: &Response) -> bool {
    matches!(response, Response::Mcp(mcp) if mcp.is_result && !mcp.is_error && wants_input(&mcp.answer))
}

/// Whether an MCP result asks for input (`resultType: input_required`, revision 2026-07-28).
fn wants_input(answer: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Typed {
        #[serde(rename = "resultType")]
        result_type: Option<String>,
    }
    serde_json::from_str::<Typed>(answer)
        .is_ok_and(|t| t.result_type.as_deref() == Some("input_required"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, Header, McpResponse};

    fn of(ending: Ending) -> Status {
        let status = status_of(&ending);
        assert_eq!(outcome_of(ending).status(), status);
        status
    }

    fn http(status: u16, headers: &[(&str, &str)], trailers: &[(&str, &str)]) -> Status {
        let fields = |f: &[(&str, &str)]| {
            f.iter()
                .map(|(n, v)| Header::new(*n, v.as_bytes().to_vec()))
                .collect()
        };
        let response = HttpResponse {
            status,
            headers: fields(headers),
            body: Body::empty(),
            trailers: fields(trailers),
        };
        of(Ending::Response(Response::Http(response)))
    }

    #[test]
    fn definite_answers_and_others() {
        for (status, expected) in [
            (200, Status::Completed),
            (201, Status::Completed),
            (303, Status::Completed),
            (400, Status::Failed),
            (409, Status::Failed),
            (422, Status::Failed),
            (408, Status::InDoubt),
            (500, Status::InDoubt),
            (502, Status::InDoubt),
            (504, Status::InDoubt),
        ] {
            assert_eq!(http(status, &[], &[]), expected, "{status}");
        }
    }

    #[test]
    fn grpc_says_it_in_trailers() {
        let grpc = [("content-type", "application/grpc+proto")];
        assert_eq!(http(200, &grpc, &[("grpc-status", "0")]), Status::Completed);
        assert_eq!(http(200, &grpc, &[("grpc-status", "9")]), Status::Failed);
        assert_eq!(http(200, &grpc, &[("grpc-status", "14")]), Status::InDoubt);
        assert_eq!(http(200, &grpc, &[]), Status::InDoubt);
    }

    #[test]
    fn mcp_answers() {
        let mcp = |is_result, is_error, answer: &str| {
            let response = McpResponse {
                is_result,
                is_error,
                answer: answer.into(),
            };
            of(Ending::Response(Response::Mcp(response)))
        };
        assert_eq!(mcp(true, false, "{}"), Status::Completed);
        assert_eq!(mcp(true, true, "{}"), Status::Failed);
        assert_eq!(mcp(false, false, "{}"), Status::Failed);
        assert_eq!(
            mcp(true, false, r#"{"resultType":"input_required"}"#),
            Status::Failed
        );
    }

    #[test]
    fn what_never_left_failed_and_what_broke_is_in_doubt() {
        assert_eq!(
            outcome_of(Ending::NotSent {
                why: "refused".into()
            })
            .status(),
            Status::Failed
        );
        assert_eq!(
            outcome_of(Ending::Broken {
                why: "reset".into(),
                partial: None
            })
            .status(),
            Status::InDoubt
        );
    }
}
