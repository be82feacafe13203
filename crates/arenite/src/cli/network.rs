//! Arguments of `arenite network`.

use arenite_model::SandboxName;
use clap::{Args, Subcommand};

use super::{Format, Network, Output, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum NetworkCommand {
    /// Show what a sandbox may reach, and what it reached or was refused
    Show(NetworkShowArgs),
    /// Replace what a sandbox may reach, while it runs
    Set(NetworkSetArgs),
    /// Print the smallest allowlist of what a sandbox reached
    Suggest(NetworkSuggestArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NetworkShowArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// Show only what was refused
    #[arg(long)]
    pub(crate) refused: bool,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A rule is HOST[:PORTS][/PROTOCOL]: a name, '*.' and a name, an address, or a network; ports 80 and 443
unless it names others; and tcp, http or https.

Examples:
  arenite network set demo --allow pypi.org --allow files.pythonhosted.org
  arenite network set demo --allow '*.example.com:443' --deny secret.example.com --close-open
  arenite network set demo --mode allowlist            nothing at all
  arenite network set demo --mode observe
  arenite network set demo --mode open")]
#[command(group = clap::ArgGroup::new("policy").required(true).multiple(true))]
pub(crate) struct NetworkSetArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// What happens to what no rule names [default: allowlist]
    #[arg(long, value_enum, group = "policy")]
    pub(crate) mode: Option<Network>,
    /// What it may reach; repeatable
    #[arg(long, value_name = "RULE", group = "policy")]
    pub(crate) allow: Vec<String>,
    /// What it may not reach; repeatable
    #[arg(long, value_name = "RULE", group = "policy")]
    pub(crate) deny: Vec<String>,
    /// Close connections that the new rules refuse
    #[arg(long)]
    pub(crate) close_open: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct NetworkSuggestArgs {
    /// The sandbox, with the network 'observe' or an allowlist
    pub(crate) sandbox: SandboxName,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
