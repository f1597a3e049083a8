//! The services as MCP servers over streamable HTTP, in the two ways that servers answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use rmcp::handler::server::router::tool::ToolRouter;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequest,
    ElicitRequestParams, InputRequest, InputRequests, InputRequiredResult, JsonObject,
    ListToolsResult, PaginatedRequestParams, ServerCapabilities, ServerConfig,
};
use rmcp::schemars::JsonSchema;
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler, tool, tool_handler, tool_router};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::approval::{Deed, Desk, Wish};
use crate::bank::{Books, Order};
use crate::cloud::{self, Racks};

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

fn internal(why: anyhow::Error) -> ErrorData {
    ErrorData::internal_error(why.to_string(), None)
}

/// The bank's tools.
#[derive(Clone)]
pub struct BankTools {
    books: Arc<Books>,
    tool_router: ToolRouter<Self>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct CheckBalance {
    /// Which account; there is only one.
    #[serde(rename = "account_id")]
    _account_id: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ReadStatement {
    /// Which page, from 1 on.
    page: usize,
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

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct LookUp {
    /// The `ref` of the transfer.
    r#ref: String,
}

#[tool_router]
impl BankTools {
    /// Tools of a bank with these books.
    pub fn new(books: Arc<Books>) -> Self {
        Self {
            books,
            tool_router: Self::tool_router(),
        }
    }

    #[tool(
        description = "Tells what is left on the account.",
        annotations(read_only_hint = true)
    )]
    fn check_balance(
        &self,
        Parameters(_account): Parameters<CheckBalance>,
    ) -> Result<CallToolResult, ErrorData> {
        let balance = self.books.balance().map_err(internal)?;
        Ok(CallToolResult::structured(
            json!({"balance": balance, "currency": "EUR"}),
        ))
    }

    #[tool(
        description = "Reads a page of the statement.",
        annotations(read_only_hint = true)
    )]
    fn read_statement(
        &self,
        Parameters(wish): Parameters<ReadStatement>,
    ) -> Result<CallToolResult, ErrorData> {
        let page = self.books.statement(wish.page).map_err(internal)?;
        Ok(CallToolResult::structured(page))
    }

    #[tool(
        description = "Tells whether a transfer was booked.",
        annotations(read_only_hint = true)
    )]
    fn look_up(&self, Parameters(wish): Parameters<LookUp>) -> Result<CallToolResult, ErrorData> {
        let booked = self.books.booked(&wish.r#ref).map_err(internal)?;
        Ok(CallToolResult::structured(
            json!({"found": booked.is_some(), "transfer": booked}),
        ))
    }

    #[tool(description = "Transfers money.")]
    async fn transfer(
        &self,
        Parameters(wish): Parameters<Transfer>,
    ) -> Result<CallToolResult, ErrorData> {
        let booked = self.books.book(Order {
            to: wish.to,
            amount: wish.amount,
            currency: "EUR".into(),
            reference: wish.r#ref,
            requested_at: String::new(),
        });
        let (booking, duplicate) = booked.map_err(internal)?;
        self.books.answer().await;
        Ok(CallToolResult::structured(json!({
            "id": booking.id, "status": "booked", "duplicate": duplicate,
            "to": booking.order.to, "amount": booking.order.amount, "ref": booking.order.reference,
        })))
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for BankTools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

/// The bank's tools, of which the transfer asks for a confirmation before anything is done, as the revision
/// of 2026-07-28 has it: the call is answered by a question, and made again with the answer.
#[derive(Clone)]
pub struct AskingBank {
    bank: BankTools,
    asked: Arc<Mutex<HashMap<String, JsonObject>>>,
}

impl AskingBank {
    /// The same with these books.
    pub fn new(books: Arc<Books>) -> Self {
        Self {
            bank: BankTools::new(books),
            asked: Arc::default(),
        }
    }

    /// The question whether that is meant; the state by which its answer is known is good once.
    fn ask(&self, wish: JsonObject) -> Result<CallToolResponse, ErrorData> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes)
            .map_err(|why| ErrorData::internal_error(why.to_string(), None))?;
        let state = hex::encode(bytes);
        let schema = json!({
            "type": "object", "required": ["sure"],
            "properties": {"sure": {"type": "boolean", "description": "Whether to transfer."}},
        });
        let question = ElicitRequestParams::FormElicitationParams {
            meta: None,
            message: format!("Transfer this? {}", Value::Object(wish.clone())),
            requested_schema: serde_json::from_value(schema)
                .map_err(|why| ErrorData::internal_error(why.to_string(), None))?,
        };
        let question = InputRequest::Elicitation(ElicitRequest::new(question));
        let questions = InputRequests::from([("sure".to_owned(), question)]);
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.insert(state.clone(), wish);
        Ok(InputRequiredResult::new(Some(questions), Some(state)).into())
    }
}

impl ServerHandler for AskingBank {
    fn get_info(&self) -> ServerConfig {
        self.bank.get_info()
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        self.bank.list_tools(request, context).await
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        if request.name != "transfer" {
            return self.bank.call_tool(request, context).await;
        }
        let wish = request.arguments.clone().unwrap_or_default();
        let Some(state) = &request.request_state else {
            return self.ask(wish);
        };
        let asked = {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.remove(state)
        };
        let answers = request.input_responses.as_ref();
        let answer = answers.and_then(|answers| answers.get("sure"));
        let sure = answer.is_some_and(|answer| {
            answer["action"] == "accept" && answer["content"]["sure"] == true
        });
        match asked {
            Some(asked) if asked == wish && sure => self.bank.call_tool(request, context).await,
            Some(asked) if asked == wish => {
                let text = "Nothing was transferred, since it was not confirmed.";
                Ok(CallToolResult::error(vec![ContentBlock::text(text)]).into())
            }
            _ => Err(ErrorData::invalid_params("this was never asked", None)),
        }
    }
}

/// The cloud provider's tools.
#[derive(Clone)]
pub struct CloudTools {
    racks: Arc<Racks>,
    tool_router: ToolRouter<Self>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct CheckQuota {
    /// Which kind of resource; there is only one.
    #[serde(rename = "resource_type")]
    _resource_type: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct CreateServer {
    /// What kind of server.
    spec: String,
    /// Unique for every server.
    client_token: String,
}

#[tool_router]
impl CloudTools {
    /// Tools of a provider with these racks.
    pub fn new(racks: Arc<Racks>) -> Self {
        Self {
            racks,
            tool_router: Self::tool_router(),
        }
    }

    #[tool(
        description = "Tells how many servers are allowed, and how many run.",
        annotations(read_only_hint = true)
    )]
    fn check_quota(
        &self,
        Parameters(_kind): Parameters<CheckQuota>,
    ) -> Result<CallToolResult, ErrorData> {
        let quota = self.racks.quota().map_err(internal)?;
        Ok(CallToolResult::structured(quota))
    }

    #[tool(description = "Makes a server, which costs until it is deleted.")]
    async fn create_server(
        &self,
        Parameters(wish): Parameters<CreateServer>,
    ) -> Result<CallToolResult, ErrorData> {
        let made = self.racks.create(cloud::Wish {
            spec: wish.spec,
            client_token: wish.client_token,
        });
        Ok(CallToolResult::structured(made.await.map_err(internal)?))
    }
}

#[tool_handler(router = self.tool_router)]
impl ServerHandler for CloudTools {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }
}

/// The approval service's tools.
#[derive(Clone)]
pub struct ApprovalTools {
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

#[derive(Deserialize, JsonSchema)]
#[schemars(crate = "rmcp::schemars")]
struct ExecutePayment {
    /// The approval.
    token: String,
    /// Who gets the money.
    vendor: String,
    /// How much, in EUR.
    amount: u64,
}

#[tool_router]
impl ApprovalTools {
    /// Tools of an approval service with this desk.
    pub fn new(desk: Arc<Desk>) -> Self {
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
            .map_err(internal)?;
        Ok(CallToolResult::structured(
            json!({"token": token, "expires_in": 3600}),
        ))
    }

    #[tool(description = "Deletes all data of a customer. Needs an approval token.")]
    async fn delete_customer_data(
        &self,
        Parameters(wish): Parameters<DeleteCustomerData>,
    ) -> CallToolResult {
        let deed = Deed::Deletion {
            customer_id: wish.customer_id,
        };
        self.spend(&wish.token, deed).await
    }

    #[tool(description = "Pays a vendor. Needs an approval token.")]
    async fn execute_payment(
        &self,
        Parameters(wish): Parameters<ExecutePayment>,
    ) -> CallToolResult {
        let deed = Deed::Payment {
            vendor: wish.vendor,
            amount: wish.amount,
        };
        self.spend(&wish.token, deed).await
    }

    async fn spend(&self, token: &str, deed: Deed) -> CallToolResult {
        match self.desk.spend(token, deed).await {
            Ok(answer) => CallToolResult::structured(answer),
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
