//! The client's side of the control API.

use std::path::{Path, PathBuf};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use super::api::{ApiError, ErrorCode};

/// Talks to a daemon, a connection a request.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

/// Why a request got no answer that can be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No daemon there.
    #[error("no acrfence daemon answers at {}: {source}. Start it with `systemctl start acrfence` (or `acrfence daemon`), or name another place with --run-dir", socket.display())]
    Unreachable {
        /// The socket tried.
        socket: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The daemon refused.
    #[error("{}", .0.error)]
    Refused(ApiError),
    /// The connection broke, or the answer does not read.
    #[error("the daemon's answer does not read ({0}); are client and daemon of the same version?")]
    Garbled(String),
}

impl ClientError {
    /// Exit status of the CLI for this error (`docs/cli.md`).
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Unreachable { .. } => 3,
            Self::Refused(e) if e.code == ErrorCode::Forbidden => 4,
            Self::Refused(e) if e.code == ErrorCode::NotFound => 5,
            Self::Refused(_) | Self::Garbled(_) => 1,
        }
    }
}

impl Client {
    /// A client of the daemon whose run directory this is.
    pub fn new(run_dir: &Path) -> Self {
        Self {
            socket: run_dir.join("control.sock"),
        }
    }

    /// `GET path`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(http::Method::GET, path, Bytes::new()).await
    }

    /// `POST path` with a JSON body.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|e| ClientError::Garbled(e.to_string()))?;
        self.call(http::Method::POST, path, body.into()).await
    }

    /// `DELETE path`.
    pub async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        self.call(http::Method::DELETE, path, Bytes::new()).await
    }

    /// `GET path`, an answer that comes line by line: each line is given to `take` as it arrives.
    pub async fn lines(
        &self,
        path: &str,
        mut take: impl FnMut(&str) -> std::io::Result<()>,
    ) -> Result<(), ClientError> {
        let garbled = |e: String| ClientError::Garbled(e);
        let response = self.send(http::Method::GET, path, Bytes::new()).await?;
        let mut body = response.into_body();
        let mut pending: Vec<u8> = Vec::new();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|e| garbled(e.to_string()))?;
            let Some(data) = frame.data_ref() else {
                continue;
            };
            pending.extend_from_slice(data);
            while let Some(end) = pending.iter().position(|&b| b == b'\n') {
                let line: Vec<u8> = pending.drain(..=end).collect();
                let text = String::from_utf8_lossy(&line);
                take(text.trim_end()).map_err(|e| garbled(e.to_string()))?;
            }
        }
        Ok(())
    }

    async fn call<T: DeserializeOwned>(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> Result<T, ClientError> {
        let response = self.send(method, path, body).await?;
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(|e| ClientError::Garbled(e.to_string()))?
            .to_bytes();
        serde_json::from_slice(&bytes).map_err(|e| ClientError::Garbled(e.to_string()))
    }

    async fn send(
        &self,
        method: http::Method,
        path: &str,
        body: Bytes,
    ) -> Result<http::Response<hyper::body::Incoming>, ClientError> {
        let unreachable = |source| ClientError::Unreachable {
            socket: self.socket.clone(),
            source,
        };
        let garbled = |e: hyper::Error| ClientError::Garbled(e.to_string());
        let stream = UnixStream::connect(&self.socket)
            .await
            .map_err(unreachable)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(garbled)?;
        tokio::spawn(connection);
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header(http::header::HOST, "acrfence")
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|e| ClientError::Garbled(e.to_string()))?;
        let response = sender.send_request(request).await.map_err(garbled)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let bytes = response
            .into_body()
            .collect()
            .await
            .map_err(garbled)?
            .to_bytes();
        let said = serde_json::from_slice(&bytes).unwrap_or_else(|_| ApiError {
            error: format!(
                "the daemon answered HTTP {status}: {}",
                String::from_utf8_lossy(&bytes)
                    .chars()
                    .take(300)
                    .collect::<String>()
            ),
            code: ErrorCode::Unavailable,
        });
        Err(ClientError::Refused(said))
    }
}
