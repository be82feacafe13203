//! A separate process for computations on untrusted input, which may hang or crash it.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::process::Process;
use super::{FAREWELL, Launch, PROTOCOL};
use crate::error::{SynthesisError, plugin, timeout as late};

/// Started by the first call, and restarted after a crash.
pub(crate) struct Aside {
    process: Process,
}

impl Aside {
    pub(crate) fn new(name: &str, launch: Launch) -> Self {
        let process = Process::new(name.to_owned(), launch, None);
        process.remember(json!({ "protocol": PROTOCOL, "config": {} }));
        Self { process }
    }

    /// Calls a tool, and returns its envelope. A timeout ends the process, because Python can't be stopped otherwise.
    pub(crate) async fn call(&self, tool: &str, params: &Value, timeout: Duration) -> Result<Map<String, Value>, SynthesisError> {
        let mut is_second = false;
        loop {
            let running = self.process.running().await?;
            let told = json!({ "tool": tool, "params": params, "worker_id": "server", "trace_id": "" });
            let Ok(answer) = tokio::time::timeout(timeout, running.ask("call", told)).await else {
                self.process.end(Duration::ZERO).await;
                return Err(late(format!("it took more than {} s", timeout.as_secs())));
            };
            match answer {
                Ok(mut answer) => match answer["result"].take() {
                    Value::Object(envelope) => return Ok(envelope),
                    _ => return Err(plugin("its answer has no envelope")),
                },
                // Another call may have ended it.
                Err(SynthesisError::Plugin { .. }) if !is_second => is_second = true,
                Err(error) => return Err(error),
            }
        }
    }

    pub(crate) async fn end(&self) {
        self.process.end(FAREWELL).await;
    }
}
