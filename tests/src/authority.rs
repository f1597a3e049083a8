//! A certificate authority that lives as long as one test.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result};
use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DnType, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;

/// Signs the certificates of the services. Its root is a file, as clients and the daemon want it.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    dir: TempDir,
}

impl Authority {
    /// A new authority with a new key.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params
            .distinguished_name
            .push(DnType::CommonName, "Testbed root, trust nowhere else");
        let key = KeyPair::generate().context("making the testbed's root key")?;
        let root = params
            .self_signed(&key)
            .context("signing the testbed's root")?;
        let dir = tempfile::Builder::new()
            .prefix("acrfence-testbed-ca-")
            .tempdir()
            .context("making a directory for the testbed's root")?;
        std::fs::write(dir.path().join("root.pem"), root.pem())?;
        Ok(Self {
            issuer: Issuer::new(params, key),
            dir,
        })
    }

    /// The root certificate, PEM.
    pub fn root(&self) -> PathBuf {
        self.dir.path().join("root.pem")
    }

    /// What a server needs to be `localhost` (and its addresses) over HTTP/1.1 and HTTP/2.
    pub fn server(&self) -> Result<Arc<rustls::ServerConfig>> {
        let (leaf, key) = self.leaf()?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![leaf.into()], key)?;
        config.alpn_protocols = vec![b"h2".into(), b"http/1.1".into()];
        Ok(Arc::new(config))
    }

    /// The same for servers that want files: certificate and key, PEM.
    pub fn server_files(&self) -> Result<[String; 2]> {
        let (leaf, key) = self.leaf()?;
        let write = |name: &str, pem: String| -> Result<String> {
            let path = self.dir.path().join(name);
            std::fs::write(&path, pem)?;
            Ok(path.to_string_lossy().into_owned())
        };
        Ok([
            write("server.pem", leaf.pem())?,
            write("server-key.pem", key.serialize_pem())?,
        ])
    }

    fn leaf(&self) -> Result<(Certificate, KeyPair)> {
        let key = KeyPair::generate()?;
        let names = ["localhost", "127.0.0.1", "::1"].map(String::from);
        let mut params = CertificateParams::new(names)?;
        params
            .distinguished_name
            .push(DnType::CommonName, "testbed service");
        // Python 3.13 and later refuse a chain without it.
        params.use_authority_key_identifier_extension = true;
        Ok((params.signed_by(&key, &self.issuer)?, key))
    }
}

/// The variables through which common runtimes learn which roots to trust, all set to `bundle`.
///
/// The tests' own list, on purpose: it is what clients read (see `docs/testing.md`), not what the
/// daemon believes they read.
pub fn trust(bundle: &Path) -> Vec<(&'static str, PathBuf)> {
    [
        "SSL_CERT_FILE",
        "REQUESTS_CA_BUNDLE",
        "CURL_CA_BUNDLE",
        "NODE_EXTRA_CA_CERTS",
    ]
    .map(|name| (name, bundle.to_path_buf()))
    .into()
}
