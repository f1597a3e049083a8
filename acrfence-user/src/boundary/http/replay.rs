//! Answers from the record.

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, DATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use super::body::AgentBody;
use super::{encoding, headers};
use crate::words::{EffectId, Header, HttpResponse};

/// Marks a response that comes from the record; its value is the effect.
pub(crate) const MARK: HeaderName = HeaderName::from_static("acrfence-replay");

/// The recorded response for an agent that asks again, or why there can be none.
pub(crate) async fn answer(
    effect: EffectId,
    recorded: HttpResponse,
    method: &Method,
    asked: &HeaderMap,
    bound: usize,
) -> Result<Response<AgentBody>, String> {
    if !recorded.body.is_whole() {
        return Err(format!(
            "only {} of its {} bytes were kept",
            recorded.body.kept.len(),
            recorded.body.len
        ));
    }
    let status = StatusCode::from_u16(recorded.status)
        .ok()
        .filter(|status| !status.is_informational())
        .ok_or_else(|| format!("its status {} cannot be an answer", recorded.status))?;
    let fields = map(&recorded.headers)?;
    let encodings = encoding::applied(&fields);
    let mut fields = headers::back(&fields);
    // The answer is given now, and nothing that expires may be computed from then.
    fields.remove(DATE);
    let mut body = recorded.body.kept;
    if !encoding::accepted(asked, &encodings) && !body.is_empty() {
        body = encoding::decoded(&body, &encodings, bound)
            .await
            .map(Bytes::from)
            .ok_or("its content encoding is one that the agent does not accept")?;
        fields.remove(CONTENT_ENCODING);
    }
    let has_body = *method != Method::HEAD
        && status != StatusCode::NO_CONTENT
        && status != StatusCode::NOT_MODIFIED;
    if has_body && recorded.trailers.is_empty() {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    if let Ok(value) = HeaderValue::from_str(&effect.to_string()) {
        fields.insert(MARK, value);
    }
    let trailers = map(&recorded.trailers)?;
    let mut response = Response::new(if has_body {
        AgentBody::with_trailers(body, Some(trailers))
    } else {
        AgentBody::empty()
    });
    *response.status_mut() = status;
    *response.headers_mut() = fields;
    Ok(response)
}

fn map(recorded: &[Header]) -> Result<HeaderMap, String> {
    let mut fields = HeaderMap::with_capacity(recorded.len());
    for field in recorded {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        let value = HeaderValue::from_maybe_shared(field.value.clone());
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err("its header fields are damaged".to_owned());
        };
        fields.append(name, value);
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, Seq};
    use http_body_util::BodyExt as _;

    fn recorded(headers: &[(&str, &str)], body: Body) -> HttpResponse {
        HttpResponse {
            status: 201,
            headers: headers
                .iter()
                .map(|(n, v)| Header::new(*n, v.to_string()))
                .collect(),
            body,
            trailers: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_body_that_was_not_kept_whole_is_never_played_back() {
        let mut body = Body::whole("abcdef");
        body.kept.truncate(3);
        let result = answer(
            EffectId(Seq(1)),
            recorded(&[], body),
            &Method::POST,
            &HeaderMap::new(),
            100,
        )
        .await;
        assert!(result.err().unwrap().contains("3 of its 6"));
    }

    #[tokio::test]
    async fn the_record_is_played_back_with_its_own_framing() {
        let response = answer(
            EffectId(Seq(7)),
            recorded(
                &[
                    ("X-Ref", "r1"),
                    ("Date", "then"),
                    ("Transfer-Encoding", "chunked"),
                ],
                Body::whole("paid"),
            ),
            &Method::POST,
            &HeaderMap::new(),
            100,
        )
        .await
        .unwrap();
        assert_eq!(response.status(), 201);
        assert_eq!(response.headers()["acrfence-replay"], "e7");
        assert_eq!(response.headers()["x-ref"], "r1");
        assert_eq!(response.headers()["content-length"], "4");
        assert!(!response.headers().contains_key("date"));
        assert!(!response.headers().contains_key("transfer-encoding"));
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            "paid"
        );
    }

    #[tokio::test]
    async fn an_encoding_the_agent_does_not_take_comes_off() {
        use async_compression::tokio::bufread::GzipEncoder;
        use tokio::io::AsyncReadExt as _;
        let mut packed = Vec::new();
        GzipEncoder::new(&b"paid"[..])
            .read_to_end(&mut packed)
            .await
            .unwrap();
        let record = recorded(&[("content-encoding", "gzip")], Body::whole(packed.clone()));
        let plain = answer(
            EffectId(Seq(7)),
            record.clone(),
            &Method::POST,
            &HeaderMap::new(),
            100,
        )
        .await
        .unwrap();
        assert!(!plain.headers().contains_key("content-encoding"));
        assert_eq!(
            plain.into_body().collect().await.unwrap().to_bytes(),
            "paid"
        );
        let mut asked = HeaderMap::new();
        asked.insert("accept-encoding", "gzip".parse().unwrap());
        let same = answer(EffectId(Seq(7)), record, &Method::POST, &asked, 100)
            .await
            .unwrap();
        assert_eq!(same.headers()["content-encoding"], "gzip");
        assert_eq!(same.into_body().collect().await.unwrap().to_bytes(), packed);
    }
}
