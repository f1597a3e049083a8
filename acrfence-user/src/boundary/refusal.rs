//! How an agent is told that its call was not let through or came to nothing, in the words of each
//! transport.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;

use super::http::body::AgentBody;
use super::http::headers;
use crate::words::{EffectId, Field, HoldId, Refusal, RefusalCode};

/// What a caller understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tongue {
    /// HTTP problem details (RFC 9457).
    Problem,
    /// A gRPC status.
    Grpc,
}

/// Something else than a refusal that kept a call from its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The request is not valid.
    BadRequest,
    /// Its host is not the one of the connection.
    Misdirected,
    /// The request did not come in time.
    RequestTimeout,
    /// Its body is too large.
    TooLarge,
    /// Its head is.
    HeadTooLarge,
    /// Something the boundary does not do.
    Unsupported,
    /// Nothing was sent upstream.
    NotSent,
    /// It was sent, and the outcome is unknown.
    InDoubt,
    /// It was sent, and its outcome could not be recorded.
    NotRecorded,
    /// There is no memory or disk for it; nothing was sent.
    Overloaded,
}

const GRPC_FAILED_PRECONDITION: u8 = 9;
/// RFC 3986 and gRPC both leave printable ASCII but `%` as it is.
const GRPC_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

#[derive(Serialize)]
struct Problem<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
    code: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<EffectId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold: Option<HoldId>,
    #[serde(skip_serializing_if = "<[Field]>::is_empty")]
    fields: &'a [Field],
}

impl Tongue {
    /// The tongue of a request.
    pub(crate) fn of(request: &HeaderMap) -> Self {
        if headers::media_type(request).starts_with("application/grpc") {
            Self::Grpc
        } else {
            Self::Problem
        }
    }

    /// Tells a refusal.
    pub(crate) fn refuse(self, refusal: &Refusal) -> Response<AgentBody> {
        let status = match refusal.code {
            RefusalCode::LogUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::CONFLICT,
        };
        match self {
            Self::Grpc => grpc(GRPC_FAILED_PRECONDITION, &in_words(refusal)),
            Self::Problem => problem(&Problem {
                r#type: kind_of(refusal.code.as_str()),
                title: &refusal.title,
                status: status.as_u16(),
                detail: &refusal.detail,
                code: refusal.code.as_str(),
                effect: refusal.effect,
                hold: refusal.hold,
                fields: &refusal.fields,
            }),
        }
    }

    /// Tells a failure.
    pub(crate) fn fail(
        self,
        failure: Failure,
        detail: &str,
        effect: Option<EffectId>,
    ) -> Response<AgentBody> {
        let (status, grpc_status, code, title) = failure.words();
        match self {
            Self::Grpc => grpc(grpc_status, &format!("{title}: {detail}")),
            Self::Problem => problem(&Problem {
                r#type: kind_of(code),
                title,
                status: status.as_u16(),
                detail,
                code,
                effect,
                hold: None,
                fields: &[],
            }),
        }
    }
}

impl Failure {
    fn words(self) -> (StatusCode, u8, &'static str, &'static str) {
        match self {
            Self::BadRequest => (
                StatusCode::BAD_REQUEST,
                3,
                "bad_request",
                "ACRFence refused a request that is not valid",
            ),
            Self::Misdirected => (
                StatusCode::MISDIRECTED_REQUEST,
                3,
                "misdirected",
                "The request is for another host than the connection",
            ),
            Self::RequestTimeout => (
                StatusCode::REQUEST_TIMEOUT,
                4,
                "request_timeout",
                "The request did not arrive in time",
            ),
            Self::HeadTooLarge => (
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                8,
                "head_too_large",
                "The request's head is too large for ACRFence",
            ),
            Self::TooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                8,
                "too_large",
                "The request is larger than ACRFence takes",
            ),
            Self::Unsupported => (
                StatusCode::NOT_IMPLEMENTED,
                12,
                "unsupported",
                "ACRFence does not pass this on",
            ),
            Self::NotSent => (
                StatusCode::BAD_GATEWAY,
                14,
                "not_sent",
                "The request was not sent",
            ),
            Self::InDoubt => (
                StatusCode::BAD_GATEWAY,
                2,
                "in_doubt",
                "The request was sent and its outcome is unknown",
            ),
            Self::NotRecorded => (
                StatusCode::SERVICE_UNAVAILABLE,
                2,
                "not_recorded",
                "The request was sent, and its outcome could not be recorded",
            ),
            Self::Overloaded => (
                StatusCode::SERVICE_UNAVAILABLE,
                8,
                "overloaded",
                "The request was not sent: ACRFence has no room for it",
            ),
        }
    }
}

/// A refusal as text for a model or a person.
pub(crate) fn in_words(refusal: &Refusal) -> String {
    let mut text = format!("ACRFence: {}", refusal.title);
    if !refusal.detail.is_empty() {
        text.push_str("\n\n");
        text.push_str(&refusal.detail);
    }
    let mut facts = vec![format!("code: {}", refusal.code.as_str())];
    facts.extend(refusal.effect.map(|effect| format!("effect: {effect}")));
    facts.extend(refusal.hold.map(|hold| format!("hold: {hold}")));
    text.push_str(&format!("\n\n({})", facts.join(", ")));
    text
}

/// What a replay cannot be answered with.
pub(crate) fn cannot_replay(effect: EffectId, why: &str) -> Refusal {
    Refusal {
        code: RefusalCode::Held,
        title: "This was done already, and its recorded response cannot be played back".to_owned(),
        detail: format!(
            "The call equals effect {effect}, which was executed before the restore, but {why}. Nothing was sent. \
             `acrfence show {effect}` shows what is known of its outcome; `acrfence fork` opens a branch in which other \
             calls run."
        ),
        effect: Some(effect),
        fields: Vec::new(),
        hold: None,
    }
}

fn kind_of(code: &str) -> String {
    format!("urn:acrfence:problem:{code}")
}

fn problem(problem: &Problem<'_>) -> Response<AgentBody> {
    let body = serde_json::to_vec_pretty(problem).unwrap_or_default();
    let mut response = Response::new(AgentBody::from(Bytes::from(body)));
    *response.status_mut() =
        StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("application/problem+json"),
    );
    response.headers_mut().insert(
        http::header::CACHE_CONTROL,
        HeaderValue::from_static("no-store"),
    );
    response
}

fn grpc(status: u8, message: &str) -> Response<AgentBody> {
    let mut response = Response::new(AgentBody::empty());
    *response.version_mut() = Version::HTTP_2;
    let fields = response.headers_mut();
    fields.insert(
        http::header::CONTENT_TYPE,
        HeaderValue::from_static("application/grpc"),
    );
    fields.insert("grpc-status", HeaderValue::from(u16::from(status)));
    let message = utf8_percent_encode(message, GRPC_MESSAGE).to_string();
    if let Ok(message) = HeaderValue::from_str(&message) {
        fields.insert("grpc-message", message);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Seq;
    use http_body_util::BodyExt as _;

    fn refusal(code: RefusalCode) -> Refusal {
        Refusal {
            code,
            title: "It differs".to_owned(),
            detail: "100 % other\namount".to_owned(),
            effect: Some(EffectId(Seq(17))),
            fields: Vec::new(),
            hold: Some(HoldId(Seq(9))),
        }
    }

    #[tokio::test]
    async fn a_refusal_is_a_problem_that_names_the_effect() {
        let response = Tongue::Problem.refuse(&refusal(RefusalCode::Diverged));
        assert_eq!(response.status(), 409);
        assert_eq!(
            response.headers()["content-type"],
            "application/problem+json"
        );
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let read: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(read["type"], "urn:acrfence:problem:diverged");
        assert_eq!(read["effect"], "e17");
        assert_eq!(read["hold"], "h9");
        assert_eq!(read["status"], 409);
        let full = Tongue::Problem.refuse(&refusal(RefusalCode::LogUnavailable));
        assert_eq!(full.status(), 503);
    }

    #[test]
    fn a_grpc_caller_gets_a_status_it_can_read() {
        let response = Tongue::Grpc.refuse(&refusal(RefusalCode::Diverged));
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "9");
        let message = response.headers()["grpc-message"].to_str().unwrap();
        assert!(message.contains("100 %25 other%0Aamount"), "{message}");
    }
}
