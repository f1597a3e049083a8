//! Differences of values that may have been made up for the call: keys, labels, ids, tokens.

use super::super::evidence::NoteKind;
use super::super::naming::{self, Deed, Names};
use super::super::normal::number::Decimal;
use super::super::shape::{self, Randomness};
use super::super::value::Value;
use super::leaf::Judged;
use super::path::{Entries, Path};
use super::walk::Walk;
use crate::words::FieldClass::{Intent, Unknown, Volatile};

impl Walk<'_> {
    pub(super) fn judge_signature(
        &self,
        path: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        if !names.is_signature() {
            return None;
        }
        // In a body it may be what a person signed with; a clock or nonce beside it tells.
        let framed = path.is_in("headers") || path.is_in("query") || self.in_token;
        let signed = path.around().is_some_and(|(one, _)| {
            one.iter().any(|(name, _)| {
                let beside = Names::of(name);
                beside.has(&["timestamp", "ts", "nonce", "expires", "date"])
            })
        });
        if !framed && !signed {
            return None;
        }
        let looks = |t: &str| {
            t.split([',', ';', '='])
                .any(|part| shape::randomness(part.trim()) == Randomness::Strong)
        };
        Some(if looks(a) && looks(b) && shape::are_unrelated(a, b) {
            (
                Volatile,
                "a signature follows from what is signed, which is compared by itself".into(),
            )
        } else {
            (
                Unknown,
                "named like a signature, but does not look like one".into(),
            )
        })
    }

    pub(super) fn judge_token(
        &self,
        path: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        let cookie = path.is_in("cookie") || path.names().within.iter().any(|w| w == "cookie");
        let session = names.is_session() && cookie;
        if !(names.is_passing_token() || session) || a.starts_with("0x") || b.starts_with("0x") {
            return None;
        }
        let random = shape::randomness(a).min(shape::randomness(b));
        if random == Randomness::None || !shape::are_unrelated(a, b) {
            return None;
        }
        if self.context.words().iter().any(|w| {
            [
                "reset",
                "unsubscribe",
                "verify",
                "activate",
                "join",
                "accept",
                "redeem",
                "invite",
                "unwrap",
                "unseal",
                "exchange",
                "consume",
                "claim",
                "decrypt",
                "download",
            ]
            .contains(&w.as_str())
        }) {
            return Some((
                Unknown,
                "the token may be what names the thing that is done".into(),
            ));
        }
        if self.context.seen_one(b).is_some() {
            return Some((
                Unknown,
                "a token that was there before; nothing tells what it stands for".into(),
            ));
        }
        let alone = path.around().is_some_and(|(one, two)| {
            !one.iter().any(|(name, v)| {
                name != path.last_name()
                    && !v.is_empty()
                    && two.iter().any(|(n, w)| n == name && v == w)
            })
        });
        if alone && !cookie && !path.is_in("headers") {
            return Some((
                Unknown,
                "a token alone: it may be what names the thing that is done".into(),
            ));
        }
        Some((
            Volatile,
            "a token that lets the call through, issued again".into(),
        ))
    }

    /// Claims of a token that are made anew whenever it is issued.
    pub(super) fn judge_claim(
        &self,
        _: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        if !self.in_token {
            return None;
        }
        const ANEW: &[&str] = &[
            "iat",
            "exp",
            "nbf",
            "jti",
            "nonce",
            "rnd",
            "salt",
            "auth time",
            "kid",
            "sid",
            "ts",
            "expires",
            "expires at",
            "expires in",
            "issued at",
            "timestamp",
            "iv",
            "time",
            "at hash",
            "c hash",
            "session state",
            "token id",
        ];
        if ANEW.contains(&names.joined().as_str()) {
            return Some((Volatile, "is made anew whenever a token is issued".into()));
        }
        let short_name = names.own.iter().all(|w| w.len() <= 2) || names.last_is(&["id"]);
        let random = |t: &str| {
            shape::randomness(t) > Randomness::None
                || (t.len() >= 6
                    && t.bytes().all(|c| c.is_ascii_hexdigit())
                    && !t.bytes().all(|c| c.is_ascii_digit()))
        };
        let target = names.is_target() || names.is_scope();
        (short_name && !target && random(a) && random(b) && self.context.seen(a, b).is_none()).then(
            || {
                (
                    Volatile,
                    "random, and made anew whenever a token is issued".into(),
                )
            },
        )
    }

    /// Whether everything around a field only wraps what the call is about (`data`, `input`, the
    /// call's own noun).
    pub(super) fn is_at_top(&self, names: &Names) -> bool {
        const WRAPS: &[&str] = &[
            "data",
            "input",
            "payload",
            "document",
            "documents",
            "docs",
            "doc",
            "rows",
            "row",
            "records",
            "record",
            "resource",
            "object",
            "entity",
            "event",
            "events",
            "statements",
            "lines",
            "line",
            "entries",
            "entry",
            "messages",
            "message",
            "body",
            "envelope",
            "header",
            "grp",
            "hdr",
            "items",
            "insert",
            "values",
            "batch",
            "attributes",
            "i",
            "in",
            "request",
            "operations",
            "transactions",
            "params",
            "sql",
            "query",
            "statement",
            "command",
            "c",
            "e",
            "eval",
            "execute",
            "text",
        ];
        names.within.iter().all(|w| {
            WRAPS.contains(&w.as_str()) || self.context.nouns().contains(&naming::singular(w))
        })
    }

    /// What schema and earlier answers say about the field, where its value agrees with it.
    pub(super) fn judge_noted(
        &self,
        path: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        let notes = self.context.notes(names, path.last_name());
        let find = |kind: &NoteKind| notes.iter().find(|n| n.kind == *kind);
        if let Some(note) = find(&NoteKind::Meaningful) {
            return Some((Intent, format!("means something: \"{}\"", note.said).into()));
        }
        let note = find(&NoteKind::FreshPerCall)?;
        let callers = names.first_is(&[
            "sender",
            "client",
            "caller",
            "external",
            "merchant",
            "request",
            "requester",
            "my",
            "our",
        ]);
        if names.is_hard_target() || names.is_target() && !callers {
            return Some((
                Intent,
                "names what the call is about, whatever is said about it".into(),
            ));
        }
        if let Some(place) = self.context.seen(a, b) {
            return Some((
                Intent,
                format!("a value that the agent knew: {place}").into(),
            ));
        }
        let label = |t: &str| {
            !t.is_empty()
                && t.len() <= 128
                && !t.contains(char::is_whitespace)
                && !t.contains(['@', '/'])
        };
        if !(label(a) && label(b)) {
            return Some((
                Unknown,
                "is said to be made up for each call, but does not look so".into(),
            ));
        }
        if let (Some(x), Some(y)) = (integer(a), integer(b)) {
            // A counter grows, and not by much.
            let grew = y > x && y - x <= 10_000;
            return Some(if grew {
                (
                    Volatile,
                    format!("a counter of calls: \"{}\"", note.said).into(),
                )
            } else {
                (
                    Unknown,
                    "is said to be made up for each call, but did not grow".into(),
                )
            });
        }
        Some((
            Volatile,
            format!("made up for each call: \"{}\"", note.said).into(),
        ))
    }

    /// Values that look random, that nobody saw before, in fields for labels of the caller.
    pub(super) fn judge_made_up(
        &self,
        path: &Path<'_>,
        names: &Names,
        a: &str,
        b: &str,
    ) -> Option<Judged> {
        let random = shape::randomness(a).min(shape::randomness(b));
        if random == Randomness::None || names.own.is_empty() {
            return None;
        }
        let unseen = || shape::are_unrelated(a, b) && self.context.seen(a, b).is_none();
        let strong = random == Randomness::Strong;
        let deed = self.deed();
        if path.is_in("headers") {
            const PER_REQUEST: &[&str] = &[
                "request",
                "delivery",
                "message",
                "invocation",
                "operation",
                "attempt",
                "call",
                "hook",
                "webhook",
                "unique",
                "nonce",
                "correlation",
                "trace",
                "span",
                "sequence",
                "packet",
                "session",
                "retry",
            ];
            let named = names.has(PER_REQUEST)
                && !names.is_scope()
                && !names.has(&["key", "secret", "token", "code", "parent", "reply"]);
            // `svix-id` beside `svix-timestamp` and `svix-signature`: the id of a signed message.
            let family = path.last_name().strip_suffix("-id").is_some_and(|prefix| {
                path.around().is_some_and(|(one, _)| {
                    ["-timestamp", "-signature"]
                        .iter()
                        .all(|end| one.iter().any(|(n, _)| **n == format!("{prefix}{end}")))
                })
            });
            return (strong && (named || family) && unseen()).then(|| {
                (
                    Volatile,
                    "made up for each request: random, in a header, and seen nowhere before".into(),
                )
            });
        }
        let makes = matches!(deed, Deed::Create | Deed::Do);
        // An id inside of an object with another name is that other thing's.
        let at_top = self.is_at_top(names);
        let mail_id =
            |t: &str| t.trim().starts_with('<') && t.trim().ends_with('>') && t.contains('@');
        if names.own == ["message", "id"]
            && mail_id(a)
            && mail_id(b)
            && self.context.seen_one(a).is_none()
            && self.context.seen_one(b).is_none()
        {
            return Some((
                Volatile,
                "the id of a mail message, made up when it is written".into(),
            ));
        }
        let noun = names.noun_of_id();
        let own = noun
            .as_ref()
            .is_some_and(|noun| self.context.nouns().contains(noun));
        let line = noun.as_ref().is_some_and(|noun| {
            let parents: Vec<String> = names.within.iter().map(|w| naming::singular(w)).collect();
            parents.contains(noun)
                && [
                    "line",
                    "row",
                    "entry",
                    "record",
                    "doc",
                    "document",
                    "operation",
                    "op",
                    "transaction",
                    "txn",
                    "message",
                    "msg",
                    "event",
                ]
                .contains(&noun.as_str())
        });
        let in_event = names
            .within
            .iter()
            .any(|w| ["vevent", "vtodo", "vcard", "vcalendar"].contains(&w.as_str()));
        if strong && in_event && names.own == ["uid"] && unseen() {
            return Some((
                Volatile,
                "the id of a new entry, made up by who writes it".into(),
            ));
        }
        if strong
            && deed == Deed::Create
            && (names.is_bare_id() && at_top || own || line)
            && !in_reference(names)
            && unseen()
        {
            return Some((
                Volatile,
                "the id of what the call itself makes: random, and seen nowhere before".into(),
            ));
        }
        if makes && at_top && self.is_own_reference(names) && unseen() {
            return Some((
                Volatile,
                "the caller's own reference for what the call itself makes: random, and seen nowhere before"
                    .into(),
            ));
        }
        if strong && makes && at_top && self.is_of_carried_batch(path, names) && unseen() {
            return Some((
                Volatile,
                "the id of the batch that the call itself carries: random, and seen nowhere before"
                    .into(),
            ));
        }
        if strong && at_top && ["trace", "idem"].contains(&names.joined().as_str()) && unseen() {
            return Some((
                Volatile,
                "ties requests and logs together: random, and seen nowhere before".into(),
            ));
        }
        if names.is_caller_label()
            && makes
            && at_top
            && !a.contains('/')
            && !b.contains('/')
            && unseen()
        {
            return Some((
                Volatile,
                "the caller's own label: random, and seen nowhere before".into(),
            ));
        }
        if strong
            && names.has(&["identifier"])
            && deed == Deed::Create
            && unseen()
            && a.starts_with("urn:uuid:")
            && b.starts_with("urn:uuid:")
        {
            return Some((
                Volatile,
                "an identifier that the caller made up: random, and seen nowhere before".into(),
            ));
        }
        // Envelopes: the id of the message that carries the call.
        let envelope = names.last_is(&["id", "uuid", "ref", "reference"])
            && names.has(&["message", "msg", "envelope", "header", "packet"])
            && !names.has(&[
                "parent", "reply", "thread", "original", "in", "to", "related",
            ]);
        if envelope && makes && unseen() {
            return Some((
                Volatile,
                "the id of the message that carries the call, made up for it".into(),
            ));
        }
        None
    }
}

impl Walk<'_> {
    /// `payment_reference` in `create_payment`, `tx_ref` in `send_transfer`: a reference (not an id)
    /// for the very thing that the call makes. Where the call answers to something that was there
    /// before (a refund), the reference may be to that.
    fn is_own_reference(&self, names: &Names) -> bool {
        let [.., noun, last] = &names.own[..] else {
            return false;
        };
        if !["ref", "reference"].contains(&last.as_str()) {
            return false;
        }
        const ANSWERS: &[&str] = &[
            "refund",
            "reversal",
            "return",
            "capture",
            "dispute",
            "chargeback",
            "correction",
            "credit",
            "cancellation",
            "receipt",
            "allocation",
            "confirmation",
            "claim",
            "status",
            "notification",
        ];
        const MONEY_MOVES: &[&str] = &[
            "payment",
            "transfer",
            "transaction",
            "deposit",
            "withdrawal",
            "payout",
            "remittance",
        ];
        let nouns = self.context.nouns();
        let has = |list: &[&str]| nouns.iter().any(|n| list.contains(&n.as_str()));
        let noun = naming::singular(noun);
        let generic = ["tx", "txn", "trans", "transaction"].contains(&noun.as_str());
        !has(ANSWERS) && (nouns.contains(&noun) || generic && has(MONEY_MOVES))
    }

    /// The id of a batch, beside the list of what is in it.
    fn is_of_carried_batch(&self, path: &Path<'_>, names: &Names) -> bool {
        let batch = names
            .noun_of_id()
            .is_some_and(|noun| ["batch", "bulk", "submission"].contains(&noun.as_str()));
        let carried = |entries: &Entries<'_>| {
            entries.iter().any(|(_, v)| {
                matches!(v, Value::List(items) if items.iter().any(|i| matches!(i, Value::Map(_))))
            })
        };
        batch
            && path
                .around()
                .is_some_and(|(one, two)| carried(one) && carried(two))
    }
}

/// A field that refers to something else by its id.
fn in_reference(names: &Names) -> bool {
    names.anywhere(&[
        "parent",
        "reference",
        "references",
        "ref",
        "refs",
        "related",
        "source",
        "target",
        "reply",
        "thread",
        "customer",
        "product",
    ]) && !names.is_uniqueness_key()
}

fn integer(text: &str) -> Option<i128> {
    Decimal::read(text).and_then(|d| d.integer())
}
