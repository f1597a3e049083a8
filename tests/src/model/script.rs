//! What a scripted model does with a conversation: which tool it calls next, and how it words that.

use std::sync::Arc;

use serde_json::Value;

use super::hand::Hand;

/// A tool that a request offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tool {
    /// The name under which it is called.
    pub name: String,
    /// The namespace that some clients put it in.
    pub namespace: Option<String>,
}

/// One entry of the history that a request shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// What the agent's side said.
    User(String),
    /// What the model said.
    Said(String),
    /// A call that the model made.
    Call {
        /// Name of the tool.
        tool: String,
        /// Its arguments.
        arguments: Value,
    },
    /// What came of a call.
    Result {
        /// Name of the tool that was called.
        tool: String,
        /// With what it was called.
        arguments: Value,
        /// What the model is shown.
        text: String,
    },
}

/// A request to the model, whatever format it came in.
#[derive(Clone, Debug)]
pub struct Asked {
    /// The tools it offers.
    pub tools: Vec<Tool>,
    /// All that it shows.
    pub history: Vec<Entry>,
    /// Whether the answer is wanted as a stream.
    pub stream: bool,
}

/// Arguments of a call, in the order in which they are written.
pub type Arguments = Vec<(String, Value)>;

/// A call that the model makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Which tool.
    pub tool: Tool,
    /// With what.
    pub arguments: Arguments,
}

/// What the model answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Words.
    Text(String),
    /// A call.
    Call(Call),
}

type Wording = Arc<dyn Fn(&Asked, &mut Hand) -> Arguments + Send + Sync>;
type Typing = Arc<dyn Fn(&Arguments, &mut Hand) -> String + Send + Sync>;

/// One thing that has to be done.
#[derive(Clone)]
pub struct Step {
    /// Which tool does it; clients put prefixes before its name.
    pub tool: &'static str,
    /// Whether it is done once for a whole conversation, or anew for every ask.
    pub once: bool,
    wording: Wording,
    typed: Option<(&'static str, Typing)>,
}

impl Step {
    /// A step that calls `tool` with what `wording` says.
    pub fn new(
        tool: &'static str,
        wording: impl Fn(&Asked, &mut Hand) -> Arguments + Send + Sync + 'static,
    ) -> Self {
        Self {
            tool,
            once: false,
            wording: Arc::new(wording),
            typed: None,
        }
    }

    /// The same, done only once in a conversation.
    pub fn once(self) -> Self {
        Self { once: true, ..self }
    }

    /// The same for agents that have a shell and not this tool: `typing` makes a command of the
    /// arguments, by whose part `trace` the model knows it again.
    pub fn typed(
        self,
        trace: &'static str,
        typing: impl Fn(&Arguments, &mut Hand) -> String + Send + Sync + 'static,
    ) -> Self {
        Self {
            typed: Some((trace, Arc::new(typing))),
            ..self
        }
    }

    fn call(&self, asked: &Asked, hand: &mut Hand) -> Option<Call> {
        let arguments = (self.wording)(asked, hand);
        let arguments = hand.shuffled(arguments);
        if let Some(tool) = asked.tools.iter().find(|tool| is(&tool.name, self.tool)) {
            let tool = tool.clone();
            return Some(Call { tool, arguments });
        }
        let (_, typing) = self.typed.as_ref()?;
        let (shell, argument) = asked
            .tools
            .iter()
            .find_map(|tool| Some((tool, shell(&tool.name)?)))?;
        let command = typing(&arguments, hand);
        Some(Call {
            tool: shell.clone(),
            arguments: vec![(argument.into(), command.into())],
        })
    }

    /// Whether `entry` is what came of this step.
    pub(crate) fn is_done_by(&self, entry: &Entry) -> bool {
        let Entry::Result {
            tool,
            arguments,
            text,
        } = entry
        else {
            return false;
        };
        // An agent that was killed in flight shows a call without its outcome.
        let notice = text.to_ascii_lowercase();
        let unknown = ["aborted", "interrupted", "timed out"];
        if unknown.iter().any(|word| notice.contains(word)) {
            return false;
        }
        let typed = || {
            let (trace, _) = self.typed.as_ref()?;
            let command = arguments[shell(tool)?].as_str()?;
            Some(command.contains(trace))
        };
        is(tool, self.tool) || typed() == Some(true)
    }
}

/// What has to be done when the agent's side says certain words.
#[derive(Clone)]
pub struct Ask {
    /// Words by which it is known.
    pub words: String,
    /// What has to be done.
    pub steps: Vec<Step>,
}

/// How much of what it sees a model takes into account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heed {
    /// What the history shows as done is not done again.
    History,
    /// Whatever the agent's side says, it does the steps anew.
    Nothing,
}

/// What a model does.
#[derive(Clone)]
pub struct Script {
    /// Known asks. The latest one in the history counts; words that are no ask ("continue") go on with
    /// the one before.
    pub asks: Vec<Ask>,
    /// What it takes into account.
    pub heed: Heed,
    /// Whether the provider is overloaded at first, whatever it is asked.
    pub flaky: bool,
    /// What it says when it is asked to sum a conversation up.
    pub summary: Option<&'static str>,
}

impl Script {
    /// What the model answers to `asked`.
    pub fn reply(&self, asked: &Asked, hand: &mut Hand) -> Reply {
        if let Some(summary) = self.summary
            && let Some(Entry::User(text)) = asked.history.last()
            && text.contains("detailed summary of the conversation")
        {
            return Reply::Text(format!("<summary>\n{summary}\n</summary>"));
        }
        let next = self.next(asked);
        if let Some(call) = next.and_then(|step| step.call(asked, hand)) {
            return Reply::Call(call);
        }
        Reply::Text(
            hand.pick(&[
                "Done.",
                "All done. Let me know if you need anything else.",
                "That is finished.",
                "I have completed the task as requested.",
            ])
            .into(),
        )
    }

    fn next(&self, asked: &Asked) -> Option<&Step> {
        // Titles, summaries and the like offer no tools.
        if asked.tools.is_empty() {
            return None;
        }
        let known = |entry: &Entry| match entry {
            Entry::User(text) => self.asks.iter().rev().find(|ask| text.contains(&ask.words)),
            _ => None,
        };
        let (since, ask) = asked
            .history
            .iter()
            .enumerate()
            .rev()
            .find_map(|(n, entry)| Some((n, known(entry)?)))?;
        let since = match self.heed {
            Heed::History => since,
            Heed::Nothing => asked
                .history
                .iter()
                .rposition(|entry| matches!(entry, Entry::User(_)))?,
        };
        // Steps with the same tool are as many calls.
        ask.steps.iter().enumerate().find_map(|(n, step)| {
            let shown = if step.once { 0 } else { since };
            let entries = asked.history[shown..].iter();
            let done = entries.filter(|entry| step.is_done_by(entry)).count();
            let same = ask.steps[..n].iter().filter(|one| one.tool == step.tool);
            (done <= same.count()).then_some(step)
        })
    }
}

/// Whether `name` is `tool` behind a client's prefix, such as `mcp__bank__transfer`.
pub(crate) fn is(name: &str, tool: &str) -> bool {
    name.strip_suffix(tool)
        .is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('_') || prefix.ends_with('-'))
}

/// Names of tools that run a command, and the argument that is the command.
fn shell(name: &str) -> Option<&'static str> {
    Some(match name {
        "Bash" | "shell_command" => "command",
        "exec_command" => "cmd",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn script(steps: &[&'static str], heed: Heed) -> Script {
        let step = |tool: &&'static str| {
            Step::new(tool, |_, hand| vec![("ref".into(), hand.key().into())])
        };
        Script {
            asks: vec![Ask {
                words: "pay".into(),
                steps: steps.iter().map(step).collect(),
            }],
            heed,
            flaky: false,
            summary: None,
        }
    }

    fn next(script: &Script, history: &[Entry]) -> Option<String> {
        let tools = ["mcp__bank__look", "mcp__bank__transfer"].map(|name| Tool {
            name: name.into(),
            namespace: None,
        });
        let asked = Asked {
            tools: tools.into(),
            history: history.to_vec(),
            stream: false,
        };
        match script.reply(&asked, &mut Hand::new(1)) {
            Reply::Call(call) => Some(call.tool.name),
            Reply::Text(_) => None,
        }
    }

    fn user(text: &str) -> Entry {
        Entry::User(text.into())
    }

    fn result(tool: &str, text: &str) -> Entry {
        Entry::Result {
            tool: tool.into(),
            arguments: json!({}),
            text: text.into(),
        }
    }

    #[test]
    fn what_the_history_shows_is_not_done_again() {
        let script = script(&["look", "transfer"], Heed::History);
        let mut history = vec![user("pay")];
        assert_eq!(next(&script, &history).as_deref(), Some("mcp__bank__look"));
        history.push(result("mcp__bank__look", "10"));
        assert_eq!(
            next(&script, &history).as_deref(),
            Some("mcp__bank__transfer")
        );
        // A restored agent that is told to go on.
        history.push(user("continue"));
        assert_eq!(
            next(&script, &history).as_deref(),
            Some("mcp__bank__transfer")
        );
        history.push(result("mcp__bank__transfer", "booked"));
        assert_eq!(next(&script, &history), None);
        history.push(user("pay"));
        assert_eq!(next(&script, &history).as_deref(), Some("mcp__bank__look"));
    }

    #[test]
    fn a_call_without_its_outcome_is_made_again() {
        let script = script(&["transfer"], Heed::History);
        let history = [
            user("pay"),
            result("transfer", "aborted by user"),
            user("continue"),
        ];
        assert_eq!(
            next(&script, &history).as_deref(),
            Some("mcp__bank__transfer")
        );
    }

    #[test]
    fn two_equal_steps_are_two_calls() {
        let script = script(&["transfer", "transfer"], Heed::History);
        let mut history = vec![user("pay")];
        for _ in 0..2 {
            assert_eq!(
                next(&script, &history).as_deref(),
                Some("mcp__bank__transfer")
            );
            history.push(result("transfer", "booked"));
        }
        assert_eq!(next(&script, &history), None);
    }

    #[test]
    fn one_that_heeds_nothing_acts_at_every_word() {
        let script = script(&["transfer"], Heed::Nothing);
        let mut history = vec![user("pay"), result("transfer", "booked")];
        assert_eq!(next(&script, &history), None);
        history.push(user("thank you"));
        assert_eq!(
            next(&script, &history).as_deref(),
            Some("mcp__bank__transfer")
        );
    }
}
