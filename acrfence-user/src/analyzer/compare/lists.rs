//! Lists: first by position, then as the same elements in another order.

use std::borrow::Cow;

use super::super::evidence::NoteKind;
use super::super::naming::Names;
use super::super::normal::instant;
use super::super::value::Value;
use super::Found;
use super::path::Path;
use super::walk::Walk;
use crate::words::FieldClass::{self, Intent, Unknown, Volatile};

/// Longest list whose elements are matched with each other one by one.
const MOST_MATCHED: usize = 64;

impl Walk<'_> {
    pub(super) fn lists(&mut self, path: &Path<'_>, one: &[Value<'_>], two: &[Value<'_>]) {
        if one == two {
            return;
        }
        let mut by_position = None;
        if one.len() == two.len() {
            let found = self.aside(|w| {
                for (i, (a, b)) in one.iter().zip(two).enumerate() {
                    w.value(&path.index(i), a, b);
                }
            });
            if found.iter().all(|f| f.class == Volatile) {
                self.extend(found);
                return;
            }
            by_position = Some(found);
        }
        if one.len() == two.len()
            && one.len() > 1
            && let Some(order) = self.matched(path, one, two)
        {
            let (class, reason) = self.judge_order(path, one, two);
            let shown = |items: &[Value<'_>]| Value::List(items.to_vec()).into_owned();
            self.found(path, class, reason, &shown(one), &shown(two));
            self.extend(order);
            return;
        }
        match by_position {
            Some(found) => self.extend(found),
            None => self.other_elements(path, one, two),
        }
    }

    /// Matches every element with another one that differs only in what means nothing; gives those
    /// differences, or none where an element has no match.
    fn matched(
        &mut self,
        path: &Path<'_>,
        one: &[Value<'_>],
        two: &[Value<'_>],
    ) -> Option<Vec<Found>> {
        let mut free: Vec<usize> = (0..two.len()).collect();
        let mut left = Vec::new();
        // Equal elements first: cheap, and right when some are nearly alike.
        if one.len() <= MOST_MATCHED {
            for (i, a) in one.iter().enumerate() {
                match free.iter().position(|j| two[*j] == *a) {
                    Some(at) => {
                        free.remove(at);
                    }
                    None => left.push(i),
                }
            }
        } else {
            let key = |v: &Value<'_>| format!("{v:?}");
            let mut a: Vec<String> = one.iter().map(key).collect();
            let mut b: Vec<String> = two.iter().map(key).collect();
            a.sort_unstable();
            b.sort_unstable();
            return (a == b).then(Vec::new);
        }
        let mut out = Vec::new();
        for i in left {
            let mut best: Option<(usize, Vec<Found>)> = None;
            for (at, j) in free.iter().enumerate() {
                let found = self.aside(|w| w.value(&path.index(i), &one[i], &two[*j]));
                if found.iter().all(|f| f.class == Volatile)
                    && best.as_ref().is_none_or(|(_, b)| found.len() < b.len())
                {
                    best = Some((at, found));
                }
            }
            let (at, found) = best?;
            free.remove(at);
            out.extend(found);
        }
        Some(out)
    }

    /// Whether another order of the same elements means something.
    fn judge_order(
        &self,
        path: &Path<'_>,
        one: &[Value<'_>],
        two: &[Value<'_>],
    ) -> (FieldClass, Cow<'static, str>) {
        let names = path.names();
        for note in self.context.notes(&names, path.last_name()) {
            match note.kind {
                NoteKind::Ordered => {
                    return (
                        Intent,
                        format!("the order counts: \"{}\"", note.said).into(),
                    );
                }
                NoteKind::Unordered => {
                    return (
                        Volatile,
                        format!("the order means nothing: \"{}\"", note.said).into(),
                    );
                }
                _ => {}
            }
        }
        if names.is_sequence() || path.is_element_of("argv") {
            return (
                Intent,
                "the same elements in another order, and they are worked through in order".into(),
            );
        }
        if path.beside(&["ordered"]).is_some_and(|v| v == "false")
            || path.beside(&["unordered"]).is_some_and(|v| v == "true")
        {
            return (
                Volatile,
                "the call itself says that the order means nothing".into(),
            );
        }
        let distinct = one.iter().enumerate().all(|(i, a)| !one[..i].contains(a));
        if distinct && one.len() <= MOST_MATCHED {
            if self.reordered_by_server(&names, one) {
                return (
                    Volatile,
                    "the server keeps these in an order of its own, as its answer shows".into(),
                );
            }
            if one.iter().chain(two).all(|v| assignment(v).is_some()) {
                let mut keys: Vec<&str> = one.iter().filter_map(assignment).collect();
                keys.sort_unstable();
                if keys.windows(2).all(|w| w[0] != w[1]) {
                    return (Volatile, "distinct settings in another order".into());
                }
            }
            if names.is_set() {
                return (Volatile, "a set: the same elements in another order".into());
            }
            if one.iter().all(|v| v.as_text().is_some_and(is_mail_address)) {
                return (Volatile, "the same addresses in another order".into());
            }
            if let Some(key) = own_place(one) {
                return (
                    Volatile,
                    format!(
                        "each entry says its own {key}; where it stands in the list means nothing"
                    )
                    .into(),
                );
            }
            if names.is_collection()
                && let Some(key) = identity(one)
            {
                return (
                    Volatile,
                    format!("separate entries, told apart by {key}, in another order").into(),
                );
            }
        }
        (
            Unknown,
            "the same elements in another order; nothing says whether the order counts".into(),
        )
    }

    /// The answer lists the same elements under the same name, but not as they were sent.
    fn reordered_by_server(&self, names: &Names, sent: &[Value<'_>]) -> bool {
        let echoes = self.context.echoed(names);
        let lists: Vec<&Vec<Value<'static>>> = echoes
            .iter()
            .filter_map(|v| match v {
                Value::List(items) if items.len() == sent.len() => Some(items),
                _ => None,
            })
            .collect();
        !lists.is_empty()
            && lists.iter().all(|items| {
                let same_order = items.iter().zip(sent).all(|(a, b)| a == b);
                let same_members = sent.iter().all(|b| items.iter().any(|a| a == b));
                same_members && !same_order
            })
    }

    /// Lists of different lengths.
    fn other_elements(&mut self, path: &Path<'_>, one: &[Value<'_>], two: &[Value<'_>]) {
        let only = |these: &[Value<'_>], others: &[Value<'_>]| -> Vec<Value<'static>> {
            these
                .iter()
                .filter(|v| !others.contains(v))
                .take(8)
                .map(|v| v.clone().into_owned())
                .collect()
        };
        let bounded = one.len().max(two.len()) <= 4 * MOST_MATCHED;
        let (gone, new) = if bounded {
            (only(one, two), only(two, one))
        } else {
            (Vec::new(), Vec::new())
        };
        let reason = format!("{} elements before, {} now", one.len(), two.len());
        self.found(path, Intent, reason, &Value::List(gone), &Value::List(new));
    }
}

/// The name in `NAME=value`.
fn assignment<'v>(value: &'v Value<'_>) -> Option<&'v str> {
    let (name, _) = value.as_text()?.split_once('=')?;
    let fits = !name.is_empty()
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"_.-[]/".contains(&b));
    fits.then_some(name)
}

fn is_mail_address(text: &str) -> bool {
    text.split_once('@').is_some_and(|(user, host)| {
        !user.is_empty() && host.contains('.') && !host.contains('@') && !text.contains(' ')
    })
}

/// A field in which every element says, differently, when it is due or where it stands.
fn own_place(items: &[Value<'_>]) -> Option<String> {
    const PLACES: &[&str] = &["position", "seq", "sequence", "rank", "index", "order"];
    let Value::Map(first) = items.first()? else {
        return None;
    };
    first.iter().map(|(name, _)| name).find_map(|name| {
        let words = Names::of(name);
        let mut places: Vec<i128> = Vec::new();
        for item in items {
            let value = item.get(name)?.scalar()?;
            let place = if words.own.len() == 1 && words.has(PLACES) {
                value.parse().ok()?
            } else if words.has(&["at", "time", "start", "starts", "when", "date"]) {
                instant::read(&value)?.nanos
            } else {
                return None;
            };
            if places.contains(&place) {
                return None;
            }
            places.push(place);
        }
        Some(name.to_string())
    })
}

/// A field that every element has, scalar, with another value in each.
fn identity(items: &[Value<'_>]) -> Option<String> {
    let Value::Map(first) = items.first()? else {
        return None;
    };
    first
        .iter()
        .filter(|(_, v)| v.scalar().is_some() && !matches!(v, Value::Bool(_) | Value::Null))
        .map(|(name, _)| name)
        .find(|name| {
            let mut values: Vec<Cow<'_, str>> = Vec::new();
            for item in items {
                let Some(value) = item.get(name).and_then(Value::scalar) else {
                    return false;
                };
                if values.contains(&value) {
                    return false;
                }
                values.push(value);
            }
            true
        })
        .map(ToString::to_string)
}
