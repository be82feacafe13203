//! AIO's `bash` service: every command is a new process with its own standard output and standard error.
//!
//! ```text
//!  exec ──► running ──exit──────────────► completed
//!              │ ├──hard_timeout, KILL──► timed_out
//!              │ └──kill, exit──────────► killed
//!              └──timeout: only the HTTP call ends, with status `running`
//! ```
//!
//! A session is a name for a default directory, an optional script to source, and the last commands with their outputs. It has no
//! process while no command runs. Commands of one session run concurrently.

mod command;
mod log;
mod routes;
mod service;
mod session;
mod types;

pub use routes::{BashApi, router};
pub use service::{BashError, BashService};
pub use types::*;
