//! A `Content-Type` that every reader interprets in the same way.

use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};

const BYTES: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// The only media type of an answer, rewritten. Browsers use the last of several types, other readers the first. So several
/// types, by lines or by commas, and malformed ones become plain bytes.
pub(super) fn canonical(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut given = headers.get_all(CONTENT_TYPE).iter();
    let first = given.next()?;
    let text = first.to_str().ok().filter(|_| given.next().is_none());
    Some(text.and_then(rewrite).unwrap_or(BYTES))
}

/// `type/subtype` in lower case and its parameters. None: it is not exactly one media type.
fn rewrite(text: &str) -> Option<HeaderValue> {
    let (essence, mut rest) = text.split_at(text.find(';').unwrap_or(text.len()));
    let essence = essence.trim_matches([' ', '\t']).to_ascii_lowercase();
    let (kind, subtype) = essence.split_once('/')?;
    if !is_token(kind) || !is_token(subtype) {
        return None;
    }
    let mut canonical = essence.clone();
    while let Some(after) = rest.strip_prefix(';') {
        let after = after.trim_start_matches([' ', '\t']);
        if after.is_empty() || after.starts_with(';') {
            rest = after;
            continue;
        }
        let (name, after) = after.split_once('=')?;
        let (value, after) = value(after)?;
        if !is_token(name) {
            return None;
        }
        canonical.push_str(&format!("; {}={value}", name.to_ascii_lowercase()));
        rest = after.trim_start_matches([' ', '\t']);
    }
    rest.is_empty().then(|| HeaderValue::try_from(canonical).ok())?
}

/// A token, or a quoted string without escapes, and what comes after it.
fn value(text: &str) -> Option<(&str, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        let (token, rest) = text.split_at(text.find([';', ' ', '\t']).unwrap_or(text.len()));
        return is_token(token).then_some((token, rest));
    };
    let length = quoted.find('"')?;
    let inside = &quoted[..length];
    // Readers disagree about a comma or an escape inside.
    let is_plain = inside.bytes().all(|b| (b' '..=b'~').contains(&b) && !b",\\".contains(&b));
    is_plain.then_some(text.split_at(length + 2))
}

fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_type_is_rewritten() {
        for (given, wanted) in [
            ("text/html", "text/html"),
            ("Text/HTML;Charset=UTF-8", "text/html; charset=UTF-8"),
            ("application/json ; charset=utf-8 ;", "application/json; charset=utf-8"),
            ("multipart/byteranges; boundary=\"a b\"", "multipart/byteranges; boundary=\"a b\""),
            ("application/vnd.x+json;profile=a", "application/vnd.x+json; profile=a"),
        ] {
            assert_eq!(rewrite(given).as_ref(), Some(&HeaderValue::from_static(wanted)), "{given}");
        }
    }

    #[test]
    fn what_is_not_one_type_is_bytes() {
        for given in [
            "image/png, text/html",
            "image/png,text/html",
            "image/png;,text/html",
            "image/png; x=1, text/html",
            "image/png; x=\"1, text/html\"",
            "image/png; x=\", text/html",
            "image/png; x=\"\\\", text/html\"",
            "image/png; x",
            "image/png x",
            "image/ png",
            "image",
            "image/",
            "/png",
            "",
            "image/png;x=\"a\"b",
        ] {
            assert_eq!(canonical(&HeaderMap::from_iter([(CONTENT_TYPE, given.parse().unwrap())])), Some(BYTES), "{given}");
        }
        let mut twice = HeaderMap::new();
        twice.append(CONTENT_TYPE, HeaderValue::from_static("image/png"));
        twice.append(CONTENT_TYPE, HeaderValue::from_static("image/png"));
        assert_eq!(canonical(&twice), Some(BYTES));
        assert_eq!(canonical(&HeaderMap::new()), None);
    }
}
