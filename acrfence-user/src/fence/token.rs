//! Requests that get an access token and do nothing else (OAuth 2, RFC 6749 §4.4 and §6).
//!
//! A client makes them whenever its token has expired, before a restore and after it. Such a call is
//! compared with what the agent forgot only where an answer from the record is of use: where the answer
//! replaced the refresh token, so that the server takes the old one no more.

use crate::words::{Body, Effect, HttpRequest, Request, Response};

/// What such a request may say. An order that hides among these is none that a server could read.
const SAID: &[&str] = &[
    "grant_type",
    "refresh_token",
    "client_id",
    "client_secret",
    "client_assertion",
    "client_assertion_type",
    "scope",
    "resource",
    "audience",
];

/// What is asked for. Codes and assertions are good for once; getting a token for one is an effect.
const GRANTS: &[&str] = &["refresh_token", "client_credentials"];

/// Last parts of the paths of token endpoints.
const ENDPOINTS: &[&str] = &["token", "access_token"];

/// Whether a call gets an access token and can do nothing else: by its address, its form, and by what it
/// says, all of which must be a token request's.
pub fn only_gets_a_token(request: &Request) -> bool {
    let Request::Http(http) = request else {
        return false;
    };
    is_to_an_endpoint(http) && fields(http).is_some_and(|fields| are_a_token_request(&fields))
}

/// Whether the answer to such a request took its refresh token out of use. One that cannot be read did.
pub fn replaced_its_token(effect: &Effect) -> bool {
    let Request::Http(asked) = &effect.call.request else {
        return true;
    };
    let response = effect.outcome.as_ref().and_then(|o| o.response());
    // Nothing came back, so there is nothing that could be given again.
    let Some(Response::Http(response)) = response else {
        return false;
    };
    let answer = whole(&response.body).and_then(|body| {
        serde_json::from_slice::<serde_json::Value>(body)
            .ok()?
            .as_object()
            .cloned()
    });
    let Some(answer) = answer else {
        return true;
    };
    let shown = fields(asked).unwrap_or_default();
    let shown = shown.iter().find(|(name, _)| name == "refresh_token");
    match answer.get("refresh_token").map(|token| token.as_str()) {
        None => false,
        Some(next) => next != shown.map(|(_, token)| token.as_str()),
    }
}

fn is_to_an_endpoint(http: &HttpRequest) -> bool {
    let Ok(url) = url::Url::parse(&http.url) else {
        return false;
    };
    let last = url.path_segments().and_then(|mut parts| parts.next_back());
    http.method == "POST"
        && url.query().is_none()
        && last.is_some_and(|last| ENDPOINTS.contains(&last))
}

/// The fields of a form, where that is what the body is.
fn fields(http: &HttpRequest) -> Option<Vec<(String, String)>> {
    let kind = http.headers.iter().find(|h| h.is("content-type"))?;
    let kind = kind.text()?.split(';').next()?.trim();
    if !kind.eq_ignore_ascii_case("application/x-www-form-urlencoded")
        || http.headers.iter().any(|h| h.is("content-encoding"))
    {
        return None;
    }
    let body = whole(&http.body)?;
    Some(url::form_urlencoded::parse(body).into_owned().collect())
}

fn whole(body: &Body) -> Option<&[u8]> {
    (body.kept.len() as u64 == body.len).then_some(&body.kept[..])
}

fn are_a_token_request(fields: &[(String, String)]) -> bool {
    let mut names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
    let known = names.iter().all(|name| SAID.contains(name));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    let grant = fields.iter().find(|(name, _)| name == "grant_type");
    known && names.len() == count && grant.is_some_and(|(_, g)| GRANTS.contains(&g.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Header;

    fn post(url: &str, kind: &str, body: &str) -> Request {
        Request::Http(HttpRequest {
            method: "POST".into(),
            url: url.into(),
            headers: vec![Header::new("content-type", kind.as_bytes().to_vec())],
            body: Body::whole(body.as_bytes().to_vec()),
            rpc: Vec::new(),
        })
    }

    const FORM: &str = "application/x-www-form-urlencoded";

    #[test]
    fn a_token_request_is_known_by_all_that_it_is() {
        for (url, body) in [
            (
                "https://id.test/oauth2/token",
                "grant_type=refresh_token&refresh_token=r&client_id=c",
            ),
            (
                "https://id.test/realms/x/protocol/openid-connect/token",
                "grant_type=client_credentials&scope=a+b",
            ),
            (
                "https://git.test/login/oauth/access_token",
                "refresh_token=r&grant_type=refresh_token&client_secret=s",
            ),
        ] {
            assert!(only_gets_a_token(&post(url, FORM, body)), "{url} {body}");
            assert!(only_gets_a_token(&post(
                url,
                "Application/X-WWW-form-urlencoded; charset=utf-8",
                body
            )));
        }
    }

    #[test]
    fn what_could_be_an_order_is_none() {
        let token = "https://id.test/oauth2/token";
        let refresh = "grant_type=refresh_token&refresh_token=r";
        for (url, kind, body) in [
            // Another address, which may read something out of it.
            ("https://bank.test/v1/transfers", FORM, refresh),
            (
                "https://bank.test/v1/orders/17/token/confirm",
                FORM,
                refresh,
            ),
            (
                "https://id.test/oauth2/token?to=bob&amount=5",
                FORM,
                refresh,
            ),
            // Something else said, or twice.
            (
                token,
                FORM,
                "grant_type=refresh_token&refresh_token=r&amount=5",
            ),
            (
                token,
                FORM,
                "grant_type=refresh_token&grant_type=authorization_code&refresh_token=r",
            ),
            // Good for once.
            (token, FORM, "grant_type=authorization_code&code=c"),
            (
                token,
                FORM,
                "grant_type=urn:ietf:params:oauth:grant-type:token-exchange&audience=a",
            ),
            (token, FORM, "refresh_token=r"),
            (token, FORM, ""),
            // Another form.
            (
                token,
                "application/json",
                r#"{"grant_type":"refresh_token","refresh_token":"r"}"#,
            ),
            (token, "text/plain", refresh),
        ] {
            assert!(
                !only_gets_a_token(&post(url, kind, body)),
                "{url} {kind} {body}"
            );
        }
        let Request::Http(mut http) = post(token, FORM, refresh) else {
            unreachable!()
        };
        http.method = "PUT".into();
        assert!(!only_gets_a_token(&Request::Http(http.clone())));
        http.method = "POST".into();
        http.body.len += 1;
        assert!(
            !only_gets_a_token(&Request::Http(http)),
            "a body that was not kept whole"
        );
    }
}
