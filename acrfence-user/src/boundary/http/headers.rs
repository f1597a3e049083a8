//! Header fields: how they are recorded, and which of them end at a hop.

use bytes::Bytes;
use http::header::{
    ACCEPT, ALT_SVC, CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT,
    HOST, TE, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, Version};

use crate::words::Header;

/// The fields as the effect log keeps them.
pub(crate) fn recorded(headers: &HeaderMap) -> Vec<Header> {
    headers
        .iter()
        .map(|(name, value)| Header::new(name.as_str(), Bytes::copy_from_slice(value.as_bytes())))
        .collect()
}

/// The fields of a request for the next hop. `framed` keeps chunked framing as the agent chose it.
pub(crate) fn onward(headers: &HeaderMap, version: Version, framed: bool) -> HeaderMap {
    let nominated = nominated(headers);
    let http2 = version == Version::HTTP_2;
    let wants_trailers = tokens(headers, &TE).any(|token| token == "trailers");
    let mut out = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let ends_here = match *name {
            // The connection is kept on both legs whatever the agent says; saying so is harmless.
            CONNECTION => http2 || !value.as_bytes().eq_ignore_ascii_case(b"keep-alive"),
            UPGRADE | EXPECT | TE => true,
            TRANSFER_ENCODING => http2 || !framed,
            HOST => http2,
            _ => is_hop_by_hop(name) || nominated.contains(name),
        };
        if !ends_here {
            out.append(name.clone(), value.clone());
        }
    }
    if wants_trailers {
        out.insert(TE, HeaderValue::from_static("trailers"));
        if !http2 {
            out.append(CONNECTION, HeaderValue::from_static("te"));
        }
    }
    if !http2 {
        join_cookies(&mut out);
    }
    out
}

/// The fields of a response for the agent. Its length stays; how it is framed is the server's
/// business on each leg.
pub(crate) fn back(headers: &HeaderMap) -> HeaderMap {
    let nominated = nominated(headers);
    let mut out = HeaderMap::with_capacity(headers.len());
    for (name, value) in headers {
        let ends_here = match *name {
            // It would lead the agent around the boundary.
            ALT_SVC => true,
            CONNECTION | TRANSFER_ENCODING | UPGRADE => true,
            // Chunks say where the body ends, and a length beside them lies (RFC 9112 §6.3).
            CONTENT_LENGTH => headers.contains_key(TRANSFER_ENCODING),
            _ => is_hop_by_hop(name) || nominated.contains(name),
        };
        if !ends_here {
            out.append(name.clone(), value.clone());
        }
    }
    out
}

/// The `Host` field belongs first, where a request has none.
pub(crate) fn with_host(headers: HeaderMap, authority: &Authority) -> HeaderMap {
    if headers.contains_key(HOST) {
        return headers;
    }
    let mut out = HeaderMap::with_capacity(headers.len() + 1);
    // User information has no place in a Host field.
    let host = authority
        .as_str()
        .rsplit_once('@')
        .map_or(authority.as_str(), |(_, host)| host);
    if let Ok(value) = HeaderValue::from_str(host) {
        out.insert(HOST, value);
    }
    for (name, value) in &headers {
        out.append(name.clone(), value.clone());
    }
    out
}

/// The absolute URL of a request.
pub(crate) fn url(scheme: &str, authority: &Authority, uri: &Uri) -> String {
    let path = uri.path_and_query().map_or("/", |p| p.as_str());
    format!("{scheme}://{authority}{path}")
}

/// Type and subtype of the content, lower case, without parameters.
pub(crate) fn media_type(headers: &HeaderMap) -> String {
    headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .and_then(|value| value.split(';').next())
        .map(|value| value.trim().to_ascii_lowercase())
        .unwrap_or_default()
}

/// The declared length of a body.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers
        .get(CONTENT_LENGTH)?
        .to_str()
        .ok()
        .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))?
        .parse()
        .ok()
}

/// Whether the agent asks for server-sent events and not for JSON.
pub(crate) fn wants_only_events(headers: &HeaderMap) -> bool {
    let mut events = false;
    for value in headers.get_all(ACCEPT) {
        for range in value.to_str().unwrap_or_default().split(',') {
            let mut parts = range.split(';');
            let kind = parts.next().unwrap_or_default().trim().to_ascii_lowercase();
            if parts.any(is_zero_quality) {
                continue;
            }
            match kind.as_str() {
                "application/json" | "application/*" | "*/*" => return false,
                "text/event-stream" | "text/*" => events = true,
                _ => {}
            }
        }
    }
    events
}

/// Whether the agent takes server-sent events.
pub(crate) fn accepts_events(headers: &HeaderMap) -> bool {
    tokens(headers, &ACCEPT).any(|kind| kind == "text/event-stream")
}

/// Whether a response is a stream of events that can be read as it comes.
pub(crate) fn is_plain_events<B>(response: &http::Response<B>) -> bool {
    response.status() == 200
        && media_type(response.headers()) == "text/event-stream"
        && !response.headers().contains_key(CONTENT_ENCODING)
}

/// Whether `parameter` is a quality of zero.
pub(crate) fn is_zero_quality(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
        return false;
    };
    name.trim().eq_ignore_ascii_case("q") && value.trim().parse::<f32>().is_ok_and(|q| q <= 0.0)
}

/// The comma-separated tokens of a field, lower case, without parameters.
pub(crate) fn tokens<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> impl Iterator<Item = String> + 'a {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|token| token.split(';').next())
        .map(|token| token.trim().to_ascii_lowercase())
}

fn nominated(headers: &HeaderMap) -> Vec<HeaderName> {
    tokens(headers, &CONNECTION)
        .filter_map(|token| token.parse().ok())
        .filter(|name: &HeaderName| *name != TE && *name != HOST && *name != CONTENT_LENGTH)
        .collect()
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    // Proxy-Authorization and Proxy-Authenticate go on: they are between the agent and its own
    // proxy, and the boundary is not that proxy. Trailer announces fields that do arrive.
    matches!(
        name.as_str(),
        "keep-alive" | "proxy-connection" | "http2-settings"
    )
}

/// HTTP/2 may send cookies one by one; HTTP/1.1 wants one field (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<&[u8]> = headers
        .get_all(COOKIE)
        .iter()
        .map(HeaderValue::as_bytes)
        .collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, &str)]) -> HeaderMap {
        fields
            .iter()
            .map(|(n, v)| (n.parse::<HeaderName>().unwrap(), v.parse().unwrap()))
            .collect()
    }

    fn names(headers: &HeaderMap) -> Vec<&str> {
        headers.keys().map(HeaderName::as_str).collect()
    }

    #[test]
    fn what_ends_at_the_hop_is_left_out_and_the_order_stays() {
        let mut headers = map(&[
            ("host", "a"),
            ("x-first", "1"),
            ("keep-alive", "5"),
            ("x-mine", "secret"),
            ("te", "trailers"),
            ("proxy-authorization", "Basic x"),
            ("content-length", "3"),
            ("x-last", "2"),
        ]);
        headers.append(
            CONNECTION,
            "keep-alive, X-Mine, Content-Length".parse().unwrap(),
        );
        assert_eq!(
            names(&onward(&headers, Version::HTTP_11, true)),
            [
                "host",
                "x-first",
                "proxy-authorization",
                "content-length",
                "x-last",
                "te",
                "connection"
            ]
        );
        assert_eq!(
            names(&onward(&headers, Version::HTTP_2, true)),
            [
                "x-first",
                "proxy-authorization",
                "content-length",
                "x-last",
                "te"
            ]
        );
    }

    #[test]
    fn alternative_services_are_not_told() {
        let headers = map(&[("alt-svc", "h3=\":443\""), ("x", "1")]);
        assert_eq!(names(&back(&headers)), ["x"]);
    }

    #[test]
    fn cookies_are_joined_for_http1() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1".parse().unwrap());
        headers.append(COOKIE, "b=2".parse().unwrap());
        let out = onward(&headers, Version::HTTP_11, true);
        assert_eq!(out[COOKIE], "a=1; b=2");
        assert_eq!(
            onward(&headers, Version::HTTP_2, true)
                .get_all(COOKIE)
                .iter()
                .count(),
            2
        );
    }

    #[test]
    fn events_are_wanted_only_when_json_is_not() {
        for (accept, only) in [
            ("application/json, text/event-stream", false),
            ("text/event-stream", true),
            ("text/event-stream, application/json;q=0", true),
            ("*/*", false),
            ("", false),
        ] {
            assert_eq!(
                wants_only_events(&map(&[("accept", accept)])),
                only,
                "{accept}"
            );
        }
        assert!(!wants_only_events(&HeaderMap::new()));
    }
}
