//! Paths and queries, decoded once and in one place.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

use crate::refusal::Refusal;

/// A checked request path. Every later component interprets it in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    /// The path as it is forwarded: still encoded, with repeated slashes merged.
    pub(crate) raw: String,
    /// The path for matching routes.
    pub(crate) decoded: String,
}

impl Path {
    pub(crate) fn root() -> Self {
        Self { raw: "/".to_owned(), decoded: "/".to_owned() }
    }

    /// Refuses dot segments, encoded separators, control characters and text that is not UTF-8.
    pub(crate) fn parse(path: &str) -> Result<Self, Refusal> {
        let refuse = |why: &str| {
            Err(Refusal::bad_request(format!("the path has {why}"))
                .hint("send the path plainly: no dot segments, no encoded separators"))
        };
        if !path.starts_with('/') {
            return refuse("no leading slash");
        }
        let mut raw = String::with_capacity(path.len());
        let mut decoded = String::with_capacity(path.len());
        for segment in path.split('/') {
            // The one before the leading slash, and those between adjacent slashes.
            if segment.is_empty() {
                continue;
            }
            let Some(plain) = percent_decode(segment, false) else {
                return refuse("a part that is not percent-encoded UTF-8");
            };
            if plain == "." || plain == ".." {
                return refuse("a dot segment");
            }
            // Everything below it is one name there, including its slashes.
            let in_name = raw.ends_with("/v1/proxy/mappings") && !plain.split('/').any(|part| part == "." || part == "..");
            if plain.contains('\\') || plain.contains('/') && !in_name {
                return refuse("an encoded separator or a backslash");
            }
            if plain.chars().any(char::is_control) {
                return refuse("a control character");
            }
            raw.push('/');
            raw.push_str(segment);
            decoded.push('/');
            decoded.push_str(&plain);
        }
        if path.ends_with('/') {
            raw.push('/');
            decoded.push('/');
        }
        Ok(Self { raw, decoded })
    }

    /// The rest of the path after `n` segments.
    pub(crate) fn after_segments(&self, n: usize) -> Self {
        let rest = |text: &str| {
            let at = text.match_indices('/').nth(n).map_or(text.len(), |(at, _)| at);
            let rest = &text[at..];
            if rest.is_empty() { "/".to_owned() } else { rest.to_owned() }
        };
        Self { raw: rest(&self.raw), decoded: rest(&self.decoded) }
    }
}

/// All pairs of a query, decoded; text that can't be decoded stays unchanged.
pub(crate) fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    let word = |text: &str| decode(text).unwrap_or_else(|| text.to_owned());
    query.split('&').filter(|pair| !pair.is_empty()).map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (word(key), word(value))
    })
}

/// The decoded value of the last `key` in a query.
pub(crate) fn query_value(query: Option<&str>, key: &str) -> Option<String> {
    query?
        .split('&')
        .rev()
        .filter_map(|pair| pair.split_once('='))
        .find_map(|(k, v)| (decode(k).as_deref() == Some(key)).then(|| decode(v)).flatten())
}

/// Percent-decodes a part of a query, with `+` as space. None if the result is not UTF-8.
fn decode(text: &str) -> Option<String> {
    percent_decode(text, true)
}

/// Decodes one segment of a path; none if it is not UTF-8, or contains separators or control characters.
pub(crate) fn decode_segment(text: &str) -> Option<String> {
    percent_decode(text, false).filter(|plain| !plain.contains(|c: char| c == '/' || c == '\\' || c.is_control()))
}

/// Whether a path is `root` itself or below it.
pub(crate) fn is_under(path: &str, root: &str) -> bool {
    path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn percent_decode(text: &str, plus_is_space: bool) -> Option<String> {
    // The decoder lets invalid escapes pass.
    let is_escape = |rest: &str| rest.as_bytes().get(..2).is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(is_escape) {
        return None;
    }
    let text = if plus_is_space { text.replace('+', " ").into() } else { Cow::from(text) };
    percent_decode_str(&text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::{Path, query_value};

    #[test]
    fn paths_are_plain_or_refused() {
        for (given, raw, decoded) in [
            ("/", "/", "/"),
            ("//v1//ping", "/v1/ping", "/v1/ping"),
            ("/%69nternal/hello", "/%69nternal/hello", "/internal/hello"),
            ("/v1/a%20b/", "/v1/a%20b/", "/v1/a b/"),
            ("/v1/%252e%252e", "/v1/%252e%252e", "/v1/%2e%2e"),
            ("/a+b", "/a+b", "/a+b"),
            (
                "/v1/proxy/mappings/https%3A%2F%2Fa%2F*",
                "/v1/proxy/mappings/https%3A%2F%2Fa%2F*",
                "/v1/proxy/mappings/https://a/*",
            ),
        ] {
            let path = Path::parse(given).unwrap();
            assert_eq!((path.raw.as_str(), path.decoded.as_str()), (raw, decoded), "{given}");
        }
        for bad in [
            "",
            "v1",
            "/..",
            "/v1/../internal",
            "/v1/%2e%2e/x",
            "/.%2E/x",
            "/v1/.",
            "/a%2fb",
            "/a%2Fb",
            "/v1/proxy/mappings/a%2F..%2Fb",
            "/v1/proxy/mappings/a/b%2Fc",
            "/a%5cb",
            "/a\\b",
            "/a%00",
            "/a%0a",
            "/%",
            "/%zz",
            "/%ff",
        ] {
            assert!(Path::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_left_of_a_path() {
        for (given, n, wanted) in [
            ("/sandbox/demo/v1/ping", 2, "/v1/ping"),
            ("/sandbox/demo/", 2, "/"),
            ("/sandbox/demo", 2, "/"),
            ("/sandbox", 2, "/"),
        ] {
            assert_eq!(Path::parse(given).unwrap().after_segments(n).raw, wanted, "{given}");
        }
    }

    #[test]
    fn the_last_value_counts_and_is_decoded() {
        let query = Some("a=1&b=x%20y+z&a=2&c=%zz");
        assert_eq!(query_value(query, "a").as_deref(), Some("2"));
        assert_eq!(query_value(query, "b").as_deref(), Some("x y z"));
        assert_eq!(query_value(query, "c"), None);
        assert_eq!(query_value(None, "a"), None);
    }
}
