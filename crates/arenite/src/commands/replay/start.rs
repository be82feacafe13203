//! Where a replay starts: at a checkpoint or a snapshot of the recorded sandbox, or at the beginning.
//!
//! The steps tell which states were sealed, and the server which of them still exist. A disk alone has no processes, so a state is
//! of no use if a later step names a session that began before it.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use arenite_trajectory::{Body, OutcomeKind, Step};
use serde::Deserialize;
use serde_json::{Value, json};

use super::steps::Steps;
use crate::client::{Client, encoded};
use crate::failure::Failure;
use crate::wire;

/// The most sessions of a trajectory that are looked for in later steps.
const MAX_SESSIONS: usize = 1000;
/// Names in answers of what ends with the processes.
const NAMES: [&str; 4] = ["session_id", "command_id", "kernel_id", "watcher_id"];

/// A state to start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StartPoint {
    /// The steps after this one are run.
    pub(super) after: u64,
    pub(super) state: SealedAs,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SealedAs {
    Checkpoint { id: String, number: u32 },
    Snapshot { name: String },
}

impl StartPoint {
    pub(super) fn json(&self) -> Value {
        match &self.state {
            SealedAs::Checkpoint { number, .. } => json!({ "after_step": self.after, "checkpoint": number }),
            SealedAs::Snapshot { name } => json!({ "after_step": self.after, "snapshot": name }),
        }
    }
}

impl fmt::Display for StartPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.state {
            SealedAs::Checkpoint { number, .. } => write!(f, "checkpoint {number}")?,
            SealedAs::Snapshot { name } => write!(f, "snapshot {name}")?,
        }
        write!(f, ", after step {}", self.after)
    }
}

/// What the server still has.
#[derive(Default)]
struct Existing {
    /// By id, with their numbers and whether they keep processes.
    checkpoints: BTreeMap<String, (u32, bool)>,
    /// By name, with their states and whether they keep processes.
    snapshots: BTreeMap<String, (String, bool)>,
}

impl Existing {
    async fn read(client: &Client, sandbox: (&str, &str)) -> Result<Self, Failure> {
        let (id, name) = sandbox;
        let mut existing = Self::default();
        let path = format!("/api/v2/sandboxes/{}", encoded(name));
        // Another sandbox may have its name now. Without it, its checkpoints are gone.
        let is_there = client.get::<wire::Sandbox>(&path).await.is_ok_and(|now| now.id == id);
        if is_there && let Ok(history) = client.get_all::<wire::History>(&format!("{path}/history"), "checkpoints").await {
            let known = history.checkpoints.into_iter().map(|one| (one.id, (one.number, one.memory_bytes.is_some())));
            existing.checkpoints = known.collect();
        }
        if let Ok(list) = client.get_all::<wire::Snapshots>("/api/v2/snapshots", "snapshots").await {
            existing.snapshots =
                list.snapshots.into_iter().map(|one| (one.name, (one.state, one.memory_bytes.is_some()))).collect();
        }
        Ok(existing)
    }

    fn is_empty(&self) -> bool {
        self.checkpoints.is_empty() && self.snapshots.is_empty()
    }

    fn numbered(&self, number: u32) -> Option<(SealedAs, bool)> {
        let (id, (number, keeps)) = self.checkpoints.iter().find(|(_, (one, _))| *one == number)?;
        Some((SealedAs::Checkpoint { id: id.clone(), number: *number }, *keeps))
    }

    /// What a step sealed, if it still exists, with whether it keeps processes.
    fn sealed_by(&self, step: &Step) -> Option<(SealedAs, bool)> {
        #[derive(Deserialize)]
        struct Sealed {
            id: Option<String>,
            name: Option<String>,
            state: Option<String>,
        }
        if step.outcome != Some(OutcomeKind::Ok) {
            return None;
        }
        let path = step.action.strip_prefix("POST /api/v2/").unwrap_or_default();
        let seals = path.starts_with("sandboxes/") && path.ends_with("/checkpoints") || path == "snapshots";
        if !seals && !matches!(step.action.as_str(), "checkpointSandbox" | "createSnapshot") {
            return None;
        }
        let Some(Body::Json(said)) = &step.observation else { return None };
        let sealed: Sealed = serde_json::from_str(said.get()).ok()?;
        if let Some((name, state)) = sealed.name.zip(sealed.state) {
            let keeps = self.snapshots.get(&name).filter(|(now, _)| *now == state)?.1;
            return Some((SealedAs::Snapshot { name }, keeps));
        }
        let id = sealed.id?;
        let (number, keeps) = *self.checkpoints.get(&id)?;
        Some((SealedAs::Checkpoint { id, number }, keeps))
    }
}

/// States that could be started from, and what later steps need of earlier ones.
#[derive(Default)]
struct Scan {
    found: Vec<(StartPoint, bool)>,
    /// The steps that first named sessions in their answers.
    sessions: HashMap<String, u64>,
    /// Steps that name a session, with the step that began it.
    uses: Vec<(u64, u64)>,
}

impl Scan {
    fn read(&mut self, step: &Step, existing: &Existing, asked: u64) {
        let arguments = match &step.arguments {
            Some(Body::Json(raw)) => raw.get(),
            _ => "",
        };
        let named = self.sessions.iter().filter(|(id, _)| step.action.contains(*id) || arguments.contains(*id));
        self.uses.extend(named.map(|(_, began)| (step.step, *began)));
        if let Some(Body::Json(raw)) = &step.observation
            && let Ok(said) = serde_json::from_str::<Value>(raw.get())
        {
            self.learn(&said, step.step);
        }
        let mut add = |after: u64, sealed: Option<(SealedAs, bool)>| {
            if let Some((state, keeps)) = sealed.filter(|_| after < asked) {
                self.found.push((StartPoint { after, state }, keeps));
            }
        };
        if let Some(state) = &step.state {
            add(step.step.saturating_sub(1), existing.numbered(state.before));
            add(step.step, existing.numbered(state.after));
        }
        add(step.step, existing.sealed_by(step));
    }

    fn learn(&mut self, said: &Value, step: u64) {
        match said {
            Value::Object(fields) => {
                for (name, value) in fields {
                    match value {
                        Value::String(id) if NAMES.contains(&&**name) && id.len() > 3 && self.sessions.len() < MAX_SESSIONS => {
                            self.sessions.entry(id.clone()).or_insert(step);
                        }
                        other => self.learn(other, step),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.learn(item, step)),
            _ => {}
        }
    }

    /// The last state that later steps can start from.
    fn best(self) -> Option<StartPoint> {
        let Self { found, uses, .. } = self;
        let is_usable = |point: &StartPoint, keeps: bool| {
            keeps || uses.iter().all(|(step, began)| *step <= point.after || *began > point.after)
        };
        let usable = found.into_iter().filter(|(point, keeps)| is_usable(point, *keeps));
        usable.map(|(point, _)| point).max_by_key(|point| point.after)
    }
}

/// The nearest state before a step. None: the replay has to start at the beginning.
pub(super) async fn nearest(
    client: &Client,
    trajectory: &str,
    asked: u64,
    until: Option<u64>,
) -> Result<Option<StartPoint>, Failure> {
    let mut steps = Steps::fetch(client, trajectory, 0, until, "all").await?;
    let Some(first) = steps.next().await? else { return Ok(None) };
    // The disk of a worker's sandbox has no states.
    if first.dialect == "agentflow" {
        return Ok(None);
    }
    let existing = Existing::read(client, (&first.sandbox_id, &first.sandbox_name)).await?;
    if existing.is_empty() {
        return Ok(None);
    }
    let mut scan = Scan::default();
    scan.read(&first, &existing, asked);
    while let Some(step) = steps.next().await? {
        scan.read(&step, &existing, asked);
    }
    Ok(scan.best())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(number: u64, action: &str, arguments: Value, observation: Value, state: Value) -> Step {
        serde_json::from_str(
            &json!({
                "v": 1, "step": number, "tenant": "default", "sandbox_id": "s", "sandbox_name": "s", "dialect": "aio",
                "action": action, "arguments": {"json": arguments}, "observation": {"json": observation}, "state": state,
                "started_at": "2026-01-01T00:00:00Z", "ended_at": null, "duration_ms": 1.0, "outcome": "ok", "status": 200,
                "error": null, "origin": null, "request_id": "r", "bytes_in": 0, "bytes_out": 0,
            })
            .to_string(),
        )
        .unwrap()
    }

    fn existing() -> Existing {
        Existing {
            checkpoints: [("c-1", (1, false)), ("c-2", (2, false)), ("c-3", (3, true))]
                .map(|(id, about)| (id.to_owned(), about))
                .into(),
            snapshots: BTreeMap::from([("kept".to_owned(), ("s-1".to_owned(), false))]),
        }
    }

    fn best(steps: &[Step], asked: u64) -> Option<(u64, String)> {
        let mut scan = Scan::default();
        steps.iter().for_each(|step| scan.read(step, &existing(), asked));
        scan.best().map(|point| (point.after, point.json().to_string()))
    }

    #[test]
    fn the_nearest_state_that_still_exists_is_chosen() {
        let none = Value::Null;
        let sealed = |number, id: &str| {
            step(number, "POST /api/v2/sandboxes/s/checkpoints", none.clone(), json!({ "id": id }), none.clone())
        };
        let snapshot = |number, state: &str| {
            let made = json!({ "name": "kept", "state": state });
            step(number, "POST /api/v2/snapshots", none.clone(), made, none.clone())
        };
        let run = |number, state: Value| step(number, "POST /v1/bash/exec", none.clone(), none.clone(), state);
        let steps = [run(1, none.clone()), sealed(2, "c-1"), run(3, none.clone()), sealed(4, "gone"), snapshot(5, "s-1")];
        assert_eq!(best(&steps, 9).unwrap().0, 5);
        assert_eq!(best(&steps, 5).unwrap().0, 2);
        assert_eq!(best(&steps, 2), None);
        assert_eq!(best(&[snapshot(5, "another")], 9), None, "another snapshot has its name now");
        let auto = [run(6, json!({ "before": 1, "after": 2, "changed": true }))];
        assert_eq!(best(&auto, 9).unwrap().0, 6);
        assert_eq!(best(&auto, 6).unwrap().0, 5);
    }

    #[test]
    fn a_state_without_processes_serves_no_later_step_of_a_session() {
        let none = Value::Null;
        let sealed = |number, id: &str| {
            step(number, "POST /api/v2/sandboxes/s/checkpoints", none.clone(), json!({ "id": id }), none.clone())
        };
        let begun = step(2, "POST /v1/shell/exec", none.clone(), json!({ "data": { "session_id": "shell-7" } }), none.clone());
        let uses = step(5, "POST /v1/shell/exec", json!({ "session_id": "shell-7" }), none.clone(), none.clone());
        let steps = |id: &str| [sealed(1, "c-1"), begun.clone(), sealed(3, id), uses.clone()];
        assert_eq!(best(&steps("c-2"), 9).unwrap().0, 1);
        assert_eq!(best(&steps("c-3"), 9).unwrap().0, 3, "it keeps the processes");
        assert_eq!(best(&steps("c-2")[..3], 9).unwrap().0, 3);
    }
}
