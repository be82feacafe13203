//! The command line: arguments and help.

mod annotation;
mod demo;
mod events;
mod explore;
mod groups;
mod list;
mod model;
mod network;
mod node;
mod output;
mod quarantine;
mod rag;
mod rollout;
mod secrets;
mod service;
mod set;
mod states;
mod store;
mod template;
mod tenants;
mod trajectory;
mod vm;
mod volumes;

use std::path::{Path, PathBuf};

use arenite_model::{GroupName, ImageName, SandboxName, SecretName, SnapshotName, Tier};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::client::DEFAULT_SERVER;
use crate::config::values::{Secret, Size, Span};
use crate::config::{DEFAULT_DATA_DIR, Settings};
use crate::failure::EXIT_CODES;
pub(crate) use annotation::{Annotated, TrajectoryAnnotateArgs, TrajectoryAnnotationsArgs, TrajectoryUnannotateArgs};
pub(crate) use demo::{DemoArgs, OpenArgs};
pub(crate) use events::{
    EventsArgs, WebhookCommand, WebhookCreateArgs, WebhookDeliveriesArgs, WebhookLsArgs, WebhookRedeliverArgs, WebhookRmArgs,
    WebhookTestArgs,
};
pub(crate) use explore::ExploreArgs;
pub(crate) use groups::{GroupCommand, GroupCreateArgs, GroupLsArgs, GroupRenewArgs, GroupRmArgs};
pub(crate) use list::{LsArgs, SandboxInspectArgs};
pub(crate) use model::{ModelCommand, ModelLsArgs, ModelRmArgs, ModelSetArgs, ModelShowArgs, PriceOf};
pub(crate) use network::{NetworkCommand, NetworkSetArgs, NetworkShowArgs, NetworkSuggestArgs};
pub(crate) use node::{NodeCommand, NodeDrainArgs, NodeLsArgs, NodeUncordonArgs};
pub(crate) use output::{ListOutput, Output};
pub(crate) use quarantine::{QuarantineAdoptArgs, QuarantineCommand, QuarantineLsArgs, QuarantineRmArgs};
pub(crate) use rag::{
    RagCommand, RagEmbedArgs, RagEvalArgs, RagIndexArgs, RagLsArgs, RagRmArgs, RagSearchArgs, SearchMode, VectorPrecision,
};
pub(crate) use rollout::{ResultFormat, RolloutCommand, RolloutRunArgs};
pub(crate) use secrets::{SecretCommand, SecretLsArgs, SecretReencryptArgs, SecretRmArgs, SecretSetArgs};
pub(crate) use service::{CompletionsArgs, ManArgs, ServiceCommand, ServiceInstallArgs, ServiceUninstallArgs};
pub(crate) use set::SetArgs;
pub(crate) use states::{
    CheckpointArgs, DiffArgs, ForkArgs, HistoryArgs, RollbackArgs, SnapshotCommand, SnapshotCpArgs, SnapshotCreateArgs,
    SnapshotExportArgs, SnapshotFilesArgs, SnapshotImportArgs, SnapshotInspectArgs, SnapshotLsArgs, SnapshotRmArgs,
};
pub(crate) use store::{StoreCommand, StoreExportArgs, StoreImportArgs, StoreSettings};
pub(crate) use template::{TemplateCommand, TemplateInspectArgs, TemplateLsArgs};
pub(crate) use tenants::{
    AuditArgs, KeyCommand, KeyCreateArgs, KeyLsArgs, KeyRevokeArgs, KeyRotateArgs, TenantCommand, TenantCreateArgs, TenantLsArgs,
    TenantRmArgs, TenantSetArgs, UsageArgs,
};
pub(crate) use trajectory::{
    TrajectoryCommand, TrajectoryExportArgs, TrajectoryLsArgs, TrajectoryReplayArgs, TrajectoryShowArgs, TrajectoryVerifyArgs,
};
pub(crate) use vm::{VmBuildArgs, VmCommand, VmImportArgs, VmListArgs, VmProbeArgs, VmSettings};
pub(crate) use volumes::{
    VolumeCommand, VolumeCpArgs, VolumeCreateArgs, VolumeInspectArgs, VolumeLsArgs, VolumeRmArgs, VolumeSetArgs,
};

/// Gives every AI agent its own computer, and records every step it takes.
#[derive(Debug, Parser)]
#[command(
    name = "arenite",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = root_help()
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

fn root_help() -> String {
    const EXAMPLES: &str = "\
Examples:
  arenite doctor                       check what this host supports
  sudo arenite image build base        build the default image
  sudo arenite serve                   start the server on 127.0.0.1:8080
  arenite create demo                  create a sandbox
  arenite exec demo                    open a shell in it
  arenite exec demo python3 -c 'print(6 * 7)'
  arenite cp report.csv demo:/home/gem/
  arenite trajectory show demo         show its recorded steps
  arenite rm demo
  arenite demo                         see what there is, in two minutes";
    format!("{EXAMPLES}\n\n{EXIT_CODES}\n\n'arenite COMMAND --help' shows examples for each command.")
}

/// The server's address, for commands that call one.
#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// URL of the server
    #[arg(long, env = "ARENITE_SERVER", default_value = DEFAULT_SERVER, value_name = "URL")]
    pub(crate) server: String,
    /// API key of the server, if it requires one; prefer the variable over the flag
    #[arg(long, env = "ARENITE_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<Secret>,
    /// PEM file of the certificate authorities to trust for an https URL [default: those of this host]
    #[arg(long, env = "ARENITE_CA", value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
}

/// Output format of what a command did.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Format {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the server
    Serve(Box<ServeArgs>),
    /// Create a sandbox
    Create(Box<CreateArgs>),
    /// List sandboxes
    #[command(visible_alias = "ps")]
    Ls(LsArgs),
    /// Show sandboxes with all their settings
    Inspect(SandboxInspectArgs),
    /// Show what sandboxes use, the busiest first
    Top(TopArgs),
    /// Report what sandboxes used, by tenant, sandbox, hour or template
    Usage(UsageArgs),
    /// Run a command in a sandbox, or open a shell
    Exec(ExecArgs),
    /// Open a sandbox's dashboard, or a page that it serves, in the browser
    Open(OpenArgs),
    /// Show what Arenite does, in two minutes, on the running server
    Demo(DemoArgs),
    /// Copy files to, from or between sandboxes
    Cp(CpArgs),
    /// Show the output of a sandbox's main command, or its guest's log
    Logs(LogsArgs),
    /// Change the labels and timeouts of a sandbox
    Set(SetArgs),
    /// Delete sandboxes
    Rm(RmArgs),
    /// Pause sandboxes; a call wakes them
    Pause(PauseArgs),
    /// Wake paused sandboxes
    Resume(NamesArgs),
    /// Restart failed or lost sandboxes with their files
    Start(NamesArgs),
    /// Seal the disk of a sandbox as a checkpoint
    Checkpoint(CheckpointArgs),
    /// List the checkpoints of a sandbox
    History(HistoryArgs),
    /// Return a sandbox to a checkpoint
    Rollback(RollbackArgs),
    /// Show which files of a sandbox changed
    Diff(DiffArgs),
    /// Create sandboxes with the disk of another
    Fork(ForkArgs),
    /// Manage snapshots, from which sandboxes are created
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Show templates for sandboxes
    #[command(subcommand)]
    Template(TemplateCommand),
    /// Manage groups of sandboxes, which end with their lease
    #[command(subcommand)]
    Group(GroupCommand),
    /// Manage volumes: storage that outlives sandboxes
    #[command(subcommand)]
    Volume(VolumeCommand),
    /// Show and change what a sandbox may reach
    #[command(subcommand)]
    Network(NetworkCommand),
    /// Manage secrets, which sandboxes use and never have
    #[command(subcommand)]
    Secret(SecretCommand),
    /// Show and drain the nodes of a cluster
    #[command(subcommand)]
    Node(NodeCommand),
    /// Manage sandboxes that a server start quarantined
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// Manage tenants, who don't see each other's sandboxes
    #[command(subcommand)]
    Tenant(TenantCommand),
    /// Manage API keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Show what happens to sandboxes
    Events(EventsArgs),
    /// Manage addresses that get events
    #[command(subcommand)]
    Webhook(WebhookCommand),
    /// Manage routes to models: calls of models with keys, budgets, and steps
    #[command(subcommand)]
    Model(ModelCommand),
    /// Show who changed what, and which requests were refused
    Audit(AuditArgs),
    /// Build and manage images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Build images that contain a VM: a complete system under QEMU
    #[command(subcommand)]
    Vm(VmCommand),
    /// Show, export and replay recorded steps
    #[command(subcommand)]
    Trajectory(TrajectoryCommand),
    /// Search a tree of actions, with a sandbox for each branch
    Explore(Box<ExploreArgs>),
    /// Run agents over many tasks
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Index, search and evaluate corpora of passages
    #[command(subcommand)]
    Rag(RagCommand),
    /// Serve MCP on stdin and stdout, for desktop clients
    Mcp(McpArgs),
    /// Back up and restore the store of sandboxes, and move it between databases
    #[command(subcommand)]
    Store(StoreCommand),
    /// Remount a storage pool that a disk error made read-only
    RecoverStorage(RecoverStorageArgs),
    /// Return a sandbox to its beginning; without a name, show or remove everything that Arenite has on this host
    Reset(ResetArgs),
    /// Run the server as a service of systemd
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Check what this host supports
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write manual pages; packages are built with it
    #[command(hide = true)]
    Man(ManArgs),
    /// Run the server inside a sandbox; started by Arenite itself
    #[command(hide = true)]
    Guest,
    /// Run the process that creates sandboxes; started by Arenite itself
    #[command(hide = true)]
    Launcher,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite mcp                          tools to manage sandboxes, and those of the sandbox 'default'
  arenite mcp --sandbox demo           the tools of one sandbox
  claude mcp add arenite -- arenite mcp

Client configuration:
  {\"mcpServers\": {\"arenite\": {\"command\": \"arenite\", \"args\": [\"mcp\"]}}}

HTTP clients don't need this command: their URL is http://127.0.0.1:8080/mcp.")]
pub(crate) struct McpArgs {
    /// Offer only this sandbox's tools
    #[arg(long, short, value_name = "NAME")]
    pub(crate) sandbox: Option<SandboxName>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A setting has the same name everywhere. In order of precedence: a flag (--prepared-slots), a variable (ARENITE_PREPARED_SLOTS), a
line of the TOML file (prepared_slots = 16), the default. Lists in variables are separated by commas.

Examples:
  sudo arenite serve
  sudo arenite serve --listen 127.0.0.1:9000 --data-dir /srv/arenite
  arenite serve --show-config          show the effective configuration, and the source of each value
  sudo arenite serve --config sandbox-server.json         AgentFlow's own configuration
  arenite serve --config sandbox-server.json --validate   check it
  sudo arenite serve --extra-ca /etc/ssl/proxy-ca.pem
  sudo arenite serve --listen 0.0.0.0:8443 --tls-cert chain.pem --tls-key key.pem
  sudo arenite serve --take-over       replace the running server, for example with a newer program

If a service manager passes sockets (LISTEN_FDS), the server uses them instead of --listen. SIGTERM and SIGINT stop the server
gracefully; a second signal stops it at once. Sandboxes keep running, and the next start re-adopts them. With --remove-sandboxes,
the stop deletes them.")]
pub(crate) struct ServeArgs {
    /// Configuration file, in TOML or AgentFlow's JSON [default: /etc/arenite.toml if it exists]
    #[arg(long, env = "ARENITE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the effective configuration and exit
    #[arg(long)]
    pub(crate) show_config: bool,
    /// Check the configuration and exit
    #[arg(long)]
    pub(crate) validate: bool,
    /// Print the objects of an image's warm pool (engine kubernetes) for kubectl apply, and exit
    #[arg(long, value_name = "IMAGE")]
    pub(crate) show_warm_pool: Option<ImageName>,
    /// Replace the running server on the same data directory, without refusing connections
    #[arg(long)]
    pub(crate) take_over: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite create                                   create a sandbox with a generated name
  arenite create demo
  arenite create small --memory 512MiB --cpu 0.5 --network none
  arenite create worker --count 8 --min 6          create worker-0 to worker-7, or at least 6 of them
  arenite create web --env PORT=3000 --port 3000 --timeout 2h -- python3 -m http.server 3000")]
pub(crate) struct CreateArgs {
    /// Name: lower-case letters, digits and inner hyphens
    pub(crate) name: Option<SandboxName>,
    /// Image [default: the template's, else the server's]
    #[arg(long, short, value_name = "IMAGE")]
    pub(crate) image: Option<ImageName>,
    /// Snapshot to start as, instead of an image
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "image")]
    pub(crate) snapshot: Option<SnapshotName>,
    /// Start the main command, also if the snapshot has processes that could go on
    #[arg(long, requires = "snapshot")]
    pub(crate) restart_processes: bool,
    /// Template to start from
    #[arg(long, short, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Environment variable for its commands; without =VALUE, pass the current value
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Secret that it uses beside those in --env, such as an SSH key; repeatable
    #[arg(long, value_name = "SECRET")]
    pub(crate) secret: Vec<SecretName>,
    /// CPU limit in cores, such as 0.5 or 2
    #[arg(long, value_name = "CORES", value_parser = cores)]
    pub(crate) cpu: Option<u32>,
    /// Memory limit
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Disk limit
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Size>,
    /// Size of /dev/shm
    #[arg(long, value_name = "SIZE")]
    pub(crate) shm: Option<Size>,
    /// Maximum number of processes and threads
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// Network access
    #[arg(long, value_enum)]
    pub(crate) network: Option<Network>,
    /// Name, address or network that it may reach, such as pypi.org or '*.github.com:443'; all others are refused
    #[arg(long, value_name = "RULE")]
    pub(crate) allow: Vec<String>,
    /// What it may not reach, although --allow or --network observe includes it
    #[arg(long, value_name = "RULE")]
    pub(crate) deny: Vec<String>,
    /// What isolates it: namespace, gvisor, or machine for an image with a VM [default: the server's]
    #[arg(long, value_name = "TIER")]
    pub(crate) tier: Option<Tier>,
    /// Default working directory of its commands
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Host name [default: the sandbox's name]
    #[arg(long, value_name = "NAME")]
    pub(crate) hostname: Option<String>,
    /// Volume, or a directory that the server declares, and where to mount it
    #[arg(long, short, value_name = "NAME[/DIR]:PATH[:ro]")]
    pub(crate) volume: Vec<String>,
    /// Port that the sandbox will serve
    #[arg(long, short, value_name = "PORT")]
    pub(crate) port: Vec<u16>,
    /// Delete it after this time [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Apply the idle policy after this time without a call [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) idle_timeout: Option<Span>,
    /// Action after the idle timeout
    #[arg(long, value_enum)]
    pub(crate) idle_policy: Option<Idle>,
    /// Pause it to its disk after it was frozen for this time [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) disk_after: Option<Span>,
    /// Pause it to its disk when it is frozen and the host is short of memory
    #[arg(long)]
    pub(crate) disk_under_pressure: bool,
    /// Take a checkpoint around each step that changes its disk
    #[arg(long)]
    pub(crate) auto_checkpoint: bool,
    /// Label
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// Text to find it by; it need not be unique
    #[arg(long, value_name = "TEXT")]
    pub(crate) client_tag: Option<String>,
    /// Group with which it ends; see 'arenite group create'
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<GroupName>,
    /// Create this number of equal sandboxes, named NAME-0 and so on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) count: Option<u32>,
    /// With --count, create none if fewer than this number can be created [default: all]
    #[arg(long, value_name = "N", requires = "count")]
    pub(crate) min: Option<u32>,
    /// Run the image's own command: its ENTRYPOINT and then COMMAND, or its CMD without COMMAND
    #[arg(long)]
    pub(crate) image_command: bool,
    /// Main command, run once, with logged output
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) args: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

pub(crate) fn cores(text: &str) -> Result<u32, String> {
    match text.parse::<f64>() {
        Ok(cores) if (0.01..=1024.0).contains(&cores) => Ok((cores * 1000.0).round() as u32),
        _ => Err("write a number of cores from 0.01 to 1024, such as 0.5 or 2".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Network {
    /// Loopback only
    None,
    /// What --allow names, and nothing else
    Allowlist,
    /// The public internet over TCP, recorded; see 'arenite network suggest'
    Observe,
    /// The public internet, but not metadata addresses, private ranges or the host
    Open,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Idle {
    /// Delete it
    Delete,
    /// The same as freeze
    Pause,
    /// Freeze it until the next call
    Freeze,
    /// Pause it to its disk until the next call
    Disk,
}

#[derive(Debug, Args)]
#[command(after_help = "\
A call, 'arenite resume' or 'arenite start' wakes the sandbox. After a pause to the disk, its main
command and its hooks run again.

Examples:
  arenite pause demo                               keep its processes and their memory
  arenite pause demo --kind disk                   end its processes and keep its files")]
pub(crate) struct PauseArgs {
    /// The sandboxes
    #[arg(required = true)]
    pub(crate) sandboxes: Vec<SandboxName>,
    /// What to keep
    #[arg(long, value_enum, default_value = "freeze")]
    pub(crate) kind: Pause,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Pause {
    /// Its processes with their memory, and its files
    Freeze,
    /// Its files
    Disk,
}

#[derive(Debug, Args)]
#[command(after_help = "\
CPU is the use of one core: a sandbox that keeps two busy has 200%. MEMORY includes caches, CALLS
are in progress. The table is refreshed every 2 seconds until Ctrl-C.

Examples:
  arenite top
  arenite top --once                   print one table
  arenite top --once --json | jq -r '.sandboxes[] | select(.cpu_cores > 1) | .name'
  arenite top --json                   print a line of JSON every 2 seconds")]
pub(crate) struct TopArgs {
    /// Measure once
    #[arg(long)]
    pub(crate) once: bool,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
All that follows the command belongs to it, so options of exec come before it. On a terminal, the command gets its own terminal.
Elsewhere, its stdout and stderr stay separate and stdin is passed to it. Input and output are text: bytes that are not UTF-8 are
replaced, so copy binary files with 'arenite cp'.

Exit codes:
  0-255  that of the command
  124    the command was killed at its --timeout
  125    Arenite failed: there is no such sandbox, no server answers, or the like
  2      this command line is not valid
  130    the command was interrupted

Examples:
  arenite exec demo                                open a shell
  arenite exec demo ls -l /home/gem
  arenite exec demo -c 'cd /tmp && ls | wc -l'     run a line in bash
  echo 'print(6 * 7)' | arenite exec demo python3
  arenite exec demo --workdir /tmp --no-tty -- make test")]
pub(crate) struct ExecArgs {
    /// The sandbox; 'default' is created if it doesn't exist
    pub(crate) sandbox: SandboxName,
    /// Run this line in bash, instead of a command with arguments
    #[arg(short = 'c', long = "script", value_name = "LINE", conflicts_with = "command")]
    pub(crate) script: Option<String>,
    /// Working directory [default: the sandbox's]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Environment variable for the command; without =VALUE, pass the current value
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Kill the command after this time
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Don't allocate a terminal
    #[arg(long)]
    pub(crate) no_tty: bool,
    /// For habits from Docker: stdin is always passed on
    #[arg(short, long)]
    interactive: bool,
    /// For habits from Docker: there is a terminal whenever this command has one
    #[arg(short, long, conflicts_with = "no_tty")]
    tty: bool,
    /// The command and its arguments [default: a shell]
    #[arg(trailing_var_arg = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
At least one side names a sandbox, as NAME:/PATH; '-' is stdin or stdout. Directories are copied recursively. If the target is a
directory, the copy is placed in it.

Examples:
  arenite cp report.csv demo:/home/gem/
  arenite cp ./project demo:/home/gem/
  arenite cp demo:/home/gem/out.png .
  arenite cp demo:/var/log/dpkg.log - | tail
  tar c src | arenite cp - demo:/tmp/src.tar")]
pub(crate) struct CpArgs {
    /// Source: PATH, NAME:/PATH or -
    pub(crate) source: String,
    /// Target: PATH, NAME:/PATH or -
    pub(crate) target: String,
    /// Print nothing
    #[arg(long, short)]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite logs web
  arenite logs -f web
  arenite logs --tail 20 -f web        start with the last 20 lines
  arenite logs --guest web             show the log of the server inside it")]
pub(crate) struct LogsArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// Show the guest's log instead of the main command's output
    #[arg(long)]
    pub(crate) guest: bool,
    /// Follow the output as it grows
    #[arg(long, short)]
    pub(crate) follow: bool,
    /// Start with the last lines [default: all]
    #[arg(long, short = 'n', value_name = "LINES")]
    pub(crate) tail: Option<u64>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite rm demo
  arenite rm --all
  arenite rm --all --force             in scripts")]
pub(crate) struct RmArgs {
    /// The sandboxes
    #[arg(required_unless_present = "all", conflicts_with = "all")]
    pub(crate) sandboxes: Vec<SandboxName>,
    /// Delete all sandboxes, after confirmation
    #[arg(long)]
    pub(crate) all: bool,
    /// Don't ask for confirmation, and ignore sandboxes that don't exist
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
pub(crate) struct NamesArgs {
    /// The sandboxes
    #[arg(required = true)]
    pub(crate) sandboxes: Vec<SandboxName>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The server must be stopped. The processes of sandboxes are killed, and their disks are kept. A writable pool is not changed.

Example:
  sudo arenite recover-storage")]
pub(crate) struct RecoverStorageArgs {
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
With a name, the command returns that sandbox to the disk that it was created with, and starts its main command again.

Without a name and --all, the command lists what it would remove: the server, sandboxes with their processes and networks, the storage
pool, and the data directory with images, trajectories and corpora. It keeps other data directories of this host, and kernel
settings that the server changed (docs/OPERATIONS.md lists them).

Examples:
  arenite reset demo
  sudo arenite reset
  sudo arenite reset --all
  sudo arenite reset --all --force --data-dir /srv/arenite         in scripts")]
pub(crate) struct ResetArgs {
    /// Sandbox to reset
    #[arg(conflicts_with = "all")]
    pub(crate) sandbox: Option<SandboxName>,
    /// Stop the server and remove everything, after confirmation
    #[arg(long)]
    pub(crate) all: bool,
    /// Don't ask for confirmation
    #[arg(long, short, requires = "all")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
    #[command(flatten)]
    pub(crate) server: Server,
}

/// The directory of this host's images.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataDir {
    /// The server's data directory
    #[arg(long, env = "ARENITE_DATA_DIR", default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image from a Dockerfile or Imagefile
    Build(BuildArgs),
    /// List images
    Ls(ImageLsArgs),
    /// Remove images
    Rm(ImageRmArgs),
    /// Remove layers that no image or sandbox uses, and images that nothing used for a time
    Prune(ImagePruneArgs),
    /// Show an image's layers and configuration
    Inspect(InspectArgs),
    /// Show how an image's layers were made, the top one first
    History(ImageHistoryArgs),
    /// Pull an image from a registry
    Pull(ImagePullArgs),
    /// Push an image to a registry
    Push(ImagePushArgs),
    /// Write images into one file, for a host without network
    Save(ImageSaveArgs),
    /// Add the images of a file that `image save`, Docker, or another tool wrote
    Load(ImageLoadArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Reads a Dockerfile, which may also be called Imagefile. FROM debootstrap:bookworm starts from a
fresh Debian, FROM IMAGE from an image of this host. Steps with unchanged input are cached.
A .dockerignore in the directory hides files from the build. RUN steps use the host's network,
unless they have --network=none. See docs/DOCKERFILES.md for what is supported.

Examples:
  sudo arenite image build base                    build the image that comes with Arenite
  sudo arenite image build base --from debian:12   build it on another image with apt
  sudo arenite image build tools .                 build ./Imagefile, else ./Dockerfile
  sudo arenite image build tools -f ci/Dockerfile  use the directory of the file as context
  sudo arenite image build tools . -f ci/Dockerfile --target test --build-arg VERSION=3
  sudo arenite image build tools . --secret id=token,src=token.txt
  sudo arenite image build -t tools .              the same as in Docker")]
pub(crate) struct BuildArgs {
    /// Name of the image; 'base' needs no file
    #[arg(value_name = "NAME")]
    pub(crate) first: Option<String>,
    /// Directory that COPY copies from [default: the file's]
    #[arg(value_name = "PATH")]
    pub(crate) second: Option<PathBuf>,
    /// Name of the image, in place of NAME
    #[arg(long, short, value_name = "NAME")]
    pub(crate) tag: Option<ImageName>,
    /// The Imagefile or Dockerfile [default: one of these in PATH]
    #[arg(long, short, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Run the steps of base on this image, which is pulled if it is not here; it needs apt
    #[arg(long, value_name = "IMAGE")]
    pub(crate) from: Option<ImageName>,
    /// The same as PATH
    #[arg(long, value_name = "DIR")]
    pub(crate) context: Option<PathBuf>,
    /// Value of an ARG; without a value, this command's variable of that name
    #[arg(long, value_name = "NAME[=VALUE]")]
    pub(crate) build_arg: Vec<String>,
    /// Build this stage, with those that it needs [default: the last one]
    #[arg(long, value_name = "STAGE")]
    pub(crate) target: Option<String>,
    /// Add a label to the image
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// A secret for RUN --mount=type=secret, from a file or a variable; it is not kept
    #[arg(long, value_name = "id=ID,src=FILE|env=NAME")]
    pub(crate) secret: Vec<String>,
    /// Rebuild every step
    #[arg(long)]
    pub(crate) no_cache: bool,
    /// Show the output of every step
    #[arg(long, short)]
    pub(crate) verbose: bool,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct ImageLsArgs {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRmArgs {
    /// The images; asks for confirmation if sandboxes use one
    #[arg(required = true)]
    pub(crate) images: Vec<ImageName>,
    /// Don't ask for confirmation; sandboxes keep the image's layers, but no new sandbox can use it
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Layers outlive their image when it is rebuilt or removed while sandboxes use it, and when a build
fails: the next build reuses them. With --unused-for, pulled images go, too, if no create, build or
pull has named them for that time. Those that sandboxes, templates or pools use stay, and so do the
default image and images that were built or loaded here.

Examples:
  sudo arenite image prune                                  remove layers only
  sudo arenite image prune --unused-for 30d --dry-run       show what would be removed")]
pub(crate) struct ImagePruneArgs {
    /// Also remove pulled images that nothing used for this time, such as 30d
    #[arg(long, value_name = "TIME")]
    pub(crate) unused_for: Option<Span>,
    /// With --unused-for, also remove images that were built or loaded here
    #[arg(long, requires = "unused_for")]
    pub(crate) all: bool,
    /// With --unused-for, only show what would be removed
    #[arg(long, requires = "unused_for")]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The file is an OCI image layout in a tar: each layer once, named by the SHA-256 of its bytes.

Examples:
  sudo arenite image save base -o base.tar
  sudo arenite image save base code -o images.tar      share layers in one file
  sudo arenite image save base --with-guest -o box.tar && docker load -i box.tar
  docker run -e ARENITE_GUEST_KEY=KEY -p 127.0.0.1:8080:8080 base")]
pub(crate) struct ImageSaveArgs {
    /// The images
    #[arg(required = true)]
    pub(crate) images: Vec<ImageName>,
    /// The file; an existing one is replaced when the new one is complete
    #[arg(long, short, value_name = "FILE")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) guest: GuestArgs,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

/// What is added to an exported image.
#[derive(Debug, Args)]
pub(crate) struct GuestArgs {
    /// Add this program as the entry point: containers of the image serve the sandbox's API on port 8080
    #[arg(long)]
    with_guest: bool,
}

impl GuestArgs {
    /// The file of the guest's program, if it is wanted.
    pub(crate) fn program(&self) -> Option<&Path> {
        self.with_guest.then(|| Path::new("/proc/self/exe"))
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Takes what image save and docker save write, and OCI image layouts, in a tar or as a directory.
The SHA-256 of every layer is compared before the image exists. An image with the same name is
replaced, and its sandboxes keep their layers.

Examples:
  sudo arenite image load images.tar
  docker save python:3.12-slim -o python.tar && sudo arenite image load python.tar
  sudo arenite image load layout/ tools      an OCI layout, and the name of its image here")]
pub(crate) struct ImageLoadArgs {
    /// The file, or the directory of an OCI layout
    pub(crate) file: PathBuf,
    /// Name of the image, if there is one, in place of its name in the file
    pub(crate) name: Option<ImageName>,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct RegistryArgs {
    /// A registry that may answer without TLS; those on loopback may always. Repeatable
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) insecure_registry: Vec<String>,
    /// Docker's configuration with credentials [default: config.json in $DOCKER_CONFIG or ~/.docker]
    #[arg(long, value_name = "FILE")]
    pub(crate) docker_config: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
References are read as Docker reads them: docker.io is the default registry, latest the default
tag. The image's name is the reference without these defaults. The image for this host's
architecture is pulled. Credentials are those of docker login, of the user that runs the command:
with sudo, root. An interrupted pull goes on with the next one.

Examples:
  sudo arenite image pull python:3.12-slim
  sudo arenite image pull localhost:5000/team/app:1.0 app        name the image app
  sudo arenite image pull registry.example/app --docker-config ~/.docker/config.json")]
pub(crate) struct ImagePullArgs {
    /// The image's reference in the registry
    #[arg(value_name = "REFERENCE")]
    pub(crate) reference: String,
    /// Name of the image here [default: as the reference]
    pub(crate) name: Option<ImageName>,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Layers that the registry has are not sent again. The digest of the manifest is printed.

Examples:
  sudo arenite image push tools localhost:5000/team/tools:1.0
  sudo arenite image push base registry.example/base:box --with-guest    runs in Docker and pods")]
pub(crate) struct ImagePushArgs {
    /// The image
    pub(crate) image: ImageName,
    /// Its reference in the registry
    #[arg(value_name = "REFERENCE")]
    pub(crate) reference: String,
    #[command(flatten)]
    pub(crate) guest: GuestArgs,
    #[command(flatten)]
    pub(crate) registry: RegistryArgs,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct ImageHistoryArgs {
    /// The image
    pub(crate) image: ImageName,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The image
    pub(crate) image: ImageName,
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each line is ok, degraded (it works, without what the line names) or missing (required to create sandboxes). The exit code is 1
if something is missing.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}
