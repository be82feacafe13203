//! Signed tokens: JWT, RS256 and nothing else, never without an end.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;

/// Longer ones are not looked at: a signature costs time.
const MAX_TOKEN_BYTES: usize = 8 << 10;

#[derive(Deserialize)]
struct Claims {
    /// Seconds since 1970; a fraction is allowed.
    exp: f64,
}

/// Verifies tokens; makes none.
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
        // There is no audience to compare with: the key is this server's own.
        validation.validate_aud = false;
        validation.leeway = 0;
        Ok(Self { inner: Arc::new((key, validation)) })
    }

    /// How long a valid token is good for.
    pub(super) fn check(&self, token: &str) -> Option<Duration> {
        if token.len() > MAX_TOKEN_BYTES || token.bytes().filter(|b| *b == b'.').count() != 2 {
            return None;
        }
        let (key, validation) = &*self.inner;
        let claims = decode::<Claims>(token, key, validation).ok()?.claims;
        let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        // An end in millions of years is no error, and no session lasts as long.
        let left = (claims.exp - now).clamp(0.0, 1e9);
        Some(Duration::from_secs_f64(left))
    }
}
