//! The host of a request. Where a request could be read as one for two hosts, it has none.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::header::HOST;
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};

use crate::name::normalize_name;
use crate::policy::{Reason, Target};

/// Where a request goes, and the host that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RequestTarget {
    host: RequestHost,
    /// Set if the address decides, to which the client connected, and not the name.
    address: Option<IpAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RequestHost {
    Name(Arc<str>),
    Address(IpAddr),
}

impl RequestTarget {
    /// Reads the host from the header, and from the target where that is a whole URL.
    pub(super) fn read<B>(request: &Request<B>, destination: SocketAddr, expected: &Scheme) -> Result<Self, Reason> {
        if request.method() == Method::CONNECT {
            return Err(Reason::Connect);
        }
        let mut headers = request.headers().get_all(HOST).iter();
        let header = match (headers.next(), headers.next()) {
            (Some(value), None) => Some(value.to_str().map_err(|_| Reason::MalformedHttp)?),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(Reason::MalformedHttp),
        };
        let uri = request.uri();
        let absolute = match (uri.scheme(), uri.authority()) {
            (None, None) => None,
            (Some(scheme), Some(authority)) if scheme == expected => Some(authority.as_str()),
            _ => return Err(Reason::MalformedHttp),
        };
        let read = |text: &str| read_host(text, destination).ok_or(Reason::MalformedHttp);
        match (absolute.map(read).transpose()?, header.map(read).transpose()?) {
            (Some(one), Some(other)) if one != other => Err(Reason::MalformedHttp),
            (Some(target), _) | (None, Some(target)) => Ok(target),
            (None, None) => Err(Reason::MalformedHttp),
        }
    }

    /// The same request, to the address to which the client connected.
    pub(super) fn at(&self, address: IpAddr) -> Self {
        Self { address: Some(address), ..self.clone() }
    }

    pub(super) fn target(&self) -> Target<'_> {
        match (&self.host, self.address) {
            (_, Some(address)) => Target::Address(address),
            (RequestHost::Address(address), None) => Target::Address(*address),
            (RequestHost::Name(name), None) => Target::Name(name),
        }
    }

    /// The name that decides.
    pub(super) fn name(&self) -> Option<Arc<str>> {
        self.host_name().filter(|_| self.address.is_none())
    }

    /// The name in the request.
    pub(super) fn host_name(&self) -> Option<Arc<str>> {
        match &self.host {
            RequestHost::Name(name) => Some(name.clone()),
            RequestHost::Address(_) => None,
        }
    }

    /// Writes the host as it was decided on, so that the server can't read it in another way.
    pub(super) fn set_host(&self, headers: &mut HeaderMap, port: u16, scheme: &Scheme) {
        let default = if *scheme == Scheme::HTTPS { 443 } else { 80 };
        let text = if port == default { self.to_string() } else { format!("{self}:{port}") };
        let value = HeaderValue::from_str(&text).expect("names and addresses are visible ASCII");
        headers.insert(HOST, value);
    }
}

impl fmt::Display for RequestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            RequestHost::Name(name) => f.write_str(name),
            RequestHost::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            RequestHost::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// `HOST[:PORT]`; a port has to be the one to which the client connected.
fn read_host(text: &str, destination: SocketAddr) -> Option<RequestTarget> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { None } else { Some(after.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if let Some(port) = port {
        let is_number = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
        (is_number && port.parse() == Ok(destination.port())).then_some(())?;
    }
    if let Ok(address) = host.parse::<IpAddr>() {
        let address = address.to_canonical();
        let is_destination = address == destination.ip().to_canonical();
        return is_destination.then_some(RequestTarget { host: RequestHost::Address(address), address: Some(address) });
    }
    if text.starts_with('[') {
        return None;
    }
    let name = normalize_name(host).ok()?;
    Some(RequestTarget { host: RequestHost::Name(name.into()), address: None })
}

/// The target as servers get it: path and query, or the star of OPTIONS.
pub(super) fn origin_form(uri: &Uri) -> Uri {
    let path = uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    Uri::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DESTINATION: &str = "192.0.2.1:8080";

    fn read(method: &str, uri: &str, hosts: &[&str]) -> Result<String, Reason> {
        let mut request = Request::builder().method(method).uri(uri);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        let target = RequestTarget::read(&request.body(()).unwrap(), DESTINATION.parse().unwrap(), &Scheme::HTTP);
        target.map(|target| target.to_string())
    }

    #[test]
    fn a_request_has_one_host() {
        for (uri, hosts, expected) in [
            ("/", &["A.example"][..], "a.example"),
            ("/", &["a.example.:8080"], "a.example"),
            ("/", &["192.0.2.1:8080"], "192.0.2.1"),
            ("/", &["[::ffff:192.0.2.1]:8080"], "192.0.2.1"),
            ("http://a.example:8080/x", &["a.example"], "a.example"),
            ("http://a.example/x", &[], "a.example"),
        ] {
            assert_eq!(read("GET", uri, hosts).as_deref(), Ok(expected), "{uri} {hosts:?}");
        }
        for (uri, hosts) in [
            ("/", &[][..]),
            ("/", &["a.example", "b.example"]),
            ("/", &["a.example", "a.example"]),
            ("/", &["a.example:80"]),
            ("/", &["a.example:8080:8080"]),
            ("/", &["a.example:+8080"]),
            ("/", &["a.example:"]),
            ("/", &[""]),
            ("/", &["user@a.example"]),
            ("/", &["a.example, b.example"]),
            ("/", &["a.example/"]),
            ("/", &["192.0.2.2"]),
            ("/", &["0x7f000001"]),
            ("/", &["[a.example]"]),
            ("/", &["[::1]"]),
            ("http://a.example/", &["b.example"]),
            ("https://a.example/", &["a.example"]),
            ("http://user@a.example/", &["a.example"]),
            ("ftp://a.example/", &["a.example"]),
        ] {
            assert_eq!(read("GET", uri, hosts), Err(Reason::MalformedHttp), "{uri} {hosts:?}");
        }
        assert_eq!(read("CONNECT", "a.example:443", &["a.example"]), Err(Reason::Connect));
    }

    #[test]
    fn servers_get_the_path() {
        for (uri, expected) in [("http://a.example/x?y=1", "/x?y=1"), ("/x", "/x"), ("*", "*"), ("http://a.example", "/")] {
            assert_eq!(origin_form(&uri.parse().unwrap()).to_string(), expected);
        }
    }
}
