//! Arguments of `arenite explore`.

use std::path::PathBuf;

use clap::Args;

use super::{Format, Server};

#[derive(Debug, Args)]
#[command(after_help = "\
PLAN is a file in TOML, or in JSON if its name ends in .json:
  setup = [\"pip install -q pytest\"]      # commands that prepare the root
  actions = [\"sh fix-a.sh\", \"sh fix-b.sh\"]  # commands to try at every node
  score = \"pytest -q | python3 rate.py\"    # the last line that it prints is the score
  goal = 1.0                             # a node with this score ends the search
  [sandbox]                              # the fields of a create
  image = \"code\"
All of them run in sandboxes. Instead of actions, 'propose' names a command on this machine. It gets
the way to a node on stdin, as JSON: {\"breadth\": 4, \"path\": [{\"action\", \"output\", \"exit_code\",
\"score\"}, …]}, and prints one action per line.

Each node runs in a sandbox that starts as a snapshot of its parent, so siblings run side by side, and
no action runs twice. With --replay, or where snapshots are not available, each node runs all
actions from the start again. Both have the same tree, if the actions do the same each time.

The sandboxes have the labels 'explore' (the search's id) and 'branch' (the node's), and a trajectory
each. They are deleted when their node is done.

Examples:
  arenite explore plan.toml --depth 4 --breadth 4
  arenite explore plan.toml --depth 8 --breadth 3 --beam 5 --parallel 16 --out tree.jsonl")]
pub(crate) struct ExploreArgs {
    /// What to try, and how to rate it
    #[arg(value_name = "PLAN")]
    pub(crate) plan: PathBuf,
    /// Actions from the root to a leaf
    #[arg(long, short, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) depth: u32,
    /// Actions that are tried at each node
    #[arg(long, short, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) breadth: u32,
    /// Continue only the best N nodes of each level [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) beam: Option<u32>,
    /// Sandboxes at once
    #[arg(long, short, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) parallel: u32,
    /// File for the nodes, as a JSON line each
    #[arg(long, short, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Run all actions from the start for each node, instead of starting from snapshots
    #[arg(long)]
    pub(crate) replay: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}
