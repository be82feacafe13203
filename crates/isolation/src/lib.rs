//! The kernel's isolation, made into safe calls: processes, namespaces, mounts, id maps, cgroups, filters, storage ioctls.
//!
//! Owns every `unsafe` block of the workspace but those of retrieval's one SIMD and mmap module.
//! Never decides policy: what to deny, how much to allow and when to clean up is the caller's.

pub mod descriptors;
pub mod spawner;
