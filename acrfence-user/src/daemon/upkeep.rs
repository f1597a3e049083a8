//! Looking after the effect log: verify, export, garbage collection, numbers.

use std::io::{self, Write};
use std::sync::Arc;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;

use super::api_errors::{bad, error, forbidden, log_error};
use super::service::Daemon;
use crate::control::{ApiError, CollectGarbage, ErrorCode, KeyRotated, LogStats, Peer};
use crate::effect::{Content, ExportFilter, GcKeep, GcPolicy, GcReport, Verification};

impl Daemon {
    /// `POST /v1/log/verify`.
    pub async fn verify_log(&self, peer: Peer) -> Result<Verification, ApiError> {
        self.check_root(peer)?;
        let store = self.store.clone();
        blocking(move || store.verify(&mut |_| {}).map_err(log_error)).await
    }

    /// `GET /v1/log/stats`.
    pub async fn log_stats(&self, peer: Peer) -> Result<LogStats, ApiError> {
        self.check_root(peer)?;
        let store = self.store.clone();
        let stats = blocking(move || store.stats().map_err(log_error)).await?;
        Ok(LogStats {
            last: stats.last,
            anchored: stats.anchored,
            anchor_trouble: stats.anchor_trouble,
            stopped: stats.stopped,
            segments: stats.segments,
            prepared: stats.prepared,
            in_doubt: stats.in_doubt,
            failed: stats.failed,
            notes_dropped: stats.notes_dropped,
            index_bytes: stats.index.bytes,
            index_waiting: stats.index.waiting as u64,
            index_rebuilds: stats.index.rebuilds,
            read_ahead: stats.index.read_ahead,
        })
    }

    /// `POST /v1/log/rotate-key`: new records are sealed with a fresh key.
    pub async fn rotate_key(&self, peer: Peer) -> Result<KeyRotated, ApiError> {
        self.check_root(peer)?;
        let store = self.store.clone();
        blocking(move || {
            let key = store.rotate_key().map_err(log_error)?;
            tracing::warn!("the effect log is sealed with key {key} from now on");
            Ok(KeyRotated {
                key,
                key_file: store.key_file().display().to_string(),
            })
        })
        .await
    }

    /// `POST /v1/log/gc`. What belongs to a running agent stays, whatever its age.
    pub async fn collect_garbage(
        &self,
        peer: Peer,
        wanted: CollectGarbage,
    ) -> Result<GcReport, ApiError> {
        self.check_root(peer)?;
        if wanted.older_than.is_none() && wanted.max_bytes.is_none() {
            return Err(bad("say what may go: `older_than` (a time) or `max_bytes`"));
        }
        let threads = self.pipeline.with_lineage(|lineage| {
            lineage
                .agents()
                .filter(|(_, line)| line.running().next().is_some())
                .flat_map(|(_, line)| line.threads.clone())
                .collect()
        });
        let keep = GcKeep {
            threads,
            branches: Default::default(),
        };
        let policy = GcPolicy {
            older_than: wanted.older_than,
            max_bytes: wanted.max_bytes,
        };
        let store = self.store.clone();
        let report = blocking(move || store.gc(&policy, &keep).map_err(log_error)).await;
        self.pipeline.0.news.forget();
        report
    }

    /// `GET /v1/log/export`: a JSON object a line, as fast as the reader takes them.
    pub fn export_log(
        &self,
        peer: Peer,
        filter: ExportFilter,
        content: Content,
    ) -> Result<impl Stream<Item = io::Result<Bytes>> + use<>, ApiError> {
        self.check_root(peer)?;
        let (sender, receiver) = mpsc::channel::<io::Result<Bytes>>(8);
        let store = self.store.clone();
        tokio::task::spawn_blocking(move || {
            let mut out = Pieces {
                sender,
                pending: Vec::new(),
            };
            let done = store
                .export(&filter, content, &mut out)
                .map_err(io::Error::other)
                .and_then(|_| out.flush());
            if let Err(e) = done {
                // The reader sees a body that breaks off, never a short one that looks whole.
                let _ = out.sender.blocking_send(Err(e));
            }
        });
        Ok(futures_util::stream::unfold(
            receiver,
            |mut receiver| async move { receiver.recv().await.map(|piece| (piece, receiver)) },
        ))
    }

    fn check_root(&self, peer: Peer) -> Result<(), ApiError> {
        if !peer.is_root() {
            return Err(forbidden("only root may look after the effect log"));
        }
        self.check_outside(peer)
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
        Err(error(
            ErrorCode::Unavailable,
            format!("the work ended badly: {e}"),
        ))
    })
}

/// Writes into a channel, a piece at a time.
struct Pieces {
    sender: mpsc::Sender<io::Result<Bytes>>,
    pending: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        if self.pending.len() >= 64 << 10 {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = Bytes::from(std::mem::take(&mut self.pending));
        if piece.is_empty() {
            return Ok(());
        }
        self.sender
            .blocking_send(Ok(piece))
            .map_err(|_| io::Error::new(io::ErrorKind::BrokenPipe, "the reader went away"))
    }
}

/// The store that the daemon looks after.
pub(super) type SharedStore = Arc<crate::effect::Store>;
