//! `quarantine`: what can be said of sandboxes that a start could not explain.

use arenite_model::{SandboxId, SandboxName};
use clap::{Args, Subcommand};

use super::{Format, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum QuarantineCommand {
    /// List sandboxes in quarantine
    Ls(QuarantineLsArgs),
    /// Make a sandbox in quarantine an ordinary one
    Adopt(QuarantineAdoptArgs),
    /// Remove sandboxes in quarantine, with their processes and files
    Rm(QuarantineRmArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
A start puts sandboxes into quarantine that it can't explain: their records can't be read, or no row names them. They go on as they
are until they are adopted or removed.

Examples:
  arenite quarantine ls
  arenite quarantine ls --json | jq -r '.quarantine[].id'")]
pub(crate) struct QuarantineLsArgs {
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
With a record that can be read it is again what it was. Without one its processes end, and it is a lost sandbox with its disk.

Examples:
  arenite quarantine adopt s4k2m9x0qz7a
  arenite quarantine adopt s4k2m9x0qz7a rescued        when another sandbox has its name")]
pub(crate) struct QuarantineAdoptArgs {
    /// Its id
    pub(crate) id: SandboxId,
    /// Its name [default: the one it had, else its id]
    pub(crate) name: Option<SandboxName>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite quarantine rm s4k2m9x0qz7a
  arenite quarantine rm s4k2m9x0qz7a --force       in scripts")]
pub(crate) struct QuarantineRmArgs {
    /// Their ids
    #[arg(required = true)]
    pub(crate) ids: Vec<SandboxId>,
    /// Ask nothing
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
