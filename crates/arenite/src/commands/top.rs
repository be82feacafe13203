//! `top`: what sandboxes use, measured again and again.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until};

use crate::cli::TopArgs;
use crate::client::Client;
use crate::config::values::Size;
use crate::failure::{Failure, Outcome};
use crate::output::{self, Cell, Entries, Form, Table, View};
use crate::wire;

/// Time between refreshes.
const REFRESH: Duration = Duration::from_secs(2);
/// Time between the first two measurements: processor time is the difference of two.
const FIRST: Duration = Duration::from_millis(500);

pub(crate) async fn top(args: TopArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let form = args.output.form();
    let mut before = Sample::take(&client).await?;
    let mut next = before.taken + FIRST;
    loop {
        sleep_until(next).await;
        let sample = Sample::take(&client).await?;
        let loads = loads(&before, &sample);
        if form == Form::Table {
            show(&loads, sample.left_out, args.once);
        } else {
            let value = json!({ "sandboxes": loads.iter().map(Load::json).collect::<Vec<_>>(), "left_out": sample.left_out });
            // One line each, so that a reader of the stream needs no parser for more.
            if form == Form::Json && !args.once {
                output::line(value);
            } else {
                form.show(value, Entries::named("sandboxes"), |_| Ok(View::default()))?;
            }
        }
        if args.once {
            return Ok(ExitCode::SUCCESS);
        }
        next = sample.taken + REFRESH;
        before = sample;
    }
}

/// The answer of one moment.
struct Sample {
    taken: Instant,
    sandboxes: Vec<wire::SandboxLoad>,
    left_out: u64,
}

impl Sample {
    async fn take(client: &Client) -> Result<Self, Failure> {
        let answer: wire::LiveUsage = client.get("/api/v2/usage/live").await?;
        Ok(Self { taken: Instant::now(), sandboxes: answer.sandboxes, left_out: answer.left_out })
    }
}

/// A sandbox and its processor use between two samples.
struct Load<'a> {
    of: &'a wire::SandboxLoad,
    /// None: it is only in the second one.
    cores: Option<f64>,
}

impl Load<'_> {
    fn json(&self) -> Value {
        let mut value = json!(self.of);
        value["cpu_cores"] = json!(self.cores);
        value
    }
}

/// The busiest first, then the ones with most memory.
fn loads<'a>(before: &Sample, now: &'a Sample) -> Vec<Load<'a>> {
    let seconds = (now.taken - before.taken).as_secs_f64();
    let earlier: HashMap<&str, u64> = before.sandboxes.iter().map(|s| (s.id.as_str(), s.usage.cpu_nanoseconds)).collect();
    let cores = |sandbox: &wire::SandboxLoad| {
        // A restarted sandbox counts from zero.
        let used = sandbox.usage.cpu_nanoseconds.checked_sub(*earlier.get(sandbox.id.as_str())?)?;
        Some(used as f64 / 1e9 / seconds)
    };
    let mut loads: Vec<_> = now.sandboxes.iter().map(|of| Load { of, cores: cores(of) }).collect();
    loads.sort_by_key(|load| Reverse((load.cores.map(|cores| (cores * 1000.0) as u64), load.of.usage.memory_bytes)));
    loads
}

fn show(loads: &[Load<'_>], left_out: u64, once: bool) {
    let more = (left_out > 0).then(|| format!("{left_out} more"));
    let table = table(loads, Timestamp::now());
    if !once && io::stdout().is_terminal() {
        return output::redraw(&View { lines: more.into_iter().collect(), ..table.into() });
    }
    output::rows(&table);
    more.iter().for_each(output::line);
    if !once {
        output::line("");
    }
}

fn table(loads: &[Load<'_>], now: Timestamp) -> Table {
    let header = ["name", "state", "cpu", "memory", "disk", "calls", "age", "image"];
    let mut table = output::table(&header).right(&["cpu", "memory", "disk", "calls"]);
    for Load { of, cores } in loads {
        table.add_row::<Cell>(vec![
            of.name.clone().into(),
            output::state(&of.state),
            cores.map_or("-".to_owned(), |cores| format!("{:.1}%", cores * 100.0)).into(),
            Size(of.usage.memory_bytes).short().into(),
            of.usage.disk_bytes.map_or("-".to_owned(), |bytes| Size(bytes).short()).into(),
            of.calls.to_string().into(),
            output::distance(of.created_at, now).into(),
            of.image.clone().into(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(taken: Instant, of: &[(&str, u64, u64)]) -> Sample {
        let sandbox = |(name, cpu, memory): &(&str, u64, u64)| {
            let usage = json!({ "cpu_nanoseconds": cpu, "memory_bytes": memory, "disk_bytes": null, "limits": {} });
            let (at, calls) = ("2026-11-25T17:00:00Z", 0);
            json!({ "id": name, "name": name, "state": "running", "image": "base", "created_at": at, "calls": calls, "usage": usage })
        };
        let sandboxes = of.iter().map(|of| serde_json::from_value(sandbox(of)).unwrap()).collect();
        Sample { taken, sandboxes, left_out: 0 }
    }

    #[test]
    fn the_busiest_sandbox_is_first() {
        let start = Instant::now();
        let before = sample(start, &[("idle", 5, 1), ("busy", 1_000_000_000, 1), ("restarted", 9, 7)]);
        let now = [("idle", 5, 1), ("busy", 4_000_000_000, 1), ("new", 900, 5), ("restarted", 3, 7)];
        let now = sample(start + Duration::from_secs(2), &now);
        let loads = loads(&before, &now);
        let found: Vec<_> = loads.iter().map(|load| (load.of.name.as_str(), load.cores)).collect();
        assert_eq!(found, [("busy", Some(1.5)), ("idle", Some(0.0)), ("restarted", None), ("new", None)]);
        let text = format!("{:?}", table(&loads, "2026-11-25T17:05:00Z".parse().unwrap()));
        assert!(text.contains("150.0%") && text.contains("5m"), "{text}");
        assert_eq!(loads[0].json()["cpu_cores"], 1.5);
        assert_eq!(loads[0].json()["usage"]["disk_bytes"], Value::Null);
    }
}
