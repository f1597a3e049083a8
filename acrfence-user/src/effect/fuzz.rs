//! Entry points for fuzzers: hostile bytes for everything that reads bytes. None may panic.

use std::sync::OnceLock;

use super::index::Row;
use super::journal::frame;
use super::journal::keys::{KeyFile, Keyring};
use super::journal::seal;
use super::journal::segment::{self, SegmentHeader};
use super::journal::walk::Walk;
use super::{EffectFilter, ExportFilter};
use crate::words::Seq;

/// Reads the bytes as a record, as a segment, as the content of every kind of record, as an index row
/// and as a key file.
pub fn fuzz_record(data: &[u8]) {
    let _ = frame::read(data);
    let _ = segment::store_of(data);
    if let Some(keyring) = keyring() {
        if let Ok(header) = SegmentHeader::read(data, keyring) {
            let mut walk = Walk::new(data, &header, keyring);
            while let Ok(Some(_)) = walk.step() {}
        }
        if let Ok(frame) = frame::read(data) {
            let _ = seal::open(keyring, &[0; 16], &frame.header, frame.payload);
        }
    }
    if let Some((kind, content)) = data.split_first() {
        let _ = seal::decode(*kind, Seq(1), content);
    }
    if let Some(row) = Row::decode(data) {
        assert_eq!(Row::decode(&row.encode()), Some(row), "a row reads back");
    }
    let _ = KeyFile::parse(data);
}

/// Reads the bytes as a question: the filters as JSON and as the query string of a request, the form in
/// which the control API takes them.
pub fn fuzz_query(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(uri) = format!("http://acrfence/v1/effects?{text}").parse()
        && let Ok(axum::extract::Query(filter)) =
            axum::extract::Query::<EffectFilter>::try_from_uri(&uri)
    {
        let again = serde_json::to_vec(&filter).ok();
        let again = again.and_then(|text| serde_json::from_slice(&text).ok());
        assert_eq!(again, Some(filter), "a filter reads back");
    }
    if let Ok(filter) = serde_json::from_slice::<EffectFilter>(data) {
        let again = serde_json::to_vec(&filter).ok();
        let again = again.and_then(|text| serde_json::from_slice(&text).ok());
        assert_eq!(again, Some(filter), "a filter reads back");
    }
    let _ = serde_json::from_slice::<ExportFilter>(data);
}

fn keyring() -> Option<&'static Keyring> {
    static KEYRING: OnceLock<Option<Keyring>> = OnceLock::new();
    let made = KEYRING.get_or_init(|| Some(KeyFile::parse(&[7; 32]).ok()?.bind(&[0; 16])));
    made.as_ref()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::effect::samples;

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_in_peace(data in proptest::collection::vec(any::<u8>(), 0..2000)) {
            fuzz_record(&data);
            fuzz_query(&data);
        }

        #[test]
        fn nearly_right_content_is_refused_in_peace(
            step in samples::step(), changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        ) {
            let Some(event) = step.event(&[crate::words::EffectId(Seq(1))], 5) else { return Ok(()) };
            let kind = seal::kind_of(&event);
            let plain = seal::encode(&event).unwrap();
            prop_assert!(seal::decode(kind, Seq(1), &plain).is_ok());
            let mut data = vec![kind];
            data.extend(plain);
            for (at, byte) in changes {
                let at = 1 + at.index(data.len() - 1);
                data[at] = byte;
            }
            fuzz_record(&data);
            // A length that promises far more than there is.
            if let Some(at) = data.iter().position(|b| *b & 0xe0 == 0x60 || *b & 0xe0 == 0x40) {
                data.splice(at..=at, [0x5b, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
                fuzz_record(&data);
            }
        }

        #[test]
        fn nearly_right_query_strings_are_refused_in_peace(text in "((agent|thread|limit|since|text|after|status|oldest_first|credential)=([a-z0-9:TZ%-]{0,24}|[0-9]{1,22}|true|in_doubt)&?){0,4}") {
            fuzz_query(text.as_bytes());
        }

        #[test]
        fn nearly_right_questions_are_refused_in_peace(text in "\\{(\"(agent|thread|limit|since|text|after)\":(\"[a-z0-9:TZ-]{0,24}\"|[0-9]{1,22}|null|-1),?){0,4}\\}") {
            fuzz_query(text.as_bytes());
        }
    }
}
