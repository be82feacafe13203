//! Workers and their sessions, tools by name, batches, backends and plugins: what AgentFlow's dialect calls.
//!
//! Owns which session a call works in, how long it lives, and how calls are run, bounded and recorded. Never creates a sandbox
//! itself, and never speaks HTTP to clients: the gateway does both.
//!
//! # Path of a call
//!
//! ```text
//!  execute ──► tool found by name ──► session: the worker's own, else one for this call ──► intent in the worker's
//!  trajectory ──► backend ──► outcome ──► answer
//! ```
//!
//! # What waits for what
//!
//! A worker waits until its sandbox is created, and a session's callers wait until the session is ready. No worker ever waits for
//! another: the table of workers is locked only for lookups.

#![forbid(unsafe_code)]

pub mod answer;
mod backend;
pub mod backends;
mod batch;
mod catalog;
pub mod config;
mod error;
mod execute;
mod keep;
mod names;
pub mod plugin;
mod retry;
mod sandboxes;
mod session;
mod store;
mod synthesis;
mod worker;

pub use backend::{Backend, ToolCall, ToolSpec};
pub use batch::Batch;
pub use catalog::{Listed, ToolInfo};
pub use error::SynthesisError;
pub use execute::{Action, Done, Execute};
pub use keep::Keep;
pub use names::trajectory_id;
pub use plugin::remove_plugins;
pub use retry::GRACE;
pub use sandboxes::{Caller, GuestAnswer, GuestRequest, SandboxHandle, SandboxRequest, Sandboxes};
pub use session::{Facts, Session, SessionInfo, SessionStatus};
pub use synthesis::{Create, Created, Setup, Synthesis, WorkerInfo};
