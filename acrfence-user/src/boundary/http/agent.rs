//! The agent's leg: requests are checked and read whole, then handed to an exchange.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, UPGRADE};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};

use super::body::AgentBody;
use super::exchange::{self, Asked, Leg};
use super::heads::{Head, Heads, Watch, Watched};
use super::outlet::Reply;
use super::spool::{self, SpoolError};
use super::{headers, switch};
use crate::boundary::TroubleKind;
use crate::boundary::refusal::{Failure, Tongue};
use crate::boundary::stream::BoxTransport;
use crate::words::Header;

/// Serves requests on `io` until the agent ends the connection or `stop` resolves.
pub(crate) async fn serve(
    leg: Arc<Leg>,
    io: BoxTransport,
    http2: bool,
    stop: impl Future<Output = ()>,
) {
    let limits = leg.shared.limits().clone();
    let mut stop = std::pin::pin!(stop);
    let ended = if http2 {
        let service = {
            let leg = leg.clone();
            service_fn(move |request| answer(leg.clone(), request, None))
        };
        let io = TokioIo::new(io);
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams)
            .max_header_list_size(u32::try_from(limits.header).unwrap_or(u32::MAX))
            .auto_date_header(false)
            .adaptive_window(true)
            // An agent that vanished without a word is noticed.
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(30));
        let mut connection = std::pin::pin!(builder.serve_connection(io, service));
        tokio::select! {
            ended = &mut connection => ended,
            () = &mut stop => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    } else {
        let heads = Heads::default();
        let watch = Watch::new(limits.header, limits.header_count);
        let io = TokioIo::new(Watched::new(io, watch, heads.clone()));
        let service = {
            let leg = leg.clone();
            service_fn(move |request| {
                let head = heads.lock().pop_front();
                answer_http1(leg.clone(), request, head)
            })
        };
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .preserve_header_case(true)
            .auto_date_header(false)
            .header_read_timeout(limits.head)
            .max_headers(limits.header_count)
            .max_buf_size(limits.header.max(16 * 1024));
        let mut connection = std::pin::pin!(builder.serve_connection(io, service).with_upgrades());
        tokio::select! {
            ended = &mut connection => ended,
            () = &mut stop => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    if let Err(error) = ended
        && (error.is_parse() || error.is_parse_too_large())
    {
        leg.trouble(
            TroubleKind::BadRequest,
            format!("the agent sent something that is no valid HTTP: {error}"),
        );
    }
}

/// Answers a request over HTTP/1, unless what was on the wire is not what the library made of it.
async fn answer_http1(
    leg: Arc<Leg>,
    request: Request<Incoming>,
    head: Option<Head>,
) -> Result<Response<AgentBody>, Infallible> {
    let problem = match &head {
        None if size(&request) > leg.shared.limits().header => {
            Some((Failure::HeadTooLarge, "it is larger than the limit"))
        }
        None => Some((Failure::BadRequest, "it could not be followed on the wire")),
        Some(head) if head.method != request.method().as_str() => {
            let why = "it is not the one that was seen on the wire";
            Some((Failure::BadRequest, why))
        }
        // The library takes it off without a word.
        Some(head) if head.target.contains('#') => {
            Some((Failure::BadRequest, "its target has a fragment"))
        }
        Some(head) => head.problem.map(|problem| (Failure::BadRequest, problem)),
    };
    let Some((failure, problem)) = problem else {
        return answer(leg, request, head.map(|head| head.fields)).await;
    };
    leg.trouble(
        TroubleKind::BadRequest,
        format!("a request was refused: {problem}"),
    );
    // Where the next request begins is anyone's guess.
    Ok(closing(Tongue::Problem.fail(failure, problem, None)))
}

/// How large a head is, about.
fn size(request: &Request<Incoming>) -> usize {
    let fields = request.headers().iter();
    fields
        .map(|(name, value)| name.as_str().len() + value.len() + ": \r\n".len())
        .sum()
}

/// Ends the connection after this response.
fn closing(mut response: Response<AgentBody>) -> Response<AgentBody> {
    response
        .headers_mut()
        .insert(CONNECTION, http::HeaderValue::from_static("close"));
    response
}

/// Answers a request. `fields`: the header fields as they were on the wire, where that is known.
async fn answer(
    leg: Arc<Leg>,
    mut request: Request<Incoming>,
    fields: Option<Vec<Header>>,
) -> Result<Response<AgentBody>, Infallible> {
    let tongue = Tongue::of(request.headers());
    // Taken out before the extensions go on to the upstream.
    let upgrade = hyper::upgrade::on(&mut request);
    let (parts, body) = request.into_parts();
    let authority = match check(&leg, &parts) {
        Ok(authority) => authority,
        Err((failure, why)) => {
            leg.trouble(
                TroubleKind::BadRequest,
                format!("a request was refused: {why}"),
            );
            let refused = tongue.fail(failure, &why, None);
            return Ok(if parts.version == Version::HTTP_2 {
                refused
            } else {
                closing(refused)
            });
        }
    };
    let asked = asked(&leg, parts, authority, fields);
    if asked.method == Method::CONNECT {
        return Ok(switch::connect(leg, asked, upgrade).await);
    }
    let body = match spool::spool(
        body,
        leg.shared.limits(),
        &leg.shared.config.spool,
        &leg.shared.memory,
        (tongue == Tongue::Grpc).then_some(leg.shared.limits().duplex),
    )
    .await
    {
        Ok(body) => body,
        Err(error) => {
            let failure = match error {
                SpoolError::Cut(_) => Failure::BadRequest,
                SpoolError::TooLarge(_) => Failure::TooLarge,
                SpoolError::Idle(_) => Failure::RequestTimeout,
                SpoolError::Memory | SpoolError::Disk(_) => Failure::Overloaded,
            };
            return Ok(tongue.fail(failure, &error.to_string(), None));
        }
    };
    let (reply, response) = Reply::new(tongue);
    let tasks = leg.shared.tasks.clone();
    if asks_to_switch(&asked.headers, asked.version) {
        tasks.spawn(switch::upgrade(leg, asked, body, reply, upgrade));
    } else {
        tasks.spawn(exchange::run(leg, asked, body, reply));
    }
    let mut response = response.await.unwrap_or_else(|_| {
        let why = "the exchange ended without an answer; see the daemon's log";
        tongue.fail(Failure::InDoubt, why, None)
    });
    response.body_mut().handed_over();
    Ok(response)
}

/// What a request must not be, and the host it is for.
fn check(leg: &Leg, parts: &http::request::Parts) -> Result<Authority, (Failure, String)> {
    let bad = |why: &str| Err((Failure::BadRequest, why.to_owned()));
    let fields = &parts.headers;
    if fields.get_all(HOST).iter().count() > 1 {
        return bad("it has more than one Host field");
    }
    let in_host = match fields.get(HOST) {
        None => None,
        Some(value) => match value
            .to_str()
            .ok()
            .and_then(|text| text.parse::<Authority>().ok())
        {
            Some(authority) if !authority.as_str().contains('@') => Some(authority),
            _ if value.is_empty() => None,
            _ => return bad("its Host field is not a host"),
        },
    };
    let in_uri = parts.uri.authority().cloned();
    if let Some(why) = odd_target(parts) {
        return bad(why);
    }
    // HTTP/1 has none of it: there it belongs to no value (RFC 9110 §5.5).
    let is_padded = |value: &http::HeaderValue| value.as_bytes().trim_ascii() != value.as_bytes();
    if parts.version == Version::HTTP_2 && fields.values().any(is_padded) {
        return bad("white space stands around the value of a field");
    }
    if parts.method == Method::CONNECT && parts.version == Version::HTTP_2 {
        return Err((
            Failure::Unsupported,
            "CONNECT over HTTP/2 is not passed on; use HTTP/1.1 with this proxy".to_owned(),
        ));
    }
    let authority = match (in_uri, in_host) {
        (Some(uri), Some(host))
            if parts.method != Method::CONNECT && !same_host(host_of(&uri), host_of(&host)) =>
        {
            return bad("its Host field and its target name different hosts");
        }
        (Some(uri), _) => uri,
        (None, Some(host)) => host,
        (None, None) if parts.version == Version::HTTP_11 => return bad("it has no Host field"),
        (None, None) if parts.version == Version::HTTP_2 => {
            return bad("it has neither `:authority` nor a Host field");
        }
        (None, None) => {
            let host = leg.sni.clone().unwrap_or_else(|| leg.peer.to_string());
            match host.parse() {
                Ok(authority) => authority,
                Err(_) => return bad("it names no host"),
            }
        }
    };
    if let Some(sni) = &leg.sni
        && parts.uri.scheme_str() != Some("http")
        && !same_host(sni, host_of(&authority))
    {
        return Err((
            Failure::Misdirected,
            format!(
                "it is for {}, and the connection was opened for {sni}; open a connection for that host",
                authority.host()
            ),
        ));
    }
    Ok(authority)
}

/// Why a target fits no form that its method has (RFC 9112 §3.2, RFC 9113 §8.3.1).
fn odd_target(parts: &http::request::Parts) -> Option<&'static str> {
    let uri = &parts.uri;
    if uri
        .authority()
        .is_some_and(|name| name.as_str().contains('@'))
    {
        return Some("its target names a user");
    }
    if parts.method == Method::CONNECT {
        return None;
    }
    let schemes = ["http", "https", "ws", "wss"];
    if uri
        .scheme_str()
        .is_some_and(|scheme| !schemes.contains(&scheme))
    {
        return Some("its target is of a scheme that is not HTTP's");
    }
    if parts.version != Version::HTTP_2 && uri.scheme().is_none() && uri.authority().is_some() {
        return Some("its target is a host alone, as only CONNECT has it");
    }
    (uri.path() == "*" && parts.method != Method::OPTIONS)
        .then_some("its target is `*`, as only OPTIONS has it")
}

fn asked(
    leg: &Leg,
    parts: http::request::Parts,
    authority: Authority,
    fields: Option<Vec<Header>>,
) -> Asked {
    let scheme = match (parts.version, parts.uri.scheme_str()) {
        (Version::HTTP_2, _) | (_, None) => leg.scheme,
        (_, Some("https")) => "https",
        _ => "http",
    };
    let uri = if parts.version == Version::HTTP_2 {
        // The upstream leg needs all of it, also where the agent sent only a Host field.
        let path = parts.uri.path_and_query().cloned();
        Uri::builder()
            .scheme(scheme)
            .authority(authority.clone())
            .path_and_query(path.unwrap_or_else(|| http::uri::PathAndQuery::from_static("/")))
            .build()
            .unwrap_or(parts.uri)
    } else {
        parts.uri
    };
    Asked {
        method: parts.method,
        url: headers::url(scheme, &authority, &uri),
        fields: fields.unwrap_or_else(|| headers::recorded(&parts.headers)),
        uri,
        authority,
        headers: parts.headers,
        version: parts.version,
        extensions: parts.extensions,
    }
}

fn asks_to_switch(fields: &HeaderMap, version: Version) -> bool {
    version == Version::HTTP_11
        && headers::tokens(fields, &CONNECTION).any(|token| token == "upgrade")
        // Over clear text, HTTP/1.1 stays: the upgrade to HTTP/2 may be ignored (RFC 9110 §7.8).
        && headers::tokens(fields, &UPGRADE).any(|token| token != "h2c")
}

fn host_of(authority: &Authority) -> &str {
    authority.host()
}

fn same_host(one: &str, other: &str) -> bool {
    let plain = |host: &str| host.trim_end_matches('.').to_ascii_lowercase();
    plain(one) == plain(other)
}
