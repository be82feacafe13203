//! Finds the processes of a command, and ends them.
//!
//! Everything here reads `/proc` and may take milliseconds when there are many processes: call it off the runtime's thread.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::MARKER;

/// The processes of one command, by pid.
pub type Members = Vec<i32>;

/// The most searches for members, since one may fork after it was listed and before it is killed.
const KILL_ROUNDS: usize = 8;
/// The most checks, and the pause between them, of processes that are in an exec and show no environment yet: on a busy machine
/// that may last.
const EXEC_ROUNDS: usize = 40;
const EXEC_PAUSE: Duration = Duration::from_millis(5);
/// The most checks of forked processes for their exec. The pauses between them grow: together they are 3.9 s.
const FORK_ROUNDS: u32 = 40;

#[derive(Debug, Clone, Copy)]
struct Process {
    parent: i32,
    group: i32,
    session: i32,
    /// Clock ticks (1/100 s) after boot.
    started: u64,
    /// Whether it has an environment, which may be empty. Kernel threads never have one; other processes get it at the end of an
    /// exec.
    has_environ: bool,
    of_kernel: bool,
    /// Whether it was forked and has not called exec since.
    before_exec: bool,
}

/// Finds the processes of a command: its descendants, its session, and processes that still carry its mark. Without a leader,
/// which was reaped so that its number may be reused by now: the marked ones and their descendants.
pub fn members(leader: Option<i32>, marker: &str) -> Members {
    look(leader, marker).0
}

/// The processes of a command, and whether there are others that can't be attributed yet.
fn look(leader: Option<i32>, marker: &str) -> (Members, bool) {
    let table = table();
    let mark = format!("{MARKER}={marker}");
    let mut unsure = false;
    let mut found: HashSet<i32> = table
        .iter()
        .filter(|(pid, process)| {
            leader.is_some_and(|leader| **pid == leader || process.session == leader)
                || is_marked(**pid, mark.as_bytes()).unwrap_or_else(|| {
                    unsure |= !process.of_kernel;
                    false
                })
        })
        .map(|(pid, _)| *pid)
        .collect();
    add_descendants(&table, &mut found);
    found.remove(&1);
    (found.into_iter().collect(), unsure)
}

/// A moment, to find the processes that were started after it.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    at: Instant,
    /// The process that was started last. Start times alone have a resolution of 10 ms.
    last: i32,
}

impl Moment {
    pub fn now() -> Self {
        let loads = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let last = loads.split_ascii_whitespace().nth(4);
        Self { at: Instant::now(), last: last.and_then(|pid| pid.parse().ok()).unwrap_or(0) }
    }
}

/// Finds the processes of a shell's command that started at a moment: its foreground job, and processes that were started since
/// by a process that was itself started since. Jobs of earlier commands are left alone.
pub fn members_since(shell: i32, marker: &str, foreground: Option<i32>, since: Moment) -> Members {
    let table = table();
    let all: HashSet<i32> = members(Some(shell), marker).into_iter().collect();
    let uptime: f64 =
        std::fs::read_to_string("/proc/uptime").ok().and_then(|text| text.split(' ').next()?.parse().ok()).unwrap_or(0.0);
    let began = ((uptime - since.at.elapsed().as_secs_f64()).max(0.0) * 100.0) as u64;
    let is_new = |pid: i32| {
        table.get(&pid).is_some_and(|p| {
            let (certain, possible) = (p.started > began + 2, p.started + 2 >= began);
            certain || possible && pid > since.last
        })
    };
    let mut found: HashSet<i32> = all
        .iter()
        .copied()
        .filter(|pid| {
            let in_foreground = table.get(pid).is_some_and(|p| Some(p.group) == foreground && p.session == shell);
            let mut at = *pid;
            let mut all_new = is_new(at);
            while let Some(parent) = table.get(&at).map(|p| p.parent) {
                if !all_new || parent == shell || !all.contains(&parent) {
                    break;
                }
                at = parent;
                all_new = is_new(at);
            }
            *pid != shell && (in_foreground || all_new)
        })
        .collect();
    add_descendants(&table, &mut found);
    found.remove(&shell);
    found.remove(&1);
    found.into_iter().collect()
}

/// Sends a signal to all processes of a command. Returns whether there were any.
///
/// `KILL` is repeated until none is left. Other signals are sent once, to processes that were stopped first: those can't fork
/// during the search, and processes that their handlers start afterwards are left alone. A child of a shell that was about to run
/// its program gets the signal once more: until then it has the shell's handler, which leaves the work to the shell's main loop,
/// and a program that starts instead never gets there.
pub fn kill_members(leader: Option<i32>, marker: &str, signal: Signal) -> bool {
    let mut found: HashSet<i32> = HashSet::new();
    let first = if signal == Signal::KILL { Signal::KILL } else { Signal::STOP };
    let (mut rounds, mut exec_rounds) = (0, 0);
    while rounds < KILL_ROUNDS && exec_rounds < EXEC_ROUNDS {
        let (mut now, unsure) = look(leader, marker);
        now.retain(|pid| found.insert(*pid) || first == Signal::KILL);
        if send(&now, first) {
            rounds += 1;
        } else if unsure {
            exec_rounds += 1;
            std::thread::sleep(EXEC_PAUSE);
        } else {
            break;
        }
    }
    let found: Members = found.into_iter().collect();
    if first == Signal::STOP {
        let forked = found.iter().filter_map(|pid| Some((*pid, stat(*pid)?))).filter(|(_, process)| process.before_exec);
        let mut forked: Vec<(i32, u64)> = forked.map(|(pid, process)| (pid, process.started)).collect();
        send(&found, signal);
        send(&found, Signal::CONT);
        for round in 0..FORK_ROUNDS {
            if forked.is_empty() {
                break;
            }
            std::thread::sleep(EXEC_PAUSE * round);
            forked.retain(|(pid, started)| match stat(*pid).filter(|process| process.started == *started) {
                Some(process) if process.before_exec => true,
                Some(_) => {
                    send(&[*pid], signal);
                    false
                }
                None => false,
            });
        }
    }
    !found.is_empty()
}

/// Sends a signal to processes by pid. Returns whether one of them got it.
pub fn send(pids: &[i32], signal: Signal) -> bool {
    let mut sent = false;
    for pid in pids {
        sent |= Pid::from_raw(*pid).is_some_and(|pid| kill_process(pid, signal).is_ok());
    }
    sent
}

/// Whether a process has children.
pub fn has_children(pid: i32) -> bool {
    match std::fs::read(format!("/proc/{pid}/task/{pid}/children")) {
        Ok(list) => !list.trim_ascii().is_empty(),
        // Kernels without that file: check the parent of every process.
        Err(_) => table().values().any(|p| p.parent == pid),
    }
}

fn add_descendants(table: &HashMap<i32, Process>, found: &mut HashSet<i32>) {
    for pid in table.keys() {
        let mut at = *pid;
        // Bounded by the table's size: the table is no snapshot, so its parents might form a cycle.
        for _ in 0..table.len() {
            let Some(parent) = table.get(&at).map(|p| p.parent).filter(|p| *p > 1) else {
                break;
            };
            if found.contains(&parent) {
                found.insert(*pid);
                break;
            }
            at = parent;
        }
    }
}

/// None: unknown, since it is in an exec and has no environment yet.
fn is_marked(pid: i32, mark: &[u8]) -> Option<bool> {
    let read = || std::fs::read(format!("/proc/{pid}/environ"));
    // A process with an unreadable environment belongs to no command.
    let mut environ = read().unwrap_or_else(|_| b"\0".to_vec());
    if environ.is_empty() {
        match stat(pid) {
            Some(process) if !process.has_environ => return None,
            // The exec may have ended in between.
            _ => environ = read().unwrap_or_default(),
        }
    }
    Some(environ.split(|b| *b == 0).any(|v| v == mark))
}

/// All running processes. Zombies are left out, since signals do nothing to them.
fn table() -> HashMap<i32, Process> {
    let mut table = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|n| n.parse().ok());
        if let Some((pid, process)) = pid.and_then(|pid| Some((pid, stat(pid)?))) {
            table.insert(pid, process);
        }
    }
    table
}

fn stat(pid: i32) -> Option<Process> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_stat(text: &str) -> Option<Process> {
    // The name, in brackets, may hold any character: fields count from the last bracket.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    let mut number = || fields.next()?.parse::<i32>().ok();
    let (parent, group, session) = (number()?, number()?, number()?);
    // proc(5): session is field 6, flags field 9 (of PF_FORKNOEXEC and PF_KTHREAD), starttime field 22, env_end field 51.
    let flags: u32 = fields.nth(2)?.parse().ok()?;
    let (before_exec, of_kernel) = (flags & 0x40 != 0, flags & 0x20_0000 != 0);
    let started = fields.nth(12)?.parse().ok()?;
    let has_environ = fields.nth(28).is_some_and(|end| end != "0");
    Some(Process { parent, group, session, started, has_environ, of_kernel, before_exec })
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let line = "42 (a) R (b) S 7 8 9 34816 8 4194560 1 0 0 0 3 4 0 0 20 0 1 0 123456 1 2";
        let process = parse_stat(line).unwrap();
        assert_eq!((process.parent, process.group, process.session, process.started), (7, 8, 9, 123456));
        assert!(parse_stat("42 (x) Z 1 42 42 0 -1 0").is_none());
    }

    #[test]
    fn this_process_is_found_by_its_own_start_time() {
        let me = std::process::id() as i32;
        let read = stat(me).unwrap();
        assert!(read.started > 0 && read.parent > 0 && read.has_environ && !read.of_kernel && !read.before_exec);
    }

    /// The first shell's child has a handler that drops the signal, as a shell's own has between fork and exec.
    #[test]
    fn a_program_that_a_forked_shell_starts_after_the_signal_gets_it_too() {
        let script = "trap : TERM; (trap : TERM; echo ready; read -r -t 0.1; exec sleep 20); exit $?";
        let mut shell = Command::new("bash").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        shell.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        assert!(kill_members(Some(shell.id() as i32), "no-such-marker", Signal::TERM));
        assert_eq!(shell.wait().unwrap().code(), Some(128 + 15));
    }
}
