//! The file and sandbox services of a real guest, over HTTP.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod context;
mod editing;
mod guest;
mod hostile;
mod reading;
mod rights;
mod searching;
mod transfer;
mod watching;
mod writing;
