//! Which requests may call at all: checks the host that a request names, and the page that it comes from.
//!
//! Against DNS rebinding: a page of `evil.example`, with a name that resolves to this server, names itself in `Host`. Against
//! requests forged by a page: browsers state the origin of a request in `Origin` and `Sec-Fetch-Site`. Programs send neither, and
//! pass.

use std::net::{IpAddr, SocketAddr};

use arenite_model::{ErrorCode, SandboxId};
use http::header::{HOST, HeaderMap, ORIGIN};
use http::request::Parts;
use http::{HeaderValue, Method};
use serde::{Deserialize, Serialize};

use crate::GatewayConfig;
use crate::refusal::Refusal;

/// The checked host of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Host {
    /// In lower case, with the port if one was given.
    pub(crate) authority: String,
    pub(crate) kind: HostKind,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum HostKind {
    /// One of the server's own names: every route.
    Server,
    /// `{id}.localhost` or `{id}.{domain}`: only that sandbox's routes.
    Sandbox(SandboxId),
    /// `{port}-{id}.{domain}`: a port inside that sandbox. `{port}-{domain}`: inside the sandbox `default`.
    Preview { port: u16, id: Option<SandboxId> },
}

/// Reads and checks the host. `forwarded` is the client's host according to a trusted proxy.
pub(crate) fn host(config: &GatewayConfig, parts: &Parts, forwarded: Option<&str>) -> Result<Host, Refusal> {
    let mut named = parts.headers.get_all(HOST).iter();
    let header = match named.next() {
        Some(value) => {
            let text = value.to_str().map_err(|_| bad_host("is no text"))?;
            if named.next().is_some() {
                return Err(bad_host("is given twice"));
            }
            Some(text)
        }
        None => None,
    };
    let in_uri = parts.uri.authority().map(|a| a.as_str());
    if let (Some(header), Some(in_uri)) = (header, in_uri)
        && !header.eq_ignore_ascii_case(in_uri)
    {
        return Err(bad_host("differs from the one in the request's target"));
    }
    let Some(given) = in_uri.or(header) else {
        return Err(bad_host("is missing"));
    };
    let given = check(config, given)?;
    match forwarded {
        // Pages can set this header for requests to their own host. So it never replaces a foreign host, and never leads from a
        // sandbox's host to the server's.
        Some(forwarded) if given.kind == HostKind::Server => check(config, forwarded),
        _ => Ok(given),
    }
}

fn check(config: &GatewayConfig, given: &str) -> Result<Host, Refusal> {
    let authority = given.to_ascii_lowercase();
    let (name, _) = split_authority(&authority).ok_or_else(|| bad_host("can't be read"))?;
    let kind = kind(config, name).ok_or_else(|| {
        let shown: String = name.chars().take(80).collect();
        Refusal::new(ErrorCode::Forbidden, format!("the host {shown:?} is none of this server's names"))
            .hint("call it by localhost or its address, or start it with --allowed-host and the name")
    })?;
    Ok(Host { authority, kind })
}

fn bad_host(why: &str) -> Refusal {
    Refusal::bad_request(format!("the Host header {why}"))
}

/// Name (an IPv6 address without its brackets) and port.
fn split_authority(authority: &str) -> Option<(&str, Option<u16>)> {
    let (name, rest) = match authority.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => match authority.find(':') {
            Some(at) => authority.split_at(at),
            None => (authority, ""),
        },
    };
    let port = match rest.strip_prefix(':') {
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => Some(port.parse().ok()?),
        None if rest.is_empty() => None,
        _ => return None,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
    (!name.is_empty() && name.bytes().all(plain)).then_some((name, port))
}

fn kind(config: &GatewayConfig, name: &str) -> Option<HostKind> {
    if let Ok(address) = name.parse::<IpAddr>() {
        return is_own_address(&config.listen, address).then_some(HostKind::Server);
    }
    if name == "localhost" || config.domain.as_deref() == Some(name) {
        return Some(HostKind::Server);
    }
    let below = |domain: &str| name.strip_suffix(domain)?.strip_suffix('.');
    for domain in ["localhost"].into_iter().chain(config.domain.as_deref()) {
        let Some(label) = below(domain) else { continue };
        if let Ok(id) = label.parse() {
            return Some(HostKind::Sandbox(id));
        }
        if let Some((port, rest)) = preview(label) {
            // Never one of the server's own names, whatever comes after the port.
            return Some(HostKind::Preview { port: port?, id: Some(rest.parse().ok()?) });
        }
        if domain == "localhost" {
            // Browsers resolve these to the loopback themselves, so they can't be rebound.
            return Some(HostKind::Server);
        }
    }
    // AIO's `{port}-{domain}`.
    if let Some((port, rest)) = preview(name)
        && (rest == "localhost" || config.domain.as_deref() == Some(rest))
    {
        return Some(HostKind::Preview { port: port?, id: None });
    }
    let allowed = config.allowed_hosts.iter().any(|allowed| match allowed.strip_prefix("*.") {
        Some(domain) => below(domain).is_some_and(|label| !label.is_empty()),
        None => allowed == name,
    });
    allowed.then_some(HostKind::Server)
}

/// `{digits}-{something}`; no port if the digits are not one.
fn preview(label: &str) -> Option<(Option<u16>, &str)> {
    let (digits, rest) = label.split_once('-')?;
    let is_preview = !digits.is_empty() && !rest.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    is_preview.then(|| (port(digits), rest))
}

/// A port that consists only of digits.
pub(crate) fn port(digits: &str) -> Option<u16> {
    if !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|port| *port != 0)
}

/// The domain of sandbox hosts for this client, with the port that the client named.
pub(crate) fn domain_of_sandboxes(config: &GatewayConfig, host: &Host) -> Option<String> {
    let (name, port) = split_authority(&host.authority)?;
    let is_loopback = name.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback());
    let domain = if is_loopback || name == "localhost" || name.ends_with(".localhost") {
        "localhost"
    } else {
        config
            .domain
            .as_deref()
            .filter(|domain| name == *domain || name.strip_suffix(domain).is_some_and(|n| n.ends_with('.')))?
    };
    Some(port.map_or_else(|| domain.to_owned(), |port| format!("{domain}:{port}")))
}

/// An address as host can't be rebound. It must be one that is served: any address if the server listens on all.
fn is_own_address(listen: &[SocketAddr], address: IpAddr) -> bool {
    let address = address.to_canonical();
    address.is_loopback() || listen.iter().any(|own| own.ip().to_canonical() == address || own.ip().is_unspecified())
}

/// Refuses requests that a browser sends for a page of another host. `page`: a browser opens it as a separate page, and the route
/// is one that people open, so a link from elsewhere may lead to it.
///
/// Returns the origin to name in CORS headers, if it is another one that the configuration allows.
pub(crate) fn origin(config: &GatewayConfig, host: &Host, parts: &Parts, page: bool) -> Result<Option<HeaderValue>, Refusal> {
    let headers = &parts.headers;
    let mut origins = headers.get_all(ORIGIN).iter();
    if let Some(origin) = origins.next() {
        let text = origin.to_str().unwrap_or_default();
        if origins.next().is_some() {
            return Err(foreign("several origins"));
        }
        if config.allowed_origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(text)) {
            return Ok(Some(origin.clone()));
        }
        if is_sibling(config, text, host) {
            // The program that listens there decides which origins it accepts.
            return Ok(None);
        }
        if !is_of(text, &host.authority) {
            return Err(foreign(text));
        }
    }
    match word(headers, "sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(None),
        Some(_) if page => Ok(None),
        Some(site) => Err(foreign(site)),
    }
}

/// Refuses a sandbox's script that a page of the server's own host would run as a service worker, which answers for all paths
/// below its own. Arenite's pages have none.
pub(crate) fn worker(host: &Host, parts: &Parts) -> Result<(), Refusal> {
    let is_worker = matches!(word(&parts.headers, "sec-fetch-dest"), Some("serviceworker" | "sharedworker" | "worker"))
        || parts.headers.contains_key("service-worker");
    if host.kind == HostKind::Server && is_worker {
        let refusal = Refusal::new(ErrorCode::Forbidden, "a sandbox's script is no worker on a host that it shares");
        return Err(refusal.hint("open the page on the sandbox's own host, {id}.localhost or {port}-{id}.localhost"));
    }
    Ok(())
}

/// Whether it is a page of a sandbox's port that calls another port of the same sandbox.
fn is_sibling(config: &GatewayConfig, origin: &str, host: &Host) -> bool {
    let HostKind::Preview { id, .. } = &host.kind else { return false };
    let origin = origin.to_ascii_lowercase();
    let Some(authority) = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://")) else { return false };
    check(config, authority).is_ok_and(|of| matches!(of.kind, HostKind::Preview { id: other, .. } if other == *id))
}

/// Whether a browser opens it as a separate page.
pub(crate) fn is_navigation(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD)
        && word(&parts.headers, "sec-fetch-mode") == Some("navigate")
        && word(&parts.headers, "sec-fetch-dest") == Some("document")
}

fn word<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    // A value that is not text matches no allowed one.
    headers.get(name).map(|v| v.to_str().unwrap_or("?"))
}

/// Whether an origin (`http://name:port`) is the host's. The scheme's default port may be left out on either side.
pub(crate) fn is_of(origin: &str, authority: &str) -> bool {
    let origin = origin.to_ascii_lowercase();
    let (host, default) = match origin.split_once("://") {
        Some(("http", host)) => (host, 80),
        Some(("https", host)) => (host, 443),
        _ => return false,
    };
    let whole = |authority| {
        let (name, port) = split_authority(authority)?;
        Some((name.to_owned(), port.unwrap_or(default)))
    };
    whole(host).is_some_and(|of| whole(authority) == Some(of))
}

fn foreign(what: &str) -> Refusal {
    let shown: String = what.chars().take(80).collect();
    Refusal::new(ErrorCode::Forbidden, format!("a page of another site may not call this server ({shown})"))
        .hint("to allow a site's pages, start the server with --allowed-origin and the site's origin")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn config() -> GatewayConfig {
        GatewayConfig {
            listen: vec![([10, 1, 2, 3], 8080).into()],
            allowed_hosts: vec!["box.example".to_owned(), "*.wild.example".to_owned()],
            allowed_origins: vec!["https://app.example".to_owned()],
            domain: Some("boxes.example".to_owned()),
            ..GatewayConfig::default()
        }
    }

    fn parts(headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri("/v1/ping");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn hosts() {
        use HostKind::{Preview, Sandbox, Server};
        let id = || "sabcdefghijk".parse().unwrap();
        let preview = |port, id| Some(Preview { port, id });
        for (given, wanted) in [
            ("localhost:8080", Some(Server)),
            ("LOCALHOST", Some(Server)),
            ("localhost.", Some(Server)),
            ("127.0.0.1:1", Some(Server)),
            ("127.9.9.9", Some(Server)),
            ("[::1]:8080", Some(Server)),
            ("[::ffff:127.0.0.1]", Some(Server)),
            ("10.1.2.3:8080", Some(Server)),
            ("10.1.2.4:8080", None),
            ("any.localhost", Some(Server)),
            ("sabcdefghijk.localhost:8080", Some(Sandbox(id()))),
            ("sabcdefghijk.boxes.example", Some(Sandbox(id()))),
            ("boxes.example", Some(Server)),
            ("demo.boxes.example", None),
            ("3000-sabcdefghijk.localhost", preview(3000, Some(id()))),
            ("3000-sabcdefghijk.boxes.example:80", preview(3000, Some(id()))),
            ("3000-boxes.example", preview(3000, None)),
            ("3000-localhost:8080", preview(3000, None)),
            // Digits that are no port, and invalid ids, never lead to the server's own routes.
            ("0-sabcdefghijk.localhost", None),
            ("65536-sabcdefghijk.localhost", None),
            ("3000-demo.localhost", None),
            ("3000-a.b.localhost", None),
            ("65536-localhost", None),
            ("3000-box.example", None),
            ("+3000-localhost", None),
            ("box.example", Some(Server)),
            ("a.box.example", None),
            ("a.wild.example", Some(Server)),
            ("wild.example", None),
            ("evil.example:8080", None),
            ("127.0.0.1.evil.example", None),
            ("localhost.evil.example", None),
            ("evillocalhost", None),
            ("", None),
            ("localhost:x", None),
            ("localhost:80:80", None),
            ("a@localhost", None),
            ("[::1", None),
        ] {
            let got = host(&config(), &parts(&[("host", given)]), None).ok().map(|h| h.kind);
            assert_eq!(got, wanted, "{given}");
        }
        assert!(host(&config(), &parts(&[]), None).is_err());
        assert!(host(&config(), &parts(&[("host", "localhost"), ("host", "localhost")]), None).is_err());
        let mut both = parts(&[("host", "localhost")]);
        both.uri = "http://127.0.0.1/v1/ping".parse().unwrap();
        assert!(host(&config(), &both, None).is_err());
        // A forwarded host is one of the server's names too, and is only used with a host that passes by itself.
        for (host_header, forwarded, wanted) in [
            ("127.0.0.1:8080", "box.example", Some(Server)),
            ("127.0.0.1:8080", "evil.example", None),
            ("evil.example", "localhost", None),
            ("sabcdefghijk.localhost", "localhost", Some(Sandbox(id()))),
            ("3000-sabcdefghijk.localhost", "localhost", preview(3000, Some(id()))),
            ("localhost", "sabcdefghijk.localhost", Some(Sandbox(id()))),
        ] {
            let got = host(&config(), &parts(&[("host", host_header)]), Some(forwarded)).ok().map(|h| h.kind);
            assert_eq!(got, wanted, "{host_header} {forwarded}");
        }
        // The server listens on all addresses, so any address is its own; a name is not.
        let all = GatewayConfig { listen: vec![([0, 0, 0, 0], 1).into()], ..config() };
        assert!(host(&all, &parts(&[("host", "192.0.2.7")]), None).is_ok());
        assert!(host(&all, &parts(&[("host", "evil.example")]), None).is_err());
    }

    #[test]
    fn workers() {
        let own = HostKind::Sandbox("sabcdefghijk".parse().unwrap());
        for (header, wanted) in [
            (("sec-fetch-dest", "serviceworker"), false),
            (("sec-fetch-dest", "sharedworker"), false),
            (("service-worker", "script"), false),
            (("sec-fetch-dest", "empty"), true),
            (("accept", "*/*"), true),
        ] {
            let at = |kind| Host { authority: "localhost:8080".to_owned(), kind };
            assert_eq!(worker(&at(HostKind::Server), &parts(&[header])).is_ok(), wanted, "{header:?}");
            assert!(worker(&at(own.clone()), &parts(&[header])).is_ok());
        }
    }

    #[test]
    fn origins() {
        let navigation = |site| vec![("sec-fetch-site", site), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let framed = vec![("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        // Headers, whether it passes on an API route, whether it passes on a page.
        for (headers, api, page) in [
            (vec![], true, true),
            (vec![("origin", "http://localhost:8080")], true, true),
            (vec![("origin", "HTTP://LOCALHOST:8080")], true, true),
            (vec![("origin", "https://app.example")], true, true),
            (vec![("origin", "http://app.example")], false, false),
            (vec![("origin", "null")], false, false),
            (vec![("origin", "")], false, false),
            (vec![("origin", "http://localhost")], false, false),
            (vec![("origin", "http://127.0.0.1:8080")], false, false),
            (vec![("origin", "http://sabcdefghijk.localhost:8080")], false, false),
            (vec![("origin", "http://evil.example")], false, false),
            (vec![("origin", "http://localhost:8080.evil.example")], false, false),
            (vec![("origin", "http://x@localhost:8080")], false, false),
            (vec![("origin", "file://localhost:8080")], false, false),
            (vec![("sec-fetch-site", "same-origin")], true, true),
            (vec![("sec-fetch-site", "none")], true, true),
            (vec![("sec-fetch-site", "same-site")], false, false),
            (vec![("sec-fetch-site", "cross-site")], false, false),
            (vec![("sec-fetch-site", "new word")], false, false),
            (vec![("origin", "http://localhost:8080"), ("sec-fetch-site", "cross-site")], false, false),
            (navigation("none"), true, true),
            (navigation("cross-site"), false, true),
            (navigation("same-site"), false, true),
            (framed, false, false),
        ] {
            let parts = parts(&headers);
            let host = Host { authority: "localhost:8080".to_owned(), kind: HostKind::Server };
            assert_eq!(origin(&config(), &host, &parts, false).is_ok(), api, "{headers:?}");
            assert_eq!(origin(&config(), &host, &parts, is_navigation(&parts)).is_ok(), page, "{headers:?}");
        }
        let mut post = parts(&navigation("cross-site"));
        post.method = Method::POST;
        let host = Host { authority: "localhost".to_owned(), kind: HostKind::Server };
        assert!(origin(&config(), &host, &post, is_navigation(&post)).is_err());
        // Ports of one sandbox may call each other, if the called one agrees.
        let of = |kind| Host { authority: "8000-sabcdefghijk.localhost:8080".to_owned(), kind };
        let id: SandboxId = "sabcdefghijk".parse().unwrap();
        let calls = |from: &'static str, to: HostKind| origin(&config(), &of(to), &parts(&[("origin", from)]), false).is_ok();
        let mine = || HostKind::Preview { port: 8000, id: Some(id.clone()) };
        assert!(calls("http://5173-sabcdefghijk.localhost:8080", mine()));
        assert!(!calls("http://5173-sbbcdefghijk.localhost:8080", mine()));
        assert!(!calls("http://5173-localhost:8080", mine()));
        assert!(!calls("http://sabcdefghijk.localhost:8080", mine()));
        assert!(!calls("http://5173-sabcdefghijk.localhost:8080", HostKind::Server));
        assert!(!calls("http://5173-sabcdefghijk.localhost:8080", HostKind::Sandbox(id.clone())));
        // Port 80 may be left out.
        assert!(is_of("http://box.example", "box.example:80"));
        assert!(is_of("https://box.example:443", "box.example"));
        assert!(!is_of("https://box.example", "box.example:80"));
    }
}
