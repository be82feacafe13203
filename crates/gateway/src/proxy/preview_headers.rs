//! Filters heads between a client and a program on a port of a sandbox.
//!
//! On a separate host, the program is an ordinary website: its cookies, its authentication and its policies pass. Below a path,
//! it shares a host with the routes that control sandboxes, and has none of these.

use http::header::{
    CONTENT_LENGTH, COOKIE, EXPECT, FORWARDED, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, SET_COOKIE,
    STRICT_TRANSPORT_SECURITY,
};

use super::headers::{is_hop_by_hop, named_in_connection, set_forwarded};
use super::redirect::Redirected;
use super::shared_origin;
use crate::auth::COOKIE_NAME;
use crate::gateway::Context;
use crate::preview::{PORT_HEADER, Preview, PreviewOrigin};

/// Headers that only this server may set.
fn is_ours(name: &HeaderName) -> bool {
    matches!(*name, FORWARDED | EXPECT | HOST | CONTENT_LENGTH)
        || *name == PORT_HEADER
        || matches!(name.as_str(), "x-real-ip" | "x-request-id" | "x-original-uri")
        || name.as_str().starts_with("x-forwarded-")
        || name.as_str().starts_with("x-arenite-")
}

/// The head for the program. Arenite's own credentials are already removed.
pub(super) fn to_program(from_client: &HeaderMap, context: &Context, preview: &Preview, upgrade: bool) -> HeaderMap {
    let named = named_in_connection(from_client);
    let mut headers = HeaderMap::with_capacity(from_client.len() + 8);
    for (name, value) in from_client {
        // Cookies of a shared host belong to other programs.
        let of_others = *name == COOKIE && preview.origin != PreviewOrigin::Port;
        if !is_hop_by_hop(name) && !is_ours(name) && !of_others && !named.contains(name) {
            headers.append(name, value.clone());
        }
    }
    set_forwarded(&mut headers, context, &preview.prefix, upgrade);
    headers
}

/// The head for the client. `bodiless`: the length is that of a body which is not sent.
pub(super) fn to_client(
    from_program: &HeaderMap,
    context: &Context,
    preview: &Preview,
    bodiless: bool,
    redirected: &Redirected<'_>,
) -> HeaderMap {
    let named = named_in_connection(from_program);
    let mut headers = HeaderMap::with_capacity(from_program.len() + 4);
    for (name, value) in from_program {
        let told_otherwise = *name == CONTENT_LENGTH && !bodiless;
        let passes = match preview.origin {
            PreviewOrigin::Server => shared_origin::passes(name),
            PreviewOrigin::Port | PreviewOrigin::Sandbox => !is_stripped(name, preview.origin),
        };
        if is_hop_by_hop(name) || told_otherwise || named.contains(name) || !passes {
            continue;
        }
        let value = match *name {
            LOCATION => match location(value, context, preview).unwrap_or_else(|| value.clone()) {
                led if redirected.allows(&led) => led,
                _ => continue,
            },
            SET_COOKIE => match host_only(value) {
                Some(cookie) => cookie,
                None => continue,
            },
            _ => value.clone(),
        };
        headers.append(name, value);
    }
    if preview.origin == PreviewOrigin::Server {
        shared_origin::confine(&mut headers);
    }
    headers
}

fn is_stripped(name: &HeaderName, origin: PreviewOrigin) -> bool {
    // These have effects beyond the host that sent them.
    let is_far_reaching = *name == STRICT_TRANSPORT_SECURITY
        || matches!(
            name.as_str(),
            "clear-site-data" | "alt-svc" | "nel" | "report-to" | "reporting-endpoints" | "public-key-pins" | "set-cookie2"
        );
    let is_of_origin = *name == SET_COOKIE
        || matches!(name.as_str(), "refresh" | "service-worker-allowed" | "www-authenticate")
        || name.as_str().starts_with("access-control-");
    is_far_reaching
        || (is_of_origin && origin != PreviewOrigin::Port)
        || name.as_str() == "x-request-id"
        || name.as_str().starts_with("x-arenite-")
}

/// Limits a cookie to this host; none if it would replace Arenite's own cookie. A cookie without a name is sent as its value
/// alone, which may look like Arenite's.
pub(super) fn host_only(value: &HeaderValue) -> Option<HeaderValue> {
    let bytes = value.as_bytes();
    let name = bytes.split(|b| *b == b'=' || *b == b';').next().unwrap_or_default().trim_ascii();
    if name.is_empty() || name == COOKIE_NAME.as_bytes() {
        return None;
    }
    let is_domain = |attribute: &[u8]| {
        let name = attribute.split(|b| *b == b'=').next().unwrap_or_default();
        name.trim_ascii().eq_ignore_ascii_case(b"domain")
    };
    let mut attributes = bytes.split(|b| *b == b';');
    let mut kept = attributes.next().unwrap_or_default().to_vec();
    for attribute in attributes.filter(|attribute| !is_domain(attribute)) {
        kept.push(b';');
        kept.extend_from_slice(attribute);
    }
    HeaderValue::from_bytes(&kept).ok()
}

/// The program's redirect, as an address for the client; none: it needs no change.
fn location(value: &HeaderValue, context: &Context, preview: &Preview) -> Option<HeaderValue> {
    let text = value.to_str().ok()?;
    let before = format!("{}{}", context.outer_path(), preview.prefix);
    let path = if text.starts_with('/') && !text.starts_with("//") {
        text
    } else {
        // The program's own address, which is not reachable from outside, or the address that it received.
        let (_, rest) = text.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))?;
        let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        let own = ["localhost", "127.0.0.1", "0.0.0.0", "[::1]", "[::]"];
        let is_own =
            authority.rsplit_once(':').is_some_and(|(host, port)| own.contains(&host) && port.parse() == Ok(preview.port));
        let told = context.base_url().split_once("://").map_or("", |(_, rest)| rest.split('/').next().unwrap_or_default());
        if !is_own && (authority != told || before.is_empty()) {
            return None;
        }
        path
    };
    let is_there = path.strip_prefix(before.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?', '#']));
    let slash = if path.starts_with('/') { "" } else { "/" };
    let whole = if is_there && !before.is_empty() { path.to_owned() } else { format!("{before}{slash}{path}") };
    // Two slashes would name a host.
    if whole.starts_with("//") {
        return None;
    }
    HeaderValue::try_from(whole).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::SandboxRef;

    fn preview(origin: PreviewOrigin, prefix: &str) -> Preview {
        let sandbox_ref = SandboxRef::Name("a".parse().unwrap());
        Preview { port: 3000, sandbox_ref, path: "/".to_owned(), prefix: prefix.to_owned(), origin }
    }

    fn context(base_url: &str) -> Context {
        Context {
            principal: std::sync::Arc::new(arenite_control::tenants::Principal::operator()),
            dialect: "aio",
            request_id: "r1".to_owned(),
            client: Some("192.0.2.1".to_owned()),
            origin: arenite_trajectory::Origin::Agent,
            base_url: Some(base_url.to_owned()),
            trace: None,
        }
    }

    fn shown(given: &HeaderMap, context: &Context, preview: &Preview) -> HeaderMap {
        let owns = |path: &str| path.starts_with(preview.prefix.as_str());
        let path = format!("{}/x", preview.prefix);
        let redirected = Redirected {
            path: &path,
            origin: context.outer_origin(),
            outer: context.outer_path(),
            owns: (preview.origin == PreviewOrigin::Server).then_some(&owns),
            keyed: false,
            method: &http::Method::GET,
            status: http::StatusCode::FOUND,
        };
        to_client(given, context, preview, false, &redirected)
    }

    fn map(list: &[(&'static str, &'static str)]) -> HeaderMap {
        list.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn redirects_stay_where_the_client_is() {
        let stripped = preview(PreviewOrigin::Server, "/sandbox/a/proxy/3000");
        let kept = preview(PreviewOrigin::Server, "/sandbox/a");
        let own = preview(PreviewOrigin::Port, "");
        let base = "http://localhost:8080";
        for (preview, base, given, wanted) in [
            (&stripped, base, "/login?x=%2F", "/sandbox/a/proxy/3000/login?x=%2F"),
            (&stripped, base, "/sandbox/a/proxy/3000/login", "/sandbox/a/proxy/3000/login"),
            (&stripped, base, "login", "login"),
            (&stripped, base, "http://localhost:3000/x", "/sandbox/a/proxy/3000/x"),
            (&stripped, base, "http://127.0.0.1:3000", "/sandbox/a/proxy/3000/"),
            (&stripped, base, "http://localhost:8080/x", "/sandbox/a/proxy/3000/x"),
            (&stripped, base, "https://example.org/x", "https://example.org/x"),
            (&stripped, base, "//example.org/x", "//example.org/x"),
            (&stripped, base, "http://localhost:4000/x", "http://localhost:4000/x"),
            (&stripped, "https://box.example/outer", "/x", "/outer/sandbox/a/proxy/3000/x"),
            (&kept, base, "/absproxy/3000/x", "/sandbox/a/absproxy/3000/x"),
            (&own, base, "/x", "/x"),
            (&own, base, "http://0.0.0.0:3000/x", "/x"),
            (&own, base, "http://localhost:3000//evil.example", "http://localhost:3000//evil.example"),
            (&own, base, "http://3000-a.localhost:8080/x", "http://3000-a.localhost:8080/x"),
        ] {
            let given_headers = HeaderMap::from_iter([(LOCATION, HeaderValue::from_static(given))]);
            let got = shown(&given_headers, &context(base), preview);
            assert_eq!(got[LOCATION], wanted, "{given}");
        }
    }

    #[test]
    fn on_its_own_host_a_program_is_a_website() {
        let given = map(&[
            ("set-cookie", "a=b; Domain=localhost; Path=/; HttpOnly"),
            ("set-cookie", "arenite_session=planted; Path=/"),
            ("set-cookie", "c=d;domain = .example ; Secure"),
            ("access-control-allow-origin", "*"),
            ("www-authenticate", "Basic"),
            ("content-security-policy", "default-src 'self'"),
            ("strict-transport-security", "max-age=1"),
            ("clear-site-data", "*"),
            ("content-type", "text/html"),
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
        ]);
        let wanted = map(&[
            ("set-cookie", "a=b; Path=/; HttpOnly"),
            ("set-cookie", "c=d; Secure"),
            ("access-control-allow-origin", "*"),
            ("www-authenticate", "Basic"),
            ("content-security-policy", "default-src 'self'"),
            ("content-type", "text/html"),
        ]);
        assert_eq!(shown(&given, &context("http://x"), &preview(PreviewOrigin::Port, "")), wanted);
        let shared = shown(&given, &context("http://x"), &preview(PreviewOrigin::Server, "/proxy/3000"));
        for header in ["set-cookie", "access-control-allow-origin", "www-authenticate"] {
            assert!(!shared.contains_key(header), "{header}");
        }
        assert!(shared.get_all("content-security-policy").iter().any(|policy| policy == super::super::SANDBOXED));
    }

    #[test]
    fn a_program_is_told_where_it_is() {
        let given = map(&[
            ("cookie", "mine=1"),
            ("authorization", "Basic eA=="),
            ("x-forwarded-host", "evil"),
            ("x-aio-proxy-port", "3000"),
            ("host", "evil"),
            ("origin", "http://3000-a.localhost:8080"),
        ]);
        let own = to_program(&given, &context("http://3000-a.localhost:8080"), &preview(PreviewOrigin::Port, ""), false);
        let wanted = map(&[
            ("cookie", "mine=1"),
            ("authorization", "Basic eA=="),
            ("origin", "http://3000-a.localhost:8080"),
            ("host", "3000-a.localhost:8080"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "3000-a.localhost:8080"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-request-id", "r1"),
        ]);
        assert_eq!(own, wanted);
        let shared = to_program(&given, &context("https://x/outer"), &preview(PreviewOrigin::Server, "/proxy/3000"), true);
        assert!(!shared.contains_key("cookie"));
        assert_eq!(shared["x-forwarded-prefix"], "/outer/proxy/3000");
        assert_eq!(
            (&shared["upgrade"], &shared["x-forwarded-proto"]),
            (&HeaderValue::from_static("websocket"), &HeaderValue::from_static("https"))
        );
    }
}
