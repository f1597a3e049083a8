//! What the words of a name say: of a field, a flag, a tool.
//!
//! The lists are the vocabulary of interfaces in general. They decide little alone: see
//! `compare::leaf` for what else must be true.

#[rustfmt::skip]
mod vocabulary;

use vocabulary::{
    ACT, CALLER_WORDS, CLOCK, COLLECTIONS, CREATE, DO, JOINABLE, LABEL_ENDS, PROSE, REMOVE,
    SCHEDULE, SEQUENCES, SETS, TARGETS, UNIQUE, UPDATE,
};

/// The words of a name, lower case, with the words of what it stands in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Words of the name itself.
    pub own: Vec<String>,
    /// Words of the names it stands in, innermost first.
    pub within: Vec<String>,
}

impl Names {
    /// The words of one name.
    pub fn of(name: &str) -> Self {
        Self {
            own: words(name),
            within: Vec::new(),
        }
    }

    /// The words of a path of names, outermost first. A last name that only says "the value of
    /// it" (`$oid`, `#text`, `value`) takes its words from the name before.
    pub fn of_path<'n>(path: impl DoubleEndedIterator<Item = &'n str>) -> Self {
        let mut out = Self::default();
        for name in path.rev() {
            let these = words(name);
            let wrapper = name.starts_with(['$', '#', '@']) || is(&these, WRAPPERS);
            if out.own.is_empty() {
                if name.starts_with('#') {
                    continue;
                }
                out.own = these;
                if wrapper {
                    // Its own words stay, in front of nothing: the next name completes them.
                    out.within.clear();
                    out.own.insert(0, String::new());
                }
            } else if out.own.first().is_some_and(String::is_empty) {
                out.own.remove(0);
                let mut joined = these;
                joined.append(&mut out.own);
                out.own = joined;
                if wrapper {
                    out.own.insert(0, String::new());
                }
            } else {
                out.within.extend(these);
            }
        }
        out.own.retain(|w| !w.is_empty());
        out
    }

    /// Whether one of its own words is in the list.
    pub fn has(&self, list: &[&str]) -> bool {
        self.own.iter().any(|w| list.contains(&w.as_str()))
    }

    /// Whether its last word is in the list.
    pub fn last_is(&self, list: &[&str]) -> bool {
        self.own.last().is_some_and(|w| list.contains(&w.as_str()))
    }

    /// Whether one of its own or enclosing words is in the list.
    pub fn anywhere(&self, list: &[&str]) -> bool {
        self.has(list) || self.within.iter().any(|w| list.contains(&w.as_str()))
    }

    /// Whether its first word is in the list.
    pub fn first_is(&self, list: &[&str]) -> bool {
        self.own.first().is_some_and(|w| list.contains(&w.as_str()))
    }

    /// Its own words with one blank between.
    pub fn joined(&self) -> String {
        self.own.join(" ")
    }

    /// A name that by itself says "made up for this one request".
    pub fn is_uniqueness_key(&self) -> bool {
        if self.has(UNIQUE)
            && !self.has(&[
                "policy",
                "mode",
                "enabled",
                "supported",
                "window",
                "ttl",
                "scope",
            ])
        {
            return true;
        }
        // `trace_id`, `X-Trace`; but `time_span` and `correlation: 0.9` are measures.
        let traced = self.has(&["trace", "span", "correlation", "idem"]);
        if traced && (self.last_is(LABEL_ENDS) || self.own == ["x", "trace"]) {
            return true;
        }
        if self.has(&["nonce", "cnonce"])
            && !self.has(&["card", "payment", "method", "device", "source"])
        {
            return true;
        }
        let label = self.last_is(LABEL_ENDS);
        // `newClientOrderId`, `client_oid`, `orderLinkId`.
        let made_by_caller = self
            .own
            .iter()
            .position(|w| w == "client" || w == "caller")
            .is_some_and(|at| at > 0 && at + 1 < self.own.len());
        if label && made_by_caller
            || self.own == ["client", "oid"]
            || self.own == ["cl", "ord", "id"]
        {
            return true;
        }
        if label && self.own.len() >= 2 && self.first_is(&["client", "caller"]) {
            // `client_id`, `client_no`: a customer; `caller_id`: a phone number.
            return self.own.len() >= 3
                || self.last_is(&["token", "ref", "reference", "uuid", "guid"]);
        }
        let before_last = self.own.len().checked_sub(2).map(|i| self.own[i].as_str());
        label
            && matches!(
                before_last,
                Some(
                    "request"
                        | "req"
                        | "submission"
                        | "submit"
                        | "invocation"
                        | "mutation"
                        | "creation"
                        | "unique"
                        | "once"
                        | "retry"
                )
            )
            && !self.has(&[
                "pull", "merge", "leave", "access", "approval", "service", "change", "purchase",
                "friend",
            ])
    }

    /// A name that usually holds the caller's own label, made up or not. `merchant_id` is none:
    /// it says which merchant; `merchant_ref` is what the merchant calls it.
    pub fn is_caller_label(&self) -> bool {
        let Some((last, before)) = self.own.split_last() else {
            return false;
        };
        let all = |list: &[&str]| before.iter().all(|w| list.contains(&w.as_str()));
        match last.as_str() {
            "ref" | "reference" | "uuid" | "guid" | "ulid" => all(CALLER_WORDS),
            "key" | "token" | "tag" | "identifier" => !before.is_empty() && all(CALLER_WORDS),
            "id" => !before.is_empty() && all(&["external", "ext", "temp", "tmp", "local"]),
            _ => false,
        }
    }

    /// A name for an id and nothing else: `id`, `_id`, `uuid`.
    pub fn is_bare_id(&self) -> bool {
        self.own
            .iter()
            .all(|w| ["id", "uuid", "guid", "oid", "ulid"].contains(&w.as_str()))
            && !self.own.is_empty()
    }

    /// `order` of `order_id`, in the singular.
    pub fn noun_of_id(&self) -> Option<String> {
        let (last, before) = self.own.split_last()?;
        if !["id", "uuid", "guid", "key", "ref", "reference"].contains(&last.as_str()) {
            return None;
        }
        before.last().map(|w| singular(w))
    }

    /// A count of tries.
    pub fn is_attempt_counter(&self) -> bool {
        let limits = [
            "max",
            "min",
            "limit",
            "maximum",
            "allowed",
            "remaining",
            "total",
            "policy",
            "delay",
            "after",
            "interval",
        ];
        let counts = ["attempt", "retry", "try", "redelivery", "retries"];
        !self.has(&limits)
            && (self.last_is(&["attempt", "retry", "redelivery"])
                || (self.has(&counts)
                    && self.last_is(&[
                        "count", "number", "no", "num", "index", "counter", "attempt",
                    ])))
    }

    /// A clock at the time of writing.
    pub fn is_clock(&self) -> bool {
        self.has(CLOCK)
    }

    /// A time that is wanted, not the time it is.
    pub fn is_schedule(&self) -> bool {
        self.has(SCHEDULE) && !self.last_is(&["timestamp", "stamp"])
    }

    /// A time that names something else (a thread by its first message), never a clock.
    pub fn is_time_of_other(&self) -> bool {
        self.has(&[
            "thread", "parent", "reply", "root", "original", "previous", "last", "since", "before",
            "after", "birth", "dob",
        ]) && !self.has(&["modified", "updated"])
    }

    /// A signature or other value computed from the rest of the request.
    pub fn is_signature(&self) -> bool {
        self.has(&["signature", "sig", "hmac", "sign"])
            && self.last_is(&[
                "signature",
                "sig",
                "hmac",
                "sign",
                "256",
                "1",
                "512",
                "sha",
                "v1",
                "v2",
                "value",
            ])
            || self.own == ["v", "1"]
    }

    /// A token that proves who sends or that a form was opened, made anew all the time.
    pub fn is_passing_token(&self) -> bool {
        const KINDS: &[&str] = &[
            "access",
            "session",
            "security",
            "auth",
            "approval",
            "form",
            "edit",
            "challenge",
            "forgery",
            "consent",
            "step",
            "mfa",
            "authorization",
            "bearer",
        ];
        if self.has(&[
            "device",
            "push",
            "card",
            "payment",
            "source",
            "page",
            "next",
            "file",
            "sync",
            "continuation",
            "registration",
            "method",
            "customer",
            "invite",
            "reset",
            "share",
            "address",
            "contract",
        ]) {
            return false;
        }
        self.has(&[
            "csrf",
            "xsrf",
            "csrfmiddlewaretoken",
            "authenticity",
            "jwt",
            "requestverificationtoken",
        ]) || (self.last_is(&["token", "approval", "consent"])
            && (self.own.len() == 1 || self.has(KINDS)))
    }

    /// A cookie or parameter that holds a session.
    pub fn is_session(&self) -> bool {
        self.has(&[
            "session",
            "sess",
            "sid",
            "phpsessid",
            "jsessionid",
            "sessionid",
            "connect",
        ])
    }

    /// What the call runs against: a tenant, an account, an environment.
    pub fn is_scope(&self) -> bool {
        self.has(&[
            "tenant",
            "org",
            "organization",
            "organisation",
            "workspace",
            "project",
            "account",
            "user",
            "customer",
            "team",
            "space",
            "subscription",
            "environment",
            "env",
            "site",
            "store",
            "shop",
            "company",
            "realm",
            "database",
            "catalog",
            "namespace",
            "cluster",
            "owner",
            "role",
            "impersonate",
            "behalf",
            "profile",
            "region",
            "client",
            "match",
            "version",
            "dest",
            "destination",
            "target",
            "host",
            "branch",
            "partner",
            "merchant",
            "agent",
        ])
    }

    /// A field that can only be read as a number.
    pub fn is_numeric(&self) -> bool {
        self.anywhere(&[
            "amount",
            "amounts",
            "price",
            "total",
            "subtotal",
            "sum",
            "fee",
            "tax",
            "tip",
            "qty",
            "quantity",
            "balance",
            "rate",
            "discount",
            "percent",
            "percentage",
            "weight",
            "dose",
            "lat",
            "lng",
            "lon",
            "latitude",
            "longitude",
            "cost",
            "value",
            "height",
            "width",
            "length",
            "size",
            "count",
            "gross",
            "net",
            "salary",
            "budget",
            "score",
            "temperature",
            "duration",
            "hours",
            "minutes",
            "seconds",
            "limit",
            "max",
            "min",
            "micros",
            "cents",
            "money",
            "amt",
            "kwh",
            "distance",
            "bid",
            "fare",
            "deposit",
        ])
    }

    /// A field whose spelling counts: a code, a version, an id.
    pub fn is_code(&self) -> bool {
        self.has(&[
            "version",
            "versions",
            "release",
            "code",
            "zip",
            "postcode",
            "postal",
            "phone",
            "account",
            "iban",
            "id",
            "ids",
            "sku",
            "serial",
            "number",
            "no",
            "isbn",
            "ean",
            "barcode",
            "tag",
            "ref",
            "reference",
            "pin",
            "otp",
            "password",
            "hash",
            "key",
            "uuid",
            "model",
            "to",
            "from",
        ])
    }

    /// Amounts, parties, targets: nothing but equality makes these the same.
    pub fn is_target(&self) -> bool {
        self.has(TARGETS)
    }

    /// Money, quantities and parties.
    pub fn is_hard_target(&self) -> bool {
        self.has(&[
            "to",
            "from",
            "recipient",
            "recipients",
            "cc",
            "bcc",
            "amount",
            "amounts",
            "price",
            "total",
            "sum",
            "fee",
            "qty",
            "quantity",
            "account",
            "iban",
            "payee",
            "payer",
            "vendor",
            "supplier",
            "customer",
            "patient",
            "user",
            "receiver",
            "beneficiary",
            "creditor",
            "debtor",
            "email",
            "mail",
            "phone",
            "mobile",
            "currency",
            "unit",
            "dose",
            "weight",
            "url",
            "uri",
            "host",
            "path",
            "address",
            "destination",
            "target",
            "employee",
            "rate",
            "discount",
            "percent",
            "limit",
            "scope",
            "role",
            "permission",
            "status",
            "state",
            "name",
        ])
    }

    /// Free text for people.
    pub fn is_prose(&self) -> bool {
        self.has(PROSE)
    }

    /// A list whose order means nothing.
    pub fn is_set(&self) -> bool {
        self.last_is(SETS) && !self.is_sequence()
    }

    /// A list that is worked through in order.
    pub fn is_sequence(&self) -> bool {
        self.has(SEQUENCES)
    }

    /// A list of things that stand beside each other.
    pub fn is_collection(&self) -> bool {
        self.last_is(COLLECTIONS) && !self.is_sequence()
    }

    /// A flag that keeps the call from doing anything, or makes it do more than usual; off unless
    /// it is said.
    pub fn is_mode_flag(&self) -> bool {
        let joined = self.own.concat();
        [
            "dryrun",
            "validateonly",
            "testmode",
            "simulate",
            "preview",
            "force",
            "whatif",
            "checkonly",
            "recursive",
            "cascade",
            "sandbox",
        ]
        .iter()
        .any(|flag| joined == *flag)
    }

    /// A secret: every blank of it counts.
    pub fn is_secret(&self) -> bool {
        self.has(&[
            "password",
            "passwd",
            "passphrase",
            "secret",
            "pin",
            "otp",
            "passcode",
        ])
    }

    /// Something that only changes what is printed.
    pub fn is_output_only(&self) -> bool {
        let joined = self.own.concat();
        [
            "quiet",
            "silent",
            "verbose",
            "showerror",
            "noprogress",
            "progress",
            "color",
            "nocolor",
            "nopager",
            "noclipager",
            "prettyprint",
            "pretty",
        ]
        .iter()
        .any(|flag| joined == *flag)
    }
}

/// Splits a name into lower-case words: `X-Request-Id`, `clientMsgID`, `idempotencykey`.
pub(super) fn words(name: &str) -> Vec<String> {
    let mut raw: Vec<String> = Vec::new();
    let mut current = String::new();
    let mut before = ' ';
    let chars: Vec<char> = name.chars().take(128).collect();
    for (i, c) in chars.iter().copied().enumerate() {
        let next_lower = chars.get(i + 1).is_some_and(|n| n.is_lowercase());
        let starts = (c.is_uppercase() && (before.is_lowercase() || before.is_ascii_digit()))
            || (c.is_uppercase() && before.is_uppercase() && next_lower)
            || (c.is_ascii_digit() != before.is_ascii_digit() && before.is_alphanumeric());
        if (!c.is_alphanumeric() || starts) && !current.is_empty() {
            raw.push(std::mem::take(&mut current));
        }
        if c.is_alphanumeric() {
            current.extend(c.to_lowercase());
        }
        before = c;
    }
    if !current.is_empty() {
        raw.push(current);
    }
    raw.into_iter().flat_map(|word| segments(&word)).collect()
}

/// Splits `requestid` into `request`, `id` where both are words of this vocabulary.
fn segments(word: &str) -> Vec<String> {
    if word.len() < 5 || !word.is_ascii() || known(word) {
        return vec![word.to_owned()];
    }
    for at in 2..word.len() - 1 {
        let (first, second) = word.split_at(at);
        if known(first) && known(second) {
            return vec![first.to_owned(), second.to_owned()];
        }
    }
    for at in 2..word.len().saturating_sub(3) {
        let (first, rest) = word.split_at(at);
        if !known(first) {
            continue;
        }
        for cut in 2..rest.len() - 1 {
            let (second, third) = rest.split_at(cut);
            if known(second) && known(third) {
                return vec![first.to_owned(), second.to_owned(), third.to_owned()];
            }
        }
    }
    vec![word.to_owned()]
}

fn known(word: &str) -> bool {
    JOINABLE.contains(&word)
}

fn is(words: &[String], list: &[&str]) -> bool {
    words.len() == 1 && list.contains(&words[0].as_str())
}

/// `orders` → `order`, `entries` → `entry`. Good enough to compare two words of the same API.
pub(super) fn singular(word: &str) -> String {
    if let Some(stem) = word.strip_suffix("ies").filter(|s| s.len() > 1) {
        return format!("{stem}y");
    }
    for ending in ["sses", "shes", "ches", "xes"] {
        if word.ends_with(ending) {
            return word[..word.len() - 2].to_owned();
        }
    }
    match word.strip_suffix('s') {
        Some(stem) if stem.len() > 2 && !stem.ends_with(['s', 'u', 'i']) => stem.to_owned(),
        _ => word.to_owned(),
    }
}

/// Whether a part of a value tells it from others: it has a digit, some length, and is no year.
pub(super) fn tells_apart(part: &str) -> bool {
    let year = part.len() == 4 && (part.starts_with("19") || part.starts_with("20"));
    part.chars().count() >= 4 && part.bytes().any(|b| b.is_ascii_digit()) && !year
}

/// What a call does, from the words of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deed {
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
pub(super) fn deed(words: &[String]) -> Deed {
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
pub(super) fn is_verb(word: &str) -> bool {
    ACT.contains(&word) || UPDATE.contains(&word) || REMOVE.contains(&word)
}

const WRAPPERS: &[&str] = &["value", "oid", "date", "text", "string", "val"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words() {
        for (name, wanted) in [
            ("X-Request-Id", "x request id"),
            ("clientMsgID", "client msg id"),
            ("idempotencykey", "idempotency key"),
            ("starttimestamp", "start timestamp"),
            ("CreDtTm", "cre dt tm"),
            ("MsgId", "msg id"),
            ("DTSTAMP", "dtstamp"),
            ("sha256", "sha 256"),
            ("payment_id", "payment id"),
            ("EndToEndId", "end to end id"),
            ("_id", "id"),
            ("URLPath", "url path"),
            ("requestid", "request id"),
        ] {
            assert_eq!(words(name).join(" "), wanted, "{name}");
        }
    }

    #[test]
    fn wrappers_take_the_name_before() {
        let names = Names::of_path(["documents", "_id", "$oid"].into_iter());
        assert_eq!(names.own, ["id", "oid"]);
        let names = Names::of_path(["items", "amount", "value"].into_iter());
        assert_eq!(names.own, ["amount", "value"]);
        assert_eq!(names.within, ["items"]);
    }

    #[test]
    fn keys_made_up_for_one_request() {
        for yes in [
            "idempotency_key",
            "Idempotency-Key",
            "client_token",
            "client_msg_id",
            "clientMutationId",
            "X-Request-Id",
            "request_uuid",
            "submission_key",
            "nonce",
            "X-Correlation-ID",
            "PayDrop-Request-Id",
            "deduplicationId",
            "traceparent",
            "clientRequestToken",
        ] {
            assert!(Names::of(yes).is_uniqueness_key(), "{yes}");
        }
        for no in [
            "client_id",
            "caller_id",
            "payment_method_nonce",
            "card_nonce",
            "id",
            "ref",
            "pull_request_id",
            "customer_ref",
            "order_id",
            "client_secret",
            "time_span",
            "lifespan_days",
            "correlation",
            "amount",
            "to",
            "client_no",
            "request",
        ] {
            assert!(!Names::of(no).is_uniqueness_key(), "{no}");
        }
    }

    #[test]
    fn counters_and_limits() {
        for yes in [
            "attempt",
            "X-Hook-Attempt",
            "retry_count",
            "attemptNumber",
            "x-retry-attempt",
        ] {
            assert!(Names::of(yes).is_attempt_counter(), "{yes}");
        }
        for no in [
            "max_attempts",
            "retries",
            "maxRetryCount",
            "attempts_allowed",
            "retry_delay",
        ] {
            assert!(!Names::of(no).is_attempt_counter(), "{no}");
        }
    }

    #[test]
    fn plain_words_stay_whole() {
        for word in [
            "orders",
            "station",
            "document",
            "notice",
            "amount",
            "reference",
            "candidate",
        ] {
            assert_eq!(words(word), [word], "{word}");
        }
        assert_eq!(singular("entries"), "entry");
        assert_eq!(singular("orders"), "order");
        assert_eq!(singular("addresses"), "address");
        assert_eq!(singular("status"), "status");
    }
}
