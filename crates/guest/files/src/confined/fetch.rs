//! Fetches a document from the internet or from a server of the sandbox itself.
//!
//! A document on loopback is fetched if the caller names it, as any program in the sandbox could, except from the ports of the
//! guest and the browser. Redirects from the internet don't lead to loopback, nor do names that resolve to it.
//!
//! Every address of a name is checked right before it is dialled, also after each redirect. So a name can't change its address
//! between check and use. Behind a proxy, the proxy resolves names: then only addresses and names that are known to be private
//! are refused, and the proxy decides about the rest.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_documents::MAX_DOCUMENT_BYTES;
use ureq::config::Config;
use ureq::http::{Uri, header};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::{DefaultConnector, NextTimeout};
use ureq::{Agent, Proxy};

use super::child::too_large;
use super::job::Fault;
use arenite_guest_runtime::dial::CERTIFICATES;
use arenite_model::is_public_address;

/// The time for fetching. Reading the document comes after it.
const PATIENCE: Duration = Duration::from_secs(20);
const CONNECT_PATIENCE: Duration = Duration::from_secs(10);
const MAX_REDIRECTS: usize = 5;
const MAX_URI_BYTES: usize = 8 << 10;
const MAX_HEAD_BYTES: usize = 64 << 10;
pub(super) struct Fetched {
    pub(super) bytes: Vec<u8>,
    pub(super) media_type: Option<String>,
    /// The last segment of the URL's path.
    pub(super) name: Option<String>,
}

/// Which addresses a request may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    Internet,
    /// The sandbox's loopback.
    Loopback,
}

/// Fetches `uri`. `closed` lists ports of loopback that are never fetched from.
pub(super) fn fetch(uri: &str, closed: &[u16]) -> Result<Fetched, Fault> {
    let deadline = Instant::now() + PATIENCE;
    let mut uri = parse(uri)?;
    let may_be_local = names_loopback(&uri);
    for _ in 0..=MAX_REDIRECTS {
        let reach = if may_be_local && names_loopback(&uri) { Reach::Loopback } else { Reach::Internet };
        let proxy = match reach {
            Reach::Internet => Proxy::try_from_env().filter(|proxy| !proxy.is_no_proxy(&uri)),
            Reach::Loopback => None,
        };
        match reach {
            Reach::Internet => check(&uri, proxy.as_ref())?,
            Reach::Loopback if closed.contains(&port(&uri)) => return Err(closed_port(&uri)),
            Reach::Loopback => {}
        }
        let agent = agent(&uri, reach, proxy, deadline.saturating_duration_since(Instant::now()))?;
        let failed = |e: ureq::Error| match e {
            ureq::Error::Timeout(_) => Fault::refused(format!("{} did not answer in time", shown(&uri))),
            ureq::Error::Other(inner) if inner.is::<NotPublic>() => not_public(&uri),
            other => Fault::io(format!("could not fetch {}", shown(&uri)), other),
        };
        let answer =
            agent.get(&uri).header(header::ACCEPT, "text/markdown, text/html;q=0.9, */*;q=0.8").call().map_err(failed)?;
        let status = answer.status();
        let head = |name| answer.headers().get(name).and_then(|v| v.to_str().ok()).map(str::to_owned);
        if status.is_redirection()
            && let Some(location) = head(header::LOCATION)
        {
            uri = parse(&join(&uri, &location).ok_or_else(|| Fault::refused("the server redirects to no address"))?)?;
            continue;
        }
        if !status.is_success() {
            return Err(Fault::refused(format!("{} answered {status}", shown(&uri))));
        }
        let media_type = head(header::CONTENT_TYPE);
        let mut bytes = Vec::new();
        let body = answer.into_body().into_reader().take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut bytes);
        body.map_err(|e| Fault::io(format!("{} broke off", shown(&uri)), e))?;
        if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
            return Err(too_large());
        }
        let name = uri.path().rsplit('/').next().filter(|n| !n.is_empty()).map(str::to_owned);
        return Ok(Fetched { bytes, media_type, name });
    }
    Err(Fault::refused(format!("the server redirects more than {MAX_REDIRECTS} times")))
}

fn parse(uri: &str) -> Result<Uri, Fault> {
    let malformed = || Fault::refused("the address is malformed; it has the form https://host/path");
    if uri.len() > MAX_URI_BYTES {
        return Err(Fault::refused(format!("the address is longer than {MAX_URI_BYTES} bytes")));
    }
    // Fragments are for browsers. Characters that people leave unescaped are escaped.
    let uri = uri.split('#').next().unwrap_or_default();
    let escaped = percent_encoding::utf8_percent_encode(uri, UNSAFE).to_string();
    let parsed: Uri = escaped.parse().map_err(|_| malformed())?;
    if !matches!(parsed.scheme_str(), Some("http" | "https")) || parsed.host().is_none_or(str::is_empty) {
        return Err(malformed());
    }
    if parsed.authority().is_some_and(|a| a.as_str().contains('@')) {
        return Err(Fault::refused("an address with a user's name and password is not fetched"));
    }
    Ok(parsed)
}

/// Characters that must be escaped in a URI.
const UNSAFE: &percent_encoding::AsciiSet = &percent_encoding::CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'<')
    .add(b'>')
    .add(b'\\')
    .add(b'^')
    .add(b'`')
    .add(b'{')
    .add(b'|')
    .add(b'}');

/// A URL for messages, without the query, which may hold secrets.
fn shown(uri: &Uri) -> String {
    format!("{}://{}{}", uri.scheme_str().unwrap_or_default(), uri.authority().map_or("", |a| a.as_str()), uri.path())
}

fn not_public(uri: &Uri) -> Fault {
    Fault::Refused {
        message: format!("{} is not on the public internet: it is not fetched", shown(uri)),
        hint: Some("get it with a command, such as curl, and convert the file".to_owned()),
    }
}

fn closed_port(uri: &Uri) -> Fault {
    Fault::Refused {
        message: format!("{} is the sandbox's own API or browser: it is not fetched", shown(uri)),
        hint: Some("call it with a command, such as curl, and convert the file".to_owned()),
    }
}

/// The host in the form used for comparisons.
fn host(uri: &Uri) -> String {
    uri.host().unwrap_or_default().trim_matches(['[', ']']).trim_end_matches('.').to_ascii_lowercase()
}

/// Whether a URL itself names loopback. Connecting to the unspecified address also reaches loopback.
fn names_loopback(uri: &Uri) -> bool {
    let host = host(uri);
    host == "localhost" || host.ends_with(".localhost") || host.parse().is_ok_and(is_loopback)
}

fn is_loopback(address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || address.is_unspecified()
}

fn port(uri: &Uri) -> u16 {
    uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 })
}

/// Refuses URLs that name a private address and, behind a proxy, names that this machine resolves to one.
fn check(uri: &Uri, proxy: Option<&Proxy>) -> Result<(), Fault> {
    let host = host(uri);
    if host == "localhost" || host.ends_with(".localhost") {
        return Err(not_public(uri));
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        return if is_public_address(address) { Ok(()) } else { Err(not_public(uri)) };
    }
    if let Some(proxy) = proxy {
        if proxy.host().eq_ignore_ascii_case(&host) && proxy.port() == port(uri) {
            return Err(not_public(uri));
        }
        let known = std::net::ToSocketAddrs::to_socket_addrs(&(host.as_str(), port(uri)));
        if known.is_ok_and(|mut found| found.any(|a| !is_public_address(a.ip()))) {
            return Err(not_public(uri));
        }
    }
    Ok(())
}

fn agent(uri: &Uri, reach: Reach, proxy: Option<Proxy>, time: Duration) -> Result<Agent, Fault> {
    let known = proxy.as_ref().map(|p| (p.host().to_owned(), p.port()));
    let resolver = Guarded { inner: DefaultResolver::default(), reach, proxy: known };
    let secure = uri.scheme_str() == Some("https") || proxy.as_ref().is_some_and(|p| p.uri().scheme_str() == Some("https"));
    let mut config = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .max_redirects_will_error(false)
        .max_response_header_size(MAX_HEAD_BYTES)
        .timeout_global(Some(time))
        .timeout_connect(Some(CONNECT_PATIENCE))
        .user_agent(concat!("arenite/", env!("CARGO_PKG_VERSION")))
        .proxy(proxy);
    if secure {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        config =
            config.tls_config(TlsConfig::builder().root_certs(trusted()?).unversioned_rustls_crypto_provider(provider).build());
    }
    Ok(Agent::with_parts(config.build(), DefaultConnector::default(), resolver))
}

/// The certificates that the image trusts.
fn trusted() -> Result<RootCerts, Fault> {
    let named = std::env::var("SSL_CERT_FILE").ok();
    let places = named.iter().map(String::as_str).chain(CERTIFICATES);
    let pem = places.into_iter().find_map(|path| std::fs::read(path).ok());
    let pem = pem.ok_or_else(|| Fault::Refused {
        message: "there are no certificates to check https with".to_owned(),
        hint: Some("install the package ca-certificates, or name a file of certificates in SSL_CERT_FILE".to_owned()),
    })?;
    let certificates: Vec<_> = parse_pem(&pem)
        .filter_map(|item| match item {
            Ok(PemItem::Certificate(certificate)) => Some(certificate),
            _ => None,
        })
        .collect();
    Ok(RootCerts::new_with_certs(&certificates))
}

/// A name resolved to an address that is not public.
#[derive(Debug, thiserror::Error)]
#[error("not a public address")]
struct NotPublic;

/// Resolves names and refuses those outside the request's reach. The proxy itself may be anywhere.
#[derive(Debug)]
struct Guarded {
    inner: DefaultResolver,
    reach: Reach,
    proxy: Option<(String, u16)>,
}

impl Resolver for Guarded {
    fn resolve(&self, uri: &Uri, config: &Config, timeout: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let found = self.inner.resolve(uri, config, timeout)?;
        let is_proxy = self.proxy.as_ref().is_some_and(|(host, _)| uri.host() == Some(host.as_str()));
        let fits = |address: &SocketAddr| match self.reach {
            Reach::Internet => is_public_address(address.ip()),
            Reach::Loopback => is_loopback(address.ip()),
        };
        if is_proxy || found.iter().all(fits) { Ok(found) } else { Err(ureq::Error::Other(Box::new(NotPublic))) }
    }
}

/// The target of a redirect.
fn join(base: &Uri, location: &str) -> Option<String> {
    let location = location.trim();
    let (scheme, authority) = (base.scheme_str()?, base.authority()?);
    if let Some((head, _)) = location.split_once("://")
        && head.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    {
        return Some(location.to_owned());
    }
    if let Some(rest) = location.strip_prefix("//") {
        return Some(format!("{scheme}://{rest}"));
    }
    if location.starts_with('/') {
        return Some(format!("{scheme}://{authority}{location}"));
    }
    if location.starts_with('?') {
        return Some(format!("{scheme}://{authority}{}{location}", base.path()));
    }
    let folder = &base.path()[..=base.path().rfind('/').unwrap_or(0)];
    Some(format!("{scheme}://{authority}{folder}{location}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_lead_where_browsers_would_go() {
        let base: Uri = "https://a.example:8443/x/y?q=1".parse().unwrap();
        for (location, expected) in [
            ("http://b.example/", "http://b.example/"),
            ("//b.example/z", "https://b.example/z"),
            ("/z?u=http://c", "https://a.example:8443/z?u=http://c"),
            ("z", "https://a.example:8443/x/z"),
            ("?z", "https://a.example:8443/x/y?z"),
            ("file:///etc/passwd", "file:///etc/passwd"),
        ] {
            assert_eq!(join(&base, location).as_deref(), Some(expected), "{location}");
        }
    }

    #[test]
    fn private_places_are_refused_before_anything_is_sent() {
        for uri in [
            "http://localhost/",
            "http://LOCALHOST.:8080/",
            "http://a.localhost/",
            "http://127.0.0.1:8080/v1/sandbox",
            "http://[::1]/",
            "http://169.254.169.254/latest",
            "http://[::ffff:10.0.0.1]/",
            "http://192.168.0.1/",
        ] {
            let parsed = parse(uri).unwrap();
            assert!(check(&parsed, None).is_err(), "{uri}");
        }
        for uri in ["ftp://a.example/", "file:///etc/passwd", "http://u:p@a.example/", "http:///x", "nonsense", ""] {
            assert!(parse(uri).is_err(), "{uri}");
        }
        assert_eq!(parse("http://a.example/a b#frag").unwrap().path(), "/a%20b");
    }

    #[test]
    fn loopback_is_known_by_its_name_alone() {
        for uri in [
            "http://localhost:4567/",
            "http://LOCALHOST./",
            "http://a.localhost/",
            "http://127.0.0.1/",
            "http://127.9.9.9/",
            "http://[::1]:3000/x",
            "http://[::ffff:127.0.0.1]/",
            "http://0.0.0.0:8000/",
        ] {
            assert!(names_loopback(&parse(uri).unwrap()), "{uri}");
        }
        for uri in
            ["http://10.0.0.1/", "http://localhost.example/", "http://127.0.0.1.example/", "http://127.1/", "http://[::2]/"]
        {
            assert!(!names_loopback(&parse(uri).unwrap()), "{uri}");
        }
        for uri in ["http://127.0.0.1:8080/v1/sandbox", "http://[::1]:8080/", "http://localhost:8080/"] {
            let Err(fault) = fetch(uri, &[8080]) else { panic!("{uri} was fetched") };
            assert!(fault.to_string().contains("own API"), "{uri}: {fault}");
        }
    }

    #[test]
    fn other_ways_to_write_an_address_are_seen_by_the_resolver() {
        // libc reads all of these as 127.0.0.1.
        for uri in ["http://2130706433/", "http://0x7f.1/", "http://127.1/", "http://0177.0.0.1/"] {
            let Err(fault) = fetch(uri, &[]) else { panic!("{uri} was fetched") };
            assert!(fault.to_string().contains("not on the public internet"), "{uri}: {fault}");
        }
    }
}
