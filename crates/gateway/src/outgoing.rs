//! Requests of the server itself: to webhooks, to a collector of traces, and to models.
//!
//! The check of an address and the connection use the same addresses, so a name can't change its address in between.

use std::net::{IpAddr, SocketAddr};

use arenite_engine::Connection;
use arenite_model::is_public_address;
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::Scheme;
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio_rustls::TlsConnector;

/// Longest URL, in bytes.
const MAX_URL: usize = 2048;
/// Largest head of an answer, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// The most addresses of a name that are tried.
const MAX_TRIED: usize = 4;

/// The addresses that requests for tenants may reach.
pub(crate) struct Reach {
    /// Besides public addresses.
    ranges: Vec<IpNet>,
    /// The setting that names them.
    setting: &'static str,
}

impl Reach {
    pub(crate) fn new(ranges: Vec<IpNet>, setting: &'static str) -> Self {
        Self { ranges, setting }
    }

    /// Connects, if every address of the host may be reached. The error does not say what a private name resolves to.
    pub(crate) async fn dial(&self, target: &Target) -> Result<TcpStream, String> {
        let Target { host, port, .. } = target;
        let found = lookup_host((host.as_str(), *port)).await.map_err(|_| format!("the name {host} can't be resolved"))?;
        let addresses: Vec<SocketAddr> = found.collect();
        if !addresses.iter().all(|address| self.has(address.ip())) {
            return Err(format!("{host} has an address that is not public, and {} does not name it", self.setting));
        }
        let mut error = format!("the name {host} has no address");
        for address in addresses.into_iter().take(MAX_TRIED) {
            match TcpStream::connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(failed) => error = format!("there is no connection: {failed}"),
            }
        }
        Err(error)
    }

    fn has(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        is_public_address(address) || self.ranges.iter().any(|range| range.contains(&address))
    }
}

/// A checked URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    is_tls: bool,
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as in the URL.
    pub(crate) authority: String,
    /// With the query.
    pub(crate) path: String,
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        if url.len() > MAX_URL {
            return Err("it is longer than 2048 bytes");
        }
        if url.contains('#') {
            return Err("it has a fragment, which is not sent");
        }
        let uri: Uri = url.parse().map_err(|_| "it is not valid; write it as https://host/path")?;
        let is_tls = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTPS => true,
            Some(scheme) if *scheme == Scheme::HTTP => false,
            _ => return Err("it does not start with https:// or http://"),
        };
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        if authority.contains('@') {
            return Err("it has a user name, which is not sent");
        }
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err("it has no host");
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { is_tls, host: host.to_owned(), port, authority: authority.to_owned(), path })
    }

    /// The head of a POST request with JSON.
    pub(crate) fn post(&self) -> http::request::Builder {
        Request::post(&self.path)
            .header(HOST, &self.authority)
            .header(USER_AGENT, concat!("arenite/", env!("CARGO_PKG_VERSION")))
            .header(CONTENT_TYPE, "application/json")
    }

    /// Sends a request on a connection to the host, and returns the status of the answer. The caller limits the time.
    pub(crate) async fn send(
        &self,
        tcp: TcpStream,
        tls: Option<&TlsConnector>,
        request: Request<Full<Bytes>>,
    ) -> Result<StatusCode, String> {
        exchange(self.secure(tcp, tls).await?, request).await
    }

    /// Opens TLS on a connection to the host, if the URL says so.
    pub(crate) async fn secure(&self, tcp: TcpStream, tls: Option<&TlsConnector>) -> Result<Box<dyn Connection>, String> {
        if !self.is_tls {
            return Ok(Box::new(tcp));
        }
        let tls = tls.ok_or("this server has no certificate authorities to check https with")?;
        let name = ServerName::try_from(self.host.clone()).map_err(|error| format!("the URL can't be used: {error}"))?;
        let tls = tls.connect(name, tcp).await.map_err(|error| format!("there is no TLS connection: {error}"))?;
        Ok(Box::new(tls))
    }
}

async fn exchange(stream: Box<dyn Connection>, request: Request<Full<Bytes>>) -> Result<StatusCode, String> {
    let broke_off = |error: hyper::Error| format!("the connection broke off: {error}");
    let mut builder = http1::Builder::new();
    let connected = builder.max_buf_size(MAX_HEAD).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = connected.map_err(broke_off)?;
    let answered = sender.send_request(request);
    tokio::pin!(answered);
    let answer = tokio::select! {
        answer = &mut answered => answer,
        // The answer may have come with the end.
        _ = connection => answered.await,
    };
    Ok(answer.map_err(broke_off)?.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_that_can_not_be_called_are_refused() {
        for bad in [
            "",
            "example.org",
            "/path",
            "ftp://example.org/",
            "file:///etc/passwd",
            "https://",
            "https://user@example.org/",
            "https://user:password@example.org/",
            "https://example.org/#part",
            "https://exa mple.org/",
            "https://example.org\r\nx: y",
            &format!("https://example.org/{}", "x".repeat(3000)),
        ] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        let target = Target::parse("https://[2606:4700::1]:8443/a?b").unwrap();
        assert_eq!((target.host.as_str(), target.port, target.path.as_str()), ("2606:4700::1", 8443, "/a?b"));
        assert_eq!(Target::parse("http://example.org?x").unwrap().path, "/?x");
    }
}
