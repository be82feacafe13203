//! The kernel's isolation, made into safe calls: processes, namespaces, mounts, id maps, cgroups, filters, storage ioctls.
//!
//! Owns every `unsafe` block of the workspace but those of retrieval's one SIMD and mmap module.
//! Never decides policy: what to deny, how much to allow and when to clean up is the caller's.

pub mod btrfs;
mod capabilities;
pub mod cgroup;
pub mod counters;
pub mod descriptors;
mod devices;
pub mod identity;
pub mod launcher;
pub mod loopdev;
pub mod memory;
pub mod mounts;
pub mod netns;
mod sandbox;
mod seccomp;
pub mod spawner;
pub mod uts;

pub use sandbox::{Begin, Bind, Report};
