//! Two nodes of a cluster over one Postgres: what the hop to another node costs, and what nodes write to their store.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::PAUSE;
use super::http::Connection;
use super::memory;
use super::postgres::Postgres;
use super::report::{Report, Row};
use crate::binary::{self, Profile};
use crate::command::{self, program};
use crate::failure::{Failure, Outcome};
use crate::image;
use crate::server::{self, Started};

const NAMES: [&str; 2] = ["bench-a", "bench-b"];
const WARM_UP: usize = 50;
/// Rounds of the calls into running sandboxes.
const CALLS: usize = 1_000;
/// Number of idle sandboxes, and of life cycles that are counted.
const MANY: usize = 50;
/// Postgres counts what a session did when the session's next transaction ends: at the next renewal.
const COUNTED: Duration = Duration::from_secs(5);
/// How long idle nodes are watched, and how long idle sandboxes: usage is merged once a minute.
const IDLE: Duration = Duration::from_secs(30);
const MINUTE: Duration = Duration::from_secs(60);
/// More than the interval of samples of usage.
const SAMPLED: Duration = Duration::from_secs(11);
/// How long nodes may take to find each other.
const JOINED: Duration = Duration::from_secs(30);

/// Transactions, rows, and bytes of the log.
const COUNTERS: &str = "
    SELECT xact_commit + xact_rollback, (SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables),
        pg_current_wal_insert_lsn() - '0/0'::pg_lsn
    FROM pg_stat_database WHERE datname = current_database()";

pub(super) struct Setting<'a> {
    pub(super) arenite: &'a Path,
    /// The data directory with the image.
    pub(super) images: &'a Path,
    pub(super) work: &'a Path,
    /// The two nodes listen on the ports after this one.
    pub(super) port: u16,
    pub(super) rounds: usize,
}

/// A server that ends with the measurement.
struct Node {
    port: u16,
    api: Connection,
}

impl Node {
    fn memory(&self) -> Result<u64, Failure> {
        let started = Started::find(self.port).and_then(|started| memory::of_process(started.pid));
        started.ok_or_else(|| Failure::new(format!("the node on port {} has ended", self.port)))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(started) = Started::find(self.port)
            && let Err(failure) = started.stop()
        {
            eprintln!("{failure}");
        }
    }
}

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Outcome {
    let postgres = Postgres::start()?;
    {
        let mut nodes = [setting.serve(&postgres, 0)?, setting.serve(&postgres, 1)?];
        for name in nodes[0].api.sandboxes()? {
            nodes[0].api.delete(&name)?;
        }
        calls(&postgres, &mut nodes, report)?;
        creates(&postgres, &mut nodes[0].api, setting.rounds, report)?;
        writes(&postgres, &mut nodes, report)?;
    }
    store(&postgres, report)
}

/// The same calls into one sandbox through the other node, and at its own.
fn calls(postgres: &Postgres, nodes: &mut [Node; 2], report: &mut Report) -> Outcome {
    let begun = Instant::now();
    let far = (0..)
        .map(|number| format!("bench-far-{number}"))
        .find_map(|name| match create(postgres, &mut nodes[0].api, &name) {
            Ok((_, true)) => Some(Ok(name)),
            Ok((_, false)) if begun.elapsed() > JOINED => Some(Err(Failure::new("no create goes to the other node"))),
            // The first node may not know the second yet.
            Ok((_, false)) => nodes[0].api.delete(&name).err().map(Err),
            Err(failure) => Some(Err(failure)),
        })
        .unwrap_or_else(|| Err(Failure::new("no create goes to the other node")))?;
    let ping = format!("/sandbox/{far}/v1/ping");
    let bash = |api: &mut Connection| api.bash(&far, "true").map(drop);
    let get = |api: &mut Connection| api.download(&ping, &mut std::io::sink()).map(drop);
    let [one, two] = nodes;
    for (what, call) in [("bash/exec of true", &bash as &dyn Fn(&mut Connection) -> Outcome), ("GET /v1/ping", &get)] {
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for round in 0..WARM_UP + CALLS {
            let passed_on = timed(|| call(&mut one.api))?;
            let direct = timed(|| call(&mut two.api))?;
            if round >= WARM_UP {
                ours.push(passed_on);
                floor.push(direct);
            }
        }
        let name = format!("{what} in a sandbox of another node, p50");
        report.push(Row::added(&name, &ours, &floor, 0.3).against("the same at its own node"));
    }
    one.api.delete(&far)
}

/// Create → first output through one node, of sandboxes that it creates and that it lets the other node create.
fn creates(postgres: &Postgres, api: &mut Connection, rounds: usize, report: &mut Report) -> Outcome {
    let (mut there, mut here) = (Vec::new(), Vec::new());
    // A hash of the key decides, so half of them go to each node, in a random order.
    for round in 0..20 * rounds {
        let name = format!("bench-create-{round}");
        let (took, is_there) = create(postgres, api, &name)?;
        api.delete(&name)?;
        std::thread::sleep(PAUSE);
        if round >= WARM_UP {
            if is_there { there.push(took) } else { here.push(took) }
        }
        if there.len() >= rounds && here.len() >= rounds {
            let name = "create → first output on another node, p50";
            report.push(Row::ratio(name, &there, 0.50, &here, 0.50, 1.5).against("the same on the called node"));
            return Ok(());
        }
    }
    Err(Failure::new("the keys of creates don't lead to both nodes"))
}

/// Creates a sandbox with a key of its name. Returns the time to its first output, and whether it is on the other node.
fn create(postgres: &Postgres, api: &mut Connection, name: &str) -> Result<(Duration, bool), Failure> {
    let begun = Instant::now();
    api.headers = format!("Idempotency-Key: {name}\r\n");
    let created = api.create(name);
    api.headers.clear();
    created?;
    let output = api.bash(name, "echo hi")?;
    let took = begun.elapsed();
    if output != "hi\n" {
        return Err(Failure::new(format!("the first command of {name} answered {output:?}")));
    }
    let owner = postgres.sql(&format!("SELECT node FROM sandboxes WHERE name = '{name}'"))?;
    Ok((took, owner == NAMES[1]))
}

/// Counters of the database. Each reading is a transaction, too.
#[derive(Clone, Copy)]
struct Written {
    transactions: f64,
    rows: f64,
    log_bytes: f64,
    at: Instant,
}

impl Written {
    fn read(postgres: &Postgres) -> Result<Self, Failure> {
        std::thread::sleep(COUNTED);
        let answer = postgres.sql(COUNTERS)?;
        let numbers: Vec<f64> = answer.split('|').filter_map(|number| number.parse().ok()).collect();
        let [transactions, rows, log_bytes] = numbers[..] else {
            return Err(Failure::new(format!("the counters of the database are {answer:?}")));
        };
        Ok(Self { transactions, rows, log_bytes, at: Instant::now() })
    }

    /// What was written since an earlier reading, without what idle nodes write in that time.
    fn since(&self, before: &Self, idle: Option<&Self>) -> Self {
        let seconds = (self.at - before.at).as_secs_f64();
        let part = |read: fn(&Self) -> f64| read(self) - read(before) - idle.map_or(0.0, |idle| read(idle) * seconds);
        Self {
            transactions: part(|all| all.transactions),
            rows: part(|all| all.rows),
            log_bytes: part(|all| all.log_bytes),
            at: self.at,
        }
    }

    fn divided_by(&self, number: f64) -> Self {
        let (transactions, rows, log_bytes) = (self.transactions / number, self.rows / number, self.log_bytes / number);
        Self { transactions, rows, log_bytes, at: self.at }
    }
}

/// What idle nodes, idle sandboxes and life cycles write, and the memory of sandboxes in their servers.
fn writes(postgres: &Postgres, nodes: &mut [Node; 2], report: &mut Report) -> Outcome {
    wait_for_merge(postgres)?;
    let rate = |wait: Duration, idle: Option<&Written>| {
        let before = Written::read(postgres)?;
        std::thread::sleep(wait);
        let after = Written::read(postgres)?;
        let seconds = (after.at - before.at).as_secs_f64();
        Ok::<_, Failure>(after.since(&before, idle).divided_by(seconds))
    };
    let idle = rate(IDLE, None)?;
    let each = idle.divided_by(NAMES.len() as f64);
    report.push(Row::plain("an idle node: transactions of its store a second", each.transactions, ""));
    report.push(Row::plain("an idle node: rows written a second", each.rows, ""));
    let memory = |nodes: &[Node; 2]| Ok::<_, Failure>(nodes[0].memory()? + nodes[1].memory()?);
    let without = memory(nodes)?;
    let names: Vec<String> = (0..MANY).map(|number| format!("bench-idle-{number}")).collect();
    for name in &names {
        reopened(&mut nodes[0])?.create(name)?;
    }
    let busy = rate(MINUTE, Some(&idle))?.divided_by(MANY as f64);
    let grown = memory(nodes)?.saturating_sub(without) as f64 / MANY as f64 / 1024.0;
    report.push(Row::plain("an idle sandbox: rows written a second, its usage", busy.rows, ""));
    report.push(Row::plain("a sandbox: PSS that the servers of two nodes grow by, each of 50", grown, "KiB"));
    for name in &names {
        reopened(&mut nodes[0])?.delete(name)?;
    }
    wait_for_merge(postgres)?;
    let before = Written::read(postgres)?;
    for number in 0..MANY {
        let api = reopened(&mut nodes[0])?;
        let name = format!("bench-life-{number}");
        api.create(&name)?;
        api.delete(&name)?;
    }
    let looks = wait_for_merge(postgres)?;
    let mut life = Written::read(postgres)?.since(&before, Some(&idle));
    life.transactions -= looks;
    let life = life.divided_by(MANY as f64);
    report.push(Row::plain("a create and its delete: transactions of the store", life.transactions, ""));
    report.push(Row::plain("a create and its delete: rows written, with usage", life.rows, ""));
    report.push(Row::plain("a create and its delete: the database's log", life.log_bytes / 1024.0, "KiB"));
    Ok(())
}

/// The node's connection, which it closes when it is idle.
fn reopened(node: &mut Node) -> Result<&mut Connection, Failure> {
    if node.api.get("/api/v2/nodes").is_err() {
        node.api = Connection::open(node.port)?;
    }
    Ok(&mut node.api)
}

/// Waits until the samples of usage are merged into hours: that is a part of what they cost. Returns how often it looked.
fn wait_for_merge(postgres: &Postgres) -> Result<f64, Failure> {
    for looks in 1..=20 {
        // Last samples wait for the next tick, too.
        std::thread::sleep(SAMPLED);
        if postgres.number("SELECT (SELECT count(*) FROM usage) + (SELECT count(*) FROM meters)")? == 0.0 {
            return Ok(f64::from(looks));
        }
    }
    Err(Failure::new("the samples of usage are not merged"))
}

/// What nodes ask of their store, by its own code: the inputs of docs/SCALING.md.
fn store(postgres: &Postgres, report: &mut Report) -> Outcome {
    postgres.sql("CREATE DATABASE cluster")?;
    let mut measure = program(binary::example("cluster_store", Profile::Dist)?);
    for line in command::output(measure.arg(postgres.url("cluster")))?.lines() {
        let row: Value = serde_json::from_str(line).map_err(|error| Failure::new(format!("{line}: {error}")))?;
        let text = |field: &str| row[field].as_str().unwrap_or_default();
        report.push(Row::plain(text("name"), row["value"].as_f64().unwrap_or_default(), text("unit")));
    }
    Ok(())
}

fn timed(work: impl FnOnce() -> Outcome) -> Result<Duration, Failure> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed())
}

impl Setting<'_> {
    fn serve(&self, postgres: &Postgres, number: usize) -> Result<Node, Failure> {
        let port = self.port + 1 + number as u16;
        if let Some(started) = Started::find(port) {
            started.stop()?;
        }
        let name = NAMES[number];
        let data_dir = PathBuf::from(format!("{}-{name}", self.images.display()));
        image::copy(self.arenite, &["base"], self.images, &data_dir)?;
        let (listen, store, data) = (format!("127.0.0.1:{port}"), postgres.url("postgres"), data_dir.display().to_string());
        let words = [
            ["--listen", &listen],
            ["--agentflow-listen", "off"],
            ["--data-dir", &data],
            ["--store", &store],
            ["--node", name],
            ["--node-listen", "127.0.0.1:0"],
        ];
        let words: Vec<String> = words.concat().into_iter().map(str::to_owned).collect();
        server::start(self.arenite, port, &words, &self.work.join(format!("{name}.log")))?;
        Ok(Node { port, api: Connection::open(port)? })
    }
}
