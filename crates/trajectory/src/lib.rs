//! Steps, the recorder, its log and blobs, and exports.
//!
//! Owns the record of every call: its origin, target, action, arguments, answer, times, and outcome. Never knows a dialect: it
//! receives steps, and exports read bodies by their shape. Never sees headers, so no secret of a header can be recorded. Query
//! strings go through [`mod@redact`]. Bodies are the agent's data and stay unchanged.
//!
//! # Life of a step
//!
//! ```text
//!  begin ──► intent in the log ──► bytes pass the taps ──► finish ──► outcome in the log: ok, error, aborted, failed
//!                   │                                  └─► dropped ──► outcome in the log: aborted
//!                   └── the server dies ──► read as interrupted, and written so when the log is next opened
//! ```
//!
//! # Followers
//!
//! [`Recorder::follow`] returns each step of a trajectory when it starts and when it ends. The writer wakes it.
//!
//! # On disk
//!
//! ```text
//! lock                             held by the one server that records here
//! reserve                          space for outcomes of accepted calls when the disk is full
//! logs/TENANT/TRAJECTORY.jsonl     append-only; one JSON line for an intent, one for an outcome, one for a session's start or
//!                                  end, one for a decision of the network policy, one for the end
//! logs/TENANT/TRAJECTORY.archived  says that the log is in the archive
//! blobs/ab/cdef…                   bodies too large for a line, named by their BLAKE3
//! blobs/tmp/                       bodies that are still arriving; emptied at start
//! ```
//!
//! Every line has the number of the last step that started (`last`) and of the oldest open step (`open`), so that a restart reads
//! both from a log's last line.
//!
//! # Durability
//!
//! | event | what is kept |
//! | --- | --- |
//! | the server is killed | everything: each record is one `write(2)` that returned before `begin` or `finish` did |
//! | power is cut | records up to a second old may be missing: a thread calls `fdatasync` on written files within [`Limits::sync_every`], and at shutdown |
//! | power is cut during a write | a torn last line is skipped on read; the next append first ends it with a line break |
//! | power is cut after a body was kept | blobs are renamed into place whole but not synced one by one; one that lost bytes is detected when it is read, and replaced when the same body is stored again |
//! | the disk is full | `begin` fails: no call without its record; outcomes of accepted calls, and their bodies, are written into the space of `reserve`, and no step starts until that is whole again |
//! | a bit changes on disk | every line has its checksum and that of the line before, every blob is named by its hash: altered data is not read, and [`Recorder::verify`] names it |

#![forbid(unsafe_code)]

mod archive;
mod blob;
mod class;
mod error;
mod export;
mod filter;
mod follow;
mod limits;
mod line;
mod log;
mod model_step;
mod network;
mod record;
mod recorder;
mod redact;
pub mod replay;
mod reserve;
mod seal;
mod sync;
mod tap;
mod verdict;

pub use archive::{Archive, ArchiveCounters, Content, Listed, Object, ObjectError, Objects, Pieces, Settings as ArchiveSettings};
pub use blob::{BlobStore, BlobWriter, FileBlobs};
pub use class::FailureClass;
pub use error::TrajectoryError;
pub use export::{Annotations, Format, MAX_BRANCHES, MAX_PARSED, tool};
pub use filter::Filter;
pub use follow::{Follow, News};
pub use limits::Limits;
pub use log::{FileLog, StepLog, TrajectoryKey};
pub use model_step::{MODEL_DIALECT, ModelStep};
pub use network::{NetworkEvent, NetworkEvents};
pub use record::{
    BlobRef, Body, Counters, FORMAT_VERSION, Failure, Failures, Intent, IntentRecord, Kind, NotKept, Origin, Outcome,
    OutcomeKind, OutcomeRecord, PartOfStep, Problem, SessionChange, SessionEvent, Step, StepResult, StepState, Summary,
    Verification, Work,
};
pub use recorder::{OpenPart, OpenStep, Recorder};
pub use redact::{SECRET_QUERY_KEYS, redact, without_userinfo};
pub use tap::Tap;
