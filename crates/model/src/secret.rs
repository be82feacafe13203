//! Secrets of tenants: what their sandboxes have of them, and where the egress proxy puts the values in.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use zeroize::Zeroizing;

use crate::SecretName;

/// A secret's value, or a private key. `Debug` does not show it, and its memory is cleared when it is dropped.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct SecretText(Zeroizing<String>);

impl SecretText {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SecretText {
    fn from(text: String) -> Self {
        Self(Zeroizing::new(text))
    }
}

impl From<SecretText> for String {
    fn from(text: SecretText) -> Self {
        text.as_str().to_owned()
    }
}

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A part of a request or a connection into which the value is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum SecretPlace {
    /// Values of headers, also user and password of `Authorization: Basic`.
    Header,
    /// The query of the URL.
    Query,
    /// The body: JSON, a form, or any other text.
    Body,
    /// The password of a connection to a Postgres server.
    Postgres,
    /// Signatures of logins by SSH. The value is a private key of OpenSSH, and the only place.
    Ssh,
}

/// A login by SSH that a key of a secret signed, or should have signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SshLogin {
    /// None: no secret of the sandbox has this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The user on the server. None: what was to be signed is no login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Of the key.
    pub fingerprint: String,
    /// Fingerprint of the server's key, if the client proved it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_key: Option<String>,
}

/// A secret of a sandbox, and what its programs have in the place of the value.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct SecretBinding {
    pub name: SecretName,
    /// Unique to the sandbox and the secret: letters, digits, and underscores. Empty for SSH keys.
    pub placeholder: String,
    /// Placeholders of the sandboxes that it is a fork of. They may be in its files and processes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inherited: Vec<String>,
    /// It is an SSH key: programs let the agent at `SSH_AUTH_SOCK` sign with it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ssh: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_not_shown() {
        let text = SecretText::from("topsecret".to_owned());
        assert_eq!(format!("{text:?} {:?}", Some(&text)), "*** Some(***)");
        let json = serde_json::to_string(&text).unwrap();
        assert_eq!((json.as_str(), serde_json::from_str::<SecretText>(&json).unwrap()), (r#""topsecret""#, text));
    }
}
