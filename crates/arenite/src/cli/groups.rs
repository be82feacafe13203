//! Arguments of `arenite group`.

use arenite_model::GroupName;
use clap::{Args, Subcommand};

use super::{Format, ListOutput, Server};
use crate::config::values::Span;

#[derive(Debug, Subcommand)]
pub(crate) enum GroupCommand {
    /// Create a group with a lease
    Create(GroupCreateArgs),
    /// List groups
    Ls(GroupLsArgs),
    /// Start the lease of a group again
    Renew(GroupRenewArgs),
    /// Delete groups with their sandboxes
    Rm(GroupRmArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
If nobody renews the lease in time, the group is deleted with all its sandboxes, so a program that dies leaves none behind.

Examples:
  arenite group create training --ttl 5m
  arenite create worker --count 8 --group training
  arenite group renew training                     call it more often than every 5 minutes
  arenite group rm training")]
pub(crate) struct GroupCreateArgs {
    /// Name: lower-case letters, digits and inner hyphens
    pub(crate) name: GroupName,
    /// Length of the lease, from 1s to 30d
    #[arg(long, value_name = "TIME", default_value = "5m")]
    pub(crate) ttl: Span,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct GroupLsArgs {
    #[command(flatten)]
    pub(crate) output: ListOutput,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct GroupRenewArgs {
    /// The group
    pub(crate) name: GroupName,
    /// New length of the lease [default: unchanged]
    #[arg(long, value_name = "TIME")]
    pub(crate) ttl: Option<Span>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct GroupRmArgs {
    /// The groups
    #[arg(required = true)]
    pub(crate) names: Vec<GroupName>,
    #[command(flatten)]
    pub(crate) server: Server,
}
