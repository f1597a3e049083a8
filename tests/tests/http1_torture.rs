//! Requests of HTTP/1 that are wrong, odd, or meant to be read in two ways, sent over TLS by a tracked
//! process. What must be refused is refused once and reaches nobody; what is odd and clear is served.

use acrfence_tests::odd::Odd;
use anyhow::{Context as _, Result};
use serde_json::Value;

/// What must come of it: the statuses of the answers, and how many requests reach the bank.
struct Must {
    answers: &'static [u16],
    reach: usize,
}

const REFUSED: Must = Must {
    answers: &[400],
    reach: 0,
};
const TOO_LARGE: Must = Must {
    answers: &[431],
    reach: 0,
};
const SERVED: Must = Must {
    answers: &[200],
    reach: 1,
};

/// Statuses of the final answers in `bytes`, one after the other; bodies are skipped by their length.
fn statuses(bytes: &[u8]) -> Result<Vec<u16>> {
    let mut found = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let end = rest.windows(4).position(|w| w == b"\r\n\r\n");
        let (head, after) = rest.split_at(end.context("an answer without an end")? + 4);
        let head = String::from_utf8_lossy(head).to_ascii_lowercase();
        let status = head
            .strip_prefix("http/1.1 ")
            .or_else(|| head.strip_prefix("http/1.0 "))
            .with_context(|| head.clone())?;
        let status = status.get(..3).context("a status")?.parse()?;
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length = length.map_or(Ok(0), str::parse::<usize>)?;
        rest = after.get(length..).context("a body that is cut")?;
        if status >= 200 {
            found.push(status);
        }
    }
    Ok(found)
}

#[rustfmt::skip]
fn cases(host: &str) -> Vec<(&'static str, Must, Vec<u8>)> {
    let fields =
        |fields: &str| format!("POST /v1/transfers HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    let line = |line: &str| {
        format!("{line}\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    };
    let chunked = |body: &str| fields("Transfer-Encoding: chunked\r\n") + body;
    let ask = |fields: &str| format!("GET /v1/balance HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n");
    let close = "Connection: close\r\n";
    let hidden = ask(close);
    let cases: Vec<(&'static str, Must, String)> = vec![
        // Lengths.
        ("both lengths", REFUSED, fields("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + "0\r\n\r\n" + &hidden),
        ("both lengths, the other way round", REFUSED, fields("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n") + "0\r\n\r\n" + &hidden),
        ("two lengths", REFUSED, fields("Content-Length: 0\r\nContent-Length: 4\r\n") + &hidden),
        ("the same length twice", REFUSED, fields("Content-Length: 0\r\nContent-Length: 0\r\n") + &hidden),
        ("a list of lengths", REFUSED, fields("Content-Length: 0, 0\r\n") + &hidden),
        ("a negative length", REFUSED, fields("Content-Length: -1\r\n") + &hidden),
        ("a length with a sign", REFUSED, fields("Content-Length: +0\r\n") + &hidden),
        ("a length in hexadecimal", REFUSED, fields("Content-Length: 0x0\r\n") + &hidden),
        ("a length beyond all numbers", REFUSED, fields("Content-Length: 99999999999999999999999\r\n") + &hidden),
        ("an empty length", REFUSED, fields("Content-Length:\r\n") + &hidden),
        ("a length with a space before the colon", REFUSED, fields("Content-Length : 0\r\n") + &hidden),
        ("a length that is folded", REFUSED, fields("Content-Length:\r\n 0\r\n") + &hidden),
        ("an encoding that nobody knows", REFUSED, fields("Transfer-Encoding: xchunked\r\n") + "0\r\n\r\n" + &hidden),
        ("chunks twice", REFUSED, fields("Transfer-Encoding: chunked, chunked\r\n") + "0\r\n\r\n" + &hidden),
        ("chunks in two fields", REFUSED, fields("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n") + "0\r\n\r\n" + &hidden),
        ("chunks inside something", REFUSED, fields("Transfer-Encoding: chunked, gzip\r\n") + "0\r\n\r\n" + &hidden),
        ("chunks after a vertical tab", REFUSED, fields("Transfer-Encoding: \x0bchunked\r\n") + "0\r\n\r\n" + &hidden),
        ("chunks that are folded", REFUSED, fields("Transfer-Encoding:\r\n chunked\r\n") + "0\r\n\r\n" + &hidden),
        ("chunks in HTTP/1.0", REFUSED, fields("Transfer-Encoding: chunked\r\n").replace("HTTP/1.1", "HTTP/1.0") + "0\r\n\r\n" + &hidden),
        // Chunks.
        ("a chunk of a negative size", REFUSED, chunked("-1\r\na\r\n0\r\n\r\n") + &hidden),
        ("a chunk's size with 0x", REFUSED, chunked("0x2\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk's size with an underscore", REFUSED, chunked("0_2\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk's size without digits", REFUSED, chunked("\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk's size beyond all numbers", REFUSED, chunked("10000000000000000\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk's size with a space before it", REFUSED, chunked(" 2\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk that is longer than its size", REFUSED, chunked("1\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk that is shorter than its size", REFUSED, chunked("3\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk that ends with a line feed", REFUSED, chunked("2\n{}\n0\n\n") + &hidden),
        ("a chunk that ends with carriage returns", REFUSED, chunked("2\r{}\r0\r\r") + &hidden),
        ("a line feed in a chunk's extension", REFUSED, chunked("2;a\nb\r\n{}\r\n0\r\n\r\n") + &hidden),
        ("a chunk's extension of 64 KiB", REFUSED, chunked(&format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "a".repeat(65_536))) + &hidden),
        ("a trailer that is folded", REFUSED, chunked("2\r\n{}\r\n0\r\nx: 1\r\n y: 2\r\n\r\n") + &hidden),
        // Fields.
        ("a field that is folded", REFUSED, fields("X: a\r\n b\r\nContent-Length: 0\r\n") + &hidden),
        ("a first field that is folded", REFUSED, format!("POST /v1/transfers HTTP/1.1\r\n Host: {host}\r\nContent-Length: 0\r\n\r\n{hidden}")),
        ("a field without a colon", REFUSED, fields("X\r\nContent-Length: 0\r\n") + &hidden),
        ("a field without a name", REFUSED, fields(": a\r\nContent-Length: 0\r\n") + &hidden),
        ("a name with a space", REFUSED, fields("X Y: a\r\nContent-Length: 0\r\n") + &hidden),
        ("a name beyond ASCII", REFUSED, fields("X-ü: a\r\nContent-Length: 0\r\n") + &hidden),
        ("a zero in a value", REFUSED, fields("X: a\0b\r\nContent-Length: 0\r\n") + &hidden),
        ("a carriage return in a value", REFUSED, fields("X: a\rTransfer-Encoding: chunked\r\n") + &hidden),
        ("a Host that is missing", REFUSED, "POST /v1/transfers HTTP/1.1\r\nContent-Length: 0\r\n\r\n".to_owned() + &hidden),
        ("an empty Host", REFUSED, "POST /v1/transfers HTTP/1.1\r\nHost:\r\nContent-Length: 0\r\n\r\n".to_owned() + &hidden),
        ("two Hosts", REFUSED, fields("Host: example.com\r\nContent-Length: 0\r\n") + &hidden),
        ("a Host with a user", REFUSED, format!("POST /v1/transfers HTTP/1.1\r\nHost: me@{host}\r\nContent-Length: 0\r\n\r\n{hidden}")),
        ("a Host with a path", REFUSED, format!("POST /v1/transfers HTTP/1.1\r\nHost: {host}/v1\r\nContent-Length: 0\r\n\r\n{hidden}")),
        ("257 fields", TOO_LARGE, fields(&"X: a\r\n".repeat(257)) + &hidden),
        ("a field of 300 KiB", TOO_LARGE, fields(&format!("X: {}\r\n", "a".repeat(300 << 10))) + &hidden),
        // First lines.
        ("a method with a slash", REFUSED, line("PO/ST /v1/transfers HTTP/1.1") + &hidden),
        ("no method", REFUSED, line(" /v1/transfers HTTP/1.1") + &hidden),
        ("no target", REFUSED, line("POST  HTTP/1.1") + &hidden),
        ("two spaces", REFUSED, line("POST  /v1/transfers HTTP/1.1") + &hidden),
        ("a space at the end", REFUSED, line("POST /v1/transfers HTTP/1.1 ") + &hidden),
        ("a tab in place of a space", REFUSED, line("POST\t/v1/transfers HTTP/1.1") + &hidden),
        ("a version in lower case", REFUSED, line("POST /v1/transfers http/1.1") + &hidden),
        ("a version of its own", REFUSED, line("POST /v1/transfers HTTP/1.2") + &hidden),
        ("a version to come", REFUSED, line("POST /v1/transfers HTTP/2.0") + &hidden),
        ("a target with a zero", REFUSED, line("POST /v1/\0transfers HTTP/1.1") + &hidden),
        ("a target without a slash", REFUSED, line("POST v1/transfers HTTP/1.1") + &hidden),
        ("a target that is a host", REFUSED, line(&format!("POST {host} HTTP/1.1")) + &hidden),
        ("an asterisk that is not of OPTIONS", REFUSED, line("POST * HTTP/1.1") + &hidden),
        ("a target with a fragment", REFUSED, line("POST /v1/transfers#x HTTP/1.1") + &hidden),
        ("a URL for another host", REFUSED, line("POST https://example.com/v1/transfers HTTP/1.1") + &hidden),
        ("a URL with a user", REFUSED, line(&format!("POST https://me@{host}/v1/transfers HTTP/1.1")) + &hidden),
        ("a URL of another scheme", REFUSED, line(&format!("POST ftp://{host}/v1/transfers HTTP/1.1")) + &hidden),
        ("the preface of HTTP/2", Must { answers: &[], reach: 0}, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned()),
        // One after the other.
        ("a clear request, and one that is refused, and one more", Must { answers: &[200, 400], reach: 1}, ask("") + &fields("Content-Length: 0\r\nContent-Length: 1\r\n") + &hidden),
        ("a body, and rubbish after it", Must { answers: &[200, 400], reach: 1}, ask("Content-Length: 2\r\n") + "{}rubbish\r\n\r\n" + &hidden),
        ("three clear requests", Must { answers: &[200, 200, 200], reach: 3}, ask("") + &ask("") + &hidden),
        ("a request after the last", Must { answers: &[200], reach: 1}, ask(close) + &hidden),
        // Odd, and clear.
        ("a whole URL", SERVED, format!("GET https://{host}/v1/balance HTTP/1.1\r\nHost: {host}\r\n{close}\r\n")),
        ("a whole URL in capitals", SERVED, format!("GET HTTPS://{}/v1/balance HTTP/1.1\r\nHost: {host}\r\n{close}\r\n", host.to_ascii_uppercase())),
        ("empty lines before it", SERVED, "\r\n\r\n".to_owned() + &hidden),
        ("lines that end with a line feed", SERVED, hidden.replace("\r\n", "\n")),
        ("chunks with extensions and trailers", SERVED, ask(&format!("Transfer-Encoding: chunked\r\n{close}")) + "2;a=b;c=\"d\"\r\n{}\r\n000\r\nX-Sum: 1\r\n\r\n"),
        ("trailers that say another length", SERVED, ask(&format!("Transfer-Encoding: chunked\r\n{close}")) + "2\r\n{}\r\n0\r\nContent-Length: 99\r\nTransfer-Encoding: identity\r\n\r\n"),
        ("what is expected, and the body at once", SERVED, ask(&format!("Expect: 100-continue\r\nContent-Length: 2\r\n{close}")) + "{}"),
        ("an expectation that nobody knows", SERVED, ask(&format!("Expect: 200-ok\r\n{close}"))),
        ("an upgrade that nobody answers", SERVED, ask("Connection: Upgrade, close\r\nUpgrade: x/1\r\n")),
        ("an upgrade to HTTP/2", SERVED, ask("Connection: Upgrade, HTTP2-Settings, close\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n")),
        ("HTTP/1.0 without a Host", SERVED, "GET /v1/balance HTTP/1.0\r\n\r\n".into()),
        ("a field that stands there twice", SERVED, ask(&format!("X: 1\r\nX: 2\r\n{close}"))),
        ("a field's length of 200 KiB", SERVED, ask(&format!("{close}X: {}\r\n", "a".repeat(200 << 10)))),
        // The bank has no answer to these; what counts is that it is asked.
        ("OPTIONS of everything", Must { answers: &[404], reach: 1}, line("OPTIONS * HTTP/1.1")),
        ("TRACE", Must { answers: &[405], reach: 1}, line("TRACE /v1/balance HTTP/1.1")),
    ];
    cases
        .into_iter()
        .map(|(what, must, sent)| (what, must, sent.into_bytes()))
        .collect()
}

#[test]
fn odd_requests_are_refused_once_or_served_and_nothing_hides_in_them() -> Result<()> {
    let mut odd = Odd::start()?;
    let cases = cases(&odd.name());
    let mut wrong = Vec::new();
    for (what, must, sent) in &cases {
        let (said, reached) = odd.send("http/1.1", sent)?;
        let said: Value = serde_json::from_str(&said)?;
        let answer = hex::decode(said["answer"].as_str().context("an answer")?)?;
        let answers = statuses(&answer);
        let text = String::from_utf8_lossy(&answer);
        println!("{what}: {answers:?}, {reached} requests");
        let is_right = matches!(&answers, Ok(answers) if answers == must.answers)
            && reached == must.reach
            && said["closed"] == true;
        if !is_right {
            wrong.push(format!(
                "{what}: must {:?}, {}; got {answers:?}, {reached}: {said} {text}",
                must.answers, must.reach
            ));
        }
        odd.others_are_served(what)?;
    }
    println!("{} cases", cases.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // TRACE is safe, OPTIONS is safe, and so is all else that was served.
    assert_eq!(odd.fence.effects("raw")?.len(), 0);
    assert_eq!(odd.bank.payments(), cases.len());
    Ok(())
}
