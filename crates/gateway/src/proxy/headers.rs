//! What of a request's and an answer's head passes.

use arenite_model::protocol::{VERSION, VERSION_HEADER};
use http::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE,
    EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, REFRESH, SET_COOKIE,
    STRICT_TRANSPORT_SECURITY, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};

use crate::gateway::Context;
use crate::refusal::Refusal;

use super::unreachable;

/// On a host that a sandbox shares with the control routes its pages get an origin of their own.
pub(crate) const SANDBOXED: HeaderValue =
    HeaderValue::from_static("sandbox allow-scripts allow-forms allow-popups allow-downloads");

pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(*name, CONNECTION | TE | TRAILER | TRANSFER_ENCODING | UPGRADE | PROXY_AUTHENTICATE | PROXY_AUTHORIZATION)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings")
}

/// The names in `Connection`, which end at this hop as well.
pub(super) fn named_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

/// What a guest has no business to see, or what only this server may say.
fn is_ours(name: &HeaderName) -> bool {
    // Cookies of a host are for all its ports: these are other programs'. Keys are this server's.
    matches!(*name, COOKIE | AUTHORIZATION | FORWARDED | EXPECT | HOST | CONTENT_LENGTH | ACCESS_CONTROL_REQUEST_HEADERS)
        || matches!(name.as_str(), "x-api-key" | "x-aio-api-key" | "x-real-ip" | "x-request-id")
        || name.as_str().starts_with("x-forwarded-")
        || name.as_str().starts_with("x-arenite-")
}

/// The head that goes to the guest.
pub(super) fn to_guest(from_client: &HeaderMap, context: &Context, prefix: &str, upgrade: bool) -> HeaderMap {
    let named = named_in_connection(from_client);
    let mut headers = HeaderMap::with_capacity(from_client.len() + 8);
    for (name, value) in from_client {
        if !is_hop_by_hop(name) && !is_ours(name) && !named.contains(name) {
            headers.append(name, value.clone());
        }
    }
    set_forwarded(&mut headers, context, prefix, upgrade);
    headers.insert(HeaderName::from_static(VERSION_HEADER), HeaderValue::from(VERSION));
    headers
}

/// What the server says of itself and of the client. `prefix`: what it took off the path.
pub(super) fn set_forwarded(headers: &mut HeaderMap, context: &Context, prefix: &str, upgrade: bool) {
    let (scheme, rest) = context.base_url.split_once("://").unwrap_or(("http", "localhost"));
    let (authority, outer) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let mut set = |name: HeaderName, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(HOST, authority);
    set(HeaderName::from_static("x-forwarded-proto"), scheme);
    set(HeaderName::from_static("x-forwarded-host"), authority);
    let prefix = format!("{outer}{prefix}");
    if !prefix.is_empty() {
        set(HeaderName::from_static("x-forwarded-prefix"), &prefix);
    }
    if let Some(origin) = &context.origin {
        set(HeaderName::from_static("x-forwarded-for"), origin);
    }
    set(HeaderName::from_static("x-request-id"), &context.request_id);
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
}

/// What a guest may not say to a browser that knows this host for other things too.
fn is_stripped(name: &HeaderName, own_host: bool) -> bool {
    matches!(*name, SET_COOKIE | STRICT_TRANSPORT_SECURITY | REFRESH)
        || matches!(
            name.as_str(),
            "set-cookie2"
                | "service-worker-allowed"
                | "clear-site-data"
                | "alt-svc"
                | "nel"
                | "report-to"
                | "reporting-endpoints"
                | "public-key-pins"
                | "server-timing"
                | "x-request-id"
        )
        // It would ask a person for a password in this host's name.
        || (*name == WWW_AUTHENTICATE && !own_host)
        || name.as_str().starts_with("access-control-")
        || name.as_str().starts_with("x-arenite-")
}

/// The head that goes to the client.
/// `bodiless`: the length is that of a body which is not sent; else the body tells its own.
pub(super) fn to_client(from_guest: &HeaderMap, own_host: bool, bodiless: bool) -> HeaderMap {
    let named = named_in_connection(from_guest);
    let mut headers = HeaderMap::with_capacity(from_guest.len() + 6);
    for (name, value) in from_guest {
        let told_otherwise = *name == CONTENT_LENGTH && !bodiless;
        if !is_hop_by_hop(name) && !is_stripped(name, own_host) && !told_otherwise && !named.contains(name) {
            headers.append(name, value.clone());
        }
    }
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if !own_host {
        sandbox(&mut headers);
    }
    headers
}

/// Keeps what is shown out of the origin that it is served on.
pub(super) fn sandbox(headers: &mut HeaderMap) {
    if !is_inert(headers.get(CONTENT_TYPE)) {
        // Beside the sandbox's own, if any: a browser enforces both.
        headers.append(CONTENT_SECURITY_POLICY, SANDBOXED);
    }
}

/// Types that no browser runs scripts of when it is shown them.
fn is_inert(content_type: Option<&HeaderValue>) -> bool {
    let Some(text) = content_type.and_then(|v| v.to_str().ok()) else { return false };
    let essence = text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" | "application/octet-stream" | "application/x-ndjson" | "text/plain" | "text/event-stream" => true,
        "image/svg+xml" => false,
        other => ["image/", "audio/", "video/", "font/"].iter().any(|kind| other.starts_with(kind)),
    }
}

/// Refuses an answer in another version of the protocol than this one and the one before.
pub(super) fn check_protocol(from_guest: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = from_guest.get(VERSION_HEADER) else { return Ok(()) };
    let version: Option<u32> = value.to_str().ok().and_then(|text| text.parse().ok());
    if version.is_some_and(|v| v == VERSION || v.checked_add(1) == Some(VERSION)) {
        return Ok(());
    }
    let shown: String = String::from_utf8_lossy(value.as_bytes()).chars().take(20).collect();
    Err(unreachable(format!("its guest speaks protocol {shown}, and this server {VERSION} and the one before"))
        .hint("the sandbox was made by another version of arenite; make it anew"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_request_is_cleaned_and_marked() {
        let context = Context {
            tenant: arenite_model::TenantId::default_tenant(),
            request_id: "r1".to_owned(),
            origin: Some("192.0.2.1".to_owned()),
            base_url: "https://box.example:444".to_owned(),
        };
        let given = map(&[
            ("connection", "keep-alive, X-Hop"),
            ("x-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("x-forwarded-host", "evil"),
            ("x-forwarded-prefix", "/evil"),
            ("x-arenite-protocol", "9"),
            ("cookie", "a=b"),
            ("authorization", "Bearer x"),
            ("host", "evil"),
            ("accept", "*/*"),
            ("upgrade", "h2c"),
        ]);
        let wanted = map(&[
            ("accept", "*/*"),
            ("host", "box.example:444"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "box.example:444"),
            ("x-forwarded-prefix", "/sandbox/a"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-request-id", "r1"),
            ("x-arenite-protocol", "1"),
        ]);
        assert_eq!(to_guest(&given, &context, "/sandbox/a", false), wanted);
        let upgrade = to_guest(&given, &context, "", true);
        assert_eq!(upgrade[UPGRADE], "websocket");
        assert!(!upgrade.contains_key("x-forwarded-prefix"));
    }

    #[test]
    fn an_answer_has_no_power_over_the_host() {
        let given = map(&[
            ("content-type", "text/html"),
            ("set-cookie", "a=b"),
            ("service-worker-allowed", "/"),
            ("access-control-allow-origin", "*"),
            ("access-control-allow-credentials", "true"),
            ("clear-site-data", "*"),
            ("alt-svc", "h3"),
            ("strict-transport-security", "max-age=1"),
            ("refresh", "0; url=/"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("x-arenite-protocol", "1"),
            ("content-security-policy", "default-src 'self'"),
            ("etag", "e"),
        ]);
        let mut wanted = map(&[
            ("content-type", "text/html"),
            ("content-security-policy", "default-src 'self'"),
            ("etag", "e"),
            ("x-content-type-options", "nosniff"),
        ]);
        assert_eq!(to_client(&given, true, false), wanted);
        wanted.append(CONTENT_SECURITY_POLICY, SANDBOXED);
        assert_eq!(to_client(&given, false, false), wanted);
        for (kind, inert) in [
            ("application/json; charset=utf-8", true),
            ("TEXT/PLAIN", true),
            ("image/png", true),
            ("image/svg+xml", false),
            ("application/pdf", false),
            ("text/xml", false),
            ("application/xhtml+xml", false),
            ("nonsense", false),
        ] {
            assert_eq!(is_inert(Some(&HeaderValue::from_static(kind))), inert, "{kind}");
        }
        assert!(!is_inert(None));
        let sized = map(&[("content-length", "7"), ("content-type", "text/plain")]);
        assert!(to_client(&sized, false, true).contains_key(CONTENT_LENGTH));
        assert!(!to_client(&sized, false, false).contains_key(CONTENT_LENGTH));
    }

    #[test]
    fn versions() {
        assert!(check_protocol(&map(&[])).is_ok());
        assert!(check_protocol(&map(&[("x-arenite-protocol", "1")])).is_ok());
        assert!(check_protocol(&map(&[("x-arenite-protocol", "2")])).is_err());
        assert!(check_protocol(&map(&[("x-arenite-protocol", "x")])).is_err());
        assert!(check_protocol(&map(&[("x-arenite-protocol", "4294967295")])).is_err());
    }
}
