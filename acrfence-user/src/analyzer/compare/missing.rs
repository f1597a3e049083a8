//! A named value that only one of the calls has.

use std::borrow::Cow;

use super::super::evidence::NoteKind;
use super::super::naming::{Deed, Names};
use super::super::normal::number::Decimal;
use super::super::value::Value;
use super::path::Path;
use super::walk::Walk;
use crate::words::FieldClass::{self, Intent, Unknown, Volatile};

impl Walk<'_> {
    /// A named value that only one of the calls has.
    pub(super) fn missing(
        &mut self,
        path: &Path<'_>,
        one: Option<&Value<'_>>,
        two: Option<&Value<'_>>,
        twice: bool,
    ) {
        let Some(value) = one.or(two) else {
            return;
        };
        let (class, reason) = self.judge_missing(path, value, one.is_none(), twice);
        self.one_sided(path, class, reason, one, two);
    }

    fn judge_missing(
        &self,
        path: &Path<'_>,
        value: &Value<'_>,
        added: bool,
        twice: bool,
    ) -> (FieldClass, Cow<'static, str>) {
        let names = path.names();
        if twice {
            return (
                Intent,
                "the name stands there twice; servers differ in which one counts".into(),
            );
        }
        if names.is_uniqueness_key() || names.is_signature() || names.has(&["csrf", "xsrf"]) {
            return (
                Volatile,
                "only tells requests apart; one of the calls has none".into(),
            );
        }
        if path.is_in("headers") && super::headers::is_transport(path.last_name()) {
            return (
                Volatile,
                "says how the request travels, not what it asks for".into(),
            );
        }
        if names.is_attempt_counter() {
            return (Volatile, "counts tries".into());
        }
        if value
            .as_text()
            .is_some_and(|_| names.is_clock() && !names.is_schedule())
            && value.scalar().is_some_and(|t| self.is_now(&t, added))
        {
            return (Volatile, "the clock at the time of the call".into());
        }
        if path.is_in("argv") && names.is_output_only() {
            return (Volatile, "only changes what is printed".into());
        }
        let written = path.last_name();
        let notes = self.context.notes(&names, written);
        for note in &notes {
            if let NoteKind::Default(default) = &note.kind {
                return if value.scalar().is_some_and(|v| same_default(&v, default)) {
                    (
                        Volatile,
                        format!("is what a missing value means: \"{}\"", note.said).into(),
                    )
                } else {
                    (
                        Intent,
                        format!("is not what a missing value means: \"{}\"", note.said).into(),
                    )
                };
            }
        }
        if added && self.is_echoed(&names, value) {
            return (
                Volatile,
                "is what the server had filled in by itself, as its answer shows".into(),
            );
        }
        if value.is_empty() {
            let filled = self.context.echoed(&names).iter().any(|e| !e.is_empty());
            if added && filled && self.deed() != Deed::Update {
                return (
                    Unknown,
                    "says nothing where the server had filled in something by itself".into(),
                );
            }
            return self.judge_missing_empty(&names, value);
        }
        if names.is_mode_flag() && matches!(value, Value::Bool(false)) {
            return (Volatile, "off is what a missing flag means".into());
        }
        let zero = match value {
            Value::Bool(false) => true,
            Value::Number(n) => Decimal::read(n).is_some_and(|d| d.is_zero()),
            Value::Text(t) => t.ends_with("_UNSPECIFIED"),
            _ => false,
        };
        if zero && self.deed() != Deed::Update && self.context.takes_either_case() {
            return (
                Volatile,
                "is what a missing field means in this interface".into(),
            );
        }
        if matches!(value, Value::Bool(false)) && self.deed() != Deed::Update {
            return (
                Unknown,
                "a flag that is off and a missing flag may mean the same".into(),
            );
        }
        (
            Intent,
            if added {
                "is new in this call".into()
            } else {
                "is missing in this call".into()
            },
        )
    }

    fn judge_missing_empty(
        &self,
        names: &Names,
        value: &Value<'_>,
    ) -> (FieldClass, Cow<'static, str>) {
        let selects = names.has(&[
            "filter",
            "filters",
            "where",
            "query",
            "match",
            "selector",
            "criteria",
            "ids",
            "only",
            "condition",
        ]);
        match self.deed() {
            Deed::Update if *value == Value::Null => (
                Intent,
                "null may clear what is there; a missing field leaves it".into(),
            ),
            Deed::Update => (Unknown, "an empty value may clear what is there".into()),
            _ if selects => (Unknown, "an empty selection may mean all or nothing".into()),
            Deed::Remove if *value != Value::Null => {
                (Unknown, "an empty value may mean all or nothing".into())
            }
            _ => (Volatile, "says nothing, like a missing field".into()),
        }
    }

    fn is_echoed(&self, names: &Names, value: &Value<'_>) -> bool {
        let echoes = self.context.echoed(names);
        !echoes.is_empty()
            && !value.is_empty()
            && echoes.iter().all(|echo| {
                echo == value
                    || echo
                        .scalar()
                        .zip(value.scalar())
                        .is_some_and(|(a, b)| same_default(&a, &b))
            })
    }
}

/// Whether two scalars mean the same as a default: by text, or as numbers.
fn same_default(one: &str, two: &str) -> bool {
    one.eq_ignore_ascii_case(two)
        || Decimal::read(one)
            .zip(Decimal::read(two))
            .is_some_and(|(a, b)| a == b)
}
