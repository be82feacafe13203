//! The console with 10,000 sandboxes and the page of a run with 10,000 steps, in Chromium.

use super::BenchArgs;
use super::report::{Report, Row};
use super::retrieval::{number, told};
use crate::command::{program, repository};
use crate::failure::Outcome;
use crate::{host, python};

const MANY: usize = 10_000;
/// Milliseconds, of one frame and until a page can be used, and megabytes of the process that renders it.
const FRAME: f64 = 50.0;
const READY: f64 = 1000.0;
const MEMORY: f64 = 150.0;

pub(super) fn measure(args: &BenchArgs, report: &mut Report) -> Outcome {
    host::prepare(&[host::TO_TEST])?;
    let mut script = program(python::environment()?);
    script.arg(repository().join("bench/pages.py")).arg(format!("http://127.0.0.1:{}", args.port)).arg(MANY.to_string());
    let found = told(script)?;
    for (page, field) in [("10,000 sandboxes", "sandboxes"), ("10,000 steps", "steps")] {
        let read = |name: &str| number(&found, &format!("/{field}_{name}"));
        report.push(Row::at_most(&format!("page of {page}: can be used, p50"), read("ms")?, "ms", READY));
        report.push(Row::at_most(&format!("page of {page}: longest task while it scrolls"), read("scroll_ms")?, "ms", FRAME));
        let blank = number(&found, "/blank_bytes")? / 1e6;
        let memory = Row::at_most(&format!("page of {page}: memory of its process"), read("bytes")? / 1e6, "MB", MEMORY);
        report.push(memory.beside(blank).against("an empty page"));
    }
    report.push(Row::plain("page of 10 sandboxes: can be used, p50", number(&found, "/few_sandboxes_ms")?, "ms"));
    report.push(Row::plain("page of 10,000 steps: has read all", number(&found, "/all_steps_ms")?, "ms"));
    Ok(())
}
