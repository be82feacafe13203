//! Callers' rules for requests, and the decision for one request.

use std::sync::Arc;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;

use super::headers::Headers;
use super::pattern::Pattern;
use super::{NetworkError, RouteResponseModel};

/// Maximum origins with separate headers.
const MAX_ORIGINS: usize = 100;
const MAX_ROUTES: usize = 200;
/// Maximum bytes of a route's body.
const MAX_BODY: usize = 10 << 20;
/// Maximum bytes of all routes' bodies.
const MAX_BODIES: usize = 32 << 20;

/// All rules. If several routes match a URL, the last one added applies.
#[derive(Debug, Clone, Default)]
pub(super) struct Rules {
    /// For all requests.
    headers: Headers,
    scoped: Vec<(String, Headers)>,
    routes: Vec<Arc<Route>>,
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) pattern: Pattern,
    pub(super) action: Action,
}

#[derive(Debug)]
pub(super) enum Action {
    /// Fails the request, as if no server had answered.
    Abort,
    Answer(MockResponse),
    /// Passes the request on, as without a route: older routes don't apply.
    Pass,
}

#[derive(Debug)]
pub(super) struct MockResponse {
    status: u16,
    headers: Headers,
    /// Base64, as the browser expects it.
    body: Arc<str>,
}

/// A paused request.
#[derive(Debug, Deserialize)]
pub(super) struct Request {
    pub(super) url: String,
    pub(super) method: String,
    pub(super) headers: Headers,
}

/// The decision for a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It continues unchanged.
    Pass,
    /// It continues with these headers instead of the original ones.
    Headers(Headers),
    Abort,
    Answer {
        status: u16,
        headers: Headers,
        body: Arc<str>,
    },
}

impl Rules {
    pub(super) fn is_empty(&self) -> bool {
        self.headers.is_empty() && self.scoped.is_empty() && self.routes.is_empty()
    }

    pub(super) fn routes(&self) -> usize {
        self.routes.len()
    }

    /// Sets the headers of all requests; an empty list removes them.
    pub(super) fn set_headers(&mut self, headers: Headers) {
        self.headers = headers;
    }

    /// Sets the headers of requests to an origin; an empty list removes them. They override those of all requests.
    pub(super) fn set_scoped(&mut self, origin: String, headers: Headers) -> Result<(), NetworkError> {
        self.scoped.retain(|(known, _)| *known != origin);
        if !headers.is_empty() {
            if self.scoped.len() >= MAX_ORIGINS {
                return Err(NetworkError::TooManyOrigins { most: MAX_ORIGINS });
            }
            self.scoped.push((origin, headers));
        }
        Ok(())
    }

    /// Adds a route, which replaces one with the same pattern.
    pub(super) fn add(&mut self, route: Route) -> Result<(), NetworkError> {
        self.routes.retain(|known| known.pattern.text() != route.pattern.text());
        if self.routes.len() >= MAX_ROUTES {
            return Err(NetworkError::TooManyRoutes { most: MAX_ROUTES });
        }
        self.routes.push(Arc::new(route));
        let bodies =
            self.routes.iter().map(|route| if let Action::Answer(answer) = &route.action { answer.body.len() } else { 0 });
        // Bodies are kept in base64, which is 4/3 of the size.
        if bodies.sum::<usize>() / 4 * 3 > MAX_BODIES {
            return Err(NetworkError::LargeBodies { most: MAX_BODIES >> 20 });
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, pattern: &str) -> Result<(), NetworkError> {
        let before = self.routes.len();
        self.routes.retain(|known| known.pattern.text() != pattern);
        match self.routes.len() == before {
            true => Err(NetworkError::NoRoute(pattern.chars().take(200).collect())),
            false => Ok(()),
        }
    }

    /// Wildcards of the URLs that rules may apply to, without duplicates.
    pub(super) fn wildcards(&self) -> Vec<String> {
        if !self.headers.is_empty() {
            return vec!["*".to_owned()];
        }
        let origins = self.scoped.iter().map(|(origin, _)| format!("{origin}/*"));
        let mut all: Vec<String> = origins.chain(self.routes.iter().map(|route| route.pattern.wildcards().to_owned())).collect();
        if all.iter().any(|wildcards| wildcards == "*") {
            return vec!["*".to_owned()];
        }
        all.sort();
        all.dedup();
        all
    }

    /// Decides on a request.
    pub(super) fn decide(&self, request: &Request) -> Verdict {
        let route = self.routes.iter().rev().find(|route| route.pattern.matches(&request.url));
        let preflight = request.method == "OPTIONS" && request.headers.get("access-control-request-method").is_some();
        match route.map(|route| &route.action) {
            Some(Action::Abort) => return Verdict::Abort,
            Some(Action::Answer(_)) if preflight => return allow(request),
            Some(Action::Answer(answer)) => return answer.to(request),
            // A preflight asks whether a request may be sent; the page did not make it.
            _ if preflight => return Verdict::Pass,
            Some(Action::Pass) | None => {}
        }
        let origin = origin_of(&request.url);
        let scoped = self.scoped.iter().find(|(known, _)| Some(known) == origin.as_ref()).map(|(_, headers)| headers);
        let mut headers = request.headers.clone();
        headers.overlay(&self.headers);
        if let Some(scoped) = scoped {
            headers.overlay(scoped);
        }
        if self.headers.is_empty() && scoped.is_none() { Verdict::Pass } else { Verdict::Headers(headers) }
    }
}

impl Route {
    pub(super) fn new(pattern: &str, response: Option<RouteResponseModel>, abort: bool) -> Result<Self, NetworkError> {
        let pattern = Pattern::parse(pattern)?;
        let action = match (abort, response) {
            (true, _) => Action::Abort,
            (false, Some(response)) => Action::Answer(MockResponse::new(response)?),
            (false, None) => Action::Pass,
        };
        Ok(Self { pattern, action })
    }
}

impl MockResponse {
    fn new(response: RouteResponseModel) -> Result<Self, NetworkError> {
        let RouteResponseModel { status, headers, body, content_type } = response;
        let (headers, body) = (headers.unwrap_or_default(), body.unwrap_or_default());
        let status = u16::try_from(status.unwrap_or(200)).ok().filter(|status| (200..=599).contains(status));
        let status = status.ok_or(NetworkError::Status)?;
        if body.len() > MAX_BODY {
            return Err(NetworkError::LargeBody { most: MAX_BODY >> 20 });
        }
        let mut headers = Headers::check(&headers)?;
        if let Some(content_type) = content_type {
            headers.overlay(&Headers::check(&[("Content-Type".to_owned(), content_type)].into())?);
        } else if headers.get("content-type").is_none() {
            // Pages that are shown while they load would guess the encoding.
            headers.push("Content-Type", if body.is_ascii() { "text/plain" } else { "text/plain; charset=utf-8" });
        }
        // Headers of the transfer are not the caller's: nothing is transferred.
        headers.remove("transfer-encoding");
        headers.remove("content-length");
        headers.push("Content-Length", body.len().to_string());
        Ok(Self { status, headers, body: BASE64_STANDARD.encode(body).into() })
    }

    /// Builds the answer to a request. Pages of other origins may read it, because that is what routes are for.
    fn to(&self, request: &Request) -> Verdict {
        let mut headers = self.headers.clone();
        if let Some(origin) = foreign_origin(request)
            && headers.get("access-control-allow-origin").is_none()
        {
            headers.push("Access-Control-Allow-Origin", origin);
            headers.push("Access-Control-Allow-Credentials", "true");
            headers.push("Vary", "Origin");
        }
        Verdict::Answer { status: self.status, headers, body: Arc::clone(&self.body) }
    }
}

/// Builds the answer to a preflight for a request that a route answers.
fn allow(request: &Request) -> Verdict {
    let mut headers = Headers::default();
    headers.push("Access-Control-Allow-Origin", request.headers.get("origin").unwrap_or("*"));
    headers.push("Access-Control-Allow-Credentials", "true");
    headers.push("Vary", "Origin");
    for (asked, allowed) in [
        ("access-control-request-method", "Access-Control-Allow-Methods"),
        ("access-control-request-headers", "Access-Control-Allow-Headers"),
    ] {
        if let Some(value) = request.headers.get(asked) {
            headers.push(allowed, value);
        }
    }
    Verdict::Answer { status: 204, headers, body: "".into() }
}

/// The origin of the requesting page, if it differs from the request's.
fn foreign_origin(request: &Request) -> Option<&str> {
    let origin = request.headers.get("origin")?.trim();
    (origin_of(&request.url).as_deref() != Some(origin)).then_some(origin)
}

/// `scheme://host:port` of an HTTP URL, without the scheme's default port.
fn origin_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    let scheme = scheme.to_ascii_lowercase();
    let usual = match scheme.as_str() {
        "http" => "80",
        "https" => "443",
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let place = authority.rsplit_once('@').map_or(authority, |(_, place)| place).to_ascii_lowercase();
    // The colons of an IPv6 address are in brackets.
    let (host, port) = match place.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (place.as_str(), ""),
    };
    let valid = |c: char| c.is_ascii_alphanumeric() || "-._~[]:%".contains(c);
    if host.is_empty() || host.len() > 255 || !host.chars().all(valid) || (host.contains(':') && !host.starts_with('[')) {
        return None;
    }
    match port {
        "" => Some(format!("{scheme}://{host}")),
        port if port == usual => Some(format!("{scheme}://{host}")),
        port => port.parse::<u16>().ok().map(|port| format!("{scheme}://{host}:{port}")),
    }
}

/// Parses an origin from a caller.
pub(super) fn parse_origin(text: &str) -> Result<String, NetworkError> {
    let refused = || NetworkError::Origin(text.chars().take(200).collect());
    let origin = origin_of(text).ok_or_else(refused)?;
    // Nothing may follow the origin that would be lost.
    let rest = text.split_once("://").map_or("", |(_, rest)| rest).trim_end_matches('/');
    if rest.contains(['/', '?', '#', '@']) { Err(refused()) } else { Ok(origin) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> Headers {
        let mut headers = Headers::default();
        pairs.iter().for_each(|(name, value)| headers.push(*name, *value));
        headers
    }

    fn request(method: &str, url: &str, pairs: &[(&str, &str)]) -> Request {
        Request { url: url.to_owned(), method: method.to_owned(), headers: headers(pairs) }
    }

    fn response(body: &str) -> RouteResponseModel {
        serde_json::from_value(serde_json::json!({"body": body})).unwrap()
    }

    fn answered(pattern: &str, body: &str) -> Route {
        Route::new(pattern, Some(response(body)), false).unwrap()
    }

    fn body_of(verdict: Verdict) -> String {
        let Verdict::Answer { body, .. } = verdict else { panic!("{verdict:?}") };
        String::from_utf8(BASE64_STANDARD.decode(&*body).unwrap()).unwrap()
    }

    #[test]
    fn origins_are_told_from_what_they_are_not() {
        for (text, wanted) in [
            ("http://a.example", Some("http://a.example")),
            ("HTTPS://A.Example:443/", Some("https://a.example")),
            ("http://a.example:8080", Some("http://a.example:8080")),
            ("http://[::1]:80", Some("http://[::1]")),
            ("http://[::1]", Some("http://[::1]")),
            ("a.example", None),
            ("ftp://a.example", None),
            ("http://", None),
            ("http://a.example/x", None),
            ("http://a.example?x", None),
            ("http://u@a.example", None),
            ("http://a.example:x", None),
            ("http://a.example:99999", None),
            ("http://a*", None),
            ("http://ä.example", None),
            ("", None),
        ] {
            assert_eq!(parse_origin(text).ok().as_deref(), wanted, "{text}");
        }
        assert_eq!(origin_of("http://u:p@a.example:80/x@y").as_deref(), Some("http://a.example"));
        assert_eq!(origin_of("about:blank"), None);
    }

    #[test]
    fn headers_go_where_they_belong() {
        let mut rules = Rules::default();
        let plain = request("GET", "http://a.example/x", &[("Accept", "*/*"), ("X-All", "page")]);
        assert_eq!(rules.decide(&plain), Verdict::Pass);
        rules.set_scoped("http://a.example".to_owned(), headers(&[("X-Own", "a")])).unwrap();
        assert_eq!(rules.wildcards(), ["http://a.example/*"]);
        let wanted = headers(&[("Accept", "*/*"), ("X-All", "page"), ("X-Own", "a")]);
        assert_eq!(rules.decide(&plain), Verdict::Headers(wanted));
        assert_eq!(rules.decide(&request("GET", "http://b.example/", &[])), Verdict::Pass);
        assert_eq!(rules.decide(&request("GET", "http://a.example:81/", &[])), Verdict::Pass);
        rules.set_headers(headers(&[("x-all", "1"), ("x-own", "all")]));
        assert_eq!(rules.wildcards(), ["*"]);
        assert_eq!(rules.decide(&plain), Verdict::Headers(headers(&[("Accept", "*/*"), ("x-all", "1"), ("X-Own", "a")])));
        rules.set_headers(Headers::default());
        rules.set_scoped("http://a.example".to_owned(), Headers::default()).unwrap();
        assert!(rules.is_empty() && rules.wildcards().is_empty());
    }

    #[test]
    fn the_latest_route_wins() {
        let mut rules = Rules::default();
        rules.add(answered("**", "all")).unwrap();
        rules.add(answered("**/x", "x")).unwrap();
        let verdict = |rules: &Rules, url| rules.decide(&request("GET", url, &[]));
        assert_eq!(body_of(verdict(&rules, "http://a.example/x")), "x");
        assert_eq!(body_of(verdict(&rules, "http://a.example/y")), "all");
        rules.add(answered("**", "new")).unwrap();
        assert_eq!((rules.routes(), body_of(verdict(&rules, "http://a.example/x"))), (2, "new".to_owned()));
        rules.add(Route::new("**/x", None, true).unwrap()).unwrap();
        assert_eq!(verdict(&rules, "http://a.example/x"), Verdict::Abort);
        rules.add(Route::new("**/x", None, false).unwrap()).unwrap();
        assert_eq!(verdict(&rules, "http://a.example/x"), Verdict::Pass);
        rules.remove("**/x").unwrap();
        assert!(matches!(rules.remove("**/x"), Err(NetworkError::NoRoute(_))));
        assert_eq!(body_of(verdict(&rules, "http://a.example/x")), "new");
    }

    #[test]
    fn pages_of_other_origins_may_read_what_a_route_answers() {
        let mut rules = Rules::default();
        rules.add(answered("**/x", "x")).unwrap();
        rules.set_headers(headers(&[("X-All", "1")]));
        let allowed = |verdict: Verdict| match verdict {
            Verdict::Answer { headers, status, .. } => (status, headers.get("access-control-allow-origin").map(str::to_owned)),
            other => panic!("{other:?}"),
        };
        let from = |url, origin| request("GET", url, &[("Origin", origin)]);
        let foreign = Some("http://b.example".to_owned());
        assert_eq!(allowed(rules.decide(&from("http://a.example/x", "http://b.example"))), (200, foreign.clone()));
        assert_eq!(allowed(rules.decide(&from("http://a.example/x", "http://a.example"))), (200, None));
        let asks =
            [("Origin", "http://b.example"), ("Access-Control-Request-Method", "PUT"), ("Access-Control-Request-Headers", "x-a")];
        let preflight = rules.decide(&request("OPTIONS", "http://a.example/x", &asks));
        let Verdict::Answer { headers, .. } = &preflight else { panic!("{preflight:?}") };
        assert_eq!(headers.get("access-control-allow-methods"), Some("PUT"));
        assert_eq!(headers.get("access-control-allow-headers"), Some("x-a"));
        assert_eq!(allowed(preflight), (204, foreign));
        // Requests without a route are preflighted as usual.
        assert_eq!(rules.decide(&request("OPTIONS", "http://a.example/y", &asks)), Verdict::Pass);
    }

    #[test]
    fn answers_say_what_they_are() {
        let made = |value| MockResponse::new(serde_json::from_value(value).unwrap());
        let kind = |value| made(value).unwrap().headers.get("content-type").unwrap().to_owned();
        assert_eq!(kind(serde_json::json!({})), "text/plain");
        assert_eq!(kind(serde_json::json!({"status": null, "headers": null, "body": null, "content_type": null})), "text/plain");
        assert_eq!(kind(serde_json::json!({"body": "ä"})), "text/plain; charset=utf-8");
        assert_eq!(kind(serde_json::json!({"headers": {"content-type": "a/b"}})), "a/b");
        assert_eq!(kind(serde_json::json!({"headers": {"content-type": "a/b"}, "content_type": "c/d"})), "c/d");
        let answer = made(serde_json::json!({"body": "ä", "headers": {"content-length": "7"}})).unwrap();
        assert_eq!((answer.status, answer.headers.get("Content-Length")), (200, Some("2")));
        for wrong in [
            serde_json::json!({"status": 99}),
            serde_json::json!({"status": 100}),
            serde_json::json!({"status": 600}),
            serde_json::json!({"status": -1}),
            serde_json::json!({"headers": {"a b": "c"}}),
            serde_json::json!({"content_type": "a\nb"}),
            serde_json::json!({"body": "x".repeat(MAX_BODY + 1)}),
        ] {
            assert!(made(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rules_have_bounds() {
        let mut rules = Rules::default();
        for n in 0..MAX_ROUTES {
            rules.add(answered(&format!("**/{n}"), "")).unwrap();
        }
        assert!(matches!(rules.add(answered("**/more", "")), Err(NetworkError::TooManyRoutes { .. })));
        rules.add(answered("**/0", "again")).unwrap();
        for n in 0..MAX_ORIGINS {
            rules.set_scoped(format!("http://{n}.example"), headers(&[("a", "b")])).unwrap();
        }
        assert!(rules.set_scoped("http://more.example".to_owned(), headers(&[("a", "b")])).is_err());
        let mut rules = Rules::default();
        let body = "x".repeat(MAX_BODY);
        for n in 0..3 {
            rules.add(answered(&format!("**/{n}"), &body)).unwrap();
        }
        assert!(matches!(rules.add(answered("**/3", &body)), Err(NetworkError::LargeBodies { .. })));
    }
}
