//! The certificate authority of a sandbox: it signs certificates for the hosts of the sandbox's secrets, and for nothing else.

use std::collections::HashMap;
use std::fmt::{self, Display};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arenite_model::SecretText;
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, ToSpan};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::ServerSessionMemoryCache;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use crate::EgressError;

const NAME: &str = "Arenite sandbox ";
/// Longest common name of X.509, in characters.
const MAX_NAME: usize = 64;
const VALID_YEARS: i32 = 10;
/// Of the certificates of hosts, which are signed again each day.
const LEAF_DAYS: i32 = 7;
/// Names with a certificate, of a sandbox.
const MAX_NAMES: usize = 64;
/// Sessions that clients can resume, of each name, and that the proxy can resume with servers, of a sandbox.
const SESSIONS: usize = 32;

/// What is spoken in TLS. Both sides agree on it by ALPN where they know that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Application {
    Http,
    Postgres,
}

impl Application {
    const COUNT: usize = 2;

    pub(crate) fn alpn(self) -> &'static str {
        match self {
            Self::Http => "http/1.1",
            Self::Postgres => "postgresql",
        }
    }
}

/// The certificate and the key of a sandbox's certificate authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuthorityKeys {
    /// In PEM. Programs in the sandbox trust it.
    pub certificate: String,
    /// In PEM. It stays outside of the sandbox.
    pub key: SecretText,
}

impl AuthorityKeys {
    /// An authority for one sandbox, valid for ten years.
    pub fn generate(sandbox: &str) -> Result<Self, EgressError> {
        let name: String = NAME.chars().chain(sandbox.chars()).filter(char::is_ascii).take(MAX_NAME).collect();
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = parameters(&name);
        set_validity(&mut params, today(), VALID_YEARS.years());
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?;
        Ok(Self { certificate: certificate.pem(), key: key.serialize_pem().into() })
    }
}

/// Settings of connections by name, and when they were made.
type Configs = HashMap<Box<str>, (Date, Arc<ServerConfig>)>;

/// An authority that is ready to sign.
pub(crate) struct Authority {
    keys: AuthorityKeys,
    issuer: Issuer<'static, KeyPair>,
    /// Of all certificates that it signs.
    leaf_key: KeyPair,
    provider: Arc<CryptoProvider>,
    configs: Mutex<[Configs; Application::COUNT]>,
    /// For connections to servers. Their sessions are of this sandbox alone.
    clients: [OnceLock<Arc<ClientConfig>>; Application::COUNT],
}

impl Authority {
    pub(crate) fn new(keys: &AuthorityKeys) -> Result<Self, EgressError> {
        let certificate = CertificateDer::from_pem_slice(keys.certificate.as_bytes()).map_err(failed)?;
        let name = common_name(&certificate).ok_or_else(|| failed("its certificate is not one that Arenite made"))?;
        let mut params = parameters(&name);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::from_pem(keys.key.as_str()).map_err(failed)?;
        Ok(Self {
            keys: keys.clone(),
            issuer: Issuer::new(params, key),
            leaf_key: KeyPair::generate().map_err(failed)?,
            provider: default_provider().into(),
            configs: Mutex::default(),
            clients: Default::default(),
        })
    }

    pub(crate) fn has_keys(&self, keys: &AuthorityKeys) -> bool {
        self.keys == *keys
    }

    /// How the proxy answers clients as this host. Made once a day for each name, with the sessions that clients can resume.
    pub(crate) fn server_config(&self, name: &str, application: Application) -> Result<Arc<ServerConfig>, EgressError> {
        let today = today();
        let mut configs = self.configs.lock().unwrap_or_else(PoisonError::into_inner);
        let configs = &mut configs[application as usize];
        if let Some((_, config)) = configs.get(name).filter(|(day, _)| *day == today) {
            return Ok(config.clone());
        }
        if configs.len() >= MAX_NAMES
            && !configs.contains_key(name)
            && let Some(oldest) = configs.iter().min_by_key(|(_, (day, _))| *day).map(|(name, _)| name.clone())
        {
            configs.remove(&oldest);
        }
        let config = self.make_config(name, application, today)?;
        configs.insert(name.into(), (today, config.clone()));
        Ok(config)
    }

    fn make_config(&self, name: &str, application: Application, today: Date) -> Result<Arc<ServerConfig>, EgressError> {
        let mut params = CertificateParams::new([name.to_owned()]).map_err(failed)?;
        // The name is in the list of names, as it may be too long to be a common name.
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, NAME.trim_end());
        set_validity(&mut params, today, LEAF_DAYS.days());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        // Strict clients want it.
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&self.leaf_key, &self.issuer).map_err(failed)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.leaf_key.serialize_der()));
        let builder = ServerConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(failed)?.with_no_client_auth();
        let mut config = builder.with_single_cert(vec![leaf.der().clone()], key).map_err(failed)?;
        config.alpn_protocols = vec![application.alpn().into()];
        config.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        Ok(config.into())
    }

    /// How the proxy connects to servers, which the verifier checks.
    pub(crate) fn client_config(
        &self,
        verifier: Arc<WebPkiServerVerifier>,
        application: Application,
    ) -> Result<Arc<ClientConfig>, EgressError> {
        let known = &self.clients[application as usize];
        if let Some(config) = known.get() {
            return Ok(config.clone());
        }
        let builder = ClientConfig::builder_with_provider(self.provider.clone());
        let builder = builder.with_safe_default_protocol_versions().map_err(failed)?.with_webpki_verifier(verifier);
        let mut config = builder.with_no_client_auth();
        config.alpn_protocols = vec![application.alpn().into()];
        config.resumption = Resumption::in_memory_sessions(SESSIONS);
        Ok(known.get_or_init(|| config.into()).clone())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// Without names, and with a common name.
fn parameters(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

/// The common name of an authority that [`AuthorityKeys::generate`] made. The issuer that it signs as has to be the same.
fn common_name(certificate: &CertificateDer<'static>) -> Option<String> {
    /// The object identifier of a common name, and the tag of UTF-8 text.
    const COMMON_NAME: [u8; 6] = [6, 3, 0x55, 4, 3, 12];
    const SET: u8 = 0x31;
    const SEQUENCE: u8 = 0x30;
    let mut store = RootCertStore::empty();
    store.add(certificate.clone()).ok()?;
    let subject: &[u8] = store.roots.first()?.subject.as_ref();
    let [SET, _, SEQUENCE, _, name @ ..] = subject else { return None };
    let [length, name @ ..] = name.strip_prefix(&COMMON_NAME)? else { return None };
    if usize::from(*length) != name.len() || name.len() > MAX_NAME {
        return None;
    }
    String::from_utf8(name.to_vec()).ok()
}

fn today() -> Date {
    jiff::Timestamp::now().to_zoned(TimeZone::UTC).date()
}

/// From the day before, in case that clocks differ.
fn set_validity(params: &mut CertificateParams, today: Date, length: Span) {
    let midnight = |date: Date| date_time_ymd(date.year().into(), date.month().unsigned_abs(), date.day().unsigned_abs());
    params.not_before = midnight(today.saturating_sub(1.day()));
    params.not_after = midnight(today.saturating_add(length));
}

fn failed(error: impl Display) -> EgressError {
    EgressError::Authority(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_authority_is_read_again() {
        let keys = AuthorityKeys::generate("0123456789abcdef").unwrap();
        assert!(keys.certificate.starts_with("-----BEGIN CERTIFICATE-----") && !format!("{keys:?}").contains("PRIVATE"));
        let der = CertificateDer::from_pem_slice(keys.certificate.as_bytes()).unwrap();
        assert_eq!(common_name(&der).as_deref(), Some("Arenite sandbox 0123456789abcdef"));
        let authority = Authority::new(&keys).unwrap();
        let config = |name: &str, application| authority.server_config(name, application).unwrap();
        let first = config("a.example", Application::Http);
        assert!(Arc::ptr_eq(&first, &config("a.example", Application::Http)), "it is made once");
        assert_eq!(config("a.example", Application::Postgres).alpn_protocols, [b"postgresql"]);
        for n in 0..MAX_NAMES {
            config(&format!("{n}.example"), Application::Http);
        }
        assert_eq!(authority.configs.lock().unwrap()[0].len(), MAX_NAMES);
        let long = AuthorityKeys::generate(&"x".repeat(200)).unwrap();
        assert!(Authority::new(&long).is_ok());
    }

    #[test]
    fn other_texts_are_no_authority() {
        let keys = AuthorityKeys::generate("box").unwrap();
        for (certificate, key) in [("", keys.key.as_str()), (keys.certificate.as_str(), ""), (keys.key.as_str(), "x")] {
            let wrong = AuthorityKeys { certificate: certificate.to_owned(), key: key.to_owned().into() };
            let error = Authority::new(&wrong).unwrap_err();
            assert_eq!(error.code(), "invalid_authority");
            assert!(!error.to_string().contains("BEGIN"), "{error}");
        }
    }
}
