//! `cargo xtask openapi`: the golden files that others depend on: OpenAPI documents, help texts, error bodies.
//!
//! They are compared by tests with `golden` in their names, which rewrite them when `ARENITE_BLESS` is set.

use clap::Args;

use crate::clients;
use crate::command::{self, cargo};
use crate::failure::Outcome;

#[derive(Debug, Args)]
pub(crate) struct OpenapiArgs {
    /// Rewrite the golden files; check the difference before you commit it
    #[arg(long)]
    bless: bool,
}

pub(crate) fn run(args: &OpenapiArgs) -> Outcome {
    let mut tests = cargo();
    tests.args(["test", "--workspace", "--profile", "checked", "--quiet", "golden"]);
    if args.bless {
        tests.env("ARENITE_BLESS", "1");
    }
    command::run(&mut tests)?;
    // The types of the Python client follow from the documents.
    if args.bless { clients::generate() } else { Ok(()) }
}
