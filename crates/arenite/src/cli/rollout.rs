//! Arguments of `arenite rollout`.

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
TASKS has a JSON object per line, such as
  {\"id\": \"sum\", \"question\": \"What is 6 * 7?\", \"answer\": \"42\"}
Other fields are for the agent. Without an id, a task's id is its line number.

The agent is a command line for sh, run once per attempt, in a separate directory: use absolute
paths. It gets the task as JSON on stdin, and these variables:
  ARENITE_SERVER, ARENITE_API_KEY  the server
  ARENITE_CA                       with --ca: the certificate authorities to trust for it
  ARENITE_WORKER_ID                the worker_id of its calls; its sandboxes end with the agent
  ARENITE_TASK_ID, ARENITE_TASK    the task's id, and a file with its JSON
  ARENITE_RESULT                   a file to write the result to, as JSON
  ARENITE_START_DIR                the directory that this command was started in
Without a result file, the result is the last line of stdout if it is JSON, else stdout's text.

How it ends decides the outcome:
  exit code 0                      success, unless the result has \"success\": false
  75, or the server was away       not the agent's fault: retried, up to --attempts
  any other exit code              the agent failed; retried only with --retry-agent
  --timeout is over                timeout; everything that the agent started is ended

After an interruption, run the same command again to continue. Finished tasks are not run again;
those that failed because of the infrastructure are.

Examples:
  arenite rollout run tasks.jsonl --agent \"python3 $PWD/agent.py\" --workers 16 --out runs/first
  arenite rollout run tasks.jsonl --agent \"python3 $PWD/agent.py\" --limit 5 --out runs/trial
  arenite rollout run tasks.jsonl --agent \"$PWD/agent.sh\" --timeout 2h --no-ramp --out runs/long
  jq -r 'select(.success | not) | .task_id + \": \" + .error_message' runs/first/results.jsonl
  python3 -c 'import pandas; print(pandas.read_parquet(\"runs/first/results.parquet\"))'

examples/agents has two agents to start from.")]
pub(crate) struct RolloutRunArgs {
    /// File of tasks, one JSON object per line
    #[arg(value_name = "TASKS")]
    pub(crate) tasks: PathBuf,
    /// The agent: a command line for sh
    #[arg(long, short, value_name = "CMD")]
    pub(crate) agent: String,
    /// Directory for the journal, the results and the agents' files
    #[arg(long, short, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Maximum number of concurrent agents
    #[arg(long, short, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(crate) workers: u32,
    /// Start all workers at once, instead of adapting to the server's load
    #[arg(long)]
    pub(crate) no_ramp: bool,
    /// Maximum number of attempts at a task that fail by no fault of the agent
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: u32,
    /// Retries of a task that the agent failed
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub(crate) retry_agent: u32,
    /// Maximum time of an attempt
    #[arg(long, value_name = "TIME", default_value = "600s")]
    pub(crate) timeout: Span,
    /// How long to wait for an unreachable server before giving up
    #[arg(long, value_name = "TIME", default_value = "120s")]
    pub(crate) patience: Span,
    /// Run only the first N tasks; a later run in the same directory may do more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: Option<u32>,
    /// Discard what an earlier run left in the directory
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Formats of the results; trajectories are always JSON lines
    #[arg(long, value_enum, value_delimiter = ',', default_value = "jsonl,parquet", value_name = "FORM")]
    pub(crate) format: Vec<ResultFormat>,
    #[command(flatten)]
    pub(crate) output: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ResultFormat {
    /// results.jsonl: one task per line
    Jsonl,
    /// results.parquet: flat columns, JSON as text
    Parquet,
}
