//! The comparison of two calls, field by field. Pure: no clock, no I/O.
//!
//! Nothing is taken for the same without a reason that can be said. What differs without a reason
//! to think it meaningless is *intent* when it names something (ids, numbers, names, words of an
//! interface) and *unknown* when nothing tells.

mod anew;
mod call;
mod clock;
mod context;
mod headers;
mod keys;
mod leaf;
mod lists;
mod made_up;
mod missing;
mod opened;
mod path;
mod same;
mod walk;

pub(super) use context::trees;
pub use opened::Opened;

use std::borrow::Cow;

use super::evidence::Evidence;
use super::{Examination, Residue};
use crate::words::{Comparison, Field, FieldClass, Likeness, Response};

/// Most differences that are reported.
const MOST_FIELDS: usize = 200;

/// One difference as it was found.
#[derive(Clone, Debug)]
struct Found {
    path: String,
    class: FieldClass,
    reason: Cow<'static, str>,
    recorded: Option<String>,
    restored: Option<String>,
    /// Whole texts that a reader of prose may settle.
    texts: Option<(String, String)>,
    /// Both values, where they look like ids made up for this call.
    ids: Option<(String, String)>,
    /// Whether both are references or keys that the caller made up to name what it orders.
    made_anew: bool,
}

/// Compares two calls.
pub(super) fn examine(
    recorded: &Opened<'_>,
    answer: Option<&Response>,
    restored: &Opened<'_>,
    evidence: &Evidence<'_>,
) -> Examination {
    if recorded.request == restored.request {
        return Examination {
            comparison: Comparison {
                likeness: Likeness::Equivalent,
                fields: Vec::new(),
            },
            residue: Vec::new(),
            made_anew: false,
        };
    }
    let context = context::Context::new(recorded.request, answer, evidence);
    let mut walk = walk::Walk::new(&context);
    walk.calls(recorded, restored);
    let mut found = walk.finish();
    follow_renamed_ids(&mut found);
    let made_anew = found.iter().any(|f| f.made_anew)
        && !anew::only_asks(recorded, &context)
        && !anew::only_asks(restored, &context);
    Examination {
        made_anew,
        ..conclude(found)
    }
}

/// A value that was made up in one place may be referred to in another: where an id was found
/// volatile, the same pair of values elsewhere is volatile too.
fn follow_renamed_ids(found: &mut [Found]) {
    let renamed: Vec<(String, String)> = found
        .iter()
        .filter(|f| f.class == FieldClass::Volatile)
        .filter_map(|f| f.ids.clone())
        .collect();
    for field in found.iter_mut().filter(|f| f.class != FieldClass::Volatile) {
        if field.ids.as_ref().is_some_and(|ids| renamed.contains(ids)) {
            field.class = FieldClass::Volatile;
            field.reason = "refers to an id that was made up elsewhere in the same call".into();
        }
    }
}

fn conclude(mut found: Vec<Found>) -> Examination {
    let any = |class| found.iter().any(|f: &Found| f.class == class);
    let likeness = if any(FieldClass::Intent) {
        Likeness::Different
    } else if any(FieldClass::Prose) || any(FieldClass::Unknown) {
        Likeness::Unsure
    } else {
        Likeness::Equivalent
    };
    // What decides comes first, so that it is never cut off.
    found.sort_by_key(|f| match f.class {
        FieldClass::Intent => 0,
        FieldClass::Unknown => 1,
        FieldClass::Prose => 2,
        FieldClass::Volatile => 3,
    });
    found.truncate(MOST_FIELDS);
    let mut fields = Vec::with_capacity(found.len());
    let mut residue = Vec::new();
    for f in found {
        if f.class == FieldClass::Prose
            && let Some((recorded, restored)) = f.texts
        {
            residue.push(Residue {
                field: fields.len(),
                recorded,
                restored,
            });
        }
        fields.push(Field {
            path: f.path,
            class: f.class,
            reason: f.reason.into_owned(),
            recorded: f.recorded,
            restored: f.restored,
        });
    }
    Examination {
        comparison: Comparison { likeness, fields },
        residue,
        made_anew: false,
    }
}
