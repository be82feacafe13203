//! Sends finished traces to the collector, as JSON of OTLP.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::StatusCode;
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use super::{Span, TraceConfig, lock};
use crate::gateway::Gateway;

/// The most traces that are sent together, and how long the first one waits for others.
const BATCH: usize = 256;
const WAIT: Duration = Duration::from_secs(1);
/// Time for the collector to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Exports traces until the server stops.
pub(crate) async fn run(gateway: Arc<Gateway>) {
    let Some(config) = gateway.config.traces.clone() else { return };
    let Some(mut finished) = lock(&gateway.traces.finished).take() else { return };
    let mut fails = false;
    while let Some(spans) = next_batch(&gateway, &mut finished).await {
        let sent = tokio::time::timeout(PATIENCE, send(&gateway, &config, &spans)).await;
        let sent = sent.unwrap_or_else(|_| Err(format!("it did not answer within {PATIENCE:?}")));
        match sent {
            Ok(()) if std::mem::take(&mut fails) => tracing::info!("the collector takes traces again"),
            Ok(()) => {}
            Err(error) if !std::mem::replace(&mut fails, true) => {
                tracing::warn!(error, "traces are dropped: the collector does not take them");
            }
            Err(_) => {}
        }
    }
}

/// None: the server has stopped, and everything was exported.
async fn next_batch(gateway: &Gateway, finished: &mut mpsc::Receiver<Vec<Span>>) -> Option<Vec<Span>> {
    let first = tokio::select! {
        spans = finished.recv() => spans?,
        () = gateway.stopping.cancelled() => finished.try_recv().ok()?,
    };
    // A stop does not wait for others.
    gateway.stopping.run_until_cancelled(tokio::time::sleep(WAIT)).await;
    let mut batch = first;
    let mut traces = 1;
    while traces < BATCH
        && let Ok(spans) = finished.try_recv()
    {
        batch.extend(spans);
        traces += 1;
    }
    Some(batch)
}

async fn send(gateway: &Gateway, config: &TraceConfig, spans: &[Span]) -> Result<(), String> {
    let target = &config.endpoint;
    let connected = TcpStream::connect((target.host.as_str(), target.port)).await;
    let tcp = connected.map_err(|error| format!("there is no connection: {error}"))?;
    let body = Full::new(Bytes::from(document(spans).to_string()));
    let request = target.post().body(body).map_err(|error| format!("the URL can't be used: {error}"))?;
    match target.send(tcp, gateway.config.outgoing_tls.as_ref(), request).await? {
        StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(()),
        status => Err(format!("its answer was {status}")),
    }
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos()).to_string()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn span(span: &Span) -> Value {
    // 2: an error.
    let status = span.error.as_ref().map_or_else(|| json!({}), |error| json!({ "code": 2, "message": error }));
    let mut value = json!({
        "traceId": hex(&span.trace),
        "spanId": hex(&span.id.0),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": nanoseconds(span.start),
        "endTimeUnixNano": nanoseconds(span.end),
        "attributes": span.attributes.iter().map(|(key, value)| attribute(key, value)).collect::<Vec<_>>(),
        "status": status,
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = hex(&parent.0).into();
    }
    value
}

/// An `ExportTraceServiceRequest`.
fn document(spans: &[Span]) -> Value {
    let version = env!("CARGO_PKG_VERSION");
    json!({ "resourceSpans": [{
        "resource": { "attributes": [attribute("service.name", "arenite"), attribute("service.version", version)] },
        "scopeSpans": [{
            "scope": { "name": "arenite", "version": version },
            "spans": spans.iter().map(span).collect::<Vec<_>>(),
        }],
    }] })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traces::{Kind, SpanId};

    #[test]
    fn a_document_has_what_collectors_read() {
        let start = UNIX_EPOCH + Duration::from_nanos(1_700_000_000_000_000_001);
        let given = Span {
            trace: [1; 16],
            id: SpanId([2; 8]),
            parent: None,
            name: "GET /x".to_owned(),
            kind: Kind::Server,
            start,
            end: start + Duration::from_millis(1),
            attributes: vec![("arenite.tenant", "acme".to_owned())],
            error: Some("broken".to_owned()),
        };
        let (name, attributes) = (String::new(), Vec::new());
        let child =
            Span { id: SpanId([3; 8]), parent: Some(given.id), error: None, kind: Kind::Internal, name, attributes, ..given };
        let document = document(&[given, child]);
        let spans = &document["resourceSpans"][0]["scopeSpans"][0]["spans"];
        assert_eq!((&spans[0]["traceId"], &spans[0]["spanId"]), (&json!("01".repeat(16)), &json!("02".repeat(8))));
        assert_eq!((&spans[0]["parentSpanId"], &spans[1]["parentSpanId"]), (&Value::Null, &json!("02".repeat(8))));
        assert_eq!((&spans[0]["kind"], &spans[1]["kind"]), (&json!(2), &json!(1)));
        assert_eq!(spans[0]["startTimeUnixNano"], "1700000000000000001");
        assert_eq!((&spans[0]["status"]["code"], &spans[1]["status"]), (&json!(2), &json!({})));
        assert_eq!(spans[0]["attributes"][0]["value"]["stringValue"], "acme");
        assert_eq!(document["resourceSpans"][0]["resource"]["attributes"][0]["value"]["stringValue"], "arenite");
    }
}
