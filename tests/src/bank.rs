//! A bank. It books a transfer once for each `reference`, which is no help against an agent that
//! makes up a new reference.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::authority::Authority;
use crate::door::Door;
use crate::ledger::Ledger;
use crate::mcp;
use crate::pace::Pace;
use crate::server::{Peer, Server};

/// What an agent asks the bank to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Who gets the money.
    pub to: String,
    /// How much of it.
    pub amount: u64,
    /// In which currency.
    pub currency: String,
    /// The client's idempotency key.
    pub reference: String,
    /// The client's clock.
    #[serde(default)]
    pub requested_at: String,
}

/// A transfer that the bank booked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Booking {
    /// The bank's own number.
    pub id: String,
    /// What was ordered.
    #[serde(flatten)]
    pub order: Order,
}

/// The account that the bank refuses to pay to, so that a definite refusal can be had.
pub const CLOSED_ACCOUNT: &str = "closed-account";

/// What is on the account unless [`Options::balance`] says otherwise.
const BALANCE: u64 = 10_000;

/// The books, apart from how they are reached.
pub struct Books {
    balance: u64,
    ledger: Ledger<Booking>,
    pace: Pace,
}

impl Books {
    /// Books of an account with `balance` on it, kept in `ledger`, answering at `pace`.
    pub fn new(balance: u64, ledger: Ledger<Booking>, pace: Pace) -> Self {
        Self {
            balance,
            ledger,
            pace,
        }
    }

    /// The booking with this reference, if there is one.
    pub(crate) fn booked(&self, reference: &str) -> Result<Option<Booking>> {
        let mut ledger = self.ledger.entries()?.into_iter();
        Ok(ledger.find(|booking| booking.order.reference == reference))
    }

    /// Books `order` unless its reference was booked before. Returns the booking, and whether it is
    /// an earlier one.
    pub(crate) fn book(&self, order: Order) -> Result<(Booking, bool)> {
        self.ledger.change(|ledger| {
            let same = |booking: &&Booking| booking.order.reference == order.reference;
            if let Some(earlier) = ledger.iter().find(same) {
                return (earlier.clone(), true);
            }
            let booking = Booking {
                id: format!("tr_{:06}", ledger.len() + 1),
                order,
            };
            ledger.push(booking.clone());
            (booking, false)
        })
    }

    /// The work is done; waits for the answer's turn.
    pub(crate) async fn answer(&self) {
        self.pace.answer().await;
    }

    /// A page of the statement, from 1 on; there are always three.
    pub(crate) fn statement(&self, page: usize) -> Result<Value> {
        let bookings = self.ledger.entries()?;
        let rows: Vec<_> = bookings
            .iter()
            .skip((page.max(1) - 1) * 10)
            .take(10)
            .collect();
        Ok(json!({"page": page, "pages": 3, "rows": rows}))
    }

    /// What is left.
    pub(crate) fn balance(&self) -> Result<i64> {
        let spent: u64 = self.ledger.entries()?.iter().map(|b| b.order.amount).sum();
        let signed = |sum| i64::try_from(sum).unwrap_or(i64::MAX);
        Ok(signed(self.balance) - signed(spent))
    }
}

/// A running bank: `POST /v1/transfers`, `GET /v1/transfers` (`?reference=`), `GET /v1/balance`,
/// `GET /v1/connection`, and the same as MCP tools under `/mcp` (sessions, SSE) and `/mcp-json`
/// (no sessions, JSON).
pub struct Bank {
    books: Arc<Books>,
    door: Option<Arc<Door>>,
    server: Server,
}

/// How a bank is started.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Port on loopback; 0 means any.
    pub port: u16,
    /// How long it takes to answer.
    pub delay: Duration,
    /// Whether it speaks HTTP in the clear.
    pub clear: bool,
    /// Whether it listens on `127.0.0.1` alone, as many programs do.
    pub only_v4: bool,
    /// What is on the account at the beginning.
    pub balance: Option<u64>,
    /// How long it takes to answer the first transfer.
    pub slow_at_first: Option<Duration>,
    /// Whether its HTTPS interface wants access tokens, each of which is good for one call.
    pub tokens: bool,
    /// Whether its MCP tool asks for a confirmation before it transfers.
    pub asks: bool,
}

impl Bank {
    /// Starts a prompt HTTPS bank.
    pub fn start(authority: &Authority) -> Result<Self> {
        Self::start_with(authority, Options::default())
    }

    /// Starts a bank.
    pub fn start_with(authority: &Authority, options: Options) -> Result<Self> {
        let books = Arc::new(Books::new(
            options.balance.unwrap_or(BALANCE),
            Ledger::default(),
            Pace::new(options.delay).slow_at_first(options.slow_at_first),
        ));
        let door = options.tokens.then(Door::new).transpose()?.map(Arc::new);
        let mut router = Router::new()
            .route("/v1/transfers", post(transfer).get(ledger))
            .route("/v1/balance", get(balance))
            .route("/v1/statement", get(statement))
            .route("/v1/connection", get(connection))
            .with_state(books.clone());
        if let Some(door) = &door {
            router = Door::before(door, router);
        }
        let router = match options.asks {
            true => router.merge(mcp::routes(mcp::AskingBank::new(books.clone()))),
            false => router.merge(mcp::routes(mcp::BankTools::new(books.clone()))),
        };
        let tls = (!options.clear).then(|| authority.server()).transpose()?;
        Ok(Self {
            books,
            door,
            server: Server::start(router, tls, options.port, !options.only_v4)?,
        })
    }

    /// URL of `path` at this bank.
    pub fn url(&self, path: &str) -> String {
        self.server.url(path)
    }

    /// What the first access token is got with, where it wants any.
    pub fn refresh_token(&self) -> Option<String> {
        self.door.as_ref().map(|door| door.first().to_owned())
    }

    /// How often it gave out an access token, and how often it refused to.
    pub fn refreshes(&self) -> (usize, usize) {
        self.door
            .as_ref()
            .map(|door| door.refreshes())
            .unwrap_or_default()
    }

    /// Its port on `127.0.0.1` and `::1`.
    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Every transfer it booked, oldest first.
    pub fn ledger(&self) -> Vec<Booking> {
        // A ledger in memory can always be read.
        self.books.ledger.entries().unwrap_or_default()
    }

    /// How many transfers it booked.
    pub fn payments(&self) -> usize {
        self.ledger().len()
    }

    /// HTTP requests it received so far.
    pub fn requests(&self) -> usize {
        self.server.requests()
    }

    /// From now on transfers are booked and their answers wait for [`Self::release_answers`].
    pub fn hold_answers(&self) {
        self.books.pace.hold();
    }

    /// Lets the answers go.
    pub fn release_answers(&self) {
        self.books.pace.release();
    }

    /// Waits until `count` orders in all have reached the bank and were dealt with.
    pub fn wait_for_orders(&self, count: usize) -> Result<()> {
        self.books.pace.wait_for(count, Duration::from_secs(30))
    }
}

/// An order to pay `amount` EUR to `to`, as a client writes it now: with a reference and a time of
/// its own.
pub fn order(to: &str, amount: u64) -> Result<String> {
    let (reference, now) = (reference()?, jiff::Timestamp::now());
    Ok(format!(
        r#"{{"to": {}, "amount": {amount}, "currency": "EUR", "reference": "{reference}", "requested_at": "{now:.0}"}}"#,
        Value::from(to)
    ))
}

/// The same intent as [`order`], as a model writes it anew: another reference, another time, the keys
/// in another order.
pub fn rewritten_order(to: &str, amount: u64) -> Result<String> {
    let (reference, now) = (reference()?, jiff::Timestamp::now());
    Ok(format!(
        r#"{{"requested_at": "{now:.0}", "reference": "{reference}", "currency": "EUR", "amount": {amount}, "to": {}}}"#,
        Value::from(to)
    ))
}

/// A reference as clients make them up.
pub fn reference() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|e| anyhow!("no randomness for a reference: {e}"))?;
    let hex = hex::encode(bytes);
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &hex[part]);
    Ok(format!("pay-{}", parts.join("-")))
}

async fn transfer(State(books): State<Arc<Books>>, Json(order): Json<Order>) -> Response {
    if order.to == CLOSED_ACCOUNT {
        books.answer().await;
        let problem = json!({"error": "account_closed", "to": order.to});
        return (StatusCode::UNPROCESSABLE_ENTITY, Json(problem)).into_response();
    }
    let (booking, duplicate) = match books.book(order) {
        Ok(booked) => booked,
        Err(why) => return broken(&why),
    };
    books.answer().await;
    let status = if duplicate {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    let answer = json!({
        "id": booking.id, "status": "booked", "duplicate": duplicate,
        "to": booking.order.to, "amount": booking.order.amount,
        "currency": booking.order.currency, "reference": booking.order.reference,
    });
    (status, Json(answer)).into_response()
}

/// What a question about the ledger may ask for.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Wanted {
    /// Only the transfer with this reference.
    reference: Option<String>,
}

async fn ledger(State(books): State<Arc<Books>>, Query(wanted): Query<Wanted>) -> Response {
    let mut ledger = match books.ledger.entries() {
        Ok(ledger) => ledger,
        Err(why) => return broken(&why),
    };
    if let Some(reference) = &wanted.reference {
        ledger.retain(|booking| booking.order.reference == *reference);
    }
    Json(json!({"count": ledger.len(), "transfers": ledger})).into_response()
}

async fn balance(State(books): State<Arc<Books>>) -> Response {
    match books.balance() {
        Ok(balance) => Json(json!({"balance": balance, "currency": "EUR"})).into_response(),
        Err(why) => broken(&why),
    }
}

/// A page of the statement.
#[derive(Deserialize)]
struct Page {
    page: usize,
}

async fn statement(State(books): State<Arc<Books>>, Query(wanted): Query<Page>) -> Response {
    match books.statement(wanted.page) {
        Ok(page) => Json(page).into_response(),
        Err(why) => broken(&why),
    }
}

fn broken(why: &anyhow::Error) -> Response {
    let problem = Json(json!({"error": why.to_string()}));
    (StatusCode::INTERNAL_SERVER_ERROR, problem).into_response()
}

/// Tells a client from which address its connection seems to come: its own, or a daemon's.
async fn connection(Extension(Peer(peer)): Extension<Peer>) -> Json<Value> {
    let peer: SocketAddr = peer;
    Json(json!({"peer": peer.to_string()}))
}
