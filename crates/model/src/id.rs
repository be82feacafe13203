//! Names that people choose and ids that Arenite makes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Why a name or id was refused.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("{what} {given:?} is not valid: {rule}")]
pub struct IdError {
    pub what: &'static str,
    /// What was given, cut to 80 characters.
    pub given: String,
    pub rule: &'static str,
}

fn refuse(what: &'static str, given: &str, rule: &'static str) -> IdError {
    IdError { what, given: given.chars().take(80).collect(), rule }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $rule:literal, $check:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// The text of it, as it stands in paths, URLs and logs.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                let valid: fn(&str) -> bool = $check;
                if valid(text) { Ok(Self(text.to_owned())) } else { Err(refuse($what, text, $rule)) }
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

fn is_dns_label(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 63
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
        && !text.starts_with('-')
        && !text.ends_with('-')
}

text_id!(
    /// Unique everywhere, made by Arenite: `s` and 11 lower-case letters or digits (about 56 bits).
    /// Safe in a DNS label, a path, a cgroup's and an interface's name.
    SandboxId,
    "sandbox id",
    "it is the letter s and 11 lower-case letters or digits",
    |t| t.len() == 12 && t.starts_with('s') && t.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
);

text_id!(
    /// Unique within its tenant, chosen by whoever creates the sandbox: a DNS label.
    SandboxName,
    "sandbox name",
    "use 1 to 63 lower-case letters, digits and inner hyphens",
    is_dns_label
);

text_id!(
    /// Who owns sandboxes, keys and quotas: a DNS label.
    TenantId,
    "tenant",
    "use 1 to 63 lower-case letters, digits and inner hyphens",
    is_dns_label
);

text_id!(
    /// A local image's name: path-like, lower case, optionally with a tag, such as `base` or `team/tools:2`.
    ImageName,
    "image name",
    "use 1 to 128 lower-case letters, digits and . _ - / with an optional :tag, no .. and no leading or trailing separator",
    |t| {
        let (name, tag) = t.split_once(':').unwrap_or((t, "latest"));
        let word = |s: &str| {
            !s.is_empty()
                && s.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(&b))
                && s.as_bytes()[0].is_ascii_alphanumeric()
                && !s.contains("..")
        };
        t.len() <= 128 && word(tag) && name.split('/').all(word)
    }
);

impl SandboxId {
    /// A new random id.
    pub fn random() -> Self {
        const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
        let mut bytes = [0u8; 22];
        getrandom::fill(&mut bytes).expect("the kernel's random source answers");
        let text = std::iter::once('s')
            // Two bytes a letter keep the bias of the modulo below one part in a thousand.
            .chain(bytes.chunks_exact(2).map(|pair| {
                let n = u16::from_le_bytes([pair[0], pair[1]]);
                char::from(ALPHABET[usize::from(n % 36)])
            }))
            .collect();
        Self(text)
    }
}

impl TenantId {
    /// The one tenant of an installation without authentication.
    pub fn default_tenant() -> Self {
        Self("default".to_owned())
    }
}

impl SandboxName {
    /// The sandbox that is made by being called, and never reaped as idle.
    pub const DEFAULT: &'static str = "default";

    pub fn is_default(&self) -> bool {
        self.0 == Self::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ids_are_valid_and_differ() {
        let (a, b) = (SandboxId::random(), SandboxId::random());
        assert_ne!(a, b);
        assert_eq!(a.as_str().parse::<SandboxId>().unwrap(), a);
    }

    #[test]
    fn names_that_could_leave_a_path_or_a_label_are_refused() {
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "..", "a b", &"x".repeat(64), "naïve", "a\0b"] {
            assert!(bad.parse::<SandboxName>().is_err(), "{bad:?}");
        }
        for bad in ["", "/a", "a/", "a//b", "../a", "a..b", "A", "a:", ":a", "a:b:c", "a b"] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad:?}");
        }
        for good in ["base", "team/tools:2", "a.b_c-d"] {
            assert!(good.parse::<ImageName>().is_ok(), "{good:?}");
        }
    }
}
