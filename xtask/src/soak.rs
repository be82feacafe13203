//! `cargo xtask soak`: long loads, by the model test of the control plane and the end-to-end tests that are marked for it.

use clap::Args;

use crate::binary::Profile;
use crate::command::{self, cargo};
use crate::failure::Outcome;
use crate::host;
use crate::test::Prepared;

#[derive(Debug, Args)]
pub(crate) struct SoakArgs {
    /// Steps of the model test on each database; 0 leaves it out
    #[arg(long, default_value_t = 20_000, value_name = "N")]
    model_steps: usize,
    /// Arguments for pytest
    #[arg(last = true)]
    pytest: Vec<String>,
}

pub(crate) fn run(args: &SoakArgs) -> Outcome {
    host::must_be_root("soak")?;
    host::prepare(&[host::TO_BUILD, host::TO_RUN, host::TO_TEST])?;
    if args.model_steps > 0 {
        let test = ["test", "--workspace", "--profile", "checked", "--test", "model", "--", "--nocapture"];
        command::run(
            cargo().args(test).env("ARENITE_MODEL_STEPS", args.model_steps.to_string()).env("ARENITE_MODEL_SEED", "random"),
        )?;
    }
    let soak = ["vm", "retrieval", "agentflow", "isolation", "state", "soak", "-m", "soak or load"].map(str::to_owned);
    let prepared = Prepared::make(Profile::Release)?;
    command::run(prepared.pytest(&[&soak[..], &args.pytest].concat()).env("ARENITE_TEST_LOAD", "full"))
}
