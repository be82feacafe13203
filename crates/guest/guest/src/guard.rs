//! Protection from pages in the sandbox's own browser: they must not call the API, which listens on loopback beside them.
//!
//! A browser sends the origin of a request in `Origin` and `Sec-Fetch-Site`. A page with a name that was rebound to loopback is
//! recognised by that name in `Host`: no other client calls the guest by a name that is not this machine's.

use std::net::IpAddr;

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use arenite_guest_runtime::http::ApiError;

pub(crate) async fn refuse_pages(request: Request, next: Next) -> Response {
    match refusal(&request, |_| false) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    }
}

/// Why a request is refused: a page may have sent it. `is_own` is for names of the sandbox that it does not know itself.
pub(crate) fn refusal(request: &Request, is_own: impl Fn(&str) -> bool) -> Option<Response> {
    let headers = request.headers();
    let authority = headers.get(HOST).map(|host| host.to_str().unwrap_or("?"));
    let authority = authority.or(request.uri().authority().map(|authority| authority.as_str())).unwrap_or_default();
    let hostname = || std::fs::read_to_string("/etc/hostname").unwrap_or_default();
    if !is_here(authority, "") && !is_here(authority, hostname().trim()) && !is_own(without_port(authority)) {
        let refusal = ApiError::new(StatusCode::FORBIDDEN, "this API is called by a name that is not its own");
        return Some(refusal.hint("call it at 127.0.0.1 or localhost").into_response());
    }
    let is_foreign = is_foreign(headers, authority);
    is_foreign.then(|| ApiError::new(StatusCode::FORBIDDEN, "a page may not call this API").into_response())
}

fn without_port(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => authority,
    }
}

/// Whether a host with its port is this machine: an IP address, which can't be rebound, or a name of the machine.
fn is_here(authority: &str, own: &str) -> bool {
    let name = without_port(authority);
    let bare = name.trim_start_matches('[').trim_end_matches(']');
    let lower = bare.to_ascii_lowercase();
    // Without a name there is no page: programs that speak HTTP/1.0.
    name.is_empty()
        || bare.parse::<IpAddr>().is_ok()
        || lower == "localhost"
        || lower.ends_with(".localhost")
        || (!own.is_empty() && lower == own.to_ascii_lowercase())
}

fn is_foreign(headers: &HeaderMap, authority: &str) -> bool {
    let origins = headers.get_all(ORIGIN).iter().map(|origin| origin.to_str().unwrap_or("?"));
    let own = |origin: &str| origin.strip_prefix("http://").is_some_and(|of| of.eq_ignore_ascii_case(authority));
    let site = headers.get("sec-fetch-site").map(|site| site.to_str().unwrap_or("?"));
    origins.into_iter().any(|origin| !own(origin)) || site.is_some_and(|site| !matches!(site, "same-origin" | "none"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderValue;

    #[test]
    fn only_this_machines_names_are_here() {
        for (authority, wanted) in [
            ("127.0.0.1:8080", true),
            ("localhost:8080", true),
            ("LOCALHOST", true),
            ("[::1]:8080", true),
            ("10.1.2.3:8080", true),
            ("x.localhost:8080", true),
            ("demo:8080", true),
            ("", true),
            ("evil.example:8080", false),
            ("localhost.evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("demo.evil.example:8080", false),
            ("?", false),
        ] {
            assert_eq!(is_here(authority, "Demo"), wanted, "{authority}");
        }
        assert!(!is_here("demo", ""));
    }

    #[test]
    fn pages_are_told_by_their_origin() {
        for (name, value, wanted) in [
            ("origin", "http://127.0.0.1:8080", false),
            ("origin", "http://localhost:8080", true),
            ("origin", "http://127.0.0.1:3000", true),
            ("origin", "https://127.0.0.1:8080", true),
            ("origin", "http://evil.example", true),
            ("origin", "null", true),
            ("sec-fetch-site", "same-origin", false),
            ("sec-fetch-site", "none", false),
            ("sec-fetch-site", "same-site", true),
            ("sec-fetch-site", "cross-site", true),
            ("accept", "*/*", false),
        ] {
            let headers = [(name.parse().unwrap(), HeaderValue::from_static(value))].into_iter().collect();
            assert_eq!(is_foreign(&headers, "127.0.0.1:8080"), wanted, "{name}: {value}");
        }
    }
}
