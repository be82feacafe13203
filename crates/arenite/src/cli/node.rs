//! Arguments of `arenite node`.

use arenite_model::NodeName;
use clap::{Args, Subcommand};

use super::{ListOutput, Server};
use crate::config::values::Span;

#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List the nodes of the cluster
    Ls(NodeLsArgs),
    /// Give a node no new sandboxes
    Drain(NodeDrainArgs),
    /// End the drain of a node
    Uncordon(NodeUncordonArgs),
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
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The node hands back its warm pools and prepared slots, and other nodes get the creates. Its sandboxes run until their own ends, or
until the deadline, when they are deleted. A node that is down is drained when it starts. The drain outlives restarts: end it with
arenite node uncordon.

Examples:
  arenite node drain red
  arenite node drain red --deadline 2h --wait")]
pub(crate) struct NodeDrainArgs {
    /// The node
    pub(crate) name: NodeName,
    /// Delete the sandboxes that are left after this time, such as 90s, 30m, 2h or 1d; at most 30d
    #[arg(long, value_name = "TIME")]
    pub(crate) deadline: Option<Span>,
    /// Wait until the node has no sandboxes
    #[arg(long)]
    pub(crate) wait: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite node uncordon red")]
pub(crate) struct NodeUncordonArgs {
    /// The node
    pub(crate) name: NodeName,
    #[command(flatten)]
    pub(crate) server: Server,
}
