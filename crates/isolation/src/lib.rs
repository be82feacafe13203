//! The kernel's isolation as safe calls: processes, namespaces, mounts, id maps, cgroups, filters, storage ioctls.
//!
//! Owns every `unsafe` block of the workspace, except those of retrieval's SIMD and mmap module. Never decides policy: callers
//! decide what to deny, how much to allow and when to clean up.

pub mod btrfs;
mod capabilities;
pub mod cgroup;
pub mod container;
pub mod counters;
pub mod descriptors;
mod devices;
pub mod exit;
mod first_process;
pub mod identity;
pub mod keeper;
pub mod kernel_file;
pub mod launcher;
pub mod loopdev;
pub mod memory;
pub mod mounts;
pub mod netns;
pub mod no_new_privileges;
mod sandbox;
mod seccomp;
pub mod spawner;
pub mod transparent;
pub mod uts;

pub use first_process::{Begin, Bind, FirstProcess, Given, Report};
