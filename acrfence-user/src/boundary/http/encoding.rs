//! Content encodings: taken off where a message must be understood, or an agent does not accept
//! the one a recorded response has.

use async_compression::tokio::bufread::{
    BrotliDecoder, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder,
};
use http::HeaderMap;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::headers::is_zero_quality;
use crate::words::Header;

/// The content encodings of a message, in the order they were applied; `identity` left out.
pub(crate) fn applied(headers: &HeaderMap) -> Vec<String> {
    headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty() && name != "identity")
        .collect()
}

/// Whether an agent that sent `headers` takes a body with these encodings.
pub(crate) fn accepted(headers: &HeaderMap, encodings: &[String]) -> bool {
    encodings.iter().all(|encoding| {
        let mut any = None;
        for value in headers.get_all(ACCEPT_ENCODING) {
            for part in value.to_str().unwrap_or_default().split(',') {
                let mut parameters = part.split(';');
                let name = parameters.next().unwrap_or_default().trim();
                let takes = !parameters.any(is_zero_quality);
                let same = name.eq_ignore_ascii_case(encoding)
                    || (encoding == "gzip" && name.eq_ignore_ascii_case("x-gzip"))
                    || (encoding == "x-gzip" && name.eq_ignore_ascii_case("gzip"));
                if same {
                    return takes;
                }
                if name == "*" {
                    any = Some(takes);
                }
            }
        }
        any.unwrap_or(false)
    })
}

/// A recorded body with its content encoding taken off; none where that fails or gives more than
/// `bound` bytes. Works in memory and never waits.
pub async fn decoded_body(headers: &[Header], bytes: &[u8], bound: usize) -> Option<Vec<u8>> {
    let named = headers.iter().filter(|h| h.is("content-encoding"));
    let encodings: Vec<String> = named
        .filter_map(Header::text)
        .flat_map(|value| value.split(','))
        .map(|name| name.trim().to_ascii_lowercase())
        .filter(|name| !name.is_empty() && name != "identity")
        .collect();
    decoded(bytes, &encodings, bound).await
}

/// Takes `encodings` off `bytes`; none where that fails or gives more than `bound` bytes.
pub(crate) async fn decoded(bytes: &[u8], encodings: &[String], bound: usize) -> Option<Vec<u8>> {
    /// More than any honest message has; each layer costs memory.
    const LAYERS: usize = 3;
    if encodings.len() > LAYERS || encodings.is_empty() && bytes.len() > bound {
        return None;
    }
    let mut bytes = bytes.to_vec();
    for encoding in encodings.iter().rev() {
        let input = bytes.as_slice();
        bytes = match encoding.as_str() {
            "gzip" | "x-gzip" => {
                let mut decoder = GzipDecoder::new(input);
                decoder.multiple_members(true);
                read(decoder, bound).await?
            }
            // `deflate` means the zlib format; some senders leave the wrapper out.
            "deflate" => match read(ZlibDecoder::new(input), bound).await {
                Some(plain) => plain,
                None => read(DeflateDecoder::new(input), bound).await?,
            },
            "br" => read(BrotliDecoder::new(input), bound).await?,
            "zstd" => read(ZstdDecoder::new(input), bound).await?,
            _ => return None,
        };
    }
    Some(bytes)
}

async fn read(decoder: impl AsyncRead, bound: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    let mut decoder = std::pin::pin!(decoder.take(bound as u64 + 1));
    decoder.read_to_end(&mut out).await.ok()?;
    (out.len() <= bound).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_compression::tokio::bufread::{BrotliEncoder, GzipEncoder, ZlibEncoder, ZstdEncoder};

    #[tokio::test]
    async fn every_encoding_comes_off_and_bombs_do_not_go_off() {
        let plain = vec![b'x'; 100_000];
        let packed = [
            (
                "gzip",
                read(GzipEncoder::new(&plain[..]), usize::MAX - 1)
                    .await
                    .unwrap(),
            ),
            (
                "deflate",
                read(ZlibEncoder::new(&plain[..]), usize::MAX - 1)
                    .await
                    .unwrap(),
            ),
            (
                "br",
                read(BrotliEncoder::new(&plain[..]), usize::MAX - 1)
                    .await
                    .unwrap(),
            ),
            (
                "zstd",
                read(ZstdEncoder::new(&plain[..]), usize::MAX - 1)
                    .await
                    .unwrap(),
            ),
        ];
        for (name, packed) in packed {
            let names = [name.to_owned()];
            assert_eq!(
                decoded(&packed, &names, 100_000).await.unwrap(),
                plain,
                "{name}"
            );
            assert_eq!(decoded(&packed, &names, 99_999).await, None, "{name}");
            assert_eq!(
                decoded(&packed[..packed.len() / 2], &names, 100_000).await,
                None,
                "{name}"
            );
        }
        assert_eq!(decoded(b"x", &["rot13".to_owned()], 10).await, None);
    }

    #[test]
    fn an_encoding_is_accepted_when_it_is_named() {
        let with = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, value.parse().unwrap());
            headers
        };
        let gzip = ["gzip".to_owned()];
        assert!(accepted(&with("gzip, br"), &gzip));
        assert!(accepted(&with("*"), &gzip));
        assert!(!accepted(&with("gzip;q=0, *"), &gzip));
        assert!(!accepted(&with("br"), &gzip));
        assert!(!accepted(&HeaderMap::new(), &gzip));
        assert!(accepted(&HeaderMap::new(), &[]));
    }
}
