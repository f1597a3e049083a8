//! What was said, in a form that does not change when a client merely wraps it differently.

use super::mark::{Kind, Mark, Marker};

/// Elements that clients put into user messages on their own: context that moves, grows and goes
/// without anybody having said anything.
const CONTEXT_ELEMENTS: &[&str] = &[
    "system-reminder",
    "system_reminder",
    "environment_context",
    "user_instructions",
    "permissions",
    "permissions instructions",
    "skills_instructions",
    "apps_instructions",
    "plugins_instructions",
    "collaboration_mode",
    "personality_spec",
    "turn_aborted",
    "local-command-caveat",
    "local-command-stdout",
    "local-command-stderr",
    "command-name",
    "command-message",
    "command-args",
    "bash-input",
    "bash-stdout",
    "bash-stderr",
    "ide_selection",
    "ide_opened_file",
    "env",
];

/// Beginnings of user messages that clients write from files.
const CONTEXT_OPENINGS: &[&str] = &["# AGENTS.md instructions", "<INSTRUCTIONS>"];

/// Phrases with which clients introduce what they kept of a history they dropped.
const SUMMARY_PHRASES: &[&str] = &[
    "continued from a previous conversation",
    "produced a summary of its thinking process",
    "summary of the conversation",
    "summary of our conversation",
    "summary of the previous conversation",
    "summary of the earlier conversation",
    "summary of conversation earlier",
    "conversation summary",
    "earlier portion of the conversation",
    "conversation history has been compacted",
    "previous messages have been summarized",
    "<summary>",
    "<conversation_summary>",
];

/// Where in a text a summary's introduction is looked for.
const SUMMARY_HEAD: usize = 2000;

/// A line shorter than this says too little to recognise a text by.
const LONG_LINE: usize = 32;

/// Most lines of a text that are remembered.
const MOST_LINES: usize = 24;

/// A text without client-made context and without white space, so that neither a line end nor the
/// seam of two blocks makes a difference. Empty when there was nothing but context.
pub(super) fn plain(text: &str) -> String {
    let trimmed = text.trim_start();
    if CONTEXT_OPENINGS.iter().any(|o| trimmed.starts_with(o)) {
        return String::new();
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    // Elements that are never closed from here on, so that a hostile text is not searched again and
    // again.
    let mut unclosed = [false; CONTEXT_ELEMENTS.len()];
    while let Some(at) = rest.find('<') {
        push_words(&mut plain, &rest[..at]);
        rest = &rest[at..];
        match context_element(rest, &mut unclosed) {
            Some(after) => rest = after,
            None => {
                // `<` is one byte.
                plain.push('<');
                rest = &rest[1..];
            }
        }
    }
    push_words(&mut plain, rest);
    plain
}

/// What follows the context element that `text` begins with.
fn context_element<'t>(
    text: &'t str,
    unclosed: &mut [bool; CONTEXT_ELEMENTS.len()],
) -> Option<&'t str> {
    let inner = text.strip_prefix('<')?;
    let which = CONTEXT_ELEMENTS.iter().position(|name| {
        inner
            .strip_prefix(name)
            .is_some_and(|after| after.starts_with(['>', ' ', '\n']))
    })?;
    if unclosed[which] {
        return None;
    }
    let end = format!("</{}>", CONTEXT_ELEMENTS[which]);
    let Some(at) = text.find(&end) else {
        unclosed[which] = true;
        return None;
    };
    Some(&text[at + end.len()..])
}

fn push_words(into: &mut String, text: &str) {
    into.extend(text.chars().filter(|c| !c.is_whitespace()));
}

/// Whether a text introduces itself as what is left of a longer conversation.
pub(super) fn introduces_summary(text: &str) -> bool {
    let mut end = text.len().min(SUMMARY_HEAD);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let head = text[..end].to_lowercase();
    SUMMARY_PHRASES.iter().any(|phrase| head.contains(phrase))
}

/// Marks of the long lines of a text, by which it is recognised inside another.
pub(super) fn long_lines(marker: &Marker, text: &str) -> Vec<Mark> {
    let mut lines: Vec<Mark> = text
        .lines()
        .map(str::trim)
        .filter(|line| line.len() >= LONG_LINE)
        .take(MOST_LINES)
        .map(|line| marker.mark(Kind::Line, line.as_bytes()))
        .collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_and_white_space_are_no_words() {
        for (given, said) in [
            ("pay alice 100", "payalice100"),
            ("pay alice 100\n", "payalice100"),
            (
                "<system-reminder>\ntoday is monday\n</system-reminder>\n\n",
                "",
            ),
            (
                "pay  alice\n100<system-reminder>x</system-reminder>",
                "payalice100",
            ),
            (
                "a <system-reminder>x</system-reminder> b <system-reminder>y</system-reminder>",
                "ab",
            ),
            (
                "<environment_context>\n <cwd>/x</cwd>\n</environment_context>",
                "",
            ),
            ("if a < b then <b>bold</b>", "ifa<bthen<b>bold</b>"),
            (
                "<system-reminder> never closed",
                "<system-reminder>neverclosed",
            ),
            ("# AGENTS.md instructions for /x\n\nbe kind", ""),
            ("", ""),
            ("<environment> is my word", "<environment>ismyword"),
        ] {
            assert_eq!(plain(given), said, "{given:?}");
        }
    }

    #[test]
    fn summaries_introduce_themselves() {
        assert!(introduces_summary(
            "This session is being continued from a previous conversation that ran out of context."
        ));
        assert!(introduces_summary(
            "Here is a summary of the conversation to date:\n\nwe paid"
        ));
        assert!(!introduces_summary("pay alice 100"));
        let far = format!("{}<summary>", "ä".repeat(SUMMARY_HEAD));
        assert!(!introduces_summary(&far));
    }
}
