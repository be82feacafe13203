//! Steps, the recorder, its log and blobs, and exports.
//!
//! Owns what is kept of every call: who, where, what, with which arguments, what came back, when, and how it ended.
//! Never knows a dialect: it is handed steps, and exports read bodies by their shape. Never sees headers, so no secret of a header can be recorded; query strings
//! go through [`mod@redact`]; what stands in bodies is the agent's data and stays.
//!
//! # A step's life
//!
//! ```text
//!  begin ──► intent in the log ──► bytes pass the taps ──► finish ──► outcome in the log: ok, error, aborted, failed
//!                   │                                  └─► dropped ──► outcome in the log: aborted
//!                   └── the server dies ──► read as interrupted, and written so when the log is next opened
//! ```
//!
//! # Looking on
//!
//! [`Recorder::follow`] tells of each step of a trajectory when it begins and when it ends, woken by the writer.
//!
//! # On disk
//!
//! ```text
//! lock                             held by the one server that records here
//! reserve                          space for outcomes of accepted calls when the disk is full
//! logs/TENANT/TRAJECTORY.jsonl     append-only; one JSON line for an intent, one for an outcome, one for a session's begin or
//!                                  end, one for the end
//! blobs/ab/cdef…                   bodies too large for a line, named by their BLAKE3
//! blobs/tmp/                       bodies that are still arriving; emptied at start
//! ```
//!
//! Every line carries the number of the last step begun (`last`) and of the oldest under way (`open`), so that a restart
//! learns both from a log's last line.
//!
//! # What is safe when
//!
//! | event | what is kept |
//! | --- | --- |
//! | the server is killed | everything: each record is one `write(2)` that returned before `begin` or `finish` did |
//! | power is cut | records up to a second old may be missing: a thread calls `fdatasync` on what was written within [`Limits::sync_every`], and at shutdown |
//! | power is cut during a write | a torn last line is skipped on read; the next append first ends it with a line break |
//! | power is cut after a body was kept | blobs are renamed into place whole but not synced one by one; one that lost bytes is noticed when it is read and replaced when the same body is met again |
//! | the disk is full | `begin` fails: no call without its record; outcomes of calls that were accepted, and their bodies, are written into the space of `reserve`, and nothing begins until that is whole again |
//! | a bit changes on disk | every line carries a checksum and that of the line before, every blob is named by its hash: what is not as it was written is not read, and [`Recorder::verify`] names it |

#![forbid(unsafe_code)]

mod blob;
mod error;
mod export;
mod filter;
mod follow;
mod limits;
mod line;
mod log;
mod record;
mod recorder;
mod redact;
pub mod replay;
mod reserve;
mod seal;
mod sync;
mod tap;
mod verdict;

pub use blob::{BlobStore, BlobWriter, FileBlobs};
pub use error::TrajectoryError;
pub use export::{Format, MAX_BRANCHES, MAX_PARSED, tool};
pub use filter::Filter;
pub use follow::{Follow, News};
pub use limits::Limits;
pub use log::{FileLog, StepLog, TrajectoryKey};
pub use record::{
    BlobRef, Body, Counters, FORMAT_VERSION, Failure, Intent, IntentRecord, Kind, NotKept, Origin, Outcome, OutcomeKind,
    OutcomeRecord, PartOfStep, Problem, SessionChange, SessionEvent, Step, StepResult, Summary, Verification, Work,
};
pub use recorder::{OpenPart, OpenStep, Recorder};
pub use redact::{SECRET_QUERY_KEYS, redact, without_userinfo};
pub use tap::Tap;
