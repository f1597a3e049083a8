//! The server's side of the control API.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{ConnectInfo, Path as UrlPath, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use tokio::net::UnixListener;

use super::api::*;
use super::peer::Peer;
use crate::daemon::Daemon;
use crate::effect::{Content, EffectFilter, ExportFilter, GcReport, Verification};
use crate::words::{AgentName, EffectId, HoldId, Seq};

/// Why the control socket cannot be served.
#[derive(Debug, thiserror::Error)]
#[error("cannot serve the control socket {path}: {source}")]
pub struct ServeError {
    path: String,
    source: std::io::Error,
}

/// Serves the control API until `stop` resolves. The socket is open to every user; what a user may
/// do is decided by who it is ([`Peer`]).
pub async fn serve<S: Future<Output = ()> + Send + 'static>(
    daemon: Arc<Daemon>,
    socket: &Path,
    stop: S,
) -> Result<impl Future<Output = ()> + use<S>, ServeError> {
    let failed = |source| ServeError {
        path: socket.display().to_string(),
        source,
    };
    match std::fs::remove_file(socket) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(e)),
        _ => {}
    }
    let listener = UnixListener::bind(socket).map_err(failed)?;
    std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
    let app = router(daemon).into_make_service_with_connect_info::<Peer>();
    Ok(async move {
        if let Err(e) = axum::serve(listener, app)
            .with_graceful_shutdown(stop)
            .await
        {
            tracing::error!("the control socket stopped: {e}");
        }
    })
}

fn router(daemon: Arc<Daemon>) -> Router {
    Router::new()
        .route("/v1/status", get(status))
        .route("/v1/self", get(myself))
        .route("/v1/agents", get(agents).post(attach))
        .route("/v1/agents/{name}", delete(detach))
        .route("/v1/agents/{name}/tree", get(tree))
        .route("/v1/agents/{name}/checkpoints", post(checkpoint))
        .route("/v1/agents/{name}/restored", post(restored))
        .route("/v1/agents/{name}/fork", post(fork))
        .route("/v1/effects", get(effects))
        .route("/v1/opaque", get(opaque))
        .route("/v1/commands", get(commands))
        .route("/v1/effects/follow", get(follow))
        .route("/v1/effects/{id}", get(effect))
        .route("/v1/effects/{id}/explain", get(explain))
        .route("/v1/effects/{id}/resolve", post(resolve))
        .route("/v1/report", get(report))
        .route("/v1/holds", get(holds))
        .route("/v1/holds/{id}", post(decide_hold))
        .route("/v1/ca", get(ca))
        .route("/v1/reload", post(reload))
        .route("/v1/log/verify", post(verify_log))
        .route("/v1/log/stats", get(log_stats))
        .route("/v1/log/rotate-key", post(rotate_key))
        .route("/v1/log/gc", post(collect_garbage))
        .route("/v1/log/export", get(export_log))
        .fallback(|| async {
            reject(
                ErrorCode::NotFound,
                "there is no such path; docs/control-api.md lists them",
            )
        })
        .with_state(daemon)
}

type Shared = State<Arc<Daemon>>;
type Answer<T> = Result<Json<T>, ApiError>;

async fn status(State(daemon): Shared, ConnectInfo(peer): ConnectInfo<Peer>) -> Answer<Status> {
    daemon.status(peer).await.map(Json)
}

async fn agents(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<Vec<AgentStatus>> {
    Ok(Json(daemon.agents(peer)))
}

async fn myself(State(daemon): Shared, ConnectInfo(peer): ConnectInfo<Peer>) -> Answer<Myself> {
    daemon.myself(peer).map(Json)
}

async fn attach(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: axum::body::Bytes,
) -> Answer<Attached> {
    daemon.attach(peer, read(&body)?).await.map(Json)
}

async fn detach(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(name): UrlPath<String>,
) -> Answer<AgentStatus> {
    daemon
        .detach(peer, parse::<AgentName>(&name)?)
        .await
        .map(Json)
}

async fn tree(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(name): UrlPath<String>,
) -> Answer<Tree> {
    daemon.tree(peer, parse(&name)?).await.map(Json)
}

async fn checkpoint(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(name): UrlPath<String>,
    body: axum::body::Bytes,
) -> Answer<CheckpointTaken> {
    daemon
        .checkpoint(peer, parse(&name)?, read(&body)?)
        .await
        .map(Json)
}

async fn restored(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(name): UrlPath<String>,
    body: axum::body::Bytes,
) -> Answer<Opened> {
    daemon
        .restored(peer, parse(&name)?, read(&body)?)
        .await
        .map(Json)
}

async fn fork(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(name): UrlPath<String>,
    body: axum::body::Bytes,
) -> Answer<Opened> {
    daemon
        .fork(peer, parse(&name)?, read(&body)?)
        .await
        .map(Json)
}

async fn effects(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(filter): Query<EffectFilter>,
) -> Answer<crate::effect::Page<crate::effect::EffectRow>> {
    daemon.effects(peer, &filter).map(Json)
}

async fn opaque(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(asked): Query<OpaqueQuery>,
) -> Answer<Vec<OpaqueRow>> {
    daemon.opaque(peer, asked).await.map(Json)
}

async fn commands(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(asked): Query<OpaqueQuery>,
) -> Answer<Vec<RanRow>> {
    daemon.ran(peer, asked).await.map(Json)
}

async fn follow(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(filter): Query<EffectFilter>,
) -> Response {
    ndjson(Body::from_stream(daemon.follow(peer, filter)))
}

async fn effect(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(id): UrlPath<String>,
) -> Answer<EffectDetail> {
    daemon.effect(peer, parse::<EffectId>(&id)?).map(Json)
}

/// The query of `GET /v1/report`.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct ReportQuery {
    agent: Option<AgentName>,
    #[serde(default)]
    after: Seq,
}

async fn report(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(query): Query<ReportQuery>,
) -> Answer<Report> {
    let (items, next) = daemon.report(peer, query.agent.as_ref(), query.after)?;
    Ok(Json(Report { items, next }))
}

async fn explain(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(id): UrlPath<String>,
) -> Answer<Vec<Explained>> {
    daemon.explain(peer, parse(&id)?).map(Json)
}

async fn resolve(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(id): UrlPath<String>,
    body: axum::body::Bytes,
) -> Answer<EffectDetail> {
    daemon
        .resolve(peer, parse(&id)?, read(&body)?)
        .await
        .map(Json)
}

async fn holds(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<Vec<HeldCall>> {
    Ok(Json(daemon.holds(peer)))
}

async fn decide_hold(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    UrlPath(id): UrlPath<String>,
    body: axum::body::Bytes,
) -> Answer<HeldCall> {
    let wanted: DecideHold = read(&body)?;
    daemon
        .decide_hold(peer, parse::<HoldId>(&id)?, wanted.decision)
        .await
        .map(Json)
}

async fn ca(State(daemon): Shared) -> Answer<CaInfo> {
    Ok(Json(daemon.ca()))
}

async fn reload(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<serde_json::Value> {
    daemon
        .reload(peer)
        .map(|()| Json(serde_json::json!({ "reloaded": true })))
}

async fn verify_log(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<Verification> {
    daemon.verify_log(peer).await.map(Json)
}

async fn log_stats(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<LogStats> {
    daemon.log_stats(peer).await.map(Json)
}

async fn rotate_key(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Answer<KeyRotated> {
    daemon.rotate_key(peer).await.map(Json)
}

async fn collect_garbage(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: axum::body::Bytes,
) -> Answer<GcReport> {
    daemon.collect_garbage(peer, read(&body)?).await.map(Json)
}

/// What of the log to export, as a query string says it.
#[derive(Default, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ExportQuery {
    agent: Option<AgentName>,
    thread: Option<crate::words::ThreadId>,
    branch: Option<crate::words::BranchId>,
    effect: Option<EffectId>,
    /// Joined by commas.
    kinds: Option<String>,
    since: Option<crate::words::Timestamp>,
    until: Option<crate::words::Timestamp>,
    decrypt: bool,
}

async fn export_log(
    State(daemon): Shared,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Query(wanted): Query<ExportQuery>,
) -> Result<Response, ApiError> {
    let content = if wanted.decrypt {
        Content::Open
    } else {
        Content::Sealed
    };
    let filter = ExportFilter {
        agent: wanted.agent,
        thread: wanted.thread,
        branch: wanted.branch,
        effect: wanted.effect,
        kinds: wanted
            .kinds
            .map(|k| k.split(',').map(str::to_owned).collect())
            .unwrap_or_default(),
        since: wanted.since,
        until: wanted.until,
        ..ExportFilter::default()
    };
    Ok(ndjson(Body::from_stream(
        daemon.export_log(peer, filter, content)?,
    )))
}

/// A response of one JSON object a line.
fn ndjson(body: Body) -> Response {
    let mut response = body.into_response();
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("application/x-ndjson"),
    );
    response
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let body = if body.is_empty() {
        b"{}".as_slice()
    } else {
        body
    };
    serde_json::from_slice(body).map_err(|e| {
        error(
            ErrorCode::BadRequest,
            format!("the request body does not read: {e}"),
        )
    })
}

fn parse<T: std::str::FromStr>(given: &str) -> Result<T, ApiError>
where
    T::Err: std::fmt::Display,
{
    given
        .parse()
        .map_err(|e: T::Err| error(ErrorCode::BadRequest, e.to_string()))
}

fn reject(code: ErrorCode, sentence: &str) -> ApiError {
    error(code, sentence.to_owned())
}

fn error(code: ErrorCode, error: String) -> ApiError {
    ApiError { error, code }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let status = match self.code {
            ErrorCode::BadRequest => StatusCode::BAD_REQUEST,
            ErrorCode::Forbidden => StatusCode::FORBIDDEN,
            ErrorCode::NotFound => StatusCode::NOT_FOUND,
            ErrorCode::Conflict => StatusCode::CONFLICT,
            ErrorCode::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        };
        (status, Json(self)).into_response()
    }
}
