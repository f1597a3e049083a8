//! What the words of a name say: of a field, a flag, a tool.
//!
//! The lists are the vocabulary of interfaces in general. They decide little alone: see
//! `compare::leaf` for what else must be true.

mod deed;
mod roles;
#[rustfmt::skip]
mod vocabulary;
mod words;

pub(super) use deed::{Deed, deed, is_verb};
use vocabulary::{CALLER_WORDS, CLOCK, LABEL_ENDS, SCHEDULE, UNIQUE};
pub(super) use words::{singular, tells_apart, words};

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
}

fn is(words: &[String], list: &[&str]) -> bool {
    words.len() == 1 && list.contains(&words[0].as_str())
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
