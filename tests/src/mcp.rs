//! The services as MCP servers over streamable HTTP, in the two ways that servers answer.

use std::sync::Arc;

use axum::Router;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{CallToolResult, ContentBlock, ServerCapabilities, ServerConfig};
use rmcp::schemars::JsonSchema;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, ServerHandler, tool, tool_handler, tool_router};
use serde::Deserialize;
use serde_json::json;

use crate::approval::{Desk, Wish};
use crate::bank::{Books, Order};

/// `/mcp` keeps sessions and answers as an event stream; `/mcp-json` keeps none and answers in JSON.
/// Both also speak 2026-07-28, which has no sessions at all.
pub(crate) fn routes<T: ServerHandler + Clone>(tools: T) -> Router {
    let service = |sessions: bool| {
        let tools = tools.clone();
        let config = StreamableHttpServerConfig::default()
            .with_legacy_session_mode(sessions)
            .with_json_response(!sessions);
        let sessions = Arc::new(LocalSessionManager::default());
        StreamableHttpService::new(move || Ok(tools.clone()), sessions, config)
    };
    Router::new()
        .route_service("/mcp", service(true))
        .route_service("/mcp-json", service(false))
}

/// The bank's tools.
#[derive(Clone)]
pub(crate) struct BankTools {
    books: Arc<Books>,
    tool_router: ToolRouter<Self>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct Transfer {
    /// Who gets the money.
    to: String,
    /// How much, in EUR.
    amount: u64,
    /// Unique for every transfer.
    r#ref: String,
}

#[tool_router]
impl BankTools {
    pub(crate) fn new(books: Arc<Books>) -> Self {
        Self {
            books,
            tool_router: Self::tool_router(),
        }
    }

    #[tool(
        description = "Tells what is left on the account.",
        annotations(read_only_hint = true)
    )]
    fn check_balance(&self) -> CallToolResult {
        CallToolResult::structured(json!({"balance": self.books.balance(), "currency": "EUR"}))
    }

    #[tool(description = "Transfers money.")]
    async fn transfer(&self, Parameters(wish): Parameters<Transfer>) -> CallToolResult {
        let (booking, duplicate) = self.books.book(Order {
            to: wish.to,
            amount: wish.amount,
            currency: "EUR".into(),
            reference: wish.r#ref,
            requested_at: String::new(),
        });
        self.books.answer().await;
        CallToolResult::structured(json!({
            "id": booking.id, "status": "booked", "duplicate": duplicate,
            "to": booking.order.to, "amount": booking.order.amount, "ref": booking.order.reference,
        }))
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for BankTools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

/// The approval service's tools.
#[derive(Clone)]
pub(crate) struct ApprovalTools {
    desk: Arc<Desk>,
    tool_router: ToolRouter<Self>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct RequestApproval {
    /// What is to be done, such as `delete_customer_data`.
    operation: String,
    /// To whom.
    target: String,
    /// Why.
    reason: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct DeleteCustomerData {
    /// The approval.
    token: String,
    /// Whose data.
    customer_id: String,
}

#[tool_router]
impl ApprovalTools {
    pub(crate) fn new(desk: Arc<Desk>) -> Self {
        Self {
            desk,
            tool_router: Self::tool_router(),
        }
    }

    #[tool(description = "Asks for a single-use approval token.")]
    fn request_approval(
        &self,
        Parameters(wish): Parameters<RequestApproval>,
    ) -> Result<CallToolResult, ErrorData> {
        let token = self
            .desk
            .approve(&Wish {
                operation: wish.operation,
                target: wish.target,
                reason: wish.reason.unwrap_or_default(),
            })
            .map_err(|e| ErrorData::internal_error(e.to_string(), None))?;
        Ok(CallToolResult::structured(
            json!({"token": token, "expires_in": 3600}),
        ))
    }

    #[tool(description = "Deletes all data of a customer. Needs an approval token.")]
    fn delete_customer_data(
        &self,
        Parameters(wish): Parameters<DeleteCustomerData>,
    ) -> CallToolResult {
        match self.desk.delete(&wish.token, &wish.customer_id) {
            Ok(()) => CallToolResult::structured(
                json!({"status": "deleted", "customer_id": wish.customer_id}),
            ),
            Err(why) => CallToolResult::error(vec![ContentBlock::text(why)]),
        }
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for ApprovalTools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}
