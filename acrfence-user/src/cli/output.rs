//! What a person or a script sees.

use std::io::Write as _;

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::words::Timestamp;

/// Prints one JSON object on a line of its own.
pub(super) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    line(&serde_json::to_string(value)?)
}

/// Prints a line; a reader that went away ends the program quietly, as with any filter.
pub(super) fn line(text: &str) -> anyhow::Result<()> {
    match writeln!(std::io::stdout(), "{text}") {
        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        done => Ok(done?),
    }
}

/// Prints a table, or a sentence when it has no rows.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>, empty: &str) -> anyhow::Result<()> {
    if rows.is_empty() {
        return line(empty);
    }
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header);
    table.add_rows(rows);
    if let Some(first) = table.column_mut(0) {
        first.set_padding((0, 1));
    }
    let text = table.to_string();
    line(
        &text
            .lines()
            .map(str::trim_end)
            .collect::<Vec<_>>()
            .join("\n"),
    )
}

/// A time as a person reads it: the local time of day, with the date when it is another day's.
pub(super) fn time(at: Timestamp) -> String {
    let Ok(instant) = jiff::Timestamp::from_nanosecond(at.0.into()) else {
        return at.to_string();
    };
    let local = instant.to_zoned_datetime(jiff::tz::TimeZone::system());
    let today = jiff::ZonedDateTime::now().date();
    let format = if local.date() == today {
        "%H:%M:%S"
    } else {
        "%Y-%m-%d %H:%M:%S"
    };
    local.strftime(format).to_string()
}

/// Shortens a text to a width for a table.
pub(super) fn short(text: &str, width: usize) -> String {
    let clean: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if clean.chars().count() <= width {
        return clean;
    }
    clean
        .chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// A number of things: `1 flow`, `2 flows`.
pub(super) fn count(n: usize, what: &str) -> String {
    if n == 1 {
        format!("1 {what}")
    } else {
        format!("{n} {what}s")
    }
}
