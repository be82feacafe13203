//! The context of the sandbox, in plain Rust.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arenite_model::Tier;
use serde::Serialize;
use utoipa::ToSchema;

use super::services::{self, ServiceState};
use super::system;
use super::tools::{self, ToolCategory};
use arenite_guest_code::jupyter::JupyterService;
use arenite_guest_code::packages::{names, npm, python_in, python_prefixes};
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::programs::{self, Program, Versions};
use arenite_guest_runtime::workers::Kind;

/// Describes the sandbox.
#[derive(Debug)]
pub struct SandboxService {
    pub(super) runtime: Arc<Runtime>,
    versions: Arc<Versions>,
    jupyter: Arc<JupyterService>,
}

impl SandboxService {
    pub fn new(runtime: Arc<Runtime>, versions: Arc<Versions>, jupyter: Arc<JupyterService>) -> Self {
        Self { runtime, versions, jupyter }
    }
}

/// AIO's clients expect a `v` and four numbers.
pub(super) const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"), ".0");

/// Python versions that are looked up by their own commands: 3.8 to this one.
const NEWEST_PYTHON: u32 = 20;

#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct ToolSpec {
    pub ver: Option<String>,
    pub bin: Option<String>,
    pub alias: Vec<String>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SystemEnv {
    pub os: String,
    pub os_version: String,
    pub arch: String,
    pub user: String,
    pub home_dir: String,
    pub workspace: Option<String>,
    pub timezone: String,
    /// TCP ports that something listens on.
    pub occupied_ports: Vec<String>,
}

#[derive(Debug, Clone, Default, Serialize, ToSchema)]
pub struct RuntimeEnv {
    pub python: Vec<ToolSpec>,
    pub nodejs: Vec<ToolSpec>,
}

#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SandboxDetail {
    pub system: SystemEnv,
    pub runtime: RuntimeEnv,
    pub utils: Vec<ToolCategory>,
    /// Arenite's extension: the services of this sandbox, and what the others lack.
    pub services: Vec<ServiceState>,
    /// What isolates the sandbox: `namespace`, `gvisor`, or `machine`.
    pub tier: Tier,
}

/// The sandbox's context for agents.
#[derive(Debug, Clone)]
pub struct Context {
    pub home_dir: String,
    pub workspace: String,
    pub version: &'static str,
    pub detail: SandboxDetail,
    /// The same as text.
    pub summary: String,
}

/// The part of the context that is found by reading files.
struct Found {
    system: SystemEnv,
    pythons: Vec<Program>,
    python_tools: Vec<(Program, Option<String>)>,
    uv: Vec<Program>,
    nodes: Vec<Program>,
    npm: Vec<(Program, Option<String>)>,
    utils: Vec<ToolCategory>,
    git: Option<PathBuf>,
}

fn look(guest_user: &str, home: &Path, workspace: &Path, env: &[(String, String)]) -> Found {
    let path = programs::search_path(env);
    let (os, os_version) = system::distribution(&{
        let text = system::text("/etc/os-release");
        if text.is_empty() { system::text("/usr/lib/os-release") } else { text }
    });
    let environment = env.iter().find(|(name, _)| name == "VIRTUAL_ENV").map(|(_, value)| value.as_str());
    let python_packages = python_in(&python_prefixes(&path, home, environment));
    let version_of = |name: &str| python_packages.iter().find(|p| p.name == name).map(|p| p.version.clone());
    let pip_names = ["pip3", "pip"].map(str::to_owned).into_iter();
    let pip_names = pip_names.chain((8..=NEWEST_PYTHON).rev().map(|minor| format!("pip3.{minor}")));
    let mut python_tools: Vec<_> = Vec::new();
    // Debian's pip commands are one script in several files.
    let pip = programs::find(pip_names, &path).into_iter().reduce(|mut first, next| {
        first.names.extend(next.names);
        first
    });
    python_tools.extend(pip.map(|p| (p, version_of("pip"))));
    let jupyters = programs::find(names(["jupyter"]), &path);
    python_tools.extend(jupyters.into_iter().map(|p| (p, version_of("jupyter_core").or(version_of("jupyter-core")))));
    let python_names = ["python3", "python"].map(str::to_owned).into_iter();
    let nodes = ["node", "nodejs"].map(str::to_owned).into_iter();
    Found {
        system: SystemEnv {
            os,
            os_version,
            arch: std::env::consts::ARCH.to_owned(),
            user: guest_user.to_owned(),
            home_dir: home.display().to_string(),
            workspace: Some(workspace.display().to_string()),
            timezone: system::timezone(&env.iter().cloned().collect()),
            occupied_ports: system::occupied_ports().iter().map(u16::to_string).collect(),
        },
        pythons: programs::find(python_names.chain((8..=NEWEST_PYTHON).rev().map(|minor| format!("python3.{minor}"))), &path),
        python_tools,
        uv: programs::find(names(["uv"]), &path),
        nodes: programs::find(nodes.chain((16..=40).rev().step_by(2).map(|major| format!("node{major}"))), &path),
        npm: npm(&path).into_iter().map(|(program, package)| (program, package.map(|p| p.version))).collect(),
        utils: tools::present(&path),
        git: programs::locate("git", &path),
    }
}

fn spec(program: Program, ver: Option<String>) -> ToolSpec {
    ToolSpec { ver, bin: Some(program.path.display().to_string()), alias: program.names }
}

/// Describes the sandbox.
pub async fn context(sandbox: &Arc<SandboxService>) -> Result<Context, Failure> {
    let env = sandbox.runtime.environment(&sandbox.runtime.user, &[]);
    let workspace = match env.iter().find(|(name, _)| name == "WORKSPACE") {
        Some((_, dir)) => PathBuf::from(dir),
        None => sandbox.runtime.default_dir(),
    };
    let (user, home, directory) = (sandbox.runtime.user.name.clone(), sandbox.runtime.user.home.clone(), workspace.clone());
    let look = move |_: &_| Ok::<_, Failure>(look(&user, &home, &directory, &env));
    let found = sandbox.runtime.workers.run(Kind::Scan, &sandbox.runtime.user, look).await?;
    let mut runtime = RuntimeEnv::default();
    for program in found.pythons.into_iter().chain(found.uv) {
        let ver = sandbox.versions.version(&program.file).await;
        runtime.python.push(spec(program, ver));
    }
    runtime.python.extend(found.python_tools.into_iter().map(|(program, ver)| spec(program, ver)));
    for program in found.nodes {
        let ver = sandbox.versions.version(&program.file).await;
        runtime.nodejs.push(spec(program, ver));
    }
    runtime.nodejs.extend(found.npm.into_iter().map(|(program, ver)| spec(program, ver)));
    let git = match &found.git {
        Some(git) => sandbox.versions.version(git).await,
        None => None,
    };
    let services = services::list(&sandbox.runtime, &sandbox.jupyter).await;
    let tier = sandbox.runtime.config().tier;
    let detail = SandboxDetail { system: found.system, runtime, utils: found.utils, services, tier };
    Ok(Context {
        summary: summary(&detail, git.as_deref()),
        home_dir: detail.system.home_dir.clone(),
        workspace: workspace.display().to_string(),
        version: VERSION,
        detail,
    })
}

fn summary(detail: &SandboxDetail, git: Option<&str>) -> String {
    let SandboxDetail { system, runtime, utils, services, .. } = detail;
    let mut out = format!("System Environment ({VERSION}):\n");
    let or_none = |text: String| {
        if text.is_empty() { "none".to_owned() } else { text }
    };
    let _ = writeln!(out, "- {} ({})", format!("{} {}", system.os, system.os_version).trim(), system.arch);
    let sudo = utils.iter().flat_map(|c| &c.tools).any(|t| t.name == "sudo");
    let _ = writeln!(out, "- User: {}{}", system.user, if sudo { ", with sudo" } else { "" });
    let _ = writeln!(out, "- Home directory: {}", system.home_dir);
    let _ = writeln!(out, "- Workspace: {}", system.workspace.as_deref().unwrap_or(&system.home_dir));
    let _ = writeln!(out, "- Timezone: {}", system.timezone);
    let _ = writeln!(out, "- Occupied Ports: {}", or_none(system.occupied_ports.join(",")));
    out.push_str("\nDevelopment Environment:\n");
    for spec in runtime.python.iter().chain(&runtime.nodejs) {
        let name = match spec.alias.first().map_or("", String::as_str) {
            name if name.starts_with("python") => "Python",
            name if name.starts_with("node") => "Node.js",
            name if name.starts_with("pip") => "pip",
            name => name,
        };
        let version = spec.ver.as_deref().unwrap_or("of unknown version");
        let _ = writeln!(out, "- {name} {version} (commands: {})", spec.alias.join(", "));
    }
    if let Some(version) = git {
        let _ = writeln!(out, "- Git: {version} (command: git)");
    }
    out.push_str("\nAvailable Tools:\n");
    for category in utils {
        let tools: Vec<&str> = category.tools.iter().map(|t| t.name.as_str()).collect();
        let _ = writeln!(out, "- {}: {}", category.category, tools.join(", "));
    }
    let mut lacking = services.iter().filter_map(|s| Some((s.name, s.missing.as_ref()?, s.hint.as_ref()?))).peekable();
    if lacking.peek().is_some() {
        out.push_str("\nServices Not Available:\n");
    }
    for (name, missing, hint) in lacking {
        let _ = writeln!(out, "- {name}: {missing}; {hint}");
    }
    out
}
