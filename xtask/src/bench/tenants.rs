//! A server with many tenants next to one with a single tenant, and what a key adds to a request.
//!
//! The other sandboxes of both servers are lost: rows in the store and in memory like all others, without processes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::http::Connection;
use super::report::{Report, Row, quantile};
use crate::command::{self, program};
use crate::failure::{Attempt, Failure, Outcome};
use crate::image;
use crate::server::{self, Started};

const MANY: usize = 1_000;
/// Sandboxes of each tenant.
const EACH: usize = 5;
/// The measured tenant has this number.
const MEASURED: usize = 0;
/// A route that reads nothing but its caller's tenant.
const TRIVIAL: &str = "/api/v2/groups";
const WARM_UP: usize = 50;
/// Rounds of the calls that create nothing: they take a fraction of a millisecond.
const CALLS: usize = 2_000;
/// Pause between a delete and the next create, so that its end is not measured as the next one's start.
const PAUSE: Duration = Duration::from_millis(20);

/// A server that ends with the measurement.
struct Server {
    port: u16,
    api: Connection,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(started) = Started::find(self.port)
            && let Err(failure) = started.stop()
        {
            eprintln!("{failure}");
        }
    }
}

/// Servers on one core, and this program on another, until it is dropped. Otherwise the cores on which their threads happen to run
/// make two equal servers differ by 20 µs a call.
struct Pinned {
    pids: Vec<u32>,
    cores: usize,
}

impl Pinned {
    fn new(ports: &[u16]) -> Result<Self, Failure> {
        let find = |port: &u16| Started::find(*port).map(|started| started.pid);
        let pids: Vec<u32> = ports.iter().filter_map(find).collect();
        if pids.len() < ports.len() {
            return Err(Failure::new("a server to pin to a core is gone"));
        }
        let cores = std::thread::available_parallelism().attempt(|| "could not count the cores".into())?.get();
        let pinned = Self { pids, cores };
        for pid in &pinned.pids {
            pin(*pid, &(cores - 1).to_string())?;
        }
        pin(std::process::id(), "0")?;
        Ok(pinned)
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        for pid in self.pids.iter().copied().chain([std::process::id()]) {
            if let Err(failure) = pin(pid, &format!("0-{}", self.cores - 1)) {
                eprintln!("{failure}");
            }
        }
    }
}

/// Keeps all threads of a process on these cores.
fn pin(pid: u32, cores: &str) -> Outcome {
    command::output(program("taskset").args(["--all-tasks", "--cpu-list", "--pid", cores]).arg(pid.to_string())).map(drop)
}

/// Where the servers come from.
pub(super) struct Setting<'a> {
    pub(super) arenite: &'a Path,
    /// The data directory with the image.
    pub(super) images: &'a Path,
    pub(super) work: &'a Path,
    /// The two servers listen on the ports after this one.
    pub(super) port: u16,
    pub(super) rounds: usize,
}

/// List, get and create of one tenant of many, against the only tenant.
pub(super) fn beside_many(setting: &Setting<'_>, report: &mut Report) -> Outcome {
    let mut many = setting.serve(1, MANY)?;
    let mut alone = setting.serve(2, 1)?;
    let sandbox = format!("/api/v2/sandboxes/{}", name_of(MEASURED));
    let pinned = Pinned::new(&[many.port, alone.port])?;
    for (what, path) in [("list of five sandboxes", "/api/v2/sandboxes"), ("get of a sandbox", &sandbox)] {
        let (ours, theirs) = alternate(WARM_UP, CALLS, &mut many.api, &mut alone.api, |api, _| timed_get(api, path))?;
        report.push(compared(what, &ours, &theirs));
    }
    drop(pinned);
    let create = |api: &mut Connection, round: usize| {
        let name = format!("bench-{round}");
        let begun = Instant::now();
        api.create(&name)?;
        let took = begun.elapsed();
        api.delete(&name)?;
        std::thread::sleep(PAUSE);
        Ok(took)
    };
    let (ours, theirs) = alternate(WARM_UP, setting.rounds, &mut many.api, &mut alone.api, create)?;
    report.push(compared("create of a sandbox", &ours, &theirs));
    Ok(())
}

fn compared(what: &str, ours: &[Duration], theirs: &[Duration]) -> Row {
    let name = format!("{what} with {MANY} tenants of {EACH} sandboxes, p50");
    Row::ratio(&name, ours, 0.50, theirs, 0.50, 1.2).against("the same with one tenant")
}

/// The difference of a request with a key to a server of many tenants, and of the same request to a server without keys.
pub(super) fn authentication(setting: &Setting<'_>, keyless: &mut Connection, report: &mut Report) -> Outcome {
    let mut many = setting.serve(1, MANY)?;
    let _pinned = Pinned::new(&[many.port, setting.port])?;
    let call = |api: &mut Connection, _| timed_get(api, TRIVIAL);
    let (ours, theirs) = alternate(WARM_UP, 5 * CALLS, &mut many.api, keyless, call)?;
    let micros = |samples: &[Duration]| quantile(samples, 0.50).as_secs_f64() * 1e6;
    let added = micros(&ours) - micros(&theirs);
    report.push(Row::at_most("what a key, one of 1,000, adds to a request, p50", added, "µs", 20.0));
    Ok(())
}

fn timed_get(api: &mut Connection, path: &str) -> Result<Duration, Failure> {
    let begun = Instant::now();
    api.get(path)?;
    Ok(begun.elapsed())
}

/// Measures two connections in turn.
fn alternate(
    warm_up: usize,
    rounds: usize,
    ours: &mut Connection,
    theirs: &mut Connection,
    mut once: impl FnMut(&mut Connection, usize) -> Result<Duration, Failure>,
) -> Result<(Vec<Duration>, Vec<Duration>), Failure> {
    let mut samples = (Vec::with_capacity(rounds), Vec::with_capacity(rounds));
    for round in 0..warm_up + rounds {
        let (our, their) = (once(ours, round)?, once(theirs, round)?);
        if round >= warm_up {
            samples.0.push(our);
            samples.1.push(their);
        }
    }
    Ok(samples)
}

impl Setting<'_> {
    /// Starts a server with tenants, and connects with a key of the measured one.
    fn serve(&self, number: u16, tenants: usize) -> Result<Server, Failure> {
        let port = self.port + number;
        if let Some(started) = Started::find(port) {
            started.stop()?;
        }
        let data_dir = PathBuf::from(format!("{}-tenants-{number}", self.images.display()));
        image::copy(self.arenite, &["base"], self.images, &data_dir)?;
        self.fill(&data_dir, tenants)?;
        let log = self.work.join(format!("tenants-{number}.log"));
        // The key is looked for in this run's part.
        let _ = fs::remove_file(&log);
        let arguments = [
            "--listen".to_owned(),
            format!("127.0.0.1:{port}"),
            "--agentflow-listen".to_owned(),
            "off".to_owned(),
            "--tenants".to_owned(),
            "--data-dir".to_owned(),
            data_dir.display().to_string(),
        ];
        server::start(self.arenite, port, &arguments, &log)?;
        let mut server = Server { port, api: Connection::open(port)? };
        let text = fs::read_to_string(&log).attempt(|| format!("could not read {}", log.display()))?;
        let operator = text.lines().find_map(|line| line.strip_prefix("operator key: "));
        let operator = operator.ok_or_else(|| Failure::new(format!("{} has no operator key", log.display())))?;
        server.api.headers = authorization(operator);
        let mut measured = None;
        for tenant in 0..tenants {
            let key = json!({ "tenant": tenant_of(tenant), "name": "bench", "role": "manage" });
            let made = server.api.post("/api/v2/keys", &key)?;
            if tenant == MEASURED {
                measured = made["key"].as_str().map(authorization);
            }
        }
        server.api.headers = measured.ok_or_else(|| Failure::new("a new key has no text"))?;
        let found = server.api.sandboxes()?.len();
        if found != EACH {
            return Err(Failure::new(format!("the tenant has {found} sandboxes, not {EACH}")));
        }
        Ok(server)
    }

    /// Fills the store of a data directory with tenants and lost sandboxes.
    fn fill(&self, data_dir: &Path, tenants: usize) -> Outcome {
        let archive = self.work.join("tenants.jsonl");
        // They are kept for a day after that.
        let now = command::output(program("date").args(["-u", "+%Y-%m-%dT%H:%M:%SZ"]))?;
        let rows = rows(tenants, now.trim());
        let mut text = rows.iter().map(|row| format!("{row}\n")).collect::<String>();
        let write = |text: &str| fs::write(&archive, text).attempt(|| format!("could not write {}", archive.display()));
        write(&text)?;
        let sum = command::output(program("sha256sum").arg(&archive))?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        text += &format!("{}\n", json!({ "end": { "sandboxes": tenants * EACH, "sha256": sum } }));
        write(&text)?;
        let mut import = program(self.arenite);
        import.args(["store", "import", "--replace"]).arg(&archive).arg("--data-dir").arg(data_dir);
        command::output(&mut import).map(drop)
    }
}

fn authorization(key: &str) -> String {
    format!("Authorization: Bearer {key}\r\n")
}

fn tenant_of(number: usize) -> String {
    format!("tenant-{number}")
}

/// The name of a sandbox of each tenant.
fn name_of(number: usize) -> String {
    format!("box-{number}")
}

/// The lines of an archive of a store, without the last one.
fn rows(tenants: usize, lost_at: &str) -> Vec<Value> {
    const TIME: &str = "2026-01-01T00:00:00Z";
    let mut rows = vec![json!({ "format": "arenite-store", "version": 2 })];
    rows.extend((0..tenants).map(|tenant| {
        json!({ "tenant": {
            "name": tenant_of(tenant), "created_at": TIME, "limits": {}, "disabled": false, "removed_at": null,
        } })
    }));
    for tenant in 0..tenants {
        rows.extend((0..EACH).map(|number| {
            json!({ "sandbox": {
                "id": format!("s{:011}", tenant * EACH + number), "tenant": tenant_of(tenant), "name": name_of(number),
                "state": "lost", "spec": { "image": "base" }, "template": null, "reason": "it was never created", "isolation": [],
                "origin": "bench", "created_at": TIME, "last_used_at": TIME, "state_since": lost_at, "expires_at": null,
            } })
        }));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_each_tenants_sandboxes() {
        let rows = rows(3, "2026-01-01T00:00:00Z");
        assert_eq!(rows.len(), 1 + 3 + 3 * EACH);
        assert_eq!(rows[0]["format"], "arenite-store");
    }
}
