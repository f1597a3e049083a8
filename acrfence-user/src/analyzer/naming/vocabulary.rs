//! The words themselves: the vocabulary of interfaces in general.

pub(super) const UNIQUE: &[&str] = &[
    "idempotency", "idempotent", "idempotence", "dedup", "dedupe", "deduplication", "traceparent", "tracestate",
    "baggage", "cachebust", "cachebuster", "ikey", "uetr", "clordid",
];

pub(super) const LABEL_ENDS: &[&str] = &[
    "id", "key", "ref", "reference", "token", "uuid", "guid", "ulid", "identifier", "oid", "tag", "uid", "reqid",
];

/// Words before `ref` that leave it the caller's own label.
pub(super) const CALLER_WORDS: &[&str] = &[
    "external", "ext", "merchant", "partner", "my", "our", "own", "local", "app", "agent", "temp", "tmp",
    "internal", "client", "caller", "originator",
];

pub(super) const CLOCK: &[&str] = &[
    "created", "creation", "cre", "sent", "submitted", "requested", "issued", "generated", "timestamp",
    "timestamps", "ts", "now", "stamp", "dtstamp", "clock", "iat", "authored", "logged", "recorded", "occurred",
    "scanned", "updated", "modified", "observed", "received", "processed", "dtm", "tm", "written", "posted",
    "queued", "registered", "collected", "measured", "counted", "taken", "entered", "initiated", "invoked",
    "captured", "triggered", "performed", "started",
];

/// A wish for later. Words that can also mean "from now on" (start, run, event) are not here: where
/// both calls give the very moment they are made, they say "now".
pub(super) const SCHEDULE: &[&str] = &[
    "end", "ends", "until", "expire", "expires", "expiry", "expiration", "expired", "due", "deadline", "schedule",
    "scheduled", "deliver", "delivery", "departure", "depart", "departs", "arrival", "arrive", "arrives",
    "appointment", "remind", "reminder", "valid", "validity", "till", "pickup", "slot", "checkin", "checkout",
    "return", "next", "birth", "birthday", "dob", "meeting", "reservation", "thread", "parent", "reply", "dtstart",
    "dtend", "embargo", "maturity", "since", "before", "after", "to", "renewal", "follow", "wake", "alarm",
];

pub(super) const TARGETS: &[&str] = &[
    "to", "from", "recipient", "recipients", "cc", "bcc", "amount", "amounts", "price", "total", "subtotal", "sum",
    "fee", "tax", "tip", "qty", "quantity", "account", "iban", "bic", "payee", "payer", "vendor", "supplier",
    "customer", "patient", "user", "username", "host", "hostname", "path", "file", "filename", "url", "uri",
    "target", "destination", "dest", "receiver", "address", "addresses", "channel", "room", "topic", "device",
    "sku", "product", "item", "version", "environment", "region", "currency", "unit", "units", "status", "state",
    "role", "roles", "permission", "permissions", "scope", "scopes", "plan", "limit", "max", "min", "name", "email",
    "mail", "phone", "mobile", "branch", "image", "digest", "sha", "lot", "etag", "parent", "thread", "owner",
    "assignee", "tenant", "project", "org", "organization", "organisation", "team", "balance", "rate", "discount",
    "percent", "percentage", "weight", "dose", "dosage", "beneficiary", "creditor", "debtor", "employee", "student",
    "member", "contact", "city", "country", "street", "zip", "postcode", "database", "db", "table", "collection",
    "bucket", "repo", "repository", "cluster", "namespace", "zone", "server", "domain", "wallet",
];

pub(super) const PROSE: &[&str] = &[
    "message", "text", "body", "content", "description", "desc", "comment", "comments", "note", "notes", "reason",
    "summary", "subject", "title", "caption", "bio", "memo", "remark", "remarks", "details", "detail",
    "instructions", "narrative", "letter", "abstract", "greeting", "question", "answer", "headline", "prompt",
    "explanation", "justification", "feedback", "review", "statement", "msg", "html", "markdown", "plain", "m",
    "introduction", "intro", "explain", "rationale", "findings", "observation", "observations", "changelog",
];

pub(super) const SETS: &[&str] = &[
    "tags", "tag", "labels", "label", "categories", "keywords", "recipients", "to", "cc", "bcc", "attendees",
    "participants", "members", "users", "groups", "roles", "permissions", "scopes", "scope", "grants", "features",
    "flags", "events", "event", "emails", "addresses", "countries", "geo", "geos", "skills", "watchers",
    "followers", "assignees", "reviewers", "owners", "invitees", "guests", "contacts", "phones", "channels",
    "audiences", "segments", "interests", "hashtags", "keys", "ids", "names", "origins", "domains", "ips", "cidrs",
    "subnets", "zones", "regions", "markets", "platforms", "types", "capabilities", "env", "environment", "envs",
    "variables", "vars", "ports", "volumes", "mounts", "headers", "attributes", "extensions", "allergies",
    "conditions", "products", "skus", "seats", "genres", "topics", "collaborators", "subscribers", "admins",
    "moderators", "teams", "departments", "subscriptions", "amenities", "ingredients", "toppings", "allergens",
    "cuisines", "symptoms", "diagnoses", "colors", "colours", "sizes", "days", "weekdays", "options", "addons",
    "extras", "services", "uris", "callbacks", "webhooks", "symbols", "currencies", "sensors", "peers", "brokers",
    "attachments", "certifications", "qualifications", "specialties", "equipment", "facilities", "accessories",
    "modules", "plugins", "packages", "dependencies", "exclusions", "inclusions", "allowlist", "blocklist",
    "denylist", "whitelist", "blacklist", "allowed", "blocked", "viewers", "editors", "aliases", "synonyms",
    "mentions", "coupons", "mask", "fields", "devices", "tenants", "accounts", "entities", "classes", "traits",
    "materials", "includes", "excludes", "expand", "properties", "profiles", "badges", "exempt", "holidays",
    "vehicles", "drivers", "kinds", "statuses", "states", "organizations", "companies", "brands", "stores", "shops",
    "branches", "reasons", "symbols", "set", "label", "capability", "volume", "publish",
];

pub(super) const SEQUENCES: &[&str] = &[
    "steps", "step", "stages", "stage", "commands", "command", "cmd", "args", "argv", "arguments", "params",
    "parameters", "operations", "ops", "actions", "action", "stops", "waypoints", "waypoint", "route", "routes",
    "path", "points", "coordinates", "vertices", "polygon", "tracks", "playlist", "queue", "ranking", "rank",
    "priority", "priorities", "preferences", "order", "sequence", "chain", "pipeline", "rules", "rule",
    "middlewares", "messages", "blocks", "paragraphs", "slides", "chapters", "pages", "page", "layers",
    "migrations", "statements", "script", "scripts", "instructions", "legs", "phases", "itinerary", "cities",
    "destinations", "stations", "locations", "signers", "approvers", "songs", "episodes", "frames", "exercises",
    "questions", "filters", "courses", "acts", "layers", "nameservers", "bbox", "bounds", "coords", "vertices",
    "matrix", "series", "history", "items_order", "transitions", "hops", "backups", "words", "lines", "moves",
    "columns", "vector", "embedding", "sort", "fallback", "fallbacks", "choices", "transforms", "program", "patch",
    "directions",
];

pub(super) const COLLECTIONS: &[&str] = &[
    "items", "lines", "line", "orders", "documents", "docs", "records", "rows", "entries", "payouts", "payments",
    "transfers", "transactions", "recipients", "products", "variants", "attachments", "files", "children",
    "contacts", "accounts", "resources", "objects", "events", "attendees", "participants", "invoices", "articles",
    "positions", "readings", "measurements", "samples", "shipments", "parcels", "packages", "passengers", "guests",
    "rooms", "tickets", "members", "users", "people", "employees", "students", "patients", "devices", "sensors",
    "hosts", "nodes", "identifiers", "identifier", "telecom", "allocations", "assignments", "grants", "metrics",
    "subscriptions", "reservations",
];

pub(super) const CREATE: &[&str] = &[
    "create", "insert", "new", "post", "provision", "enqueue", "generate", "add", "log",
];

pub(super) const DO: &[&str] = &[
    "transfer", "pay", "charge", "notify", "invite", "run", "execute", "deploy", "apply", "push", "write", "upload",
    "import", "send", "book", "deposit", "buy", "order", "purchase", "print", "issue", "place", "submit", "make",
    "publish", "register", "schedule", "request", "record", "file", "dispatch", "donate", "announce", "emit",
];

pub(super) const UPDATE: &[&str] = &[
    "update", "patch", "edit", "modify", "change", "set", "rename", "merge", "assign", "configure", "alter",
    "replace", "upsert", "save", "adjust", "mark", "toggle", "put", "move", "reassign", "amend",
];

pub(super) const REMOVE: &[&str] = &[
    "delete", "remove", "destroy", "drop", "wipe", "purge", "terminate", "revoke", "clear", "prune", "truncate",
    "uninstall", "unregister", "deregister", "erase", "rm",
];

pub(super) const ACT: &[&str] = &[
    "cancel", "close", "refund", "capture", "approve", "reject", "confirm", "redeem", "release", "archive",
    "restore", "stop", "restart", "suspend", "void", "resend", "retry", "renew", "unsubscribe", "start", "open",
    "reply", "forward", "react", "checkout", "accept", "decline", "deny", "lock", "unlock", "enable", "disable",
    "activate", "deactivate", "resume", "pause", "complete", "finish", "resolve", "reopen", "withdraw", "claim",
    "join", "leave", "promote", "rollback", "recall", "kill", "scale", "rotate", "verify", "unseal",
];

/// Words that appear run together in names.
pub(super) const JOINABLE: &[&str] = &[
    "traceparent", "tracestate", "id", "key", "ref", "reference", "token", "uuid", "guid", "no", "number", "code",
    "request", "req", "client", "caller", "message", "msg", "idempotency", "correlation", "trace", "span", "parent",
    "state", "nonce", "created", "creation", "updated", "sent", "start", "end", "time", "timestamp", "stamp",
    "date", "at", "on", "by", "order", "customer", "user", "account", "amount", "currency", "session", "device",
    "external", "merchant", "transaction", "operation", "event", "delivery", "attempt", "retry", "count", "dry",
    "run", "validate", "only", "file", "name", "sender", "batch", "item", "line", "payment", "invoice", "ticket",
    "event", "job", "task", "access", "refresh", "csrf", "middleware", "security", "signature", "sign", "hash",
    "digest", "dedup", "mutation", "submission", "submit", "unique", "hook", "web", "push", "api", "auth", "max",
    "min", "total", "last", "modified",
];
