//! `cargo xtask soak`: long loads, by the end-to-end tests that are marked for it.

use clap::Args;

use crate::failure::Outcome;
use crate::{host, test};

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// What follows goes to pytest
    #[arg(last = true)]
    pytest: Vec<String>,
}

pub(crate) fn run(args: &SoakArgs) -> Outcome {
    host::must_be_root("soak")?;
    host::prepare(&[host::TO_RUN, host::TO_TEST])?;
    let soak = ["soak", "-m", "soak"].map(str::to_owned);
    test::end_to_end(&soak.into_iter().chain(args.pytest.iter().cloned()).collect::<Vec<_>>())
}
