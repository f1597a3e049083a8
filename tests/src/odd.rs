//! An agent that sends what no client would, and beside it another one that pays as ever.

use anyhow::{Result, ensure};

use crate::authority::Authority;
use crate::bank::{Bank, order};
use crate::client::bare_python;
use crate::fence::Fence;
use crate::process::Running;

/// A bank behind a fence, and both agents.
pub struct Odd {
    raw: Running,
    other: Running,
    paid: u64,
    /// The bank.
    pub bank: Bank,
    /// The fence; the odd agent is called `raw`.
    pub fence: Fence,
    _authority: Authority,
}

impl Odd {
    /// Both run, and have sent nothing yet.
    pub fn start() -> Result<Self> {
        let authority = Authority::new()?;
        let bank = Bank::start(&authority)?;
        let fence = Fence::start(&authority)?;
        let start = |name: &str, script: &str, argument: &str| -> Result<Running> {
            let agent = bare_python(script, &[argument])?;
            let mut agent = Running::start(name, &mut fence.launch(name, &agent)?)?;
            agent.wait_for("started")?;
            Ok(agent)
        };
        let raw = start("raw", "raw.py", &bank.port().to_string())?;
        let other = start("other", "steady.py", &bank.url("/v1/transfers"))?;
        Ok(Self {
            raw,
            other,
            paid: 0,
            bank,
            fence,
            _authority: authority,
        })
    }

    /// The bank's name and port.
    pub fn name(&self) -> String {
        format!("localhost:{}", self.bank.port())
    }

    /// Sends bytes after a handshake for `protocol` (ALPN); gives what is said of the answer, and how many
    /// requests reached the bank.
    pub fn send(&mut self, protocol: &str, bytes: &[u8]) -> Result<(String, usize)> {
        let before = self.bank.requests();
        self.raw
            .tell(&format!("{protocol} {}", hex::encode(bytes)))?;
        let said = self.raw.wait_for("got ")?;
        Ok((said, self.bank.requests() - before))
    }

    /// The other one pays, and is served, whatever came before.
    pub fn others_are_served(&mut self, before: &str) -> Result<()> {
        self.paid += 1;
        self.other.tell(&order("alice", self.paid)?)?;
        let answer = self.other.wait_for("answer ")?;
        ensure!(answer == "201", "after {before}: {answer}");
        Ok(())
    }
}
