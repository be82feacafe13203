//! AIO's `proxy` service: a forward proxy for programs in the sandbox.
//!
//! ```text
//!  command ──http_proxy──► 127.0.0.1:8118 ──► mapped?  ──yes──► its target, usually a port of the sandbox
//!                                            │ no
//!                                            ├─ loopback, excluded, or no upstream ──► direct
//!                                            └─ else ──► the upstream proxy, with its credentials
//! ```
//!
//! Listens once it is configured. Owns the rules and the upstream's credentials, which it never reveals. Passes the bytes of
//! `https` unchanged: it can't see paths there, and does no TLS itself.

#![forbid(unsafe_code)]

mod forward;
mod outgoing;
mod pattern;
mod routes;
mod rules;
mod service;
mod tunnel;
mod upstream;

pub use forward::end_to_end;
pub use routes::{ProxyApi, router};
pub use service::{ProxyError, ProxyService, ProxySettings};
