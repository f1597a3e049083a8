//! Differences of time: the clock at the time of a call, or a time that is meant.

use std::borrow::Cow;

use super::super::decode;
use super::super::naming::Names;
use super::super::normal::instant;
use super::super::text;
use super::leaf::Judged;
use super::path::Path;
use super::walk::Walk;
use crate::words::FieldClass::{Intent, Unknown, Volatile};

const SECOND: i128 = 1_000_000_000;

impl Walk<'_> {
    pub(super) fn judge_counter(
        &self,
        _: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        let small = |t: &str| t.len() <= 3 && t.bytes().all(|c| c.is_ascii_digit());
        (names.is_attempt_counter() && small(a) && small(b))
            .then(|| (Volatile, "counts tries".into()))
    }

    pub(super) fn judge_clock(
        &self,
        path: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        let (x, y) = (instant::read(a)?, instant::read(b)?);
        let both_now = self.is_now(a, false) && self.is_now(b, true) && zones_agree(&x, &y, self);
        // A plain number is a clock only where the name says time; a target never is.
        let counted = a.bytes().all(|c| c.is_ascii_digit() || c == b'.');
        let about_time = names.is_clock()
            || names.own.is_empty()
            || names.has(&["time", "date", "at", "when", "t", "datetime"]);
        let fits = names.is_clock()
            || !names.is_target() && !names.is_time_of_other() && (!counted || about_time);
        if both_now && !names.is_schedule() && fits {
            return Some((Volatile, "the clock at the time of each call".into()));
        }
        let within_token = self.in_token && names.has(&["exp", "nbf", "iat"]);
        if within_token {
            return None;
        }
        if path.is_in("headers") && names.has(&["expires"]) {
            return None;
        }
        if x.zoned != y.zoned && x.nanos == y.nanos {
            return Some((
                Unknown,
                "the same time of day, once with and once without a zone".into(),
            ));
        }
        let offset = |i: &instant::Instant, added: bool| i.nanos - self.at(added);
        let same_offset = (offset(&x, false) - offset(&y, true)).abs() <= 5 * SECOND;
        if same_offset && !names.has(&["thread", "parent", "reply"]) {
            return Some((Unknown, "as far from the time of the call as before; nothing says whether it was meant as a date or as a delay".into()));
        }
        Some((Intent, "another point in time".into()))
    }

    /// The time of a call: of the recorded one, or of the new one.
    pub(super) fn at(&self, new: bool) -> i128 {
        let evidence = self.context.evidence;
        i128::from(if new {
            evidence.restored_at.0
        } else {
            evidence.recorded_at.0
        })
    }

    /// Whether text is a point in time at which the call was being made.
    pub(super) fn is_now(&self, text: &str, new: bool) -> bool {
        let Some(instant) = instant::read(text) else {
            return false;
        };
        let mut off = instant.nanos - self.at(new);
        if !instant.zoned {
            off = local(off).0;
        }
        // A call is made shortly after its clock was read.
        (-300 * SECOND..=90 * SECOND + instant.step).contains(&off)
    }

    /// Whether two texts are the same but for points in time that were now in each call.
    pub(super) fn only_clocks(
        &self,
        path: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Cow<'static, str>> {
        if !(a.contains(char::is_whitespace) || a.contains(':')) || a.len() > decode::MOST_BYTES {
            return None;
        }
        if names.is_schedule() && !names.is_prose() && !path.is_in("argv") {
            return None;
        }
        let (mut x, mut y) = (text::chunks(a), text::chunks(b));
        let mut clocks = 0;
        loop {
            match (x.next(), y.next()) {
                (None, None) => break,
                (Some(p), Some(q)) if p == q => {}
                (Some(p), Some(q)) => {
                    let (p, q) = (trimmed(p), trimmed(q));
                    if !(self.is_now(p, false) && self.is_now(q, true)) {
                        return None;
                    }
                    clocks += 1;
                }
                _ => return None,
            }
        }
        (clocks > 0).then(|| "the same text but for the clock at the time of the call".into())
    }
}

/// Without a zone only the offset to the nearest quarter of an hour is known: the rest, and that.
fn local(off: i128) -> (i128, i128) {
    let quarter = 900 * SECOND;
    let zones = (off + quarter / 2).div_euclid(quarter);
    let rest = off - zones * quarter;
    if zones.abs() <= 56 {
        (rest, zones)
    } else {
        (off, 0)
    }
}

fn zones_agree(one: &instant::Instant, two: &instant::Instant, walk: &Walk<'_>) -> bool {
    let zone = |i: &instant::Instant, new| {
        if i.zoned {
            None
        } else {
            Some(local(i.nanos - walk.at(new)).1)
        }
    };
    zone(one, false) == zone(two, true)
}

fn trimmed(chunk: &str) -> &str {
    chunk.trim_matches(|c: char| !c.is_alphanumeric())
}
