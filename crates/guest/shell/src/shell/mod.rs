//! AIO's `shell` service: interactive shells that keep their state.
//!
//! A session is one shell on its own terminal (a PTY) and one task that owns both. Everything else sends that task
//! messages, so commands of one session run one after another, each with its own output:
//!
//! ```text
//!            prompt             driver line            mark G              mark S
//!  Booting ─────────► Idle ───────────────► Asking ──────────► Starting ─────────► Running
//!                     ▲ │ ▲                                                           │
//!                     │ │ └───────────────────── prompt ──────────────────────────────┘
//!                     │ └─ typed by a person ─► Typed ─ prompt ─┘
//!                     └─ Clearing (^C), before a command, when half a line is left at the prompt
//! ```
//!
//! Commands are not typed. The task types one short *driver line*. A function of the shell requests each piece of the encoded
//! command with mark G, reads it from the terminal and prints mark S. Then the driver line evaluates the text. So heredocs,
//! megabytes and unterminated quotes are one command like any other. The prompt's own mark, with exit code and directory, ends
//! it. Marks are OSC sequences with a number that only this shell knows. Text between the driver line and mark S is never shown;
//! people at the terminal see the prompt and the command's text instead.
//!
//! In an image without bash, `sh` runs the session: see [`posix`].
//!
//! When a shell ends (`exit`, `exec`, a killed process), its command ends with it, and the session goes on with a new shell in
//! the same directory. A shell that does not answer is killed and replaced.

mod actor;
mod attached;
mod driver;
mod marks;
mod posix;
mod pty;
mod routes;
mod run;
mod service;
mod session;
mod start;
mod stop;
mod submitted;
mod terminal;
mod transcript;
mod types;
mod viewers;

pub use routes::{ShellApi, router};
pub use service::{ShellError, ShellService, session_id};
pub use types::*;
