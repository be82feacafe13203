//! Arguments of `arenite store`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::config::values::Secret;

#[derive(Debug, Subcommand)]
pub(crate) enum StoreCommand {
    /// Write all rows of the store to a file
    Export(StoreExportArgs),
    /// Fill a store with the rows of a file
    Import(StoreImportArgs),
}

/// The store, as `arenite serve` finds it.
#[derive(Debug, Args)]
pub(crate) struct StoreSettings {
    /// Configuration file of the server, in TOML [default: /etc/arenite.toml if it exists]
    #[arg(long, env = "ARENITE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Data directory of the server [default: /var/lib/arenite]
    #[arg(long, env = "ARENITE_DATA_DIR", value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Database of the server, or sqlite for control.sqlite in the data directory [default: sqlite]
    #[arg(long, env = "ARENITE_STORE", hide_env_values = true, value_name = "URL|sqlite")]
    pub(crate) store: Option<Secret>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The store has names, states, settings and environments of sandboxes, but not their files. It also
has tenants, hashes of their keys, the audit log, usage, groups, idempotency keys, and webhooks. An
export works beside a server. Environments and webhooks have secrets, so only you can read the file.

Each line of the file is JSON: a header, one line for each row, and a last line with the number of
sandboxes and the SHA-256 of all lines before it.

Examples:
  sudo arenite store export backup.jsonl
  sudo arenite store export - | gzip > backup.jsonl.gz
  sudo arenite store export backup.jsonl --config /srv/arenite.toml")]
pub(crate) struct StoreExportArgs {
    /// File to write, or - for stdout
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) settings: StoreSettings,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Imports all rows or none. Stop the server first. Its next start finds the sandboxes that still
exist and lists the others as lost. Exports of earlier versions lack kinds of rows, and those of
the store stay as they are.

Examples:
  sudo arenite store import backup.jsonl --replace
  sudo arenite store import backup.jsonl --store postgres:///arenite?host=/run/postgresql")]
pub(crate) struct StoreImportArgs {
    /// File to read, or - for stdin
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Remove the rows that the store has
    #[arg(long)]
    pub(crate) replace: bool,
    #[command(flatten)]
    pub(crate) settings: StoreSettings,
}
