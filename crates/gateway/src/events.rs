//! `GET /api/v2/events`: what happened to the caller's sandboxes, as a page of the history or as `text/event-stream`.
//!
//! | event | data |
//! | --- | --- |
//! | its type, such as `sandbox.paused` | an [`EventInfo`]; `id` is its `id` |
//! | `gap` | `{message}`: events are missing, because the reader was too slow or the server has restarted; the stream goes on |
//! | `server_stopping` | `{reason}`: the stream ends; connect again |
//!
//! A comment every 15 s shows that the connection is alive. Its `id` moves a reader on that receives nothing because of its
//! filters.

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_control::{Event, EventId, EventKind, EventReader, MissedEvents, NoEvent};
use arenite_model::{Death, PauseKind, SandboxId, SandboxName, SandboxState};
use axum::body::Body;
use http::header::ACCEPT;
use http::request::Parts;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;

use crate::exchange::{Answered, Exchange};
use crate::follow::{self, LAST_EVENT_ID};
use crate::lists;
use crate::path::query_pairs;
use crate::query::MAX_VALUES;
use crate::refusal::{Refusal, json_response};

const DEFAULT_PAGE: usize = 100;
/// The most events that are read from the history at once, until other tasks may run.
const READ_AT_ONCE: usize = 256;

/// What happened to a sandbox.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventInfo {
    /// Unique on this server, also across restarts.
    id: String,
    r#type: EventKind,
    at: Timestamp,
    sandbox: EventSandbox,
    /// Why it died.
    reason: Option<String>,
    /// How it died, or why it is deleted.
    died: Option<Death>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventSandbox {
    id: SandboxId,
    name: SandboxName,
    /// Null: it does not exist any more.
    state: Option<SandboxState>,
    /// Null: it is not paused.
    pause_kind: Option<PauseKind>,
    labels: BTreeMap<String, String>,
    expires_at: Option<Timestamp>,
}

/// A page of the history, the oldest event first.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EventPage {
    events: Vec<EventInfo>,
    /// `after` of the next page. It is there at the end, too: later events come after it.
    next_after: String,
    /// Whether events between `after` and the first one are missing.
    gap: bool,
}

impl From<Event> for EventInfo {
    fn from(event: Event) -> Self {
        let Event { event: id, at, kind, id: sandbox, name, labels, state, pause_kind, reason, died, expires_at, .. } = event;
        let labels = Arc::unwrap_or_clone(labels);
        let sandbox = EventSandbox { id: sandbox, name, state, pause_kind, labels, expires_at };
        Self { id: id.to_string(), r#type: kind, at, sandbox, reason, died }
    }
}

/// Selects events. An empty list selects all.
#[derive(Debug, Default)]
struct Filter {
    kinds: Vec<EventKind>,
    /// Names or ids.
    sandboxes: Vec<String>,
    /// All of them are needed.
    labels: Vec<(String, String)>,
}

impl Filter {
    fn from_query(query: Option<&str>) -> Result<Self, Refusal> {
        let mut filter = Self::default();
        for (name, value) in query_pairs(query.unwrap_or_default()) {
            match name.as_str() {
                "type" => {
                    for kind in value.split(',') {
                        filter.kinds.push(kind.parse().map_err(Refusal::bad_request)?);
                    }
                    // Of other parameters, the check of the query counts the values.
                    if filter.kinds.len() > MAX_VALUES {
                        return Err(Refusal::bad_request(format!("type has more than {MAX_VALUES} values")));
                    }
                }
                "sandbox" => filter.sandboxes.push(value),
                "label" => {
                    let (key, value) =
                        value.split_once('=').ok_or_else(|| Refusal::bad_request("label is not written as KEY=VALUE"))?;
                    filter.labels.push((key.to_owned(), value.to_owned()));
                }
                _ => {}
            }
        }
        Ok(filter)
    }

    fn selects(&self, event: &Event) -> bool {
        let is_named = |given: &String| *given == event.name.as_str() || *given == event.id.as_str();
        (self.kinds.is_empty() || self.kinds.contains(&event.kind))
            && (self.sandboxes.is_empty() || self.sandboxes.iter().any(is_named))
            && self.labels.iter().all(|(key, value)| event.labels.get(key) == Some(value))
    }
}

fn is_stream(parts: &Parts) -> bool {
    let accepts = parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    follow::is_wanted(parts) || accepts.into_iter().any(|value| value.contains("text/event-stream"))
}

/// The event after which a reader continues: as a browser sends it when it reconnects, or in the query.
fn after(exchange: &Exchange) -> Result<Option<EventId>, Refusal> {
    let header = exchange.parts.headers.get(LAST_EVENT_ID).map(|value| value.to_str().unwrap_or_default().trim().to_owned());
    let given = header.filter(|id| !id.is_empty()).or_else(|| exchange.query("after"));
    given.map(|id| id.parse()).transpose().map_err(Refusal::bad_request)
}

pub(crate) async fn serve(exchange: &mut Exchange) -> Answered {
    let filter = Filter::from_query(exchange.parts.uri.query())?;
    let after = after(exchange)?;
    if is_stream(&exchange.parts) {
        let control = &exchange.gateway.control;
        let reader = after.map_or_else(|| control.subscribe(), |after| control.read_events(Some(after)));
        return Ok(stream(exchange, reader, filter));
    }
    let limit = lists::limit(exchange, DEFAULT_PAGE)?;
    let mut reader = exchange.gateway.control.read_events(after);
    let mut page = EventPage { events: Vec::new(), next_after: String::new(), gap: false };
    while page.events.len() < limit {
        match reader.try_recv() {
            Ok(event) if exchange.context.sees_event(&event) && filter.selects(&event) => page.events.push(event.into()),
            Ok(_) => {}
            Err(NoEvent::Missed(_)) => page.gap = true,
            Err(NoEvent::Yet) => break,
        }
    }
    page.next_after = reader.position().to_string();
    Ok(json_response(StatusCode::OK, &page))
}

fn stream(exchange: &Exchange, mut reader: EventReader, filter: Filter) -> Response<Body> {
    let context = exchange.context.clone();
    follow::stream(&exchange.gateway, |sender| async move {
        let mut beat = follow::beat();
        let mut skipped = 0;
        loop {
            let piece = tokio::select! {
                event = reader.recv() => match event {
                    Ok(event) if context.sees_event(&event) && filter.selects(&event) => {
                        let info = EventInfo::from(event);
                        format!("id: {}\n{}", info.id, follow::event(info.r#type.as_str(), &info))
                    }
                    Ok(_) => {
                        skipped += 1;
                        if skipped % READ_AT_ONCE == 0 {
                            tokio::task::yield_now().await;
                        }
                        continue;
                    }
                    Err(MissedEvents) => follow::event("gap", &json!({ "message": "events are missing; list the sandboxes to see their states" })),
                },
                _ = beat.tick() => format!(": \nid: {}\n\n", reader.position()),
            };
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use arenite_control::tenants::{Binding, Principal, Role};
    use http_body_util::BodyExt;
    use serde_json::Value;

    use super::*;
    use crate::harness::Harness;

    async fn list(harness: &Harness, query: &str) -> Vec<(String, String)> {
        let page = harness.call("GET", &format!("/api/v2/events?{query}"), Value::Null).await;
        assert_eq!(page.status, 200, "{}", page.text);
        let text = |event: &Value, at: &str| event.pointer(at).unwrap().as_str().unwrap().to_owned();
        let events = page.json["events"].as_array().unwrap();
        events.iter().map(|event| (text(event, "/type"), text(event, "/sandbox/name"))).collect()
    }

    async fn harness() -> Harness {
        let harness = Harness::new().await;
        for (name, labels) in [("a", json!({ "team": "red" })), ("b", json!({ "team": "blue", "x": "1" }))] {
            let made = harness.call("POST", "/api/v2/sandboxes", json!({ "name": name, "labels": labels })).await;
            assert_eq!(made.status, 201, "{}", made.text);
        }
        harness.call("POST", "/api/v2/sandboxes/a/pause", Value::Null).await;
        harness.call("DELETE", "/api/v2/sandboxes/b", Value::Null).await;
        harness
    }

    #[tokio::test]
    async fn a_page_is_filtered_and_continues() {
        let harness = harness().await;
        let kinds = async |query: &str| list(&harness, query).await.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>();
        let of_a = ["sandbox.creating", "sandbox.created", "sandbox.paused"];
        let of_b = ["sandbox.creating", "sandbox.created", "sandbox.deleting", "sandbox.deleted"];
        assert_eq!(kinds("sandbox=a").await, of_a);
        assert_eq!(kinds("label=team%3Dblue&label=x=1").await, of_b);
        assert!(kinds("label=team%3Dblue&label=x=2").await.is_empty());
        assert_eq!(kinds("sandbox=a&sandbox=b").await.len(), 7);
        assert_eq!(kinds("type=sandbox.paused,sandbox.deleted&type=sandbox.creating").await.len(), 4);
        for bad in ["type=paused", "label=team", "limit=0", "limit=x", "after=1"] {
            assert_eq!(harness.call("GET", &format!("/api/v2/events?{bad}"), Value::Null).await.status, 400, "{bad}");
        }
        let (mut all, mut after) = (Vec::new(), String::new());
        for _ in 0..7 {
            let page = harness.call("GET", &format!("/api/v2/events?limit=1{after}"), Value::Null).await.json;
            assert_eq!((&page["gap"], page["events"].as_array().unwrap().len()), (&json!(false), 1));
            all.push(page["events"][0]["type"].as_str().unwrap().to_owned());
            after = format!("&after={}", page["next_after"].as_str().unwrap());
        }
        assert_eq!(all, kinds("").await);
        let page = harness.call("GET", &format!("/api/v2/events?limit=1{after}"), Value::Null).await.json;
        assert!(page["events"].as_array().unwrap().is_empty() && after.ends_with(page["next_after"].as_str().unwrap()));
        let other_start = harness.call("GET", "/api/v2/events?after=1-1", Value::Null).await.json;
        assert_eq!((&other_start["gap"], other_start["events"].as_array().unwrap().len()), (&json!(true), 7));
    }

    #[tokio::test]
    async fn a_caller_sees_its_tenant_and_its_bounds() {
        let harness = harness().await;
        let mut reader = harness.gateway.control.read_events(None);
        let bound =
            Principal { bound: vec!["team=red".parse::<Binding>().unwrap()], role: Some(Role::Read), ..Principal::operator() };
        let other = Principal::server("other".parse().unwrap());
        let context = |principal| crate::gateway::Context { principal: Arc::new(principal), ..Harness::context() };
        let (bound, other) = (context(bound), context(other));
        let mut seen = Vec::new();
        while let Ok(event) = reader.try_recv() {
            assert!(!other.sees_event(&event));
            if bound.sees_event(&event) {
                seen.push(event.name.to_string());
            }
        }
        assert_eq!(seen, ["a"; 3]);
    }

    #[tokio::test]
    async fn a_stream_continues_after_the_last_event_and_reports_gaps() {
        let harness = harness().await;
        let control = &harness.gateway.control;
        let mut past = control.read_events(None);
        let first = past.try_recv().unwrap().event;
        let open = async |after: &str| {
            let request = http::Request::get("/api/v2/events?sandbox=a").header("host", "127.0.0.1:8080");
            let request = request.header(ACCEPT, "text/event-stream").header(LAST_EVENT_ID, after).body(Body::empty()).unwrap();
            let peer = crate::exchange::Peer { address: [127, 0, 0, 1].into(), scheme: "http" };
            let answer = crate::exchange::answer(Arc::clone(&harness.gateway), peer, request).await;
            assert_eq!(
                (answer.status().as_u16(), &answer.headers()["content-type"]),
                (200, &"text/event-stream".parse::<http::HeaderValue>().unwrap())
            );
            answer.into_body()
        };
        let next = async |body: &mut Body| {
            let frame = body.frame().await.unwrap().unwrap();
            String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
        };
        let mut body = open(&first.to_string()).await;
        assert_eq!(next(&mut body).await, "retry: 1000\n\n");
        for wanted in ["sandbox.created", "sandbox.paused"] {
            let piece = next(&mut body).await;
            let mut lines = piece.lines();
            assert!(lines.next().unwrap().starts_with("id: ") && lines.next() == Some(&format!("event: {wanted}")), "{piece}");
        }
        control.resume(&arenite_model::TenantId::default_tenant(), &"a".parse().unwrap()).await.unwrap();
        assert!(next(&mut body).await.contains("event: sandbox.resumed\n"));
        let mut body = open("1-1").await;
        next(&mut body).await;
        assert!(next(&mut body).await.starts_with("event: gap\n"));
        assert!(next(&mut body).await.contains("event: sandbox.creating\n"));
        harness.gateway.stopping.cancel();
    }
}
