//! Real agents without a fence: each driver really restores its agent, which then pays again. A
//! scripted model stands in for theirs.

use std::process::ExitCode;

use acrfence_tests::agents::{Agent, Restore};
use acrfence_tests::approval::Mode;
use acrfence_tests::evaluation::{Between, Cell, Suspect};
use acrfence_tests::scenario::{Scenario, Wording};
use acrfence_tests::testbed::Transport;
use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// What the books must say after a cell without a fence: effects, and unauthorised uses.
type Expected = (Scenario, Agent, Restore, Transport, usize, usize);

const BYPASS: Scenario = Scenario::ApprovalBypass(Mode::Stateless);
const CHECKED: Scenario = Scenario::ApprovalBypass(Mode::StatefulSync);

/// What CI drives.
const REPRESENTATIVE: &[Expected] = {
    use Agent::{ClaudeCode, Codex, LangGraph};
    use Restore::*;
    use Scenario::{Payment, Transfer};
    use Transport::{McpHttp, McpStdio, Rest, Shell};
    &[
        (Payment, ClaudeCode, None, McpHttp, 1, 0),
        (Payment, ClaudeCode, Cut, McpHttp, 2, 0),
        (Payment, ClaudeCode, Killed, McpHttp, 2, 0),
        (Payment, ClaudeCode, Killed, McpStdio, 2, 0),
        (Payment, ClaudeCode, Killed, Shell, 2, 0),
        (Payment, ClaudeCode, RewindFork, McpHttp, 2, 0),
        (Payment, ClaudeCode, WholeHistory, McpHttp, 2, 0),
        (Transfer, ClaudeCode, Cut, McpStdio, 2, 0),
        (Transfer, ClaudeCode, CutAfter, McpStdio, 1, 0),
        (Scenario::Cloud, ClaudeCode, Cut, McpStdio, 2, 0),
        (BYPASS, ClaudeCode, Cut, McpStdio, 2, 1),
        (CHECKED, ClaudeCode, Cut, McpStdio, 1, 0),
        (Payment, Codex, None, McpHttp, 1, 0),
        (Payment, Codex, Cut, McpHttp, 2, 0),
        (Payment, Codex, Killed, McpHttp, 2, 0),
        (Payment, Codex, Killed, McpStdio, 2, 0),
        (Payment, Codex, Killed, Shell, 2, 0),
        (Payment, Codex, WholeHistory, McpHttp, 2, 0),
        (Payment, LangGraph, Newest, Rest, 1, 0),
        (Payment, LangGraph, TimeTravel, Rest, 2, 0),
        (Payment, LangGraph, ExitCrash, Rest, 2, 0),
        (BYPASS, LangGraph, TimeTravel, Rest, 2, 1),
    ]
};

/// Frameworks whose own state goes back, in the same process and in a new one.
const FRAMEWORKS: [Agent; 7] = [
    Agent::GoogleAdk,
    Agent::OpenAiAgents,
    Agent::LlamaIndexWorkflows,
    Agent::CrewAi,
    Agent::AutoGen,
    Agent::AiSdk,
    Agent::PydanticAi,
];

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let full = std::env::var_os("ACRFENCE_FULL").is_some_and(|value| value == "1");
    let mut trials: Vec<Trial> = REPRESENTATIVE
        .iter()
        .map(|&expected| trial(expected, true))
        .collect();
    for agent in FRAMEWORKS {
        for restore in [Restore::Rewind, Restore::Reload] {
            for scenario in [Scenario::Payment, Scenario::Transfer] {
                trials.push(trial(
                    (scenario, agent, restore, Transport::Rest, 2, 0),
                    full,
                ));
            }
        }
        if agent != Agent::CrewAi {
            let expected = (BYPASS, agent, Restore::Rewind, Transport::Rest, 2, 1);
            trials.push(trial(expected, full));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(expected: Expected, wanted: bool) -> Trial {
    let (scenario, agent, restore, transport, ..) = expected;
    let name = format!(
        "{}_{}_{}_{}",
        agent.name(),
        restore.name(),
        transport.name(),
        scenario.name()
    );
    Trial::ignorable_test(name, move || {
        if !wanted {
            return Ok(Completion::ignored_with(
                "only with `cargo xtask test --full`",
            ));
        }
        if let Err(why) = agent.home() {
            return Ok(Completion::ignored_with(format!("skipped: {why:#}")));
        }
        match without_a_fence(expected) {
            Ok(()) => Ok(Completion::Completed),
            Err(why) => Err(Failed::from(format!("{why:#}"))),
        }
    })
}

fn without_a_fence((scenario, agent, restore, transport, effects, abuses): Expected) -> Result<()> {
    let cell = Cell {
        scenario,
        agent,
        restore,
        transport,
        fence: Between::Off,
        suspect: Suspect::Hold,
        wording: Wording::Explicit,
    };
    let trial = cell.trial(1)?;
    let counted = (trial.tally.effects, trial.tally.unauthorised);
    ensure!(
        counted == (effects, abuses),
        "expected {effects} effects and {abuses} unauthorised uses, the books say {counted:?}\n{:?}",
        trial.lived.lives
    );
    ensure!(
        trial.lived.finished,
        "the agent did not end its task: {:?}",
        trial.lived.lives
    );
    Ok(())
}
