//! The server inside each sandbox.
//!
//! Owns the services that an agent uses there, in one folder each: `service.rs` does the work in plain Rust, and `routes.rs`
//! speaks AIO Sandbox's wire format (`/v1/*`). Never knows the tenant, and never trusts that it is alone: the sandbox's own root
//! can change it at will, so nothing outside the sandbox may depend on its honesty.

#![forbid(unsafe_code)]

mod activity;
mod ahead;
pub mod aio;
pub mod api;
pub mod bash;
pub mod browser;
mod build_step;
pub mod code;
pub mod confined;
pub mod desktop;
mod dial;
pub mod files;
mod guard;
pub mod hooks;
pub mod http;
mod inside;
pub mod jupyter;
mod log;
mod main_command;
pub mod mcp;
pub mod nodejs;
pub mod observe;
mod packages;
pub mod pages;
mod ports;
pub mod process;
pub mod programs;
pub mod proxy;
pub mod runtime;
pub mod sandbox;
pub mod server;
mod services;
mod sessions;
pub mod shell;
pub mod skills;
pub mod vm;
pub mod workers;
pub use tools::descriptions as tool_descriptions;
mod tools;
pub mod users;
pub mod util;

use std::sync::Arc;

use arenite_isolation::FirstProcess;
use arenite_isolation::counters::Counters;
use arenite_model::protocol::{self, GuestConfig};

use crate::runtime::Runtime;

/// Runs `arenite guest`: the server of a sandbox, one step of an image build, or a reader of untrusted input for the server. Call
/// it in a process with one thread.
pub fn main() -> std::io::Result<()> {
    if std::env::args_os().nth(2).is_some_and(|argument| argument == confined::ARGUMENT) {
        return confined::main();
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
    pub shell: Arc<shell::ShellService>,
    /// Bash sessions.
    pub bash: Arc<bash::BashService>,
    /// Jupyter kernels and their sessions.
    pub jupyter: Arc<jupyter::JupyterService>,
    /// Node.js processes and their sessions.
    pub nodejs: Arc<nodejs::NodeService>,
    /// Code in either.
    pub code: Arc<code::CodeService>,
    /// Editor histories and watches.
    pub files: Arc<files::Files>,
    /// Conversion to Markdown.
    pub converter: Arc<util::Converter>,
    /// The screen.
    pub desktop: Arc<desktop::DesktopService>,
    /// The browser on it.
    pub browser: Arc<browser::BrowserService>,
    /// The VM, which replaces the screen.
    pub vm: Arc<vm::VmService>,
    /// VS Code and JupyterLab.
    pub pages: Arc<pages::PagesService>,
    /// Commands that run when the sandbox ends.
    pub hooks: Arc<hooks::Hooks>,
    /// Observations of resource usage.
    pub observer: Arc<observe::Observer>,
    /// MCP servers.
    pub mcp: Arc<mcp::McpService>,
    /// The forward proxy for processes of the sandbox.
    pub proxy: Arc<proxy::ProxyService>,
    /// What the sandbox is, and what is installed in it.
    pub sandbox: Arc<sandbox::SandboxService>,
    /// Registered skills.
    pub skills: Arc<skills::Skills>,
}

/// The shared state that handlers receive.
pub type SharedGuest = Arc<Guest>;

/// An id for sessions, commands and similar: unique in the guest, safe in a URL.
fn random_id() -> String {
    // The kernel's generator does not fail after boot; if it did, equal ids would be a minor problem.
    format!("{:016x}", getrandom::u64().unwrap_or_default())
}

impl Guest {
    /// Creates the services.
    pub fn new(mut config: GuestConfig, processes: process::Processes, counters: Counters) -> Self {
        let settings = proxy::ProxySettings::take(&mut config.env);
        let runtime = Arc::new(Runtime::new(config, processes));
        let proxy = Arc::new(proxy::ProxyService::new(runtime.clone(), settings));
        let versions = Arc::new(programs::Versions::new(runtime.clone()));
        let confined = Arc::new(confined::Confined::new(runtime.clone()));
        let files = Arc::new(files::Files::new(runtime.clone(), confined.clone()));
        let shell = Arc::new(shell::ShellService::new(runtime.clone()));
        let jupyter = Arc::new(jupyter::JupyterService::new(runtime.clone()));
        let nodejs = Arc::new(nodejs::NodeService::new(runtime.clone(), versions.clone()));
        let vm = Arc::new(vm::VmService::new(runtime.clone()));
        let desktop = Arc::new(desktop::DesktopService::new(runtime.clone(), vm.clone()));
        let browser = Arc::new(browser::BrowserService::new(runtime.clone(), desktop.clone(), confined.clone()));
        let window: Arc<dyn desktop::BrowserWindow> = browser.clone();
        desktop.register_browser(Arc::downgrade(&window));
        Self {
            bash: Arc::new(bash::BashService::new(runtime.clone())),
            code: Arc::new(code::CodeService::new(runtime.clone(), versions.clone(), jupyter.clone(), nodejs.clone())),
            converter: Arc::new(util::Converter::new(runtime.clone(), files.clone(), confined.clone())),
            pages: Arc::new(pages::PagesService::new(runtime.clone(), shell.clone())),
            hooks: Arc::new(hooks::Hooks::new(runtime.clone())),
            observer: Arc::new(observe::Observer::new(runtime.clone(), counters)),
            mcp: Arc::new(mcp::McpService::new(runtime.clone())),
            sandbox: Arc::new(sandbox::SandboxService::new(runtime.clone(), versions)),
            skills: Arc::new(skills::Skills::new(runtime.clone(), confined)),
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
        self.runtime.assign(config, |env| self.proxy.configure(proxy::ProxySettings::take(env)))
    }
}
