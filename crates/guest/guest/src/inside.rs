//! Records calls inside the sandbox to the guest's own port. They are steps too, and the gateway collects them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use arenite_model::protocol::InsideStep;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::{Request, State};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName};
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::Notify;

/// The most steps kept while no gateway reads them.
const MOST_STEPS: usize = 1000;
/// The most bytes of kept steps.
const MOST_BYTES: usize = 4 << 20;
/// The most recorded bytes of one body.
const MOST_BODY: usize = 64 << 10;

/// Steps that wait for the gateway. The oldest are dropped when there are too many.
#[derive(Debug, Clone, Default)]
pub(crate) struct InsideSteps {
    waiting: Arc<Mutex<Waiting>>,
    arrived: Arc<Notify>,
}

#[derive(Debug, Default)]
struct Waiting {
    lines: VecDeque<Bytes>,
    bytes: usize,
    dropped: u64,
}

impl InsideSteps {
    fn push(&self, mut step: InsideStep) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        step.dropped_before = std::mem::take(&mut waiting.dropped);
        let Ok(mut line) = serde_json::to_vec(&step) else { return };
        line.push(b'\n');
        waiting.bytes += line.len();
        waiting.lines.push_back(line.into());
        while waiting.lines.len() > MOST_STEPS || waiting.bytes > MOST_BYTES {
            let Some(oldest) = waiting.lines.pop_front() else { break };
            waiting.bytes -= oldest.len();
            waiting.dropped += 1;
        }
        drop(waiting);
        self.arrived.notify_one();
    }

    /// Drops the steps that no gateway has read.
    pub(crate) fn forget(&self) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Waiting::default();
    }

    fn pop(&self) -> Option<Bytes> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let line = waiting.lines.pop_front()?;
        waiting.bytes -= line.len();
        Some(line)
    }

    /// Streams all steps as they come, as JSON lines. Use one reader at a time: two would share the steps.
    pub(crate) fn stream(&self) -> Response {
        let lines = futures_util::stream::unfold(self.clone(), |steps| async move {
            loop {
                if let Some(line) = steps.pop() {
                    return Some((Ok::<_, std::convert::Infallible>(line), steps));
                }
                steps.arrived.notified().await;
            }
        });
        let mut answer = Response::new(Body::from_stream(lines));
        answer.headers_mut().insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("application/x-ndjson"));
        answer
    }
}

/// Records calls of `/v1`, with small JSON bodies.
pub(crate) async fn record(State(steps): State<InsideSteps>, request: Request, next: Next) -> Response {
    if !request.uri().path().starts_with("/v1/") {
        return next.run(request).await;
    }
    let started_at = jiff::Timestamp::now().to_string();
    let begun = Instant::now();
    let method = request.method().to_string();
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    let (parts, body) = request.into_parts();
    let (body, arguments) = keep(&parts.headers, body).await;
    let answer = next.run(Request::from_parts(parts, body)).await;
    let (parts, body) = answer.into_parts();
    let (body, observation) = keep(&parts.headers, body).await;
    steps.push(InsideStep {
        method,
        path,
        started_at,
        duration_ms: begun.elapsed().as_secs_f64() * 1000.0,
        status: parts.status.as_u16(),
        arguments,
        observation,
        dropped_before: 0,
    });
    Response::from_parts(parts, body)
}

/// Reads a small JSON body, according to its headers. Any other body passes unchanged.
async fn keep(headers: &HeaderMap, body: Body) -> (Body, Option<serde_json::Value>) {
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok());
    let json = text(CONTENT_TYPE).is_some_and(|t| t.starts_with("application/json"));
    let length = text(CONTENT_LENGTH).and_then(|l| l.parse().ok()).or_else(|| body.size_hint().exact());
    if !json || length.is_none_or(|l| l > MOST_BODY as u64) {
        return (body, None);
    }
    match to_bytes(body, MOST_BODY).await {
        Ok(bytes) => {
            let value = serde_json::from_slice(&bytes).ok();
            (bytes.into(), value)
        }
        // The body was cut off: the handler gets the same error.
        Err(error) => (Body::from_stream(futures_util::stream::iter([Err::<Bytes, _>(error)])), None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_steps_drop_the_oldest_and_say_so() {
        let steps = InsideSteps::default();
        let step = |n: usize| InsideStep {
            method: "POST".to_owned(),
            path: format!("/v1/{n}"),
            started_at: String::new(),
            duration_ms: 0.0,
            status: 200,
            arguments: None,
            observation: None,
            dropped_before: 0,
        };
        for n in 0..MOST_STEPS + 5 {
            steps.push(step(n));
        }
        let first: InsideStep = serde_json::from_slice(&steps.pop().unwrap()).unwrap();
        assert_eq!(first.path, "/v1/5");
        steps.push(step(9999));
        let told: u64 =
            std::iter::from_fn(|| steps.pop()).map(|l| serde_json::from_slice::<InsideStep>(&l).unwrap().dropped_before).sum();
        assert_eq!(told, 5);
    }
}
