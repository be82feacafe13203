//! Users of tenants by tokens of an issuer: JWT with RS256, ES256 or EdDSA, with keys from a JWKS file.
//!
//! The file is read again when it changes. A file that can't be used changes nothing, and the log says why. A key has one
//! algorithm, which its type determines, so a token can't choose another.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use arenite_control::tenants::{Principal, Role};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, KeyOperations, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::token::{MAX_TOKEN_BYTES, has_critical_extensions};
use super::{AuthError, digest};
use crate::tls::{FileStamp, file_stamp};

/// Time between looks at the file. A change is used when two looks in a row see it, so that no file is read half written.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Largest file, in bytes, and the most keys in it.
const MAX_FILE_BYTES: u64 = 1 << 20;
const MAX_KEYS: usize = 100;
/// How much clocks may differ, in seconds: a token is accepted so much before its `nbf` and after its `exp`.
const LEEWAY: u64 = 5;
/// Smallest modulus of an RSA key, in bytes.
const MIN_MODULUS: usize = 256;
/// Longest subject, in characters.
const MAX_SUBJECT: usize = 200;
/// The most verified tokens that are remembered.
const MAX_VERIFIED: usize = 1_024;

/// Who issues tokens, and what they contain.
#[derive(Debug, Clone)]
pub struct TokenRules {
    pub issuer: String,
    pub audience: String,
    pub jwks: PathBuf,
    /// The claim with the tenant's name.
    pub tenant_claim: String,
    /// The claim with a role, or a list with some. The highest one counts, and texts that are no role are ignored.
    pub role_claim: String,
}

/// Verifies users' tokens.
pub(crate) struct Users {
    rules: TokenRules,
    keys: RwLock<Vec<Key>>,
    /// Principals of tokens with a valid signature, by the tokens' digests.
    verified: Mutex<HashMap<[u8; 32], Arc<Principal>>>,
    opened: Option<FileStamp>,
}

struct Key {
    id: Option<String>,
    algorithm: Algorithm,
    key: DecodingKey,
    validation: Validation,
}

#[derive(Deserialize)]
struct KeySet {
    keys: Vec<Value>,
}

impl Users {
    pub(super) fn open(rules: TokenRules) -> Result<Self, AuthError> {
        let opened = file_stamp(&rules.jwks);
        let keys = read(&rules)?;
        Ok(Self { rules, keys: RwLock::new(keys), verified: Mutex::default(), opened })
    }

    /// Reads the file again when it changes, until `stopping`.
    pub(crate) async fn follow(self: Arc<Self>, stopping: CancellationToken) {
        let (mut seen, mut used) = (self.opened, self.opened);
        while stopping.run_until_cancelled(tokio::time::sleep(LOOK_EVERY)).await.is_some() {
            let this = Arc::clone(&self);
            let looked = tokio::task::spawn_blocking(move || {
                let now = file_stamp(&this.rules.jwks);
                if now == seen && now != used {
                    this.reload();
                    used = now;
                }
                (now, used)
            });
            // A file system that hangs delays no stop.
            let Some(Ok(looked)) = stopping.run_until_cancelled(looked).await else { return };
            (seen, used) = looked;
        }
    }

    fn reload(&self) {
        match read(&self.rules) {
            Ok(keys) => {
                tracing::info!(keys = keys.len(), "tokens are verified with the changed file {}", self.rules.jwks.display());
                *self.keys.write().unwrap_or_else(PoisonError::into_inner) = keys;
                // After the keys: a token of a removed key is verified again, and refused.
                self.verified.lock().unwrap_or_else(PoisonError::into_inner).clear();
            }
            Err(error) => tracing::error!(%error, "the changed keys for tokens are not used, and the previous ones stay"),
        }
    }

    /// The user that a token identifies, if its signature and its claims are valid. The caller checks its expiry and its tenant.
    pub(super) fn identify(&self, token: &str) -> Option<Arc<Principal>> {
        if token.len() > MAX_TOKEN_BYTES || token.bytes().filter(|b| *b == b'.').count() != 2 {
            return None;
        }
        let digest = digest(token);
        // While the keys are held, so that a reload does not miss it.
        let keys = self.keys.read().unwrap_or_else(PoisonError::into_inner);
        let known = self.verified.lock().unwrap_or_else(PoisonError::into_inner).get(&digest).cloned();
        if known.is_some() {
            return known;
        }
        let principal = Arc::new(self.verify(&keys, token)?);
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.len() >= MAX_VERIFIED {
            verified.clear();
        }
        verified.insert(digest, Arc::clone(&principal));
        Some(principal)
    }

    fn verify(&self, keys: &[Key], token: &str) -> Option<Principal> {
        if has_critical_extensions(token) {
            return None;
        }
        let header = decode_header(token).ok()?;
        let mut fitting = keys.iter().filter(|key| key.algorithm == header.alg && (header.kid.is_none() || key.id == header.kid));
        // Without `kid`, only one key may fit.
        let (Some(key), None) = (fitting.next(), fitting.next()) else { return None };
        let claims = decode::<Map<String, Value>>(token, &key.key, &key.validation).ok()?.claims;
        let text = |name: &str| claims.get(name).and_then(Value::as_str);
        let subject = text("sub").filter(|subject| {
            !subject.is_empty() && subject.chars().count() <= MAX_SUBJECT && !subject.contains(char::is_control)
        })?;
        let tenant = text(&self.rules.tenant_claim)?.parse().ok()?;
        let role: Role = match claims.get(&self.rules.role_claim)? {
            Value::String(role) => role.parse().ok()?,
            Value::Array(roles) => roles.iter().filter_map(|role| role.as_str()?.parse().ok()).max()?,
            _ => return None,
        };
        // Seconds since 1970; a fraction is allowed. A time that no timestamp can have is later than any session lasts.
        let seconds = claims.get("exp").and_then(Value::as_f64)?.min(1e11) as i64;
        let expires_at = Timestamp::from_second(seconds.saturating_add(LEEWAY.cast_signed())).ok()?;
        Some(Principal::of_user(tenant, subject.to_owned(), role, expires_at))
    }
}

fn read(rules: &TokenRules) -> Result<Vec<Key>, AuthError> {
    let path = &rules.jwks;
    let failed = |reason: String| AuthError::Jwks { path: path.clone(), reason };
    let bytes = read_file(path).map_err(|error| failed(error.to_string()))?;
    let set: KeySet = serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
    if set.keys.len() > MAX_KEYS {
        return Err(failed(format!("it has more than {MAX_KEYS} keys")));
    }
    if set.keys.iter().any(|key| key.get("d").is_some()) {
        return Err(failed("it has a private key; the server needs the public ones alone".to_owned()));
    }
    let keys: Vec<Key> = set.keys.into_iter().filter_map(|key| usable(rules, serde_json::from_value(key).ok()?)).collect();
    if keys.is_empty() {
        return Err(failed("it has no key for RS256, ES256 or EdDSA".to_owned()));
    }
    Ok(keys)
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A key for one of the accepted algorithms. None: it is for another purpose.
fn usable(rules: &TokenRules, jwk: Jwk) -> Option<Key> {
    let common = &jwk.common;
    let is_for_signatures = common.public_key_use.as_ref().is_none_or(|purpose| *purpose == PublicKeyUse::Signature)
        && common.key_operations.as_ref().is_none_or(|operations| operations.contains(&KeyOperations::Verify));
    let algorithm = match &jwk.algorithm {
        AlgorithmParameters::RSA(key) if URL_SAFE_NO_PAD.decode(&key.n).is_ok_and(|n| n.len() >= MIN_MODULUS) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => Algorithm::ES256,
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => Algorithm::EdDSA,
        _ => return None,
    };
    if !is_for_signatures || common.key_algorithm.is_some_and(|named| named != algorithm.into()) {
        return None;
    }
    let key = DecodingKey::from_jwk(&jwk).ok()?;
    let mut validation = Validation::new(algorithm);
    validation.set_issuer(&[&rules.issuer]);
    validation.set_audience(&[&rules.audience]);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.validate_nbf = true;
    validation.leeway = LEEWAY;
    Some(Key { id: common.key_id.clone(), algorithm, key, validation })
}
