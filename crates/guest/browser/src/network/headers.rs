//! HTTP headers: callers' headers are checked, the browser's are bounded.

use std::collections::BTreeMap;
use std::fmt;

use http::{HeaderName, HeaderValue};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeSeq, Serializer};
use serde_json::json;

use super::NetworkError;

/// Maximum headers of one call.
pub(super) const MAX_HEADERS: usize = 100;
/// Maximum bytes of one value.
pub(super) const MAX_VALUE: usize = 8192;
/// Maximum headers that are kept per message of the browser.
const MAX_KEPT: usize = 128;
/// Maximum bytes that are kept of them in all.
const MAX_KEPT_BYTES: usize = 32 << 10;

/// Headers in order; a name may occur more than once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Headers(Vec<(String, String)>);

impl Headers {
    /// Checks a caller's headers.
    ///
    /// # Errors
    /// If there are too many, or one is invalid.
    pub(super) fn check(given: &BTreeMap<String, String>) -> Result<Self, NetworkError> {
        if given.len() > MAX_HEADERS {
            return Err(NetworkError::TooManyHeaders);
        }
        let mut checked = Self::default();
        for (name, value) in given {
            let refused = |why| NetworkError::Header { name: name.chars().take(100).collect(), why };
            if HeaderName::try_from(name).is_err() {
                return Err(refused("its name has characters that names don't have"));
            }
            if value.len() > MAX_VALUE {
                return Err(refused("its value is longer than 8192 bytes"));
            }
            if HeaderValue::try_from(value).is_err() {
                return Err(refused("its value has characters that values don't have, such as a line's end"));
            }
            if checked.get(name).is_some() {
                return Err(refused("it is there twice"));
            }
            checked.push(name.clone(), value.trim().to_owned());
        }
        Ok(checked)
    }

    /// Checks a caller's request headers. The browser reserves some of them.
    pub(super) fn check_request(given: &BTreeMap<String, String>) -> Result<Self, NetworkError> {
        let checked = Self::check(given)?;
        if let Some((name, _)) = checked.iter().find(|(name, value)| is_browsers_own(name, value)) {
            return Err(NetworkError::Header { name: name.to_owned(), why: "it is set by the browser alone" });
        }
        Ok(checked)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.push((name.into(), value.into()));
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.0.retain(|(own, _)| !own.eq_ignore_ascii_case(name));
    }

    /// Adds the other headers, which replace those of the same names.
    pub(super) fn overlay(&mut self, others: &Self) {
        for (name, value) in others.iter() {
            self.remove(name);
            self.push(name, value);
        }
    }

    /// Returns the headers within the bounds.
    pub(super) fn bounded(mut self) -> Self {
        self.0.truncate(MAX_KEPT);
        let mut left = MAX_KEPT_BYTES;
        self.0.retain_mut(|(name, value)| {
            if name.len() > left {
                return false;
            }
            cut(value, MAX_VALUE.min(left - name.len()));
            left -= name.len() + value.len();
            true
        });
        self.0.shrink_to_fit();
        self
    }

    /// Approximate bytes of memory.
    pub(super) fn weight(&self) -> usize {
        self.0.iter().map(|(name, value)| name.len() + value.len() + 64).sum()
    }
}

/// Cuts a text to at most `most` bytes, and releases the rest of its memory.
pub(super) fn cut(text: &mut String, most: usize) {
    if text.len() > most {
        text.truncate(text.floor_char_boundary(most));
        text.shrink_to_fit();
    }
}

/// Whether Chromium refuses to have this header set: it would return an error.
fn is_browsers_own(name: &str, value: &str) -> bool {
    const OWN: [&str; 9] =
        ["content-length", "cookie2", "host", "keep-alive", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade"];
    let name = name.to_ascii_lowercase();
    OWN.contains(&&*name) || name.starts_with("proxy-") || name == "connection" && value.to_ascii_lowercase().contains("upgrade")
}

/// Reads the protocol's object of names and values.
impl<'de> Deserialize<'de> for Headers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Headers;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("headers by their names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Headers, A::Error> {
                let mut headers = Headers::default();
                while let Some((name, value)) = map.next_entry::<String, String>()? {
                    headers.push(name, value);
                }
                Ok(headers)
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Writes the list that the protocol expects.
impl Serialize for Headers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for (name, value) in self.iter() {
            list.serialize_element(&json!({"name": name, "value": value}))?;
        }
        list.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn only_what_can_be_sent_is_taken() {
        let long = "x".repeat(MAX_VALUE + 1);
        for (name, value, wanted) in [
            ("X-Own", "1", true),
            ("X-Empty", "", true),
            ("User-Agent", "me", true),
            ("Cookie", "a=b", true),
            ("X-Umlaut", "ä", true),
            ("Connection", "close", true),
            ("", "1", false),
            ("X Own", "1", false),
            ("X-Own:", "1", false),
            ("Ümlaut", "1", false),
            ("X-Own", "a\r\nb: c", false),
            ("X-Own", "\0", false),
            ("X-Own", &long, false),
            ("Host", "a.example", false),
            ("Content-Length", "1", false),
            ("Proxy-Authorization", "x", false),
            ("Connection", "Upgrade", false),
        ] {
            assert_eq!(Headers::check_request(&given(&[(name, value)])).is_ok(), wanted, "{name}: {value:.20}");
        }
        assert!(Headers::check(&given(&[("x-a", "1"), ("X-A", "2")])).is_err());
        let many: BTreeMap<String, String> = (0..=MAX_HEADERS).map(|n| (format!("x-{n}"), String::new())).collect();
        assert!(Headers::check(&many).is_err());
    }

    #[test]
    fn names_have_no_case() {
        let mut headers: Headers = serde_json::from_str(r#"{"Accept": "a", "x-own": "1", "X-Last": "2"}"#).unwrap();
        headers.overlay(&Headers::check(&given(&[("X-Own", "3"), ("X-New", "4")])).unwrap());
        let wanted = json!([
            {"name": "Accept", "value": "a"}, {"name": "X-Last", "value": "2"},
            {"name": "X-New", "value": "4"}, {"name": "X-Own", "value": "3"},
        ]);
        assert_eq!(serde_json::to_value(&headers).unwrap(), wanted);
        assert_eq!(headers.get("X-OWN"), Some("3"));
    }

    #[test]
    fn what_is_kept_has_bounds() {
        let mut headers = Headers::default();
        for _ in 0..1000 {
            headers.push("name", "ä".repeat(MAX_VALUE));
        }
        let bounded = headers.bounded();
        let bytes: usize = bounded.iter().map(|(name, value)| name.len() + value.len()).sum();
        assert!(bounded.len() <= MAX_KEPT && bytes <= MAX_KEPT_BYTES, "{} {bytes}", bounded.len());
        assert!(bounded.iter().next().is_some_and(|(_, value)| value.len() <= MAX_VALUE));
    }
}
