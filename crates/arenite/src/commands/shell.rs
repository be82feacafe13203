//! `completions` and `man`: what shells and manual pages need of the command line.

use std::fs;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::cli::{Cli, CompletionsArgs, ManArgs};
use crate::failure::{Attempt, Outcome};
use crate::output;

pub(crate) fn completions(args: &CompletionsArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "arenite", &mut script);
    output::bytes(&script);
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &ManArgs) -> Outcome {
    let dir = &args.dir;
    fs::create_dir_all(dir).attempt(|| format!("could not create {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir).attempt(|| format!("could not write manual pages to {}", dir.display()))?;
    Ok(ExitCode::SUCCESS)
}
