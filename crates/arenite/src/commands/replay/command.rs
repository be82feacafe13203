//! Replays commands of the command line: each is one step, and makes its calls again.

use arenite_trajectory::replay::{Divergence, Ids, compare, rule};
use arenite_trajectory::{Body, PartOfStep, Step};
use bytes::Bytes;
use serde_json::{Value, json};

use super::steps::Steps;
use super::target::ReplayTarget;
use crate::client::Client;
use crate::commands::exec;
use crate::failure::Failure;

/// Runs a command again, and returns where it differs.
pub(super) async fn again(
    client: &Client,
    steps: &Steps<'_>,
    sandbox: &str,
    step: &Step,
    ids: &mut Ids,
) -> Result<Option<Divergence>, Failure> {
    match step.action.as_str() {
        "exec" => command(client, steps, sandbox, step, ids).await,
        _ => calls(client, steps, sandbox, step, ids).await,
    }
}

/// The splitting of output into pieces depends on timing; the whole output and the exit do not.
async fn command(
    client: &Client,
    steps: &Steps<'_>,
    sandbox: &str,
    step: &Step,
    ids: &mut Ids,
) -> Result<Option<Divergence>, Failure> {
    let recorded = steps.body(step.step, "observation", step.observation.as_ref()).await?;
    let arguments = steps.body(step.step, "arguments", step.arguments.as_ref()).await?;
    let asked: Value = serde_json::from_slice(&arguments).unwrap_or_default();
    let mut input = String::new();
    for part in step.calls.iter().filter(|part| place(part) == "/v1/bash/write") {
        let wrote: Value = serde_json::from_slice(&bytes(steps, part.arguments.as_ref()).await?).unwrap_or_default();
        input.push_str(wrote["input"].as_str().unwrap_or_default());
    }
    let told = exec::again(client, sandbox, &ids.value(&asked), &ids.text(&input)).await?;
    let now = json!({ "success": true, "message": "", "data": told });
    if let Ok(recorded) = serde_json::from_slice(&recorded) {
        ids.learn_from(&recorded, &now);
    }
    // Both are whole answers; statuses are of the transport.
    Ok(compare(rule("POST /v1/bash/exec"), ids, (None, &recorded), (None, now.to_string().as_bytes())))
}

/// Replays each call, in the order in which they ended.
async fn calls(
    client: &Client,
    steps: &Steps<'_>,
    sandbox: &str,
    step: &Step,
    ids: &mut Ids,
) -> Result<Option<Divergence>, Failure> {
    let target = ReplayTarget::Sandbox { name: sandbox.to_owned() };
    for part in &step.calls {
        let arguments = bytes(steps, part.arguments.as_ref()).await?;
        let like = Step { action: part.action.clone(), status: part.status, calls: Vec::new(), ..step.clone() };
        let (status, now) = target.call(client, &like, arguments, ids).await?;
        // A packed archive contains the times of its files.
        let is_packed = part.action.starts_with("GET ") && part.action.contains("arenite-cp.");
        let kept = !is_packed && !matches!(&part.observation, Some(Body::Blob(blob)) if !blob.kept);
        let recorded = if kept { bytes(steps, part.observation.as_ref()).await? } else { Bytes::new() };
        if let (Ok(recorded), Ok(now)) = (serde_json::from_slice(&recorded), serde_json::from_slice(&now)) {
            ids.learn_from(&recorded, &now);
        }
        let now: &[u8] = if kept { &now } else { b"" };
        if let Some(found) = compare(rule(&part.action), ids, (part.status, &recorded), (Some(status), now)) {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

fn place(part: &PartOfStep) -> &str {
    part.action.split_once(' ').map_or("", |(_, place)| place)
}

/// The bytes of one call's body.
async fn bytes(steps: &Steps<'_>, body: Option<&Body>) -> Result<Bytes, Failure> {
    match body {
        Some(Body::Blob(blob)) if blob.kept => steps.blob(&blob.blake3).await,
        Some(Body::Blob(_)) => Ok(Bytes::new()),
        other => steps.body(0, "", other).await,
    }
}
