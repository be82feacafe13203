//! Batches: several tool calls in one request.

use std::sync::Arc;
use std::time::Instant;

use futures_util::StreamExt;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use crate::answer::{Meta, ToolAnswer, code, trace_id};
use crate::execute::{Action, Done, Execute};
use crate::retry::Request;
use crate::sandboxes::Caller;
use crate::synthesis::Synthesis;

/// The most items of a batch that run concurrently.
const AT_ONCE: usize = 64;

/// Several calls.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Everything except its action.
    pub each: Execute,
    pub actions: Vec<Action>,
    pub parallel: bool,
    pub stop_on_error: bool,
}

impl Synthesis {
    /// Runs a batch, each of its actions as its own call.
    pub async fn execute_batch(
        self: &Arc<Self>,
        caller: &Caller,
        batch: Batch,
        request: impl Fn() -> Request + Send + Sync + 'static,
    ) -> Done {
        let worker = batch.each.worker.clone();
        let run = |synthesis: Arc<Self>, caller: Caller, cancel: CancellationToken| async move {
            synthesis.batch(&caller, batch, &cancel).await
        };
        self.join_or_start(caller, &worker, request, run).await
    }

    async fn batch(self: &Arc<Self>, caller: &Caller, batch: Batch, cancel: &CancellationToken) -> Done {
        let begun = Instant::now();
        let queued_at = Timestamp::now();
        let total = batch.actions.len();
        let one = |action: Action| {
            let execute = Execute { action, ..batch.each.clone() };
            async move { self.perform(caller, execute, queued_at, cancel).await }
        };
        let mut results = Vec::with_capacity(total.min(10_000));
        if batch.parallel {
            let mut running = futures_util::stream::iter(batch.actions.into_iter().map(one)).buffered(AT_ONCE);
            while let Some(done) = running.next().await {
                results.push(done);
            }
        } else {
            for action in batch.actions {
                let done = one(action).await;
                let stop = done.code != code::SUCCESS && batch.stop_on_error;
                results.push(done);
                if stop || cancel.is_cancelled() {
                    break;
                }
            }
        }
        let executed = results.len();
        let success_count = results.iter().filter(|done| done.code == code::SUCCESS).count();
        let (code, message) = if executed == total && success_count == total {
            (code::SUCCESS, "success".to_owned())
        } else if success_count == 0 {
            (code::ALL_FAILED, "All actions failed".to_owned())
        } else {
            (code::PARTIAL_FAILURE, format!("{} out of {executed} actions failed", executed - success_count))
        };
        let trace_id = batch.each.trace_id.unwrap_or_else(trace_id);
        let meta = Meta {
            tool: "batch:execute",
            took: Some(begun.elapsed()),
            resource_type: None,
            session_id: None,
            trace_id: &trace_id,
        };
        let status = ToolAnswer { code, message: String::new(), data: Value::Null, meta: Map::new(), is_infrastructure: false }
            .status_of_many();
        let results: Vec<&RawValue> = results.iter().map(|done| &*done.json).collect();
        let data = Results { results, total, executed, success_count };
        let envelope = Enveloped { code, message, data, meta: meta.into_map() };
        let json = serde_json::value::to_raw_value(&envelope).unwrap_or_else(|_| RawValue::NULL.to_owned());
        Done { code, status, json: json.into() }
    }
}

#[derive(Serialize)]
struct Enveloped<T> {
    code: i64,
    message: String,
    data: T,
    meta: Map<String, Value>,
}

#[derive(Serialize)]
struct Results<'a> {
    results: Vec<&'a RawValue>,
    total: usize,
    executed: usize,
    success_count: usize,
}
