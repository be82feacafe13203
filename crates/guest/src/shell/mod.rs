//! AIO's `shell` service: interactive shells that last.
//!
//! A session is one bash on its own terminal (a PTY) and one task that owns both. Everything else sends that task
//! messages, so commands of one session run one after another, each with its own output:
//!
//! ```text
//!            prompt             driver line            mark G              mark S
//!  Booting ─────────► Idle ───────────────► Asking ──────────► Starting ─────────► Running
//!                     ▲ │ ▲                                                           │
//!                     │ │ └───────────────────── prompt ──────────────────────────────┘
//!                     │ └─ typed by a person ─► Typed ─ prompt ─┘
//!                     └─ Clearing (^C), before a command, when somebody has left half a line at the prompt
//! ```
//!
//! Commands are not typed. The task types one short *driver line*; a function of the shell asks with mark G for each
//! piece of the encoded command, reads it from the terminal and prints mark S, and the driver line evaluates the text:
//! so heredocs, megabytes and unterminated quotes are one command like any other. The prompt's own mark, with exit code
//! and directory, ends it. Marks are OSC sequences with a number that only this shell knows. What is between the driver
//! line and mark S is shown to nobody; people at the terminal see the prompt and the command's text instead.
//!
//! When a shell ends (`exit`, `exec`, a killed process), its command ends with it and the session goes on with a new
//! shell in the same directory. When a shell no longer answers, it is killed and replaced.

mod actor;
mod attached;
mod bash;
mod driver;
mod marks;
mod pty;
mod routes;
mod run;
mod service;
mod session;
mod stop;
mod submitted;
mod terminal;
mod transcript;
mod types;
mod viewers;

pub use routes::{ShellApi, router};
pub use service::{ShellError, ShellService};
pub use types::*;
