//! Checkpoints, forks and rollbacks of disks of three sizes, next to btrfs's own snapshot and to a plain create.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::http::Connection;
use super::report::{Report, Row, quantile};
use crate::failure::{Attempt, Failure, Outcome};

const WARM_UP: usize = 3;
/// Pause between a delete and the next round.
const PAUSE: Duration = Duration::from_millis(20);
/// The sandboxes' disks: their names, and what fills them.
const DISKS: [(&str, &str); 3] = [
    ("1 MB", "head -c 1000000 /dev/urandom >/home/gem/one"),
    (
        "1 GB in 20,000 files",
        "cd /home/gem && for d in $(seq 200); do mkdir d$d && head -c 5000000 /dev/urandom | split -b 50000 - d$d/f; done",
    ),
    ("10 GB", "cd /home/gem && for f in $(seq 10); do head -c 1000000000 /dev/urandom >f$f; done"),
];
/// Processes that write while the frozen time is measured.
const BUSY: usize = 50;

/// Sandboxes, tasks in each, and repetitions of the comparison of resets and creates.
const WORKERS: usize = 40;
const TASKS: usize = 10;
const TURNS: usize = 5;

/// What was measured of one disk.
struct Measured {
    checkpoint: Vec<Duration>,
    rollback: Vec<Duration>,
    fork: Vec<Duration>,
}

pub(super) fn measure(rounds: usize, data_dir: &Path, api: &mut Connection, report: &mut Report) -> Outcome {
    let mut smallest: Option<Measured> = None;
    for (size, fill) in DISKS {
        let name = "bench-state";
        let resources = json!({ "disk_bytes": 20u64 << 30, "memory_bytes": 4u64 << 30 });
        api.post("/api/v2/sandboxes", &json!({ "name": name, "image": "base", "resources": resources }))?;
        let id = api.get(&format!("/api/v2/sandboxes/{name}"))?["id"].as_str().unwrap_or_default().to_owned();
        api.bash(name, fill)?;
        // Otherwise the host writes it to its disk while the first rounds are measured.
        let synced = Command::new("sync").status().attempt(|| "could not start sync".into())?;
        if !synced.success() {
            return Err(Failure::new("sync failed"));
        }
        let mut floor = Floor::new(data_dir, &id);
        let (mut floors, mut creates) = (Vec::new(), Vec::new());
        let mut ours = Measured { checkpoint: Vec::new(), rollback: Vec::new(), fork: Vec::new() };
        for round in 0..WARM_UP + rounds {
            api.bash(name, &format!("echo {round} >/home/gem/round"))?;
            let checkpoint = timed(|| api.post(&format!("/api/v2/sandboxes/{name}/checkpoints"), &json!({})).map(drop))?;
            api.bash(name, "echo other >/home/gem/round")?;
            let begun = Instant::now();
            api.post(&format!("/api/v2/sandboxes/{name}/rollback"), &json!({ "to": (round + 1).to_string() }))?;
            let rollback = begun.elapsed();
            expect(api, name, "cat /home/gem/round", &format!("{round}\n"))?;
            let begun = Instant::now();
            let forked = api.post(&format!("/api/v2/sandboxes/{name}/fork"), &json!({ "name": "bench-fork" }))?;
            let fork = forked["sandboxes"][0]["name"].as_str().unwrap_or_default().to_owned();
            expect(api, &fork, "cat /home/gem/round", &format!("{round}\n"))?;
            let forked = begun.elapsed();
            api.delete(&fork)?;
            std::thread::sleep(PAUSE);
            let create = timed(|| {
                api.create("bench-plain")?;
                expect(api, "bench-plain", "echo hi", "hi\n")
            })?;
            api.delete("bench-plain")?;
            let snapshot = floor.once()?;
            std::thread::sleep(PAUSE);
            if round >= WARM_UP {
                ours.checkpoint.push(checkpoint);
                ours.rollback.push(rollback);
                ours.fork.push(forked);
                creates.push(create);
                floors.push(snapshot);
            }
        }
        let has_many_files = size.starts_with("1 GB");
        report.push(Row::at_most(&format!("checkpoint of {size}, p50"), millis(&ours.checkpoint), "ms", 15.0));
        report.push(Row::at_most(&format!("rollback of {size}, p50"), millis(&ours.rollback), "ms", 10.0));
        report.push(
            Row::ratio(&format!("fork of {size} → first output, p50"), &ours.fork, 0.5, &creates, 0.5, 2.0)
                .against("create → first output"),
        );
        report.push(Row::plain(&format!("btrfs subvolume snapshot of {size}, p50"), millis(&floors), "ms"));
        if let Some(smallest) = &smallest {
            for (what, large, small) in [
                ("checkpoint", &ours.checkpoint, &smallest.checkpoint),
                ("rollback", &ours.rollback, &smallest.rollback),
                ("fork", &ours.fork, &smallest.fork),
            ] {
                let row = Row::ratio(&format!("{what} of {size} next to 1 MB, p50"), large, 0.5, small, 0.5, 1.3);
                report.push(row.against("the same of 1 MB"));
            }
        }
        if has_many_files {
            frozen(rounds, name, api, report)?;
        }
        smallest.get_or_insert(ours);
        api.delete(name)?;
    }
    Ok(())
}

/// Tasks in sandboxes that are reset between them, next to tasks in sandboxes that are deleted and created.
pub(super) fn resets(port: u16, report: &mut Report) -> Outcome {
    let (mut resets, mut creates) = (Vec::new(), Vec::new());
    // In turn, so that other load affects both alike.
    for turn in 0..TURNS {
        resets.push(tasks(port, turn, &|api, name| api.post(&format!("/api/v2/sandboxes/{name}/reset"), &json!({})).map(drop))?);
        creates.push(tasks(port, turn, &|api, name| {
            api.delete(name)?;
            api.create_of(name, "base")
        })?);
    }
    let name = format!("{} tasks over {WORKERS} sandboxes, reset after each", TURNS * WORKERS * TASKS);
    report.push(Row::ratio(&name, &resets, 0.5, &creates, 0.5, 1.0).against("deleted and created after each"));
    Ok(())
}

/// The time of some tasks in each of the sandboxes at once.
fn tasks(port: u16, turn: usize, renew: &(dyn Fn(&mut Connection, &str) -> Outcome + Sync)) -> Result<Duration, Failure> {
    let names: Vec<String> = (0..WORKERS).map(|worker| format!("bench-task-{turn}-{worker}")).collect();
    let mut api = Connection::open(port)?;
    for name in &names {
        api.create_of(name, "base")?;
    }
    let begun = Instant::now();
    let done: Vec<Outcome> = std::thread::scope(|scope| {
        let work = |name: &str| -> Outcome {
            let mut api = Connection::open(port)?;
            for _ in 0..TASKS {
                expect(&mut api, name, "cat /home/gem/left 2>/dev/null; echo x | tee /home/gem/left", "x\n")?;
                renew(&mut api, name)?;
            }
            Ok(())
        };
        let workers: Vec<_> = names.iter().map(|name| scope.spawn(move || work(name))).collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(Failure::new("a worker panicked")))).collect()
    });
    let took = begun.elapsed();
    for name in &names {
        api = Connection::open(port)?;
        api.delete(name)?;
    }
    done.into_iter().collect::<Result<(), _>>().map(|()| took)
}

/// The time for which a sandbox with many busy processes is frozen.
fn frozen(rounds: usize, name: &str, api: &mut Connection, report: &mut Report) -> Outcome {
    let busy =
        format!("for i in $(seq {BUSY}); do (while :; do echo $i >/home/gem/busy$i; sleep 0.01; done) >/dev/null 2>&1 & done");
    api.bash(name, &busy)?;
    let mut frozen = Vec::new();
    for _ in 0..rounds {
        let sealed = api.post(&format!("/api/v2/sandboxes/{name}/checkpoints"), &json!({}))?;
        let ms = sealed["frozen_ms"].as_f64().ok_or_else(|| Failure::new("a checkpoint has no frozen_ms"))?;
        frozen.push(Duration::from_secs_f64(ms / 1e3));
        std::thread::sleep(PAUSE);
    }
    report.push(Row::at_most("frozen for a checkpoint, 50 busy processes, p50", millis(&frozen), "ms", 5.0));
    Ok(())
}

fn millis(samples: &[Duration]) -> f64 {
    quantile(samples, 0.5).as_secs_f64() * 1e3
}

fn timed(work: impl FnOnce() -> Outcome) -> Result<Duration, Failure> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

fn expect(api: &mut Connection, name: &str, command: &str, expected: &str) -> Outcome {
    let output = api.bash(name, command)?;
    if output == expected { Ok(()) } else { Err(Failure::new(format!("{command} in {name} answered {output:?}"))) }
}

/// `btrfs subvolume snapshot` of a sandbox's disk, and its deletion.
struct Floor {
    source: String,
    target: String,
}

impl Floor {
    fn new(data_dir: &Path, id: &str) -> Self {
        let pool = data_dir.join("pool");
        Self {
            source: pool.join("uppers").join(id).display().to_string(),
            target: pool.join("uppers/bench-floor").display().to_string(),
        }
    }

    fn once(&mut self) -> Result<Duration, Failure> {
        let begun = Instant::now();
        btrfs(&["subvolume", "snapshot", "-r", &self.source, &self.target])?;
        let took = begun.elapsed();
        btrfs(&["subvolume", "delete", &self.target])?;
        Ok(took)
    }
}

fn btrfs(args: &[&str]) -> Outcome {
    let output = Command::new("btrfs").args(args).output().attempt(|| "could not start btrfs".into())?;
    if output.status.success() {
        return Ok(());
    }
    Err(Failure::new(format!("btrfs {} failed: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim())))
}
