//! AIO's `proxy` service: a forward proxy for what runs in the sandbox.
//!
//! ```text
//!  command ──http_proxy──► 127.0.0.1:8118 ──► mapped?  ──yes──► its target, as a rule a port of the sandbox
//!                                            │ no
//!                                            ├─ loopback, excluded, or no upstream ──► straight there
//!                                            └─ else ──► the upstream proxy, with its credentials
//! ```
//!
//! Listens from the first configuration on. Owns the rules and the upstream's credentials, which it never tells. Passes
//! bytes of `https` on as they are: it can't see paths in there, and speaks no TLS itself.

mod forward;
mod outgoing;
mod pattern;
mod routes;
mod rules;
mod service;
mod tunnel;
mod upstream;

pub(crate) use forward::end_to_end;
pub use routes::{ProxyApi, router};
pub use service::{ProxyError, ProxyService};
