//! Doors for fuzzing: every decoder with any bytes. Nothing here may panic, hang or grow without
//! bound; what is decoded is thrown away.

use super::decode::{
    self, Hints, argv, csv, graphql, json, lines, mime, shell, sql, token, url, xml, yaml,
};
use super::naming::{self, Names};
use super::normal::number::Decimal;
use super::normal::{instant, spelling, unit};
use super::{notes, prose, shape, text};
use crate::words::Body;

/// One decoder: its name and a door that takes any text.
pub type Door = (&'static str, fn(&str));

/// All decoders and normal forms that read hostile text.
#[doc(hidden)]
pub const DOORS: &[Door] = &[
    ("json", |t| seen(json::read(t))),
    ("json lines", |t| seen(json::read_lines(t))),
    ("form", |t| seen(url::form(t))),
    ("url", |t| seen(url::read(t))),
    ("percent", |t| seen(url::unescape(t, true))),
    ("multipart", |t| {
        seen(mime::multipart(
            "multipart/form-data; boundary=x",
            t.as_bytes(),
            4,
        ))
    }),
    ("mixed", |t| {
        seen(mime::multipart(
            "multipart/mixed; boundary=x",
            t.as_bytes(),
            4,
        ))
    }),
    ("message", |t| seen(mime::message(t, 4))),
    ("parameter", |t| seen(mime::parameter(t, "x"))),
    ("xml", |t| seen(xml::read(t))),
    ("yaml", |t| seen(yaml::read(t))),
    ("csv", |t| seen(csv::read(t))),
    ("blocks", |t| seen(lines::blocks(t))),
    ("sql", |t| seen(sql::read(t))),
    ("graphql", |t| seen(graphql::read(t, None, None))),
    ("token", |t| seen(token::read(t))),
    ("base64 json", |t| seen(token::json(t))),
    ("base64 text", |t| seen(token::text(t))),
    ("shell", |t| seen(shell::pieces(t))),
    ("argv", |t| {
        let words: Vec<String> = t.split(' ').map(str::to_owned).collect();
        for program in ["git", "curl", "kubectl", "ssh", "x"] {
            let mut line = vec![program.to_owned()];
            line.extend(words.iter().cloned());
            seen(argv::pair(&line, &words));
            let half = line[..line.len().div_ceil(2)].to_vec();
            seen(argv::pair(&line, &half));
        }
    }),
    ("inner", |t| {
        let half = t
            .char_indices()
            .nth(t.chars().count() / 2)
            .map_or(0, |(at, _)| at);
        for name in ["query", "sql", "body", "manifest", "csv"] {
            let names = Names::of(name);
            let hints = Hints {
                names: &names,
                extension: None,
                depth: 6,
            };
            seen(decode::inner(&t[..half], &t[half..], &hints));
            seen(decode::inner(t, t, &hints));
        }
    }),
    ("body", |t| {
        let body = Body::whole(t.to_owned());
        for kind in [
            None,
            Some("application/json"),
            Some("multipart/mixed; boundary=x"),
            Some("text/xml"),
            Some(t),
        ] {
            seen(decode::body(kind, &body));
        }
    }),
    ("names", |t| seen(naming::words(t))),
    ("number", |t| seen(Decimal::read(t).map(|d| d.to_string()))),
    ("instant", |t| {
        seen((instant::read(t), instant::date(t), instant::says_now(t)))
    }),
    ("unit", |t| seen(unit::read(t, &naming::words(t)))),
    ("spelling", |t| {
        let half = t
            .char_indices()
            .nth(t.chars().count() / 2)
            .map_or(0, |(at, _)| at);
        seen(spelling::same(
            &t[..half],
            &t[half..],
            &Names::of("path"),
            false,
        ));
        spelling::pieces(t).for_each(seen);
    }),
    ("shape", |t| {
        seen((shape::is_id_like(t), shape::randomness(t)))
    }),
    ("notes", |t| seen(notes::of_text(t, "ref"))),
    ("prose", |t| {
        let half = t
            .char_indices()
            .nth(t.chars().count() / 2)
            .map_or(0, |(at, _)| at);
        seen(prose::judge(&t[..half], &t[half..]));
    }),
    ("layout", |t| {
        seen(text::same_tokens(t, t));
        text::chunks(t).for_each(seen);
        seen(text::same_words(t, "x", &Names::of("text"), None));
    }),
];

/// Lets the decoder that the first byte names read the rest.
#[doc(hidden)]
pub fn fuzz_decoder(data: &[u8]) {
    if let Some((which, rest)) = data.split_first() {
        let (_, door) = DOORS[usize::from(*which) % DOORS.len()];
        door(&String::from_utf8_lossy(rest));
    }
}

/// Takes what a decoder gave, so that it is not optimised away.
fn seen<T>(given: T) {
    std::hint::black_box(given);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::DOORS;

    /// Pieces that decoders look for, so that random text gets past their first look.
    const SEEDS: &[&str] = &[
        "{",
        "}",
        "[",
        "]",
        "\"",
        "\\",
        "\\u00e9",
        ":",
        ",",
        "true",
        "null",
        "1e9",
        "<a b='c'>",
        "</a>",
        "<![CDATA[",
        "]]>",
        "&amp;",
        "&#x41;",
        "--x\r\n",
        "--x--",
        "Content-Disposition: form-data; name=\"a\"\r\n\r\n",
        "Content-Type: multipart/mixed; boundary=x\r\n\r\n",
        "From: a\nTo: b\n\n",
        "key: value\n",
        "- item\n",
        "a,b\n1,2\n",
        "BEGIN:VEVENT\n",
        "END:VEVENT\n",
        "INSERT INTO t (a) VALUES (1)",
        "DELETE FROM t WHERE ",
        "' OR 1=1",
        "mutation { a(b: $c) { d } }",
        "query($x: Int = 3) ",
        "...",
        "eyJhIjoxfQ.eyJhIjoxfQ.x",
        "eyJhIjoxfQ==",
        "-f",
        "--flag=v",
        "&&",
        "<<EOF\n",
        "EOF\n",
        "$x",
        "`",
        "'",
        "%41",
        "+",
        "&",
        "=",
        "https://h/a/../b?c=d#e",
        "2032-03-04T09:00:00+01:00",
        "20320304T090000Z",
        "PT1H30M",
        "8GiB",
        "\u{301}",
        "\u{200b}",
        "é",
        "😀",
        "application/http\r\n\r\nPOST /x HTTP/1.1\r\n\r\n",
        "=?utf-8?B?w7w=?=",
        "=C3=BC",
        "\r\n",
        "\t",
        " ",
        "\0",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn no_decoder_panics_on_any_text(text in any::<String>()) {
            for (_, door) in DOORS {
                door(&text);
            }
        }

        #[test]
        fn no_decoder_panics_on_likely_text(parts in prop::collection::vec(prop::sample::select(SEEDS), 0..24)) {
            let text = parts.concat();
            for (_, door) in DOORS {
                door(&text);
            }
        }

        #[test]
        fn no_decoder_panics_on_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let text = String::from_utf8_lossy(&bytes);
            for (_, door) in DOORS {
                door(&text);
            }
        }
    }

    #[test]
    fn deep_and_long_input_ends_soon() {
        let began = std::time::Instant::now();
        for seed in SEEDS {
            let long = seed.repeat(40_000 / seed.len());
            for (name, door) in DOORS {
                let one = std::time::Instant::now();
                door(&long);
                let took = one.elapsed();
                assert!(
                    took.as_secs() < 20,
                    "{name} took {took:?} for {} bytes of {seed:?}",
                    long.len()
                );
            }
        }
        assert!(began.elapsed().as_secs() < 300, "{:?}", began.elapsed());
    }
}
