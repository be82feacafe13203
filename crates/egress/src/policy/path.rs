//! Paths of HTTP requests, and the patterns of rules for them.

use percent_encoding::percent_decode_str;

/// A path as rules compare it: decoded, and without its query. None if servers could read it as another path.
pub(crate) fn plain_path(path: &str) -> Option<String> {
    // What is encoded twice, or hides a separator, means something else after one more decoding.
    let lower = path.to_ascii_lowercase();
    if ["%2f", "%5c", "%25", "%00"].iter().any(|hidden| lower.contains(hidden)) || path.contains('\\') {
        return None;
    }
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    if decoded.chars().any(char::is_control) || decoded.contains("//") {
        return None;
    }
    // Some servers cut parameters (`..;x`) off a segment before they resolve it.
    let is_dots = |segment: &str| matches!(segment.split(';').next(), Some("." | ".."));
    if decoded.split('/').any(is_dots) { None } else { Some(decoded.into_owned()) }
}

/// A pattern in which `*` stands for any text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PathPattern(Box<str>);

impl PathPattern {
    pub(super) fn new(pattern: &str) -> Self {
        Self(pattern.into())
    }

    /// Looks for each part between stars at its first position, which needs no way back.
    pub(super) fn matches(&self, path: &str) -> bool {
        let Some((start, rest)) = self.0.split_once('*') else {
            return *self.0 == *path;
        };
        let Some(mut path) = path.strip_prefix(start) else { return false };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        for part in middle.split('*') {
            let Some(at) = path.find(part) else { return false };
            path = &path[at + part.len()..];
        }
        path.ends_with(end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_any_text() {
        for (pattern, path, expected) in [
            ("/api", "/api", true),
            ("/api", "/api/", false),
            ("/api/*", "/api/", true),
            ("/api/*", "/api/a/b", true),
            ("/api/*", "/api", false),
            ("/api/*", "/apix/", false),
            ("*", "/", true),
            ("/*/raw", "/a/b/raw", true),
            ("/*/raw", "/raw", false),
            ("/*a*b*c", "/xaxbxc", true),
            ("/*a*b*c", "/xbxaxc", false),
            ("/ab*ba", "/aba", false),
            ("/a**b", "/ab", true),
        ] {
            assert_eq!(PathPattern::new(pattern).matches(path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_not_compared() {
        assert_eq!(plain_path("/a%20b/%61pi").as_deref(), Some("/a b/api"));
        assert_eq!(plain_path("/...").as_deref(), Some("/..."));
        for path in [
            "/api/../admin",
            "/api/%2e%2E/admin",
            "/api/.%2e",
            "/./a",
            "/a%2fb",
            "/a%5cb",
            "/a\\b",
            "/a%252e",
            "//a",
            "/api/..;/a",
            "/a%00",
            "/%ff",
            "/a%0ab",
        ] {
            assert_eq!(plain_path(path), None, "{path}");
        }
    }
}
