//! Authentication: an API key, a signed token, a ticket, or a browser's session.
//!
//! ```text
//!  host and origin checked ──► identify ──┬── allowed: credentials are taken off the request ──► owner of the path
//!                                         └── refused: 401, or the page to sign in on
//! ```
//!
//! While neither a key nor a token's key is configured, and the server keeps no tenants, no credentials are required.
//!
//! A credential identifies a `Principal`: a tenant, and the rights of a key or of a tenant's user with a token. The configured key, and
//! tokens of a server without tenants, identify the operator.

mod grants;
mod presented;
mod rights;
mod sign_in;
mod tickets;
mod token;
mod until_ended;
mod users;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use thiserror::Error;

use crate::gateway::Gateway;
use token::TokenKey;

pub(crate) use grants::{Grant, Grants, Scope};
pub(crate) use presented::{COOKIE_NAME, Credential, Identity, ended_key, identify, take_off, unauthorized};
pub(crate) use rights::{Need, check_rights, refuse_tickets};
pub(crate) use sign_in::{SignIn, enter, page, sign_in, sign_out};
pub(crate) use tickets::{AuthApi, authenticate, create_ticket};
pub(crate) use until_ended::until_ended;
pub use users::TokenRules;
pub(crate) use users::Users;

/// Default lifetime of a ticket.
pub const TICKET_TTL: Duration = Duration::from_secs(30);
/// How long a browser stays signed in.
pub(crate) const SESSION_TTL: Duration = Duration::from_secs(12 * 3600);
/// Longest key, in bytes: it must fit into a header beside others.
const MAX_KEY_BYTES: usize = 1024;

/// An error in the configured credentials.
#[derive(Debug, Error)]
pub enum AuthError {
    #[error("the API key is empty")]
    EmptyKey,
    #[error("the API key has {0} bytes; the most is {MAX_KEY_BYTES}")]
    LongKey(usize),
    #[error("the API key has characters besides visible ASCII, so no header could carry it")]
    UnsendableKey,
    #[error("the public key for tokens is not base64 of a PEM file: {0}")]
    TokenKey(String),
    #[error("the keys for tokens in {} can't be used: {reason}", path.display())]
    Jwks { path: PathBuf, reason: String },
}

/// The credentials that callers must present. The default requires none.
#[derive(Clone, Default)]
pub struct Authentication {
    /// SHA-256 of the key. All digests have the same length, so a comparison reveals nothing.
    key: Option<[u8; 32]>,
    token: Option<TokenKey>,
    /// Tenants' users.
    users: Option<Arc<Users>>,
    ticket_ttl: Option<Duration>,
}

impl std::fmt::Debug for Authentication {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields = (self.key.is_some(), self.token.is_some(), self.ticket_ttl);
        write!(f, "Authentication {{ key: {}, token: {}, ticket_ttl: {:?} }}", fields.0, fields.1, fields.2)
    }
}

impl Authentication {
    /// `jwt_public_key` is base64 of an RSA key's PEM file.
    pub fn new(api_key: Option<&str>, jwt_public_key: Option<&str>, ticket_ttl: Duration) -> Result<Self, AuthError> {
        if let Some(key) = api_key {
            match key {
                "" => return Err(AuthError::EmptyKey),
                key if key.len() > MAX_KEY_BYTES => return Err(AuthError::LongKey(key.len())),
                key if !key.bytes().all(|b| b.is_ascii_graphic()) => return Err(AuthError::UnsendableKey),
                _ => {}
            }
        }
        let token = jwt_public_key.map(TokenKey::new).transpose().map_err(AuthError::TokenKey)?;
        Ok(Self { key: api_key.map(digest), token, users: None, ticket_ttl: Some(ticket_ttl) })
    }

    /// The same with users of tenants, who have tokens of an issuer.
    pub fn with_users(self, rules: TokenRules) -> Result<Self, AuthError> {
        Ok(Self { users: Some(Arc::new(Users::open(rules)?)), ..self })
    }

    pub(crate) fn users(&self) -> Option<&Arc<Users>> {
        self.users.as_ref()
    }

    /// Whether callers need credentials.
    pub fn is_required(&self) -> bool {
        self.key.is_some() || self.token.is_some()
    }

    pub(crate) fn ticket_ttl(&self) -> Duration {
        self.ticket_ttl.unwrap_or(TICKET_TTL)
    }

    /// Takes the same time for a wrong key as for the right one.
    fn is_key(&self, given: &str) -> bool {
        self.key.is_some_and(|key| key.ct_eq(&digest(given)).into())
    }

    /// How long a token is valid.
    fn check_token(&self, given: &str) -> Option<Duration> {
        self.token.as_ref()?.check(given)
    }
}

/// The caller that a key or a token identifies, and until when it is valid.
fn check(gateway: &Gateway, given: &str, shown: Credential) -> Option<Identity> {
    let auth = &gateway.config.auth;
    let known = |principal, left: Option<Duration>| {
        let until = left.and_then(|left| Instant::now().checked_add(left));
        Some(Identity { principal, until, shown, by_ticket: false })
    };
    if auth.is_key(given) {
        return known(presented::operator(), None);
    }
    match gateway.control.tenants() {
        // Tokens name no tenant.
        None => known(presented::operator(), Some(auth.check_token(given)?)),
        Some(tenants) => {
            let user = || auth.users.as_ref()?.identify(given).filter(|user| tenants.is_accepted(user));
            let principal = tenants.authenticate(given).ok().or_else(user)?;
            let left = tenants.remaining(&principal);
            known(principal, left)
        }
    }
}

fn digest(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_could_not_work_are_refused() {
        for bad in ["", "with space", "ünicode", "line\nbreak", &"x".repeat(1025)] {
            assert!(Authentication::new(Some(bad), None, TICKET_TTL).is_err(), "{bad:?}");
        }
        assert!(!Authentication::new(None, None, TICKET_TTL).unwrap().is_required());
        let auth = Authentication::new(Some("the-key"), None, TICKET_TTL).unwrap();
        assert!(auth.is_required() && auth.is_key("the-key"));
        for wrong in ["", "the-ke", "the-key ", "the-kez"] {
            assert!(!auth.is_key(wrong), "{wrong:?}");
        }
        assert!(!Authentication::default().is_key(""));
    }
}
