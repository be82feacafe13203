//! Filters the heads of requests and answers.

use arenite_model::protocol::{VERSION, VERSION_HEADER};
use http::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, AUTHORIZATION, CONNECTION, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT,
    FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, REFRESH, SET_COOKIE,
    STRICT_TRANSPORT_SECURITY, TE, TRAILER, TRANSFER_ENCODING, UPGRADE, X_CONTENT_TYPE_OPTIONS,
};

use crate::gateway::Context;
use crate::refusal::Refusal;
use crate::target::Target;

use super::preview_headers::host_only;
use super::redirect::Redirected;
use super::{shared_origin, unreachable};

pub(super) fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(*name, CONNECTION | TE | TRAILER | TRANSFER_ENCODING | UPGRADE | PROXY_AUTHENTICATE | PROXY_AUTHORIZATION)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings")
}

/// The names in `Connection`, which are hop-by-hop as well.
pub(super) fn named_in_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect()
}

/// Headers that a guest must not see, or that only this server may set.
fn is_ours(name: &HeaderName) -> bool {
    // Keys are this server's.
    matches!(*name, AUTHORIZATION | FORWARDED | EXPECT | HOST | CONTENT_LENGTH | ACCESS_CONTROL_REQUEST_HEADERS)
        || matches!(name.as_str(), "x-api-key" | "x-aio-api-key" | "x-real-ip" | "x-request-id")
        || name.as_str().starts_with("x-forwarded-")
        || name.as_str().starts_with("x-arenite-")
}

/// The host on which the client sees a guest's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    /// On the server's host, which has the control routes.
    Server,
    /// On the sandbox's own host.
    OwnHost,
    /// On the sandbox's own host, as a website with cookies.
    Website,
}

impl Shown {
    pub(super) fn at(target: &Target) -> Self {
        match (target.own_host, target.is_website()) {
            (false, _) => Self::Server,
            (true, false) => Self::OwnHost,
            (true, true) => Self::Website,
        }
    }
}

/// The head for the guest. `cookies`: they belong to a website on a separate host, and Arenite's cookie is already removed.
pub(super) fn to_guest(from_client: &HeaderMap, context: &Context, prefix: &str, upgrade: bool, cookies: bool) -> HeaderMap {
    let named = named_in_connection(from_client);
    let mut headers = HeaderMap::with_capacity(from_client.len() + 8);
    for (name, value) in from_client {
        // Cookies of a shared host apply to all its ports: these belong to other programs.
        let of_others = *name == COOKIE && !cookies;
        if !is_hop_by_hop(name) && !is_ours(name) && !of_others && !named.contains(name) {
            headers.append(name, value.clone());
        }
    }
    set_forwarded(&mut headers, context, prefix, upgrade);
    headers.insert(HeaderName::from_static(VERSION_HEADER), HeaderValue::from(VERSION));
    headers
}

/// Sets the forwarding headers. `prefix`: what was removed from the path.
pub(super) fn set_forwarded(headers: &mut HeaderMap, context: &Context, prefix: &str, upgrade: bool) {
    let (scheme, rest) = context.base_url().split_once("://").unwrap_or(("http", "localhost"));
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
    if let Some(origin) = &context.client {
        set(HeaderName::from_static("x-forwarded-for"), origin);
    }
    set(HeaderName::from_static("x-request-id"), &context.request_id);
    if upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
}

/// Whether an answer is JSON or JSON lines of the API, and not a file or a page.
pub(super) fn is_told_as_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.contains("json") && !headers.contains_key(CONTENT_DISPOSITION)
}

/// Headers that a guest may not send to a browser on its own host, which its pages and the dashboard share.
fn is_stripped(name: &HeaderName, shown: Shown) -> bool {
    matches!(*name, STRICT_TRANSPORT_SECURITY | REFRESH)
        || (*name == SET_COOKIE && shown != Shown::Website)
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
        || name.as_str().starts_with("access-control-")
        || name.as_str().starts_with("x-arenite-")
}

/// The head for the client. `bodiless`: the length is that of a body which is not sent; otherwise the body sets it.
pub(super) fn to_client(from_guest: &HeaderMap, shown: Shown, bodiless: bool, redirected: &Redirected<'_>) -> HeaderMap {
    let named = named_in_connection(from_guest);
    let mut headers = HeaderMap::with_capacity(from_guest.len() + 6);
    for (name, value) in from_guest {
        let passes = match shown {
            Shown::Server => shared_origin::passes(name),
            Shown::OwnHost | Shown::Website => !is_stripped(name, shown),
        };
        let told_otherwise = *name == CONTENT_LENGTH && !bodiless;
        if is_hop_by_hop(name) || !passes || told_otherwise || named.contains(name) {
            continue;
        }
        let value = match *name {
            SET_COOKIE => host_only(value),
            LOCATION => redirected.allows(value).then(|| value.clone()),
            _ => Some(value.clone()),
        };
        if let Some(value) = value {
            headers.append(name, value);
        }
    }
    if shown == Shown::Server {
        shared_origin::confine(&mut headers);
    } else {
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    headers
}

/// Refuses an answer in any version of the protocol except this one and the one before.
pub(super) fn check_protocol(from_guest: &HeaderMap) -> Result<(), Refusal> {
    let Some(value) = from_guest.get(VERSION_HEADER) else { return Ok(()) };
    let version: Option<u32> = value.to_str().ok().and_then(|text| text.parse().ok());
    if version.is_some_and(|v| v == VERSION || v.checked_add(1) == Some(VERSION)) {
        return Ok(());
    }
    let shown: String = String::from_utf8_lossy(value.as_bytes()).chars().take(20).collect();
    Err(unreachable(format!("its guest speaks protocol {shown}, and this server {VERSION} and the one before"))
        .hint("the sandbox was made by another version of arenite; create it again"))
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_SECURITY_POLICY;
    use http::{Method, StatusCode};

    use super::shared_origin::SANDBOXED;
    use super::*;

    fn map(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn a_request_is_cleaned_and_marked() {
        let context = Context {
            principal: std::sync::Arc::new(arenite_control::tenants::Principal::operator()),
            dialect: "aio",
            request_id: "r1".to_owned(),
            client: Some("192.0.2.1".to_owned()),
            origin: arenite_trajectory::Origin::Agent,
            base_url: Some("https://box.example:444".to_owned()),
            trace: None,
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
        assert_eq!(to_guest(&given, &context, "/sandbox/a", false, false), wanted);
        let upgrade = to_guest(&given, &context, "", true, true);
        assert_eq!(upgrade[COOKIE], "a=b");
        assert_eq!(upgrade[UPGRADE], "websocket");
        assert!(!upgrade.contains_key("x-forwarded-prefix"));
    }

    fn shown(given: &HeaderMap, shown: Shown, bodiless: bool) -> HeaderMap {
        let owns = |_: &str| true;
        let redirected = Redirected {
            path: "/v1/x",
            origin: "http://localhost",
            outer: "",
            owns: (shown == Shown::Server).then_some(&owns),
            keyed: false,
            method: &Method::GET,
            status: StatusCode::FOUND,
        };
        to_client(given, shown, bodiless, &redirected)
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
            ("content-security-policy", "default-src 'self'; report-uri /api/v1/sandbox"),
            ("link", "</x>; rel=preload"),
            ("of-tomorrow", "1"),
            ("etag", "e"),
        ]);
        let own = map(&[
            ("content-type", "text/html"),
            ("content-security-policy", "default-src 'self'; report-uri /api/v1/sandbox"),
            ("link", "</x>; rel=preload"),
            ("of-tomorrow", "1"),
            ("etag", "e"),
            ("x-content-type-options", "nosniff"),
        ]);
        assert_eq!(shown(&given, Shown::OwnHost, false), own);
        let mut wanted = map(&[("content-type", "text/html"), ("etag", "e"), ("x-content-type-options", "nosniff")]);
        wanted.insert(CONTENT_SECURITY_POLICY, SANDBOXED);
        assert_eq!(shown(&given, Shown::Server, false), wanted);
        let cookies = map(&[
            ("set-cookie", "_xsrf=1; Domain=localhost; Path=/jupyter/"),
            ("set-cookie", "arenite_session=planted; Path=/"),
            ("set-cookie", "=arenite_session=planted; Path=/"),
            ("access-control-allow-origin", "*"),
        ]);
        let wanted = map(&[("set-cookie", "_xsrf=1; Path=/jupyter/"), ("x-content-type-options", "nosniff")]);
        assert_eq!(shown(&cookies, Shown::Website, false), wanted);
        let sized = map(&[("content-length", "7"), ("content-type", "text/plain")]);
        assert!(shown(&sized, Shown::Server, true).contains_key(CONTENT_LENGTH));
        assert!(!shown(&sized, Shown::Server, false).contains_key(CONTENT_LENGTH));
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
