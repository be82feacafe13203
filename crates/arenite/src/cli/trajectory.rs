//! Arguments of `arenite trajectory`.

use std::path::PathBuf;

use arenite_model::ImageName;
use arenite_trajectory::Format as ExportFormat;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::{Format, Server};

#[derive(Debug, Subcommand)]
pub(crate) enum TrajectoryCommand {
    /// List trajectories
    Ls(TrajectoryLsArgs),
    /// Show the steps of one
    Show(TrajectoryShowArgs),
    /// Write steps out for other programs
    Export(TrajectoryExportArgs),
    /// Run the steps again somewhere fresh, and say where answers differ
    Replay(TrajectoryReplayArgs),
    /// Check that records and bodies are as they were written
    Verify(TrajectoryVerifyArgs),
}

/// Which steps are taken.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Who caused them: agent, person, system, several with commas, or all
    #[arg(long, value_name = "ORIGIN", value_parser = origins())]
    pub(crate) origin: Option<String>,
}

fn origins() -> impl TypedValueParser<Value = String> {
    let check = |text: String| arenite_trajectory::Filter::of_origins(&text).map(|_| text);
    clap::builder::StringValueParser::new().try_map(check)
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every line of a log carries a checksum and that of the line before it, and every body outside the log is
named by its hash. Lines written by versions before that have no checksum, and are counted.

The exit code is 0 when all is as it was written, 1 when something is not.

Examples:
  arenite trajectory verify demo
  arenite trajectory verify --all --json | jq '.trajectories[] | select(.problems != [])'")]
pub(crate) struct TrajectoryVerifyArgs {
    /// A trajectory's id, a sandbox's or a worker's name, which means its latest, or the beginning of one of these
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) trajectory: Option<String>,
    /// Every trajectory
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite trajectory ls
  arenite trajectory ls --worker solver-3 --task task-17")]
pub(crate) struct TrajectoryLsArgs {
    /// Only those of this AgentFlow worker
    #[arg(long, value_name = "ID")]
    pub(crate) worker: Option<String>,
    /// Only those of this task
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite trajectory show demo
  arenite trajectory show demo --after 100 --limit 20
  arenite trajectory show demo --origin agent --result failed
  arenite trajectory show demo --json | jq '.steps[].action'")]
pub(crate) struct TrajectoryShowArgs {
    /// A trajectory's id, a sandbox's or a worker's name, which means its latest, or the beginning of one of these
    pub(crate) trajectory: String,
    /// Begin after this step
    #[arg(long, default_value_t = 0, value_name = "STEP")]
    pub(crate) after: u64,
    /// Most steps to show
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Only those that failed, or that succeeded: by exit code and by what the answer says
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded"])]
    pub(crate) result: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite trajectory export demo --format jsonl > demo.jsonl
  arenite trajectory export solver-3 --format openai-messages -o messages.jsonl
  arenite trajectory export demo --format asciicast -o demo.cast && asciinema play demo.cast
  arenite trajectory export --all -o steps.jsonl

Only what an agent did is written, unless --origin says otherwise.

Formats:
  jsonl                all that was recorded, one step a line
  agentflow-rollout    AgentFlow's rollout; a line for each branch
  agentflow-synthesis  AgentFlow's tree of nodes
  atif                 Agent Trajectory Interchange Format 1.7
  openai-messages      messages with tool calls; a line for each branch
  sharegpt             conversations with function calls; a line for each branch
  asciicast            the commands and what they printed, for asciinema")]
pub(crate) struct TrajectoryExportArgs {
    /// A trajectory's id, a sandbox's or a worker's name, which means its latest, or the beginning of one of these
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) trajectory: Option<String>,
    /// Every trajectory
    #[arg(long)]
    pub(crate) all: bool,
    /// The form of the export
    #[arg(long, default_value = "jsonl", value_name = "FORMAT", value_parser = formats())]
    pub(crate) format: ExportFormat,
    /// File to write [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Only steps that failed, or that succeeded
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded"])]
    pub(crate) result: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A sandbox is made as the first one was, or a worker's sessions, and removed afterwards. Only what an agent
did is run again, unless --origin says otherwise. Times, ids,
ports and the like are passed over; pictures are compared by their size. What can't be run again is
left out and named: WebSockets, streams, what goes to the internet, calls that were interrupted.

The exit code is 0 when all answers are the same, 1 when one differs, 2 when it wasn't replayed.

Examples:
  arenite trajectory replay demo
  arenite trajectory replay demo --on python --until 40
  arenite trajectory replay solver-3 --json | jq .divergence")]
pub(crate) struct TrajectoryReplayArgs {
    /// A trajectory's id, a sandbox's or a worker's name, which means its latest, or the beginning of one of these
    pub(crate) trajectory: String,
    /// Run them on this image instead of the first one's
    #[arg(long, value_name = "IMAGE")]
    pub(crate) on: Option<ImageName>,
    /// The last step to run
    #[arg(long, value_name = "STEP")]
    pub(crate) until: Option<u64>,
    /// Go on after a difference, and name them all: what comes after one may follow from it
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Leave the sandbox or the worker when it is done
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

fn formats() -> impl TypedValueParser<Value = ExportFormat> {
    PossibleValuesParser::new(ExportFormat::ALL.map(ExportFormat::name)).try_map(|name| name.parse::<ExportFormat>())
}
