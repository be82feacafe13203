//! Sandboxes made of Linux namespaces on this host: the default engine.
//!
//! ```text
//!  prepare (ahead)                         create                          destroy
//!  ids, network namespace, cgroups,   ──►  layers, root, guest      ──►    kill PID 1, wait, remove all of it
//!  writable layer, PID 1, spawner          (a few milliseconds)
//! ```
//!
//! Sandboxes are not children of the server and outlive it. All that is needed to find one again is in its record, which
//! has a copy in another directory, and every object on the host carries the installation's tag or the sandbox's id. So
//! a start finds all of them; what it does with them is in `recovery`.

mod ahead;
mod build;
mod ca;
mod ceilings;
mod command;
mod data_dir;
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
