//! Requests of the server itself: to webhooks, and to a collector of traces. Only the head of an answer is read.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, USER_AGENT};
use http::uri::Scheme;
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Longest URL, in bytes.
const MAX_URL: usize = 2048;
/// Largest head of an answer, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// A checked URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    is_tls: bool,
    /// Without the brackets of an IPv6 address.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port as in the URL.
    authority: String,
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
        if !self.is_tls {
            return exchange(tcp, request).await;
        }
        let tls = tls.ok_or("this server has no certificate authorities to check https with")?;
        let name = ServerName::try_from(self.host.clone()).map_err(|error| format!("the URL can't be used: {error}"))?;
        let tls = tls.connect(name, tcp).await.map_err(|error| format!("there is no TLS connection: {error}"))?;
        exchange(tls, request).await
    }
}

async fn exchange<S>(stream: S, request: Request<Full<Bytes>>) -> Result<StatusCode, String>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
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
