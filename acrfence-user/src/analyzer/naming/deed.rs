//! What a call does.

use super::vocabulary::{ACT, CREATE, DO, REMOVE, UPDATE};

/// What a call does, from the words of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::analyzer) enum Deed {
    /// Makes something new.
    Create,
    /// Does something outward (pay, send, run): what it names stands outside of it.
    Do,
    /// Changes parts of something and leaves the rest.
    Update,
    /// Takes something away.
    Remove,
    /// Does something to one thing that exists (refund, approve, restart).
    Act,
    /// Nothing tells.
    Unknown,
}

/// The deed that the first verb among the words stands for.
pub(in crate::analyzer) fn deed(words: &[String]) -> Deed {
    const VERBS: [(&[&str], Deed); 5] = [
        (CREATE, Deed::Create),
        (DO, Deed::Do),
        (UPDATE, Deed::Update),
        (REMOVE, Deed::Remove),
        (ACT, Deed::Act),
    ];
    words
        .iter()
        .find_map(|word| {
            VERBS
                .iter()
                .find(|(list, _)| list.contains(&word.as_str()))
                .map(|(_, deed)| *deed)
        })
        .unwrap_or(Deed::Unknown)
}

/// Whether the last word of a path is a verb (`/orders/7/cancel`).
pub(in crate::analyzer) fn is_verb(word: &str) -> bool {
    ACT.contains(&word) || UPDATE.contains(&word) || REMOVE.contains(&word)
}
