//! Connections to a server: with TLS if its URL is https.

use std::error::Error;
use std::fs::File;
use std::future::Future;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::either::Either;
use tower_service::Service;

/// Where systems keep the certificate authorities that they trust. `SSL_CERT_FILE` comes before them.
const AUTHORITIES: [&str; 3] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
/// The most bytes of a file of them.
const MAX_BYTES: u64 = 8 << 20;

/// Why no connection is attempted.
#[derive(Debug, Error)]
pub enum ConnectorError {
    #[error("the server's address {address:?} is not valid: {why}")]
    Address { address: String, why: &'static str },
    #[error("the certificate authorities of {} can't be used: {source}", path.display())]
    Authorities { path: PathBuf, source: io::Error },
    #[error("this host has no file of certificate authorities to check https with")]
    NoAuthorities,
    #[error("TLS can't be set up: {0}")]
    Tls(#[from] rustls::Error),
}

impl ConnectorError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Address { .. } => "write it as http://127.0.0.1:8080",
            Self::Authorities { .. } => "--ca and ARENITE_CA name a PEM file of certificates",
            Self::NoAuthorities => "name one with --ca or ARENITE_CA",
            Self::Tls(_) => return None,
        };
        Some(hint.to_owned())
    }
}

/// Why a connection failed.
#[derive(Debug, Error)]
pub enum ConnectError {
    #[error("{0}")]
    Unreachable(#[source] Box<dyn Error + Send + Sync>),
    #[error("there is no TLS connection to {host}: {source}")]
    Tls { host: String, source: io::Error },
}

/// Opens connections to one server.
#[derive(Clone)]
pub struct Connector {
    http: HttpConnector,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Connector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector").field("is_tls", &self.tls.is_some()).finish_non_exhaustive()
    }
}

impl Connector {
    /// Parses a server's URL. `ca`: a PEM file of the certificate authorities to trust instead of this host's. Does not connect.
    pub fn new(address: &str, ca: Option<&Path>) -> Result<Self, ConnectorError> {
        let refuse = |why| ConnectorError::Address { address: address.to_owned(), why };
        let uri: Uri = address.parse().map_err(|_| refuse("it is not a URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(refuse("it doesn't begin with http:// or https://")),
        };
        if uri.query().is_some() || uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(refuse("it has a query or a user name"));
        }
        let mut http = HttpConnector::new();
        http.enforce_http(false);
        Ok(Self { http, tls: if is_tls { Some(tls_connector(ca)?) } else { None } })
    }

    /// Connects to the host and port of a URL.
    pub async fn dial(&self, uri: &Uri) -> Result<ServerStream, ConnectError> {
        let tcp = self.http.clone().call(uri.clone()).await.map_err(|error| ConnectError::Unreachable(error.into()))?;
        let tcp = tcp.into_inner();
        let Some(tls) = &self.tls else { return Ok(ServerStream(Either::Left(tcp))) };
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let failed = |source| ConnectError::Tls { host: host.clone(), source };
        let name = ServerName::try_from(host.clone()).map_err(|error| failed(io::Error::other(error)))?;
        Ok(ServerStream(Either::Right(Box::new(tls.connect(name, tcp).await.map_err(failed)?))))
    }
}

/// Opens TLS connections for HTTP/1.1. `ca`: a PEM file of the certificate authorities to trust instead of this host's.
pub fn tls_connector(ca: Option<&Path>) -> Result<TlsConnector, ConnectorError> {
    let roots = match ca {
        Some(path) => authorities(path).map_err(|source| ConnectorError::Authorities { path: path.to_owned(), source })?,
        None => {
            let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
            let places = named.into_iter().chain(AUTHORITIES.map(PathBuf::from));
            places.into_iter().find_map(|path| authorities(&path).ok()).ok_or(ConnectorError::NoAuthorities)?
        }
    };
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn authorities(path: &Path) -> io::Result<RootCertStore> {
    let mut pem = Vec::new();
    File::open(path)?.take(MAX_BYTES).read_to_end(&mut pem)?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(CertificateDer::pem_slice_iter(&pem).flatten());
    if roots.is_empty() { Err(io::Error::new(io::ErrorKind::InvalidData, "it has no PEM certificate")) } else { Ok(roots) }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ServerStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move { connector.dial(&uri).await.map(TokioIo::new) })
    }
}

/// A connection to a server.
#[derive(Debug)]
pub struct ServerStream(Either<TcpStream, Box<TlsStream<TcpStream>>>);

impl Connection for ServerStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_could_not_work_are_refused_before_anything_is_sent() {
        for bad in ["127.0.0.1:8080", "ftp://x", "http://u@x", "https://u@x", "http://x/?q", "", "http://a b"] {
            assert!(matches!(Connector::new(bad, None), Err(ConnectorError::Address { .. })), "{bad}");
        }
        assert!(Connector::new("http://x", None).unwrap().tls.is_none());
    }

    #[test]
    fn authorities_are_read_for_https_only() {
        let empty = tempfile::NamedTempFile::new().unwrap();
        for path in [empty.path(), Path::new("/does/not/exist.pem")] {
            let error = Connector::new("https://x", Some(path)).unwrap_err();
            assert!(matches!(error, ConnectorError::Authorities { .. }), "{error}");
            Connector::new("http://x", Some(path)).unwrap();
        }
    }
}
