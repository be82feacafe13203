//! Signed tokens of a server without tenants: JWT with RS256 only, always with an expiry. See [`super::users`] for tenants' users.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;

/// Longer tokens are rejected unread: checking a signature takes time.
pub(super) const MAX_TOKEN_BYTES: usize = 8 << 10;

#[derive(Deserialize)]
struct Claims {
    /// Seconds since 1970; a fraction is allowed.
    exp: f64,
}

/// Whether the header names extensions that must be understood (RFC 7515, 4.1.11). Arenite understands none.
pub(super) fn has_critical_extensions(token: &str) -> bool {
    let header = token.split('.').next().and_then(|header| URL_SAFE_NO_PAD.decode(header).ok());
    let header = header.and_then(|bytes| serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&bytes).ok());
    // An unreadable header is rejected, too.
    header.is_none_or(|fields| fields.contains_key("crit"))
}

/// Verifies tokens; it can't sign any.
#[derive(Clone)]
pub(super) struct TokenKey {
    inner: Arc<(DecodingKey, Validation)>,
}

impl TokenKey {
    pub(super) fn new(base64_of_pem: &str) -> Result<Self, String> {
        let packed: String = base64_of_pem.split_whitespace().collect();
        let pem = STANDARD.decode(packed).map_err(|error| error.to_string())?;
        if pem.windows(11).any(|word| word == b"PRIVATE KEY") {
            return Err("it is a private key; the server needs the public one alone".to_owned());
        }
        let key = DecodingKey::from_rsa_pem(&pem).map_err(|error| error.to_string())?;
        let mut validation = Validation::new(Algorithm::RS256);
        validation.validate_nbf = true;
        // There is no audience to check: the key belongs to this server.
        validation.validate_aud = false;
        validation.leeway = 0;
        Ok(Self { inner: Arc::new((key, validation)) })
    }

    /// The remaining lifetime of a valid token.
    pub(super) fn check(&self, token: &str) -> Option<Duration> {
        if token.len() > MAX_TOKEN_BYTES || token.bytes().filter(|b| *b == b'.').count() != 2 {
            return None;
        }
        if has_critical_extensions(token) {
            return None;
        }
        let (key, validation) = &*self.inner;
        let claims = decode::<Claims>(token, key, validation).ok()?.claims;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        // An expiry in millions of years is valid, but no session lasts that long.
        let left = (claims.exp - now).clamp(0.0, 1e9);
        Some(Duration::from_secs_f64(left))
    }
}
