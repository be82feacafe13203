//! Commands in a sandbox.
//!
//! Owns shell sessions with a terminal, and bash sessions with separate streams. Never reads or writes files for a client.

#![forbid(unsafe_code)]

pub mod bash;
pub mod carry;
pub mod shell;
