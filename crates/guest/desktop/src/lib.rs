//! The screen of a sandbox: its own, or that of its VM.
//!
//! Owns the X server with its programs, input, pictures, recordings, and viewers, and QEMU. Never knows the browser: the
//! guest registers it as [`desktop::BrowserWindow`].

#![forbid(unsafe_code)]

pub mod desktop;
pub mod vm;
