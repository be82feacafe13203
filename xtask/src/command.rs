//! Runs other programs and prints their command lines.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::failure::{Attempt, Failure, Outcome};

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().expect("xtask lies in the repository").to_owned()
}

/// The directory of builds and all other output.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), |dir| repository().join(dir))
}

/// A command that runs in the repository.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(repository());
    command
}

/// The cargo that runs this program.
pub(crate) fn cargo() -> Command {
    program(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// The command line, as one could type it.
pub(crate) fn shown(command: &Command) -> String {
    let name = Path::new(command.get_program()).file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    std::iter::once(name).chain(args).collect::<Vec<_>>().join(" ")
}

/// Prints a command line and runs it; fails if the command does.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let words = shown(command);
    eprintln!("$ {words}");
    let status = command.status().attempt(|| format!("could not start {words}"))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("{words} failed ({status})"))) }
}

/// Runs a program that has to succeed, and returns its output.
pub(crate) fn output(command: &mut Command) -> Result<String, Failure> {
    let done = command.output().attempt(|| format!("could not start {}", shown(command)))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(Failure::new(format!("{} failed ({}): {}", shown(command), done.status, String::from_utf8_lossy(&done.stderr))))
}

/// Whether a command succeeds. Its output is dropped.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    quiet.status().is_ok_and(|status| status.success())
}

/// Finds a program on `PATH` or in root's directories of programs.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]).map(|dir| dir.join(name)).find(|file| file.is_file())
}
