//! Runs other programs and prints their command lines.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::failure::{Attempt, Failure, Outcome};

/// The root of the repository.
pub(crate) fn repository() -> PathBuf {
    // Of this run: checkouts that share a target directory can share this program.
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().expect("xtask lies in the repository").to_owned()
}

/// The directory of builds and all other output.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository().join("target"), |dir| repository().join(dir))
}

/// Tools that were built for tests, each in a folder of its name and version. All clones of a user share them: building one takes
/// minutes, and the same version is the same program. Root's are where the server's helpers can run them, which have other users.
pub(crate) fn tools_dir() -> PathBuf {
    let home = std::env::var_os("HOME").filter(|_| !is_root());
    home.map_or_else(|| PathBuf::from("/var/cache"), |home| PathBuf::from(home).join(".cache")).join("arenite-tools")
}

pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|data| data.uid() == 0)
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

/// How long to wait before each further try of a download.
const PAUSES: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(30)];
/// Lines of a failed download's output that its failure repeats, since a log may be shown only in part.
const TAIL: usize = 15;

/// Runs a command that downloads something and can be repeated. Registries and mirrors fail at times, so it gets three tries.
pub(crate) fn download(command: &mut Command) -> Outcome {
    download_after(command, &PAUSES)
}

fn download_after(command: &mut Command, pauses: &[Duration]) -> Outcome {
    let mut pauses = pauses.iter();
    loop {
        let Err(failure) = run_keeping_tail(command) else { return Ok(()) };
        let Some(pause) = pauses.next() else { return Err(failure) };
        eprintln!("\n{failure}\nonce more in {} s, since the network may be the reason", pause.as_secs());
        thread::sleep(*pause);
    }
}

/// Like [`run`]; the failure has the last lines of standard error, unless a terminal shows them.
fn run_keeping_tail(command: &mut Command) -> Outcome {
    if std::io::stderr().is_terminal() {
        return run(command);
    }
    let words = shown(command);
    eprintln!("$ {words}");
    let mut child = command.stderr(Stdio::piped()).spawn().attempt(|| format!("could not start {words}"))?;
    let mut tail = VecDeque::new();
    let mut output = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = Vec::new();
    while output.read_until(b'\n', &mut line).attempt(|| format!("could not read what {words} prints"))? > 0 {
        let text = String::from_utf8_lossy(&line).trim_end().to_owned();
        eprintln!("{text}");
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(text);
        line.clear();
    }
    let status = child.wait().attempt(|| format!("could not wait for {words}"))?;
    if status.success() {
        return Ok(());
    }
    let tail: String = tail.iter().map(|line| format!("\n  {line}")).collect();
    Err(Failure::new(format!("{words} failed ({status}):{tail}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_that_fails_twice_succeeds() {
        let tries = std::env::temp_dir().join(format!("xtask-tries-{}", std::process::id()));
        let script = format!("echo >>{0}; [ $(wc -l <{0}) = 3 ]", tries.display());
        let pauses = [Duration::ZERO; 2];
        let third = download_after(program("sh").args(["-c", &script]), &pauses);
        std::fs::remove_file(&tries).expect("it was tried");
        third.expect("the third try succeeds");
    }

    #[test]
    fn a_download_that_fails_for_good_says_why() {
        let script = "for n in $(seq 20); do echo line $n >&2; done; exit 7";
        let failure = download_after(program("sh").args(["-c", script]), &[]).expect_err("it fails").to_string();
        assert!(failure.contains("exit status: 7"), "{failure}");
        if !std::io::stderr().is_terminal() {
            assert!(failure.ends_with("\n  line 20") && !failure.contains("line 5\n"), "{failure}");
        }
    }
}
