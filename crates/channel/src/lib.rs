//! Encrypted connections between the server and guests on other hosts, and between nodes: TLS 1.3 with raw public keys (RFC 7250).
//!
//! ```text
//!  server: one private key, kept          guest: a new private key at each start
//!  knows the guest's public key    ◄────► knows the server's public key, from its environment
//!  (any key on the first connection)
//! ```
//!
//! There are no names and no authorities: each side compares the other's public key with the one that it expects. So a guest
//! serves its own server alone, and a pod that gets the address of another one is not taken for it.

#![forbid(unsafe_code)]

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ::aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
use ::aws_lc_rs::rand::SystemRandom;
use ::aws_lc_rs::signature::{Ed25519KeyPair, KeyPair};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::sign::any_eddsa_type;
use rustls::crypto::{CryptoProvider, aws_lc_rs, verify_tls13_signature_with_raw_key};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{ClientConfig, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

/// Why a key can't be used.
#[derive(Debug, Error)]
pub enum KeyError {
    #[error("{what}: {source}")]
    File { what: String, source: io::Error },
    #[error("{what} is not an Ed25519 private key in PEM (PKCS #8)")]
    Private { what: String },
    #[error("a public key is Ed25519's, in base64: {0:?} is not")]
    Public(String),
    #[error("the random numbers of this host can't be read")]
    Random,
}

/// The length of an Ed25519 public key with its algorithm, in bytes.
const SPKI_BYTES: usize = 44;
/// The algorithm that comes before the 32 bytes of the key.
const SPKI_START: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// An Ed25519 public key. As text, it is base64 of its DER form (`SubjectPublicKeyInfo`).
#[derive(Clone, PartialEq, Eq)]
pub struct PublicKey([u8; SPKI_BYTES]);

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64_STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = BASE64_STANDARD.decode(text.trim()).ok();
        bytes.and_then(|bytes| Self::from_der(&bytes)).ok_or_else(|| KeyError::Public(text.to_owned()))
    }
}

impl PublicKey {
    fn from_der(der: &[u8]) -> Option<Self> {
        Some(Self(der.try_into().ok().filter(|der: &[u8; SPKI_BYTES]| der.starts_with(&SPKI_START))?))
    }
}

/// A private key.
#[derive(Clone)]
pub struct Identity {
    certified: Arc<CertifiedKey>,
    public: PublicKey,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Identity({})", self.public)
    }
}

impl Identity {
    /// A new key, which is not kept.
    pub fn generate() -> Result<Self, KeyError> {
        let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
        Self::from_pkcs8(pair.as_ref().to_vec(), "a new key")
    }

    /// Reads the key of a PEM file. If there is no file, creates it with a new key, readable only by its owner.
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let what = path.display().to_string();
        let failed = |source| KeyError::File { what: what.clone(), source };
        match fs::read(path) {
            Ok(text) => match PrivatePkcs8KeyDer::from_pem_slice(&text) {
                Ok(der) => Self::from_pkcs8(der.secret_pkcs8_der().to_vec(), &what),
                Err(_) => Err(KeyError::Private { what }),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(|_| KeyError::Random)?;
                let pem = format!(
                    "-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n",
                    BASE64_STANDARD.encode(pair.as_ref())
                );
                let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path).map_err(failed)?;
                file.write_all(pem.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
                Self::from_pkcs8(pair.as_ref().to_vec(), &what)
            }
            Err(source) => Err(failed(source)),
        }
    }

    fn from_pkcs8(der: Vec<u8>, what: &str) -> Result<Self, KeyError> {
        let refuse = || KeyError::Private { what: what.to_owned() };
        let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(&der).map_err(|_| refuse())?;
        let spki: PublicKeyX509Der<'_> = pair.public_key().as_der().map_err(|_| refuse())?;
        let public = PublicKey::from_der(spki.as_ref()).ok_or_else(refuse)?;
        let key = any_eddsa_type(&PrivatePkcs8KeyDer::from(der)).map_err(|_| refuse())?;
        let certified = CertifiedKey::new(vec![CertificateDer::from(public.0.to_vec())], key);
        Ok(Self { certified: Arc::new(certified), public })
    }

    pub fn public(&self) -> &PublicKey {
        &self.public
    }
}

/// Verifies that the other side has the private key of the public key that it shows.
#[derive(Debug)]
struct Verifier {
    /// The keys that are accepted. None: any, and the caller compares it.
    keys: Option<Vec<PublicKey>>,
    provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn new(keys: Option<Vec<PublicKey>>) -> Self {
        Self { keys, provider: Arc::new(aws_lc_rs::default_provider()) }
    }

    fn check(&self, shown: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let wrong = || rustls::Error::InvalidCertificate(rustls::CertificateError::ApplicationVerificationFailure);
        let shown = PublicKey::from_der(shown).ok_or_else(wrong)?;
        if self.keys.as_ref().is_none_or(|keys| keys.contains(&shown)) { Ok(()) } else { Err(wrong()) }
    }

    fn verify(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.provider.signature_verification_algorithms)
    }
}

/// Only TLS 1.3 is offered.
fn no_tls12() -> Result<HandshakeSignatureValid, rustls::Error> {
    Err(rustls::Error::PeerIncompatible(rustls::PeerIncompatible::Tls13RequiredForQuic))
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _more: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for Verifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _more: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _shown: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        no_tls12()
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// Connects to guests. Cheap to clone.
#[derive(Clone)]
pub struct Connector(TlsConnector);

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    pub fn new(identity: &Identity) -> io::Result<Self> {
        let verifier = Verifier::new(None);
        let mut config = ClientConfig::builder_with_provider(Arc::clone(&verifier.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(Arc::clone(&identity.certified))));
        // Each connection proves both keys.
        config.resumption = rustls::client::Resumption::disabled();
        // A name is required and not sent: nothing is verified by it.
        config.enable_sni = false;
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Encrypts a connection to the guest with this key, or with any key on the first connection. Also returns its key.
    ///
    /// # Errors
    /// The other side has another key, or speaks another protocol. If it does not accept our key, the first read fails.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        guest: Option<&PublicKey>,
    ) -> io::Result<(client::TlsStream<S>, PublicKey)> {
        let name = ServerName::try_from("guest").map_err(io::Error::other)?;
        let stream = self.0.connect(name, stream).await?;
        let shown = stream.get_ref().1.peer_certificates().and_then(|shown| PublicKey::from_der(shown.first()?));
        let key = shown.ok_or_else(|| io::Error::other("the guest has shown no key"))?;
        if guest.is_some_and(|expected| *expected != key) {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the guest has another key than the one in its record"));
        }
        Ok((stream, key))
    }
}

/// The key of a client.
pub fn peer_key<S>(stream: &server::TlsStream<S>) -> Option<PublicKey> {
    stream.get_ref().1.peer_certificates().and_then(|shown| PublicKey::from_der(shown.first()?))
}

/// Accepts connections of the server, or of other servers.
#[derive(Clone)]
pub struct Acceptor(TlsAcceptor);

impl fmt::Debug for Acceptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acceptor")
    }
}

impl Acceptor {
    /// Accepts clients with one of these keys. There must be one.
    pub fn new(identity: &Identity, servers: Vec<PublicKey>) -> io::Result<Self> {
        if servers.is_empty() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "no server's public key is given"));
        }
        Self::with(identity, Some(servers))
    }

    /// Accepts clients with any key. The caller compares it: [`peer_key`].
    pub fn of_any(identity: &Identity) -> io::Result<Self> {
        Self::with(identity, None)
    }

    fn with(identity: &Identity, keys: Option<Vec<PublicKey>>) -> io::Result<Self> {
        let verifier = Verifier::new(keys);
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&verifier.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::new(verifier))
            .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(Arc::clone(&identity.certified))));
        config.send_tls13_tickets = 0;
        Ok(Self(TlsAcceptor::from(Arc::new(config))))
    }

    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> io::Result<server::TlsStream<S>> {
        self.0.accept(stream).await
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    /// What the server's side of a connection gets: the guest's key, or an error of either side.
    async fn meet(server: &Identity, guest: &Identity, trusted: &PublicKey, pinned: Option<&PublicKey>) -> io::Result<PublicKey> {
        let (ours, theirs) = duplex(1 << 16);
        let acceptor = Acceptor::new(guest, vec![trusted.clone()]).unwrap();
        let serving = async move {
            let mut stream = acceptor.accept(theirs).await?;
            stream.write_all(b"hello").await?;
            stream.shutdown().await
        };
        let connector = Connector::new(server).unwrap();
        let calling = async {
            let (mut stream, key) = connector.connect(ours, pinned).await?;
            let mut text = String::new();
            stream.read_to_string(&mut text).await?;
            assert_eq!(text, "hello");
            Ok(key)
        };
        let (called, served) = tokio::join!(calling, serving);
        served.and(called)
    }

    #[tokio::test]
    async fn each_side_accepts_the_expected_key_alone() {
        let (server, guest, other) =
            (Identity::generate().unwrap(), Identity::generate().unwrap(), Identity::generate().unwrap());
        let first = meet(&server, &guest, server.public(), None).await.unwrap();
        assert_eq!(first, *guest.public());
        assert_eq!(meet(&server, &guest, server.public(), Some(&first)).await.unwrap(), first);
        assert!(meet(&server, &other, server.public(), Some(&first)).await.is_err(), "another guest");
        assert!(meet(&other, &guest, server.public(), Some(&first)).await.is_err(), "another server");
    }

    #[tokio::test]
    async fn a_client_without_a_key_gets_nothing() {
        let (server, guest) = (Identity::generate().unwrap(), Identity::generate().unwrap());
        let (ours, theirs) = duplex(1 << 16);
        let acceptor = Acceptor::new(&guest, vec![server.public().clone()]).unwrap();
        let verifier = Verifier::new(None);
        let config = ClientConfig::builder_with_provider(Arc::clone(&verifier.provider))
            .with_protocol_versions(&[&TLS13])
            .unwrap()
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        let name = ServerName::try_from("guest").unwrap();
        let (_, accepted) = tokio::join!(TlsConnector::from(Arc::new(config)).connect(name, ours), acceptor.accept(theirs));
        assert!(accepted.is_err());
        assert!(Acceptor::new(&guest, Vec::new()).is_err());
    }

    #[test]
    fn a_key_is_kept_in_a_file_of_its_owner() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity.pem");
        let first = Identity::open(&path).unwrap();
        assert_eq!(first.public(), Identity::open(&path).unwrap().public());
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        fs::write(&path, "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").unwrap();
        assert!(matches!(Identity::open(&path), Err(KeyError::Private { .. })));
        fs::write(&path, "").unwrap();
        assert!(matches!(Identity::open(&path), Err(KeyError::Private { .. })));
    }

    #[test]
    fn public_keys_are_read_as_they_are_written() {
        let key = Identity::generate().unwrap().public().clone();
        assert_eq!(key.to_string().parse::<PublicKey>().unwrap(), key);
        for text in ["", "AAAA", "no base64", &BASE64_STANDARD.encode([0; SPKI_BYTES])] {
            assert!(text.parse::<PublicKey>().is_err(), "{text}");
        }
    }
}
