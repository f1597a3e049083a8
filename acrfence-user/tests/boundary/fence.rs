//! An arbiter that decides as the test says and remembers everything.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use acrfence_user::boundary::{
    Admission, Arbiter, OpaqueFlow, Ticket, Trouble, TroubleKind, Unasked,
};
use acrfence_user::effect::LogError;
use acrfence_user::words::*;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

pub enum Say {
    Forward,
    /// No effect: nothing is held.
    Pass,
    Replay(Response),
    Refuse(RefusalCode),
}

pub struct Fence {
    say: Mutex<VecDeque<Say>>,
    pub calls: Mutex<Vec<ToolCall>>,
    pub endings: Mutex<Vec<(u64, Ending)>>,
    pub flows: Mutex<Vec<OpaqueFlow>>,
    pub ended: Mutex<Vec<OpaqueFlow>>,
    pub troubles: Mutex<Vec<Trouble>>,
    pub tools: Mutex<Vec<(String, String)>>,
    pub undelivered: Mutex<Vec<EffectId>>,
    /// Settling waits for a permit.
    pub gate: Semaphore,
    /// Admitting waits for a permit as well.
    pub admitting: AtomicBool,
    pub log_is_broken: AtomicBool,
    pub opaque_is_denied: AtomicBool,
    next: AtomicU64,
    changed: watch::Sender<u64>,
}

impl Fence {
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            say: Mutex::default(),
            calls: Mutex::default(),
            endings: Mutex::default(),
            flows: Mutex::default(),
            ended: Mutex::default(),
            troubles: Mutex::default(),
            tools: Mutex::default(),
            undelivered: Mutex::default(),
            gate: Semaphore::new(Semaphore::MAX_PERMITS),
            admitting: AtomicBool::new(false),
            log_is_broken: AtomicBool::new(false),
            opaque_is_denied: AtomicBool::new(false),
            next: AtomicU64::new(1),
            changed: watch::channel(0).0,
        })
    }

    /// What to say to the next call; without it, calls are forwarded.
    pub fn say(&self, say: Say) -> &Self {
        self.say.lock().push_back(say);
        self
    }

    /// Lets nothing be settled until [`Self::open`].
    pub fn close(&self) {
        self.gate.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub fn open(&self) {
        self.gate.add_permits(1000);
    }

    /// Waits until `ready` holds; it is looked at again whenever something is remembered.
    pub async fn until<T>(&self, what: &str, ready: impl Fn(&Self) -> Option<T>) -> T {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            loop {
                if let Some(found) = ready(self) {
                    return found;
                }
                changed.changed().await.unwrap();
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting)
            .await
            .unwrap_or_else(|_| panic!("never came: {what}; troubles: {:?}", self.troubles.lock()))
    }

    pub async fn ending(&self) -> Ending {
        self.until("an ending", |f| {
            f.endings.lock().first().map(|(_, e)| e.clone())
        })
        .await
    }

    pub async fn trouble(&self, kind: TroubleKind) -> String {
        self.until(&format!("{kind:?}"), |f| {
            f.troubles
                .lock()
                .iter()
                .find(|t| t.kind == kind)
                .map(|t| t.detail.clone())
        })
        .await
    }

    pub async fn flow_end(&self) -> OpaqueFlow {
        self.until("the end of a flow", |f| f.ended.lock().first().cloned())
            .await
    }

    pub fn http_calls(&self) -> Vec<HttpRequest> {
        self.calls
            .lock()
            .iter()
            .filter_map(|call| match &call.request {
                Request::Http(request) => Some(request.clone()),
                _ => None,
            })
            .collect()
    }

    pub fn mcp_calls(&self) -> Vec<McpRequest> {
        self.calls
            .lock()
            .iter()
            .filter_map(|call| match &call.request {
                Request::Mcp(request) => Some(request.clone()),
                _ => None,
            })
            .collect()
    }

    async fn wait(&self) {
        let _permit = self.gate.acquire().await.unwrap();
    }

    fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }
}

/// Gives the trait to the shared value, so that tests keep their own handle.
pub struct Door(pub Arc<Fence>);

#[async_trait::async_trait]
impl Arbiter for Door {
    async fn witness(&self, _: ToolCall, _: ProcessIdentity) -> Option<Box<dyn Ticket>> {
        panic!("no command here");
    }

    fn unasked(&self, _: Unasked) {
        panic!("no command here");
    }

    async fn admit(&self, call: ToolCall) -> Admission {
        let fence = &self.0;
        fence.calls.lock().push(call);
        let say = fence.say.lock().pop_front().unwrap_or(Say::Forward);
        let id = fence.next.fetch_add(1, Ordering::Relaxed);
        fence.tell();
        if fence.admitting.load(Ordering::Relaxed) {
            fence.wait().await;
        }
        let ticket = |is_effect| -> Box<dyn Ticket> {
            Box::new(Right {
                fence: fence.clone(),
                id,
                is_effect,
                settled: false,
            })
        };
        match say {
            Say::Forward => Admission::Forward(ticket(true)),
            Say::Pass => Admission::Forward(ticket(false)),
            Say::Replay(response) => Admission::Replay {
                effect: EffectId(Seq(17)),
                response,
            },
            Say::Refuse(code) => Admission::Refuse(refusal(code)),
        }
    }

    async fn admit_opaque(&self, flow: &OpaqueFlow) -> Result<(), Refusal> {
        self.0.flows.lock().push(flow.clone());
        self.0.tell();
        if self.0.opaque_is_denied.load(Ordering::Relaxed) {
            return Err(refusal(RefusalCode::Policy));
        }
        Ok(())
    }

    fn opaque_ended(&self, flow: OpaqueFlow) {
        self.0.ended.lock().push(flow);
        self.0.tell();
    }

    fn trouble(&self, trouble: Trouble) {
        self.0.troubles.lock().push(trouble);
        self.0.tell();
    }

    fn undelivered(&self, _: &Origin, effect: EffectId) {
        self.0.undelivered.lock().push(effect);
        self.0.tell();
    }

    fn tools_seen(&self, _: &Origin, server: &str, tools: &str) {
        self.0
            .tools
            .lock()
            .push((server.to_owned(), tools.to_owned()));
        self.0.tell();
    }
}

pub fn refusal(code: RefusalCode) -> Refusal {
    Refusal {
        code,
        title: "It was paid already".to_owned(),
        detail: "amount differs; `acrfence fork` opens a branch".to_owned(),
        effect: Some(EffectId(Seq(17))),
        fields: Vec::new(),
        hold: None,
    }
}

struct Right {
    fence: Arc<Fence>,
    id: u64,
    is_effect: bool,
    settled: bool,
}

impl Drop for Right {
    fn drop(&mut self) {
        if !self.settled {
            let lost = Ending::Broken {
                why: "dropped unsettled".to_owned(),
                partial: None,
            };
            self.fence.endings.lock().push((self.id, lost));
            self.fence.tell();
        }
    }
}

#[async_trait::async_trait]
impl Ticket for Right {
    fn effect(&self) -> Option<EffectId> {
        self.is_effect.then_some(EffectId(Seq(self.id)))
    }

    fn holds_end(&self) -> bool {
        self.is_effect
    }

    async fn settle(mut self: Box<Self>, ending: Ending) -> Result<(), LogError> {
        self.fence.wait().await;
        self.settled = true;
        if self.fence.log_is_broken.load(Ordering::Relaxed) {
            return Err(LogError::Stopped {
                detail: "test".to_owned(),
            });
        }
        self.fence.endings.lock().push((self.id, ending));
        self.fence.tell();
        Ok(())
    }
}
