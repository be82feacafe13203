use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use arenite_model::SandboxName;
use serde::{Deserialize, Serialize};

/// Longest label selector, in bytes: a label's key and value have at most 1024 together.
const MAX_SELECTOR: usize = 1025;

/// Sandboxes that a key is restricted to: one by its name, or those with a label. Written as `NAME` or `KEY=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Binding {
    Name(SandboxName),
    Label { key: String, value: String },
}

impl Binding {
    pub(super) fn covers(&self, name: Option<&SandboxName>, labels: &BTreeMap<String, String>) -> bool {
        match self {
            Self::Name(bound) => Some(bound) == name,
            Self::Label { key, value } => labels.get(key) == Some(value),
        }
    }
}

impl FromStr for Binding {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((key, value)) = text.split_once('=') else {
            return Ok(Self::Name(text.parse().map_err(|error: arenite_model::IdError| error.to_string())?));
        };
        if key.is_empty() || text.len() > MAX_SELECTOR || text.contains(|c: char| c.is_control()) {
            return Err(format!(
                "a label selector is KEY=VALUE with a key, without control characters, of at most {MAX_SELECTOR} bytes"
            ));
        }
        Ok(Self::Label { key: key.to_owned(), value: value.to_owned() })
    }
}

impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.fmt(f),
            Self::Label { key, value } => write!(f, "{key}={value}"),
        }
    }
}

impl TryFrom<String> for Binding {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Binding> for String {
    fn from(binding: Binding) -> String {
        binding.to_string()
    }
}
