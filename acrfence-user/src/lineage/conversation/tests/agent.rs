//! A scripted agent: keeps a history, asks the model, runs tools.

use serde_json::{Value, json};

use super::wire::{Answer, Client, Dress, Message, ToolResult, ToolUse, reply, request};
use super::world::{Asked, Who, World};
use crate::lineage::conversation::Known;
use crate::words::{
    Body, EffectId, ExecRequest, ExecResponse, HttpRequest, HttpResponse, McpRequest, McpResponse,
    Request, Response,
};

/// How an agent's tool reaches outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// An MCP server, the call's id in `_meta` where the client passes it.
    Mcp,
    /// An HTTP request from inside the tool.
    Http,
    /// A command.
    Exec,
}

/// An agent and what it remembers. A clone is a checkpoint.
#[derive(Clone, Debug)]
pub struct Agent {
    pub who: Who,
    pub dress: Dress,
    pub history: Vec<Message>,
    pub reach: Reach,
    /// The response a chained client names, and how many messages lie before it.
    pub since: Option<(String, usize)>,
    /// Size of the pieces in which answers come.
    pub piece: usize,
    pub passes_ids: bool,
}

/// A source of ids that never repeat.
#[derive(Debug, Default)]
pub struct Ids(u64);

impl Ids {
    pub fn next(&mut self, prefix: &str) -> String {
        self.0 += 1;
        // Looks random, repeats never.
        let a = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0xa5a5_5a5a_1234_9876;
        let b = self.0.wrapping_mul(0xd1b5_4a32_d192_ed03).rotate_left(17);
        format!("{prefix}{a:016x}{:08x}", b >> 32)
    }
}

thread_local! {
    static IDS: std::cell::RefCell<Ids> = std::cell::RefCell::new(Ids::default());
}

pub fn fresh(prefix: &str) -> String {
    IDS.with(|ids| ids.borrow_mut().next(prefix))
}

pub fn check() -> (&'static str, Value) {
    ("check", json!({}))
}

pub fn pay(to: &str, amount: u64) -> (&'static str, Value) {
    (
        "pay",
        json!({"to": to, "amount": amount, "reference": fresh("pay-")}),
    )
}

impl Agent {
    pub fn new(client: Client, pid: u32) -> Self {
        Self {
            who: Who::new("buyer", pid),
            dress: Dress::new(client, &fresh("session-")),
            history: Vec::new(),
            reach: Reach::Mcp,
            since: None,
            piece: 37,
            passes_ids: true,
        }
    }

    /// A restored copy runs in another process.
    pub fn restored(&self, pid: u32) -> Self {
        let mut copy = self.clone();
        let agent = copy.who.agent.clone();
        copy.who = Who::new(agent.as_str(), pid);
        copy
    }

    pub fn under_new_session(mut self) -> Self {
        self.dress.session = fresh("session-");
        self
    }

    pub fn say(&mut self, text: &str) -> &mut Self {
        self.history.push(Message::User {
            text: text.into(),
            id: fresh("msg_"),
        });
        self
    }

    pub fn wire(&self) -> super::wire::Wire {
        let since = self.since.as_ref().map(|(id, known)| (id.as_str(), *known));
        request(&self.dress, &self.history, since)
    }

    /// Sends the history as it stands.
    pub fn ask(&self, world: &mut World) -> Asked {
        world.ask(&self.who, &self.wire())
    }

    /// Makes an answer with these calls.
    pub fn answer_of(&self, text: Option<&str>, calls: &[(&str, Value)]) -> Answer {
        let prefix = match self.dress.client {
            Client::ClaudeCode | Client::AnthropicSdk => "toolu_",
            _ => "call_",
        };
        Answer {
            response: fresh(match self.dress.client {
                Client::ClaudeCode | Client::AnthropicSdk => "msg_",
                _ => "resp_",
            }),
            text: text.map(str::to_owned),
            calls: calls
                .iter()
                .map(|(name, arguments)| ToolUse {
                    id: fresh(prefix),
                    name: format!("mcp__bank__{name}"),
                    arguments: arguments.clone(),
                })
                .collect(),
        }
    }

    /// Takes an answer in.
    pub fn take(&mut self, world: &mut World, asked: &Asked, answer: &Answer) {
        let bytes = reply(&self.dress, answer);
        world.answer(&self.who, asked, self.dress.client, &bytes, self.piece);
        self.history.push(Message::Model(answer.clone()));
        self.since = Some((answer.response.clone(), self.history.len()));
    }

    /// One round: asks, is told to make these calls, makes them. Gives what the request was found to
    /// be and the effects.
    pub fn round(
        &mut self,
        world: &mut World,
        text: Option<&str>,
        calls: &[(&str, Value)],
    ) -> (Asked, Vec<EffectId>) {
        let asked = self.ask(world);
        let answer = self.answer_of(text, calls);
        self.take(world, &asked, &answer);
        let effects = self.run_calls(world, &answer);
        (asked, effects)
    }

    /// A round without calls.
    pub fn talk(&mut self, world: &mut World, text: &str) -> Asked {
        self.round(world, Some(text), &[]).0
    }

    /// Runs an answer's calls and takes their results in.
    pub fn run_calls(&mut self, world: &mut World, answer: &Answer) -> Vec<EffectId> {
        let mut effects = Vec::new();
        let mut results = Vec::new();
        for call in &answer.calls {
            let (effect, text) = self.run(world, call);
            effects.push(effect);
            results.push(ToolResult {
                id: call.id.clone(),
                name: call.name.clone(),
                text,
                is_error: false,
            });
        }
        if !results.is_empty() {
            self.history.push(Message::Results(results));
        }
        effects
    }

    /// Runs one call. Gives its effect and what the model will be shown of it.
    pub fn run(&self, world: &mut World, call: &ToolUse) -> (EffectId, String) {
        let (request, response, shown) = self.request_of(call);
        let effect = world.effect(&self.who, &request, Known::Response(Box::new(response)));
        (effect, shown)
    }

    /// Runs one call that the fence answers from the record of an earlier effect.
    pub fn run_replayed(&self, world: &mut World, call: &ToolUse, earlier: EffectId) -> String {
        let (request, ..) = self.request_of(call);
        shown_of(&world.replay(&self.who, &request, earlier))
    }

    /// What a call sends, what comes back, and what the model will be shown of it.
    pub fn request_of(&self, call: &ToolUse) -> (Request, Response, String) {
        let name = call.name.rsplit("__").next().unwrap_or(&call.name);
        let outcome = match name {
            "check" => json!({"balance": 2000}),
            _ => {
                json!({"status": "paid", "reference": call.arguments["reference"], "txn": fresh("t")})
            }
        };
        let pretty = serde_json::to_string_pretty(&outcome).unwrap();
        match self.reach {
            Reach::Mcp => {
                let meta = self.passes_ids.then(|| match self.dress.client {
                    Client::ClaudeCode => json!({"claudecode/toolUseId": call.id}).to_string(),
                    Client::Codex => {
                        json!({"callId": call.id, "threadId": self.dress.session}).to_string()
                    }
                    _ => json!({"progressToken": 1}).to_string(),
                });
                let request = Request::Mcp(McpRequest {
                    server: "bank".into(),
                    name: name.into(),
                    arguments: call.arguments.to_string(),
                    meta,
                    extra: None,
                    headers: Vec::new(),
                });
                let answer = json!({"content": [{"type": "text", "text": pretty}], "structuredContent": outcome, "isError": false});
                let response = Response::Mcp(McpResponse {
                    is_result: true,
                    answer: answer.to_string(),
                    is_error: false,
                });
                (request, response, pretty)
            }
            Reach::Http => {
                let mut body = call.arguments.clone();
                if let Some(fields) = body.as_object_mut() {
                    fields.insert("memo".into(), json!("by the tool"));
                }
                let request = Request::Http(HttpRequest {
                    method: "POST".into(),
                    url: format!("https://bank.test/{name}"),
                    headers: Vec::new(),
                    rpc: Vec::new(),
                    body: Body::whole(body.to_string()),
                });
                let response = Response::Http(HttpResponse {
                    status: 200,
                    headers: Vec::new(),
                    body: Body::whole(outcome.to_string()),
                    trailers: Vec::new(),
                });
                // The tool says it in its own words.
                (request, response, format!("{name} went well"))
            }
            Reach::Exec => {
                let command = call.arguments["command"].as_str().unwrap_or("true");
                let argv = command.split(' ').map(str::to_owned).collect();
                let request = Request::Exec(ExecRequest {
                    argv,
                    cwd: "/".into(),
                    env: Vec::new(),
                    stdin: None,
                });
                let response = Response::Exec(ExecResponse {
                    exit: 0,
                    stdout: Body::whole(outcome.to_string()),
                    stderr: Body::empty(),
                });
                (request, response, outcome.to_string())
            }
        }
    }
}

fn shown_of(response: &Response) -> String {
    match response {
        Response::Mcp(mcp) => {
            let answer: Value = serde_json::from_str(&mcp.answer).unwrap();
            answer["content"][0]["text"].as_str().unwrap().to_owned()
        }
        Response::Http(http) => String::from_utf8_lossy(&http.body.kept).into_owned(),
        Response::Exec(exec) => String::from_utf8_lossy(&exec.stdout.kept).into_owned(),
    }
}
