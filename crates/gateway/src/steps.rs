//! Which calls are steps, and what of them is recorded before they are made.

use arenite_trajectory::{Intent, redact};
use http::Method;
use serde_json::{Map, Value};

use crate::gateway::Context;
use crate::path::query_pairs;

/// Paths of a sandbox that do nothing for an agent: not recorded.
const NOT_STEPS: [&str; 4] = ["/v1/ping", "/v1/openapi.json", "/v1/docs", "/v1/mcp/hub/tools"];

/// | call | step |
/// | --- | --- |
/// | `/v1/*` but for [`NOT_STEPS`] | one each |
/// | a WebSocket, on any path of a sandbox | one, from its handshake to its end |
/// | pages and their files, `/tickets`, `/auth` | none |
/// | `OPTIONS`, `HEAD` | none: they change nothing and tell nothing that a step would keep |
pub(crate) fn is_step(method: &Method, path: &str, upgrade: bool) -> bool {
    if upgrade {
        return true;
    }
    let path = path.strip_suffix('/').unwrap_or(path);
    path.starts_with("/v1/") && !NOT_STEPS.contains(&path) && !matches!(*method, Method::OPTIONS | Method::HEAD)
}

/// The intent of a call to a sandbox's own API. `path_and_query` is as the sandbox knows it.
pub(crate) fn intent(
    context: &Context,
    sandbox: &arenite_control::Sandbox,
    method: &Method,
    path_and_query: &str,
    arguments: Option<Value>,
) -> Intent {
    Intent {
        tenant: context.tenant.clone(),
        trajectory: sandbox.id.to_string(),
        sandbox_name: sandbox.name.to_string(),
        dialect: context.dialect,
        action: format!("{method} {}", redact(path_and_query)),
        arguments,
        origin: context.origin.clone(),
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

/// What is recorded of a body that carries credentials; none for any other. They stand where the contract puts them: in the
/// address of the upstream proxy, and in the command that tells them.
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

/// What is recorded of a create and its answer: the same, but for the credentials in the URLs and proxies' addresses of `env`.
pub(crate) fn without_userinfo(mut said: Value) -> Value {
    fn walk(said: &mut Value) {
        match said {
            Value::Array(items) => items.iter_mut().for_each(walk),
            Value::Object(fields) => {
                for (key, held) in fields {
                    match held {
                        Value::Object(variables) if key == "env" => {
                            for (name, text) in variables {
                                if let Value::String(text) = text {
                                    *text = hide_userinfo(name, text);
                                }
                            }
                        }
                        other => walk(other),
                    }
                }
            }
            _ => {}
        }
    }
    walk(&mut said);
    said
}

fn hide_userinfo(name: &str, text: &str) -> String {
    let name = name.to_ascii_lowercase();
    if name == "proxy_server" || name.ends_with("_proxy") {
        // Written without a scheme too, and the proxy takes everything up to the last @ as credentials.
        let (scheme, rest) = text.split_once("://").map_or(("", text), |(scheme, rest)| (&text[..scheme.len() + 3], rest));
        return rest.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, address)| format!("{scheme}redacted@{address}"));
    }
    let mut parts = text.split("://");
    let mut hidden = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| c.is_whitespace() || "/?#,;\"'".contains(c)).unwrap_or(part.len());
        hidden.push_str("://");
        match part[..end].rfind('@') {
            Some(at) => hidden.extend(["redacted", &part[at..]]),
            None => hidden.push_str(part),
        }
    }
    hidden
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
    fn credentials_in_environments_are_not_recorded() {
        for (name, text, wanted) in [
            ("PROXY_SERVER", "me:p@ss@a:1", "redacted@a:1"),
            ("PROXY_SERVER", "http://me:p/ss@a:1", "http://redacted@a:1"),
            ("PROXY_SERVER", "a:1", "a:1"),
            ("https_proxy", "me:pass@a:1", "redacted@a:1"),
            ("PIP_INDEX_URL", "https://me:pass@pypi.test/simple?x=y@z", "https://redacted@pypi.test/simple?x=y@z"),
            ("MIRRORS", "https://a/x,https://t0ken@b/y https://c", "https://a/x,https://redacted@b/y https://c"),
            ("MAIL", "me@a.test", "me@a.test"),
        ] {
            let told = |text: &str| json!({"name": "x", "spec": {"env": {name: text}}});
            assert_eq!(without_userinfo(told(text)), told(wanted));
        }
        let other = json!({"env": ["http://a:b@c"], "args": ["http://a:b@c"]});
        assert_eq!(without_userinfo(other.clone()), other);
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
