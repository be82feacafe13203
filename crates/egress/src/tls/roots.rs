//! The certificates that the host trusts.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use rustls::RootCertStore;
use rustls::client::WebPkiServerVerifier;
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// Where hosts keep them. `SSL_CERT_FILE` comes before them.
const FILES: [&str; 3] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// Maximum size of such a file, in bytes.
const MAX_BYTES: u64 = 8 << 20;

/// Checks servers. The host's certificates are read when the first server is checked.
#[derive(Debug)]
pub(crate) struct Roots {
    extra: Vec<CertificateDer<'static>>,
    verifier: OnceLock<Option<Arc<WebPkiServerVerifier>>>,
}

impl Roots {
    /// `extra` is trusted, too.
    pub(crate) fn new(extra: Vec<CertificateDer<'static>>) -> Self {
        Self { extra, verifier: OnceLock::new() }
    }

    /// None if the host trusts nobody.
    pub(crate) fn verifier(&self) -> Option<Arc<WebPkiServerVerifier>> {
        self.verifier.get_or_init(|| self.load()).clone()
    }

    fn load(&self) -> Option<Arc<WebPkiServerVerifier>> {
        let named = std::env::var("SSL_CERT_FILE").ok();
        let pem = named.iter().map(String::as_str).chain(FILES).find_map(read).unwrap_or_default();
        let mut roots = RootCertStore::empty();
        // Hosts also keep certificates that are not understood here; these are left out.
        let of_host = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        roots.add_parsable_certificates(of_host.chain(self.extra.iter().cloned()));
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), default_provider().into()).build();
        verifier.inspect_err(|error| tracing::error!(%error, "no certificates of servers are trusted")).ok()
    }
}

/// The certificates in a PEM file. Those that can't be read are left out.
pub fn certificates_in(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let mut pem = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut pem)?;
    Ok(CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect())
}

fn read(path: &str) -> Option<Vec<u8>> {
    let mut pem = Vec::new();
    File::open(path).ok()?.take(MAX_BYTES).read_to_end(&mut pem).ok()?;
    Some(pem)
}
