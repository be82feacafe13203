//! MCP: a tool call next to the REST call of the same work, and the server memory of many sessions.

use std::time::{Duration, Instant};

use serde_json::json;

use super::http::Connection;
use super::report::{Report, Row};
use super::{BenchArgs, WARM_UP, memory};
use crate::failure::{Failure, Outcome};
use crate::server;

const NAME: &str = "bench-mcp";
/// Number of concurrent sessions.
const SESSIONS: usize = 200;
/// Number of calls of each before memory is first measured. A session's channels hold messages in blocks of 32, and have all
/// the blocks that they ever use after some 35 calls; the heap takes longer to reach its maximum.
const BEFORE: usize = 250;
/// Number of calls of each before the last measurement.
const AFTER: usize = BEFORE + 500;
/// Maximum growth of the server's memory: less than 70 bytes for each call between. The heap's pages that are free for the next
/// calls are a fifth of it, and vary by 5 MiB as calls happen to coincide.
const GROWTH: f64 = 1.1;
/// How long the result of an ended call is kept.
const KEPT: Duration = Duration::from_secs(25);

pub(super) fn measure(args: &BenchArgs, api: &mut Connection, report: &mut Report) -> Outcome {
    api.create(NAME)?;
    calls(args, api, report)?;
    sessions(args.port, report)?;
    // The server closed the idle connection.
    *api = Connection::open(args.port)?;
    api.delete(NAME)
}

/// Lists a directory of three files.
fn call(connection: &mut Connection) -> Result<Duration, Failure> {
    let arguments = json!({ "action": "list", "path": "/tmp/three" });
    let params = json!({ "name": "sandbox_file_operations", "arguments": arguments });
    let body = json!({ "jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params });
    let begun = Instant::now();
    let answer = connection.post(&path(), &body)?;
    let took = begun.elapsed();
    if answer["result"]["isError"] == false && answer["result"]["structuredContent"]["total_count"] == 3 {
        return Ok(took);
    }
    Err(Failure::new(format!("a tool was answered with {answer}")))
}

fn path() -> String {
    format!("/sandbox/{NAME}/mcp")
}

fn calls(args: &BenchArgs, api: &mut Connection, report: &mut Report) -> Outcome {
    api.bash(NAME, "mkdir /tmp/three; touch /tmp/three/{a,b,c}")?;
    let mut session = Connection::open(args.port)?;
    session.begin_session(&path())?;
    let (mut rest, mut single, mut lasting) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + 5 * args.rounds {
        let begun = Instant::now();
        let answer = api.post(&format!("/sandbox/{NAME}/v1/file/list"), &json!({ "path": "/tmp/three" }))?;
        let took = begun.elapsed();
        if answer["data"]["total_count"] != 3 {
            return Err(Failure::new(format!("the list was answered with {answer}")));
        }
        let took = [took, call(api)?, call(&mut session)?];
        if round >= WARM_UP {
            rest.push(took[0]);
            single.push(took[1]);
            lasting.push(took[2]);
        }
    }
    let against = "the same work by `file/list`";
    report.push(Row::ratio("MCP `tools/call` of a list, p50", &single, 0.50, &rest, 0.50, 1.5).against(against));
    report.push(Row::ratio("MCP `tools/call` of a list in a session, p50", &lasting, 0.50, &rest, 0.50, 1.5).against(against));
    Ok(())
}

fn sessions(port: u16, report: &mut Report) -> Outcome {
    let process = server::Started::find(port).ok_or_else(|| Failure::new("the server has gone"))?.pid;
    let occupied = || memory::of_process(process).map(|bytes| bytes as f64 / f64::from(1 << 20));
    let mut open = Vec::new();
    for _ in 0..SESSIONS {
        let mut connection = Connection::open(port)?;
        connection.begin_session(&path())?;
        open.push(connection);
    }
    let (mut before, mut failed) = (None, 0);
    for round in 0..AFTER {
        if round == BEFORE {
            std::thread::sleep(KEPT);
            // The server has closed idle connections; the sessions still exist.
            for connection in &mut open {
                let headers = std::mem::take(&mut connection.headers);
                *connection = Connection::open(port)?;
                connection.headers = headers;
            }
            before = occupied();
        }
        // All of them concurrently: the last one is answered while the others wait.
        std::thread::scope(|scope| {
            let calls: Vec<_> = open.iter_mut().map(|connection| scope.spawn(move || call(connection).is_err())).collect();
            failed += calls.into_iter().filter_map(|call| call.join().ok()).filter(|failed| *failed).count();
        });
    }
    // Answers are kept for a moment, for clients that lost their connection.
    std::thread::sleep(KEPT);
    let (Some(before), Some(after)) = (before, occupied()) else { return Err(Failure::new("the server has gone")) };
    if failed > 0 {
        return Err(Failure::new(format!("{failed} of {} calls in {SESSIONS} sessions failed", SESSIONS * AFTER)));
    }
    let name = format!("{SESSIONS} sessions of MCP, {} calls in all: memory (PSS) of the server at the end", SESSIONS * AFTER);
    let against = format!("after the first {} of them", SESSIONS * BEFORE);
    report.push(Row::growth(&name, after, before, "MiB", GROWTH).against(&against));
    Ok(())
}
