//! How a story looks on a terminal.

use std::io::{IsTerminal as _, Write as _};

/// How a line is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// What happens.
    Plain,
    /// What somebody typed.
    Command,
    /// What somebody was told.
    Quoted,
}

/// Standard output, with colour when it is a terminal.
pub struct Screen {
    colour: bool,
}

impl Screen {
    /// The screen of this process.
    pub fn new() -> Self {
        let colour = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self { colour }
    }

    /// A heading.
    pub fn chapter(&self, number: &str, title: &str) {
        self.print(&format!(
            "\n{}",
            self.paint("1", &format!("{number}  {title}"))
        ));
    }

    /// Who does what.
    pub fn line(&self, who: &str, what: &str, tone: Tone) {
        let code = match tone {
            Tone::Plain => "",
            Tone::Command => "36",
            Tone::Quoted => "33",
        };
        let mut who = format!("{who:<7}");
        for part in wrapped(what, 89) {
            self.print(&format!(
                "   {} {}",
                self.paint("2", &who),
                self.paint(code, &part)
            ));
            who = " ".repeat(7);
        }
    }

    /// What came of it: `yes` if all is well, `no` if not.
    pub fn result(&self, well: bool, yes: &str, no: &str) {
        let (mark, what, code) = if well {
            ("✔", yes, "1;32")
        } else {
            ("✘", no, "1;31")
        };
        self.print(&format!(
            "   {}",
            self.paint(code, &format!("{mark} {what}"))
        ));
    }

    /// A command of which the output follows.
    pub fn shell(&self, command: &str) {
        self.print(&format!("\n{}", self.paint("36", &format!("$ {command}"))));
    }

    /// Output of a command.
    pub fn block(&self, text: &str) {
        self.print(text.trim_end());
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour && !code.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    }

    fn print(&self, text: &str) {
        // Nobody reads any more: the story goes on for its result.
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}

impl Default for Screen {
    fn default() -> Self {
        Self::new()
    }
}

/// Lines of at most `width` characters, broken between words where that is possible.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        if let Some(line) = lines.last_mut() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}
