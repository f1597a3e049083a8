//! How agents come to trust the CA: a full bundle, the variables that runtimes read, and the
//! system store.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use base64::Engine as _;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::ca::Ca;

/// Where Debian keeps locally added CAs, under the root of the file system.
const DEBIAN_LOCAL: &str = "usr/local/share/ca-certificates/acrfence.crt";

/// Variables whose value replaces the trusted roots: they need the full bundle.
const BUNDLE_VARIABLES: &[&str] = &[
    "SSL_CERT_FILE",                      // OpenSSL, Go, rustls-native-certs, httpx
    "REQUESTS_CA_BUNDLE",                 // Python requests
    "CURL_CA_BUNDLE",                     // curl's command line, requests
    "GIT_SSL_CAINFO",                     // git
    "CARGO_HTTP_CAINFO",                  // cargo
    "PIP_CERT",                           // pip
    "AWS_CA_BUNDLE",                      // AWS SDKs and CLI
    "CODEX_CA_CERTIFICATE",               // Codex
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",   // gRPC core
    "npm_config_cafile",                  // npm
    "NIX_SSL_CERT_FILE",                  // Nix
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", // gcloud
    "HTTPLIB2_CA_CERTS",                  // httplib2
];

/// Variables whose value is added to the trusted roots: the CA alone is enough.
const ADDING_VARIABLES: &[&str] = &[
    "NODE_EXTRA_CA_CERTS", // Node, Bun
    "DENO_CERT",           // Deno
];

/// The variables that make the runtimes of a child process trust the CA.
pub fn environment(bundle: &Path, ca: &Path) -> Vec<(String, String)> {
    let pairs = |names: &[&str], path: &Path| {
        let path = path.display().to_string();
        names
            .iter()
            .map(|name| ((*name).to_owned(), path.clone()))
            .collect::<Vec<_>>()
    };
    let mut all = pairs(BUNDLE_VARIABLES, bundle);
    all.extend(pairs(ADDING_VARIABLES, ca));
    // OpenSSL reads the directory as well as the file; the system's own stays valid beside it.
    if let Some(dir) = ["/etc/ssl/certs", "/etc/pki/tls/certs"]
        .into_iter()
        .find(|dir| Path::new(dir).is_dir())
    {
        all.push(("SSL_CERT_DIR".to_owned(), dir.to_owned()));
    }
    all
}

/// Writes the roots that this system trusts and the CA into one PEM file, and into one of Java's, in one step
/// each, readable by anyone. Returns how many roots they hold.
pub fn write_bundle(ca: &Ca, path: &Path, java: &Path) -> anyhow::Result<usize> {
    let mut roots = system_roots(ca);
    roots.insert(0, ca.der().clone());
    let mut text = String::new();
    for root in &roots {
        push_pem(&mut text, root);
    }
    let store = super::java::store(roots.iter().map(|root| root.as_ref()));
    for (path, bytes) in [(path, text.as_bytes()), (java, &store)] {
        replace(path, bytes)
            .with_context(|| format!("cannot write the trust bundle {}", path.display()))?;
    }
    Ok(roots.len())
}

fn replace(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let new = path.with_extension("new");
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o644);
    let mut file = options.open(&new)?;
    // Whatever the daemon's umask is: agents of all users read it.
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    fs::File::open(dir)?.sync_all()
}

/// The roots that this system trusts, without the CA itself; Mozilla's where the system has none.
pub fn system_roots(ca: &Ca) -> Vec<CertificateDer<'static>> {
    let native = rustls_native_certs::load_native_certs();
    for error in &native.errors {
        tracing::warn!("a file of the system's trusted roots cannot be read: {error}");
    }
    let mut roots = native.certs;
    roots.retain(|root| root != ca.der());
    if roots.is_empty() {
        tracing::warn!(
            "the system trusts no roots (is the package ca-certificates missing?); upstreams are verified against Mozilla's list"
        );
    }
    roots
}

/// Reads the certificates of a PEM file. A file without any is an error: it was named to be trusted.
pub fn read_roots(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let roots = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("{} does not read as PEM", path.display()))?;
    if roots.is_empty() {
        bail!("{} holds no certificate", path.display());
    }
    Ok(roots)
}

/// Whether this very CA is in the system's trust store, below `root`.
pub fn is_installed(ca: &Ca, root: &Path) -> bool {
    fs::read_to_string(root.join(DEBIAN_LOCAL)).is_ok_and(|pem| pem == ca.pem())
}

/// Puts the CA into the system's trust store, below `root` (`/` normally).
pub fn install(ca: &Ca, root: &Path) -> anyhow::Result<PathBuf> {
    let path = root.join(DEBIAN_LOCAL);
    let Some(dir) = path.parent().filter(|dir| dir.is_dir()) else {
        bail!(
            "this system has no {}; only Debian's and Ubuntu's trust store is known here: \
             add {} to your system's store by its own means",
            path.parent().unwrap_or(&path).display(),
            ca.path().display()
        );
    };
    fs::write(&path, ca.pem()).with_context(|| {
        format!(
            "cannot write to {}; `acrfence ca install` needs root",
            dir.display()
        )
    })?;
    update_certificates(root)?;
    Ok(path)
}

/// Takes the CA out of the system's trust store again. Says whether it was there.
pub fn uninstall(root: &Path) -> anyhow::Result<bool> {
    let path = root.join(DEBIAN_LOCAL);
    match fs::remove_file(&path) {
        Ok(()) => {
            update_certificates(root)?;
            Ok(true)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| {
            format!(
                "cannot remove {}; `acrfence ca uninstall` needs root",
                path.display()
            )
        }),
    }
}

fn update_certificates(root: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("update-ca-certificates");
    command.arg("--fresh");
    if root != Path::new("/") {
        for (option, dir) in [
            ("--certsconf", "etc/ca-certificates.conf"),
            ("--certsdir", "usr/share/ca-certificates"),
            ("--localcertsdir", "usr/local/share/ca-certificates"),
            ("--etccertsdir", "etc/ssl/certs"),
            ("--hooksdir", "etc/ca-certificates/update.d"),
        ] {
            command.arg(option).arg(root.join(dir));
        }
    }
    let output = command
        .output()
        .context("cannot run update-ca-certificates; install the package ca-certificates")?;
    if !output.status.success() {
        bail!(
            "update-ca-certificates failed ({}): {}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
}

fn push_pem(text: &mut String, certificate: &CertificateDer<'_>) {
    let encoded = base64::engine::general_purpose::STANDARD.encode(certificate);
    text.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, more) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = more;
    }
    text.push_str("-----END CERTIFICATE-----\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bundle_holds_the_ca_and_the_system_roots() {
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::create(dir.path()).unwrap();
        let path = dir.path().join("bundle.pem");
        let java = dir.path().join("bundle.jks");
        let count = write_bundle(&ca, &path, &java).unwrap();
        let read: Vec<_> = CertificateDer::pem_file_iter(&path)
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(read.len(), count);
        assert_eq!(&read[0], ca.der());
        assert_eq!(read.len(), system_roots(&ca).len() + 1);
    }

    #[test]
    fn the_system_store_takes_the_ca_and_gives_it_back() {
        let (dir, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let ca = Ca::create(dir.path()).unwrap();
        let error = install(&ca, root.path()).unwrap_err().to_string();
        assert!(error.contains("by its own means"), "{error}");
        for sub in [
            "etc/ca-certificates/update.d",
            "etc/ssl/certs",
            "usr/share/ca-certificates",
            "usr/local/share/ca-certificates",
        ] {
            fs::create_dir_all(root.path().join(sub)).unwrap();
        }
        fs::write(root.path().join("etc/ca-certificates.conf"), "").unwrap();
        // An empty store is never written.
        let other = Ca::create(&dir.path().join("other")).unwrap();
        let local = root
            .path()
            .join("usr/local/share/ca-certificates/other.crt");
        fs::write(local, other.pem()).unwrap();
        install(&ca, root.path()).unwrap();
        let store = root.path().join("etc/ssl/certs/ca-certificates.crt");
        let has = || {
            fs::read_to_string(&store)
                .unwrap()
                .contains(ca.pem().trim())
        };
        assert!(has());
        assert!(uninstall(root.path()).unwrap());
        assert!(!has());
        assert!(!uninstall(root.path()).unwrap());
    }

    #[test]
    fn replacing_variables_get_the_bundle_and_adding_ones_the_ca() {
        let all = environment(Path::new("/b.pem"), Path::new("/c.pem"));
        let value = |name: &str| all.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
        assert_eq!(value("SSL_CERT_FILE"), Some("/b.pem"));
        assert_eq!(value("NODE_EXTRA_CA_CERTS"), Some("/c.pem"));
    }
}
