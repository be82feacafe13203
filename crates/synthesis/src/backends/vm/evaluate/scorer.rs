//! Metrics in Python: files that a VM created are opened in that process, never in the server.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::Wrong;
use super::getters::Found;
use crate::answer::code as codes;
use crate::error::{SynthesisError, plugin};
use crate::plugin::Launch;
use crate::plugin::aside::Aside;

/// Timeout of a metric.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Metrics that are computed concurrently. They share one process.
const AT_ONCE: usize = 4;

/// The process of metrics, for all evaluations of a server.
pub(in crate::backends::vm) struct Scorer {
    aside: Aside,
    turns: tokio::sync::Semaphore,
    timeout: Duration,
}

/// The result of a metric.
#[derive(Debug, PartialEq)]
pub(super) struct Judged {
    /// From 0 to 1.
    pub(super) score: f64,
    pub(super) reason: Option<String>,
}

impl Scorer {
    /// `python`: the interpreter, in which packages for Office files and pictures may be installed. `package`: the folder with
    /// the server's Python package.
    pub(in crate::backends::vm) fn new(python: &str, package: &Path) -> Self {
        let launch = Launch::python(python, "tools", &["sandbox.osworld.scoring".to_owned()], package, &[]);
        Self { aside: Aside::new("osworld-metrics", launch), turns: tokio::sync::Semaphore::new(AT_ONCE), timeout: TIMEOUT }
    }

    #[cfg(test)]
    pub(super) fn within(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    pub(super) async fn score(
        &self,
        func: &str,
        result: &Found,
        expected: Option<&Found>,
        options: &Value,
        folder: &Path,
    ) -> Result<Judged, Wrong> {
        let params = json!({
            "func": func,
            "result": tagged(result),
            "expected": expected.map(tagged),
            "options": options,
            "folder": folder,
        });
        let _turn = self.turns.acquire().await.map_err(SynthesisError::from)?;
        let told = self.aside.call("osworld:score", &params, self.timeout).await?;
        match told.get("code").and_then(Value::as_i64) {
            Some(codes::SUCCESS) => {}
            code => {
                let said = told.get("message").and_then(Value::as_str).unwrap_or("the metric failed");
                let said = SynthesisError::Program { message: said.to_owned() };
                return Err(if code == Some(codes::INVALID_INPUT) { Wrong::Evaluator(said) } else { Wrong::Other(said) });
            }
        }
        let data = told.get("data").cloned().unwrap_or_default();
        let score = data["score"].as_f64().filter(|score| score.is_finite());
        let score = score.ok_or_else(|| plugin("the metric answered without a score"))?.clamp(0.0, 1.0);
        Ok(Judged { score, reason: data["reason"].as_str().map(str::to_owned) })
    }

    /// Ends the process.
    pub(in crate::backends::vm) async fn end(&self) {
        self.aside.end().await;
    }
}

/// Tags values as file or text: a client's text never becomes a file name.
fn tagged(found: &Found) -> Value {
    match found {
        Found::Nothing => json!({ "kind": "nothing" }),
        Found::Value(value) => json!({ "kind": "value", "value": value }),
        Found::File(name) => json!({ "kind": "file", "name": name }),
        Found::Files(names) => json!({ "kind": "files", "names": names }),
    }
}
