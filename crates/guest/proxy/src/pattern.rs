//! Patterns of mappings and excludes.

use std::net::IpAddr;

use ipnet::IpNet;

/// The most bytes of a pattern or target.
const MAX_BYTES: usize = 2048;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub(super) fn port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }

    fn read(text: &str) -> Option<Self> {
        match text {
            "http" | "ws" => Some(Self::Http),
            "https" | "wss" => Some(Self::Https),
            _ => None,
        }
    }
}

/// The target of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub(super) scheme: Scheme,
    /// Lower case, an IPv6 address without its brackets.
    pub(super) host: &'a str,
    pub(super) port: u16,
    /// None if it is encrypted.
    pub(super) path: Option<&'a str>,
}

/// `[scheme://]host[:port][/path]`: the host with any `*`, the path with one at its end.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) text: String,
    scheme: Option<Scheme>,
    pub(super) host: String,
    port: Option<u16>,
    /// The prefix of the request's path.
    pub(super) path: String,
    /// The path ended with `*`: a match may continue in the middle of a name.
    open: bool,
}

/// Equal if they match the same requests, however they are written.
impl PartialEq for Source {
    fn eq(&self, other: &Self) -> bool {
        let key = |s: &Self| (s.scheme, s.host.clone(), s.port, s.path.clone());
        key(self) == key(other)
    }
}

/// `[host:]port[/path]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) text: String,
    pub(super) host: String,
    pub(super) port: u16,
    path: Option<String>,
}

fn checked(text: &str) -> Result<&str, String> {
    let text = text.trim();
    let clean = |c: char| c.is_ascii_graphic() && !"?#@\\\"<>".contains(c);
    match text.is_empty() || text.len() > MAX_BYTES || !text.chars().all(clean) {
        true => Err("it is empty, longer than 2048 bytes, or holds characters that hosts and paths don't have".to_owned()),
        false => Ok(text),
    }
}

/// Host and port of `host[:port]`, the host in lower case and without brackets.
pub(super) fn host_and_port(authority: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':').or((!rest.is_empty()).then_some("x"))),
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        Some(port) => Some(port.parse().ok().filter(|p| *p > 0).ok_or_else(|| format!("{port:?} is no port"))?),
        None => None,
    };
    Ok((host.to_ascii_lowercase(), port))
}

fn split_path(text: &str) -> (&str, Option<&str>) {
    match text.find('/') {
        Some(at) => (&text[..at], Some(&text[at..])),
        None => (text, None),
    }
}

impl Source {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let text = checked(text)?;
        let (scheme, rest) = match text.split_once("://") {
            Some((scheme, rest)) => {
                let known = Scheme::read(&scheme.to_ascii_lowercase());
                (Some(known.ok_or_else(|| format!("{scheme:?} is none of http, https, ws, wss"))?), rest)
            }
            None => (None, text),
        };
        let (authority, path) = split_path(rest);
        let (host, port) = host_and_port(authority)?;
        let valid = |c: char| c.is_ascii_alphanumeric() || "-_.*:".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(valid) {
            return Err(format!("{host:?} is no host"));
        }
        let path = path.unwrap_or("/");
        let (path, open) = match path.strip_suffix('*') {
            Some(path) => (path, true),
            None => (path, false),
        };
        if path.contains('*') {
            return Err("a path may have one `*`, at its end".to_owned());
        }
        Ok(Self { text: text.to_owned(), scheme, host, port, path: path.to_owned(), open })
    }

    pub(super) fn matches(&self, wanted: &Wanted<'_>) -> bool {
        let in_path = |path: &str| {
            let whole = |rest: &str| rest.is_empty() || rest.starts_with('/') || self.open || self.path.ends_with('/');
            path.strip_prefix(&*self.path).is_some_and(whole)
        };
        self.scheme.is_none_or(|s| s == wanted.scheme)
            && self.port.is_none_or(|p| p == wanted.port)
            && glob(&self.host, wanted.host)
            && (self.path == "/" || wanted.path.is_some_and(in_path))
    }

    /// Of two matching sources, the one with the greater weight applies.
    pub(super) fn weight(&self) -> (bool, usize, usize, bool, bool) {
        (!self.host.contains('*'), self.host.len(), self.path.len(), self.port.is_some(), self.scheme.is_some())
    }
}

impl Target {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let text = checked(text)?;
        if text.contains("://") {
            return Err("a target has no scheme: it is reached over plain http, or by the bytes of https as they are".to_owned());
        }
        let (authority, path) = split_path(text);
        let alone = authority.parse::<u16>().is_ok();
        let authority = if alone { format!(":{authority}") } else { authority.to_owned() };
        let (host, port) = host_and_port(&authority)?;
        let valid = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if host.len() > 253 || !host.chars().all(valid) {
            return Err(format!("{host:?} is no host"));
        }
        Ok(Self {
            text: text.to_owned(),
            host: if host.is_empty() { "127.0.0.1".to_owned() } else { host },
            port: port.ok_or("it needs a port")?,
            path: path.map(str::to_owned),
        })
    }

    /// The path to request from the target, for `path` requested from `source`.
    pub(super) fn path(&self, source: &Source, path: &str) -> String {
        let Some(own) = &self.path else { return path.to_owned() };
        let rest = path.strip_prefix(&*source.path).unwrap_or_default();
        let rest = if own.ends_with('/') { rest.strip_prefix('/').unwrap_or(rest) } else { rest };
        let slash = if own.ends_with('/') || rest.is_empty() || rest.starts_with('/') { "" } else { "/" };
        format!("{own}{slash}{rest}")
    }
}

/// A set of hosts: a domain (`example.com`; `.example.com` with all below; any `*`), an address or a CIDR range. Ranges match
/// only hosts given as addresses: names are not resolved for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Hosts {
    Domain(String),
    Net(IpNet),
}

impl Hosts {
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let text = checked(text)?.to_ascii_lowercase();
        let text = text.trim_matches(['[', ']']);
        if let Ok(net) = text.parse::<IpNet>() {
            return Ok(Self::Net(net));
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Net(address.into()));
        }
        let valid = |c: char| c.is_ascii_alphanumeric() || "-_.*".contains(c);
        match text.len() > 253 || !text.chars().all(valid) {
            true => Err("it is neither a domain nor a range of addresses".to_owned()),
            false => Ok(Self::Domain(text.to_owned())),
        }
    }

    pub(super) fn contain(&self, host: &str) -> bool {
        match self {
            Self::Net(net) => host.parse::<IpAddr>().is_ok_and(|address| net.contains(&address)),
            Self::Domain(domain) => match domain.strip_prefix('.') {
                Some(bare) => host.strip_suffix(bare).is_some_and(|rest| rest.is_empty() || rest.ends_with('.')),
                None => glob(domain, host),
            },
        }
    }
}

impl std::fmt::Display for Hosts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Domain(domain) => f.write_str(domain),
            Self::Net(net) if net.prefix_len() == net.max_prefix_len() => net.addr().fmt(f),
            Self::Net(net) => net.fmt(f),
        }
    }
}

/// Whether a text matches a pattern in which `*` stands for any text. Takes time proportional to both lengths at most.
fn glob(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    let mut parts = rest.split('*').peekable();
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return text.ends_with(part);
        }
        match text.find(part) {
            Some(at) => text = &text[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(url: &str) -> (Scheme, String, u16, String) {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (authority, path) = split_path(rest);
        let scheme = Scheme::read(scheme).unwrap();
        let (host, port) = host_and_port(authority).unwrap();
        (scheme, host, port.unwrap_or(scheme.port()), path.unwrap_or("/").to_owned())
    }

    #[test]
    fn sources_match_what_they_name() {
        for (source, url, is_match) in [
            ("myapp.com", "http://myapp.com", true),
            ("MyApp.com", "http://myapp.com:8443/x", true),
            ("myapp.com", "http://www.myapp.com", false),
            ("*.app.com", "http://a.b.app.com", true),
            ("*.app.com", "http://app.com", false),
            ("api-*.app.*", "http://api-1.app.org", true),
            ("api-*.app.*", "http://app.org", false),
            ("*", "http://any.thing", true),
            ("https://myapp.com", "http://myapp.com", false),
            ("https://myapp.com", "wss://myapp.com", true),
            ("myapp.com:81", "http://myapp.com", false),
            ("myapp.com:81", "http://myapp.com:81", true),
            ("a.com/v1/*", "http://a.com/v1/x", true),
            ("a.com/v1/*", "http://a.com/v1", false),
            ("a.com/v1", "http://a.com/v1/x", true),
            ("a.com/v1", "http://a.com/v1", true),
            ("a.com/v1", "http://a.com/v10", false),
            ("a.com/v1*", "http://a.com/v10", true),
            ("[::1]:81", "http://[::1]:81/", true),
        ] {
            let (scheme, host, port, path) = wanted(url);
            let wanted = Wanted { scheme, host: &host, port, path: Some(&path) };
            assert_eq!(Source::read(source).unwrap().matches(&wanted), is_match, "{source} {url}");
        }
        let hidden = Wanted { scheme: Scheme::Https, host: "a.com", port: 443, path: None };
        assert!(Source::read("a.com").unwrap().matches(&hidden) && Source::read("a.com/*").unwrap().matches(&hidden));
        assert!(!Source::read("a.com/v1").unwrap().matches(&hidden));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for source in ["", " ", "/x", "ftp://a", "a:0", "a:x", "a:99999", "a b", "a/x?y", "u:p@a", "a/*/b", "[::1]x", "é.com"] {
            assert!(Source::read(source).is_err(), "{source}");
        }
        for target in ["", "host", "http://a:1", "a:0", ":", "/x", "a:1:2", "*:1", &"1".repeat(3000)] {
            assert!(Target::read(target).is_err(), "{target}");
        }
        for hosts in ["", "a/b", "10.0.0.0/64", "a b", "a:1"] {
            assert!(Hosts::read(hosts).is_err(), "{hosts}");
        }
    }

    #[test]
    fn targets_default_to_this_host_and_replace_the_path() {
        for (source, target, path, place, wanted) in [
            ("a", ":3000", "/x", ("127.0.0.1", 3000), "/x"),
            ("a", "3000", "/x", ("127.0.0.1", 3000), "/x"),
            ("a", "3000/", "/x", ("127.0.0.1", 3000), "/x"),
            ("a", "b.c:81/v1/", "/x", ("b.c", 81), "/v1/x"),
            ("a", "b.c:81/v1", "/x", ("b.c", 81), "/v1/x"),
            ("a/v1/*", "[::1]:81/", "/v1/x", ("::1", 81), "/x"),
            ("a/v1", "81/v2", "/v1/x", ("127.0.0.1", 81), "/v2/x"),
            ("a/v1", "81/v2", "/v1", ("127.0.0.1", 81), "/v2"),
            ("a/v1/*", "81/v2/", "/v1/", ("127.0.0.1", 81), "/v2/"),
        ] {
            let (source, target) = (Source::read(source).unwrap(), Target::read(target).unwrap());
            assert_eq!((&*target.host, target.port), place);
            assert_eq!(target.path(&source, path), wanted, "{source:?} {target:?}");
        }
    }

    #[test]
    fn sets_of_hosts() {
        for (hosts, host, is_in) in [
            ("a.com", "a.com", true),
            ("a.com", "b.a.com", false),
            (".a.com", "a.com", true),
            (".a.com", "b.a.com", true),
            (".a.com", "ba.com", false),
            ("*.a.com", "b.a.com", true),
            ("*.a.com", "a.com", false),
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.0.0.0/8", "ten.example", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("fd00::/8", "fd12::1", true),
        ] {
            assert_eq!(Hosts::read(hosts).unwrap().contain(host), is_in, "{hosts} {host}");
        }
        assert_eq!(Hosts::read("192.0.2.1").unwrap().to_string(), "192.0.2.1");
        assert_eq!(Hosts::read("10.0.0.0/8").unwrap().to_string(), "10.0.0.0/8");
    }
}
