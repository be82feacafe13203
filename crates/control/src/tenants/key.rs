//! API keys and their text.
//!
//! ```text
//! arn_<id>_<secret><checksum>
//!      12    32      6         characters
//! ```
//!
//! The id names the key. The secret is random and stored only as its SHA-256. The checksum (CRC-32) lets a mistyped key be
//! refused before any lookup, and lets scanners of published files recognize keys.

use arenite_model::{KeyId, TenantId};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{Binding, Role};

const PREFIX: &str = "arn_";
const ID: usize = 12;
const SECRET: usize = 32;
const CHECKSUM: usize = 6;
const LENGTH: usize = PREFIX.len() + ID + 1 + SECRET + CHECKSUM;
const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A stored key. It can't be turned back into its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApiKey {
    pub id: KeyId,
    pub tenant: TenantId,
    /// For people.
    pub name: String,
    pub role: Role,
    /// SHA-256 of the secret.
    #[serde(with = "hexadecimal")]
    pub hash: [u8; 32],
    pub created_at: Timestamp,
    /// None: it does not expire.
    pub expires_at: Option<Timestamp>,
    pub revoked_at: Option<Timestamp>,
    /// The sandboxes that it is restricted to; empty: all of its tenant.
    pub bound: Vec<Binding>,
    /// It is an admin that also manages tenants and acts on what belongs to the server.
    pub operator: bool,
}

/// The hash as text.
mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(hash: &[u8; 32], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&hex::encode(hash))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
        let mut hash = [0; 32];
        hex::decode_to_slice(String::deserialize(deserializer)?, &mut hash).map_err(D::Error::custom)?;
        Ok(hash)
    }
}

impl ApiKey {
    /// Whether it is accepted at this time, if its tenant is.
    pub fn is_valid_at(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }
}

/// A new key's text, shown once. Its debug format hides it.
pub struct KeyText(String);

impl KeyText {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for KeyText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyText")
    }
}

/// The parts of a presented key with a valid shape and checksum.
pub(super) struct Presented<'a> {
    pub(super) id: KeyId,
    secret: &'a str,
}

impl Presented<'_> {
    pub(super) fn hash(&self) -> [u8; 32] {
        hash(self.secret)
    }
}

fn hash(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Generates the text of a key with this id, and the hash of its secret.
pub(super) fn generate(id: &KeyId) -> (KeyText, [u8; 32]) {
    let secret = random_secret();
    (KeyText(text_with(id, &secret)), hash(&secret))
}

fn text_with(id: &KeyId, secret: &str) -> String {
    let mut text = format!("{PREFIX}{id}_{secret}");
    let checksum = checksum(&text);
    text.push_str(&checksum);
    text
}

/// The text of a key with a derived secret.
pub(crate) fn key_text(id: &KeyId, derived: &[u8; 32]) -> String {
    let secret: String = derived.iter().map(|byte| char::from(BASE62[usize::from(byte % 62)])).collect();
    text_with(id, &secret)
}

/// Whether a presented text is the key with this derived secret. Takes the same time for all secrets.
pub(crate) fn is_key_text(given: &str, id: &KeyId, derived: &[u8; 32]) -> bool {
    let Some(presented) = parse(given).filter(|presented| presented.id == *id) else { return false };
    let text = key_text(id, derived);
    parse(&text).is_some_and(|expected| expected.hash().ct_eq(&presented.hash()).into())
}

/// Reads a presented key. None: it can't be a key, so no lookup is needed.
pub(super) fn parse(text: &str) -> Option<Presented<'_>> {
    if text.len() != LENGTH || !text.is_ascii() {
        return None;
    }
    let (body, given) = text.split_at(LENGTH - CHECKSUM);
    let (id, secret) = body.strip_prefix(PREFIX)?.split_at(ID);
    let secret = secret.strip_prefix('_')?;
    let is_base62 = secret.bytes().all(|b| b.is_ascii_alphanumeric());
    if !is_base62 || checksum(body) != given {
        return None;
    }
    Some(Presented { id: id.parse().ok()?, secret })
}

/// CRC-32 in base 62.
fn checksum(text: &str) -> String {
    let mut rest = crc32fast::hash(text.as_bytes());
    let mut digits = [b'0'; CHECKSUM];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[(rest % 62) as usize];
        rest /= 62;
    }
    digits.map(char::from).iter().collect()
}

fn random_secret() -> String {
    let mut secret = String::with_capacity(SECRET);
    let mut bytes = [0u8; 2 * SECRET];
    while secret.len() < SECRET {
        getrandom::fill(&mut bytes).expect("the kernel's random source answers");
        // 248 is a multiple of 62: all characters are equally likely.
        let fair = bytes.iter().filter(|byte| **byte < 248).map(|byte| char::from(BASE62[usize::from(byte % 62)]));
        secret.extend(fair.take(SECRET - secret.len()));
    }
    secret
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_key_is_read_and_hides_its_secret() {
        let id = KeyId::random();
        let (text, hash) = generate(&id);
        let read = parse(text.as_str()).unwrap();
        assert_eq!((read.id.clone(), read.hash()), (id.clone(), hash));
        assert_eq!(format!("{text:?}"), "KeyText");
        assert_ne!(generate(&id).0.as_str(), text.as_str());
        assert_eq!(text.as_str().len(), 55);
    }

    #[test]
    fn texts_of_another_shape_are_no_keys() {
        let (text, _) = generate(&KeyId::random());
        let text = text.as_str();
        for at in 0..text.len() {
            for other in ["0", "z", "_", "-", " ", "\0"] {
                let changed = format!("{}{other}{}", &text[..at], &text[at + 1..]);
                assert!(changed == text || parse(&changed).is_none(), "{changed:?}");
            }
        }
        let swapped = format!("{}{}{}", &text[..20], text[20..22].chars().rev().collect::<String>(), &text[22..]);
        assert!(swapped == text || parse(&swapped).is_none());
        for bad in [
            "",
            "arn_",
            &text[1..],
            &text[..54],
            &format!("{text}0"),
            &text.to_uppercase(),
            &"ä".repeat(27),
            &"x".repeat(100_000),
        ] {
            assert!(parse(bad).is_none(), "{bad:?}");
        }
    }
}
