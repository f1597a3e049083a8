//! A bundle of roots with the CA in front of them.
//!
//! The CA stands in a place of fixed size, so that a rotation writes the new one over the old in one
//! write, whatever the file behind it holds. All the rest is the file as it is outside. (Java's stores have
//! no room for such a place: there it is an entry among the others.)

use anyhow::ensure;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::boundary::tls::java;

/// A page: whoever reads while it is written sees the old CA or the new one.
const PLACE: usize = 4096;
/// What the place begins with. Text between certificates is none of a bundle's meaning.
const MARK: &[u8] = b"# The CA of ACRFence (acrfence run --private-trust). The roots behind it are those of the file that this one covers.\n";
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

/// The CA, as it is put into bundles.
pub(super) struct Ours {
    front: Vec<u8>,
    certificate: CertificateDer<'static>,
}

impl Ours {
    /// The CA whose certificate (PEM) this is.
    pub(super) fn new(ca: &str) -> anyhow::Result<Self> {
        let certificate = CertificateDer::from_pem_slice(ca.as_bytes())
            .map_err(|e| anyhow::anyhow!("the CA's certificate does not read: {e}"))?;
        let mut front = MARK.to_vec();
        front.extend(ca.trim().as_bytes());
        front.push(b'\n');
        ensure!(
            front.len() <= PLACE,
            "the CA's certificate is too long to stand in front of a bundle"
        );
        front.resize(PLACE, b'\n');
        Ok(Self { front, certificate })
    }

    /// A bundle with the CA besides what it holds, or why it cannot be one.
    pub(super) fn merged(&self, original: &[u8]) -> Result<Vec<u8>, &'static str> {
        if java::is_store(original) {
            return java::merged(original, &self.certificate);
        }
        let own = match original.strip_prefix(MARK) {
            Some(_) => original.get(PLACE..).unwrap_or_default(),
            None => original,
        };
        memchr::memmem::find(own, CERTIFICATE)
            .map(|_| [&self.front, own].concat())
            .ok_or("it holds no certificate in PEM")
    }

    /// What to write over the beginning of a file that [`Self::merged`] made, so that it holds this CA. None
    /// when it is no such file.
    pub(super) fn renewed(&self, merged: &[u8]) -> Option<Vec<u8>> {
        if merged.starts_with(MARK) && merged.len() > PLACE {
            return Some(self.front.clone());
        }
        java::is_merged(merged)
            .then(|| java::merged(merged, &self.certificate).ok())
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boundary::tls::ca::Ca;

    fn certificates(bundle: &[u8]) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(bundle)
            .collect::<Result<_, _>>()
            .unwrap()
    }

    fn ours(ca: &Ca) -> Ours {
        Ours::new(ca.pem()).unwrap()
    }

    #[test]
    fn a_bundle_keeps_its_own_roots_and_gets_the_ca() {
        let dir = tempfile::tempdir().unwrap();
        let [first, theirs, next] =
            ["first", "theirs", "next"].map(|name| Ca::create(&dir.path().join(name)).unwrap());
        let original = format!("# Issuer: somebody\n{}\n\n# the end", theirs.pem());
        assert_eq!(ours(&next).renewed(original.as_bytes()), None);
        let merged = ours(&first).merged(original.as_bytes()).unwrap();
        assert!(merged.ends_with(original.as_bytes()));
        let expected = [first.der().clone(), theirs.der().clone()];
        assert_eq!(certificates(&merged), expected);
        // Merged again, as in a namespace inside another: the CA that counts now, once.
        let again = ours(&next).merged(&merged).unwrap();
        let expected = [next.der().clone(), theirs.der().clone()];
        assert_eq!(certificates(&again), expected);
        // And written over.
        let mut renewed = merged;
        let front = ours(&next).renewed(&renewed).unwrap();
        renewed[..front.len()].copy_from_slice(&front);
        assert_eq!(renewed, again);
    }

    #[test]
    fn a_store_of_java_gets_it_too() {
        let dir = tempfile::tempdir().unwrap();
        let [first, next] =
            ["first", "next"].map(|name| Ca::create(&dir.path().join(name)).unwrap());
        let original = java::store([b"theirs".as_slice()]);
        assert_eq!(ours(&next).renewed(&original), None);
        let merged = ours(&first).merged(&original).unwrap();
        let renewed = ours(&next).renewed(&merged).unwrap();
        assert_eq!(renewed, ours(&next).merged(&original).unwrap());
    }

    #[test]
    fn what_is_no_bundle_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::create(dir.path()).unwrap();
        assert!(ours(&ca).merged(b"").is_err());
        assert!(ours(&ca).merged(b"-----BEGIN PRIVATE KEY-----\n").is_err());
        assert!(ours(&ca).merged(MARK).is_err());
        assert!(Ours::new("nothing").is_err());
        assert!(Ours::new(&ca.pem().repeat(9)).is_err());
    }
}
