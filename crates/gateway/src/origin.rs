//! The cause of a request: an agent, a person, or the sandbox's own lifecycle.
//!
//! It is derived from how the request came in. Arenite's pages set a header. A browser's own headers state that one of this
//! host's pages calls, also where a page can't set any, as for WebSockets. Everything else is an agent's. Steps carry the origin,
//! so that exports and replays can leave out what an agent did not do. It grants no rights.

use arenite_trajectory::Origin;
use http::HeaderMap;
use http::header::{COOKIE, HeaderName, ORIGIN, REFERER};
use http::request::Parts;

use crate::auth;
use crate::guard::{self, Host};

const HEADER: HeaderName = HeaderName::from_static("x-arenite-origin");
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

pub(crate) fn classify(host: &Host, parts: &Parts) -> Origin {
    let headers = &parts.headers;
    let text = |name: &HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    if let Some(said) = text(&HEADER) {
        return said.trim().parse().unwrap_or_default();
    }
    let site = text(&FETCH_SITE);
    let is_page = matches!(site, Some("same-origin" | "none"))
        || site.is_none() && (text(&ORIGIN).is_some_and(|of| guard::is_of(of, &host.authority)) || refers(headers, host));
    if is_page || signed_in(headers) { Origin::Person } else { Origin::Agent }
}

/// Whether a link on one of this host's pages was followed.
fn refers(headers: &HeaderMap, host: &Host) -> bool {
    let Some(address) = headers.get(REFERER).and_then(|value| value.to_str().ok()) else { return false };
    let Some((scheme, rest)) = address.split_once("://") else { return false };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    guard::is_of(&format!("{scheme}://{authority}"), &host.authority)
}

/// A signed-in browser sends its cookie.
fn signed_in(headers: &HeaderMap) -> bool {
    let values = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(';')).any(|pair| pair.trim().split('=').next() == Some(auth::COOKIE_NAME))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::HostKind;
    use http::Request;

    #[test]
    fn the_way_a_request_comes_says_who_causes_it() {
        let host = Host { authority: "localhost:8080".to_owned(), kind: HostKind::Server };
        for (headers, wanted) in [
            (&[][..], Origin::Agent),
            (&[("x-arenite-origin", "person")], Origin::Person),
            (&[("x-arenite-origin", "system")], Origin::System),
            (&[("x-arenite-origin", "admin")], Origin::Agent),
            (&[("x-arenite-origin", "agent"), ("sec-fetch-site", "same-origin")], Origin::Agent),
            (&[("sec-fetch-site", "same-origin")], Origin::Person),
            (&[("sec-fetch-site", "none")], Origin::Person),
            (&[("sec-fetch-site", "cross-site"), ("origin", "https://app.example")], Origin::Agent),
            (&[("origin", "http://localhost:8080")], Origin::Person),
            (&[("origin", "http://evil.example")], Origin::Agent),
            (&[("referer", "http://localhost:8080/sandbox/x/index.html")], Origin::Person),
            (&[("referer", "http://evil.example/http://localhost:8080/")], Origin::Agent),
            (&[("cookie", "a=b; arenite_session=word")], Origin::Person),
            (&[("cookie", "a=arenite_session")], Origin::Agent),
        ] {
            let mut request = Request::builder();
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            assert_eq!(classify(&host, &request.body(()).unwrap().into_parts().0), wanted, "{headers:?}");
        }
    }
}
