//! Names of routes, for metrics: a bounded set, whatever paths clients request.

use std::collections::HashSet;
use std::sync::LazyLock;

use arenite_guest::api;

use crate::dialect::agentflow;

/// The name of a path without its own route.
const OTHER: &str = "other";
/// Routes of the server itself.
const OURS: [&str; 30] = [
    "/api/v1/sandbox",
    "/api/v1/sandbox/{name}",
    "/api/v1/trajectories",
    "/api/v1/trajectories/{trajectory}",
    "/api/v1/trajectories/{trajectory}/steps",
    "/api/v1/trajectories/{trajectory}/export",
    "/api/v2/images",
    "/api/v2/info",
    "/api/v2/quarantine",
    "/api/v2/quarantine/{id}",
    "/api/v2/quarantine/{id}/adopt",
    "/api/v2/sandboxes",
    "/api/v2/sandboxes/{name}",
    "/api/v2/sandboxes/{name}/logs",
    "/api/v2/sandboxes/{name}/pause",
    "/api/v2/sandboxes/{name}/resume",
    "/api/v2/sandboxes/{name}/start",
    "/api/v2/sandboxes/{name}/steps",
    "/api/v2/sandboxes/{name}/usage",
    "/api/v2/templates",
    "/auth",
    "/execute",
    "/execute/batch",
    "/health",
    "/healthz",
    "/mcp",
    "/metrics",
    "/ready",
    "/tickets",
    "/tools",
];

struct Known {
    exact: HashSet<&'static str>,
    /// With a `{part}` for any one segment.
    patterns: Vec<&'static str>,
}

static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    // Built once, and kept for the life of the process.
    let of_guest = api::description().paths.paths.into_keys().map(|path| &*path.leak());
    let of_workers = agentflow::routes().map(|path| &*path.leak());
    let (patterns, exact): (Vec<&'static str>, Vec<&'static str>) =
        OURS.into_iter().chain(of_guest).chain(of_workers).partition(|path| path.contains('{'));
    Known { exact: exact.into_iter().collect(), patterns }
});

/// The route of a path, the same at the root and below `/sandbox/{name}`.
pub(crate) fn route(path: &str) -> &'static str {
    let in_sandbox = path.strip_prefix("/sandbox/").and_then(|rest| rest.find('/').map(|at| &rest[at..]));
    let path = in_sandbox.unwrap_or(path);
    let path = path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path);
    if let Some(exact) = KNOWN.exact.get(path) {
        return exact;
    }
    KNOWN.patterns.iter().find(|pattern| is_match(pattern, path)).copied().unwrap_or(OTHER)
}

fn is_match(pattern: &str, path: &str) -> bool {
    let mut segments = path.split('/');
    let same = pattern.split('/').all(|wanted| segments.next().is_some_and(|given| wanted.starts_with('{') || wanted == given));
    same && segments.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_counted_by_their_route_and_what_is_made_up_as_one() {
        for (path, name) in [
            ("/v1/bash/exec", "/v1/bash/exec"),
            ("/sandbox/demo/v1/bash/exec", "/v1/bash/exec"),
            ("/v1/bash/exec/", "/v1/bash/exec"),
            ("/api/v2/sandboxes/demo/usage", "/api/v2/sandboxes/{name}/usage"),
            ("/api/v1/execute", "/api/v1/execute"),
            ("/sandbox/demo", OTHER),
            ("/", OTHER),
            ("/v1/made/up", OTHER),
            ("/api/v2/sandboxes/a/b/c/d", OTHER),
        ] {
            assert_eq!(route(path), name, "{path}");
        }
    }
}
