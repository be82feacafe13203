//! An SSH agent for clients that never have its keys: it signs logins, and nothing else.
//!
//! ```text
//!  ssh in a sandbox                      here: the server
//!  session-bind (host key, session) ──►  the host key signed this session? ─► the connection is for it
//!  list of identities ───────────────►   the public keys of this moment
//!  sign a login ─────────────────────►   a login of this session, by this key, to a host key of the secret? ─► signature
//!  anything else ────────────────────►   failure
//! ```
//!
//! Owns the agent protocol (draft-miller-ssh-agent), keys of OpenSSH, and what is signed. It never stores a key, opens a connection, or
//! knows sandboxes. All that it reads comes from a sandbox and proves nothing, except for signatures of host keys.

#![forbid(unsafe_code)]

mod error;
mod host_key;
mod login;
mod private;
mod public;
mod rsa;
mod serve;
mod session;
mod wire;

#[cfg(test)]
mod tests;

pub use error::KeyError;
pub use host_key::HostKey;
pub use private::PrivateKey;
pub use public::PublicKey;
pub use serve::serve;
pub use session::{AgentKey, Keyring, Outcome, SignDecision};
