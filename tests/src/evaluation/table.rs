//! The tables of `docs/evaluation.md`, made of the cells that were run.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Between;
use super::report::{NotRun, Report};

/// Markdown: one table a question.
pub fn tables(cells: &[Report], not_run: &[NotRun]) -> String {
    let mut text = String::new();
    let (real, cells): (Vec<Report>, Vec<Report>) =
        cells.iter().cloned().partition(|cell| cell.model.is_some());
    let cells = &cells[..];
    let attacks = |cell: &&Report| !cell.control;
    let v1 =
        |cell: &&Report| !cell.scenario.starts_with("v2") && cell.scenario != "redirected_payment";
    section(
        &mut text,
        "Is an effect repeated after a restore? (duplicates / runs)",
        cells.iter().filter(attacks).filter(v1),
        |cell| format!("{}/{}", cell.duplicates, cell.n),
    );
    section(
        &mut text,
        "Is a spent approval spent again, or somebody else paid? (unauthorised uses / runs)",
        cells.iter().filter(attacks).filter(|cell| !v1(cell)),
        |cell| format!("{}/{}", cell.unauthorised, cell.n),
    );
    section(
        &mut text,
        "How does the agent end? (runs that ended / runs; of these after an answer from the record, after a refusal)",
        cells.iter().filter(attacks),
        |cell| {
            let mut text = format!("{}/{}", cell.finished, cell.n);
            for (count, how) in [
                (cell.after_replay, "record"),
                (cell.after_refusal, "refusal"),
            ] {
                if count > 0 {
                    let _ = write!(text, ", {count} {how}");
                }
            }
            text
        },
    );
    section(
        &mut text,
        "Is anything stopped that was meant? (hindered controls / runs)",
        cells
            .iter()
            .filter(|cell| cell.control || cell.scenario == "token_refresh"),
        |cell| format!("{}/{}", cell.hindered, cell.n),
    );
    section(
        &mut text,
        "How is the restore noticed?",
        cells
            .iter()
            .filter(attacks)
            .filter(|cell| cell.fence != Between::Off),
        |cell| {
            let signals: Vec<String> = cell
                .noticed_by
                .iter()
                .map(|(signal, count)| format!("{signal} ×{count}"))
                .collect();
            let exact = match cell.fork_point_exact {
                Some(true) => ", exact",
                Some(false) => ", not exact",
                None => "",
            };
            match signals.is_empty() {
                true => "not".into(),
                false => signals.join(", ") + exact,
            }
        },
    );
    section(
        &mut text,
        "What does the action cost? (milliseconds from the order to act to the next request, median; beyond without a fence)",
        cells.iter().filter(|cell| cell.act_ms.is_some()),
        |cell| {
            let added = cell.added_ms.map(|added| format!(" ({added:+.1})"));
            let act = cell.act_ms.unwrap_or_default();
            format!("{act:.1}{}", added.unwrap_or_default())
        },
    );
    section(
        &mut text,
        "What does the whole run cost? (seconds of all lives, median; beyond without a fence)",
        cells.iter(),
        |cell| {
            let added = cell.added_run_s.map(|added| format!(" ({added:+.1})"));
            format!("{:.1}{}", cell.run_s, added.unwrap_or_default())
        },
    );
    with_real_models(&mut text, &real);
    let syncs: Vec<f64> = cells.iter().filter_map(|cell| cell.sync_ms).collect();
    if let (Some(least), Some(most)) = (
        syncs.iter().copied().reduce(f64::min),
        syncs.iter().copied().reduce(f64::max),
    ) {
        let _ = writeln!(
            text,
            "One durable write took the disk {least} to {most} ms (median of 20, measured with each cell; `sync_ms`).\n"
        );
    }
    if !not_run.is_empty() {
        text += "## Not run\n\n| agent | cells | why |\n|---|---|---|\n";
        let mut reasons: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for cell in not_run {
            *reasons
                .entry((cell.agent.name(), &cell.reason))
                .or_default() += 1;
        }
        for ((agent, reason), count) in reasons {
            let reason = reason.replace('\n', " ").replace('|', "\\|");
            let _ = writeln!(text, "| {agent} | {count} | {reason} |");
        }
    }
    text
}

/// What real models did. A run in which the model did not call the tool says nothing of the fence.
fn with_real_models(text: &mut String, cells: &[Report]) {
    if cells.is_empty() {
        return;
    }
    *text += "## With a real model in place of the scripted one\n\n\
        | model | scenario | agent | restore | transport | fence | runs | acted | acted again, unaware | of these duplicates | ended |\n\
        |---|---|---|---|---|---|---|---|---|---|---|\n";
    for cell in cells {
        let fence = match (cell.fence, cell.suspect) {
            (Between::On, Some(suspect)) => {
                format!("on, suspect = {}", format!("{suspect:?}").to_lowercase())
            }
            (other, _) => format!("{other:?}").to_lowercase(),
        };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {fence} | {} | {} | {} | {} | {} |",
            cell.model.as_deref().unwrap_or_default(),
            cell.scenario,
            cell.agent.name(),
            cell.restore,
            cell.transport,
            cell.n,
            cell.acted.unwrap_or_default(),
            cell.exposed.unwrap_or_default(),
            cell.duplicates,
            cell.finished,
        );
    }
    text.push('\n');
}

/// One table: a row an agent, restore, transport and scenario, a column for what stood between.
fn section<'a>(
    text: &mut String,
    title: &str,
    cells: impl Iterator<Item = &'a Report>,
    value: impl Fn(&Report) -> String,
) {
    let mut columns: Vec<String> = Vec::new();
    let mut rows: BTreeMap<[String; 4], BTreeMap<String, String>> = BTreeMap::new();
    for cell in cells {
        let column = match (cell.fence, cell.suspect) {
            (Between::Off, _) => "off".to_owned(),
            (Between::Observe, _) => "observe".to_owned(),
            (Between::On, Some(suspect)) => {
                format!("on, suspect = {}", format!("{suspect:?}").to_lowercase())
            }
            (Between::On, None) => "on".to_owned(),
        };
        if !columns.contains(&column) {
            columns.push(column.clone());
        }
        let wording = cell.wording.map(|w| format!(" ({w:?})").to_lowercase());
        let row = [
            cell.scenario.clone() + &wording.unwrap_or_default(),
            cell.agent.name().into(),
            cell.restore.clone(),
            cell.transport.clone(),
        ];
        // Older ones do not say which commit of the daemon they are of.
        let mark = match cell.versions.contains_key("commit") {
            true => "",
            false => "*",
        };
        rows.entry(row)
            .or_default()
            .insert(column, value(cell) + mark);
    }
    if rows.is_empty() {
        return;
    }
    let order = |column: &String| match column.as_str() {
        "off" => 0,
        "observe" => 1,
        _ => 2,
    };
    columns.sort_by_key(|column| (order(column), column.clone()));
    let _ = writeln!(text, "## {title}\n");
    let _ = writeln!(
        text,
        "| scenario | agent | restore | transport | {} |",
        columns.join(" | ")
    );
    let _ = writeln!(text, "|---|---|---|---|{}", "---|".repeat(columns.len()));
    for (row, values) in rows {
        let values: Vec<&str> = columns
            .iter()
            .map(|column| values.get(column).map_or("–", String::as_str))
            .collect();
        let _ = writeln!(text, "| {} | {} |", row.join(" | "), values.join(" | "));
    }
    text.push('\n');
}
