//! The server inside each sandbox.
//!
//! Owns the start, the routes of all services, the registry of tools, MCP, pages, hooks, observations, and the command `aio`. The
//! services themselves are crates beside this one: `service.rs` does the work in plain Rust, and `routes.rs` speaks AIO Sandbox's
//! wire format (`/v1/*`). Never knows the tenant, and never trusts that it is alone: the sandbox's own root can change it at
//! will, so nothing outside the sandbox may depend on its honesty.

#![forbid(unsafe_code)]

mod activity;
mod agent;
mod ahead;
pub mod aio;
pub mod api;
mod build_step;
mod connection;
mod container;
mod guard;
mod handed;
pub mod hooks;
mod inside;
mod log;
mod main_command;
pub mod mcp;
pub mod observe;
pub mod pages;
mod places;
pub mod pod;
mod ports;
pub mod sandbox;
pub mod server;
mod services;
mod sessions;
mod severable;
mod ssh_agent;
mod standalone;
pub use tools::descriptions as tool_descriptions;
mod tools;
mod trust;
mod unread;

pub use arenite_guest_desktop::vm;
pub use arenite_guest_files::confined;

use std::sync::Arc;

use arenite_guest_browser::BrowserService;
use arenite_guest_code::code::CodeService;
use arenite_guest_code::jupyter::JupyterService;
use arenite_guest_code::nodejs::NodeService;
use arenite_guest_desktop::desktop::{BrowserWindow, DesktopService};
use arenite_guest_desktop::vm::VmService;
use arenite_guest_files::confined::Confined;
use arenite_guest_files::files::Files;
use arenite_guest_files::skills::Skills;
use arenite_guest_files::util::Converter;
use arenite_guest_proxy::{ProxyService, ProxySettings};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::Processes;
use arenite_guest_runtime::programs::Versions;
use arenite_guest_shell::bash::BashService;
use arenite_guest_shell::shell::ShellService;
use arenite_isolation::counters::Counters;
use arenite_isolation::{self as isolation, FirstProcess};
use arenite_model::protocol::{self, GuestConfig};

/// Runs `arenite guest`: the server of a sandbox or of a container, one step of an image build, or a reader of untrusted input for
/// the server. Call it in a process with one thread.
pub fn main() -> std::io::Result<()> {
    match std::env::args_os().nth(2) {
        Some(argument) if argument == confined::ARGUMENT => return confined::main(),
        Some(argument) if argument == isolation::container::ARGUMENT => {
            let given = isolation::container::begin()?;
            log::start();
            return server::run(server::Start::from_given(given)?);
        }
        Some(argument) if argument == standalone::ARGUMENT => return standalone::main(),
        Some(argument) if argument == pod::INSTALL_ARGUMENT => return pod::install(std::env::args_os().nth(3)),
        Some(argument) if argument == pod::ARGUMENT => return pod::main(),
        _ => {}
    }
    let Some(first) = FirstProcess::prepare()? else {
        return Err(std::io::Error::other("the launcher of a server starts this, in a sandbox"));
    };
    let mut given = first.begin();
    match given.named.remove(protocol::OUTPUT) {
        Some(output) => build_step::run(output, given),
        None => {
            log::start();
            server::run(server::Start::from_given(given)?)
        }
    }
}

/// All services of a sandbox. Each has handles to those that it uses, and a service costs next to nothing until its first call.
#[derive(Debug)]
pub struct Guest {
    /// Configuration, users, processes, and threads.
    pub runtime: Arc<Runtime>,
    /// Shell sessions.
    pub shell: Arc<ShellService>,
    /// Bash sessions.
    pub bash: Arc<BashService>,
    /// Jupyter kernels and their sessions.
    pub jupyter: Arc<JupyterService>,
    /// Node.js processes and their sessions.
    pub nodejs: Arc<NodeService>,
    /// Code in either.
    pub code: Arc<CodeService>,
    /// Editor histories and watches.
    pub files: Arc<Files>,
    /// Conversion to Markdown.
    pub converter: Arc<Converter>,
    /// The port for calls of the sandbox's agent to the server.
    pub agent: agent::AgentPort,
    /// The socket of the SSH agent.
    pub ssh_agent: ssh_agent::SshAgentSocket,
    /// The screen.
    pub desktop: Arc<DesktopService>,
    /// The browser on it.
    pub browser: Arc<BrowserService>,
    /// The VM, which replaces the screen.
    pub vm: Arc<VmService>,
    /// VS Code and JupyterLab.
    pub pages: Arc<pages::PagesService>,
    /// Commands that run when the sandbox ends.
    pub hooks: Arc<hooks::Hooks>,
    /// Observations of resource usage.
    pub observer: Arc<observe::Observer>,
    /// MCP servers.
    pub mcp: Arc<mcp::McpService>,
    /// The forward proxy for processes of the sandbox.
    pub proxy: Arc<ProxyService>,
    /// What the sandbox is, and what is installed in it.
    pub sandbox: Arc<sandbox::SandboxService>,
    /// Registered skills.
    pub skills: Arc<Skills>,
}

/// The shared state that handlers receive.
pub type SharedGuest = Arc<Guest>;

impl Guest {
    /// Creates the services.
    pub fn new(mut config: GuestConfig, processes: Processes, counters: Counters) -> Self {
        let settings = ProxySettings::take(&mut config.env);
        let runtime = Arc::new(Runtime::new(config, processes));
        let proxy = Arc::new(ProxyService::new(runtime.clone(), settings));
        let versions = Arc::new(Versions::new(runtime.clone()));
        let confined = Arc::new(Confined::new(runtime.clone()));
        let files = Arc::new(Files::new(runtime.clone(), confined.clone()));
        let shell = Arc::new(ShellService::new(runtime.clone()));
        let jupyter = Arc::new(JupyterService::new(runtime.clone()));
        let nodejs = Arc::new(NodeService::new(runtime.clone(), versions.clone()));
        let vm = Arc::new(VmService::new(runtime.clone()));
        let desktop = Arc::new(DesktopService::new(runtime.clone(), vm.clone()));
        let browser = Arc::new(BrowserService::new(runtime.clone(), desktop.clone(), confined.clone()));
        let window: Arc<dyn BrowserWindow> = browser.clone();
        desktop.register_browser(Arc::downgrade(&window));
        Self {
            agent: agent::AgentPort::default(),
            ssh_agent: ssh_agent::SshAgentSocket::default(),
            bash: Arc::new(BashService::new(runtime.clone())),
            code: Arc::new(CodeService::new(runtime.clone(), versions.clone(), jupyter.clone(), nodejs.clone())),
            converter: Arc::new(Converter::new(runtime.clone(), files.clone(), confined.clone())),
            pages: Arc::new(pages::PagesService::new(runtime.clone(), shell.clone())),
            hooks: Arc::new(hooks::Hooks::new(runtime.clone())),
            observer: Arc::new(observe::Observer::new(runtime.clone(), counters)),
            mcp: Arc::new(mcp::McpService::new(runtime.clone())),
            sandbox: Arc::new(sandbox::SandboxService::new(runtime.clone(), versions, jupyter.clone())),
            skills: Arc::new(Skills::new(runtime.clone(), confined)),
            shell,
            jupyter,
            nodejs,
            files,
            desktop,
            browser,
            vm,
            proxy,
            runtime,
        }
    }

    /// Assigns a pooled sandbox to a client: see [`Runtime::assign`].
    fn assign(&self, config: GuestConfig) -> bool {
        self.runtime.assign(config, |env| self.proxy.configure(ProxySettings::take(env)))
    }

    /// Replaces the configuration after a restore. The proxy goes on as it is.
    fn reassign(&self, config: GuestConfig) {
        self.runtime.reassign(config, |env| drop(ProxySettings::take(env)));
    }
}
