//! Large payloads in files of their own, named by the SHA-256 of their (sealed) content and synced,
//! with their directory, before the record that names them is written.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use super::disk::{Disk, read_range};
use super::frame::Hash;

/// Length of what a record holds instead of the payload: digest and length.
pub const NAME: usize = 40;

/// The directory of body files.
pub struct Bodies {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    /// What half-written files of this run begin with.
    new_prefix: String,
    /// Directories that are known to be there, durably.
    shards: Mutex<HashSet<PathBuf>>,
    /// Stored, and not yet named by a record that is on disk.
    unnamed: Mutex<HashSet<Hash>>,
}

impl Bodies {
    /// The bodies under `dir`, which is made when it is missing.
    pub fn open(disk: Arc<dyn Disk>, dir: PathBuf) -> io::Result<Self> {
        disk.create_dir(&dir)?;
        Ok(Self::at(disk, dir))
    }

    /// The bodies under `dir`, for reading only.
    pub fn at(disk: Arc<dyn Disk>, dir: PathBuf) -> Self {
        Self {
            disk,
            dir,
            new_prefix: format!("new-{}-", super::anchor::now().0),
            shards: Mutex::default(),
            unnamed: Mutex::default(),
        }
    }

    /// Stores `content` durably and returns what names it.
    pub fn store(&self, content: &[u8], unique: u64) -> io::Result<[u8; NAME]> {
        let digest: Hash = Sha256::digest(content).into();
        let mut name = [0; NAME];
        name[..32].copy_from_slice(&digest);
        name[32..].copy_from_slice(&(content.len() as u64).to_le_bytes());

        self.unnamed.lock().insert(digest);
        let shard = self.shard(&hex::encode(digest));
        let new = shard.join(format!("{}{unique}", self.new_prefix));
        let stored = self.store_as(&shard, &new, &digest, content);
        if stored.is_err() {
            let _ = self.disk.remove(&new);
            self.named(&digest);
        }
        stored.map(|()| name)
    }

    /// Reads the body that a record names and checks its digest.
    pub fn load(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        let (digest, len) = split(name)?;
        let file = self.disk.open(&self.path(&digest))?;
        if file.size()? != len {
            return Err(io::Error::other(format!(
                "the body file {} has {} bytes instead of {len}",
                hex::encode(digest),
                file.size()?
            )));
        }
        let content = read_range(&*file, 0, len as usize)?;
        if Sha256::digest(&content)[..] != digest {
            return Err(io::Error::other(format!(
                "the body file {} does not hold what its name says",
                hex::encode(digest)
            )));
        }
        Ok(content)
    }

    /// Removes the body that a record names; nothing when it is gone.
    pub fn remove(&self, digest: &Hash) -> io::Result<()> {
        match self.disk.remove(&self.path(digest)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// A record that names the body is on disk (or never will be).
    pub fn named(&self, digest: &Hash) {
        self.unnamed.lock().remove(digest);
    }

    /// Bytes of a body file.
    pub fn size(&self, digest: &Hash) -> io::Result<u64> {
        self.disk.open(&self.path(digest))?.size()
    }

    /// Bytes of all body files.
    pub fn bytes(&self) -> io::Result<u64> {
        let mut sum = 0;
        for digest in self.list()? {
            sum += self.size(&digest).unwrap_or(0);
        }
        Ok(sum)
    }

    /// Removes what an earlier run left half-written; returns how many files that were.
    pub fn remove_leftovers(&self) -> io::Result<u64> {
        let mut count = 0;
        for shard in self.disk.list(&self.dir)? {
            let shard = self.dir.join(shard);
            for name in self.disk.list(&shard).unwrap_or_default() {
                if name.starts_with("new-") && !name.starts_with(&self.new_prefix) {
                    self.disk.remove(&shard.join(name))?;
                    count += 1;
                }
            }
        }
        Ok(count)
    }

    /// Digests of the body files that no record is about to name.
    pub fn at_rest(&self) -> io::Result<Vec<Hash>> {
        let mut all = self.list()?;
        let unnamed = self.unnamed.lock();
        all.retain(|digest| !unnamed.contains(digest));
        Ok(all)
    }

    /// Digests of all body files.
    fn list(&self) -> io::Result<Vec<Hash>> {
        let mut all = Vec::new();
        for shard in self.disk.list(&self.dir)? {
            for name in self.disk.list(&self.dir.join(&shard)).unwrap_or_default() {
                let mut digest = [0; 32];
                if hex::decode_to_slice(&name, &mut digest).is_ok() {
                    all.push(digest);
                }
            }
        }
        Ok(all)
    }

    /// Where a body lies.
    pub fn path(&self, digest: &Hash) -> PathBuf {
        let name = hex::encode(digest);
        self.shard(&name).join(name)
    }

    fn store_as(&self, shard: &Path, new: &Path, digest: &Hash, content: &[u8]) -> io::Result<()> {
        if !self.shards.lock().contains(shard) {
            self.disk.create_dir(shard)?;
            self.disk.sync_dir(&self.dir)?;
            self.shards.lock().insert(shard.to_owned());
        }
        let file = self.disk.create(new)?;
        file.write_at(content, 0)?;
        file.sync()?;
        self.disk.rename(new, &self.path(digest))?;
        self.disk.sync_dir(shard)
    }

    fn shard(&self, name: &str) -> PathBuf {
        self.dir.join(&name[..2])
    }
}

/// Digest and length in the name of a body.
pub fn split(name: &[u8]) -> io::Result<(Hash, u64)> {
    let Some((digest, len)) = name.split_first_chunk::<32>() else {
        return Err(io::Error::other("the name of its body is too short"));
    };
    let Ok(len) = <[u8; 8]>::try_from(len) else {
        return Err(io::Error::other("the name of its body has a wrong length"));
    };
    let len = u64::from_le_bytes(len);
    if len > super::frame::PAYLOAD_MAX as u64 {
        return Err(io::Error::other("the length of its body is out of range"));
    }
    Ok((*digest, len))
}
