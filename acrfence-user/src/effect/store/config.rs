//! Where the effect log lies and how it is laid out.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::effect::LogError;
use crate::effect::journal::{Settings, frame, segment};

/// Where the effect log lies and how it is laid out.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Directory of journal, bodies and index. Made with mode 0700; a looser one is refused.
    pub state_dir: PathBuf,
    /// Key file, outside `state_dir`. Made with mode 0600 for a new log; a looser one is refused.
    /// A systemd credential (`$CREDENTIALS_DIRECTORY/NAME`) works as well.
    pub key_file: PathBuf,
    /// Anchor file, outside `state_dir`, best where a snapshot of the machine does not reach.
    pub anchor_file: PathBuf,
    /// Bytes of a journal segment.
    pub segment_size: u64,
    /// Records that are longer go into a body file.
    pub body_inline_max: usize,
    /// Room kept in the journal for the outcome of a running effect. A longer outcome is kept whole
    /// as long as the disk has room for a body file; on a full disk it is shortened to this.
    pub outcome_room: usize,
    /// Bytes of memory for the index.
    pub index_cache: u64,
    /// At least this long between two writes of the anchor.
    pub anchor_write: Duration,
    /// At least this long between two syncs of the anchor.
    pub anchor_sync: Duration,
}

/// Name of the systemd credential that holds the key.
const CREDENTIAL: &str = "acrfence-log";

/// Where the key is when nobody says: the systemd credential `acrfence-log`, where the service has one,
/// otherwise `/etc/acrfence/log.key`.
pub fn usual_key_file() -> PathBuf {
    std::env::var_os("CREDENTIALS_DIRECTORY")
        .map(|dir| Path::new(&dir).join(CREDENTIAL))
        .filter(|credential| credential.is_file())
        .unwrap_or_else(|| PathBuf::from("/etc/acrfence/log.key"))
}

impl StoreConfig {
    /// The usual layout.
    pub fn new(
        state_dir: impl Into<PathBuf>,
        key_file: impl Into<PathBuf>,
        anchor_file: impl Into<PathBuf>,
    ) -> Self {
        Self {
            state_dir: state_dir.into(),
            key_file: key_file.into(),
            anchor_file: anchor_file.into(),
            segment_size: 32 << 20,
            body_inline_max: 64 << 10,
            outcome_room: 1 << 20,
            index_cache: 128 << 20,
            anchor_write: Duration::from_millis(5),
            anchor_sync: Duration::from_secs(1),
        }
    }

    /// The index directory.
    pub fn index_dir(&self) -> PathBuf {
        self.state_dir.join("index")
    }

    /// Says what is wrong with the layout, if anything is.
    pub(super) fn check(&self) -> Result<(), LogError> {
        let largest = frame::length(self.body_inline_max.max(self.outcome_room)) as u64;
        let least = 4 * largest + segment::HEADER as u64;
        if self.segment_size < least || self.segment_size > u64::from(u32::MAX) {
            return Err(LogError::Unusable(format!(
                "a segment size of {} bytes does not do: with these bounds on records it must lie between {least} and {}",
                self.segment_size,
                u32::MAX
            )));
        }
        if self.index_cache < 1 << 20 {
            return Err(LogError::Unusable(format!(
                "an index cache of {} bytes does not do: at least 1 MiB is needed",
                self.index_cache
            )));
        }
        for (what, file) in [("key", &self.key_file), ("anchor", &self.anchor_file)] {
            if is_inside(file, &self.state_dir) {
                return Err(LogError::Unusable(format!(
                    "the {what} file {} lies inside the state directory, where it is copied and rolled back together with what it protects; give a path elsewhere",
                    file.display()
                )));
            }
        }
        Ok(())
    }

    pub(super) fn settings(&self) -> Settings {
        Settings {
            dir: self.state_dir.join("journal"),
            bodies: self.state_dir.join("bodies"),
            anchor: self.anchor_file.clone(),
            keys: self.key_file.clone(),
            segment_size: self.segment_size,
            inline_max: self.body_inline_max,
            outcome_room: self.outcome_room,
            anchor_write: self.anchor_write,
            anchor_sync: self.anchor_sync,
        }
    }
}

fn is_inside(file: &Path, dir: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    let parent = file.parent().unwrap_or(Path::new("."));
    match (real(parent), real(dir)) {
        (Some(parent), Some(dir)) => parent.starts_with(dir),
        _ => file.starts_with(dir),
    }
}
