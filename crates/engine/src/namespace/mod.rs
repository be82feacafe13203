//! Sandboxes in Linux namespaces on this host: the default engine.
//!
//! ```text
//!  prepare (ahead)                         create                          destroy
//!  ids, network namespace, cgroups,   ──►  layers, root, guest      ──►    kill PID 1, wait, remove all of it
//!  writable layer, PID 1, spawner          (a few milliseconds)
//! ```
//!
//! Sandboxes are not children of the server and outlive it. A sandbox's record, with a copy in another directory, has all that
//! is needed to re-adopt it. Every object on the host carries the installation's tag or the sandbox's id. So a start finds all
//! of them; `recovery` decides what happens to them.

mod ahead;
mod build;
mod ca;
mod ceilings;
mod command;
mod data_dir;
mod death;
mod descriptors;
pub mod dns;
mod engine;
mod host;
mod kvm;
mod lock;
pub mod network;
mod program;
mod record;
mod recover_storage;
mod recovery;
mod reset;
mod restart;
mod slot;
pub mod storage;
mod volumes;

pub use build::{Builder, WithKvm};
pub use engine::NamespaceEngine;
pub use host::NamespaceConfig;
use host::{Host, Role, at};
pub use kvm::{KvmVerdict, VM_LABEL, kvm_opens};
pub use lock::{LockHolder, ServerLock};
pub use record::{RecordedSandbox, RecordsError, recorded_sandboxes};
pub use recover_storage::recover_storage;
pub use reset::Installation;
pub use volumes::Volume;
