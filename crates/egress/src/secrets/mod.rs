//! Secrets of a sandbox: its programs have placeholders, and the proxy puts the values in, for the hosts of each secret, in TLS
//! that it ends.
//!
//! ```text
//!  request ──► request: leak or misplaced? ──► values for placeholders ──► server
//!  answer  ◄── answer: placeholders for values, in each form ◄──────────── server
//! ```
//!
//! Owns what is compared and replaced. It never decides which hosts may be reached.

mod answer;
mod body;
mod forms;
mod login;
mod replace;
mod request;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use arenite_model::SecretPlace;
use bytes::Bytes;

pub(crate) use self::body::{PassedBody, RefusedBody, WholeBodies, WholeBodyError};
pub(crate) use self::login::Password;
use self::replace::{Action, Patterns};
pub(crate) use self::request::Destination;
use crate::EgressError;
use crate::control::{BoundSecret, SetPolicy};
use crate::policy::{HostPattern, Reason};
use crate::tls::Authority;

/// Of a sandbox.
const MAX_SECRETS: usize = 256;
/// Of a secret.
const MAX_HOSTS: usize = 64;
const MAX_PLACEHOLDERS: usize = 64;
/// Lengths in bytes.
const MAX_VALUE: usize = 8 << 10;
/// All values of a sandbox. What finds them takes 15 MiB then, and 35 KiB for a value of 50 bytes.
const MAX_VALUES: usize = 32 << 10;
const MIN_PLACEHOLDER: usize = 8;
const MAX_PLACEHOLDER: usize = 256;
/// The ports of hosts without one.
const HTTPS_PORT: u16 = 443;
const POSTGRES_PORT: u16 = 5432;
/// Shorter values are not looked for, because they are part of too much else.
const MIN_RECOGNISED: usize = 8;

/// The secrets of one sandbox, ready to be compared.
pub(crate) struct SandboxSecrets {
    secrets: Box<[Secret]>,
    placeholders: Arc<Patterns>,
    /// The secret of each placeholder.
    owners: Box<[usize]>,
    /// None if no value is long enough.
    values: Option<Values>,
    authority: Option<Arc<Authority>>,
}

struct Secret {
    bound: BoundSecret,
    hosts: Box<[HostPattern]>,
}

/// The values in the forms in which they are recognised.
struct Values {
    patterns: Arc<Patterns>,
    /// The secrets that have each form.
    owners: Box<[Vec<usize>]>,
    /// A placeholder for each form.
    masks: Arc<[Action]>,
    /// Lower case and without dots.
    in_names: Patterns,
}

/// Why a request is refused because of a secret.
#[derive(Debug)]
pub(crate) struct SecretRefusal {
    pub(crate) reason: Reason,
    /// A sentence part for people.
    pub(crate) text: String,
}

impl SandboxSecrets {
    /// What a message says. `known` is what the sandbox had before, and is returned if nothing changed. None without secrets.
    pub(crate) fn compile(set: &SetPolicy, known: Option<Arc<Self>>) -> Result<Option<Arc<Self>>, EgressError> {
        let SetPolicy { secrets, authority, .. } = set;
        if secrets.is_empty() {
            return Ok(None);
        }
        let authority = match (authority, known.as_ref().and_then(|known| known.authority.as_ref())) {
            (None, _) => None,
            // Its sessions and certificates stay.
            (Some(keys), Some(known)) if known.has_keys(keys) => Some(known.clone()),
            (Some(keys), _) => Some(Arc::new(Authority::new(keys)?)),
        };
        let is_same = |known: &Arc<Self>| {
            known.secrets.iter().map(|secret| &secret.bound).eq(secrets)
                && known.authority.as_ref().map(Arc::as_ptr) == authority.as_ref().map(Arc::as_ptr)
        };
        if let Some(known) = known.filter(is_same) {
            return Ok(Some(known));
        }
        if secrets.len() > MAX_SECRETS {
            return Err(EgressError::TooManySecrets { count: secrets.len(), most: MAX_SECRETS });
        }
        let bytes = secrets.iter().map(|secret| secret.value.as_str().len()).sum();
        if bytes > MAX_VALUES {
            return Err(EgressError::LongSecrets { bytes, most: MAX_VALUES });
        }
        let mut compiled = Vec::new();
        let (mut placeholders, mut owners, mut known) = (Vec::new(), Vec::new(), HashSet::new());
        for (number, secret) in secrets.iter().enumerate() {
            let invalid = |reason| EgressError::Secret { name: secret.name.clone(), reason };
            compiled.push(Secret::parse(secret).map_err(invalid)?);
            for placeholder in &secret.placeholders {
                if !known.insert(placeholder) {
                    return Err(invalid("a placeholder is there twice".to_owned()));
                }
                placeholders.push(placeholder.clone().into_bytes());
                owners.push(number);
            }
        }
        let patterns = |texts: &[Vec<u8>]| {
            let invalid = |error: aho_corasick::BuildError| EgressError::Secret { name: "*".into(), reason: error.to_string() };
            Patterns::new(texts).map_err(invalid)
        };
        Ok(Some(Arc::new(Self {
            values: Values::new(secrets, patterns)?,
            secrets: compiled.into(),
            placeholders: patterns(&placeholders)?.into(),
            owners: owners.into(),
            authority,
        })))
    }

    /// The authority, if TLS to this host is to be ended for HTTP.
    pub(crate) fn ends_tls(&self, name: &str, port: u16) -> Option<Arc<Authority>> {
        let authority = self.authority.as_ref()?;
        let is_for = |secret: &Secret| secret.is_for(name, port) && !secret.is_for_postgres_alone();
        self.secrets.iter().any(is_for).then(|| authority.clone())
    }

    /// Whether a value is in a name, also encoded.
    pub(crate) fn leaks_in_name(&self, name: &str) -> bool {
        let text = || name.bytes().filter(|byte| *byte != b'.').map(|byte| byte.to_ascii_lowercase()).collect::<Vec<u8>>();
        self.values.as_ref().is_some_and(|values| values.in_names.is_in(&text()))
    }
}

impl Secret {
    fn parse(secret: &BoundSecret) -> Result<Self, String> {
        let BoundSecret { placeholders, value, hosts, .. } = secret;
        if value.as_str().len() > MAX_VALUE {
            return Err(format!("its value has more than {MAX_VALUE} bytes"));
        }
        if hosts.len() > MAX_HOSTS || placeholders.len() > MAX_PLACEHOLDERS {
            return Err(format!("it has more than {MAX_HOSTS} hosts or {MAX_PLACEHOLDERS} placeholders"));
        }
        let is_placeholder = |text: &String| {
            (MIN_PLACEHOLDER..=MAX_PLACEHOLDER).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        };
        if placeholders.is_empty() || !placeholders.iter().all(is_placeholder) {
            return Err(format!(
                "it needs placeholders of {MIN_PLACEHOLDER} to {MAX_PLACEHOLDER} letters, digits, and underscores"
            ));
        }
        let port = if is_for_postgres_alone(&secret.places) { POSTGRES_PORT } else { HTTPS_PORT };
        let parse = |host: &String| HostPattern::parse(host, port).map_err(|reason| format!("invalid host {host:?}: {reason}"));
        Ok(Self { bound: secret.clone(), hosts: hosts.iter().map(parse).collect::<Result<_, _>>()? })
    }

    fn is_for(&self, name: &str, port: u16) -> bool {
        self.hosts.iter().any(|host| host.contains(name, port))
    }

    fn is_for_postgres_alone(&self) -> bool {
        is_for_postgres_alone(&self.bound.places)
    }
}

fn is_for_postgres_alone(places: &[SecretPlace]) -> bool {
    !places.is_empty() && places.iter().all(|place| *place == SecretPlace::Postgres)
}

impl Values {
    fn new(
        secrets: &[BoundSecret],
        patterns: impl Fn(&[Vec<u8>]) -> Result<Patterns, EgressError>,
    ) -> Result<Option<Self>, EgressError> {
        let mut forms: Vec<(Vec<u8>, usize)> = Vec::new();
        let mut in_names = Vec::new();
        for (number, secret) in secrets.iter().enumerate() {
            let value = secret.value.as_str();
            if value.len() >= MIN_RECOGNISED {
                forms.extend(forms::in_text(value).into_iter().map(|form| (form, number)));
                in_names.extend(forms::in_name(value));
            }
        }
        if forms.is_empty() {
            return Ok(None);
        }
        forms.sort();
        let mut texts: Vec<Vec<u8>> = Vec::new();
        let mut owners: Vec<Vec<usize>> = Vec::new();
        for (text, number) in forms {
            match owners.last_mut().filter(|_| texts.last() == Some(&text)) {
                Some(same) => same.push(number),
                None => {
                    texts.push(text);
                    owners.push(vec![number]);
                }
            }
        }
        let mask = |owners: &Vec<usize>| {
            let placeholder = &secrets[owners[0]].placeholders[0];
            Action::Replace(Bytes::copy_from_slice(placeholder.as_bytes()))
        };
        Ok(Some(Self {
            patterns: patterns(&texts)?.into(),
            masks: owners.iter().map(mask).collect(),
            owners: owners.into(),
            in_names: patterns(&in_names)?,
        }))
    }
}

impl fmt::Debug for SandboxSecrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.secrets.iter().map(|secret| &secret.bound.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compile(secrets: &str) -> Result<Arc<SandboxSecrets>, EgressError> {
        let text = format!(r#"{{"address": "10.209.0.7", "sandbox": "box", "policy": {{}}, "secrets": [{secrets}]}}"#);
        SandboxSecrets::compile(&serde_json::from_str(&text).unwrap(), None).map(Option::unwrap)
    }

    fn secret(name: &str, placeholders: &str, value: &str, hosts: &str) -> String {
        format!(r#"{{"name": "{name}", "placeholders": {placeholders}, "value": "{value}", "hosts": {hosts}, "places": []}}"#)
    }

    #[test]
    fn invalid_secrets_are_refused() {
        let (good, long) = (r#"["placeholder_1"]"#, "x".repeat(8 << 10));
        let many = |count: usize| -> String {
            let one = |n| secret("A", &format!(r#"["placeholder_{n:04}"]"#), &long, "[]");
            (0..count).map(one).collect::<Vec<_>>().join(",")
        };
        assert!(compile(&secret("A", good, "value", r#"["a.example", "*.b.example:8443,9000-9001"]"#)).is_ok());
        assert!(compile(&many(4)).is_ok());
        for (secrets, code) in [
            (secret("A", "[]", "topsecret", "[]"), "invalid_secret"),
            (secret("A", r#"["short"]"#, "topsecret", "[]"), "invalid_secret"),
            (secret("A", r#"["with-hyphens"]"#, "topsecret", "[]"), "invalid_secret"),
            (secret("A", good, "topsecret", r#"["https://a.example"]"#), "invalid_secret"),
            (secret("A", good, "topsecret", r#"["10.0.0.0/8"]"#), "invalid_secret"),
            (secret("A", good, &format!("{long}x"), "[]"), "invalid_secret"),
            (format!("{},{}", secret("A", good, "a", "[]"), secret("B", good, "b", "[]")), "invalid_secret"),
            (many(5), "long_secrets"),
        ] {
            let error = compile(&secrets).unwrap_err();
            assert_eq!(error.code(), code, "{error}");
            assert!(!error.to_string().contains("topsecret"), "{error}");
        }
        let text = format!("{:?}", compile(&secret("A", good, "topsecret", "[]")).unwrap());
        assert_eq!(text, r#"["A"]"#);
    }

    #[test]
    fn values_take_a_bounded_memory() {
        let size = |value: &str| {
            let secrets = compile(&secret("A", r#"["placeholder_1"]"#, value, "[]")).unwrap();
            secrets.values.as_ref().map_or(0, |values| values.patterns.size() + values.in_names.size())
        };
        let mut value = String::new();
        while value.len() < MAX_VALUE {
            value.push_str(&format!("{}/+ ", value.len() * 7919));
        }
        assert!(size(&value[..50]) < 100 << 10 && size(&value[..MAX_VALUE]) < 10 << 20);
    }
}
