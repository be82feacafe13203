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
pub mod pages;
mod ports;
pub mod process;
pub mod proxy;
pub mod sandbox;
pub mod server;
mod services;
mod sessions;
pub mod shell;
pub mod skills;
pub mod vm;
pub use tools::descriptions as tool_descriptions;
mod tools;
pub mod users;
pub mod util;

use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use arenite_isolation::FirstProcess;
use arenite_isolation::counters::Counters;
use arenite_model::protocol::{self, Assignment, GuestConfig};

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

/// The state that all services share.
#[derive(Debug)]
pub struct Guest {
    /// Replaced once, when a pooled sandbox is assigned.
    config: RwLock<Arc<GuestConfig>>,
    /// Starts and reaps processes.
    pub processes: process::Processes,
    /// The user that runs commands.
    pub user: users::User,
    /// Root, for calls with `sudo: true`.
    pub root_user: users::User,
    /// Shell sessions.
    pub shell: shell::ShellService,
    /// Bash sessions.
    pub bash: bash::BashService,
    /// Jupyter kernels and their sessions.
    pub jupyter: jupyter::JupyterService,
    /// Node.js processes and their sessions.
    pub nodejs: nodejs::NodeService,
    /// Editor histories and the threads that touch files.
    pub files: Arc<files::Files>,
    /// The screen.
    pub desktop: desktop::DesktopService,
    /// The browser on it.
    pub browser: browser::BrowserService,
    /// The VM, which replaces the screen.
    pub vm: vm::VmService,
    /// VS Code and JupyterLab.
    pub pages: pages::PagesService,
    /// Commands that run when the sandbox ends.
    pub hooks: hooks::Hooks,
    /// Observations of resource usage.
    pub observe: observe::Observer,
    /// MCP servers.
    pub mcp: mcp::McpService,
    /// The forward proxy for processes of the sandbox.
    pub proxy: proxy::ProxyService,
    /// Versions of programs, cached on first use.
    pub sandbox: sandbox::Versions,
    /// Registered skills.
    pub skills: skills::Skills,
    /// Processes that read untrusted input.
    pub confined: confined::Confined,
}

/// The shared state that handlers receive.
pub type SharedGuest = Arc<Guest>;

/// An id for sessions, commands and similar: unique in the guest, safe in a URL.
fn random_id() -> String {
    // The kernel's generator does not fail after boot; if it did, equal ids would be a minor problem.
    format!("{:016x}", getrandom::u64().unwrap_or_default())
}

impl Guest {
    /// Creates the state. Commands run as the user named by `USER` in the environment, if the image has it, otherwise as the
    /// configured one. If the image has neither, logs an error and uses root.
    pub fn new(mut config: GuestConfig, processes: process::Processes, counters: Counters) -> Self {
        let wanted = config.user.as_deref();
        let by_name = config.env.get("USER").and_then(|name| users::User::find(name));
        let user = by_name.or_else(|| users::User::find(wanted.unwrap_or("gem")));
        if let (None, Some(name)) = (&user, wanted) {
            tracing::error!(name, "the image's user is not in its /etc/passwd: commands run as root");
        }
        let proxy = proxy::ProxyService::default();
        proxy.configure(&mut config.env);
        Self {
            config: RwLock::new(Arc::new(config)),
            processes,
            user: user.unwrap_or_else(users::User::root),
            root_user: users::User::root(),
            shell: Default::default(),
            bash: Default::default(),
            jupyter: Default::default(),
            nodejs: Default::default(),
            files: Arc::default(),
            desktop: Default::default(),
            browser: Default::default(),
            vm: Default::default(),
            pages: Default::default(),
            hooks: Default::default(),
            observe: observe::Observer::new(counters),
            mcp: Default::default(),
            proxy,
            sandbox: Default::default(),
            skills: Default::default(),
            confined: Default::default(),
        }
    }

    /// The current configuration.
    pub fn config(&self) -> Arc<GuestConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Assigns a pooled sandbox to a client. Processes started from now on get the new environment and directory. Returns false
    /// if it was assigned already.
    fn assign(&self, mut config: GuestConfig) -> bool {
        let mut current = self.config.write().unwrap_or_else(PoisonError::into_inner);
        if current.assignment == Assignment::Assigned {
            return false;
        }
        self.proxy.configure(&mut config.env);
        config.assignment = Assignment::Assigned;
        *current = Arc::new(config);
        true
    }

    /// The default directory of commands, in this order: `WORKSPACE` of the environment, configured, the user's home, `/`.
    pub fn default_dir(&self) -> PathBuf {
        let configured = self.config().default_dir().map(PathBuf::from);
        configured.into_iter().chain([self.user.home.clone()]).find(|d| d.is_dir()).unwrap_or_else(|| "/".into())
    }

    /// Makes a path absolute as the user's commands would: relative paths start at the default directory.
    pub fn absolute(&self, path: &str) -> PathBuf {
        match path.strip_prefix("~/").or((path == "~").then_some("")) {
            Some(rest) => self.user.home.join(rest),
            None => self.default_dir().join(path),
        }
    }

    /// The environment of a command: the configured one over the user's basics, `extra` over both.
    pub fn environment(&self, user: &users::User, extra: &[(String, String)]) -> Vec<(String, String)> {
        let mut env: std::collections::BTreeMap<String, String> = [
            ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("HOME", user.home.display().to_string()),
            ("USER", user.name.clone()),
            ("LOGNAME", user.name.clone()),
            ("SHELL", user.shell.clone()),
            ("LANG", "C.UTF-8".to_owned()),
        ]
        .map(|(k, v)| (k.to_owned(), v))
        .into();
        env.extend(self.proxy.environment());
        env.extend(self.config().env.clone());
        env.extend(extra.iter().cloned());
        env.into_iter().collect()
    }
}
