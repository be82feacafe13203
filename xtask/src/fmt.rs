//! `cargo xtask fmt`.

use crate::command::{self, cargo};
use crate::failure::Outcome;

pub(crate) fn run() -> Outcome {
    command::run(cargo().args(["fmt", "--all"]))
}

/// Changes nothing; fails if a file is not formatted.
pub(crate) fn check() -> Outcome {
    command::run(cargo().args(["fmt", "--all", "--check"]))
}
