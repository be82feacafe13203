//! The command line: what can be said, and its help.

mod quarantine;
mod rag;
mod rollout;
mod service;
mod trajectory;
mod vm;

use std::path::PathBuf;

use arenite_model::{ImageName, SandboxName};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::client::DEFAULT_SERVER;
use crate::config::values::{Secret, Size, Span};
use crate::config::{DEFAULT_DATA_DIR, Settings};
pub(crate) use quarantine::{QuarantineAdoptArgs, QuarantineCommand, QuarantineLsArgs, QuarantineRmArgs};
pub(crate) use rag::{
    RagCommand, RagEmbedArgs, RagEvalArgs, RagIndexArgs, RagLsArgs, RagRmArgs, RagSearchArgs, SearchMode, VectorPrecision,
};
pub(crate) use rollout::{ResultFormat, RolloutCommand, RolloutRunArgs};
pub(crate) use service::{CompletionsArgs, ManArgs, ServiceCommand, ServiceInstallArgs, ServiceUninstallArgs};
pub(crate) use trajectory::{
    TrajectoryCommand, TrajectoryExportArgs, TrajectoryLsArgs, TrajectoryReplayArgs, TrajectoryShowArgs, TrajectoryVerifyArgs,
};
pub(crate) use vm::{VmBuildArgs, VmCommand, VmImportArgs, VmListArgs, VmProbeArgs, VmSettings};

/// Gives every AI agent its own computer, and records every step it takes.
#[derive(Debug, Parser)]
#[command(
    name = "arenite",
    version,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Examples:
  arenite doctor                       what this host can do
  sudo arenite image build base        build the image that sandboxes use
  sudo arenite serve                   start the server on 127.0.0.1:8080
  arenite create demo                  make a sandbox
  arenite exec demo                    a shell in it
  arenite exec demo -- python3 -c 'print(6 * 7)'
  arenite cp report.csv demo:/home/gem/
  arenite trajectory show demo         what was done there, step by step
  arenite rm demo

'arenite COMMAND --help' shows a command's own examples."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the server is, for commands that speak to one.
#[derive(Debug, Clone, Args)]
pub(crate) struct Server {
    /// The server to speak to
    #[arg(long, env = "ARENITE_SERVER", default_value = DEFAULT_SERVER, value_name = "URL")]
    pub(crate) server: String,
    /// The server's API key, if it asks for one; better in the variable than on the command line
    #[arg(long, env = "ARENITE_API_KEY", hide_env_values = true, value_name = "KEY")]
    pub(crate) api_key: Option<Secret>,
}

/// How results are printed.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Format {
    /// Print JSON, for programs
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start the server
    Serve(Box<ServeArgs>),
    /// Make a sandbox
    Create(Box<CreateArgs>),
    /// List sandboxes
    Ls(LsArgs),
    /// Run a command in a sandbox, or open a shell
    Exec(ExecArgs),
    /// Copy files into, out of or between sandboxes
    Cp(CpArgs),
    /// Show what a sandbox's main command or its guest wrote
    Logs(LogsArgs),
    /// Delete sandboxes
    Rm(RmArgs),
    /// Freeze sandboxes; a call wakes them
    Pause(NamesArgs),
    /// Wake paused sandboxes
    Resume(NamesArgs),
    /// Run failed or lost sandboxes again, with the files that they left
    Start(NamesArgs),
    /// Look after sandboxes that a start could not explain
    #[command(subcommand)]
    Quarantine(QuarantineCommand),
    /// Build and look after images
    #[command(subcommand)]
    Image(ImageCommand),
    /// Build images with a VM in them: a complete system under QEMU
    #[command(subcommand)]
    Vm(VmCommand),
    /// See the recorded steps
    #[command(subcommand)]
    Trajectory(TrajectoryCommand),
    /// Run agents over many tasks
    #[command(subcommand)]
    Rollout(RolloutCommand),
    /// Index, search and measure corpora of passages
    #[command(subcommand)]
    Rag(RagCommand),
    /// Speak MCP on standard input and output, for desktop clients
    Mcp(McpArgs),
    /// Mount a storage pool again that an error of the disk made read-only
    RecoverStorage(RecoverStorageArgs),
    /// Show or remove everything that Arenite has on this host
    Reset(ResetArgs),
    /// Run the server as a service of systemd
    #[command(subcommand)]
    Service(ServiceCommand),
    /// Check what this host can do
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write manual pages; packages are built with it
    #[command(hide = true)]
    Man(ManArgs),
    /// Run the server inside a sandbox; started by Arenite itself
    #[command(hide = true)]
    Guest,
    /// Run the process that sets sandboxes up; started by Arenite itself
    #[command(hide = true)]
    Launcher,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite mcp                          tools that make sandboxes, and those of the sandbox 'default'
  arenite mcp --sandbox demo           the tools of one sandbox
  claude mcp add arenite -- arenite mcp

A client's configuration:
  {\"mcpServers\": {\"arenite\": {\"command\": \"arenite\", \"args\": [\"mcp\"]}}}

Clients that speak HTTP need no program: give them http://127.0.0.1:8080/mcp.")]
pub(crate) struct McpArgs {
    /// Offer this sandbox's tools alone
    #[arg(long, short, value_name = "NAME")]
    pub(crate) sandbox: Option<SandboxName>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Every setting has one name, in this order of precedence: a flag (--prepared-slots), a variable (ARENITE_PREPARED_SLOTS), a line of the
TOML file (prepared_slots = 16), the default. Lists in variables are separated by commas.

Examples:
  sudo arenite serve
  sudo arenite serve --listen 127.0.0.1:9000 --data-dir /srv/arenite
  arenite serve --show-config          the effective configuration, and where each value is from
  sudo arenite serve --config sandbox-server.json         AgentFlow's own configuration
  arenite serve --config sandbox-server.json --validate   whether it can be used
  sudo arenite serve --extra-ca /etc/ssl/proxy-ca.pem
  sudo arenite serve --take-over       a newer program in the place of the one that serves

Sockets that a service manager passes (LISTEN_FDS) are served on in the place of --listen. The server stops gracefully at SIGTERM and SIGINT, and at once at a second one. Sandboxes live on and are found again at the
next start; with --remove-sandboxes they are removed.")]
pub(crate) struct ServeArgs {
    /// Configuration file, in TOML or as AgentFlow's JSON [default: /etc/arenite.toml when it exists]
    #[arg(long, env = "ARENITE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the effective configuration and end
    #[arg(long)]
    pub(crate) show_config: bool,
    /// Check the configuration and end
    #[arg(long)]
    pub(crate) validate: bool,
    /// Take the place of the server that runs on the same data directory, without refusing a connection
    #[arg(long)]
    pub(crate) take_over: bool,
    #[command(flatten)]
    pub(crate) settings: Settings,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite create                                   a sandbox with a name made up
  arenite create demo
  arenite create small --memory 512MiB --cpu 0.5 --network none
  arenite create web --env PORT=3000 --port 3000 --timeout 2h -- python3 -m http.server 3000")]
pub(crate) struct CreateArgs {
    /// Its name: lower-case letters, digits and inner hyphens
    pub(crate) name: Option<SandboxName>,
    /// Image to make it of [default: the template's, else the server's]
    #[arg(long, short, value_name = "IMAGE")]
    pub(crate) image: Option<ImageName>,
    /// Template to begin with
    #[arg(long, short, value_name = "TEMPLATE")]
    pub(crate) template: Option<String>,
    /// Environment of its commands; without =VALUE the value here is passed on
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Cores it may use, such as 0.5 or 2
    #[arg(long, value_name = "CORES", value_parser = cores)]
    pub(crate) cpu: Option<u32>,
    /// Memory it may use
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<Size>,
    /// Disk space it may write
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<Size>,
    /// Size of its /dev/shm
    #[arg(long, value_name = "SIZE")]
    pub(crate) shm: Option<Size>,
    /// Processes and threads it may have
    #[arg(long, value_name = "N")]
    pub(crate) pids: Option<u32>,
    /// What it may reach
    #[arg(long, value_enum)]
    pub(crate) network: Option<Network>,
    /// Default directory of its commands
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// Its host name [default: its name]
    #[arg(long, value_name = "NAME")]
    pub(crate) hostname: Option<String>,
    /// A directory of the host that the server declares, and where to mount it
    #[arg(long, short, value_name = "NAME:PATH[:ro]")]
    pub(crate) volume: Vec<String>,
    /// A port that it means to serve
    #[arg(long, short, value_name = "PORT")]
    pub(crate) port: Vec<u16>,
    /// Delete it after this time [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Apply the idle policy after this time without a call [default: never]
    #[arg(long, value_name = "TIME")]
    pub(crate) idle_timeout: Option<Span>,
    /// What happens when it was idle for that time
    #[arg(long, value_enum)]
    pub(crate) idle_policy: Option<Idle>,
    /// A label
    #[arg(long, short, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
    /// Its main command, run once, with its output logged
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) args: Vec<String>,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

fn cores(text: &str) -> Result<u32, String> {
    match text.parse::<f64>() {
        Ok(cores) if (0.01..=1024.0).contains(&cores) => Ok((cores * 1000.0).round() as u32),
        _ => Err("write a number of cores from 0.01 to 1024, such as 0.5 or 2".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Network {
    /// Its own loopback only
    None,
    /// The public internet, but not metadata addresses, private ranges or the host
    Open,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Idle {
    /// Delete it
    Delete,
    /// Freeze it until the next call
    Pause,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  arenite ls
  arenite ls --json | jq -r '.sandboxes[].name'
  arenite ls -q                        names only")]
pub(crate) struct LsArgs {
    /// Print names only
    #[arg(long, short, conflicts_with = "json")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
On a terminal the command gets a terminal of its own; elsewhere its stdout and stderr stay apart and stdin is passed to it.
The exit code is the command's; 125 means that Arenite failed. Input and output are text: bytes that are not UTF-8 are
replaced, so copy binary files with 'arenite cp'.

Examples:
  arenite exec demo                                a shell
  arenite exec demo -- ls -l /home/gem
  arenite exec demo -c 'cd /tmp && ls | wc -l'     a line for bash
  echo 'print(6 * 7)' | arenite exec demo -- python3
  arenite exec demo --no-tty -- make test")]
pub(crate) struct ExecArgs {
    /// The sandbox; 'default' is made when it isn't there
    pub(crate) sandbox: SandboxName,
    /// A line for bash instead of a command with its arguments
    #[arg(short = 'c', long = "script", value_name = "LINE", conflicts_with = "command")]
    pub(crate) script: Option<String>,
    /// Directory to run it in [default: the sandbox's]
    #[arg(long, short, value_name = "DIR")]
    pub(crate) workdir: Option<String>,
    /// A variable for the command; without =VALUE the value here is passed on
    #[arg(long, short, value_name = "KEY[=VALUE]")]
    pub(crate) env: Vec<String>,
    /// Kill the command after this time
    #[arg(long, value_name = "TIME")]
    pub(crate) timeout: Option<Span>,
    /// Use no terminal, even on one
    #[arg(long)]
    pub(crate) no_tty: bool,
    /// The command and its arguments; none: a shell
    #[arg(last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
    #[command(flatten)]
    pub(crate) server: Server,
}

#[derive(Debug, Args)]
#[command(after_help = "\
One side names a sandbox, as NAME:/PATH; '-' is stdin or stdout. A directory is copied with all that is in it, and lands in the
target when that is a directory.

Examples:
  arenite cp report.csv demo:/home/gem/
  arenite cp ./project demo:/home/gem/
  arenite cp demo:/home/gem/out.png .
  arenite cp demo:/var/log/dpkg.log - | tail
  tar c src | arenite cp - demo:/tmp/src.tar")]
pub(crate) struct CpArgs {
    /// What to copy: PATH, NAME:/PATH or -
    pub(crate) source: String,
    /// Where to: PATH, NAME:/PATH or -
    pub(crate) target: String,
    /// Say nothing
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
  arenite logs --guest web             the log of the server inside it")]
pub(crate) struct LogsArgs {
    /// The sandbox
    pub(crate) sandbox: SandboxName,
    /// The guest's own log instead of the main command's output
    #[arg(long)]
    pub(crate) guest: bool,
    /// Go on as more is written
    #[arg(long, short)]
    pub(crate) follow: bool,
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
    /// Every sandbox; asks first
    #[arg(long)]
    pub(crate) all: bool,
    /// Ask nothing, and do not mind sandboxes that aren't there
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
The server must be stopped. Processes of sandboxes are ended; their disks are kept. A pool that can be written to is left as
it is.

Example:
  sudo arenite recover-storage")]
pub(crate) struct RecoverStorageArgs {
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Without --all the command lists what it would remove: the server, sandboxes with their processes and networks, the storage
pool, and the data directory with images, trajectories and corpora. Other data directories of this host stay, and so do
kernel settings that the server changed (docs/OPERATIONS.md lists them).

Examples:
  sudo arenite reset
  sudo arenite reset --all
  sudo arenite reset --all --force --data-dir /srv/arenite         in scripts")]
pub(crate) struct ResetArgs {
    /// Stop the server and remove everything; asks first
    #[arg(long)]
    pub(crate) all: bool,
    /// Ask nothing
    #[arg(long, short, requires = "all")]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

/// Where this host's images are.
#[derive(Debug, Clone, Args)]
pub(crate) struct DataDir {
    /// The server's data directory
    #[arg(long, env = "ARENITE_DATA_DIR", default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Build an image from an Imagefile
    Build(BuildArgs),
    /// List images
    Ls(ImageLsArgs),
    /// Remove images
    Rm(ImageRmArgs),
    /// Remove layers that no image has and no sandbox uses
    Prune(ImagePruneArgs),
    /// Show an image's layers and configuration
    Inspect(InspectArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
An Imagefile has the syntax of a Dockerfile with FROM, RUN, COPY, ENV, WORKDIR, USER and LABEL. FROM debootstrap:bookworm begins
with a fresh Debian, FROM IMAGE with an image of this host. Steps whose input didn't change are taken from earlier builds.

Examples:
  sudo arenite image build base                    the image that comes with Arenite
  sudo arenite image build tools -f Imagefile      with the directory of Imagefile as context
  sudo arenite image build tools -f ci/Imagefile --context .")]
pub(crate) struct BuildArgs {
    /// The image's name; 'base' needs no Imagefile
    pub(crate) name: ImageName,
    /// The Imagefile
    #[arg(long, short, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// Directory that COPY takes from [default: the Imagefile's]
    #[arg(long, value_name = "DIR")]
    pub(crate) context: Option<PathBuf>,
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
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct ImageRmArgs {
    /// The images; of one that sandboxes use it asks first
    #[arg(required = true)]
    pub(crate) images: Vec<ImageName>,
    /// Ask nothing: sandboxes that use an image keep its layers, but none can be made of it any more
    #[arg(long, short)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Layers outlive their image when it is built anew or removed while sandboxes use it, and when a build fails: the next build
takes them up again.")]
pub(crate) struct ImagePruneArgs {
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The image
    pub(crate) image: ImageName,
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Each line is ok, degraded (it works, with what is said there lacking) or missing (sandboxes can't be made without it).
The exit code is 1 when something is missing.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) data_dir: DataDir,
}
