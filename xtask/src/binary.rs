//! Builds `arenite`.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::command::{self, cargo, program, repository, shown, target_dir};
use crate::failure::{Attempt, Failure};
use crate::web;

/// A line of cargo's JSON messages.
#[derive(Debug, Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    target: Option<Target>,
    #[serde(default)]
    executable: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    name: String,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum Profile {
    /// The build that a clone starts, for this machine: without the engine for clusters.
    Release,
    /// The build that others install: fully optimised, without paths of this machine, in a separate target directory.
    Dist,
    /// With assertions and overflow checks, and our own crates not optimised: it builds minutes faster.
    Checked,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Self::Release => "release",
            Self::Dist => "dist",
            Self::Checked => "checked",
        }
    }

    /// Cargo for this profile, and its target directory.
    fn cargo(self) -> (Command, PathBuf) {
        match self {
            Self::Dist => (dist_cargo(), dist_target()),
            Self::Release | Self::Checked => (cargo(), target_dir()),
        }
    }
}

/// Builds it with its pages, and returns its path.
pub(crate) fn build(profile: Profile) -> Result<PathBuf, Failure> {
    web::build()?;
    let (mut command, _) = profile.cargo();
    command.args(["build", "--profile", profile.name(), "--package", "arenite", "--message-format", "json-render-diagnostics"]);
    if matches!(profile, Profile::Release) {
        command.arg("--no-default-features");
    }
    eprintln!("$ {}", shown(&command));
    if let Some(commit) = commit() {
        command.env("ARENITE_COMMIT", commit);
    }
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().attempt(|| "could not start cargo".into())?;
    if !output.status.success() {
        return Err(Failure::new("the build failed"));
    }
    let messages = String::from_utf8_lossy(&output.stdout).into_owned();
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok()).find_map(|message| {
        let ours = message.reason == "compiler-artifact" && message.target.is_some_and(|target| target.name == "arenite");
        message.executable.filter(|_| ours)
    });
    built.ok_or_else(|| Failure::new("cargo built no program called arenite"))
}

/// The target directory of the build that others install.
fn dist_target() -> PathBuf {
    target_dir().join("dist-build")
}

/// Cargo for the profile `dist`.
///
/// It replaces paths of this machine in what Rust and C compilers write, which panics and assertions would show.
fn dist_cargo() -> Command {
    let mut command = cargo();
    let target = dist_target();
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let mut paths = vec![(repository(), "/arenite"), (target.clone(), "/target")];
    paths.extend(home.map(|home| (home, "/cargo")));
    // Flags of the environment replace those of .cargo/config.toml, so these are repeated.
    let mut rust = vec!["-Ctarget-feature=+crt-static".to_owned(), "-Crelocation-model=static".to_owned()];
    rust.extend(paths.iter().map(|(path, name)| format!("--remap-path-prefix={}={name}", path.display())));
    let c: Vec<String> = paths.iter().map(|(path, name)| format!("-ffile-prefix-map={}={name}", path.display())).collect();
    command.env("CARGO_TARGET_DIR", target).env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}"));
    command.env("CFLAGS", c.join(" ")).env("CXXFLAGS", c.join(" "));
    command
}

/// Builds an example with all features of the workspace, and returns its path.
pub(crate) fn example(name: &str, profile: Profile) -> Result<PathBuf, Failure> {
    let (mut command, target) = profile.cargo();
    command::run(command.args(["build", "--profile", profile.name(), "--quiet", "--workspace", "--example", name]))?;
    let of_profile = PathBuf::from(profile.name()).join("examples").join(name);
    let places = [target.join("x86_64-unknown-linux-gnu").join(&of_profile), target.join(of_profile)];
    places.into_iter().find(|path| path.is_file()).ok_or_else(|| Failure::new(format!("the example {name} was not built")))
}

/// The current commit, which the program reports; none outside a clone.
fn commit() -> Option<String> {
    let output = program("git").args(["rev-parse", "--short=12", "HEAD"]).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
