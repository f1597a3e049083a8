//! Which answers of a thread a history shows, where ids do not tell.

/// How many leading items of `known` a history shows, in order and without a gap, and at which of
/// its items.
///
/// `same` compares an item of `known` with one of the history; `may_skip` says which of the
/// history's items a client may have put in between.
pub(super) fn leading(
    known: usize,
    history: usize,
    same: impl Fn(usize, usize) -> bool,
    may_skip: impl Fn(usize) -> bool,
) -> Vec<usize> {
    let mut at = 0;
    let mut found = Vec::new();
    'known: for item in 0..known {
        let mut ahead = at;
        while ahead < history {
            if same(item, ahead) {
                found.push(ahead);
                at = ahead + 1;
                continue 'known;
            }
            if !may_skip(ahead) {
                break;
            }
            ahead += 1;
        }
        break;
    }
    found
}

/// How many trailing items of `known` a history shows without a gap, and at which of its items, last
/// first. The history must end with the last of `known`.
pub(super) fn trailing(
    known: usize,
    history: usize,
    same: impl Fn(usize, usize) -> bool,
) -> Vec<usize> {
    (0..known.min(history))
        .map(|back| (known - 1 - back, history - 1 - back))
        .take_while(|(item, at)| same(*item, *at))
        .map(|(_, at)| at)
        .collect()
}
