//! AIO's observation of a sandbox: what it uses, now and over time.
//!
//! ```text
//!  off ──start──► guardrail or capture ──stop, or its time is over──► off, and (capture) a report
//!                     │ a sample each interval, by a separate thread
//!                     └─► a file in the runtime directory ──export──► a report (gzip, JSON lines)
//! ```
//!
//! `capture` records what happens, processes too; `guardrail` looks less often, and for what goes wrong. Nothing runs and
//! nothing is kept while it is off.

mod reports;
mod routes;
mod sample;
mod service;
mod session;
mod types;

pub use routes::{ObserveApi, router};
pub use service::Observer;
pub use types::*;
