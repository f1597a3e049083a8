//! How long a comparison takes: a pair of 4 KiB calls, and one call against 100 candidates.
//!
//! `cargo bench -p acrfence-user --bench compare`

use std::hint::black_box;
use std::time::{Duration, Instant};

use acrfence_user::analyzer::{Evidence, Nothing, compare};
use acrfence_user::words::{Body, Header, HttpRequest, Likeness, McpRequest, Request, Timestamp};

fn evidence() -> Evidence<'static> {
    Evidence {
        provenance: &Nothing,
        schema: None,
        recorded_at: Timestamp(1_962_003_600_000_000_000),
        restored_at: Timestamp(1_962_004_140_000_000_000),
    }
}

/// An order of about 4 KiB; `key` and `total` tell calls apart.
fn body(key: &str, total: u32, turned: bool) -> String {
    let lines: Vec<String> = (0..28)
        .map(|i| {
            if turned {
                format!(r#"{{"qty": {}, "sku": "SKU-{i:05}", "note": "leave at the side door please", "price": {{"currency": "EUR", "amount": "{}.50"}}}}"#, i + 1, i * 3)
            } else {
                format!(r#"{{"sku":"SKU-{i:05}","qty":{},"price":{{"amount":"{}.50","currency":"EUR"}},"note":"leave at the side door please"}}"#, i + 1, i * 3)
            }
        })
        .collect();
    format!(
        r#"{{"idempotency_key":"{key}","customer":"C-5521","total":{total},"address":{{"street":"14 Mill Row","city":"Testford"}},"lines":[{}]}}"#,
        lines.join(",")
    )
}

fn http(key: &str, total: u32, turned: bool) -> Request {
    Request::Http(HttpRequest {
        method: "POST".into(),
        url: "https://api.shop.example/v1/orders?dry_run=false".into(),
        headers: vec![
            Header::new("Content-Type", "application/json"),
            Header::new("Authorization", "Bearer demo-token"),
            Header::new("User-Agent", "agent/1.0"),
            Header::new("X-Request-Id", key.to_owned()),
        ],
        body: Body::whole(body(key, total, turned)),
        rpc: Vec::new(),
    })
}

fn mcp(key: &str, total: u32, turned: bool) -> Request {
    Request::Mcp(McpRequest {
        server: "shop".into(),
        name: "create_order".into(),
        arguments: body(key, total, turned),
        meta: None,
        headers: Vec::new(),
        extra: None,
    })
}

const KEYS: [&str; 2] = [
    "e01b319a-da42-468e-a618-24c063f9c121",
    "6a2d9917-8b57-473e-9bae-c4cf4e394404",
];

/// Median of many runs.
fn median(runs: usize, mut run: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..runs)
        .map(|_| {
            let began = Instant::now();
            run();
            began.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn main() {
    let mut late = Vec::new();
    let mut show = |what: &str, took: Duration, limit: Option<Duration>| {
        let limit_text = limit.map_or_else(String::new, |l| format!(" (limit {l:?})"));
        println!("{what:<58}{took:>12.1?}{limit_text}");
        if limit.is_some_and(|l| took > l) {
            late.push(what.to_owned());
        }
    };
    let pair = Some(Duration::from_micros(60));
    for (what, one, two, wanted) in [
        (
            "http, 4 KiB, new key",
            http(KEYS[0], 900, false),
            http(KEYS[1], 900, false),
            Likeness::Equivalent,
        ),
        (
            "http, 4 KiB, new key, keys in another order",
            http(KEYS[0], 900, false),
            http(KEYS[1], 900, true),
            Likeness::Equivalent,
        ),
        (
            "http, 4 KiB, another total",
            http(KEYS[0], 900, false),
            http(KEYS[1], 901, false),
            Likeness::Different,
        ),
        (
            "mcp, 4 KiB, new key",
            mcp(KEYS[0], 900, false),
            mcp(KEYS[1], 900, false),
            Likeness::Equivalent,
        ),
        (
            "mcp, 4 KiB, another total",
            mcp(KEYS[0], 900, false),
            mcp(KEYS[1], 901, false),
            Likeness::Different,
        ),
    ] {
        assert_eq!(
            compare(&one, None, &two, &evidence()).likeness,
            wanted,
            "{what}"
        );
        let took = median(2000, || {
            black_box(compare(black_box(&one), None, black_box(&two), &evidence()));
        });
        show(what, took, pair);
    }
    let candidates: Vec<Request> = (0..100)
        .map(|i| http(KEYS[0], 1000 + i, i % 2 == 0))
        .collect();
    let new = http(KEYS[1], 1099, false);
    let took = median(100, || {
        let equal = candidates
            .iter()
            .filter(|c| compare(c, None, &new, &evidence()).likeness == Likeness::Equivalent)
            .count();
        assert_eq!(black_box(equal), 1);
    });
    show(
        "one call against 100 candidates of 4 KiB",
        took,
        Some(Duration::from_millis(3)),
    );

    // Hostile sizes end, too.
    let deep = |n: usize| mcp_raw(format!("{}1{}", "[".repeat(n), "]".repeat(n)));
    let took = median(20, || {
        black_box(compare(&deep(50_000), None, &deep(50_001), &evidence()));
    });
    show("nested 50,000 deep", took, None);
    let many = |n: usize| {
        let items: Vec<String> = (0..n)
            .map(|i| format!("{{\"id\":{i},\"v\":\"x{i}\"}}"))
            .collect();
        mcp_raw(format!("{{\"items\":[{}]}}", items.join(",")))
    };
    let took = median(5, || {
        black_box(compare(&many(20_000), None, &many(20_001), &evidence()));
    });
    show("lists of 20,000 objects, one more", took, None);
    let wide = |x: &str| {
        let items: Vec<String> = (0..20_000)
            .map(|i| format!("\"k{i}\":\"{x}{i}\""))
            .collect();
        mcp_raw(format!("{{{}}}", items.join(",")))
    };
    let took = median(5, || {
        black_box(compare(&wide("a"), None, &wide("b"), &evidence()));
    });
    show("objects of 20,000 names, all different", took, None);
    if !late.is_empty() {
        eprintln!("over the limit: {}", late.join("; "));
        std::process::exit(1);
    }
}

fn mcp_raw(arguments: String) -> Request {
    Request::Mcp(McpRequest {
        server: "s".into(),
        name: "t".into(),
        arguments,
        meta: None,
        headers: Vec::new(),
        extra: None,
    })
}
