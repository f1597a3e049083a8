//! CSV with a heading: rows become objects, so that columns may move together with their heading.

use std::borrow::Cow;

use super::super::value::Value;
use super::{MOST_NODES, Undecodable};

/// Reads at least a heading and one row, all of the same width.
pub(in crate::analyzer) fn read(text: &str) -> Result<Value<'static>, Undecodable> {
    let delimiter = delimiter(text).ok_or(Undecodable)?;
    let mut reader = csv::ReaderBuilder::new()
        .delimiter(delimiter)
        .has_headers(true)
        .flexible(false)
        .from_reader(text.as_bytes());
    let headings: Vec<String> = reader
        .headers()
        .map_err(|_| Undecodable)?
        .iter()
        .map(|h| h.trim().to_owned())
        .collect();
    let mut distinct: Vec<&String> = headings.iter().collect();
    distinct.sort_unstable();
    distinct.dedup();
    let named = headings
        .iter()
        .all(|h| !h.is_empty() && h.parse::<f64>().is_err());
    if headings.len() < 2 || distinct.len() != headings.len() || !named {
        return Err(Undecodable);
    }
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|_| Undecodable)?;
        if rows.len() * headings.len() > MOST_NODES {
            return Err(Undecodable);
        }
        rows.push(Value::Map(
            headings
                .iter()
                .zip(record.iter())
                .map(|(name, cell)| (Cow::Owned(name.clone()), Value::text(cell)))
                .collect(),
        ));
    }
    if rows.is_empty() {
        return Err(Undecodable);
    }
    Ok(Value::Map(vec![("rows".into(), Value::List(rows))]))
}

/// The separator that occurs equally often, at least once, in the first lines.
fn delimiter(text: &str) -> Option<u8> {
    [b',', b';', b'\t', b'|'].into_iter().find(|candidate| {
        let mut counts = text
            .lines()
            .filter(|line| !line.trim().is_empty() && !line.contains('"'))
            .take(20)
            .map(|line| line.bytes().filter(|b| b == candidate).count());
        match counts.next() {
            Some(first) if first > 0 => counts.all(|n| n == first),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_objects() {
        let value = read("sku,qty\r\nA1,4\r\n\"B,2\",9\r\n").unwrap();
        let Some(Value::List(rows)) = value.get("rows") else {
            panic!("{value:?}")
        };
        assert_eq!(rows[1].get("sku").and_then(Value::as_text), Some("B,2"));
        for bad in ["a,b\n1\n", "a,a\n1,2\n", "just text", "a,b\n", "1,2\n3,4\n"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
