//! Arguments of `arenite trajectory`.

use std::path::PathBuf;

use arenite_model::ImageName;
use arenite_trajectory::Format as ExportFormat;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};

use super::{
    Annotated, Format, ListOutput, Output, Server, TrajectoryAnnotateArgs, TrajectoryAnnotationsArgs, TrajectoryUnannotateArgs,
};

#[derive(Debug, Subcommand)]
pub(crate) enum TrajectoryCommand {
    /// List trajectories
    Ls(TrajectoryLsArgs),
    /// Show the steps of a trajectory
    Show(TrajectoryShowArgs),
    /// Export steps for other programs
    Export(TrajectoryExportArgs),
    /// Run the steps again in a new sandbox, and report differences
    Replay(TrajectoryReplayArgs),
    /// Check that records and bodies are unchanged
    Verify(TrajectoryVerifyArgs),
    /// Add a note, labels or a rating to a trajectory or a step, or change them
    Annotate(TrajectoryAnnotateArgs),
    /// List the annotations of a trajectory
    Annotations(TrajectoryAnnotationsArgs),
    /// Remove annotations
    Unannotate(TrajectoryUnannotateArgs),
}

/// The selected steps.
#[derive(Debug, Args)]
pub(crate) struct Chosen {
    /// Select steps by who caused them: agent, person, system, several with commas, or all
    #[arg(long, value_name = "ORIGIN", value_parser = origins())]
    pub(crate) origin: Option<String>,
}

fn origins() -> impl TypedValueParser<Value = String> {
    let check = |text: String| arenite_trajectory::Filter::of_origins(&text).map(|_| text);
    clap::builder::StringValueParser::new().try_map(check)
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every line of a log carries its checksum and that of the line before it, and every body outside the log
is named by its hash. Lines of older versions have no checksum; they are counted.

The exit code is 0 if everything is unchanged, 1 otherwise.

Examples:
  arenite trajectory verify demo
  arenite trajectory verify --all --json | jq '.trajectories[] | select(.problems != [])'")]
pub(crate) struct TrajectoryVerifyArgs {
    /// Trajectory id, or the name of a sandbox or worker for its latest; a unique prefix is enough
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) trajectory: Option<String>,
    /// All trajectories
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
  arenite trajectory ls --worker solver-3 --task task-17
  arenite trajectory ls --label good --min-rating 4
  arenite trajectory ls --failed")]
pub(crate) struct TrajectoryLsArgs {
    /// Only trajectories of this AgentFlow worker
    #[arg(long, value_name = "ID")]
    pub(crate) worker: Option<String>,
    /// Only trajectories of this task
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<String>,
    /// Only trajectories with failed steps
    #[arg(long)]
    pub(crate) failed: bool,
    #[command(flatten)]
    pub(crate) annotated: Annotated,
    #[command(flatten)]
    pub(crate) output: ListOutput,
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
    /// Trajectory id, or the name of a sandbox or worker for its latest; a unique prefix is enough
    pub(crate) trajectory: String,
    /// Start after this step
    #[arg(long, default_value_t = 0, value_name = "STEP")]
    pub(crate) after: u64,
    /// Maximum number of steps to show
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) limit: u32,
    /// Only steps that failed or succeeded, by exit code and by the answer's content
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded"])]
    pub(crate) result: Option<String>,
    /// Only steps that failed by this fault: of the agent's call, or of what should have carried it out
    #[arg(long, value_name = "CLASS", value_parser = ["agent", "infrastructure"])]
    pub(crate) class: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) output: Output,
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
  arenite trajectory export --label good --min-rating 4 --format sharegpt --annotations -o good.jsonl

Only the agent's steps are exported, unless --origin selects others. --all, --annotated, --label and
--min-rating export all trajectories that they select.

Formats:
  jsonl                everything that was recorded, one step per line
  agentflow-rollout    AgentFlow's rollout; one line per branch
  agentflow-synthesis  AgentFlow's tree of nodes
  atif                 Agent Trajectory Interchange Format 1.7
  openai-messages      messages with tool calls; one line per branch
  sharegpt             conversations with function calls; one line per branch
  asciicast            commands and their output, for asciinema")]
pub(crate) struct TrajectoryExportArgs {
    /// Trajectory id, or the name of a sandbox or worker for its latest; a unique prefix is enough
    #[arg(required_unless_present_any = SEVERAL, conflicts_with_all = SEVERAL)]
    pub(crate) trajectory: Option<String>,
    /// All trajectories
    #[arg(long)]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) annotated: Annotated,
    /// With annotations, also in formats that have no field for them: openai-messages and sharegpt
    #[arg(long, conflicts_with = "no_annotations")]
    pub(crate) annotations: bool,
    /// Without annotations
    #[arg(long)]
    pub(crate) no_annotations: bool,
    /// Export format
    #[arg(long, default_value = "jsonl", value_name = "FORMAT", value_parser = formats())]
    pub(crate) format: ExportFormat,
    /// Output file [default: stdout]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Only steps that failed or succeeded
    #[arg(long, value_name = "RESULT", value_parser = ["failed", "succeeded"])]
    pub(crate) result: Option<String>,
    /// Only steps that failed by this fault: of the agent's call, or of what should have carried it out
    #[arg(long, value_name = "CLASS", value_parser = ["agent", "infrastructure"])]
    pub(crate) class: Option<String>,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Recreates the sandbox, or the worker's sessions, runs the steps, and removes it afterwards. Only the
agent's steps run again, unless --origin selects others. Times, ids, ports and the like are ignored;
pictures are compared by size. Steps that can't run again are skipped and listed: WebSockets, streams,
calls to the internet, interrupted calls.

The exit code is 0 if all answers are the same, 1 if one differs, 2 if the replay failed.

Examples:
  arenite trajectory replay demo
  arenite trajectory replay demo --on python --until 40
  arenite trajectory replay solver-3 --json | jq .divergence")]
pub(crate) struct TrajectoryReplayArgs {
    /// Trajectory id, or the name of a sandbox or worker for its latest; a unique prefix is enough
    pub(crate) trajectory: String,
    /// Image to run on [default: the original one]
    #[arg(long, value_name = "IMAGE")]
    pub(crate) on: Option<ImageName>,
    /// First step of interest: start from the nearest checkpoint or snapshot before it that still exists
    #[arg(long, value_name = "STEP")]
    pub(crate) from_step: Option<u64>,
    /// Last step to run; without --from-step, start from the nearest checkpoint or snapshot before it
    #[arg(long, value_name = "STEP")]
    pub(crate) until: Option<u64>,
    /// Run all steps from the beginning, in an empty sandbox
    #[arg(long, conflicts_with = "from_step")]
    pub(crate) from_start: bool,
    /// Continue after a difference and list all; later ones may result from it
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Keep the sandbox or the worker afterwards
    #[arg(long)]
    pub(crate) keep: bool,
    #[command(flatten)]
    pub(crate) chosen: Chosen,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// Arguments that select trajectories without a name.
const SEVERAL: [&str; 4] = ["all", "annotated", "label", "min_rating"];

fn formats() -> impl TypedValueParser<Value = ExportFormat> {
    PossibleValuesParser::new(ExportFormat::ALL.map(ExportFormat::name)).try_map(|name| name.parse::<ExportFormat>())
}
