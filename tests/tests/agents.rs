//! Real agents, without a fence and with one. Without, each driver really restores its agent, which
//! then pays again; with one, nobody tells the daemon anything, and nothing happens twice. A scripted
//! model stands in for theirs.

use std::process::ExitCode;

use acrfence_tests::agents::{Agent, Joins, Restore};
use acrfence_tests::approval::Mode;
use acrfence_tests::evaluation::{Between, Cell, Suspect};
use acrfence_tests::scenario::Scenario;
use acrfence_tests::testbed::Transport;
use anyhow::{Result, ensure};
use libtest_mimic::{Arguments, Completion, Failed, Trial};

/// What the books must say after a cell without a fence: effects, and unauthorised uses.
type Expected = (Scenario, Agent, Restore, Transport, usize, usize);

const BYPASS: Scenario = Scenario::ApprovalBypass(Mode::Stateless);
const CHECKED: Scenario = Scenario::ApprovalBypass(Mode::StatefulSync);

/// What CI drives.
const REPRESENTATIVE: &[Expected] = {
    use Agent::{ClaudeCode, Codex, LangGraph, PlainPython, PydanticAi};
    use Restore::*;
    use Scenario::{Confirmed, Payment, TokenRefresh, Transfer};
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
        (Scenario::TimedOut, ClaudeCode, None, McpHttp, 2, 0),
        (Scenario::TimedOutTwice, LangGraph, None, Rest, 2, 0),
        (Transfer, ClaudeCode, CutChain, McpStdio, 4, 0),
        (Transfer, ClaudeCode, ToolCrash, McpStdio, 4, 0),
        (Payment, ClaudeCode, CompactedBadly, McpHttp, 2, 0),
        (Payment, LangGraph, Newest, Rest, 1, 0),
        (Payment, LangGraph, TimeTravel, Rest, 2, 0),
        (Payment, LangGraph, ExitCrash, Rest, 2, 0),
        (BYPASS, LangGraph, TimeTravel, Rest, 2, 1),
        (TokenRefresh, LangGraph, None, Rest, 1, 0),
        (TokenRefresh, LangGraph, TimeTravel, Rest, 2, 0),
        (TokenRefresh, PlainPython, Criu, Rest, 2, 0),
        (Confirmed, PydanticAi, None, McpHttp, 1, 0),
        (Confirmed, PydanticAi, Rewind, McpHttp, 2, 0),
        (Payment, PlainPython, None, Rest, 1, 0),
        (Payment, PlainPython, Criu, Rest, 2, 0),
        (Payment, PlainPython, Criu, Shell, 2, 0),
        (Transfer, PlainPython, CriuAfter, Rest, 1, 0),
        (BYPASS, PlainPython, Criu, Rest, 2, 1),
    ]
};

/// Agents that are only attached to, and never configured: their stdio servers and commands.
const ATTACHED: &[Expected] = {
    use Agent::{ClaudeCode, Codex};
    use Restore::{Cut, Killed};
    use Scenario::Payment;
    use Transport::{McpStdio, Shell};
    &[
        (Payment, ClaudeCode, Cut, McpStdio, 2, 0),
        (Payment, ClaudeCode, Killed, Shell, 2, 0),
        (Payment, Codex, Cut, McpStdio, 2, 0),
        (Payment, Codex, Killed, Shell, 2, 0),
    ]
};

/// Restores of which the model requests show words alone, and the agent's own store the rest.
const CORROBORATED: &[(Scenario, Agent, Restore, Transport)] = &[
    (
        Scenario::Payment,
        Agent::LangGraph,
        Restore::TimeTravel,
        Transport::Rest,
    ),
    (
        Scenario::Payment,
        Agent::ClaudeCode,
        Restore::Cut,
        Transport::McpHttp,
    ),
    (
        Scenario::Payment,
        Agent::ClaudeCode,
        Restore::RewindFork,
        Transport::McpHttp,
    ),
];

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
    let mut trials = Vec::new();
    for &expected in REPRESENTATIVE {
        trials.push(trial(expected, true, Between::Off));
        trials.push(trial(expected, true, Between::On));
    }
    trials.extend(ATTACHED.iter().map(|&expected| attached(expected)));
    for agent in FRAMEWORKS {
        for restore in [Restore::Rewind, Restore::Reload] {
            for scenario in [Scenario::Payment, Scenario::Transfer] {
                let expected = (scenario, agent, restore, Transport::Rest, 2, 0);
                // Every agent once.
                let wanted = full || (scenario, restore) == (Scenario::Payment, Restore::Rewind);
                trials.push(trial(expected, wanted, Between::Off));
                trials.push(trial(expected, wanted, Between::On));
            }
        }
        if agent != Agent::CrewAi {
            let expected = (BYPASS, agent, Restore::Rewind, Transport::Rest, 2, 1);
            trials.push(trial(expected, full, Between::Off));
            trials.push(trial(expected, full, Between::On));
        }
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn trial(expected: Expected, wanted: bool, fence: Between) -> Trial {
    let (scenario, agent, restore, transport, ..) = expected;
    let name = format!(
        "{}{}_{}_{}_{}",
        if fence == Between::On { "fenced_" } else { "" },
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
        let lived = match fence {
            Between::On => with_a_fence(expected, Joins::Launched),
            _ => without_a_fence(expected),
        };
        match lived {
            Ok(()) => Ok(Completion::Completed),
            Err(why) => Err(Failed::from(format!("{why:#}"))),
        }
    })
}

/// With a fence, of an agent that runs when somebody attaches to it.
fn attached(expected: Expected) -> Trial {
    let (scenario, agent, restore, transport, ..) = expected;
    let names = [
        agent.name(),
        restore.name(),
        transport.name(),
        scenario.name(),
    ];
    Trial::ignorable_test(format!("attached_{}", names.join("_")), move || {
        if let Err(why) = agent.home() {
            return Ok(Completion::ignored_with(format!("skipped: {why:#}")));
        }
        match with_a_fence(expected, Joins::Attached) {
            Ok(()) => Ok(Completion::Completed),
            Err(why) => Err(Failed::from(format!("{why:#}"))),
        }
    })
}

fn without_a_fence(expected: Expected) -> Result<()> {
    let (.., effects, abuses) = expected;
    let trial = cell(expected, Between::Off).trial(1)?;
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

fn with_a_fence(expected: Expected, joins: Joins) -> Result<()> {
    let cell = cell(expected, Between::On);
    let trial = cell.trial_that(joins, 1)?;
    let counted = (trial.tally.effects, trial.tally.unauthorised);
    let (meant, said) = (cell.meant(), &trial.said);
    ensure!(
        counted == (meant, 0),
        "meant were {meant} effects, the books say {counted:?}\n{:?}\n{said}",
        trial.lived.lives
    );
    ensure!(
        trial.lived.finished,
        "the agent did not end its task: {:?}\n{said}",
        trial.lived.lives
    );
    if CORROBORATED.contains(&(cell.scenario, cell.agent, cell.restore, cell.transport)) {
        ensure!(
            trial
                .noticed_by
                .iter()
                .any(|s| s == "conversation, certain")
                && (trial.replayed, trial.stopped) == (1, 0),
            "what only the words suggest should be certain by the agent's own store, so that nobody has to \
             decide: {:?}, {} answered from the record, {} stopped\n{said}",
            trial.noticed_by,
            trial.replayed,
            trial.stopped
        );
        ensure!(
            trial
                .notes
                .iter()
                .any(|note| note.contains("; certain because ")),
            "no branch says why it is certain: {:?}",
            trial.notes
        );
    }
    ensure!(
        cell.scenario != Scenario::TokenRefresh || trial.errors == 0,
        "{} other calls than the payment failed, although tokens could be refreshed\n{said}",
        trial.errors
    );
    if let Restore::Criu | Restore::CriuAfter = cell.restore {
        ensure!(
            trial.noticed_by.iter().any(|s| s == "kernel, certain"),
            "the kernel saw nothing restored: {:?}\n{said}",
            trial.noticed_by
        );
    }
    let conversation = |signal: &String| signal.starts_with("conversation");
    let told = trial.noticed_by.iter().any(conversation);
    // One that resumes with the very call that it had made shows no history first.
    // A tool that times out is no restore; whether the history shows it depends on the timing.
    ensure!(
        cell.scenario.times_out() || told != cell.is_control(),
        "a restore was noticed so: {:?}\n{said}",
        trial.noticed_by
    );
    ensure!(
        trial.exact.unwrap_or(true),
        "what is fenced is not what was forgotten\n{said}"
    );
    Ok(())
}

fn cell((scenario, agent, restore, transport, ..): Expected, fence: Between) -> Cell {
    Cell {
        scenario,
        agent,
        restore,
        transport,
        fence,
        suspect: Suspect::Hold,
        wording: scenario.usual_wording(),
    }
}
