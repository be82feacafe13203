//! Tenants' sandboxes: their names, states, times and admission, and the store that remembers them.
//!
//! Owns the state machine of every sandbox, the store (SQLite), leases, the reaper, admission, crash recovery and
//! templates. Never speaks a dialect, and never touches a process or a disk itself: it asks the engine.
//!
//! # States
//!
//! ```text
//!            create            pause, or idle
//! (nothing) ───────► creating ─────► running ◄────► paused
//!     ▲                 │               │   resume, or a lease wakes it
//!     │    it fails     │               │             │
//!     ├─────────────────┘               ├──► failed: its guest ended by itself ────────────► running, when started again
//!     │                                 ├──► lost: gone after a start, as when the host was rebooted ──► the same
//!     │                                 ▼
//!     └───────────────────────────── deleting ◄── from every state: asked, life time up, idle, kept long enough
//! ```
//!
//! * **creating**: in the store, under the id that the engine reserved, before the engine makes anything. A create that
//!   fails takes its row back: whoever asked gets the error, and the name is free again.
//! * **running**: can be leased. A lease is an atomic count on the entry, so it costs no lock that a change would hold.
//! * **paused**: frozen. The next lease wakes it, once for all who wait.
//! * **deleting**: in the store before the engine destroys anything; the row goes last. A destroy that fails is tried
//!   again every ten seconds. A store that can't be written to does not keep a sandbox: its row is removed later.
//! * **failed**, **lost**: no processes, but the disk and the reason, until started again, until deleted, until the life time
//!   is up, or for [`ControlConfig::lost_keep`]. The next call removes a `default` in such a state and creates another.
//!
//! One lock for each sandbox owns all changes of its state, and each change runs as a separate task, so that a client
//! that leaves never leaves one half done. Readers get snapshots and take no such lock.
//!
//! # After a crash
//!
//! [`Control::start`] hands all settled rows to the engine, which finds those sandboxes again. Rows still creating or
//! deleting are cleaned up and removed. Whatever the engine did not find is lost. Idle time restarts with the server,
//! since nobody could call while it was down; life time does not.
//!
//! The engine keeps a memo of each row too (`memo`). Its sandboxes that no row names get their rows back from these, so a
//! store that is missing, empty or older costs no sandbox; one that can't be read is set aside (`store::unreadable`). What
//! neither explains is in quarantine (`quarantine`).
//!
//! # Made ahead
//!
//! For specs that the configuration or a template names, whole sandboxes are kept ready (`pool`). A create whose spec
//! asks for the same image, resources and network takes one, which then becomes what was asked for. Until then it is in
//! no row, belongs to nobody, and does not survive the server.
//!
//! # Time
//!
//! One task sleeps until the next deadline of any sandbox. A sandbox with a lease is not idle.

#![forbid(unsafe_code)]

mod admission;
mod clock;
mod config;
mod control;
mod core;
mod create;
mod error;
#[cfg(any(test, feature = "fake-engine"))]
pub mod fake_engine;
mod health;
mod lease;
mod life;
mod memo;
mod overlay;
mod pool;
mod quarantine;
mod reaper;
mod recovery;
mod registry;
mod sandbox;
mod shutdown_hooks;
pub mod store;
mod template;

pub use config::{ControlConfig, Limits};
pub use control::Control;
pub use error::ControlError;
pub use lease::Lease;
pub use overlay::{ResourcesOverlay, SpecOverlay};
pub use quarantine::QuarantinedSandbox;
pub use sandbox::{Change, Counters, CreateRequest, Deadline, DeadlineAction, DeadlineReason, Sandbox};
pub use template::Template;
