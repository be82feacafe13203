//! Files that are generated while they are sent: trajectories in their formats, and steps as JSON lines.

use std::io::{self, Write};

use arenite_control::Control;
use arenite_model::TenantId;
use arenite_trajectory::{Filter, Format, Recorder, TrajectoryError};
use axum::body::Body;
use bytes::Bytes;
use futures_util::StreamExt;
use http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderValue, Response};
use tokio::sync::mpsc;

use crate::annotations;
use crate::path::query_value;
use crate::refusal::Refusal;
use crate::trajectories::{filter, refused};

/// The most steps that one read returns.
const PAGE: usize = 1000;
/// Size of one piece of an export, and how many wait for a slow reader.
const PIECE_BYTES: usize = 64 << 10;
const PIECES: usize = 4;

/// A trajectory in the format that `format` names, `jsonl` without one.
pub(crate) async fn serve(
    control: &Control,
    recorder: Recorder,
    (tenant, id): (TenantId, String),
    parts: &Parts,
) -> Result<Response<Body>, Refusal> {
    let format: Format = match query_value(parts.uri.query(), "format") {
        Some(name) => name.parse().map_err(refused)?,
        None => Format::Jsonl,
    };
    let network = query_value(parts.uri.query(), "network").as_deref() == Some("true");
    let filter = Filter { network, ..filter(parts, Filter::agent())? };
    let wanted = query_value(parts.uri.query(), "annotations").map(|wanted| wanted == "true");
    let annotations = annotations::exported(control, (&tenant, &id), (format, wanted)).await?;
    let name = match format {
        Format::Jsonl => format!("{id}.jsonl"),
        other => format!("{id}.{}.{}", other.name(), other.extension()),
    };
    let written = move |out: &mut Pieces<TrajectoryError>| {
        recorder.export_as(&tenant, &id, (format, &filter, &annotations), out).map(|_| ())
    };
    let mut response = streamed(written, refused).await?;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    // An id contains no character that is special in a header.
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        headers.insert(CONTENT_DISPOSITION, value);
    }
    Ok(response)
}

/// All steps, one a line, streamed while they are read. `inline` replaces references with bodies.
pub(crate) async fn lines(
    recorder: Recorder,
    tenant: TenantId,
    id: String,
    after: u64,
    inline: bool,
    filter: Filter,
) -> Result<Response<Body>, Refusal> {
    if inline && after > 0 {
        return Err(Refusal::bad_request("bodies=inline exports whole trajectories: leave out after"));
    }
    let written = move |out: &mut Pieces<TrajectoryError>| match inline {
        true => recorder.export(&tenant, &id, (true, &filter), out).map(|_| ()),
        false => pages(&recorder, (&tenant, &id), after, &filter, out),
    };
    let mut response = streamed(written, refused).await?;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson"));
    Ok(response)
}

/// An answer that `write` generates off the async threads. A failure before the first piece is a refusal; after it, the answer is
/// cut off.
pub(crate) async fn streamed<E>(
    write: impl FnOnce(&mut Pieces<E>) -> Result<(), E> + Send + 'static,
    refused: impl FnOnce(E) -> Refusal,
) -> Result<Response<Body>, Refusal>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let (sender, mut receiver) = mpsc::channel(PIECES);
    tokio::task::spawn_blocking(move || {
        let mut out = Pieces { sender, piece: Vec::with_capacity(PIECE_BYTES) };
        match write(&mut out) {
            // The reader left, so there is nothing to report.
            Ok(()) => drop(out.flush()),
            Err(error) => drop(out.sender.blocking_send(Err(error))),
        }
    });
    let first = receiver.recv().await.transpose().map_err(refused)?;
    let rest = futures_util::stream::unfold(receiver, |mut receiver| async move { Some((receiver.recv().await?, receiver)) });
    let pieces = futures_util::stream::iter(first.map(Ok)).chain(rest.map(|piece| piece.map_err(io::Error::other)));
    Ok(Response::new(Body::from_stream(pieces)))
}

fn pages(
    recorder: &Recorder,
    (tenant, id): (&TenantId, &str),
    mut after: u64,
    filter: &Filter,
    out: &mut Pieces<TrajectoryError>,
) -> Result<(), TrajectoryError> {
    loop {
        let steps = recorder.steps(tenant, id, after, PAGE)?;
        let Some(last) = steps.last() else {
            return Ok(());
        };
        after = last.step;
        for step in steps.iter().filter(|step| filter.takes(step)) {
            let written = serde_json::to_writer(&mut *out, step).map_err(io::Error::from).and_then(|()| out.write_all(b"\n"));
            written.map_err(|source| TrajectoryError::Io { what: "send", path: id.into(), source })?;
        }
        if steps.len() < PAGE {
            return Ok(());
        }
    }
}

/// A writer into a channel, which waits when the reader is slow.
pub(crate) struct Pieces<E> {
    sender: mpsc::Sender<Result<Bytes, E>>,
    piece: Vec<u8>,
}

impl<E> Write for Pieces<E> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE_BYTES {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.piece.is_empty() {
            return Ok(());
        }
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE_BYTES));
        self.sender.blocking_send(Ok(piece.into())).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;
    use arenite_trajectory::{Intent, Origin, Outcome, OutcomeKind, Work};
    use jiff::Timestamp;
    use serde_json::{Value, json};

    fn record(server: &Harness, trajectory: &str, task: Option<&str>, times: usize) {
        for n in 0..times {
            let intent = Intent {
                tenant: TenantId::default_tenant(),
                trajectory: trajectory.to_owned(),
                sandbox_name: String::new(),
                dialect: "agentflow",
                action: "bash:run".to_owned(),
                arguments: Some(json!({ "command": format!("echo {}", "x".repeat(n % 100)) })),
                origin: Origin::Agent,
                client: None,
                request_id: String::new(),
                work: Some(Work {
                    worker: "solver".to_owned(),
                    task: task.map(str::to_owned),
                    parent: None,
                    trace_id: "t".to_owned(),
                    queued_at: Timestamp::now(),
                    sandbox: None,
                    timeout: None,
                    tokens: None,
                }),
            };
            let mut step = server.gateway.recorder.begin(intent).unwrap();
            step.response_tap().feed(br#"{"code":0,"message":"success","data":{"stdout":"x\n","return_code":0},"meta":{}}"#);
            step.finish(Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }).unwrap();
        }
    }

    #[tokio::test]
    async fn exports_are_files_with_names_and_kinds() {
        let server = Harness::new().await;
        record(&server, "af-1", Some("one"), 700);
        for format in Format::ALL {
            let answer =
                server.call("GET", &format!("/api/v1/trajectories/af-1/export?format={}", format.name()), Value::Null).await;
            assert_eq!((answer.status, &answer.headers[CONTENT_TYPE]), (200, &HeaderValue::from_static(format.content_type())));
            let named = answer.headers[CONTENT_DISPOSITION].to_str().unwrap().to_owned();
            assert!(
                named.starts_with("attachment; filename=\"af-1.") && named.ends_with(&format!(".{}\"", format.extension())),
                "{named}"
            );
            assert!(answer.text.ends_with('\n') && answer.text.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()));
        }
        let lines = server.call("GET", "/api/v1/trajectories/af-1/export", Value::Null).await.text;
        assert_eq!(lines, server.call("GET", "/api/v1/trajectories/af-1?format=jsonl", Value::Null).await.text);
        assert_eq!(lines.lines().count(), 700);
        for (path, status) in [("af-1/export?format=pdf", 400), ("af-2/export", 404), ("af-2/export?format=atif", 404)] {
            let answer = server.call("GET", &format!("/api/v1/trajectories/{path}"), Value::Null).await;
            assert_eq!(answer.status, status, "{}", answer.text);
        }
    }

    #[tokio::test]
    async fn trajectories_are_listed_by_worker_and_task() {
        let server = Harness::new().await;
        record(&server, "af-1", Some("one"), 1);
        record(&server, "af-2", Some("two"), 1);
        record(&server, "af-3", None, 1);
        for (query, wanted) in
            [("", 3), ("?worker=solver", 3), ("?worker=solver&task=two", 1), ("?task=one", 1), ("?worker=x", 0)]
        {
            let listed = server.call("GET", &format!("/api/v1/trajectories{query}"), Value::Null).await.json;
            assert_eq!(listed["trajectories"].as_array().unwrap().len(), wanted, "{query}: {listed}");
        }
    }
}
