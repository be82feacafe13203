//! Documents in the editor and as Markdown, from a real guest.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../../../../documents/tests/reading/samples.rs"]
#[allow(dead_code, reason = "shared with the tests of the crate that reads documents")]
mod samples;
#[path = "../standalone/mod.rs"]
mod standalone;

mod fetching;
mod hostile;
mod internet;
mod markdown;
mod views;
