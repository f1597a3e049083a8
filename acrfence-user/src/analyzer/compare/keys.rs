//! Keys that tell requests apart, and keys that say more than that.

use std::borrow::Cow;

use super::super::naming::{Deed, Names};
use super::super::normal::number::Decimal;
use super::leaf::Judged;
use super::path::Path;
use super::walk::Walk;
use crate::words::FieldClass::{Intent, Unknown, Volatile};

impl Walk<'_> {
    pub(super) fn judge_uniqueness(
        &self,
        path: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        if !names.is_uniqueness_key() {
            return None;
        }
        // `approve_request(request_id)`: the id of the request is what is approved.
        let decisive = names.has(&[
            "client",
            "caller",
            "idempotency",
            "dedup",
            "dedupe",
            "deduplication",
            "nonce",
            "mutation",
            "submission",
        ]);
        let acts = !matches!(self.context.deed(), Deed::Create | Deed::Do);
        if let Some(noun) = names.noun_of_id()
            && self.context.nouns().contains(&noun)
            && !decisive
            && acts
        {
            return Some((Intent, "names the request that the call is about".into()));
        }
        // `resume(correlation_id)`: where nothing else says what is acted on, this does.
        let alone = path.around().is_some_and(|(one, two)| {
            !one.iter().any(|(name, v)| {
                name != path.last_name()
                    && !v.is_empty()
                    && two.iter().any(|(n, w)| n == name && v == w)
            })
        });
        if !decisive
            && matches!(self.context.deed(), Deed::Act | Deed::Update | Deed::Remove)
            && alone
            && path.is_in("arguments")
        {
            return Some((
                Unknown,
                "the only field of a call that acts on something: it may say on what".into(),
            ));
        }
        if let Some(place) = self.context.seen(a, b) {
            return Some((
                Intent,
                format!("a key, but with a value that the agent knew: {place}").into(),
            ));
        }
        let number = |t: &str| Decimal::read(t).is_some() && t.len() < 8;
        if number(a)
            && number(b)
            && !names.has(&["idempotency", "nonce", "dedup", "dedupe", "deduplication"])
        {
            return Some((
                Unknown,
                "named like a key for one request, but holds a plain number".into(),
            ));
        }
        if a.contains(char::is_whitespace)
            || b.contains(char::is_whitespace)
            || a.len().max(b.len()) > 256
        {
            return Some((
                Unknown,
                "named like a key for one request, but holds text".into(),
            ));
        }
        if let Some(reason) = meaningful_key(a, b) {
            return Some((Unknown, reason));
        }
        Some((
            Volatile,
            "a key that only tells requests apart, made up for each".into(),
        ))
    }
}

/// Why two keys for one request may mean something all the same.
fn meaningful_key(one: &str, two: &str) -> Option<Cow<'static, str>> {
    let parts = |t: &str| -> Vec<String> {
        t.split(|c: char| !c.is_alphanumeric())
            .filter(|p| !p.is_empty())
            .map(str::to_lowercase)
            .collect()
    };
    let (a, b) = (parts(one), parts(two));
    let only = |these: &[String], others: &[String]| -> Vec<String> {
        these
            .iter()
            .filter(|p| !others.contains(p))
            .cloned()
            .collect()
    };
    let (x, y) = (only(&a, &b), only(&b, &a));
    let words = |list: &[String]| list.iter().any(|p| is_word(p));
    if words(&x) && words(&y) {
        return Some("keys for one request, but with different words in them".into());
    }
    // `order-7719` and `order-7720`: the key carries the number of what is done.
    const NUMBERED: &[&str] = &[
        "order",
        "orders",
        "invoice",
        "bill",
        "ticket",
        "case",
        "claim",
        "booking",
        "reservation",
        "customer",
        "account",
        "subscription",
        "payroll",
        "salary",
        "rent",
        "policy",
        "contract",
        "shipment",
        "issue",
        "patient",
        "employee",
        "user",
        "so",
        "inv",
        "po",
    ];
    let numbers = |list: &[String]| {
        !list.is_empty() && list.iter().all(|p| p.bytes().all(|c| c.is_ascii_digit()))
    };
    if numbers(&x) && numbers(&y) && a.iter().any(|p| NUMBERED.contains(&p.as_str())) {
        return Some(
            "keys for one request, but they carry different numbers of the same kind of thing"
                .into(),
        );
    }
    // `payroll-2032-03` and `payroll-2032-04`; `salary-w36`, `fees-q1`.
    let dated = |t: &str, parts: &[String]| {
        let letters = t.chars().filter(|c| c.is_alphabetic()).count();
        let year = parts
            .iter()
            .any(|p| p.len() == 4 && (p.starts_with("19") || p.starts_with("20")));
        letters >= 4 && year
    };
    let period = |p: &String| {
        let month = p.len() <= 2 && p.parse::<u8>().is_ok_and(|n| (1..=31).contains(&n));
        let labelled = p.len() <= 3
            && p.starts_with(['q', 'w', 'm', 'd', 'h'])
            && p[1..].parse::<u8>().is_ok();
        month || labelled || (p.len() == 4 && p.starts_with("20") && p.parse::<u16>().is_ok())
    };
    if a.len() == b.len()
        && !x.is_empty()
        && x.iter().all(period)
        && y.iter().all(period)
        && (dated(one, &a)
            || x.iter()
                .chain(&y)
                .any(|p| p.len() > 1 && p.starts_with(['q', 'w'])))
    {
        return Some("keys for one request, but they name different periods".into());
    }
    None
}

/// Whether a part of a key reads like a word of a language.
fn is_word(part: &str) -> bool {
    const AGAIN: &[&str] = &[
        "retry", "again", "attempt", "copy", "second", "repeat", "redo", "resend", "rerun",
        "restored", "resumed", "new", "fresh", "item",
    ];
    let vowels = part.chars().filter(|c| "aeiouy".contains(*c)).count();
    let length = part.chars().count();
    let mut run = 0;
    let mut longest = 0;
    for c in part.chars() {
        run = if "aeiouy".contains(c) { 0 } else { run + 1 };
        longest = longest.max(run);
    }
    length >= 4
        && part.chars().all(char::is_alphabetic)
        && vowels * 5 >= length
        && vowels * 10 <= length * 7
        && longest <= 4
        && !AGAIN.contains(&part)
}
