//! Arguments of `arenite checkpoint`, `history`, `rollback`, `diff`, `fork` and `snapshot`.

use std::path::PathBuf;

use arenite_model::{GroupName, SandboxName, SnapshotName};
use clap::{Args, Subcommand};

use super::{Format, ListOutput, Output, Server};
use crate::config::values::Span;

#[derive(Debug, Args)]
#[command(after_help = "\
A checkpoint takes milliseconds at any size of the disk, and no space until files change. The sandbox is frozen for that moment.

Examples:
  arenite checkpoint demo
  arenite checkpoint demo --note 'before the upgrade'
  arenite checkpoint demo --keep-processes       with its processes (tiers gvisor, machine)
  arenite rollback demo 1")]
pub(crate) struct CheckpointArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// Comment
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Keep the processes, too: a rollback to it continues them. Only with the tiers gvisor and machine
    #[arg(long)]
    pub(crate) keep_processes: bool,
    /// Remove this checkpoint instead: its number or id
    #[arg(long, value_name = "CHECKPOINT", conflicts_with_all = ["note", "keep_processes"])]
    pub(crate) rm: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The sandbox keeps its name and its id. All its processes end. If the checkpoint was sealed with --keep-processes, its processes go
on; otherwise the main command starts again.

Examples:
  arenite rollback demo 3
  arenite rollback demo beginning
  arenite rollback demo 3 --no-restart           without the main command")]
pub(crate) struct RollbackArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// A checkpoint's number or id, or beginning
    pub(crate) to: String,
    /// Start the main command again, also if the checkpoint has processes
    #[arg(long, conflicts_with = "no_restart")]
    pub(crate) restart: bool,
    /// Don't start the main command again
    #[arg(long)]
    pub(crate) no_restart: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
States are a checkpoint's number or id, 'beginning' and 'current'. Lines start with + (added), - (removed), ~ (changed) or
= (only mode, owner or attributes changed).

Examples:
  arenite diff demo                    what changed since the sandbox was created
  arenite diff demo 2                  what changed since checkpoint 2
  arenite diff demo 2 3")]
pub(crate) struct DiffArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// The state before
    #[arg(default_value = "beginning")]
    pub(crate) before: String,
    /// The state after
    #[arg(default_value = "current")]
    pub(crate) after: String,
    /// Maximum number of paths
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each fork has a copy of the disk that takes no space until files change, and its own name, address and processes. The main
command of the sandbox starts in each.

Examples:
  arenite fork demo
  arenite fork demo --count 8 --name try
  arenite fork demo --count 8 --min 4 --timeout 10m
  arenite fork demo --keep-processes             each continues the processes (tiers gvisor, machine)")]
pub(crate) struct ForkArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) count: u32,
    /// Create none if fewer than this number can be created [default: all]
    #[arg(long, value_name = "N")]
    pub(crate) min: Option<u32>,
    /// Start as this checkpoint [default: the disk as it is]
    #[arg(long = "from", value_name = "CHECKPOINT")]
    pub(crate) from_checkpoint: Option<String>,
    /// Name them NAME-0 and so on
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<SandboxName>,
    /// Continue the processes in each, instead of starting the main command. Only with the tiers gvisor and machine
    #[arg(long)]
    pub(crate) keep_processes: bool,
    /// Environment variable, added to the sandbox's; without =VALUE, pass the current value
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Label, added to the sandbox's
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// Delete each after this time
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Group with which they end
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupName>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Seal the disk of a sandbox under a name
    Create(SnapshotCreateArgs),
    /// List snapshots
    Ls(SnapshotLsArgs),
    /// Describe a snapshot
    Inspect(SnapshotInspectArgs),
    /// List a directory of a snapshot
    Files(SnapshotFilesArgs),
    /// Copy a file out of a snapshot
    Cp(SnapshotCpArgs),
    /// Write a snapshot with its image to a file
    Export(SnapshotExportArgs),
    /// Add the snapshot of a file that was exported
    Import(SnapshotImportArgs),
    /// Remove snapshots; sandboxes that were created from them stay
    Rm(SnapshotRmArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite snapshot create demo ready
  arenite create copy --snapshot ready")]
pub(crate) struct SnapshotCreateArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// Name: lower-case letters, digits and inner hyphens
    pub(crate) name: SnapshotName,
    /// Comment
    #[arg(long, value_name = "TEXT")]
    pub(crate) note: Option<String>,
    /// Keep the processes, too: creates from it continue them. Only with the tiers gvisor and machine
    #[arg(long)]
    pub(crate) keep_processes: bool,
    /// Label
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotInspectArgs {
    /// The snapshots
    #[arg(required = true)]
    pub(crate) names: Vec<SnapshotName>,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
No sandbox is needed. Links are shown, and not followed.

Examples:
  arenite snapshot files ready
  arenite snapshot files ready /home/gem")]
pub(crate) struct SnapshotFilesArgs {
    /// The snapshot
    pub(crate) name: SnapshotName,
    /// The directory
    #[arg(default_value = "/")]
    pub(crate) path: String,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite snapshot cp ready:/home/gem/notes.txt .
  arenite snapshot cp ready:/etc/passwd -          to stdout")]
pub(crate) struct SnapshotCpArgs {
    /// The file, as NAME:/PATH
    #[arg(value_name = "NAME:/PATH", value_parser = snapshot_path)]
    pub(crate) source: (SnapshotName, String),
    /// A local file or directory; - is stdout
    #[arg(value_name = "DST")]
    pub(crate) target: PathBuf,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file is an OCI image layout in a tar. Its last layer is the snapshot's, the others are its image's. Processes that the snapshot
keeps are left out.

Examples:
  arenite snapshot export ready -o ready.tar
  arenite snapshot export ready -o - | gzip > ready.tar.gz")]
pub(crate) struct SnapshotExportArgs {
    /// The snapshot
    pub(crate) name: SnapshotName,
    /// The file; - is stdout
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The server needs free disk for twice the size of the file. The image comes with the snapshot, and goes with it.

Examples:
  arenite snapshot import ready.tar
  arenite snapshot import ready.tar --name ready-of-friday")]
pub(crate) struct SnapshotImportArgs {
    /// The file, as it was exported
    pub(crate) file: PathBuf,
    /// Name of the new snapshot [default: that of the exported one]
    #[arg(long)]
    pub(crate) name: Option<SnapshotName>,
    /// Show no progress
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

fn snapshot_path(text: &str) -> Result<(SnapshotName, String), String> {
    let (name, path) = text.split_once(':').ok_or("give the snapshot and the path, such as ready:/etc/passwd")?;
    Ok((name.parse().map_err(|error| format!("{error}"))?, path.to_owned()))
}

#[derive(Debug, Args)]
pub(crate) struct SnapshotRmArgs {
    /// The snapshots
    #[arg(required = true)]
    pub(crate) names: Vec<SnapshotName>,
    #[command(flatten)]
    pub(crate) server: Server,
}
