//! Secrets that travel in query strings.

use std::borrow::Cow;

/// Query keys whose values never reach a record, compared without regard to case.
pub const SECRET_QUERY_KEYS: [&str; 7] = ["access_token", "api_key", "apikey", "password", "secret", "ticket", "token"];

/// The path with the values of secret query keys replaced by `redacted`. The text is otherwise untouched.
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
    let mut decoded = Vec::with_capacity(key.len());
    let bytes = key.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        let pair = (bytes[i] == b'%').then(|| key.get(i + 1..i + 3)).flatten().and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match pair {
            Some(byte) => {
                decoded.push(byte);
                i += 3;
            }
            None => {
                decoded.push(bytes[i]);
                i += 1;
            }
        }
    }
    SECRET_QUERY_KEYS.iter().any(|secret| decoded.eq_ignore_ascii_case(secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::redact;

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
}
