//! What every service in a sandbox needs.
//!
//! Owns the configuration, users, processes, the threads that touch files as a user, sessions, connections to the outside, and the
//! conventions of HTTP. Never knows a service.

#![forbid(unsafe_code)]

pub mod dial;
pub mod http;
pub mod process;
pub mod programs;
pub mod requirements;
mod runtime;
pub mod saved;
pub mod sessions;
pub mod shells;
pub mod users;
pub mod workers;

pub use runtime::Runtime;

/// Waits for a deadline; forever without one.
pub async fn until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// An id for sessions, commands and similar: unique in the guest, safe in a URL.
pub fn random_id() -> String {
    // The kernel's generator does not fail after boot; if it did, equal ids would be a minor problem.
    format!("{:016x}", getrandom::u64().unwrap_or_default())
}
