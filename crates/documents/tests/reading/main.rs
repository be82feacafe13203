//! Documents built by hand, as small as each format allows.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod hostile;
mod office;
mod pdf;
mod samples;
