//! States with processes under gVisor: a Python of 50 MB, sealed, returned to, and forked.

use std::time::{Duration, Instant};

use serde_json::json;

use super::http::Connection;
use super::report::{Report, Row, quantile};
use crate::failure::{Failure, Outcome};

const NAME: &str = "bench-kept";
const PARENT: &str = "/api/v2/sandboxes/bench-kept";
const FORKS: usize = 8;
/// Each round of forks takes seconds.
const ROUNDS: usize = 10;
const FILL: &str = "import hashlib, random; data = random.randbytes(50_000_000); print(hashlib.sha256(data).hexdigest())";
const SUM: &str = "print(hashlib.sha256(data).hexdigest())";

pub(super) fn measure(rounds: usize, api: &mut Connection, report: &mut Report) -> Outcome {
    let spec = json!({ "name": NAME, "image": "code", "tier": "gvisor", "resources": { "memory_bytes": 1u64 << 30 } });
    api.post("/api/v2/sandboxes", &spec)?;
    let (session, sum) = run(api, NAME, None, FILL)?;
    let (mut seals, mut frozen, mut returns, mut forks, mut bytes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new(), 0.0);
    for round in 1..=rounds.min(ROUNDS) {
        let begun = Instant::now();
        let sealed = api.post(&format!("{PARENT}/checkpoints"), &json!({ "keep_processes": true }))?;
        seals.push(begun.elapsed());
        frozen.push(Duration::from_secs_f64(sealed["frozen_ms"].as_f64().unwrap_or_default() / 1e3));
        bytes = sealed["memory_bytes"].as_f64().unwrap_or_default();
        let begun = Instant::now();
        api.post(&format!("{PARENT}/rollback"), &json!({ "to": round.to_string() }))?;
        returns.push(begun.elapsed());
        same(api, NAME, &session, &sum)?;
        let begun = Instant::now();
        let made =
            api.post(&format!("{PARENT}/fork"), &json!({ "count": FORKS, "name": "bench-fork", "keep_processes": true }))?;
        forks.push(begun.elapsed());
        for fork in made["sandboxes"].as_array().into_iter().flatten().filter_map(|fork| fork["name"].as_str()) {
            same(api, fork, &session, &sum)?;
            api.delete(fork)?;
        }
    }
    api.delete(NAME)?;
    let millis = |samples: &[Duration]| quantile(samples, 0.5).as_secs_f64() * 1e3;
    report.push(Row::plain("checkpoint with processes, Python of 50 MB under gVisor, p50", millis(&seals), "ms"));
    report.push(Row::plain("its processes are still for it, p50", millis(&frozen), "ms"));
    report.push(Row::plain("the image of them", bytes / f64::from(1 << 20), "MiB"));
    report.push(Row::plain("rollback to it, p50", millis(&returns), "ms"));
    report.push(Row::plain("8 forks with processes at once, p50", millis(&forks), "ms"));
    Ok(())
}

/// Runs code in a Jupyter session. Returns the session and what it printed.
fn run(api: &mut Connection, sandbox: &str, session: Option<&str>, code: &str) -> Result<(String, String), Failure> {
    let body = json!({ "code": code, "session_id": session });
    let answer = api.post(&format!("/sandbox/{sandbox}/v1/jupyter/execute"), &body)?;
    let data = &answer["data"];
    let text = data["outputs"].as_array().into_iter().flatten().filter_map(|output| output["text"].as_str()).collect();
    let session = data["session_id"].as_str().map(str::to_owned);
    session.map(|session| (session, text)).ok_or_else(|| Failure::new(format!("{code} in {sandbox} answered {answer}")))
}

fn same(api: &mut Connection, sandbox: &str, session: &str, sum: &str) -> Outcome {
    let (_, found) = run(api, sandbox, Some(session), SUM)?;
    if found == sum {
        Ok(())
    } else {
        Err(Failure::new(format!("the data in {sandbox} has the hash {found:?}, and not {sum:?}")))
    }
}
