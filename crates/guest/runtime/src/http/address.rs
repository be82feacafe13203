//! The sandbox's addresses as the caller sees them.

use axum::http::{HeaderMap, header};

/// The address at which the caller reaches this sandbox: scheme, host and prefix, from the headers of the proxies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    secure: bool,
    /// Host and prefix, without a trailing slash.
    place: String,
}

impl Address {
    pub fn from_headers(headers: &HeaderMap) -> Self {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        // Each proxy may have appended its value; the first is the one nearest to the caller.
        let first = |name| text(name).and_then(|value| value.split(',').next()).map(str::trim);
        let is_host = |host: &&str| !host.is_empty() && host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_:[]".contains(&b));
        let host = first("x-forwarded-host").filter(is_host);
        let host = host.or_else(|| text(header::HOST.as_str()).filter(is_host)).unwrap_or("localhost");
        let is_path = |path: &&str| {
            path.starts_with('/')
                && !path.starts_with("//")
                && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-._~%".contains(&b))
        };
        let prefix = first("x-forwarded-prefix").filter(is_path).unwrap_or("").trim_end_matches('/');
        Self { secure: first("x-forwarded-proto") == Some("https"), place: format!("{host}{prefix}") }
    }

    /// The URL of a page or a call.
    pub fn http(&self, path: &str) -> String {
        format!("{}://{}{path}", if self.secure { "https" } else { "http" }, self.place)
    }

    /// The URL of a WebSocket.
    pub fn websocket(&self, path: &str) -> String {
        format!("{}://{}{path}", if self.secure { "wss" } else { "ws" }, self.place)
    }

    /// A path of this sandbox on the caller's host.
    pub fn path(&self, path: &str) -> String {
        let prefix = self.place.find('/').map_or("", |at| &self.place[at..]);
        format!("{prefix}{path}")
    }

    /// Host and prefix, without a scheme.
    pub fn place(&self) -> &str {
        &self.place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_callers() {
        for (list, http, websocket) in [
            (&[("host", "127.0.0.1:8080")][..], "http://127.0.0.1:8080/x", "ws://127.0.0.1:8080/x"),
            (
                &[
                    ("host", "guest"),
                    ("x-forwarded-proto", "https"),
                    ("x-forwarded-host", "box.example:444, inner"),
                    ("x-forwarded-prefix", "/sandbox/demo/"),
                ],
                "https://box.example:444/sandbox/demo/x",
                "wss://box.example:444/sandbox/demo/x",
            ),
            (
                &[
                    ("host", "guest"),
                    ("x-forwarded-host", "evil\"><script>"),
                    ("x-forwarded-prefix", "//evil"),
                    ("x-forwarded-proto", "javascript"),
                ],
                "http://guest/x",
                "ws://guest/x",
            ),
        ] {
            let headers = list.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>();
            let address = Address::from_headers(&headers);
            assert_eq!((address.http("/x").as_str(), address.websocket("/x").as_str()), (http, websocket));
            assert!(http.ends_with(&address.path("/x")) && address.path("/x").starts_with('/'));
        }
    }
}
