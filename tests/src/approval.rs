//! A service that issues single-use approvals. How well it sees to it that they are used once is a
//! matter of its [`Mode`].
//!
//! It does not bind a token to its target, so a token that was issued for one customer is taken for
//! another. That is the hole of *Authority Resurrection*.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
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
use crate::ledger::Ledger;
use crate::mcp;
use crate::pace::Pace;
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

#[derive(Clone, Debug, Deserialize)]
struct Payment {
    token: String,
    vendor: String,
    amount: u64,
}

/// Whether the service knows which tokens are spent.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum Mode {
    /// It keeps no list and trusts its clients.
    #[default]
    Stateless,
    /// It knows at once.
    StatefulSync,
    /// It knows [`ASYNC_DELAY`] later.
    StatefulAsync,
}

/// How long it takes until a service in [`Mode::StatefulAsync`] knows that a token is spent.
pub const ASYNC_DELAY: Duration = Duration::from_secs(5);

/// What an approval can be used for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "snake_case")]
pub enum Deed {
    /// All data of a customer is gone.
    #[serde(rename = "delete_customer_data")]
    Deletion {
        /// Whose.
        customer_id: String,
    },
    /// A vendor was paid.
    #[serde(rename = "execute_payment")]
    Payment {
        /// Who.
        vendor: String,
        /// How much.
        amount: u64,
    },
}

impl Deed {
    fn operation(&self) -> &'static str {
        match self {
            Self::Deletion { .. } => "delete_customer_data",
            Self::Payment { .. } => "execute_payment",
        }
    }

    fn status(&self) -> &'static str {
        match self {
            Self::Deletion { .. } => "deleted",
            Self::Payment { .. } => "paid",
        }
    }
}

/// Something that was done, and with which approval.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Done {
    /// Which approval.
    pub token_id: String,
    /// For whom it had been issued.
    pub issued_for: String,
    /// What was done.
    pub deed: Deed,
    /// When, in milliseconds since 1970.
    at: u128,
}

/// The desk that signs approvals and does what they are for, apart from how it is reached.
pub struct Desk {
    key: [u8; 64],
    mode: Mode,
    done: Ledger<Done>,
    pace: Pace,
}

impl Desk {
    /// A desk with a key of its own, which lives as long as the desk.
    pub fn new(mode: Mode) -> Result<Self> {
        let mut key = [0; 64];
        getrandom::fill(&mut key).map_err(|e| anyhow!("no randomness for a signing key: {e}"))?;
        Ok(Self {
            key,
            mode,
            done: Ledger::default(),
            pace: Pace::default(),
        })
    }

    /// A desk that keeps key and list in a directory.
    pub fn in_directory(mode: Mode, directory: PathBuf, pace: Pace) -> Result<Self> {
        let mut desk = Self::new(mode)?;
        let file = directory.join("approval.key");
        match std::fs::read(&file) {
            Ok(kept) => {
                desk.key = kept
                    .try_into()
                    .map_err(|_| anyhow!("{} is no key", file.display()))?;
            }
            Err(_) => std::fs::write(&file, desk.key)
                .with_context(|| format!("writing {}", file.display()))?,
        }
        desk.done = Ledger::in_file(directory.join("approval.jsonl"));
        desk.pace = pace;
        Ok(desk)
    }

    /// Everything it did, oldest first.
    pub fn done(&self) -> Result<Vec<Done>> {
        self.done.entries()
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
            expires_at: now().as_secs() + 3600,
        };
        let payload = STANDARD.encode(serde_json::to_string(&claims)?);
        let signature = self.signature(&payload);
        Ok(format!("{payload}.{signature}"))
    }

    /// Does `deed` if `token` is one of ours for that operation, and not known to be spent. For whom
    /// it was issued, nobody asks.
    pub(crate) async fn spend(&self, token: &str, deed: Deed) -> Result<Value, String> {
        let (payload, signature) = token.split_once('.').ok_or("this is no token")?;
        if self.signature(payload) != signature {
            return Err("the token's signature is wrong".into());
        }
        let claims: Claims = STANDARD
            .decode(payload)
            .ok()
            .and_then(|json| serde_json::from_slice(&json).ok())
            .ok_or("the token cannot be read")?;
        if claims.operation != deed.operation() {
            return Err(format!("the token is for {}", claims.operation));
        }
        let at = now();
        if claims.expires_at < at.as_secs() {
            return Err("the token has expired".into());
        }
        let known_after = match self.mode {
            Mode::Stateless => None,
            Mode::StatefulSync => Some(0),
            Mode::StatefulAsync => Some(ASYNC_DELAY.as_millis()),
        };
        let mut answer = serde_json::to_value(&deed).map_err(|e| e.to_string())?;
        answer["status"] = deed.status().into();
        let done = Done {
            token_id: claims.token_id,
            issued_for: claims.target,
            deed,
            at: at.as_millis(),
        };
        let spent = self.done.change(|all| {
            let spent = known_after.is_some_and(|after| {
                all.iter().any(|earlier| {
                    earlier.token_id == done.token_id && earlier.at + after <= done.at
                })
            });
            if !spent {
                all.push(done);
            }
            spent
        });
        if spent.map_err(|e| e.to_string())? {
            return Err("the token was used before".into());
        }
        self.pace.answer().await;
        Ok(answer)
    }
}

/// A running approval service: `POST /v1/approvals`, `POST /v1/deletions`, `GET /v1/deletions`,
/// `POST /v1/payments`, and the same as MCP tools under `/mcp` and `/mcp-json`.
pub struct Approval {
    desk: Arc<Desk>,
    server: Server,
}

impl Approval {
    /// Starts one that keeps no list of spent tokens, over HTTPS. Port 0 means any.
    pub fn start(authority: &Authority, port: u16) -> Result<Self> {
        Self::start_with(authority, port, Mode::Stateless)
    }

    /// Starts one of that mode.
    pub fn start_with(authority: &Authority, port: u16, mode: Mode) -> Result<Self> {
        let desk = Arc::new(Desk::new(mode)?);
        let router = Router::new()
            .route("/v1/approvals", post(approve))
            .route("/v1/deletions", post(delete))
            .route("/v1/deletions", get(deletions))
            .route("/v1/payments", post(pay))
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

    /// Everything it did, oldest first.
    pub fn done(&self) -> Vec<Done> {
        // A ledger in memory can always be read.
        self.desk.done().unwrap_or_default()
    }

    /// Customers whose data it deleted, oldest first.
    pub fn deleted(&self) -> Vec<String> {
        let customer = |done: Done| match done.deed {
            Deed::Deletion { customer_id } => Some(customer_id),
            Deed::Payment { .. } => None,
        };
        self.done().into_iter().filter_map(customer).collect()
    }

    /// When its answers leave.
    pub fn pace(&self) -> &Pace {
        &self.desk.pace
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
    let deed = Deed::Deletion {
        customer_id: wish.customer_id,
    };
    spend(&desk, &wish.token, deed).await
}

async fn pay(State(desk): State<Arc<Desk>>, Json(wish): Json<Payment>) -> Response {
    let deed = Deed::Payment {
        vendor: wish.vendor,
        amount: wish.amount,
    };
    spend(&desk, &wish.token, deed).await
}

async fn spend(desk: &Desk, token: &str, deed: Deed) -> Response {
    match desk.spend(token, deed).await {
        Ok(answer) => Json(answer).into_response(),
        Err(why) => (StatusCode::FORBIDDEN, Json(json!({"error": why}))).into_response(),
    }
}

async fn deletions(State(desk): State<Arc<Desk>>) -> Json<Value> {
    let done = desk.done().unwrap_or_default();
    let deleted: Vec<Value> = done
        .into_iter()
        .filter_map(|done| match done.deed {
            Deed::Deletion { customer_id } => Some(customer_id.into()),
            Deed::Payment { .. } => None,
        })
        .collect();
    Json(json!({"deleted": deleted}))
}

fn now() -> Duration {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
}
