//! Tenants' sandboxes: names, states, timeouts, admission, and the store.
//!
//! Owns the state machine of every sandbox, the store (SQLite or Postgres), leases, the reaper, admission, crash recovery and templates. It
//! knows no dialect and touches no process or disk itself: it calls the engine.
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
//!     └───────────────────────────── deleting ◄── from every state: asked, lifetime up, idle, kept long enough
//! ```
//!
//! * **creating**: in the store, under the id that the engine reserved, before the engine creates anything. A failed create
//!   removes its row: the client gets the error, and the name is free again.
//! * **running**: can be leased. A lease is an atomic count on the entry, so it needs no lock that a change would hold.
//! * **paused**: frozen. The next lease wakes it, once for all waiting callers.
//! * **deleting**: in the store before the engine destroys anything; the row is removed last. A failed destroy is retried every
//!   ten seconds. A store that can't be written does not keep a sandbox: its row is removed later.
//! * **failed**, **lost**: no processes, but the disk and the reason, until started again, until deleted, until the lifetime
//!   is up, or for [`ControlConfig::lost_keep`]. The next call removes a `default` in such a state and creates another.
//!
//! One lock for each sandbox owns all changes of its state. Each change runs as a separate task, so a caller that leaves
//! never leaves one half done. Most leases come straight from a client's connection, and they wake sandboxes and create
//! `default`. Readers get snapshots and take no such lock.
//!
//! Each change is an event ([`Event`]) in a bounded history, which followers and webhooks read.
//!
//! # Changes
//!
//! Labels and times can change in every settled state ([`SandboxChange`]). A change is made under the same lock as the end of a
//! lifetime, so it either comes first, or finds no sandbox any more. The row is written first, then the engine's copy of it.
//!
//! # Tenants
//!
//! Every operation names the tenant that it is for: names are unique within a tenant, and another tenant's sandbox is not found.
//! Keys, roles and the audit log are in [`tenants`], the addresses that get events in [`webhooks`].
//!
//! # After a crash
//!
//! [`Control::start`] passes all settled rows to the engine, which re-adopts those sandboxes. Rows that are still creating or
//! deleting are cleaned up and removed. Sandboxes that the engine did not find are lost. Idle time restarts with the server,
//! since no client could call while it was down; lifetime does not.
//!
//! The engine also keeps a memo of each row (`memo`). Sandboxes without a row get their rows back from these, so a missing,
//! empty or older store costs no sandbox. A store that can't be read is set aside (`store::unreadable`). What neither explains
//! is in quarantine (`quarantine`).
//!
//! # Images
//!
//! A create that names an image which is not here waits for a pull of it ([`images`]), before it takes anything of the host.
//!
//! # Pools
//!
//! For specs that the configuration or a template names, complete sandboxes are kept ready (`pool`). A create with the same
//! image, resources and network takes one and applies the rest of the spec to it. Until then it has no row and no tenant, and
//! does not outlive the server.
//!
//! # Quotas and usage
//!
//! A sandbox's row is only added within its tenant's limits ([`tenants::TenantLimits`]). What sandboxes use is sampled into the
//! store ([`usage`]).
//!
//! # Idempotency keys
//!
//! A create with a key leaves a record of it in the transaction of its first row, and its answer when it is done
//! (`idempotency`). A repeat waits for a create with the same key that is in progress, and gets the same answer. After a crash, it
//! continues where the create stopped.
//!
//! # Groups
//!
//! Sandboxes of a group end with it: when it is deleted, or when its owner stops to renew its lease (`groups`).
//!
//! # Volumes
//!
//! A tenant's storage that outlives sandboxes, and that several of them mount (`volumes`).
//!
//! # Annotations
//!
//! Notes, labels and ratings of trajectories ([`annotations`]), which the recorder keeps.
//!
//! # Models
//!
//! Routes of a tenant to models, and what is used of their budgets ([`models`]). The gateway makes the calls.
//!
//! # Children
//!
//! An agent inside a sandbox with a budget creates others, which end with it (`children`).
//!
//! # Time
//!
//! One task sleeps until the next deadline of any sandbox. A sandbox with a lease is not idle.

#![forbid(unsafe_code)]

mod admission;
pub mod annotations;
mod change;
mod children;
mod clock;
mod config;
mod control;
mod counters;
mod create;
mod error;
mod events;
#[cfg(any(test, feature = "fake-engine"))]
pub mod fake_cluster;
#[cfg(any(test, feature = "fake-engine"))]
pub mod fake_engine;
mod fork_sessions;
pub mod gone;
mod groups;
mod health;
mod idempotency;
pub mod images;
mod lease;
mod life;
mod memo;
pub mod models;
mod network;
pub mod nodes;
mod overlay;
mod pool;
mod pressure;
mod quarantine;
mod reaper;
mod recovery;
mod registry;
mod sandbox;
pub mod secrets;
mod select;
mod shutdown_hooks;
mod states;
pub mod store;
mod template;
pub mod tenants;
pub mod usage;
mod volumes;
pub mod webhooks;

pub use change::{SandboxChange, TimeoutChange, check_labels};
pub use children::ChildBudget;
pub use config::{ControlConfig, Limits};
pub use control::Control;
#[cfg(any(test, feature = "fake-engine"))]
pub use counters::InProgress;
pub use counters::MeasuredSandbox;
pub use error::ControlError;
pub use events::{Event, EventId, EventKind, EventReader, MissedEvents, NoEvent};
pub use groups::Group;
pub use idempotency::{Answered, HeldKey, KeyHold};
pub use images::{CreateClient, PullProgress};
pub use lease::Lease;
pub use network::{DefaultNetwork, TenantNetwork};
pub use overlay::{ResourcesOverlay, SpecOverlay};
pub use quarantine::QuarantinedSandbox;
pub use sandbox::{
    Counters, CreateRequest, Deadline, DeadlineAction, DeadlineReason, ForkStart, Keyed, Provenance, Sandbox, StartState,
};
pub use select::{ListOrder, ListPosition};
pub use states::{ReceivedState, SentState, Snapshot, SnapshotExport, SnapshotImport, SnapshotPlace, SnapshotRequest};
pub use template::Template;
pub use volumes::{NewVolume, Volume, VolumeChange, VolumeFacts};
