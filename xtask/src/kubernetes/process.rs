//! Processes of a cluster, which outlive the task that started them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::command::{self, program, shown};
use crate::failure::{Attempt, Failure, Outcome};

/// Maximum time from a kill to the end of a process.
const END_LIMIT: Duration = Duration::from_secs(30);
/// Time between two looks at something that has no event.
pub(super) const PAUSE: Duration = Duration::from_millis(50);
/// Variables that name proxies, which can't reach a cluster.
const PROXIES: [&str; 6] = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"];

/// A process. Its pid may be reused, but not with the same start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pid: u32,
    /// In clock ticks since the host's start.
    started: u64,
}

/// The fields of `/proc/PID/stat` that are used.
struct Stat {
    state: char,
    parent: u32,
    started: u64,
}

impl Stat {
    fn read(pid: u32) -> Option<Self> {
        Self::parse(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    fn parse(text: &str) -> Option<Self> {
        // The name, in parentheses, may contain anything. After it come the fields from the third on.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let state = fields.first()?.chars().next()?;
        Some(Self { state, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
    }
}

impl Process {
    /// Starts a program with a log, and without this task's terminal.
    pub(super) fn start(command: &mut Command, log: &Path) -> Result<Self, Failure> {
        let file = File::options().create(true).append(true).open(log).attempt(|| format!("could not open {}", log.display()))?;
        let copy = file.try_clone().attempt(|| "could not share a file".into())?;
        // Ctrl-C in this terminal is not meant for it.
        let child = command.process_group(0).stdout(file).stderr(copy).spawn();
        let pid = child.attempt(|| format!("could not start {}", shown(command)))?.id();
        let stat = Stat::read(pid).ok_or_else(|| Failure::new(format!("{} ended at once", shown(command))))?;
        Ok(Self { pid, started: stat.started })
    }

    pub(super) fn is_alive(self) -> bool {
        Stat::read(self.pid).is_some_and(|stat| stat.started == self.started && !matches!(stat.state, 'Z' | 'X'))
    }

    /// The process that it started last. `unshare` and `nsenter` have one.
    fn child(self) -> Option<u32> {
        let processes = std::fs::read_dir("/proc").ok()?;
        let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
        pids.filter_map(|pid| Some((pid, Stat::read(pid)?)))
            .filter(|(_, stat)| stat.parent == self.pid)
            .max_by_key(|(_, stat)| stat.started)
            .map(|(pid, _)| pid)
    }

    /// Kills what `unshare` runs, and waits until it and everything in a PID namespace that it started has ended.
    pub(super) fn kill(self) -> Outcome {
        let begun = Instant::now();
        while self.is_alive() {
            // `unshare` waits for its child, so the end of `unshare` is the end of both. A child in the state Z may still have
            // threads, and ports with them.
            command::succeeds(&mut signal_kill(self.child().unwrap_or(self.pid)));
            if begun.elapsed() > END_LIMIT {
                return Err(Failure::new(format!("the process {} did not end within {END_LIMIT:?}", self.pid)));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// A command that waits in `unshare` for a program in the mount and PID namespaces of this `unshare`, and in a network
    /// namespace. If the outer process is killed, so is the program.
    pub(super) fn entering(self, network: &str, unshare: &[&str], program: &str, args: &[String]) -> Vec<String> {
        let mut words: Vec<String> = ["nsenter", "--no-fork"].map(str::to_owned).to_vec();
        words.extend(self.namespaces(network));
        words.push("unshare".to_owned());
        words.extend(unshare.iter().map(|&word| word.to_owned()));
        words.extend(["--fork", "--kill-child", program].map(str::to_owned));
        words.extend_from_slice(args);
        words
    }

    /// A command that runs a program in the mount and PID namespaces of this `unshare`, and in a network namespace.
    pub(super) fn inside(self, network: &str, name: &str) -> Command {
        let mut command = direct("nsenter");
        command.args(self.namespaces(network)).arg(name);
        command
    }

    fn namespaces(self, network: &str) -> [String; 3] {
        let of = |kind: &str| format!("/proc/{}/ns/{kind}", self.pid);
        // `unshare` is itself outside the PID namespace of its children.
        [format!("--mount={}", of("mnt")), format!("--pid={}", of("pid_for_children")), format!("--net={network}")]
    }

    /// The path of its network namespace.
    pub(super) fn network(self) -> String {
        format!("/proc/{}/ns/net", self.pid)
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pid {}", self.pid)
    }
}

fn signal_kill(pid: u32) -> Command {
    let mut kill = program("sh");
    kill.args(["-c", "kill -KILL \"$0\"", &pid.to_string()]);
    kill
}

/// A command without the proxies of the environment and without input.
pub(super) fn direct(name: impl AsRef<OsStr>) -> Command {
    let mut command = program(name);
    for variable in PROXIES {
        command.env_remove(variable);
    }
    command.stdin(Stdio::null());
    command
}

/// A program of the cluster that can be stopped and started again, so its command line is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Component {
    words: Vec<String>,
    environment: BTreeMap<String, String>,
    process: Process,
}

impl Component {
    pub(super) fn start(words: Vec<String>, environment: BTreeMap<String, String>, log: &Path) -> Result<Self, Failure> {
        let process = Self::spawn(&words, &environment, log)?;
        Ok(Self { words, environment, process })
    }

    pub(super) fn start_again(&mut self, log: &Path) -> Outcome {
        self.process = Self::spawn(&self.words, &self.environment, log)?;
        Ok(())
    }

    fn spawn(words: &[String], environment: &BTreeMap<String, String>, log: &Path) -> Result<Process, Failure> {
        let (name, args) = words.split_first().ok_or_else(|| Failure::new("a component has no command line"))?;
        Process::start(direct(name).args(args).envs(environment), log)
    }

    pub(super) fn process(&self) -> Process {
        self.process
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_is_read_behind_any_name() {
        let stat =
            Stat::parse("4071 (a) b) (c) S 1 4071 4071 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 887766 9 9 9").expect("it is");
        assert_eq!((stat.state, stat.parent, stat.started), ('S', 1, 887_766));
        assert!(Stat::parse("4071 (short) S 1").is_none());
    }

    #[test]
    fn a_killed_process_is_not_alive() {
        let log = std::env::temp_dir().join(format!("xtask-process-{}", std::process::id()));
        let process = Process::start(direct("sleep").arg("60"), &log).expect("it starts");
        std::fs::remove_file(&log).expect("it was made");
        assert!(process.is_alive());
        assert!(!Process { started: process.started + 1, ..process }.is_alive(), "a reused pid");
        process.kill().expect("it ends");
        assert!(!process.is_alive());
    }
}
