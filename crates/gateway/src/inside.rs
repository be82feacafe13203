//! Steps of processes inside a sandbox that call the guest's own port: the guest streams them, and the gateway records them. Each
//! running sandbox has one reader, which starts with it.
//!
//! The stream comes from the sandbox and proves nothing: its root can invent steps of this sandbox, but of no other. Steps are
//! bounded in length and in rate, and carry the dialect `inside`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arenite_control::{Event, MissedEvents, Sandbox};
use arenite_model::protocol::{INSIDE_STEPS_PATH, InsideStep};
use arenite_model::{PauseKind, SandboxId, SandboxName, SandboxState, TenantId};
use arenite_trajectory::{Intent, Origin, Outcome, OutcomeKind, redact};
use http::StatusCode;
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::agent_calls;
use crate::gateway::Gateway;
use crate::proxy::{self, InternalAnswer};
use crate::ssh_agent;
use crate::steps;

/// Longest line, in bytes: two bodies of 64 KiB, with every byte escaped to six.
const MAX_LINE_BYTES: usize = 1 << 20;
/// Steps of one sandbox per second, over [`RATE_WINDOW`]; beyond this, reading pauses, and the guest drops and counts.
const MAX_RATE: u32 = 100;
const RATE_WINDOW: Duration = Duration::from_secs(10);
/// Time until a new sandbox's stream is opened, so that the guest serves the first call before it. Until then, the guest keeps
/// its steps.
const FIRST_READ: Duration = Duration::from_millis(20);
/// Pauses before a broken stream is reopened: from the first to the last, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(60);

struct Whose {
    tenant: TenantId,
    id: SandboxId,
    name: SandboxName,
}

/// Follows control's changes: starts and ends readers, and closes connections to stopped sandboxes.
pub(crate) async fn follow(gateway: Arc<Gateway>) {
    let mut readers: HashMap<SandboxId, CancellationToken> = HashMap::new();
    let mut events = gateway.control.subscribe();
    reconcile(&gateway, &mut readers);
    loop {
        let event = tokio::select! {
            event = events.recv() => event,
            () = gateway.stopping.cancelled() => return,
        };
        match event {
            Ok(Event { id, tenant, name, state, pause_kind, .. }) => {
                apply(&gateway, &mut readers, Whose { tenant, id, name }, state, pause_kind);
            }
            // Check everything again.
            Err(MissedEvents) => reconcile(&gateway, &mut readers),
        }
    }
}

/// Follows a sandbox into its state. None: it is gone.
fn apply(
    gateway: &Arc<Gateway>,
    readers: &mut HashMap<SandboxId, CancellationToken>,
    whose: Whose,
    state: Option<SandboxState>,
    pause_kind: Option<PauseKind>,
) {
    match state {
        Some(SandboxState::Running) => {
            readers.entry(whose.id.clone()).or_insert_with(|| start(gateway, whose));
        }
        Some(SandboxState::Creating) => {}
        // A frozen guest sends nothing, and later continues where it was.
        Some(SandboxState::Paused) if pause_kind != Some(PauseKind::Disk) => gateway.pools.retire(&whose.id),
        Some(SandboxState::Paused | SandboxState::Deleting | SandboxState::Failed | SandboxState::Lost) | None => {
            gateway.pools.retire(&whose.id);
            if let Some(reader) = readers.remove(&whose.id) {
                reader.cancel();
            }
            if state.is_none() {
                // A call or the reaper deleted it.
                gateway.recorder.close_trajectory(&whose.tenant, whose.id.as_str());
            }
        }
    }
}

fn reconcile(gateway: &Arc<Gateway>, readers: &mut HashMap<SandboxId, CancellationToken>) {
    let listed = gateway.control.list_all();
    readers.retain(|id, reader| {
        let has_guest = |s: &Sandbox| matches!(s.state, SandboxState::Running | SandboxState::Paused) && !s.is_stopped();
        let there = listed.iter().any(|s| s.id == *id && has_guest(s));
        if !there {
            reader.cancel();
            gateway.pools.retire(id);
        }
        there
    });
    for sandbox in listed {
        let pause_kind = sandbox.pause();
        let whose = Whose { tenant: sandbox.tenant, id: sandbox.id, name: sandbox.name };
        apply(gateway, readers, whose, Some(sandbox.state), pause_kind);
    }
}

fn start(gateway: &Arc<Gateway>, whose: Whose) -> CancellationToken {
    let token = gateway.stopping.child_token();
    let reader = Arc::clone(gateway);
    gateway.tasks.spawn({
        let token = token.clone();
        async move {
            tokio::select! {
                _ = async { tokio::join!(
                    read_on(&reader, &whose),
                    agent_calls::serve(&reader, &whose.tenant, &whose.id),
                    ssh_agent::serve(&reader, &whose.tenant, &whose.id),
                ) } => {}
                () = token.cancelled() => {}
            }
        }
    });
    token
}

/// Reads, and reopens the stream when it ends, until it is cancelled or the guest has no such stream.
async fn read_on(gateway: &Gateway, whose: &Whose) {
    let mut pause = FIRST_PAUSE;
    tokio::time::sleep(FIRST_READ).await;
    loop {
        match read(gateway, whose).await {
            Ok(true) => pause = FIRST_PAUSE,
            Ok(false) => {
                tracing::debug!(sandbox = %whose.id, "the guest streams no inside steps");
                return;
            }
            Err(why) => {
                tracing::debug!(sandbox = %whose.id, why, "the stream of inside steps ended");
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LAST_PAUSE);
    }
}

/// Reads one stream to its end. True if something was read, false if the guest has no such stream.
async fn read(gateway: &Gateway, whose: &Whose) -> Result<bool, String> {
    let (connection, answer) =
        proxy::internal_get(gateway, &whose.id, INSIDE_STEPS_PATH).await.map_err(|refusal| refusal.message)?;
    match answer.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Ok(false),
        other => return Err(format!("the guest answered {}", other.as_u16())),
    }
    let mut stream = InternalAnswer::new(connection, answer.into_body());
    let mut lines = Lines::default();
    let mut window = (Instant::now(), 0);
    let mut any = false;
    while let Some(next) = stream.next().await {
        let bytes = next.map_err(|e| e.to_string())?;
        for line in lines.feed(&bytes) {
            any = true;
            match line.and_then(|line| serde_json::from_slice::<InsideStep>(&line).ok()) {
                Some(step) => record(gateway, whose, step),
                None => {
                    gateway.metrics.inside_refused.fetch_add(1, Ordering::Relaxed);
                }
            }
            window.1 += 1;
            if window.1 >= MAX_RATE * RATE_WINDOW.as_secs() as u32 {
                tokio::time::sleep_until(window.0 + RATE_WINDOW).await;
                window = (Instant::now(), 0);
            }
        }
        if window.0.elapsed() > RATE_WINDOW {
            window = (Instant::now(), 0);
        }
    }
    Ok(any)
}

/// The guest's router matches paths literally, so a path in another spelling reaches no route with credentials.
fn without_credentials(path: &str, arguments: Option<Value>) -> Option<Value> {
    let arguments = arguments?;
    let path = path.split('?').next().unwrap_or_default();
    let redacted = serde_json::to_vec(&arguments).ok().and_then(|body| steps::without_credentials(path, &body));
    Some(redacted.unwrap_or(arguments))
}

fn record(gateway: &Gateway, whose: &Whose, inside: InsideStep) {
    let method: String = inside.method.chars().take(16).collect();
    let begun = gateway.recorder.begin(Intent {
        tenant: whose.tenant.clone(),
        trajectory: whose.id.to_string(),
        sandbox_name: whose.name.to_string(),
        dialect: "inside",
        action: format!("{method} {}", redact(&inside.path)),
        arguments: without_credentials(&inside.path, inside.arguments),
        origin: Origin::System,
        client: Some("inside".to_owned()),
        request_id: String::new(),
        work: None,
    });
    let done = begun.and_then(|mut step| {
        if let Some(observation) = &inside.observation
            && let Ok(bytes) = serde_json::to_vec(observation)
        {
            step.response_tap().feed(&bytes);
        }
        // The record's own times are those of its writing; the guest reports the real start and duration.
        let note = json!({
            "started_at": inside.started_at.chars().take(40).collect::<String>(),
            "duration_ms": inside.duration_ms,
            "dropped_before": inside.dropped_before,
        });
        step.finish(Outcome {
            status: Some(inside.status),
            result: if inside.status >= 400 { OutcomeKind::Error } else { OutcomeKind::Ok },
            error: Some(note.to_string()),
        })
    });
    match done {
        Ok(()) => gateway.metrics.inside_steps.fetch_add(1, Ordering::Relaxed),
        Err(error) => {
            tracing::warn!(sandbox = %whose.id, %error, "an inside step could not be recorded");
            gateway.metrics.inside_refused.fetch_add(1, Ordering::Relaxed)
        }
    };
}

/// Splits a stream into lines, and holds none beyond its limit.
#[derive(Default)]
struct Lines {
    partial: Vec<u8>,
    /// The current line is over its limit: skipped to its end.
    skipping: bool,
}

impl Lines {
    /// The lines that these bytes complete; `None` for each that was over the limit.
    fn feed(&mut self, bytes: &[u8]) -> Vec<Option<Vec<u8>>> {
        let mut lines = Vec::new();
        let mut parts = bytes.split(|b| *b == b'\n').peekable();
        while let Some(part) = parts.next() {
            if self.skipping || self.partial.len() + part.len() > MAX_LINE_BYTES {
                self.skipping = true;
                self.partial = Vec::new();
            } else {
                self.partial.extend_from_slice(part);
            }
            if parts.peek().is_some() {
                let line = std::mem::take(&mut self.partial);
                let skipped = std::mem::take(&mut self.skipping);
                if skipped {
                    lines.push(None);
                } else if !line.trim_ascii().is_empty() {
                    lines.push(Some(line));
                }
            }
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_wherever_the_bytes_are() {
        let text = b"one\n\ntwo\nthree";
        for size in 1..text.len() {
            let mut lines = Lines::default();
            let got: Vec<_> = text.chunks(size).flat_map(|c| lines.feed(c)).collect();
            assert_eq!(got, [Some(b"one".to_vec()), Some(b"two".to_vec())], "{size}");
            assert_eq!(lines.partial, b"three");
        }
    }

    #[test]
    fn a_line_without_end_is_not_held() {
        let mut lines = Lines::default();
        let piece = vec![b'x'; 64 << 10];
        for _ in 0..64 {
            assert!(lines.feed(&piece).is_empty());
            assert!(lines.partial.len() <= MAX_LINE_BYTES);
        }
        assert_eq!(lines.feed(b"\nshort\n"), [None, Some(b"short".to_vec())]);
    }
}
