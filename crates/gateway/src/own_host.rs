//! Pages that a browser opens by a path of the server's host are redirected to a separate host. There they have their own origin,
//! with everything that pages may have with it.
//!
//! These are pages of a sandbox's ports (`{port}-{id}.{domain}`, see `preview`), and VS Code and JupyterLab (`{id}.{domain}`),
//! which need cookies and WebSockets, and run what a sandbox has written.

use std::sync::Arc;

use arenite_model::{ErrorCode, SandboxId};
use axum::body::Body;
use http::header::{ACCEPT, CACHE_CONTROL, HeaderName, LOCATION};
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};

use crate::auth::{Grant, Scope};
use crate::exchange::Exchange;
use crate::guard;
use crate::pages;
use crate::path::is_under;
use crate::refusal::Refusal;
use crate::target::Target;

const FETCH_MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
/// Path prefixes of the programs of a sandbox with pages of this kind, and the programs' names.
const PROGRAMS: [(&str, &str); 2] = [("/code-server", "VS Code"), ("/jupyter", "JupyterLab")];

/// The program that a path of a sandbox belongs to.
pub(crate) fn program(path: &str) -> Option<&'static str> {
    PROGRAMS.iter().find(|(root, _)| is_under(path, root)).map(|(_, name)| *name)
}

/// The domain of sandbox hosts; none if such hosts don't exist.
pub(crate) fn domain(exchange: &Exchange) -> Option<String> {
    // A host can't keep the path of an outer proxy.
    if !exchange.context.outer_path().is_empty() {
        return None;
    }
    guard::domain_of_sandboxes(&exchange.gateway.config, &exchange.host)
}

/// Redirects to a path of another host, and signs in there for as long as the caller's own credential lasts.
pub(crate) fn lead(exchange: &Exchange, authority: &str, path: &str) -> Result<Option<Response<Body>>, Refusal> {
    let Exchange { gateway, context, parts, caller, .. } = exchange;
    let mut query = parts.uri.query().map_or_else(String::new, |query| format!("?{query}"));
    if gateway.needs_credentials() {
        // The server's cookie is not sent there.
        let until = std::time::Instant::now() + crate::auth::TICKET_TTL;
        let until = caller.until.map_or(until, |end| until.min(end));
        let (principal, scope) = (Arc::clone(&caller.principal), Scope::Host(authority.to_owned()));
        let (maker_until, by_ticket) = (caller.until, caller.by_ticket);
        let ticket = gateway.handovers.issue(Grant { principal, until, scope, maker_until, by_ticket })?;
        let sign = if query.is_empty() { '?' } else { '&' };
        query.push_str(&format!("{sign}ticket={ticket}"));
    }
    let scheme = context.base_url().split("://").next().unwrap_or("http");
    let Ok(location) = HeaderValue::try_from(format!("{scheme}://{authority}{path}{query}")) else { return Ok(None) };
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    answer.headers_mut().insert(LOCATION, location);
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(Some(answer))
}

/// For a browser that opens VS Code or JupyterLab on the server's host: redirects to the sandbox's own, or reports that it has
/// none. None for everything else.
pub(crate) fn of_program(exchange: &Exchange, target: &Target, id: &SandboxId) -> Result<Option<Response<Body>>, Refusal> {
    let is_opened = exchange.is_opened && !target.own_host;
    let Some(program) = program(&target.path.decoded).filter(|_| is_opened) else { return Ok(None) };
    if let Some(domain) = domain(exchange)
        && let Some(answer) = lead(exchange, &format!("{id}.{domain}"), &target.path.raw)?
    {
        return Ok(Some(answer));
    }
    let text = format!("{program} is shown on a host of the sandbox's own, and there is none at this address");
    let refusal = Refusal { status: StatusCode::MISDIRECTED_REQUEST, ..Refusal::new(ErrorCode::Unsupported, text) };
    let refusal = refusal.hint("open it by localhost, or start the server with --domain and a name whose subdomains lead here");
    pages::preview::message(program, &refusal).map(Some)
}

/// Whether a browser opens it as a page. Without encryption, browsers send `Sec-Fetch-Mode` only to localhost.
pub(crate) fn is_opened(parts: &Parts) -> bool {
    let accepts = || parts.headers.get_all(ACCEPT).iter().any(|value| value.to_str().is_ok_and(|v| v.contains("text/html")));
    let is_plain = !parts.headers.contains_key(&FETCH_MODE) && accepts();
    parts.method == Method::GET && (guard::is_navigation(parts) || is_plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    #[test]
    fn programs_are_told_by_their_paths() {
        for (path, wanted) in [
            ("/code-server", Some("VS Code")),
            ("/code-server/", Some("VS Code")),
            ("/code-server/static/x.js", Some("VS Code")),
            ("/jupyter/lab", Some("JupyterLab")),
            ("/code-servers", None),
            ("/v1/jupyter/execute", None),
            ("/", None),
        ] {
            assert_eq!(program(path), wanted, "{path}");
        }
    }

    #[test]
    fn people_are_told_from_programs() {
        let navigation = ("sec-fetch-mode", "navigate");
        for (method, headers, wanted) in [
            ("GET", &[navigation, ("sec-fetch-dest", "document")][..], true),
            ("HEAD", &[navigation, ("sec-fetch-dest", "document")], false),
            ("GET", &[navigation, ("sec-fetch-dest", "iframe"), ("accept", "text/html")], false),
            ("GET", &[("sec-fetch-mode", "cors"), ("accept", "text/html")], false),
            ("GET", &[("accept", "text/html,*/*")], true),
            ("POST", &[("accept", "text/html,*/*")], false),
            ("GET", &[("accept", "*/*")], false),
            ("GET", &[], false),
        ] {
            let mut request = Request::builder().method(method).uri("/code-server/");
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            assert_eq!(is_opened(&request.body(()).unwrap().into_parts().0), wanted, "{method} {headers:?}");
        }
    }
}
