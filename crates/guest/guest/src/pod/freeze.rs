//! A pause from inside: no one outside a pod can freeze it, so its guest stops all other processes.
//!
//! Parents are stopped before their children, and continued after them: a shell would otherwise see a child stop, and take it for
//! a suspended job.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;

use rustix::process::{Pid, Signal, getpid, kill_process};

/// Rounds until no new process appears. Each one finds what was forked during the one before.
const ROUNDS: usize = 50;

/// The stopped processes, in the order in which they were stopped.
#[derive(Debug)]
pub(crate) struct Frozen(Vec<Pid>);

/// A line of `/proc/<pid>/stat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: i32,
    /// It was stopped, or is a zombie.
    is_still: bool,
}

/// Stops all processes but this one.
///
/// # Errors
/// Processes fork faster than they can be stopped, or may not be stopped. Those that were stopped are continued.
pub(crate) fn stop_all() -> io::Result<Frozen> {
    let own = getpid();
    let mut frozen = Frozen(Vec::new());
    let mut done: BTreeSet<i32> = BTreeSet::from([own.as_raw_nonzero().get()]);
    for _ in 0..ROUNDS {
        let all = processes()?;
        // Whatever was still before stays so afterwards.
        if done.len() == 1 {
            done.extend(all.iter().filter(|(_, one)| one.is_still).map(|(pid, _)| *pid));
        }
        let new: Vec<i32> = from_parents(&all).into_iter().filter(|pid| !done.contains(pid)).collect();
        if new.is_empty() {
            return Ok(frozen);
        }
        for pid in new {
            done.insert(pid);
            let Some(pid) = Pid::from_raw(pid) else { continue };
            match kill_process(pid, Signal::STOP) {
                Ok(()) => frozen.0.push(pid),
                // It ended just now.
                Err(rustix::io::Errno::SRCH) => {}
                Err(error) => {
                    frozen.continue_all();
                    return Err(error.into());
                }
            }
        }
    }
    frozen.continue_all();
    Err(io::Error::other("its processes fork faster than they can be stopped"))
}

impl Frozen {
    /// Continues them, children first.
    pub(crate) fn continue_all(self) {
        for pid in self.0.into_iter().rev() {
            // It may have been killed meanwhile.
            let _ = kill_process(pid, Signal::CONT);
        }
    }
}

/// All processes that this one sees.
fn processes() -> io::Result<BTreeMap<i32, Process>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
        // It may have ended.
        if let Some(process) = fs::read_to_string(format!("/proc/{pid}/stat")).ok().as_deref().and_then(parse) {
            all.insert(pid, process);
        }
    }
    Ok(all)
}

/// The name in it is the process's own choice, and may have any character.
fn parse(stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    Some(Process { parent: fields.next()?.parse().ok()?, is_still: matches!(state, "T" | "t" | "Z" | "X") })
}

/// Pids with parents before their children.
fn from_parents(all: &BTreeMap<i32, Process>) -> Vec<i32> {
    let depth = |pid: i32| {
        let parents = std::iter::successors(all.get(&pid).map(|one| one.parent), |parent| all.get(parent).map(|one| one.parent));
        // Bounded: pids are read one by one, so a reused one could close a circle.
        parents.take(all.len()).count()
    };
    let mut pids: Vec<(usize, i32)> = all.keys().map(|pid| (depth(*pid), *pid)).collect();
    pids.sort_unstable();
    pids.into_iter().map(|(_, pid)| pid).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_read_with_any_name() {
        assert_eq!(parse("7 (a) S 3 0 0\n"), Some(Process { parent: 3, is_still: false }));
        assert_eq!(parse("7 (a ) T (x) T 12 0 0"), Some(Process { parent: 12, is_still: true }));
        assert_eq!(parse("7"), None);
    }

    #[test]
    fn parents_come_before_children() {
        let one = |parent| Process { parent, is_still: false };
        let all = BTreeMap::from([(2, one(9)), (9, one(5)), (5, one(1)), (1, one(0)), (7, one(8)), (8, one(7))]);
        let order = from_parents(&all);
        let place = |pid| order.iter().position(|one| *one == pid).unwrap();
        assert!(place(1) < place(5) && place(5) < place(9) && place(9) < place(2));
        assert_eq!(order.len(), all.len());
    }
}
