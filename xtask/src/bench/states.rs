//! Checkpoints, forks and rollbacks of disks of three sizes, next to btrfs's own snapshot and to a plain create.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::json;

use super::http::Connection;
use super::report::{Report, Row, quantile};
use crate::failure::{Attempt, Failure, Outcome};

const WARM_UP: usize = 3;
/// Pause after a deletion: 50 ms later, the server frees what was deleted, which takes the disk some milliseconds.
const PAUSE: Duration = Duration::from_millis(150);
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

/// A sandbox, and what was measured with its disk.
struct Disk {
    size: &'static str,
    sandbox: String,
    floor: Floor,
    floors: Vec<Duration>,
    checkpoint: Vec<Duration>,
    rollback: Vec<Duration>,
    fork: Vec<Duration>,
    create: Vec<Duration>,
}

pub(super) fn measure(rounds: usize, data_dir: &Path, api: &mut Connection, report: &mut Report) -> Outcome {
    let mut disks = Vec::new();
    for (n, (size, fill)) in DISKS.into_iter().enumerate() {
        disks.push(Disk::new(&format!("bench-state-{n}"), size, fill, data_dir, api)?);
    }
    // Otherwise the host writes it to its disk while the first rounds are measured.
    let synced = Command::new("sync").status().attempt(|| "could not start sync".into())?;
    if !synced.success() {
        return Err(Failure::new("sync failed"));
    }
    for round in 1..=WARM_UP + rounds {
        for disk in &mut disks {
            disk.round(round, round > WARM_UP, api)?;
        }
    }
    for disk in &disks {
        disk.report(report);
        if disk.size != disks[0].size {
            disk.report_next_to(&disks[0], report);
        }
        if disk.size.starts_with("1 GB") {
            frozen(rounds, &disk.sandbox, api, report)?;
        }
    }
    disks.iter().try_for_each(|disk| api.delete(&disk.sandbox))
}

impl Disk {
    fn new(sandbox: &str, size: &'static str, fill: &str, data_dir: &Path, api: &mut Connection) -> Result<Self, Failure> {
        let resources = json!({ "disk_bytes": 20u64 << 30, "memory_bytes": 4u64 << 30 });
        api.post("/api/v2/sandboxes", &json!({ "name": sandbox, "image": "base", "resources": resources }))?;
        let id = api.get(&format!("/api/v2/sandboxes/{sandbox}"))?["id"].as_str().unwrap_or_default().to_owned();
        api.bash(sandbox, fill)?;
        let (sandbox, floor) = (sandbox.to_owned(), Floor::new(data_dir, &id));
        let [floors, checkpoint, rollback, fork, create] = [const { Vec::new() }; 5];
        Ok(Self { size, sandbox, floor, floors, checkpoint, rollback, fork, create })
    }

    /// One of each operation. The checkpoint is kept: it has the round's number.
    fn round(&mut self, round: usize, counts: bool, api: &mut Connection) -> Outcome {
        let sandbox = &self.sandbox;
        let path = |operation: &str| format!("/api/v2/sandboxes/{sandbox}/{operation}");
        api.bash(sandbox, &format!("echo {round} >/home/gem/round"))?;
        let checkpoint = timed(|| api.post(&path("checkpoints"), &json!({})).map(drop))?;
        api.bash(sandbox, "echo other >/home/gem/round")?;
        let rollback = timed(|| api.post(&path("rollback"), &json!({ "to": round.to_string() })).map(drop))?;
        expect(api, sandbox, "cat /home/gem/round", &format!("{round}\n"))?;
        std::thread::sleep(PAUSE);
        let begun = Instant::now();
        let forked = api.post(&path("fork"), &json!({ "name": "bench-fork" }))?;
        let child = forked["sandboxes"][0]["name"].as_str().unwrap_or_default();
        expect(api, child, "cat /home/gem/round", &format!("{round}\n"))?;
        let fork = begun.elapsed();
        api.delete(child)?;
        std::thread::sleep(PAUSE);
        let create = timed(|| {
            api.create("bench-plain")?;
            expect(api, "bench-plain", "echo hi", "hi\n")
        })?;
        api.delete("bench-plain")?;
        std::thread::sleep(PAUSE);
        let snapshot = self.floor.once()?;
        std::thread::sleep(PAUSE);
        if counts {
            self.checkpoint.push(checkpoint);
            self.rollback.push(rollback);
            self.fork.push(fork);
            self.create.push(create);
            self.floors.push(snapshot);
        }
        Ok(())
    }

    fn report(&self, report: &mut Report) {
        let size = self.size;
        report.push(Row::at_most(&format!("checkpoint of {size}, p50"), millis(&self.checkpoint), "ms", 15.0));
        report.push(Row::at_most(&format!("rollback of {size}, p50"), millis(&self.rollback), "ms", 10.0));
        report.push(
            Row::ratio(&format!("fork of {size} → first output, p50"), &self.fork, 0.5, &self.create, 0.5, 2.0)
                .against("create → first output"),
        );
        report.push(Row::plain(&format!("btrfs subvolume snapshot of {size}, p50"), millis(&self.floors), "ms"));
    }

    fn report_next_to(&self, smallest: &Self, report: &mut Report) {
        for (what, large, small) in [
            ("checkpoint", &self.checkpoint, &smallest.checkpoint),
            ("rollback", &self.rollback, &smallest.rollback),
            ("fork", &self.fork, &smallest.fork),
        ] {
            let name = format!("{what} of {} next to {}, p50", self.size, smallest.size);
            report.push(Row::ratio(&name, large, 0.5, small, 0.5, 1.3).against(&format!("the same of {}", smallest.size)));
        }
    }
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
