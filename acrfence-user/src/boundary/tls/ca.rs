//! The local certificate authority: made once, kept under the state directory, trusted by agents.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use rustls::sign::CertifiedKey;

pub use super::trust::{environment, install, uninstall, write_bundle};

/// File name of the CA certificate inside its directory; may be read by anyone.
pub const CERTIFICATE_FILE: &str = "ca.pem";
/// File name of the CA key inside its directory; only the daemon's user may read it.
pub const KEY_FILE: &str = "ca-key.pem";

/// File name of the certificate that was in use before the last rotation.
pub const PREVIOUS_FILE: &str = "ca-previous.pem";

const CA_LIFE: Duration = Duration::from_secs(5 * 365 * DAY);
const LEAF_LIFE: Duration = Duration::from_secs(7 * DAY);
/// Agents' clocks may be behind ours.
const BACKDATED: Duration = Duration::from_secs(DAY);
const DAY: u64 = 24 * 60 * 60;

/// The local CA: signs one leaf for every name that agents ask for.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    pem: String,
    path: PathBuf,
}

impl Ca {
    /// Makes a new CA in `dir`. Refuses to overwrite one: agents trust it.
    pub fn create(dir: &Path) -> anyhow::Result<Self> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o755);
        builder
            .create(dir)
            .with_context(|| format!("cannot create the CA directory {}", dir.display()))?;
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("cannot make a CA key")?;
        let certificate = ca_params(&key)?
            .self_signed(&key)
            .context("cannot sign the CA certificate")?;
        // The key first: a certificate without a key would look like a CA that lost it.
        write_new(&dir.join(KEY_FILE), 0o600, key.serialize_pem().as_bytes())?;
        write_new(
            &dir.join(CERTIFICATE_FILE),
            0o644,
            certificate.pem().as_bytes(),
        )?;
        fs::File::open(dir)
            .and_then(|d| d.sync_all())
            .with_context(|| format!("cannot sync {}", dir.display()))?;
        Self::load(dir)
    }

    /// Reads the CA of `dir`.
    pub fn load(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join(CERTIFICATE_FILE);
        let key_path = dir.join(KEY_FILE);
        let pem = fs::read_to_string(&path).with_context(|| {
            format!(
                "cannot read the CA certificate {}; `acrfence ca init` makes one",
                path.display()
            )
        })?;
        let mode = fs::metadata(&key_path)
            .with_context(|| {
                format!(
                    "cannot find the CA key {}; without it the CA is of no use: remove {} and run `acrfence ca init`",
                    key_path.display(),
                    path.display()
                )
            })?
            .permissions()
            .mode();
        if mode & 0o077 != 0 {
            bail!(
                "the CA key {} can be read by others (mode {:o}): whoever copied it can read every agent's traffic; \
                 if nobody did, `chmod 600` it, otherwise remove it and run `acrfence ca init`",
                key_path.display(),
                mode & 0o777
            );
        }
        let key_pem = fs::read_to_string(&key_path)
            .with_context(|| format!("cannot read the CA key {}", key_path.display()))?;
        let key = KeyPair::from_pem(&key_pem).with_context(|| {
            format!(
                "the CA key {} is damaged; restore it from a backup, or remove it and {} and run `acrfence ca init`",
                key_path.display(),
                path.display()
            )
        })?;
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|e| anyhow::anyhow!("the CA certificate {} is damaged ({e}); remove it and the key and run `acrfence ca init`", path.display()))?;
        let public = key.public_key_raw();
        if !certificate.windows(public.len()).any(|w| w == public) {
            bail!(
                "{} and {} do not belong together; remove both and run `acrfence ca init`",
                path.display(),
                key_path.display()
            );
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .with_context(|| format!("the CA certificate {} cannot sign leaves", path.display()))?;
        Ok(Self {
            issuer,
            certificate: certificate.into_owned(),
            pem,
            path,
        })
    }

    /// Reads the CA of `dir`, or makes one where there is none.
    pub fn load_or_create(dir: &Path) -> anyhow::Result<Self> {
        if dir.join(CERTIFICATE_FILE).exists() || dir.join(KEY_FILE).exists() {
            Self::load(dir)
        } else {
            Self::create(dir)
        }
    }

    /// Takes the place of the CA in `dir`, whose certificate is kept beside it as
    /// [`PREVIOUS_FILE`]. Agents that trust only the old one must be started again.
    pub fn rotate(dir: &Path) -> anyhow::Result<Self> {
        Self::load(dir).context("only a CA that is whole can be rotated")?;
        let fresh = dir.join(".rotating");
        if fresh.exists() {
            fs::remove_dir_all(&fresh).with_context(|| {
                format!(
                    "cannot remove what is left of an earlier rotation, {}",
                    fresh.display()
                )
            })?;
        }
        Self::create(&fresh)?;
        let steps = [
            (dir.join(CERTIFICATE_FILE), dir.join(PREVIOUS_FILE)),
            (fresh.join(KEY_FILE), dir.join(KEY_FILE)),
            (fresh.join(CERTIFICATE_FILE), dir.join(CERTIFICATE_FILE)),
        ];
        for (from, to) in &steps {
            fs::rename(from, to)
                .with_context(|| format!("cannot move {} to {}", from.display(), to.display()))?;
        }
        fs::remove_dir(&fresh)
            .and_then(|()| fs::File::open(dir)?.sync_all())
            .with_context(|| format!("cannot sync {}", dir.display()))?;
        Self::load(dir)
    }

    /// The certificate, as agents must trust it.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Where the certificate is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The certificate, DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// A leaf for `subject`, with its key, ready for a handshake.
    pub fn leaf(&self, subject: &Subject) -> anyhow::Result<Arc<CertifiedKey>> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).context("cannot make a key")?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named("ACRFence leaf");
        params.subject_alt_names = vec![match subject {
            Subject::Name(name) => SanType::DnsName(
                name.as_str()
                    .try_into()
                    .with_context(|| format!("`{name}` cannot stand in a certificate"))?,
            ),
            Subject::Address(address) => SanType::IpAddress(*address),
        }];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.is_ca = IsCa::ExplicitNoCa;
        valid(&mut params, LEAF_LIFE);
        let certificate = params
            .signed_by(&key, &self.issuer)
            .context("cannot sign a leaf")?;
        let private = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let signer = rustls::crypto::aws_lc_rs::sign::any_supported_type(&private)
            .context("cannot use the key of a leaf")?;
        Ok(Arc::new(CertifiedKey::new(
            vec![certificate.der().clone()],
            signer,
        )))
    }
}

/// What a leaf is for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A DNS name, lower case, as in the handshake.
    Name(String),
    /// The address the agent dialled, where it sent no name.
    Address(IpAddr),
}

fn ca_params(key: &KeyPair) -> anyhow::Result<CertificateParams> {
    let mut params = CertificateParams::default();
    // Part of the key's own digest tells two CAs of one machine apart in a trust store.
    let id = hex::encode(&params.key_identifier(key)[..4]);
    params.distinguished_name = named(&format!("ACRFence local CA {id}"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    valid(&mut params, CA_LIFE);
    Ok(params)
}

fn named(name: &str) -> DistinguishedName {
    let mut distinguished = DistinguishedName::new();
    distinguished.push(DnType::OrganizationName, "ACRFence");
    distinguished.push(DnType::CommonName, name);
    distinguished
}

fn valid(params: &mut CertificateParams, life: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + life).into();
}

fn write_new(path: &Path, mode: u32, contents: &[u8]) -> anyhow::Result<()> {
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(path)
        .with_context(|| {
            format!(
                "cannot create {}; a CA that is there already is kept, because agents trust it",
                path.display()
            )
        })?;
    file.write_all(contents)
        .and_then(|()| file.sync_all())
        .with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ca_is_made_once_and_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let made = Ca::create(dir.path()).unwrap();
        let read = Ca::load(dir.path()).unwrap();
        assert_eq!(made.der(), read.der());
        let mode = fs::metadata(dir.path().join(KEY_FILE))
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(
            Ca::create(dir.path()).is_err(),
            "an existing CA must be kept"
        );
    }

    #[test]
    fn a_rotation_makes_a_new_ca_and_keeps_the_old_certificate() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Ca::rotate(dir.path()).is_err(), "nothing to rotate");
        let old = Ca::create(dir.path()).unwrap();
        let new = Ca::rotate(dir.path()).unwrap();
        assert_ne!(old.der(), new.der());
        assert_eq!(Ca::load(dir.path()).unwrap().der(), new.der());
        let kept = fs::read_to_string(dir.path().join(PREVIOUS_FILE)).unwrap();
        assert_eq!(kept, old.pem());
        new.leaf(&Subject::Name("bank.example".into())).unwrap();
        Ca::rotate(dir.path()).unwrap();
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        Ca::create(dir.path()).unwrap();
        let key = dir.path().join(KEY_FILE);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Ca::load(dir.path()).err().unwrap().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_key_of_another_ca_is_refused() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Ca::create(one.path()).unwrap();
        Ca::create(two.path()).unwrap();
        fs::copy(two.path().join(KEY_FILE), one.path().join(KEY_FILE)).unwrap();
        let error = Ca::load(one.path()).err().unwrap().to_string();
        assert!(error.contains("do not belong together"), "{error}");
    }

    #[test]
    fn leaves_verify_for_their_subject_only() {
        use rustls::client::danger::ServerCertVerifier as _;
        use rustls::pki_types::{ServerName, UnixTime};
        let dir = tempfile::tempdir().unwrap();
        let ca = Ca::create(dir.path()).unwrap();
        let mut roots = rustls::RootCertStore::empty();
        roots.add(ca.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier =
            rustls::client::WebPkiServerVerifier::builder_with_provider(roots.into(), provider)
                .build()
                .unwrap();
        let long = format!("{}.example", "a".repeat(63));
        for (subject, name, fits) in [
            (Subject::Name("bank.example".into()), "bank.example", true),
            (Subject::Name("bank.example".into()), "shop.example", false),
            (Subject::Name(long.clone()), long.as_str(), true),
            (
                Subject::Address("192.0.2.7".parse().unwrap()),
                "192.0.2.7",
                true,
            ),
            (
                Subject::Address("192.0.2.7".parse().unwrap()),
                "192.0.2.8",
                false,
            ),
            (
                Subject::Address("2001:db8::1".parse().unwrap()),
                "2001:db8::1",
                true,
            ),
        ] {
            let leaf = ca.leaf(&subject).unwrap();
            let verified = verifier.verify_server_cert(
                &leaf.cert[0],
                &[],
                &ServerName::try_from(name).unwrap(),
                &[],
                UnixTime::now(),
            );
            assert_eq!(
                verified.is_ok(),
                fits,
                "{subject:?} for {name}: {verified:?}"
            );
        }
    }
}
