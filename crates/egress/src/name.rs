//! Host names in one spelling: lower case, ASCII, without the trailing dot.

use std::borrow::Cow;

use thiserror::Error;

const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Why a text is no host name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum NameError {
    #[error("it is empty or has an empty label")]
    Empty,
    #[error("it has more than 253 characters, or a label with more than 63")]
    Long,
    #[error("it has characters that host names don't have")]
    Characters,
    #[error("it is an address and not a name")]
    Address,
    #[error("it is no valid international name")]
    International,
}

/// A name as it comes from the network: ASCII, in any case, with or without its trailing dot.
///
/// Policy and resolver get the same text from here, so no other parser can understand the name in another way.
pub fn normalize_name(text: &str) -> Result<String, NameError> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.len() > MAX_NAME {
        return Err(NameError::Long);
    }
    for label in text.split('.') {
        if label.is_empty() {
            return Err(NameError::Empty);
        }
        if label.len() > MAX_LABEL {
            return Err(NameError::Long);
        }
        // Underscores are in the names of services and in some of hosts.
        if !label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_') {
            return Err(NameError::Characters);
        }
    }
    // Resolvers of programs read such texts as IPv4 addresses, also in hexadecimal and with fewer parts.
    let last = text.rsplit('.').next().unwrap_or_default();
    let is_hex = last.strip_prefix("0x").or(last.strip_prefix("0X")).is_some_and(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
    if is_hex || last.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NameError::Address);
    }
    Ok(text.to_ascii_lowercase())
}

/// A name as users write it, which may have other letters than ASCII.
pub(crate) fn normalize_written(text: &str) -> Result<String, NameError> {
    let ascii = if text.is_ascii() {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(idna::domain_to_ascii(text).map_err(|_| NameError::International)?)
    };
    normalize_name(&ascii)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_spelling() {
        for (text, name) in [
            ("PyPI.org", "pypi.org"),
            ("pypi.org.", "pypi.org"),
            ("_dmarc.a-b.example", "_dmarc.a-b.example"),
            ("localhost", "localhost"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("1.2.3.example", "1.2.3.example"),
            ("1.2.3.4a", "1.2.3.4a"),
        ] {
            assert_eq!(normalize_name(text).as_deref(), Ok(name));
        }
        assert_eq!(normalize_written("Bücher.example").as_deref(), Ok("xn--bcher-kva.example"));
        assert_eq!(normalize_written("ｐｙｐｉ。org").as_deref(), Ok("pypi.org"), "full-width letters");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for (text, error) in [
            ("", NameError::Empty),
            (".", NameError::Empty),
            ("a..b", NameError::Empty),
            ("a.example..", NameError::Empty),
            ("evil.example\0.pypi.org", NameError::Characters),
            ("a b.example", NameError::Characters),
            ("a/b", NameError::Characters),
            ("user@a.example", NameError::Characters),
            ("*.example", NameError::Characters),
            ("a.example:80", NameError::Characters),
            ("ü.example", NameError::Characters),
            ("127.0.0.1", NameError::Address),
            ("127.1", NameError::Address),
            ("0x7f000001", NameError::Address),
            ("a.0X7f", NameError::Address),
            ("2130706433", NameError::Address),
        ] {
            assert_eq!(normalize_name(text), Err(error), "{text:?}");
        }
        assert_eq!(normalize_name(&format!("{}.example", "a".repeat(64))), Err(NameError::Long));
        assert_eq!(normalize_name(&["a".repeat(63).as_str(); 4].join(".")), Err(NameError::Long));
        assert!(normalize_written("a.example\u{0}ü").is_err());
    }
}
