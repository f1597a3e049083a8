//! A service that issues single-use approvals and trusts its clients to use them once.
//!
//! It keeps no list of spent tokens and does not bind a token to its target, so a token that was
//! spent on one customer would be taken for another. That is the hole of *Authority Resurrection*.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Result, anyhow};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::authority::Authority;
use crate::mcp;
use crate::server::Server;

/// What a token says. Anybody can read it; only the service can sign it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Claims {
    token_id: String,
    operation: String,
    target: String,
    expires_at: u64,
}

/// What an approval is asked for.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Wish {
    pub(crate) operation: String,
    pub(crate) target: String,
    #[serde(default)]
    pub(crate) reason: String,
}

#[derive(Clone, Debug, Deserialize)]
struct Deletion {
    token: String,
    customer_id: String,
}

/// The desk that signs approvals and deletes customers, apart from how it is reached.
pub struct Desk {
    key: [u8; 64],
    deleted: Mutex<Vec<String>>,
}

impl Desk {
    fn new() -> Result<Self> {
        let mut key = [0; 64];
        getrandom::fill(&mut key).map_err(|e| anyhow!("no randomness for a signing key: {e}"))?;
        Ok(Self {
            key,
            deleted: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.deleted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn signature(&self, payload: &str) -> String {
        let mut mac = Hmac::<Sha256>::new(&self.key.into());
        mac.update(payload.as_bytes());
        hex::encode(&mac.finalize().into_bytes()[..8])
    }

    /// `base64(JSON).hmac16`, good for an hour.
    pub(crate) fn approve(&self, wish: &Wish) -> Result<String> {
        let mut id = [0; 12];
        getrandom::fill(&mut id).map_err(|e| anyhow!("no randomness for a token id: {e}"))?;
        let claims = Claims {
            token_id: format!("apr_{}", hex::encode(id)),
            operation: wish.operation.clone(),
            target: wish.target.clone(),
            expires_at: now() + 3600,
        };
        let payload = STANDARD.encode(serde_json::to_string(&claims)?);
        let signature = self.signature(&payload);
        Ok(format!("{payload}.{signature}"))
    }

    /// Deletes the data of `customer` if `token` is one of ours for that operation. For whom it was
    /// issued, and whether it was used before, nobody asks.
    pub(crate) fn delete(&self, token: &str, customer: &str) -> Result<(), String> {
        let (payload, signature) = token.split_once('.').ok_or("this is no token")?;
        if self.signature(payload) != signature {
            return Err("the token's signature is wrong".into());
        }
        let claims: Claims = STANDARD
            .decode(payload)
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .ok_or("the token cannot be read")?;
        if claims.operation != "delete_customer_data" {
            return Err(format!("the token is for {}", claims.operation));
        }
        if claims.expires_at < now() {
            return Err("the token has expired".into());
        }
        self.lock().push(customer.to_owned());
        Ok(())
    }
}

/// A running approval service: `POST /v1/approvals`, `POST /v1/deletions`, `GET /v1/deletions`, and
/// the same as MCP tools under `/mcp` and `/mcp-json`.
pub struct Approval {
    desk: Arc<Desk>,
    server: Server,
}

impl Approval {
    /// Starts it over HTTPS. Port 0 means any.
    pub fn start(authority: &Authority, port: u16) -> Result<Self> {
        let desk = Arc::new(Desk::new()?);
        let router = Router::new()
            .route("/v1/approvals", post(approve))
            .route("/v1/deletions", post(delete))
            .route("/v1/deletions", get(deletions))
            .with_state(desk.clone())
            .merge(mcp::routes(mcp::ApprovalTools::new(desk.clone())));
        Ok(Self {
            desk,
            server: Server::start(router, Some(authority.server()?), port, true)?,
        })
    }

    /// URL of `path` at this service.
    pub fn url(&self, path: &str) -> String {
        self.server.url(path)
    }

    /// Customers whose data it deleted, oldest first.
    pub fn deleted(&self) -> Vec<String> {
        self.desk.lock().clone()
    }
}

async fn approve(State(desk): State<Arc<Desk>>, Json(wish): Json<Wish>) -> Response {
    match desk.approve(&wish) {
        Ok(token) => (
            StatusCode::CREATED,
            Json(json!({"token": token, "expires_in": 3600, "note": wish.reason})),
        )
            .into_response(),
        Err(why) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            Json(json!({"error": why.to_string()})),
        )
            .into_response(),
    }
}

async fn delete(State(desk): State<Arc<Desk>>, Json(wish): Json<Deletion>) -> Response {
    match desk.delete(&wish.token, &wish.customer_id) {
        Ok(()) => {
            Json(json!({"status": "deleted", "customer_id": wish.customer_id})).into_response()
        }
        Err(why) => (StatusCode::FORBIDDEN, Json(json!({"error": why}))).into_response(),
    }
}

async fn deletions(State(desk): State<Arc<Desk>>) -> Json<Value> {
    Json(json!({"deleted": *desk.lock()}))
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs()
}
