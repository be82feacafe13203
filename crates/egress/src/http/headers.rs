//! Headers that belong to one connection, and not to the request.

use http::header::{CONNECTION, CONTENT_ENCODING, HeaderName, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Method, Request, Version};

const ALSO_HOP_BY_HOP: [&str; 3] = ["keep-alive", "proxy-connection", "proxy-authorization"];

/// Removes the headers of the connection, and those that `Connection` names.
pub(super) fn keep_end_to_end(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        // A request without these would be another one.
        .filter(|name| *name != http::header::HOST && *name != http::header::CONTENT_LENGTH)
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, TE, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    for name in ALSO_HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Whether a body with these headers is compressed, or changed in another way.
pub(super) fn is_encoded(headers: &HeaderMap) -> bool {
    let has_other = |name: HeaderName, plain: &[u8]| {
        headers.get_all(name).iter().any(|value| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(plain))
    };
    has_other(CONTENT_ENCODING, b"identity") || has_other(TRANSFER_ENCODING, b"chunked")
}

/// Whether the request asks for a WebSocket. No other protocol may follow: over HTTP/2, requests would pass that nobody decides on.
pub(super) fn is_websocket<B>(request: &Request<B>) -> bool {
    let has = |name: HeaderName, token: &str| {
        let values = request.headers().get_all(name);
        let mut tokens = values.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        tokens.any(|one| one.trim().eq_ignore_ascii_case(token))
    };
    let only = request.headers().get(UPGRADE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"websocket"));
    only && has(CONNECTION, "upgrade") && request.method() == Method::GET && request.version() == Version::HTTP_11
}

pub(super) fn upgrade_again(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_connection_are_removed() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "a.example"),
            ("content-length", "3"),
            ("connection", "close, X-Own, Host, Content-Length"),
            ("x-own", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
            ("te", "trailers"),
            ("accept", "*/*"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        keep_end_to_end(&mut headers);
        let mut names: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["accept", "content-length", "host"]);
    }

    #[test]
    fn other_bodies_than_plain_ones_are_encoded() {
        for (name, value, expected) in [
            ("content-encoding", "Identity", false),
            ("content-encoding", "gzip", true),
            ("transfer-encoding", "chunked", false),
            ("transfer-encoding", "gzip, chunked", true),
            ("content-type", "application/gzip", false),
        ] {
            let headers = HeaderMap::from_iter([(name.parse().unwrap(), value.parse().unwrap())]);
            assert_eq!(is_encoded(&headers), expected, "{name}: {value}");
        }
    }

    #[test]
    fn only_websockets_are_upgrades() {
        let request = |upgrade: &str, connection: &str, method: &str| {
            let builder = Request::builder().method(method).header("upgrade", upgrade).header("connection", connection);
            builder.body(()).unwrap()
        };
        assert!(is_websocket(&request("WebSocket", "keep-alive, Upgrade", "GET")));
        for (upgrade, connection, method) in [
            ("h2c", "upgrade", "GET"),
            ("websocket, h2c", "upgrade", "GET"),
            ("websocket", "close", "GET"),
            ("websocket", "upgrade", "POST"),
        ] {
            assert!(!is_websocket(&request(upgrade, connection, method)), "{upgrade} {connection} {method}");
        }
    }
}
