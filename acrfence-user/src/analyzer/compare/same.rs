//! Scalars that mean the same although they are written differently.

use std::borrow::Cow;

use super::super::naming::Names;
use super::super::normal::number::{Decimal, is_canonical_integer};
use super::super::normal::{instant, spelling, unit};
use super::super::value::Value;
use super::path::Path;
use super::walk::Walk;

impl Walk<'_> {
    /// Why two different scalars mean the same, or none.
    pub(super) fn same_meaning(
        &self,
        path: &Path<'_>,
        names: &Names,
        one: &Value<'_>,
        two: &Value<'_>,
    ) -> Option<Cow<'static, str>> {
        if names.is_secret() {
            return None;
        }
        if let Some(reason) = self.same_number(names, one, two) {
            return Some(reason);
        }
        let (a, b) = (one.scalar()?, two.scalar()?);
        let truth = |v: &Value<'_>| match v {
            Value::Bool(b) => Some(*b),
            Value::Text(t) if t.eq_ignore_ascii_case("true") => Some(true),
            Value::Text(t) if t.eq_ignore_ascii_case("false") => Some(false),
            _ => None,
        };
        if let (Some(a), Some(b)) = (truth(one), truth(two))
            && a == b
        {
            return Some("the same truth value".into());
        }
        if let (Some(x), Some(y)) = (instant::read(&a), instant::read(&b))
            && x.zoned == y.zoned
            && x.nanos == y.nanos
            && !names.has(&["thread", "parent"])
        {
            return Some("the same point in time".into());
        }
        let dated = names.has(&[
            "date", "day", "on", "from", "to", "start", "end", "due", "birth", "dob", "valid",
            "until",
        ]);
        if dated
            && let (Some(x), Some(y)) = (instant::date(&a), instant::date(&b))
            && x == y
        {
            return Some("the same date".into());
        }
        let words: Vec<String> = names.own.iter().chain(&names.within).cloned().collect();
        if let (Some(x), Some(y)) = (unit::read(&a, &words), unit::read(&b, &words))
            && x == y
        {
            return Some("the same quantity".into());
        }
        let (Value::Text(_), Value::Text(_)) = (one, two) else {
            return None;
        };
        if let Some(reason) = spelling::same(&a, &b, names, path.is_in("argv")) {
            return Some(reason.into());
        }
        // The server itself wrote the one as the other.
        let echoed = self.context.echoed(names);
        if a.eq_ignore_ascii_case(&b)
            && !echoed.is_empty()
            && echoed.iter().all(|e| e.as_text() == Some(&*b))
        {
            return Some("the server keeps it in this spelling, as its answer shows".into());
        }
        if let Some((short, long)) = hex_prefix(&a, &b)
            && self.context.has_long_id(long)
        {
            return Some(
                format!("`{short}` is the beginning of the same id, which was seen in full").into(),
            );
        }
        None
    }

    fn same_number(
        &self,
        names: &Names,
        one: &Value<'_>,
        two: &Value<'_>,
    ) -> Option<Cow<'static, str>> {
        let number = |v: &Value<'_>| match v {
            Value::Number(t) | Value::Text(t) => Decimal::read(t),
            _ => None,
        };
        let (a, b) = (number(one)?, number(two)?);
        if a != b {
            return None;
        }
        if matches!((one, two), (Value::Number(_), Value::Number(_))) {
            return Some("the same number".into());
        }
        let (text_a, text_b) = (one.scalar()?, two.scalar()?);
        let leading_zero = |t: &str| t.len() > 1 && t.starts_with('0') && !t.starts_with("0.");
        if leading_zero(&text_a)
            || leading_zero(&text_b)
            || text_a.starts_with('+')
            || text_b.starts_with('+')
        {
            return None;
        }
        if text_a == text_b && is_canonical_integer(&text_a) {
            return Some("the same number, as text and as a number".into());
        }
        // The server itself gives it back as a number.
        let echoed = self.context.echoed(names);
        if !echoed.is_empty()
            && echoed
                .iter()
                .all(|e| matches!(e, Value::Number(n) if Decimal::read(n).as_ref() == Some(&a)))
        {
            return Some("the same number, as the server's answer shows".into());
        }
        if names.is_numeric() && !names.has(&["version", "versions"]) {
            return Some("the same number in a field for numbers".into());
        }
        let mixed = matches!(one, Value::Number(_)) || matches!(two, Value::Number(_));
        (mixed && !names.is_code()).then(|| "the same number, as text and as a number".into())
    }
}

/// The shorter and the longer of two hexadecimal ids, where one begins with the other.
fn hex_prefix<'t>(one: &'t str, two: &'t str) -> Option<(&'t str, &'t str)> {
    let (short, long) = if one.len() < two.len() {
        (one, two)
    } else {
        (two, one)
    };
    let hex = |t: &str| t.bytes().all(|b| b.is_ascii_hexdigit());
    (short.len() >= 7
        && long.len() >= 32
        && hex(short)
        && hex(long)
        && long
            .get(..short.len())
            .is_some_and(|l| l.eq_ignore_ascii_case(short)))
    .then_some((short, long))
}
