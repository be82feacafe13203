//! Code in a sandbox, with results.
//!
//! Owns Jupyter kernels, Node.js processes, and the lists of installed packages. Never runs code as another user than the sandbox's.

#![forbid(unsafe_code)]

pub mod code;
pub mod jupyter;
pub mod nodejs;
pub mod packages;
