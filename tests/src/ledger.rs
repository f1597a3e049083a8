//! Where a service writes down what it did: in memory, or in a file that several lives of a program
//! share, as a stdio server is started anew with every life of its agent.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Entries, oldest first; they are only ever added to.
pub struct Ledger<T> {
    file: Option<PathBuf>,
    entries: Mutex<Vec<T>>,
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self {
            file: None,
            entries: Mutex::default(),
        }
    }
}

impl<T: Clone + Serialize + DeserializeOwned> Ledger<T> {
    /// A ledger in `file`, one JSON object a line.
    pub fn in_file(file: PathBuf) -> Self {
        Self {
            file: Some(file),
            entries: Mutex::default(),
        }
    }

    /// All entries.
    pub fn entries(&self) -> Result<Vec<T>> {
        self.change(|entries| entries.clone())
    }

    /// Looks at the entries and adds to them, undisturbed by anybody else.
    pub fn change<R>(&self, change: impl FnOnce(&mut Vec<T>) -> R) -> Result<R> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(path) = &self.file else {
            return Ok(change(&mut entries));
        };
        let open = || -> Result<(File, Vec<T>)> {
            let mut file = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .open(path)?;
            file.lock()?;
            let mut text = String::new();
            file.read_to_string(&mut text)?;
            let read = text
                .lines()
                .map(serde_json::from_str)
                .collect::<Result<_, _>>()?;
            Ok((file, read))
        };
        let (mut file, read) = open().with_context(|| format!("reading {}", path.display()))?;
        *entries = read;
        let known = entries.len();
        let result = change(&mut entries);
        let mut added = String::new();
        for entry in &entries[known.min(entries.len())..] {
            added += &serde_json::to_string(entry)?;
            added.push('\n');
        }
        file.write_all(added.as_bytes())
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_share_a_file() -> Result<()> {
        let dir = tempfile::tempdir()?;
        let open = || Ledger::<String>::in_file(dir.path().join("ledger"));
        let (one, other) = (open(), open());
        one.change(|entries| entries.push("a".into()))?;
        other.change(|entries| entries.push("b".into()))?;
        one.change(|entries| entries.push("c".into()))?;
        assert_eq!(other.entries()?, ["a", "b", "c"]);
        assert_eq!(open().entries()?, ["a", "b", "c"]);
        Ok(())
    }
}
