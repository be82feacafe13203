//! The context of the sandbox, in plain Rust.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;
use utoipa::ToSchema;

use super::packages::{self, Package};
use super::programs::{self, Program};
use super::system;
use super::tools::{self, ToolCategory};
use crate::Guest;
use crate::files::{Failure, Kind};

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

fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = String> {
    names.into_iter().map(str::to_owned)
}

/// Prefixes under which Pythons keep packages: the user's own, those on the search path, the system's.
fn python_prefixes(path: &[PathBuf], home: &Path, environment: Option<&str>) -> Vec<PathBuf> {
    let python = programs::find(names(["python3", "python"]), path);
    let resolved = python.iter().filter_map(|p| p.file.parent()?.parent()).map(Path::to_owned);
    let on_path = python.iter().filter_map(|p| p.path.parent()?.parent()).map(Path::to_owned);
    let mut prefixes: Vec<PathBuf> = environment.map(PathBuf::from).into_iter().chain(on_path).collect();
    prefixes.push(home.join(".local"));
    prefixes.extend(resolved);
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    prefixes
}

/// Debian keeps its own modules beside the versions, in `python3/dist-packages`, which the pattern also matches.
fn python_in(prefixes: &[PathBuf]) -> Vec<Package> {
    let mut directories: Vec<PathBuf> = Vec::new();
    for prefix in prefixes {
        for directory in packages::python_directories(std::slice::from_ref(prefix)) {
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        }
    }
    packages::python(&directories)
}

/// Directories of global Node.js packages: of npm's configured prefix, of the Node.js on the search path, and the usual ones.
fn node_directories(path: &[PathBuf], env: &[(String, String)]) -> Vec<PathBuf> {
    let variable = |name: &str| env.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone());
    let told = variable("NPM_CONFIG_PREFIX").map(|prefix| PathBuf::from(prefix).join("lib/node_modules"));
    let by_path = variable("NODE_PATH").unwrap_or_default();
    let by_path = by_path.split(':').filter(|d| d.starts_with('/')).map(PathBuf::from).collect::<Vec<_>>();
    let own = programs::find(names(["node"]), path)
        .iter()
        .filter_map(|p| Some(p.file.parent()?.parent()?.join("lib/node_modules")))
        .collect::<Vec<_>>();
    let usual = ["/usr/local/lib/node_modules", "/usr/lib/node_modules"].map(PathBuf::from);
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in told.into_iter().chain(by_path).chain(own).chain(usual) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

/// The npm on the search path, which distributions may install outside the global packages.
fn npm(path: &[PathBuf]) -> Vec<(Program, Option<Package>)> {
    programs::find(names(["npm"]), path)
        .into_iter()
        .map(|program| {
            let package = program
                .file
                .ancestors()
                .skip(1)
                .take(4)
                .find_map(|dir| packages::nodejs_package(dir).filter(|p| p.name == "npm"));
            (program, package)
        })
        .collect()
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
pub async fn context(guest: &Guest) -> Result<Context, Failure> {
    let env = guest.environment(&guest.user, &[]);
    let workspace = match env.iter().find(|(name, _)| name == "WORKSPACE") {
        Some((_, dir)) => PathBuf::from(dir),
        None => guest.default_dir(),
    };
    let (user, home, directory) = (guest.user.name.clone(), guest.user.home.clone(), workspace.clone());
    let look = move |_: &_| Ok(look(&user, &home, &directory, &env));
    let found = guest.files.workers.run(Kind::Scan, &guest.user, look).await?;
    let mut runtime = RuntimeEnv::default();
    for program in found.pythons.into_iter().chain(found.uv) {
        let ver = guest.sandbox.version(guest, &program.file).await;
        runtime.python.push(spec(program, ver));
    }
    runtime.python.extend(found.python_tools.into_iter().map(|(program, ver)| spec(program, ver)));
    for program in found.nodes {
        let ver = guest.sandbox.version(guest, &program.file).await;
        runtime.nodejs.push(spec(program, ver));
    }
    runtime.nodejs.extend(found.npm.into_iter().map(|(program, ver)| spec(program, ver)));
    let git = match &found.git {
        Some(git) => guest.sandbox.version(guest, git).await,
        None => None,
    };
    let detail = SandboxDetail { system: found.system, runtime, utils: found.utils };
    Ok(Context {
        summary: summary(&detail, git.as_deref()),
        home_dir: detail.system.home_dir.clone(),
        workspace: workspace.display().to_string(),
        version: VERSION,
        detail,
    })
}

fn summary(detail: &SandboxDetail, git: Option<&str>) -> String {
    let SandboxDetail { system, runtime, utils } = detail;
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
    out
}

/// The Python packages that the sandbox's user can import.
pub async fn python_packages(guest: &Guest) -> Result<Vec<Package>, Failure> {
    let env = guest.environment(&guest.user, &[]);
    let home = guest.user.home.clone();
    let look = move |_: &_| {
        let environment = env.iter().find(|(name, _)| name == "VIRTUAL_ENV").map(|(_, value)| value.as_str());
        Ok(python_in(&python_prefixes(&programs::search_path(&env), &home, environment)))
    };
    guest.files.workers.run(Kind::Scan, &guest.user, look).await
}

/// The global Node.js packages, including npm.
pub async fn nodejs_packages(guest: &Guest) -> Result<Vec<Package>, Failure> {
    let env = guest.environment(&guest.user, &[]);
    let look = move |_: &_| {
        let path = programs::search_path(&env);
        let mut packages = packages::nodejs(&node_directories(&path, &env));
        for package in npm(&path).into_iter().filter_map(|(_, package)| package) {
            if packages.iter().all(|p| p.name != package.name) {
                packages.push(package);
            }
        }
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(packages)
    };
    guest.files.workers.run(Kind::Scan, &guest.user, look).await
}
