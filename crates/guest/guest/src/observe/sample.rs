//! One sample of the sandbox's resource usage. Reads `/proc` and may take milliseconds: call it on a thread.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::Instant;

use arenite_isolation::counters::{Counters, Figures};
use jiff::Timestamp;
use serde::Serialize;

use super::types::{ObservationCgroupSnapshot, ObservationDiskSnapshot, ObservationProcessSnapshot};

/// The most processes to read.
const MAX_PROCESSES: usize = 4096;
/// Clock ticks per second in `/proc`: the kernel reports this value to every program.
const TICKS: f64 = 100.0;

/// The content of a sample.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    /// The number of processes.
    pub(super) processes: usize,
    /// Directories on the file systems to report, each file system once.
    pub(super) disks: Vec<PathBuf>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Sample {
    pub(super) ts: Timestamp,
    pub(super) cgroup: ObservationCgroupSnapshot,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) disk: Vec<ObservationDiskSnapshot>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) processes: Vec<ObservationProcessSnapshot>,
}

/// The previous values, to compute rates.
#[derive(Debug)]
pub(super) struct Earlier {
    at: Instant,
    cpu_microseconds: u64,
    /// Ticks of each process, by pid and start time.
    ticks: HashMap<(i32, u64), u64>,
}

pub(super) fn take(counters: &Counters, wanted: &Wanted, earlier: Option<&Earlier>) -> (Sample, Earlier) {
    let at = Instant::now();
    let figures = counters.read().unwrap_or_default();
    let seconds = earlier.map(|e| at.duration_since(e.at).as_secs_f64()).filter(|s| *s > 0.0);
    let used = earlier.map(|e| figures.cpu_microseconds.saturating_sub(e.cpu_microseconds));
    let cpu = seconds.zip(used).map(|(seconds, used)| round(used as f64 / 1e4 / seconds));
    let mut now = Earlier { at, cpu_microseconds: figures.cpu_microseconds, ticks: HashMap::new() };
    let processes = if wanted.processes == 0 { Vec::new() } else { processes(wanted.processes, earlier, seconds, &mut now) };
    let disk = disks(&wanted.disks);
    (Sample { ts: Timestamp::now(), cgroup: cgroup(figures, cpu), disk, processes }, now)
}

fn round(value: f64) -> f64 {
    (value * 100.0).round() / 100.0
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { round(part as f64 * 100.0 / whole as f64) }
}

fn cgroup(figures: Figures, cpu: Option<f64>) -> ObservationCgroupSnapshot {
    ObservationCgroupSnapshot {
        cpu_usage_pct: cpu,
        cpu_usage_usec: figures.cpu_microseconds,
        cpu_nr_periods: figures.cpu_periods,
        cpu_nr_throttled: figures.cpu_throttled_periods,
        cpu_throttled_usec: figures.cpu_throttled_microseconds,
        mem_current_bytes: figures.memory_bytes,
        mem_max_bytes: figures.memory_limit_bytes,
        mem_usage_pct: figures.memory_limit_bytes.map(|limit| share(figures.memory_bytes, limit)),
        oom: figures.oom,
        oom_kill: figures.oom_kill,
        memory_anon_bytes: figures.anon_bytes,
        memory_file_bytes: figures.file_bytes,
        memory_shmem_bytes: figures.shmem_bytes,
        memory_slab_bytes: figures.slab_bytes,
    }
}

fn disks(paths: &[PathBuf]) -> Vec<ObservationDiskSnapshot> {
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for path in paths {
        let (Ok(meta), Ok(fs)) = (fs::metadata(path), rustix::fs::statvfs(path)) else { continue };
        if seen.contains(&meta.dev()) {
            continue;
        }
        seen.push(meta.dev());
        let (total, free) = (fs.f_blocks * fs.f_frsize, fs.f_bavail * fs.f_frsize);
        let used = total.saturating_sub(fs.f_bfree * fs.f_frsize);
        // File systems that allocate inodes on demand report none.
        let inodes = (fs.f_files > 0).then(|| (fs.f_files.saturating_sub(fs.f_ffree), fs.f_files));
        found.push(ObservationDiskSnapshot {
            path: path.display().to_string(),
            used_bytes: used,
            total_bytes: total,
            free_bytes: free,
            usage_pct: share(used, used + free),
            inode_used: inodes.map(|(used, _)| used),
            inode_total: inodes.map(|(_, total)| total),
            inode_usage_pct: inodes.map(|(used, total)| share(used, total)),
        });
    }
    found
}

/// Fields of `/proc/{pid}/stat`.
struct Stat {
    comm: String,
    state: char,
    ppid: i32,
    /// Its own CPU time, in the kernel and outside.
    ticks: u64,
    threads: u64,
    /// Start time, in ticks after boot.
    started: u64,
    rss_pages: u64,
}

fn parse(text: &str) -> Option<Stat> {
    // The name, in brackets, may hold any character: fields count from the last bracket.
    let (head, rest) = text.rsplit_once(')')?;
    let comm = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // proc(5) counts from 1; the first here is its third.
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Stat {
        comm,
        state: fields.first()?.chars().next()?,
        ppid: fields.get(1)?.parse().ok()?,
        ticks: number(14)? + number(15)?,
        threads: number(20)?,
        started: number(22)?,
        rss_pages: number(24)?,
    })
}

/// Memory of a process, in bytes. `stat` has it in pages, which differ in size between machines.
fn resident(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

fn processes(most: usize, earlier: Option<&Earlier>, seconds: Option<f64>, now: &mut Earlier) -> Vec<ObservationProcessSnapshot> {
    let uptime: Option<f64> = fs::read_to_string("/proc/uptime").ok().and_then(|text| text.split(' ').next()?.parse().ok());
    let mut found: Vec<(i32, Stat)> = fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok())
        .take(MAX_PROCESSES)
        .filter_map(|pid| Some((pid, parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect();
    for (pid, stat) in &found {
        now.ticks.insert((*pid, stat.started), stat.ticks);
    }
    found.sort_by_key(|(_, stat)| Reverse(stat.rss_pages));
    found.truncate(most);
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = |uid: u32| {
        let name = users.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
        });
        name.unwrap_or_else(|| uid.to_string())
    };
    let row = |(pid, stat): (i32, Stat)| {
        let before = earlier.and_then(|e| e.ticks.get(&(pid, stat.started)));
        let spent = before.map(|before| stat.ticks.saturating_sub(*before));
        let rss_bytes = resident(pid);
        ObservationProcessSnapshot {
            pid,
            user: fs::metadata(format!("/proc/{pid}")).map_or_else(|_| "?".to_owned(), |meta| user(meta.uid())),
            comm: stat.comm,
            rss_bytes,
            rss_mib: round(rss_bytes as f64 / f64::from(1 << 20)),
            cpu_pct: spent.zip(seconds).map(|(spent, seconds)| round(spent as f64 * 100.0 / TICKS / seconds)),
            threads: Some(stat.threads),
            fds: fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|fds| fds.count() as u64),
            state: Some(stat.state.to_string()),
            uptime_sec: uptime.map(|uptime| round((uptime - stat.started as f64 / TICKS).max(0.0))),
            ppid: Some(stat.ppid),
        }
    };
    // Sizes were read again, so the rows are sorted again.
    let mut rows: Vec<_> = found.into_iter().map(row).collect();
    rows.sort_by_key(|row| Reverse(row.rss_bytes));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_among_them_with_its_rates() {
        let wanted = Wanted { processes: MAX_PROCESSES, disks: vec!["/".into(), "/".into(), "/proc".into(), "/missing".into()] };
        let (first, earlier) = take(&Counters::default(), &wanted, None);
        assert_eq!((first.cgroup.cpu_usage_pct, first.disk.len()), (None, 2));
        assert!(first.disk[0].total_bytes > 0 && first.disk[0].usage_pct <= 100.0);
        let begun = Instant::now();
        while begun.elapsed().as_millis() < 60 {}
        let (second, _) = take(&Counters::default(), &wanted, Some(&earlier));
        let me = second.processes.iter().find(|p| p.pid == std::process::id() as i32).unwrap();
        assert!(me.cpu_pct.unwrap() > 0.0 && me.rss_bytes > 0 && me.threads.unwrap() >= 1 && me.fds.unwrap() >= 3, "{me:?}");
    }

    #[test]
    fn a_name_with_brackets_does_not_shift_the_fields() {
        let line = "42 (a) R (b) S 7 8 9 0 8 0 1 0 0 0 3 4 0 0 20 0 5 0 123456 1000 77 0";
        let stat = parse(line).unwrap();
        assert_eq!((stat.comm.as_str(), stat.state, stat.ppid), ("a) R (b", 'S', 7));
        assert_eq!((stat.ticks, stat.threads, stat.started, stat.rss_pages), (7, 5, 123_456, 77));
    }
}
