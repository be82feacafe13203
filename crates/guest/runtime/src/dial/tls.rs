//! TLS for connections that the guest opens.

use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Where images keep trusted certificates. `SSL_CERT_FILE` comes before them.
pub const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// The most bytes of a certificate file.
const MAX_BYTES: u64 = 8 << 20;

/// Speaks TLS over a connection to a host. The sandbox's image or its `SSL_CERT_FILE` must trust the host's certificate.
///
/// # Errors
/// There are no certificates to check the host with, or the host's certificate is not trusted.
pub async fn secure(stream: TcpStream, host: &str, named: Option<&str>) -> io::Result<TlsStream<TcpStream>> {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let name = ServerName::try_from(host).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
    let places = named.into_iter().chain(CERTIFICATES).map(str::to_owned).collect();
    // Off the runtime's thread: hundreds of certificates are parsed.
    let trusted = tokio::task::spawn_blocking(move || trusted(places)).await??;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(io::Error::other)?.with_root_certificates(trusted).with_no_client_auth();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The certificates of the first readable file.
fn trusted(places: Vec<String>) -> io::Result<RootCertStore> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "there are no certificates to check https with");
    let pem = places.iter().find_map(|path| read(Path::new(path)).ok()).ok_or_else(none)?;
    let mut store = RootCertStore::empty();
    store.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
    if store.is_empty() { Err(none()) } else { Ok(store) }
}

/// Reads a file of the sandbox, which may be of any kind.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let file = std::fs::File::options().read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
