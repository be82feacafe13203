//! AgentFlow's `execute`: a trivial tool next to an empty handler and to FastAPI, sessions of one call, batches, and sessions
//! that are created concurrently.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::BenchArgs;
use super::http::Connection;
use super::report::{Report, Row};
use crate::binary::{self, Profile};
use crate::command::{self, program, repository};
use crate::failure::{Attempt, Failure, Outcome};

const CONNECTIONS: usize = 32;
/// Number of rounds in which the servers alternate, and the duration of each.
const ROUNDS: usize = 7;
const TURN: Duration = Duration::from_millis(1000);
const BATCH: usize = 100;
const BATCHES: usize = 200;
/// Number of sessions of one call that are created concurrently, and in total.
const WORKERS: usize = 4;
const TEMPORARY: usize = 200;
/// A slow start: two seconds of sleep.
const SLOW: usize = 4;

/// AgentFlow's configuration for the measured server: all defaults, and a plugin that is slow to start.
pub(super) fn configuration(work: &Path) -> Result<std::path::PathBuf, Failure> {
    let ours = "sandbox.server.backends.resources";
    let plugins = repository().join("tests/agentflow/plugins");
    // SQLite accepts an empty file as a database without tables.
    let database = work.join("empty.sqlite");
    std::fs::write(&database, "").attempt(|| format!("could not write {}", database.display()))?;
    let configuration = json!({
        "resources": {
            "bash": { "backend_class": format!("{ours}.bash.BashBackend") },
            "slow": { "backend_class": "demo_backends.SlowBackend", "path": [&plugins] },
            "demo": { "backend_class": "demo_backends.DemoBackend", "path": [&plugins] },
        },
        "apis": { "text2sql": { "databases": { "empty": database } } },
    });
    let file = work.join("agentflow.json");
    std::fs::write(&file, configuration.to_string()).attempt(|| format!("could not write {}", file.display()))?;
    Ok(file)
}

pub(super) fn measure(args: &BenchArgs, api: &mut Connection, work: &Path, report: &mut Report) -> Outcome {
    let handler = Floor::start(std::process::Command::new(binary::example("empty_handler", Profile::Dist)?))?;
    let python = environment(work)?;
    let mut minimal = std::process::Command::new(&python);
    minimal.arg(repository().join("bench/floors/execute.py"));
    let minimal = Floor::start(minimal)?;
    trivial(args.port, &handler, &minimal, report)?;
    drop((handler, minimal));
    batches(args.port, report)?;
    let mut in_process = std::process::Command::new(python);
    in_process.arg(repository().join("bench/floors/batches.py"));
    plugin_batches(args.port, &Floor::start(in_process)?, report)?;
    temporary(args.port, report)?;
    together(args.port, report)?;
    // The server closed the idle connection.
    *api = Connection::open(args.port)?;
    Ok(())
}

/// A server that is measured next to ours; it ends with its standard input.
struct Floor {
    child: Child,
    port: u16,
}

impl Floor {
    fn start(mut command: std::process::Command) -> Result<Self, Failure> {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().attempt(|| "could not start a floor".into())?;
        let mut line = String::new();
        if let Some(output) = child.stdout.take() {
            BufReader::new(output).read_line(&mut line).attempt(|| "a floor said nothing".into())?;
        }
        let port = line.trim().parse().map_err(|_| Failure::new(format!("a floor said {line:?} for its port")))?;
        let begun = Instant::now();
        while Connection::open(port).and_then(|mut one| one.post("/api/v1/execute", &asked("warm"))).is_err() {
            if begun.elapsed() > Duration::from_secs(20) {
                return Err(Failure::new("a floor does not answer"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { child, port })
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

fn asked(worker: &str) -> Value {
    json!({ "worker_id": worker, "action": "text2sql:list_databases", "params": {}, "timeout": null })
}

fn session(api: &mut Connection, worker: &str, resource: &str) -> Outcome {
    api.post("/api/v1/session/create", &json!({ "worker_id": worker, "resource_type": resource })).map(drop)
}

/// Calls per second of all connections together.
fn rate(port: u16) -> Result<f64, Failure> {
    let over = AtomicBool::new(false);
    let begun = Instant::now();
    let counted: Vec<Result<usize, Failure>> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CONNECTIONS)
            .map(|n| {
                let over = &over;
                scope.spawn(move || {
                    let (mut connection, body) = (Connection::open(port)?, asked(&format!("bench-{n}")));
                    let mut count = 0;
                    while !over.load(Ordering::Relaxed) {
                        let answer = connection.raw_post("/api/v1/execute", &body)?;
                        if !answer.starts_with(b"{\"code\":0,") {
                            return Err(Failure::new(format!("execute was answered {}", String::from_utf8_lossy(&answer))));
                        }
                        count += 1;
                    }
                    Ok(count)
                })
            })
            .collect();
        std::thread::sleep(TURN);
        over.store(true, Ordering::Relaxed);
        callers.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(Failure::new("a caller panicked")))).collect()
    });
    let took = begun.elapsed().as_secs_f64();
    Ok(counted.into_iter().sum::<Result<usize, Failure>>()? as f64 / took)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

fn trivial(port: u16, handler: &Floor, minimal: &Floor, report: &mut Report) -> Outcome {
    let mut api = Connection::open(port)?;
    for n in 0..CONNECTIONS {
        session(&mut api, &format!("bench-{n}"), "text2sql")?;
    }
    let (mut ours, mut floor, mut python) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let rates = [rate(port)?, rate(handler.port)?, rate(minimal.port)?];
        // The first one warms up.
        if round > 0 {
            ours.push(rates[0]);
            floor.push(rates[1]);
            python.push(rates[2]);
        }
    }
    let (ours, floor, python) = (median(&mut ours), median(&mut floor), median(&mut python));
    let name = format!("AgentFlow execute of a trivial tool, {CONNECTIONS} connections");
    report.push(Row::throughput(&name, ours, floor, "/s", 0.4).against("an empty axum handler"));
    report
        .push(Row::throughput(&format!("{name}, next to Python"), ours, python, "/s", 20.0).against("a minimal FastAPI server"));
    Ok(())
}

fn batches(port: u16, report: &mut Report) -> Outcome {
    let mut api = Connection::open(port)?;
    session(&mut api, "bench-batch", "text2sql")?;
    let action = json!({ "action": "text2sql:list_databases", "params": {} });
    let body = json!({ "worker_id": "bench-batch", "actions": vec![action; BATCH] });
    let (mut ours, mut floor) = (Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        let begun = Instant::now();
        for _ in 0..BATCHES {
            api.raw_post("/api/v1/execute/batch", &body)?;
        }
        let rate = (BATCH * BATCHES) as f64 / begun.elapsed().as_secs_f64();
        let said = command::output(&mut program(binary::example("in_process", Profile::Dist)?))?;
        let alone: f64 = said.trim().parse().map_err(|_| Failure::new(format!("the calls in the process said {said:?}")))?;
        if round > 0 {
            ours.push(rate);
            floor.push(alone);
        }
    }
    let (ours, floor) = (median(&mut ours), median(&mut floor));
    let name = format!("AgentFlow batch of {BATCH} trivial actions, each action");
    report.push(Row::throughput(&name, ours, floor, "/s", 0.5).against("the same calls in the process"));
    Ok(())
}

/// Batches with a Python tool: a plugin in a separate process, next to a server that runs it in its own process and loop.
fn plugin_batches(port: u16, in_process: &Floor, report: &mut Report) -> Outcome {
    let action = json!({ "action": "demo:incr", "params": { "by": 1 } });
    for (parallel, how) in [(false, "one after the other"), (true, "at once")] {
        let body = json!({ "worker_id": "bench-plugin", "actions": vec![&action; BATCH], "parallel": parallel });
        let (mut ours, mut floor) = (Vec::new(), Vec::new());
        for round in 0..=ROUNDS {
            let rates = [plugin_rate(port, &body)?, plugin_rate(in_process.port, &body)?];
            if round > 0 {
                ours.push(rates[0]);
                floor.push(rates[1]);
            }
        }
        let (ours, floor) = (median(&mut ours), median(&mut floor));
        let name = format!("AgentFlow batch of {BATCH} actions of a Python plugin {how}");
        report.push(Row::throughput(&name, ours, floor, "/s", 2.0).against("FastAPI with the plugin in its process"));
    }
    Ok(())
}

/// Batches per second of one connection.
fn plugin_rate(port: u16, body: &Value) -> Result<f64, Failure> {
    let mut api = Connection::open(port)?;
    session(&mut api, "bench-plugin", "demo")?;
    let (begun, mut count) = (Instant::now(), 0u32);
    while begun.elapsed() < TURN {
        let answer = api.raw_post("/api/v1/execute/batch", body)?;
        if !answer.starts_with(b"{\"code\":0,") {
            return Err(Failure::new(format!("a batch was answered {}", String::from_utf8_lossy(&answer))));
        }
        count += 1;
    }
    Ok(f64::from(count) / begun.elapsed().as_secs_f64())
}

fn temporary(port: u16, report: &mut Report) -> Outcome {
    let begun = Instant::now();
    let done: Vec<Outcome> = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..WORKERS)
            .map(|n| {
                scope.spawn(move || {
                    let mut connection = Connection::open(port)?;
                    let worker = format!("bench-temporary-{n}");
                    for _ in 0..TEMPORARY / WORKERS {
                        let asked = json!({ "worker_id": worker, "action": "bash:run", "params": { "command": "true" } });
                        let answer = connection.post("/api/v1/execute", &asked)?;
                        if answer["data"]["return_code"] != 0 {
                            return Err(Failure::new(format!("true was answered {answer}")));
                        }
                    }
                    Ok(())
                })
            })
            .collect();
        callers.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(Failure::new("a caller panicked")))).collect()
    });
    let took = begun.elapsed().as_secs_f64();
    done.into_iter().collect::<Outcome>()?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let name = "AgentFlow execute of bash:run true in a separate sandbox, each second and core";
    report.push(Row::at_least(name, TEMPORARY as f64 / took / cores, "/s", 20.0));
    Ok(())
}

fn together(port: u16, report: &mut Report) -> Outcome {
    let mut api = Connection::open(port)?;
    api.post("/api/v1/warmup", &json!({ "backends": ["slow"] }))?;
    let begun = Instant::now();
    let made: Vec<Outcome> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..SLOW)
            .map(|n| scope.spawn(move || session(&mut Connection::open(port)?, &format!("bench-slow-{n}"), "slow")))
            .collect();
        workers.into_iter().map(|one| one.join().unwrap_or_else(|_| Err(Failure::new("a worker panicked")))).collect()
    });
    let took = begun.elapsed().as_secs_f64();
    made.into_iter().collect::<Outcome>()?;
    report.push(Row::at_most("AgentFlow: 4 workers with sessions that take 2 s to begin, all of them", took, "s", 2.2));
    Ok(())
}

/// An interpreter with FastAPI.
fn environment(work: &Path) -> Result<std::path::PathBuf, Failure> {
    let dir = work.join("fastapi");
    let python = dir.join("bin/python");
    if !command::succeeds(program(&python).args(["-c", "import fastapi, uvicorn"])) {
        command::run(program("python3").args(["-m", "venv", "--clear"]).arg(&dir))?;
        let mut install = program(&python);
        install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "fastapi==0.116.1", "uvicorn==0.35.0"]);
        command::run(&mut install)?;
    }
    Ok(python)
}
