//! Previews: ports inside sandboxes. Finds which port of which sandbox a request is for.
//!
//! | route | path that the program sees |
//! | --- | --- |
//! | host `{port}-{id}.{domain}`; `{port}-{domain}` for the sandbox `default` | all of it |
//! | header `x-aio-proxy-port: {port}` | all of it |
//! | `/proxy/{port}/…` | what comes after the port |
//! | `/absproxy/{port}/…` | all of it |
//!
//! The last three also work below `/sandbox/{name}`, which the program never sees. The rest of a path is neither decoded nor
//! changed: the program decides what `%2F` means.

use arenite_model::protocol::INTERNAL_PORTS;
use arenite_model::{ErrorCode, SandboxId, SandboxName};
use axum::body::Body;
use http::header::LOCATION;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use crate::exchange::Exchange;
use crate::guard::{self, HostKind};
use crate::own_host;
use crate::path::decode_segment;
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef};

pub(crate) const PORT_HEADER: HeaderName = HeaderName::from_static("x-aio-proxy-port");

/// One request for a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Preview {
    pub(crate) port: u16,
    pub(crate) sandbox_ref: SandboxRef,
    /// The path for the program, still encoded.
    pub(crate) path: String,
    /// The prefix that was removed from the path.
    pub(crate) prefix: String,
    pub(crate) origin: PreviewOrigin,
}

/// The origin of a preview's page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PreviewOrigin {
    /// The port's own: the program has its own cookies and policies.
    Port,
    /// The sandbox's.
    Sandbox,
    /// The server's, so the page is kept out of it.
    Server,
}

/// The leading segments of a request, and what comes after them.
struct Leading<'a> {
    /// `/sandbox/{name}`.
    name: Option<SandboxName>,
    /// Raw, with its slash, and without the sandbox.
    rest: &'a str,
}

/// None: the request is not for a port.
pub(crate) fn find(raw: &str, headers: &HeaderMap, host: &HostKind) -> Result<Option<Preview>, Refusal> {
    if let HostKind::Preview { port, id } = host {
        // Without an id, it is always `default`: a page there could name any other sandbox in a header.
        let sandbox_ref = match id {
            Some(id) => SandboxRef::Id(id.clone()),
            None => target::named(&HeaderMap::new())?,
        };
        let path = if raw.starts_with('/') { raw.to_owned() } else { "/".to_owned() };
        return Ok(Some(Preview { port: *port, sandbox_ref, path, prefix: String::new(), origin: PreviewOrigin::Port }));
    }
    let origin = if let HostKind::Sandbox(_) = host { PreviewOrigin::Sandbox } else { PreviewOrigin::Server };
    let Some(Leading { name, rest }) = leading(raw, origin == PreviewOrigin::Server) else { return Ok(None) };
    let sandbox_ref = || match (host, &name) {
        (HostKind::Sandbox(id), _) => Ok(SandboxRef::Id(id.clone())),
        (_, Some(name)) => Ok(SandboxRef::Name(name.clone())),
        _ => target::named(headers),
    };
    let outer = name.as_ref().map_or_else(String::new, |name| format!("/sandbox/{name}"));
    if let Some(port) = in_header(headers)? {
        let (path, prefix) = (if rest.is_empty() { "/" } else { rest }.to_owned(), outer);
        return Ok(Some(Preview { port, sandbox_ref: sandbox_ref()?, path, prefix, origin }));
    }
    let Some((way, after_way)) = segment(rest) else { return Ok(None) };
    if way != "proxy" && way != "absproxy" {
        return Ok(None);
    }
    let Some((port, after)) = segment(after_way).filter(|(text, _)| !text.is_empty()) else { return Ok(None) };
    let Some(port) = guard::port(&port) else {
        let shown: String = port.chars().take(20).collect();
        return Err(Refusal::not_found(format!("{shown:?} is no port")).hint("a port is a number from 1 to 65535"));
    };
    let (path, prefix) = match way.as_str() {
        "proxy" => (after, format!("{outer}/proxy/{port}")),
        _ => (rest, outer),
    };
    Ok(Some(Preview { port, sandbox_ref: sandbox_ref()?, path: path.to_owned(), prefix, origin }))
}

/// The next segment, decoded, and what comes after it; adjacent slashes count as one. None: it can't be decoded, or does not
/// exist.
fn segment(path: &str) -> Option<(String, &str)> {
    let trimmed = path.trim_start_matches('/');
    if trimmed.len() == path.len() {
        return None;
    }
    let end = trimmed.find('/').unwrap_or(trimmed.len());
    Some((decode_segment(&trimmed[..end])?, &trimmed[end..]))
}

/// None: it is no path of a sandbox, or its name is invalid. The owner of such paths reports that.
fn leading(path: &str, named: bool) -> Option<Leading<'_>> {
    let plain = Leading { name: None, rest: path };
    if !named {
        return Some(plain);
    }
    let Some((first, after)) = segment(path) else { return Some(plain) };
    if first != "sandbox" {
        return Some(plain);
    }
    let (name, rest) = segment(after)?;
    Some(Leading { name: Some(name.parse().ok()?), rest })
}

fn in_header(headers: &HeaderMap) -> Result<Option<u16>, Refusal> {
    let mut given = headers.get_all(&PORT_HEADER).iter();
    let Some(value) = given.next() else { return Ok(None) };
    let port = value.to_str().ok().and_then(guard::port).filter(|_| given.next().is_none());
    match port {
        Some(port) => Ok(Some(port)),
        None => Err(Refusal::bad_request(format!("the header {PORT_HEADER} is not one port, in digits"))),
    }
}

impl Preview {
    /// Refuses ports that Arenite uses.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        if INTERNAL_PORTS.contains(&self.port) {
            let message = format!("port {} is the sandbox's own API and no preview", self.port);
            return Err(Refusal::new(ErrorCode::Forbidden, message).hint("call this server's /v1 and /sandbox/{name}/v1"));
        }
        Ok(())
    }

    /// `/proxy/{port}` is a folder: relative links of its page need the slash.
    pub(crate) fn with_slash(&self, exchange: &Exchange) -> Option<Response<Body>> {
        let Exchange { context, parts, .. } = exchange;
        if !self.path.is_empty() || !matches!(parts.method, Method::GET | Method::HEAD) {
            return None;
        }
        lead(StatusCode::PERMANENT_REDIRECT, &format!("{}{}/{}", context.outer_path(), self.prefix, query(parts)))
    }

    /// For a page that is opened by a path: redirects to the port's own host, where it has its own origin, with everything that
    /// pages may have with it. None without such hosts, and for programs.
    pub(crate) fn to_own_host(&self, exchange: &Exchange, id: &SandboxId) -> Result<Option<Response<Body>>, Refusal> {
        let is_opened = exchange.is_navigation && exchange.parts.method == Method::GET;
        // A host can't keep a header.
        if self.origin == PreviewOrigin::Port || !is_opened || exchange.parts.headers.contains_key(&PORT_HEADER) {
            return Ok(None);
        }
        let Some(domain) = own_host::domain(exchange) else { return Ok(None) };
        let path = if self.path.is_empty() { "/" } else { &self.path };
        own_host::lead(exchange, &format!("{}-{id}.{domain}", self.port), path)
    }
}

fn query(parts: &Parts) -> String {
    parts.uri.query().map_or_else(String::new, |query| format!("?{query}"))
}

fn lead(status: StatusCode, to: &str) -> Option<Response<Body>> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = status;
    answer.headers_mut().insert(LOCATION, HeaderValue::try_from(to).ok()?);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn parts(path: &str, headers: &[(&str, &str)]) -> Parts {
        let mut request = Request::builder().uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(()).unwrap().into_parts().0
    }

    fn find_at(path: &str, headers: &[(&str, &str)], host: &HostKind) -> Result<Option<Preview>, Refusal> {
        let parts = parts(path, headers);
        find(parts.uri.path(), &parts.headers, host)
    }

    fn found(path: &str, headers: &[(&str, &str)], host: &HostKind) -> Option<(u16, String, String, String)> {
        let preview = find_at(path, headers, host).unwrap()?;
        let sandbox_ref = match preview.sandbox_ref {
            SandboxRef::Name(name) => name.to_string(),
            SandboxRef::Id(id) => id.to_string(),
        };
        Some((preview.port, sandbox_ref, preview.path, preview.prefix))
    }

    #[test]
    fn every_way_leads_to_its_port() {
        let server = HostKind::Server;
        for (path, port, sandbox_ref, seen, prefix) in [
            ("/proxy/3000/", 3000, "default", "/", "/proxy/3000"),
            ("/proxy/3000", 3000, "default", "", "/proxy/3000"),
            ("/proxy/3000/a%2Fb//c/../d?x=%2F", 3000, "default", "/a%2Fb//c/../d", "/proxy/3000"),
            ("//proxy//3000//a", 3000, "default", "//a", "/proxy/3000"),
            ("/%70roxy/%33000/a", 3000, "default", "/a", "/proxy/3000"),
            ("/absproxy/3000/a%2fb", 3000, "default", "/absproxy/3000/a%2fb", ""),
            ("/sandbox/demo/proxy/80/x", 80, "demo", "/x", "/sandbox/demo/proxy/80"),
            ("/sandbox/demo/absproxy/80/x", 80, "demo", "/absproxy/80/x", "/sandbox/demo"),
            ("/proxy/3000/sandbox/b/proxy/1/", 3000, "default", "/sandbox/b/proxy/1/", "/proxy/3000"),
        ] {
            let wanted = Some((port, sandbox_ref.to_owned(), seen.to_owned(), prefix.to_owned()));
            assert_eq!(found(path, &[], &server), wanted, "{path}");
        }
        let by_header = |path| found(path, &[("x-aio-proxy-port", "3000")], &server).unwrap();
        assert_eq!(by_header("/api/v2/sandboxes").2, "/api/v2/sandboxes");
        assert_eq!(by_header("/sandbox/demo/x"), (3000, "demo".to_owned(), "/x".to_owned(), "/sandbox/demo".to_owned()));
        assert_eq!(by_header("/sandbox/demo").2, "/");
        assert_eq!(found("/proxy/1/", &[("x-arenite-sandbox", "b")], &server).unwrap().1, "b");
        let id: arenite_model::SandboxId = "sabcdefghijk".parse().unwrap();
        let own = HostKind::Preview { port: 3000, id: Some(id.clone()) };
        assert_eq!(found("/proxy/1/%2F", &[], &own).unwrap(), (3000, id.to_string(), "/proxy/1/%2F".to_owned(), String::new()));
        let of_default = HostKind::Preview { port: 3000, id: None };
        assert_eq!(found("/", &[("x-arenite-sandbox", "b")], &of_default).unwrap().1, "default");
        let of_sandbox = HostKind::Sandbox(id.clone());
        assert_eq!(found("/proxy/1/x", &[], &of_sandbox).unwrap().1, id.as_str());
        // A sandbox's host serves only that sandbox.
        assert_eq!(found("/sandbox/victim/proxy/1/x", &[], &of_sandbox), None);
    }

    #[test]
    fn what_is_no_preview_is_left_to_others() {
        for path in [
            "/",
            "/proxy",
            "/proxy/",
            "/v1/proxy/health",
            "/sandbox/a/v1/ping",
            "/sandbox/No/proxy/1/",
            "/x/proxy/1/",
            "/proxy%2F3000/",
            "/absproxy/8%2F0/",
        ] {
            assert_eq!(found(path, &[], &HostKind::Server), None, "{path}");
        }
        for path in ["/proxy/x/", "/proxy/0/", "/proxy/65536/", "/proxy/+80/", "/proxy/-1"] {
            assert!(find_at(path, &[], &HostKind::Server).is_err(), "{path}");
        }
        for header in ["", "x", "80x", "+80", "0", "65536", "80,81", " 80"] {
            let refused = find_at("/", &[("x-aio-proxy-port", header)], &HostKind::Server);
            // The client library trims spaces before they arrive here.
            assert!(refused.is_err() || header.starts_with(' '), "{header:?}");
        }
        let twice = [("x-aio-proxy-port", "80"), ("x-aio-proxy-port", "80")];
        assert!(find_at("/", &twice, &HostKind::Server).is_err());
    }

    #[test]
    fn internal_ports_are_none() {
        let preview = find_at("/proxy/8080/", &[], &HostKind::Server).unwrap().unwrap();
        assert_eq!(preview.check().unwrap_err().code, ErrorCode::Forbidden);
    }
}
