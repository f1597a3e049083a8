//! A cloud provider. It makes a server once for each `client_token`, says how many are allowed, and
//! does not enforce that.

use std::sync::Arc;

use anyhow::Result;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::authority::Authority;
use crate::ledger::Ledger;
use crate::mcp;
use crate::pace::Pace;
use crate::server::Server;

/// What an agent wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wish {
    /// What kind of server.
    pub spec: String,
    /// The client's idempotency key.
    pub client_token: String,
}

/// A server that runs, and costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The provider's own name for it.
    pub id: String,
    /// What was wished for.
    #[serde(flatten)]
    pub wish: Wish,
}

/// Dollars that a server costs an hour.
const HOURLY: f64 = 3.0;

/// How many servers are allowed.
const QUOTA: usize = 1;

/// What the provider runs, apart from how it is reached.
pub struct Racks {
    machines: Ledger<Machine>,
    pace: Pace,
}

impl Racks {
    /// Racks that keep their list in `machines` and answer at `pace`.
    pub fn new(machines: Ledger<Machine>, pace: Pace) -> Self {
        Self { machines, pace }
    }

    pub(crate) fn quota(&self) -> Result<Value> {
        let used = self.machines.entries()?.len();
        Ok(json!({"quota": QUOTA, "used": used, "hourly_price": HOURLY}))
    }

    /// Makes a server and waits for the answer's turn.
    pub(crate) async fn create(&self, wish: Wish) -> Result<Value> {
        let (machine, duplicate) = self.machines.change(|machines| {
            let same = |machine: &&Machine| machine.wish.client_token == wish.client_token;
            if let Some(earlier) = machines.iter().find(same) {
                return (earlier.clone(), true);
            }
            let id = format!("srv-{:06}", machines.len() + 1);
            let machine = Machine { id, wish };
            machines.push(machine.clone());
            (machine, false)
        })?;
        self.pace.answer().await;
        Ok(json!({
            "id": machine.id, "status": if duplicate { "duplicate" } else { "running" },
            "spec": machine.wish.spec, "client_token": machine.wish.client_token,
            "hourly_price": HOURLY,
        }))
    }
}

/// A running provider: `GET /v1/quota`, `POST /v1/servers`, `GET /v1/servers`, and the same as MCP
/// tools under `/mcp` and `/mcp-json`.
pub struct Cloud {
    racks: Arc<Racks>,
    server: Server,
}

impl Cloud {
    /// Starts it over HTTPS on any port.
    pub fn start(authority: &Authority) -> Result<Self> {
        let racks = Arc::new(Racks::new(Ledger::default(), Pace::default()));
        let router = Router::new()
            .route("/v1/quota", get(quota))
            .route("/v1/servers", post(create).get(machines))
            .with_state(racks.clone())
            .merge(mcp::routes(mcp::CloudTools::new(racks.clone())));
        Ok(Self {
            racks,
            server: Server::start(router, Some(authority.server()?), 0, true)?,
        })
    }

    /// URL of `path` at this provider.
    pub fn url(&self, path: &str) -> String {
        self.server.url(path)
    }

    /// Every server it made, oldest first.
    pub fn machines(&self) -> Result<Vec<Machine>> {
        self.racks.machines.entries()
    }

    /// When its answers leave.
    pub fn pace(&self) -> &Pace {
        &self.racks.pace
    }
}

fn answered(status: StatusCode, result: Result<Value>) -> Response {
    match result {
        Ok(value) => (status, Json(value)).into_response(),
        Err(why) => (
            StatusCode::INTERNAL_SERVER_ERROR,
            Json(json!({"error": why.to_string()})),
        )
            .into_response(),
    }
}

async fn quota(State(racks): State<Arc<Racks>>) -> Response {
    answered(StatusCode::OK, racks.quota())
}

async fn create(State(racks): State<Arc<Racks>>, Json(wish): Json<Wish>) -> Response {
    answered(StatusCode::CREATED, racks.create(wish).await)
}

async fn machines(State(racks): State<Arc<Racks>>) -> Response {
    let all = racks.machines.entries();
    answered(StatusCode::OK, all.map(|all| json!({"servers": all})))
}
