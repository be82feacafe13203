//! Which processes belong to a command, and ending them all.

use std::collections::{HashMap, HashSet};

use rustix::process::{Pid, Signal, kill_process};

use super::MARKER;

/// The processes of one command: pid and whether it was found only by its mark (it left its session and parent).
pub type Members = Vec<i32>;

/// Finds the processes of a command: its descendants, its session, and whoever still carries its mark.
pub fn members(leader: i32, marker: &str) -> Members {
    let mut parents: HashMap<i32, i32> = HashMap::new();
    let mut found: HashSet<i32> = HashSet::new();
    let mark = format!("{MARKER}={marker}");
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|n| n.parse::<i32>().ok())
        else {
            continue;
        };
        let Some((parent, session)) = stat(pid) else {
            continue;
        };
        parents.insert(pid, parent);
        let marked = || {
            std::fs::read(format!("/proc/{pid}/environ"))
                .is_ok_and(|e| e.split(|b| *b == 0).any(|v| v == mark.as_bytes()))
        };
        if pid == leader || session == leader || marked() {
            found.insert(pid);
        }
    }
    for pid in parents.keys() {
        let mut at = *pid;
        while let Some(parent) = parents.get(&at).filter(|p| **p > 1) {
            if found.contains(parent) {
                found.insert(*pid);
                break;
            }
            at = *parent;
        }
    }
    found.remove(&1);
    found.into_iter().collect()
}

/// Parent and session of a process.
fn stat(pid: i32) -> Option<(i32, i32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may hold anything: fields count from the last bracket.
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(1);
    let parent = fields.next()?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some((parent, session))
}

/// Sends a signal to all processes of a command. `KILL` is repeated until nothing is left, since a member may fork meanwhile.
pub fn kill_members(leader: i32, marker: &str, signal: Signal) {
    let rounds = if signal == Signal::KILL { 8 } else { 1 };
    for _ in 0..rounds {
        let pids = members(leader, marker);
        let mut sent = false;
        for pid in pids {
            sent |= Pid::from_raw(pid).is_some_and(|pid| kill_process(pid, signal).is_ok());
        }
        if !sent {
            return;
        }
    }
}
