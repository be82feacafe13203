//! Checks where a sandbox may redirect a client with `Location`.
//!
//! A client that follows a redirect repeats its method, its body and most of its headers, including a key. So a sandbox may
//! redirect within its own paths, but never redirect a client that sends a key in a header to another server.

use http::header::HeaderValue;
use http::{Method, StatusCode};

/// The request of a redirecting answer.
pub(super) struct Redirected<'a> {
    /// Of the request, without `outer`.
    pub(super) path: &'a str,
    /// Scheme and authority of this server, as the client calls it.
    pub(super) origin: &'a str,
    /// The path under which a trusted proxy serves this server; usually empty.
    pub(super) outer: &'a str,
    /// On a host that all routes share: whether a path belongs to the sandbox. None on a separate host.
    pub(super) owns: Option<&'a dyn Fn(&str) -> bool>,
    /// The client sends a key in a header.
    pub(super) keyed: bool,
    pub(super) method: &'a Method,
    pub(super) status: StatusCode,
}

#[derive(Debug, PartialEq, Eq)]
enum Leads {
    /// To a path of the same origin, without dot segments.
    Here(String),
    Elsewhere,
}

impl Redirected<'_> {
    /// Whether the redirect may reach the client.
    pub(super) fn allows(&self, location: &HeaderValue) -> bool {
        if self.owns.is_none() && !self.keyed {
            return true;
        }
        let Some(leads) = std::str::from_utf8(location.as_bytes()).ok().and_then(|text| self.resolve(text)) else { return false };
        match leads {
            Leads::Here(path) => self.owns.is_none_or(|owns| path.strip_prefix(self.outer).is_some_and(owns)),
            Leads::Elsewhere if self.keyed => false,
            // Another address may be another name of this server.
            Leads::Elsewhere => {
                self.owns.is_none() || matches!(*self.method, Method::GET | Method::HEAD) || self.status == StatusCode::SEE_OTHER
            }
        }
    }

    /// None: readers disagree about its meaning.
    fn resolve(&self, text: &str) -> Option<Leads> {
        if text.bytes().any(|b| b.is_ascii_control() || b == b'\\') {
            return None;
        }
        let lower = text.to_ascii_lowercase();
        let scheme_end =
            lower.find(':').filter(|at| lower[..*at].bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b)));
        let (authority, path) = match scheme_end {
            Some(at) => {
                let rest = text[at..].strip_prefix("://").filter(|_| matches!(&lower[..at], "http" | "https"))?;
                (Some(rest), "")
            }
            None => match text.strip_prefix("//") {
                Some(rest) => (Some(rest), ""),
                None => (None, text),
            },
        };
        let path = match authority {
            None => path,
            Some(rest) => {
                let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
                if authority.is_empty() || authority.contains('@') {
                    return None;
                }
                let (scheme, own) = self.origin.split_once("://")?;
                let same_scheme = scheme_end.is_none_or(|at| lower[..at] == *scheme);
                if !same_scheme || !authority.eq_ignore_ascii_case(own) {
                    return Some(Leads::Elsewhere);
                }
                if path.starts_with('/') { path } else { "/" }
            }
        };
        let path = &path[..path.find(['?', '#']).unwrap_or(path.len())];
        let base = format!("{}{}", self.outer, self.path);
        let whole = match path {
            "" => base,
            _ if path.starts_with('/') => path.to_owned(),
            _ => format!("{}/{path}", base.rsplit_once('/').map_or("", |(folder, _)| folder)),
        };
        Some(Leads::Here(without_dots(&whole)))
    }
}

/// Resolves dot segments, as every reader of URLs does.
fn without_dots(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment.to_ascii_lowercase().replace("%2e", ".").as_str() {
            "." if is_last => kept.push(""),
            "." => {}
            ".." => {
                kept.pop();
                if is_last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}", kept.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redirected<'a>(owns: Option<&'a dyn Fn(&str) -> bool>, keyed: bool, method: &'a Method) -> Redirected<'a> {
        let status = StatusCode::TEMPORARY_REDIRECT;
        Redirected { path: "/sandbox/a/v1/x", origin: "http://localhost:8080", outer: "", owns, keyed, method, status }
    }

    #[test]
    fn a_sandbox_leads_within_its_own() {
        let owns = |path: &str| path.starts_with("/sandbox/a/v1/");
        for (location, get, post) in [
            ("y?z=../..", true, true),
            ("/sandbox/a/v1/y", true, true),
            ("http://LOCALHOST:8080/sandbox/a/v1/y#..", true, true),
            ("//localhost:8080/sandbox/a/v1/y", true, true),
            ("", true, true),
            ("?y", true, true),
            ("./../v1/y", true, true),
            ("../../b/v1/y", false, false),
            ("/sandbox/a/v1/../../b/v1/y", false, false),
            ("/sandbox/a/v1/.%2E/%2e%2e/b/v1/y", false, false),
            ("/sandbox/a/v1/y/../../../../api/v2/sandboxes", false, false),
            ("/api/v2/sandboxes", false, false),
            ("//localhost:8080/api/v2/sandboxes", false, false),
            ("http://localhost:8080", false, false),
            ("/\\evil.example", false, false),
            ("\\\\evil.example", false, false),
            ("/sandbox/a/v1/\ty", false, false),
            ("http://x@localhost:8080/api", false, false),
            ("http:/api/v2", false, false),
            ("http:api", false, false),
            ("http:///api", false, false),
            ("javascript:alert(1)", false, false),
            ("data:text/html,x", false, false),
            ("http://127.0.0.1:8080/api/v2/sandboxes", true, false),
            ("https://localhost:8080/", true, false),
            ("https://example.org/x", true, false),
        ] {
            for (method, wanted) in [(Method::GET, get), (Method::POST, post)] {
                let value = HeaderValue::from_str(location).unwrap();
                assert_eq!(redirected(Some(&owns), false, &method).allows(&value), wanted, "{method} {location}");
            }
        }
    }

    #[test]
    fn a_key_is_not_led_away() {
        for owns in [None, Some(&(|_: &str| true) as &dyn Fn(&str) -> bool)] {
            let keyed = redirected(owns, true, &Method::GET);
            assert!(keyed.allows(&HeaderValue::from_static("/sandbox/a/v1/y")));
            assert!(!keyed.allows(&HeaderValue::from_static("http://evil.example/")));
            assert!(!keyed.allows(&HeaderValue::from_static("//evil.example/")));
        }
        let open = redirected(None, false, &Method::POST);
        assert!(open.allows(&HeaderValue::from_static("https://example.org/x")));
    }
}
