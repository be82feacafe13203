//! `cargo xtask soak`: long loads, by the end-to-end tests that are marked for it.

use clap::Args;

use crate::binary::Profile;
use crate::failure::Outcome;
use crate::test::Prepared;
use crate::{command, host};

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// Arguments for pytest
    #[arg(last = true)]
    pytest: Vec<String>,
}

pub(crate) fn run(args: &SoakArgs) -> Outcome {
    host::must_be_root("soak")?;
    host::prepare(&[host::TO_BUILD, host::TO_RUN, host::TO_TEST])?;
    let soak = ["vm", "retrieval", "soak", "-m", "soak"].map(str::to_owned);
    let prepared = Prepared::make(Profile::Release)?;
    command::run(&mut prepared.pytest(&[&soak[..], &args.pytest].concat()))
}
