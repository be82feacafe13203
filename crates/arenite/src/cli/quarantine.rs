//! Arguments of `arenite quarantine`.

use arenite_model::{SandboxId, SandboxName};
use clap::{Args, Subcommand};

use super::{Format, ListOutput, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum QuarantineCommand {
    /// List quarantined sandboxes
    Ls(QuarantineLsArgs),
    /// Make a quarantined sandbox an ordinary one
    Adopt(QuarantineAdoptArgs),
    /// Remove quarantined sandboxes, with their processes and files
    Rm(QuarantineRmArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
A server start quarantines sandboxes that it can't explain: their records are unreadable, or no row names them. They stay unchanged
until they are adopted or removed.

Examples:
  arenite quarantine ls
  arenite quarantine ls --json | jq -r '.quarantine[].id'")]
pub(crate) struct QuarantineLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
With a readable record, the sandbox is restored. Without one, its processes end and it becomes a lost sandbox with its disk.

Examples:
  arenite quarantine adopt s4k2m9x0qz7a
  arenite quarantine adopt s4k2m9x0qz7a rescued        if another sandbox has its name")]
pub(crate) struct QuarantineAdoptArgs {
    /// Id of the sandbox
    pub(crate) id: SandboxId,
    /// Name [default: its previous name, else its id]
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
    /// Ids of the sandboxes
    #[arg(required = true)]
    pub(crate) ids: Vec<SandboxId>,
    /// Don't ask for confirmation
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
