//! Live events as `text/event-stream`: the steps of a trajectory, the states of sandboxes. See [`crate::events`] for others.
//!
//! | event | data |
//! | --- | --- |
//! | `step` | a step, when it starts and again when it has ended; `id` is the number up to which all steps were sent with their ends |
//! | `change` | `{name, id, state}` of a sandbox; `state` is null when it was deleted |
//! | `behind` | `{message}`: the reader was too slow; the stream ends; reconnect with `Last-Event-ID` to continue |
//! | `end` | `{}`: the sandbox was deleted; no event follows |
//! | `server_stopping` | `{reason}`: the stream ends; connect again |
//!
//! A comment every 15 s shows that the connection is alive.

use std::convert::Infallible;
use std::time::Duration;

use arenite_control::MissedEvents;
use arenite_trajectory::{Follow, News};
use axum::body::Body;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName};
use http::request::Parts;
use http::{HeaderValue, Response};
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::gateway::{Context, Gateway};
use crate::path::query_value;

pub(crate) const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Reads of steps, or changes, queued for one reader.
const PIECES: usize = 4;
const PERIOD: Duration = Duration::from_secs(15);

/// Whether a request asks for events.
pub(crate) fn is_wanted(parts: &Parts) -> bool {
    query_value(parts.uri.query(), "follow").as_deref() == Some("true")
}

/// The last event that the reader received, as a browser sends it when it reconnects.
pub(crate) fn last_event(parts: &Parts) -> Option<u64> {
    parts.headers.get(LAST_EVENT_ID)?.to_str().ok()?.trim().parse().ok()
}

/// Streams steps as they are recorded.
pub(crate) fn steps(gateway: &Gateway, follow: Follow) -> Response<Body> {
    stream(gateway, |sender| tell_steps(follow, sender))
}

/// Streams the creation, changes and deletion of the caller's sandboxes.
pub(crate) fn changes(gateway: &Gateway, context: &Context) -> Response<Body> {
    let mut events = gateway.control.subscribe();
    let context = context.clone();
    stream(gateway, |sender| async move {
        let mut beat = beat();
        loop {
            let piece = tokio::select! {
                change = events.recv() => match change {
                    Ok(change) if context.sees_event(&change) => {
                        event("change", &json!({ "name": change.name, "id": change.id, "state": change.state }))
                    }
                    Ok(_) => continue,
                    Err(MissedEvents) => {
                        let _ = sender.send(behind()).await;
                        return;
                    }
                },
                _ = beat.tick() => ": \n\n".to_owned(),
            };
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    })
}

async fn tell_steps(mut follow: Follow, sender: mpsc::Sender<String>) {
    let mut beat = beat();
    loop {
        let news = tokio::select! {
            news = follow.news() => news,
            _ = beat.tick() => {
                if sender.send(": \n\n".to_owned()).await.is_err() {
                    return;
                }
                continue;
            }
        };
        let piece = match news {
            News::Steps => {
                let read = tokio::task::spawn_blocking(move || (follow.read(), follow)).await;
                let Ok((read, back)) = read else { return };
                follow = back;
                match read {
                    Ok(steps) if steps.is_empty() => continue,
                    Ok(steps) => {
                        let mut piece: String = steps.iter().map(|step| event("step", step)).collect();
                        // With the last event of the read, before the empty line that ends it: a reader that got only a part of
                        // the read gets all of it again.
                        piece.pop();
                        piece.push_str(&format!("id: {}\n\n", follow.complete()));
                        piece
                    }
                    Err(error) => {
                        tracing::error!(%error, "a trajectory that is followed could not be read");
                        return;
                    }
                }
            }
            News::End => {
                let _ = sender.send(event("end", &json!({}))).await;
                return;
            }
            News::Behind => {
                let _ = sender.send(behind()).await;
                return;
            }
        };
        if sender.send(piece).await.is_err() {
            return;
        }
    }
}

pub(crate) fn beat() -> Interval {
    let mut beat = tokio::time::interval_at(Instant::now() + PERIOD, PERIOD);
    beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    beat
}

pub(crate) fn event(name: &str, data: &impl serde::Serialize) -> String {
    // Steps were parsed from JSON without line breaks between tokens.
    let data = serde_json::to_string(data).unwrap_or_default();
    format!("event: {name}\ndata: {data}\n\n")
}

fn behind() -> String {
    event("behind", &json!({ "message": "more happened than was read: ask again with Last-Event-ID to go on" }))
}

/// An answer that `tell` generates, until it returns, the reader leaves, or the server stops.
pub(crate) fn stream<T>(gateway: &Gateway, tell: impl FnOnce(mpsc::Sender<String>) -> T) -> Response<Body>
where
    T: Future<Output = ()> + Send + 'static,
{
    let (sender, receiver) = mpsc::channel(PIECES);
    let (left, stopping) = (sender.clone(), gateway.stopping.clone());
    let telling = tell(sender);
    gateway.tasks.spawn(async move {
        tokio::select! {
            () = telling => return,
            () = left.closed() => return,
            () = stopping.cancelled() => {}
        }
        // Does not wait for a reader that does not read.
        let _ =
            left.try_send(event("server_stopping", &json!({ "reason": "the server is stopping or restarting; connect again" })));
    });
    let first = futures_util::stream::once(async { Ok::<_, Infallible>(Bytes::from_static(b"retry: 1000\n\n")) });
    let rest = futures_util::stream::unfold(receiver, |mut receiver| async move {
        let piece: String = receiver.recv().await?;
        Some((Ok(Bytes::from(piece)), receiver))
    });
    let mut answer = Response::new(Body::from_stream(futures_util::StreamExt::chain(first, rest)));
    for (name, value) in [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")] {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;
    use arenite_model::TenantId;
    use arenite_trajectory::{Intent, OpenStep, Origin, Outcome, OutcomeKind};
    use http_body_util::BodyExt;
    use serde_json::Value;

    fn begin(gateway: &Gateway) -> OpenStep {
        let intent = Intent {
            tenant: TenantId::default_tenant(),
            trajectory: "one".to_owned(),
            sandbox_name: String::new(),
            dialect: "aio",
            action: "GET /v1/sandbox".to_owned(),
            arguments: None,
            origin: Origin::Agent,
            client: None,
            request_id: String::new(),
            work: None,
        };
        gateway.recorder.begin(intent).unwrap()
    }

    fn finish(step: OpenStep) {
        step.finish(Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }).unwrap();
    }

    /// The next piece of a stream; none at its end.
    async fn next(answer: &mut Response<Body>) -> Option<String> {
        let frame = tokio::time::timeout(Duration::from_secs(60), answer.body_mut().frame()).await;
        let frame = frame.expect("nothing was told")?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    }

    fn data(event: &str) -> Value {
        let line = event.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        serde_json::from_str(line).unwrap()
    }

    #[tokio::test]
    async fn steps_are_told_with_what_is_complete_and_the_end_ends_it() {
        let harness = Harness::new().await;
        let gateway = &harness.gateway;
        let tenant = TenantId::default_tenant();
        let mut answer = steps(gateway, gateway.recorder.follow(&tenant, "one", 0, None).unwrap());
        assert_eq!(answer.headers()[CONTENT_TYPE], "text/event-stream");
        assert_eq!(next(&mut answer).await.unwrap(), "retry: 1000\n\n");
        let step = begin(gateway);
        let told = next(&mut answer).await.unwrap();
        assert!(told.starts_with("event: step\ndata: {") && told.ends_with("}\nid: 0\n\n"), "{told}");
        assert_eq!((&data(&told)["step"], &data(&told)["outcome"]), (&json!(1), &Value::Null));
        finish(step);
        let told = next(&mut answer).await.unwrap();
        assert!(told.ends_with("}\nid: 1\n\n"), "{told}");
        assert_eq!(data(&told)["outcome"], "ok");
        gateway.recorder.close_trajectory(&tenant, "one");
        assert_eq!(next(&mut answer).await.unwrap(), "event: end\ndata: {}\n\n");
        assert_eq!(next(&mut answer).await, None);
    }

    #[tokio::test]
    async fn who_does_not_read_is_told_last_that_he_is_behind() {
        let harness = Harness::new().await;
        let gateway = &harness.gateway;
        let tenant = TenantId::default_tenant();
        let follow = gateway.recorder.follow(&tenant, "one", 0, None).unwrap();
        // Before the stream runs: like a stalled reader.
        for _ in 0..1500 {
            finish(begin(gateway));
        }
        let mut answer = steps(gateway, follow);
        let mut last = String::new();
        while let Some(told) = next(&mut answer).await {
            last = told;
        }
        assert!(last.starts_with("event: behind\n"), "{last}");
    }

    #[tokio::test]
    async fn sandboxes_are_told_of_until_the_server_stops() {
        let harness = Harness::new().await;
        let mut answer = changes(&harness.gateway, &Harness::context());
        next(&mut answer).await;
        let made = harness.call("POST", "/api/v2/sandboxes", json!({ "name": "told" })).await.json;
        let mut told = Value::Null;
        while told["state"] != "running" {
            told = data(&next(&mut answer).await.unwrap());
            assert_eq!((&told["name"], &told["id"]), (&made["name"], &made["id"]));
        }
        harness.call("DELETE", "/api/v2/sandboxes/told", Value::Null).await;
        while !told["state"].is_null() {
            told = data(&next(&mut answer).await.unwrap());
        }
        harness.gateway.stopping.cancel();
        assert!(next(&mut answer).await.unwrap().starts_with("event: server_stopping\n"));
        assert_eq!(next(&mut answer).await, None);
    }
}
