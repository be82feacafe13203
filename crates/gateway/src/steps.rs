//! Defines which calls are steps, and what is recorded of them before they are made.

use arenite_trajectory::{Intent, Origin, redact};
use http::Method;
use serde_json::{Map, Value};

use crate::gateway::Context;
use crate::path::query_pairs;

/// Paths of a sandbox without effect for an agent: not recorded.
const NOT_STEPS: [&str; 4] = ["/v1/ping", "/v1/openapi.json", "/v1/docs", "/v1/mcp/hub/tools"];

/// Calls by which Arenite's pages show a sandbox to a person, who does not act.
const VIEWING: [(Method, &str); 12] = [
    (Method::GET, "/v1/sandbox"),
    (Method::GET, "/v1/sandbox/observe/live"),
    (Method::GET, "/v1/browser/info"),
    (Method::GET, "/v1/browser/screenshot"),
    (Method::GET, "/v1/shell/sessions"),
    (Method::GET, "/v1/shell/terminal-url"),
    (Method::GET, "/v1/bash/sessions"),
    (Method::GET, "/v1/file/download"),
    (Method::POST, "/v1/file/glob"),
    (Method::POST, "/v1/file/grep"),
    (Method::POST, "/v1/file/list"),
    (Method::POST, "/v1/file/read"),
];

/// Whether a person only views a sandbox by this call. WebSockets are inspected, see [`crate::proxy`]; for those of VS Code and
/// JupyterLab, acting can't be distinguished from viewing.
pub(crate) fn is_viewing(origin: Origin, method: &Method, path: &str, upgrade: bool) -> bool {
    if origin != Origin::Person {
        return false;
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    match upgrade {
        true => crate::own_host::program(path).is_some(),
        false => VIEWING.iter().any(|(of, at)| of == method && *at == path),
    }
}

/// | call | step |
/// | --- | --- |
/// | `/v1/*` except [`NOT_STEPS`] | one each |
/// | a WebSocket, on any path of a sandbox | one, from its handshake to its end |
/// | calls of a page to show something to a person | none |
/// | pages and their files, `/tickets`, `/auth` | none |
/// | `OPTIONS`, `HEAD` | none: they change nothing and return nothing that a step would keep |
pub(crate) fn is_step(method: &Method, path: &str, upgrade: bool) -> bool {
    if upgrade {
        return true;
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    path.starts_with("/v1/") && !NOT_STEPS.contains(&path) && !matches!(*method, Method::OPTIONS | Method::HEAD)
}

/// Calls that only read, apart from those with `GET`. Those that wait for a command are not among them.
const READING: [&str; 8] = [
    "/v1/file/find",
    "/v1/file/glob",
    "/v1/file/grep",
    "/v1/file/list",
    "/v1/file/read",
    "/v1/file/search",
    "/v1/shell/view",
    "/v1/util/convert_to_markdown",
];

/// Whether a call can change a sandbox's disk.
pub(crate) fn can_change_disk(method: &Method, path: &str, upgrade: bool) -> bool {
    let path = path.strip_suffix('/').unwrap_or(path);
    upgrade || (is_step(method, path, false) && *method != Method::GET && !READING.contains(&path))
}

/// The intent of a call to a sandbox's own API. `path_and_query` is as the sandbox sees it.
pub(crate) fn intent(
    context: &Context,
    sandbox: &arenite_control::Sandbox,
    method: &Method,
    path_and_query: &str,
    arguments: Option<Value>,
) -> Intent {
    Intent {
        tenant: context.tenant().clone(),
        trajectory: sandbox.id.to_string(),
        sandbox_name: sandbox.name.to_string(),
        dialect: context.dialect,
        action: format!("{method} {}", redact(path_and_query)),
        arguments,
        origin: context.origin,
        client: context.client.clone(),
        request_id: context.request_id.clone(),
        work: None,
    }
}

/// The arguments of a call without a body: its query, without secrets.
pub(crate) fn of_query(path_and_query: &str) -> Option<Value> {
    let redacted = redact(path_and_query);
    let (_, query) = redacted.split_once('?')?;
    let pairs: Map<String, Value> = query_pairs(query).map(|(k, v)| (k, Value::String(v))).collect();
    (!pairs.is_empty()).then_some(Value::Object(pairs))
}

/// The recorded form of a body with credentials; none for other bodies. The API has credentials only in the address of the
/// upstream proxy, and in the command that sets them.
pub(crate) fn without_credentials(decoded_path: &str, body: &[u8]) -> Option<Value> {
    if decoded_path.strip_suffix('/').unwrap_or(decoded_path) != "/v1/proxy/upstream" || body.is_empty() {
        return None;
    }
    let hidden = || Value::String("redacted".to_owned());
    let Ok(Value::Object(mut fields)) = serde_json::from_slice(body) else { return Some(hidden()) };
    for (name, value) in &mut fields {
        *value = match (name.as_str(), value.as_str().map(|text| text.rsplit_once('@'))) {
            ("server", Some(None)) => continue,
            ("server", Some(Some((_, address)))) => Value::String(format!("redacted@{address}")),
            _ if value.is_null() => continue,
            _ => hidden(),
        };
    }
    Some(Value::Object(fields))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_a_step() {
        for (method, path, upgrade, wanted) in [
            (Method::POST, "/v1/bash/exec", false, true),
            (Method::GET, "/v1/sandbox", false, true),
            (Method::GET, "/v1/ping", false, false),
            (Method::GET, "/v1/ping/", false, false),
            (Method::GET, "/v1/openapi.json", false, false),
            (Method::OPTIONS, "/v1/bash/exec", false, false),
            (Method::GET, "/terminal", false, false),
            (Method::GET, "/v1/shell/ws", true, true),
            (Method::GET, "/websockify", true, true),
        ] {
            assert_eq!(is_step(&method, path, upgrade), wanted, "{path}");
        }
    }

    #[test]
    fn what_can_change_a_disk() {
        for (method, path, upgrade, wanted) in [
            (Method::POST, "/v1/bash/exec", false, true),
            (Method::POST, "/v1/file/write", false, true),
            (Method::POST, "/v1/file/read/", false, false),
            (Method::GET, "/v1/sandbox", false, false),
            (Method::GET, "/v1/shell/ws", true, true),
            (Method::POST, "/terminal", false, false),
        ] {
            assert_eq!(can_change_disk(&method, path, upgrade), wanted, "{path}");
        }
    }

    #[test]
    fn a_person_who_looks_makes_no_step() {
        for (origin, method, path, upgrade, wanted) in [
            (Origin::Person, Method::GET, "/v1/browser/info", false, true),
            (Origin::Person, Method::POST, "/v1/file/list", false, true),
            (Origin::Person, Method::POST, "/v1/file/grep", false, true),
            (Origin::Agent, Method::POST, "/v1/file/grep", false, false),
            (Origin::Person, Method::GET, "/v1/sandbox/observe/live", false, true),
            (Origin::Person, Method::POST, "/v1/sandbox/observe/start", false, false),
            (Origin::Person, Method::POST, "/v1/file/upload", false, false),
            (Origin::Person, Method::POST, "/v1/sandbox", false, false),
            (Origin::Person, Method::GET, "/code-server/stable-1", true, true),
            (Origin::Person, Method::GET, "/v1/shell/ws", true, false),
            (Origin::Agent, Method::GET, "/v1/browser/info", false, false),
            (Origin::System, Method::GET, "/jupyter/api/kernels/1/channels", true, false),
        ] {
            assert_eq!(is_viewing(origin, &method, path, upgrade), wanted, "{origin:?} {path}");
        }
    }

    #[test]
    fn credentials_of_the_upstream_proxy_are_not_recorded() {
        let path = "/v1/proxy/upstream";
        for (body, wanted) in [
            (r#"{"server": "a:1"}"#, json!({"server": "a:1"})),
            (r#"{"server": "me:p@ss@a:1", "auth_cmd": null}"#, json!({"server": "redacted@a:1", "auth_cmd": null})),
            (r#"{"server": "a:1", "auth_cmd": "echo me:pass"}"#, json!({"server": "a:1", "auth_cmd": "redacted"})),
            (r#"{"server": ["me:pass@a:1"]}"#, json!({"server": "redacted"})),
            (r#""me:pass@a:1""#, json!("redacted")),
            ("me:pass@a:1", json!("redacted")),
        ] {
            assert_eq!(without_credentials(path, body.as_bytes()), Some(wanted), "{body}");
        }
        assert_eq!(without_credentials(path, b""), None);
        assert_eq!(without_credentials("/v1/bash/exec", b"{}"), None);
        assert!(without_credentials("/v1/proxy/upstream/", b"{}").is_some());
    }

    #[test]
    fn arguments() {
        assert_eq!(of_query("/v1/x"), None);
        assert_eq!(of_query("/v1/x?"), None);
        assert_eq!(
            of_query("/v1/x?path=a%20b&api_key=sekrit&flag"),
            Some(json!({"path": "a b", "api_key": "redacted", "flag": ""}))
        );
    }
}
