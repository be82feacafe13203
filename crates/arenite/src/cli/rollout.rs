//! What can be said of rollouts.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Format, Server};
use crate::config::values::Span;

#[derive(Debug, Subcommand)]
pub(crate) enum RolloutCommand {
    /// Run an agent over a file of tasks
    Run(Box<RolloutRunArgs>),
}

#[derive(Debug, Args)]
#[command(after_help = "\
TASKS has a JSON object in each line, such as
  {\"id\": \"sum\", \"question\": \"What is 6 * 7?\", \"answer\": \"42\"}
What more a task has is for the agent. Without an id, the line's number is the task's.

The agent is a line for sh, run once for each attempt at a task, in a directory of its own: name
files by absolute paths. It gets the task as JSON on stdin, and these variables:
  ARENITE_SERVER, ARENITE_API_KEY  the server
  ARENITE_WORKER_ID                the worker_id of its calls; its sandboxes end with the agent
  ARENITE_TASK_ID, ARENITE_TASK    the task's id, and a file with its JSON
  ARENITE_RESULT                   a file to write the result to, as JSON
  ARENITE_START_DIR                the directory that this command was started in
Without that file the result is the last line of stdout, if it is JSON, else its text.

How it ends says what becomes of the task:
  exit code 0                      success, unless the result has \"success\": false
  75, or the server was away       not the agent's fault: tried again, up to --attempts
  any other exit code              the agent failed; tried again only with --retry-agent
  --timeout is over                timeout; all that the agent started is ended with it

Run the same command again after whatever stopped it: it goes on where it was. Tasks that are
done are not run again; those that ended by a fault of the infrastructure are.

Examples:
  arenite rollout run tasks.jsonl --agent \"python3 $PWD/agent.py\" --workers 16 --out runs/first
  arenite rollout run tasks.jsonl --agent \"python3 $PWD/agent.py\" --limit 5 --out runs/trial
  arenite rollout run tasks.jsonl --agent \"$PWD/agent.sh\" --timeout 2h --no-ramp --out runs/long
  jq -r 'select(.success | not) | .task_id + \": \" + .error_message' runs/first/results.jsonl
  python3 -c 'import pandas; print(pandas.read_parquet(\"runs/first/results.parquet\"))'

examples/agents has two agents to begin with.")]
pub(crate) struct RolloutRunArgs {
    /// The tasks, one JSON object in each line
    #[arg(value_name = "TASKS")]
    pub(crate) tasks: PathBuf,
    /// The agent: a command line for sh
    #[arg(long, short, value_name = "CMD")]
    pub(crate) agent: String,
    /// Directory for the journal, the results and all that agents write
    #[arg(long, short, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Most agents at a time
    #[arg(long, short, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) workers: u32,
    /// Begin with all workers, and keep them, instead of following what the server can bear
    #[arg(long)]
    pub(crate) no_ramp: bool,
    /// Most attempts at a task that fail by no fault of the agent
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: u32,
    /// Further attempts at a task that the agent failed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) retry_agent: u32,
    /// Most time of an attempt
    #[arg(long, value_name = "TIME", default_value = "600s")]
    pub(crate) timeout: Span,
    /// How long to wait for a server that is away before giving up
    #[arg(long, value_name = "TIME", default_value = "120s")]
    pub(crate) patience: Span,
    /// Only the first N tasks; more of them may follow later in the same directory
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Forget what an earlier run left in the directory
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Forms of the results; trajectories are JSON lines always
    #[arg(long, value_enum, value_delimiter = ',', default_value = "jsonl,parquet", value_name = "FORM")]
    pub(crate) format: Vec<ResultFormat>,
    #[command(flatten)]
    pub(crate) output: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// results.jsonl: one task a line
    Jsonl,
    /// results.parquet: flat columns, JSON as text
    Parquet,
}
