//! What a field is for: scope, target, number, code, text, set, sequence, secret.

use super::Names;
use super::vocabulary::{COLLECTIONS, PROSE, SEQUENCES, SETS, TARGETS};

impl Names {
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
