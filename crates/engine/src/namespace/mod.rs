//! Sandboxes made of Linux namespaces on this host: the default engine.
//!
//! ```text
//!  prepare (ahead)                         create                          destroy
//!  ids, network namespace, cgroups,   ──►  layers, root, guest      ──►    kill PID 1, wait, remove all of it
//!  writable layer, PID 1, spawner          (a few milliseconds)
//! ```
//!
//! Sandboxes are not children of the server and outlive it. All that is needed to find one again is in its record under
//! `run/`, and every object on the host carries the installation's tag or the sandbox's id, so that what was cut off in the
//! middle is found and removed at the next start.

mod ahead;
mod build;
mod ca;
mod ceilings;
mod command;
mod data_dir;
pub mod dns;
mod engine;
mod host;
mod kvm;
mod lock;
pub mod network;
mod program;
mod record;
mod slot;
pub mod storage;

pub use build::{Builder, WithKvm};
pub use engine::NamespaceEngine;
pub use host::NamespaceConfig;
use host::{Host, Role, at};
pub use kvm::{KvmVerdict, MACHINE_LABEL, kvm_opens};
pub use lock::{LockHolder, ServerLock};
