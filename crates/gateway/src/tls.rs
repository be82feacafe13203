//! TLS by certificate files, which are read again when they change.
//!
//! ```text
//!  files ──read──► pair ──► used for new connections
//!    ▲               │
//!    │               └── broken or mismatched: the previous pair stays, and `warnings` says so
//!    └── looked at every second
//! ```
//!
//! The files are polled because no event covers all ways to replace them: a link above them can change in a directory that is not
//! watched, and network file systems report no changes of other hosts.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

/// Time between looks at the files. A change is used when two looks in a row see it, so that a pair is not read half written.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// An expiry within this time is a warning.
const SOON: SignedDuration = SignedDuration::from_hours(14 * 24);
/// Largest certificate or key file, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The answer to HTTP without TLS.
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 52\r\n\
    connection: close\r\n\r\nthis port needs TLS: use https:// instead of http://";

/// Why a certificate and its key can't be used.
#[derive(Debug, Error)]
pub enum TlsError {
    #[error("could not read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} has no valid PEM certificate: {source}", path.display())]
    NoCertificate { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{} has no unencrypted private key in PEM: {source}", path.display())]
    NoKey { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("{} and {} can't be used together: {source}", cert.display(), key.display())]
    Pair { cert: PathBuf, key: PathBuf, source: rustls::Error },
}

/// The certificate chain and the private key of a server, by their files.
pub struct Certificates {
    cert: PathBuf,
    key: PathBuf,
    /// The files' state before they were first read.
    opened: Stamp,
    current: RwLock<Current>,
}

struct Current {
    config: Arc<ServerConfig>,
    /// When the first certificate of the chain expires; none if it never does.
    expires: Option<Timestamp>,
    /// Why the files' present content is not used.
    problem: Option<String>,
}

/// The state of a file. It changes whenever the file is written or replaced.
pub(crate) type FileStamp = (u64, u64, u64, i64, i64);

/// The state of both files.
type Stamp = [Option<FileStamp>; 2];

/// What the last looks at the files saw.
struct Watch {
    seen: Stamp,
    read: Stamp,
    expiry: Option<String>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").field("cert", &self.cert).field("key", &self.key).finish_non_exhaustive()
    }
}

impl Certificates {
    /// Reads a PEM file of the chain, the server's own certificate first, and one of its private key.
    pub fn open(cert: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let opened = stamp(&cert, &key);
        let (config, expires) = read(&cert, &key)?;
        Ok(Self { cert, key, opened, current: RwLock::new(Current { config, expires, problem: None }) })
    }

    /// Warnings for operators.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let problem = self.with(|current| current.problem.clone());
        problem.into_iter().chain(self.expiry_warning(Timestamp::now())).collect()
    }

    /// When the certificate in use expires.
    pub(crate) fn expires(&self) -> Option<Timestamp> {
        self.with(|current| current.expires)
    }

    /// Whether the files' present content is not used.
    pub(crate) fn is_outdated(&self) -> bool {
        self.with(|current| current.problem.is_some())
    }

    fn with<T>(&self, look: impl FnOnce(&Current) -> T) -> T {
        look(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn expiry_warning(&self, now: Timestamp) -> Option<String> {
        let expires = self.expires()?;
        let cert = self.cert.display();
        match expires.duration_since(now) {
            left if left <= SignedDuration::ZERO => Some(format!("the TLS certificate {cert} expired at {expires}")),
            left if left <= SOON => Some(format!("the TLS certificate {cert} expires at {expires}")),
            _ => None,
        }
    }

    /// Uses the pair for a new connection. The caller limits the time.
    pub(crate) async fn accept(self: Arc<Self>, mut stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let mut first = [0];
        // Methods have capital letters; a TLS connection starts with 22.
        if stream.peek(&mut first).await? == 1 && first[0].is_ascii_uppercase() {
            // A socket that is closed with unread bytes takes back what was sent on it.
            let _ = stream.read(&mut [0; 16 << 10]).await?;
            stream.write_all(NOT_TLS).await?;
            stream.shutdown().await?;
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the client does not speak TLS"));
        }
        let config = self.with(|current| Arc::clone(&current.config));
        TlsAcceptor::from(config).accept(stream).await
    }

    /// Reads the files again when they change, until `stopping`.
    pub(crate) async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let mut watch = Watch { seen: self.opened, read: self.opened, expiry: None };
        loop {
            let this = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || {
                this.look(&mut watch);
                watch
            });
            // A file system that hangs delays no stop.
            let Some(Ok(looked)) = stopping.run_until_cancelled(looked).await else { return };
            watch = looked;
            if stopping.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_none() {
                return;
            }
        }
    }

    fn look(&self, watch: &mut Watch) {
        let now = stamp(&self.cert, &self.key);
        let is_settled = now == watch.seen;
        watch.seen = now;
        if is_settled && now != watch.read {
            watch.read = now;
            self.reload();
        }
        let expiry = self.expiry_warning(Timestamp::now());
        if expiry != watch.expiry {
            expiry.iter().for_each(|warning| tracing::warn!("{warning}"));
            watch.expiry = expiry;
        }
    }

    fn reload(&self) {
        let read = read(&self.cert, &self.key);
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        match read {
            Ok((config, expires)) => {
                *current = Current { config, expires, problem: None };
                let expires = expires.map(tracing::field::display);
                tracing::info!(expires, "new connections use the changed TLS certificate {}", self.cert.display());
            }
            Err(error) => {
                let problem = format!("the changed TLS certificate is not used, and the previous one stays: {error}");
                tracing::warn!("{problem}");
                current.problem = Some(problem);
            }
        }
    }
}

fn stamp(cert: &Path, key: &Path) -> Stamp {
    [cert, key].map(file_stamp)
}

/// None: there is no such file.
pub(crate) fn file_stamp(path: &Path) -> Option<FileStamp> {
    let file = fs::metadata(path).ok()?;
    Some((file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
}

/// The configuration for new connections, and when its first certificate expires. Sessions of the previous one can't be resumed, so
/// that every client sees the new certificate.
fn read(cert: &Path, key: &Path) -> Result<(Arc<ServerConfig>, Option<Timestamp>), TlsError> {
    let pem = read_file(cert)?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = chain.and_then(|all| if all.is_empty() { Err(rustls::pki_types::pem::Error::NoItemsFound) } else { Ok(all) });
    let chain = chain.map_err(|source| TlsError::NoCertificate { path: cert.to_owned(), source })?;
    let private = PrivateKeyDer::from_pem_slice(&read_file(key)?);
    let private = private.map_err(|source| TlsError::NoKey { path: key.to_owned(), source })?;
    let expires = chain.iter().filter_map(|certificate| not_after(certificate)).min();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = builder.and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private));
    let mut config = config.map_err(|source| TlsError::Pair { cert: cert.to_owned(), key: key.to_owned(), source })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((Arc::new(config), expires))
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
    read.map_err(|source| TlsError::Read { path: path.to_owned(), source })?;
    Ok(bytes)
}

/// `notAfter` of a certificate. None if it is later than a timestamp can be, as in certificates that never expire.
fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    const VERSION: u8 = 0xa0;
    const UTC_TIME: u8 = 0x17;
    let (_, certificate, _) = element(certificate)?;
    let (_, mut fields, _) = element(certificate)?;
    if let (VERSION, _, rest) = element(fields)? {
        fields = rest;
    }
    for _ in ["serial number", "signature algorithm", "issuer"] {
        (_, _, fields) = element(fields)?;
    }
    let (_, validity, _) = element(fields)?;
    let (_, _, after_not_before) = element(validity)?;
    let (tag, time, _) = element(after_not_before)?;
    let time = std::str::from_utf8(time).ok()?;
    // Its years have two digits, from 1950 to 2049.
    let century = if tag != UTC_TIME {
        ""
    } else if time < "50" {
        "20"
    } else {
        "19"
    };
    let time = DateTime::strptime("%Y%m%d%H%M%SZ", format!("{century}{time}")).ok()?;
    Some(time.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

/// The first element of DER: its tag, its content, and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x83 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((tag, content, rest))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn make(dir: &Path, name: &str, days: &str) -> (PathBuf, PathBuf) {
        let (cert, key) = (dir.join(format!("{name}.pem")), dir.join(format!("{name}.key")));
        let made = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost"])
            .args(["-days", days, "-out"])
            .arg(&cert)
            .arg("-keyout")
            .arg(&key)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        (cert, key)
    }

    #[test]
    fn expiry_is_read_in_both_forms_of_time() {
        let dir = tempfile::tempdir().unwrap();
        // From 2050 on, certificates have four digits for the year.
        for (days, least) in [("10", 9), ("20000", 19_999)] {
            let (cert, key) = make(dir.path(), days, days);
            let certificates = Certificates::open(cert, key).unwrap();
            let left = certificates.expires().unwrap().duration_since(Timestamp::now());
            assert!((least..=least + 1).contains(&(left.as_hours() / 24)), "{days}: {left}");
            assert_eq!(certificates.warnings().len(), usize::from(days == "10"), "{days}");
        }
        let (cert, key) = make(dir.path(), "soon", "10");
        let certificates = Certificates::open(cert, key).unwrap();
        let later = Timestamp::now() + SignedDuration::from_hours(11 * 24);
        assert!(certificates.expiry_warning(later).unwrap().contains("expired at"));
        for broken in [&b""[..], b"\x30", b"\x30\x85\x01", b"\x30\x03\x30\x01\x02", &[0x30; 64]] {
            assert_eq!(not_after(broken), None);
        }
    }

    #[test]
    fn a_pair_that_cannot_be_used_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = make(dir.path(), "a", "30");
        let (_, other) = make(dir.path(), "b", "30");
        let empty = dir.path().join("empty");
        fs::write(&empty, "").unwrap();
        let missing = dir.path().join("missing");
        for (cert, key, names) in [
            (&cert, &other, "b.key can't be used together"),
            (&empty, &key, "empty has no valid PEM certificate"),
            (&cert, &empty, "empty has no unencrypted private key"),
            (&cert, &missing, "could not read"),
            (&key, &key, "a.key has no valid PEM certificate"),
        ] {
            let error = Certificates::open(cert.clone(), key.clone()).unwrap_err().to_string();
            assert!(error.contains(names), "{error}");
        }
    }

    #[test]
    fn a_change_is_used_when_it_has_settled_and_a_broken_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = make(dir.path(), "a", "30");
        let (new_cert, new_key) = make(dir.path(), "b", "60");
        let certificates = Certificates::open(cert.clone(), key.clone()).unwrap();
        let mut watch = Watch { seen: certificates.opened, read: certificates.opened, expiry: None };
        let first = certificates.expires();
        fs::copy(&new_cert, &cert).unwrap();
        certificates.look(&mut watch);
        assert!(!certificates.is_outdated(), "a pair that is being written is not read");
        certificates.look(&mut watch);
        assert!(certificates.is_outdated());
        assert_eq!(certificates.expires(), first);
        assert!(certificates.warnings()[0].contains("can't be used together"), "{:?}", certificates.warnings());
        fs::rename(&new_key, &key).unwrap();
        certificates.look(&mut watch);
        certificates.look(&mut watch);
        assert_eq!(certificates.warnings(), [""; 0]);
        assert!(certificates.expires() > first);
        fs::remove_file(&cert).unwrap();
        certificates.look(&mut watch);
        certificates.look(&mut watch);
        assert!(certificates.warnings()[0].contains("could not read"), "{:?}", certificates.warnings());
    }
}
