//! AIO's observation of a sandbox: its resource usage, now and over time.
//!
//! ```text
//!  off ──start──► guardrail or capture ──stop, or its time is over──► off, and (capture) a report
//!                     │ a sample each interval, by a separate thread
//!                     └─► a file in the runtime directory ──export──► a report (gzip, JSON lines)
//! ```
//!
//! `capture` records everything, including processes. `guardrail` samples less often and records trouble only. Nothing runs and
//! nothing is stored while it is off.

mod reports;
mod routes;
mod sample;
mod service;
mod session;
mod types;

pub use routes::{ObserveApi, router};
pub use service::Observer;
pub use types::*;
