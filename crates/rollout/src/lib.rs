//! Runs an agent over many tasks: `arenite rollout run`.
//!
//! Owns the scheduling of tasks, the agents' processes, the journal, and the result files. It never knows what an agent does:
//! it is a command that calls the server itself.
//!
//! # States of a task
//!
//! ```text
//!             ┌────────────── infrastructure failed, and attempts are left: later again ◄─┐
//!             ▼                                                                           │
//!  task ─► waits ─► start in the journal ─► agent runs ─► worker disconnected ─► end in the journal ─► done
//!             ▲                                 │
//!             └── the runner died: lost ◄───────┘
//! ```
//!
//! # Durability
//!
//! | event | what is kept |
//! | --- | --- |
//! | the runner is killed | every attempt with a written end; those in progress run again, once their leftovers are removed |
//! | power is cut | the same: a line is on the disk before the runner continues |
//! | the server dies | attempts that fail because of it count as infrastructure failures; nothing starts until it is back |
//! | a person stops the run | agents are ended, their sandboxes removed; the same command continues the run |

#![forbid(unsafe_code)]

mod agent;
mod attempt;
mod capture;
mod connector;
mod error;
mod explore;
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

pub use connector::{ConnectError, Connector, ConnectorError, ServerStream, tls_connector};
pub use error::{Fault, RolloutError};
pub use explore::{ActionResult, Bounds, Branches, Node, Tree, explore};
pub use outcome::{EX_TEMPFAIL, Status, Trouble};
pub use progress::{Observer, Progress};
pub use runner::{Formats, Options, Stop, run};
pub use server::{Server, encoded};
pub use summary::Summary;
pub use task::{Task, Tasks};
pub use trajectory::{Record, RecordError, ServerRecord};

use jiff::Timestamp;

/// The time from one moment to a later one, in milliseconds.
fn milliseconds(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.as_millisecond().saturating_sub(from.as_millisecond())).unwrap_or(0)
}
