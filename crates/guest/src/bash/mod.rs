//! AIO's `bash` service: every command is a new process with its own standard output and standard error.
//!
//! ```text
//!  exec ──► running ──exit──────────────► completed
//!              │ ├──hard_timeout, KILL──► timed_out
//!              │ └──kill, exit──────────► killed
//!              └──timeout: only the HTTP call ends, with status `running`
//! ```
//!
//! A session is a name for a default directory, an optional script to source, and the last commands with their
//! outputs; no process belongs to it while nothing runs. Commands of one session run side by side.

mod command;
mod log;
mod routes;
mod service;
mod session;
mod types;

pub use routes::{BashApi, router};
pub use service::{BashError, BashService};
pub use types::*;
