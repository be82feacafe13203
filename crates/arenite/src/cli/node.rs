//! Arguments of `arenite node`.

use clap::{Args, Subcommand};

use super::{Format, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the nodes of the cluster
    Ls(NodeLsArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Servers with one Postgres store are nodes of a cluster: arenite serve --store postgres://… --node NAME. A node that does not
renew its lease for 10 seconds is given up: its sandboxes are lost until its server starts again.

Examples:
  arenite node ls
  arenite node ls --json | jq -r '.nodes[] | select(.state != \"up\") | .name'")]
pub(crate) struct NodeLsArgs {
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
