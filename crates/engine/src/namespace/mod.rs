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

pub(crate) mod ahead;
mod automatic;
pub mod buckets;
mod build;
mod ca;
mod ceilings;
mod command;
pub(crate) mod compare;
mod copies;
pub(crate) mod data_dir;
mod death;
pub(crate) mod descriptors;
pub mod dns;
pub(crate) mod engine;
mod exchange;
mod fingerprint;
pub(crate) mod guest_calls;
pub(crate) mod gvisor;
pub(crate) mod host;
mod kept;
pub(crate) mod kvm;
pub(crate) mod lock;
pub mod network;
pub(crate) mod program;
pub(crate) mod record;
mod recover_storage;
mod recovery;
mod remount;
mod reset;
mod restart;
mod rollback;
pub(crate) mod slot;
mod states;
mod stop;
pub mod storage;
pub(crate) mod volumes;

pub use buckets::find_rclone;
pub use build::{Builder, SandboxSteps, WithKvm};
pub use engine::NamespaceEngine;
pub use gvisor::find_runsc;
pub use host::NamespaceConfig;
use host::{Host, Role, at};
pub use kvm::{KvmVerdict, VM_LABEL, kvm_opens};
pub use lock::{LockHolder, ServerLock};
pub use record::{RecordedSandbox, RecordsError, has_sandboxes, recorded_sandboxes};
pub use recover_storage::recover_storage;
pub use reset::Installation;
pub use volumes::Volume;
