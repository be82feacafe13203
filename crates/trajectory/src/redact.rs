//! Secrets in query strings and in environments.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde_json::Value;

/// Query keys with values that never reach a record. Case is ignored.
pub const SECRET_QUERY_KEYS: [&str; 7] = ["access_token", "api_key", "apikey", "password", "secret", "ticket", "token"];

/// The path with the values of secret query keys replaced by `redacted`, and otherwise unchanged.
pub fn redact(path_and_query: &str) -> Cow<'_, str> {
    let Some((path, query)) = path_and_query.split_once('?') else {
        return Cow::Borrowed(path_and_query);
    };
    if !query.split('&').any(|pair| is_secret(key_of(pair))) {
        return Cow::Borrowed(path_and_query);
    }
    let mut out = String::with_capacity(path_and_query.len());
    out.push_str(path);
    for (i, pair) in query.split('&').enumerate() {
        out.push(if i == 0 { '?' } else { '&' });
        let key = key_of(pair);
        if is_secret(key) {
            out.push_str(key);
            out.push_str("=redacted");
        } else {
            out.push_str(pair);
        }
    }
    Cow::Owned(out)
}

fn key_of(pair: &str) -> &str {
    pair.split_once('=').map_or(pair, |(key, _)| key)
}

/// Keys may come percent-encoded (`%74oken`), and a server decodes them, so they are compared decoded.
fn is_secret(key: &str) -> bool {
    let decoded: Vec<u8> = percent_decode_str(key).collect();
    SECRET_QUERY_KEYS.iter().any(|secret| decoded.eq_ignore_ascii_case(secret.as_bytes()))
}

/// The recorded form of a create, of a session's configuration and of their answers: unchanged, except that credentials are
/// removed from URLs and proxy addresses in `env`.
pub fn without_userinfo(mut said: Value) -> Value {
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
        // A proxy address may lack a scheme, and the proxy takes everything up to the last @ as credentials.
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
    use super::{redact, without_userinfo};
    use serde_json::json;

    #[test]
    fn values_of_secret_keys_are_replaced_and_nothing_else() {
        for (given, wanted) in [
            ("/v1/x", "/v1/x"),
            ("/v1/x?a=1&b", "/v1/x?a=1&b"),
            ("/v1/x?a=1&ticket=abc&b=2", "/v1/x?a=1&ticket=redacted&b=2"),
            ("/x?TOKEN=abc", "/x?TOKEN=redacted"),
            ("/x?%74oken=abc&api_key", "/x?%74oken=redacted&api_key=redacted"),
            ("/x?access_token=a=b?c", "/x?access_token=redacted"),
            ("/x?tokens=1&%zz=é", "/x?tokens=1&%zz=é"),
        ] {
            assert_eq!(redact(given), wanted);
        }
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
}
