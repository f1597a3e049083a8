//! The keys that live outside the state directory, and what is derived from them.
//!
//! The key file is text, one key a line: `acrfence-key-1 ID HEX`, `#` begins a comment. The last
//! key seals new records, the others open old ones, the first one makes what must never change
//! (index keys, fingerprints). A file of exactly 32 raw bytes or of 64 hex digits is one key, so
//! that a systemd credential can be made with `head -c32 /dev/urandom`.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use chacha20poly1305::aead::{Aead as _, KeyInit as _, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use ed25519_dalek::{Signature, Signer as _, SigningKey, Verifier as _, VerifyingKey};
use hmac::{Hmac, Mac as _};
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

use crate::effect::LogError;

/// Names one store for ever: what the keys derive from, besides the key file.
pub type StoreId = [u8; 16];

const PREFIX: &str = "acrfence-key-1";
const FILE_MAX: u64 = 1 << 20;

/// The keys of a key file, not yet bound to a store.
pub struct KeyFile {
    masters: Vec<Zeroizing<[u8; 32]>>,
}

/// The keys of one store.
pub struct Keyring {
    keys: Vec<Keys>,
    lasting: Zeroizing<[u8; 32]>,
}

/// What one key of the file gives.
pub struct Keys {
    /// How records name it.
    pub id: u32,
    seal: XChaCha20Poly1305,
    mac: Hmac<Sha256>,
    signing: SigningKey,
}

// === impl KeyFile ===

impl KeyFile {
    /// Reads the key file; where there is none and `may_create`, makes one with a fresh key.
    pub fn load(path: &Path, may_create: bool) -> Result<Self, LogError> {
        match read_private(path) {
            Ok(bytes) => Self::parse(&bytes).map_err(|why| {
                LogError::Unusable(format!(
                    "the key file {} cannot be used: {why}; put the right one back, without it the effect log cannot be read",
                    path.display()
                ))
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound && may_create => {
                let made = Self {
                    masters: vec![fresh_key()?],
                };
                made.store(path)?;
                Ok(made)
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(LogError::Unusable(format!(
                "the key file {} is missing; put it back from where you keep its copy, without it the effect log cannot be read",
                path.display()
            ))),
            Err(e) => Err(LogError::Unusable(format!(
                "the key file {} cannot be read: {e}",
                path.display()
            ))),
        }
    }

    /// Adds a fresh key, which seals from then on, and writes the file.
    pub fn rotate(&mut self, path: &Path) -> Result<(), LogError> {
        self.masters.push(fresh_key()?);
        let stored = self.store(path);
        if stored.is_err() {
            self.masters.pop();
        }
        stored
    }

    /// The keys as this store uses them.
    pub fn bind(&self, store: &StoreId) -> Keyring {
        Keyring {
            keys: self
                .masters
                .iter()
                .map(|master| Keys::derive(master, store))
                .collect(),
            lasting: Zeroizing::new(derive(&self.masters[0], store, "lasting")),
        }
    }

    /// The keys in the bytes of a key file.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        if let Ok(raw) = <[u8; 32]>::try_from(bytes) {
            return Ok(Self {
                masters: vec![Zeroizing::new(raw)],
            });
        }
        let text = std::str::from_utf8(bytes)
            .map_err(|_| "it is neither 32 raw bytes nor text".to_owned())?;
        if let Some(master) = hex_key(text.trim()) {
            return Ok(Self {
                masters: vec![master],
            });
        }
        let mut masters = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] => {}
                [PREFIX, id, hex] => {
                    let master = hex_key(hex)
                        .ok_or_else(|| format!("line {} holds no 64 hex digits", number + 1))?;
                    if format!("{:08x}", key_id(&master)) != id {
                        return Err(format!("the key in line {} is not key {id}", number + 1));
                    }
                    masters.push(master);
                }
                _ => return Err(format!("line {} is not `{PREFIX} ID HEX`", number + 1)),
            }
        }
        if masters.is_empty() {
            return Err("it holds no key".to_owned());
        }
        Ok(Self { masters })
    }

    fn store(&self, path: &Path) -> Result<(), LogError> {
        let failed = |e: io::Error| {
            LogError::Unusable(format!(
                "the key file {} cannot be written: {e}; give a path that the daemon may write, or (systemd credential) add the key yourself",
                path.display()
            ))
        };
        let mut text = Zeroizing::new(String::from(
            "# Keys of the ACRFence effect log. Keep a copy elsewhere: without them the log cannot be read.\n\
             # The last key seals new records, the others open old ones.\n",
        ));
        for master in &self.masters {
            let hex = Zeroizing::new(hex::encode(&master[..]));
            text.push_str(&format!("{PREFIX} {:08x} {}\n", key_id(master), &hex[..]));
        }
        let dir = path.parent().unwrap_or(Path::new("."));
        let new = path.with_extension("new");
        let write = || -> io::Result<()> {
            let _ = fs::remove_file(&new);
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&new, path)?;
            fs::File::open(if dir.as_os_str().is_empty() {
                Path::new(".")
            } else {
                dir
            })?
            .sync_all()
        };
        write().map_err(failed)
    }
}

// === impl Keyring ===

impl Keyring {
    /// The key that seals new records.
    #[expect(
        clippy::expect_used,
        reason = "a key file without a key is refused when it is read"
    )]
    pub fn current(&self) -> &Keys {
        self.keys.last().expect("at least one key")
    }

    /// The key with this id.
    pub fn get(&self, id: u32) -> Option<&Keys> {
        self.keys.iter().find(|keys| keys.id == id)
    }

    /// Ids, oldest first.
    pub fn ids(&self) -> Vec<u32> {
        self.keys.iter().map(|keys| keys.id).collect()
    }

    /// A secret that stays the same when the sealing key is rotated.
    pub fn lasting_secret(&self, purpose: &str) -> [u8; 32] {
        hmac(&self.lasting[..], &[purpose.as_bytes()])
    }
}

// === impl Keys ===

impl Keys {
    fn derive(master: &[u8; 32], store: &StoreId) -> Self {
        let sealing = Zeroizing::new(derive(master, store, "seal"));
        let signing = Zeroizing::new(derive(master, store, "sign"));
        Self {
            id: key_id(master),
            seal: XChaCha20Poly1305::new((&*sealing).into()),
            mac: keyed(&derive(master, store, "chain")),
            signing: SigningKey::from_bytes(&signing),
        }
    }

    /// Seals `plain`; `context` must be the same to open it.
    pub fn seal(
        &self,
        nonce: &[u8; 24],
        plain: &[u8],
        context: &[u8],
    ) -> Result<Vec<u8>, LogError> {
        let payload = Payload {
            msg: plain,
            aad: context,
        };
        self.seal
            .encrypt(&XNonce::from(*nonce), payload)
            .map_err(|_| LogError::Unusable("the record is too long to be sealed".to_owned()))
    }

    /// Opens what [`Self::seal`] made; none when it is not that.
    pub fn open(&self, nonce: &[u8; 24], sealed: &[u8], context: &[u8]) -> Option<Vec<u8>> {
        let payload = Payload {
            msg: sealed,
            aad: context,
        };
        self.seal.decrypt(&XNonce::from(*nonce), payload).ok()
    }

    /// Keyed hash of a chain hash.
    pub fn mac(&self, chain: &[u8; 32]) -> [u8; 16] {
        let mut mac = self.mac.clone();
        mac.update(chain);
        let full = mac.finalize().into_bytes();
        let mut short = [0; 16];
        short.copy_from_slice(&full[..16]);
        short
    }

    /// Signs `message`.
    pub fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.signing.sign(message).to_bytes()
    }

    /// Whether `signature` is this key's over `message`.
    pub fn signed(&self, message: &[u8], signature: &[u8; 64]) -> bool {
        self.public()
            .verify(message, &Signature::from_bytes(signature))
            .is_ok()
    }

    /// The public half of the signing key.
    pub fn public(&self) -> VerifyingKey {
        self.signing.verifying_key()
    }
}

/// HMAC-SHA256 of `parts`, one after the other.
pub fn hmac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = keyed(key);
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// An HMAC-SHA256 that has taken its key.
#[expect(clippy::expect_used, reason = "HMAC takes keys of any length")]
pub fn keyed(key: &[u8]) -> Hmac<Sha256> {
    Hmac::<Sha256>::new_from_slice(key).expect("any length will do")
}

/// Fills `bytes` from the kernel's random source.
pub fn random<const N: usize>() -> Result<[u8; N], LogError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|e| LogError::Unusable(format!("the kernel gives no random bytes: {e}")))?;
    Ok(bytes)
}

fn derive(master: &[u8; 32], store: &StoreId, purpose: &str) -> [u8; 32] {
    hmac(
        master,
        &[b"acrfence effect log 1 ", store, purpose.as_bytes()],
    )
}

fn key_id(master: &[u8; 32]) -> u32 {
    let mut hash = Sha256::new();
    hash.update(b"acrfence key id");
    hash.update(master);
    let digest = hash.finalize();
    u32::from_be_bytes([digest[0], digest[1], digest[2], digest[3]])
}

fn hex_key(text: &str) -> Option<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    hex::decode_to_slice(text, &mut key[..]).ok()?;
    Some(key)
}

fn fresh_key() -> Result<Zeroizing<[u8; 32]>, LogError> {
    random().map(Zeroizing::new)
}

fn read_private(path: &Path) -> io::Result<Zeroizing<Vec<u8>>> {
    let meta = fs::metadata(path)?;
    let mode = meta.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(io::Error::other(format!(
            "it has mode {mode:04o}, so others can read the keys; run `chmod 600 {}`",
            path.display()
        )));
    }
    if meta.len() > FILE_MAX {
        return Err(io::Error::other("it is far too long for a key file"));
    }
    fs::read(path).map(Zeroizing::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_key_file_is_made_private_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.key");
        let made = KeyFile::load(&path, true).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        let mut again = KeyFile::load(&path, false).unwrap();
        let store = [7; 16];
        assert_eq!(
            made.bind(&store).current().id,
            again.bind(&store).current().id
        );

        let before = again.bind(&store);
        again.rotate(&path).unwrap();
        let after = KeyFile::load(&path, false).unwrap().bind(&store);
        assert_eq!(after.ids().len(), 2);
        assert_ne!(after.current().id, before.current().id);
        assert_eq!(after.lasting_secret("x"), before.lasting_secret("x"));
        let sealed = before
            .current()
            .seal(&[1; 24], b"plain", b"context")
            .unwrap();
        let old = after.get(before.current().id).unwrap();
        assert_eq!(old.open(&[1; 24], &sealed, b"context").unwrap(), b"plain");
        assert!(old.open(&[1; 24], &sealed, b"other").is_none());
        assert!(
            after
                .current()
                .open(&[1; 24], &sealed, b"context")
                .is_none()
        );
    }

    #[test]
    fn keys_that_others_can_read_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log.key");
        KeyFile::load(&path, true).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let said = KeyFile::load(&path, true).err().unwrap().to_string();
        assert!(
            said.contains("0640") && said.contains("chmod 600"),
            "{said}"
        );
    }

    #[test]
    fn raw_and_hex_credentials_are_keys() {
        assert!(KeyFile::parse(&[9; 32]).is_ok());
        assert!(KeyFile::parse(format!("{}\n", "ab".repeat(32)).as_bytes()).is_ok());
        for bad in [
            "",
            "# nothing\n",
            "acrfence-key-1 00000000 ff\n",
            "what is this\n",
            "\u{fffd}",
        ] {
            assert!(KeyFile::parse(bad.as_bytes()).is_err(), "{bad}");
        }
        let typo = format!("{PREFIX} 00000000 {}", "ab".repeat(32));
        assert!(KeyFile::parse(typo.as_bytes()).is_err());
    }
}
