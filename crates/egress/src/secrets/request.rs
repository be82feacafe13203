//! Values in requests.

use arenite_model::SecretPlace;
use bytes::Bytes;
use data_encoding::{BASE64, BASE64_NOPAD};
use http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Uri, request};
use percent_encoding::utf8_percent_encode;

use super::forms::{UNRESERVED, json_text};
use super::replace::{Action, Refused, Replacer};
use super::{SandboxSecrets, Secret, SecretRefusal};
use crate::policy::Reason;

/// To where a request goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Destination<'a> {
    /// Without TLS: no secret is for it.
    Plain,
    /// The name and the port of TLS that the proxy ended.
    Tls(&'a str, u16),
}

/// The characters that a body needs around a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    Json,
    Form,
    Raw,
}

impl SandboxSecrets {
    /// Puts values into the head of a request, or refuses it.
    pub(crate) fn fill_head(&self, parts: &mut request::Parts, to: Destination<'_>) -> Result<(), SecretRefusal> {
        self.check_leaks(parts, to)?;
        self.fill_target(&mut parts.uri, to)?;
        for (name, value) in &mut parts.headers {
            let basic = if *name == AUTHORIZATION { self.fill_basic(value, to)? } else { None };
            let filled = match basic {
                Some(filled) => Some(filled),
                None => self.fill(value.as_bytes(), SecretPlace::Header, to, str::to_owned)?,
            };
            if let Some(filled) = filled {
                *value = HeaderValue::from_bytes(&filled).map_err(|_| SecretRefusal {
                    reason: Reason::SecretMisplaced,
                    text: format!("the secret for the header {name} has characters that headers can't have"),
                })?;
                value.set_sensitive(true);
            }
        }
        Ok(())
    }

    /// What replaces placeholders in the body of a request with these headers. None if it is passed as it is.
    pub(crate) fn body_replacer(&self, headers: &HeaderMap, to: Destination<'_>) -> Option<Replacer> {
        if headers.get(CONTENT_ENCODING).is_some_and(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return None;
        }
        let quoting = Quoting::from_headers(headers);
        let action = |number| match self.value(number, SecretPlace::Body, to) {
            Ok(value) => Action::Replace(quoting.quote(value).into()),
            Err(_) => Action::Refuse,
        };
        let actions: Vec<Action> = (0..self.secrets.len()).map(action).collect();
        let of_placeholders = self.owners.iter().map(|owner| actions[*owner].clone()).collect();
        Some(Replacer::new(self.placeholders.clone(), of_placeholders))
    }

    /// Why a body was refused.
    pub(crate) fn body_refusal(&self, refused: Refused, to: Destination<'_>) -> SecretRefusal {
        self.value(self.owners[refused.0], SecretPlace::Body, to).err().unwrap_or_else(|| SecretRefusal {
            reason: Reason::SecretMisplaced,
            text: "a secret is where it may not be".to_owned(),
        })
    }

    /// A value in a request to another host: programs should never have had it.
    fn check_leaks(&self, parts: &request::Parts, to: Destination<'_>) -> Result<(), SecretRefusal> {
        let Some(values) = &self.values else { return Ok(()) };
        let is_own = |number: &usize| match to {
            Destination::Plain => false,
            Destination::Tls(name, port) => self.secrets[*number].is_for(name, port),
        };
        let target = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
        for text in parts.headers.values().map(HeaderValue::as_bytes).chain([target.as_bytes()]) {
            let leaked = values
                .patterns
                .find_all(text)
                .map(|found| &values.owners[found.pattern().as_usize()])
                .find(|o| !o.iter().any(is_own));
            if let Some(owners) = leaked {
                let text = format!("it has the value of {}, which is not for it", self.secrets[owners[0]].title());
                return Err(SecretRefusal { reason: Reason::SecretLeak, text });
            }
        }
        Ok(())
    }

    fn fill_target(&self, uri: &mut Uri, to: Destination<'_>) -> Result<(), SecretRefusal> {
        if let Some(found) = self.placeholders.find_all(uri.path().as_bytes()).next() {
            let secret = &self.secrets[self.owners[found.pattern().as_usize()]];
            return Err(secret.misplaced("in the path"));
        }
        let Some(query) = uri.query() else { return Ok(()) };
        let encode = |value: &str| utf8_percent_encode(value, UNRESERVED).to_string();
        let Some(filled) = self.fill(query.as_bytes(), SecretPlace::Query, to, encode)? else { return Ok(()) };
        let target = [uri.path().as_bytes(), b"?", &filled].concat();
        let target = PathAndQuery::from_maybe_shared(Bytes::from(target)).map_err(|_| SecretRefusal {
            reason: Reason::SecretMisplaced,
            text: "the query is too long with the secret".to_owned(),
        })?;
        *uri = Uri::from(target);
        Ok(())
    }

    /// `Basic` with user and password in base64. None if there is no placeholder inside.
    fn fill_basic(&self, value: &HeaderValue, to: Destination<'_>) -> Result<Option<Vec<u8>>, SecretRefusal> {
        let Some((scheme, encoded)) = value.as_bytes().split_at_checked(b"Basic ".len()) else { return Ok(None) };
        if !scheme.eq_ignore_ascii_case(b"Basic ") {
            return Ok(None);
        }
        let encoded = encoded.trim_ascii();
        let length = encoded.iter().rposition(|byte| *byte != b'=').map_or(0, |last| last + 1);
        let Ok(decoded) = BASE64_NOPAD.decode(&encoded[..length]) else { return Ok(None) };
        let filled = self.fill(&decoded, SecretPlace::Header, to, str::to_owned)?;
        Ok(filled.map(|filled| [b"Basic ", BASE64.encode(&filled).as_bytes()].concat()))
    }

    /// The text with the values. None if it has no placeholder.
    fn fill(
        &self,
        text: &[u8],
        place: SecretPlace,
        to: Destination<'_>,
        encode: impl Fn(&str) -> String,
    ) -> Result<Option<Vec<u8>>, SecretRefusal> {
        let mut filled = Vec::new();
        let mut from = 0;
        for found in self.placeholders.find_all(text) {
            let value = self.value(self.owners[found.pattern().as_usize()], place, to)?;
            filled.extend_from_slice(&text[from..found.start()]);
            filled.extend_from_slice(encode(value).as_bytes());
            from = found.end();
        }
        if from == 0 {
            return Ok(None);
        }
        filled.extend_from_slice(&text[from..]);
        Ok(Some(filled))
    }

    /// The value of a secret, if it may be there.
    pub(super) fn value(&self, number: usize, place: SecretPlace, to: Destination<'_>) -> Result<&str, SecretRefusal> {
        let secret = &self.secrets[number];
        if secret.bound.value.as_str().is_empty() {
            let text = format!("{} was revoked", secret.title());
            return Err(SecretRefusal { reason: Reason::SecretRevoked, text });
        }
        match to {
            Destination::Plain => Err(secret.misplaced("in a request without TLS")),
            Destination::Tls(name, port) if !secret.is_for(name, port) => Err(secret.misplaced(match place {
                SecretPlace::Postgres => "in a password for this host",
                SecretPlace::Header | SecretPlace::Query | SecretPlace::Body | SecretPlace::Ssh => "in a request to this host",
            })),
            Destination::Tls(..) if secret.bound.places.contains(&place) => Ok(secret.bound.value.as_str()),
            Destination::Tls(..) => Err(secret.misplaced(match place {
                SecretPlace::Header => "in a header",
                SecretPlace::Query => "in the query",
                SecretPlace::Body => "in the body",
                SecretPlace::Postgres => "in the password of Postgres",
                // Nothing is put there.
                SecretPlace::Ssh => "in a login by SSH",
            })),
        }
    }
}

impl Secret {
    pub(super) fn title(&self) -> String {
        format!("the secret {}", self.bound.name)
    }

    pub(super) fn misplaced(&self, location: &str) -> SecretRefusal {
        let places: Vec<String> = self.bound.places.iter().map(|place| format!("{place:?}").to_lowercase()).collect();
        let (title, places, hosts) = (self.title(), places.join(", "), self.bound.hosts.join(", "));
        let text = format!("{title} may not be {location}: it is for these places: {places}; and for these hosts: {hosts}");
        SecretRefusal { reason: Reason::SecretMisplaced, text }
    }
}

impl Quoting {
    fn from_headers(headers: &HeaderMap) -> Self {
        let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match kind.as_str() {
            "application/x-www-form-urlencoded" => Self::Form,
            json if json.ends_with("/json") || json.ends_with("+json") => Self::Json,
            // One document on each line.
            "application/x-ndjson" | "application/jsonl" => Self::Json,
            _ => Self::Raw,
        }
    }

    fn quote(self, value: &str) -> String {
        match self {
            Self::Json => json_text(value),
            Self::Form => utf8_percent_encode(value, UNRESERVED).to_string(),
            Self::Raw => value.to_owned(),
        }
    }
}
