//! Runs an agent over many tasks: `arenite rollout run`.
//!
//! Owns which task is run when, the agents' processes, the journal of what was done, and the files of results. Never knows what an
//! agent does: it is a command, which speaks with the server itself.
//!
//! # A task's way
//!
//! ```text
//!             ┌────────────── infrastructure failed, and attempts are left: later again ◄─┐
//!             ▼                                                                           │
//!  task ─► waits ─► start in the journal ─► agent runs ─► worker disconnected ─► end in the journal ─► done
//!             ▲                                 │
//!             └── the runner died: lost ◄───────┘
//! ```
//!
//! # What is safe when
//!
//! | event | what is kept |
//! | --- | --- |
//! | the runner is killed | every attempt whose end was written; those under way are run again, once what they left is removed |
//! | power is cut | the same: a line is on the disk before the runner goes on |
//! | the server dies | attempts that fail of it count as the infrastructure's; nothing is started until it is back |
//! | a person stops the run | agents are ended, their sandboxes removed; the same command goes on |

#![forbid(unsafe_code)]

mod agent;
mod attempt;
mod capture;
mod error;
mod journal;
mod outcome;
mod progress;
mod ramp;
mod recovery;
mod results;
mod runner;
mod scheduler;
mod server;
mod summary;
mod table;
mod task;
mod trajectory;

pub use error::{Fault, RolloutError};
pub use outcome::{EX_TEMPFAIL, Status, Trouble};
pub use progress::{Observer, Progress};
pub use runner::{Formats, Options, Stop, run};
pub use server::Server;
pub use summary::Summary;
pub use task::{Task, Tasks};
pub use trajectory::{Record, RecordError, ServerRecord};

use jiff::Timestamp;

/// The time from one moment to a later one, in milliseconds.
fn milliseconds(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_millisecond().saturating_sub(from.as_millisecond())).unwrap_or(0)
}
