//! `/api/v1/trajectories`: reads, follows and exports recorded steps; `/steps` of a sandbox does the same for that sandbox.
//! Formats are in [`crate::api::types`].

use std::cmp::Reverse;
use std::collections::HashSet;

use arenite_control::Sandbox;
use arenite_model::{ErrorCode, TenantId};
use arenite_trajectory::{Body as Recorded, Filter, Listed, Recorder, Summary, TrajectoryError};
use axum::body::Body;
use http::header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use jiff::Timestamp;

use crate::api::types::{NetworkRecordList, SessionList, StepPage, TrajectoryList};
use crate::exchange::{Answered, Exchange};
use crate::lists::{self, PageQuery};
use crate::nodes::{self, Theirs};
use crate::path::query_value;
use crate::refusal::{Refusal, json_response};
use crate::target::{self, SandboxRef};
use crate::tenants::time_in_query;
use crate::{annotations, export, follow};

const DEFAULT_PAGE: usize = 100;
/// Seconds after which the archive may answer again.
const RETRY: u64 = 10;
/// Size of one piece of a body, in bytes.
const PIECE_BYTES: usize = 64 << 10;

/// What a trajectory has, for a path that leads to nothing.
pub(crate) async fn unknown(_: &mut Exchange) -> Answered {
    Err(Refusal::not_found(
        "a trajectory has steps, sessions, annotations, export, verify and blobs/{blake3}, and a step has arguments and an observation",
    ))
}

/// Starts and ends of the sessions of its steps.
pub(crate) async fn sessions(exchange: &mut Exchange) -> Answered {
    let (recorder, tenant, id) = recorded(exchange).await?;
    let trajectory = id.clone();
    let all = blocking(move || recorder.sessions(&tenant, &id)).await?;
    // They are only ever appended.
    let (page, next_cursor) = PageQuery::read(exchange)?.take(all.into_iter().enumerate().collect(), |(number, _)| *number)?;
    let sessions = page.into_iter().map(|(_, event)| event).collect();
    Ok(json_response(StatusCode::OK, &SessionList { trajectory, sessions, next_cursor }))
}

/// What the network policy of its sandbox decided.
pub(crate) async fn network(exchange: &mut Exchange) -> Answered {
    let (recorder, tenant, id) = recorded(exchange).await?;
    let trajectory = id.clone();
    let found = blocking(move || recorder.network(&tenant, &id)).await?;
    // They are only ever appended.
    let all = found.events.into_iter().enumerate().collect();
    let (page, next_cursor) = PageQuery::read(exchange)?.take(all, |(number, _)| *number)?;
    let network = page.into_iter().map(|(_, event)| event).collect();
    Ok(json_response(StatusCode::OK, &NetworkRecordList { trajectory, network, left_out: found.left_out, next_cursor }))
}

/// Checks it, and lists what was altered.
pub(crate) async fn verify(exchange: &mut Exchange) -> Answered {
    let (recorder, tenant, id) = recorded(exchange).await?;
    let found = blocking(move || recorder.verify(&tenant, &id)).await?;
    Ok(json_response(StatusCode::OK, &found))
}

pub(crate) async fn export(exchange: &mut Exchange) -> Answered {
    let (recorder, tenant, id) = recorded(exchange).await?;
    export::serve(&exchange.gateway.control, recorder, (tenant, id), &exchange.parts).await
}

pub(crate) async fn blob(exchange: &mut Exchange) -> Answered {
    let (recorder, tenant, id) = recorded(exchange).await?;
    let digest = exchange.param("digest").to_owned();
    let (from, owner, trajectory, wanted) = (recorder.clone(), tenant.clone(), id.clone(), digest.clone());
    // A client may know the hash of another tenant's body.
    blocking(move || from.check_blob(&owner, &trajectory, &wanted)).await?;
    kept(recorder, digest).await
}

pub(crate) async fn steps(exchange: &mut Exchange) -> Answered {
    let (recorder, _, id) = recorded(exchange).await?;
    serve_steps(exchange, recorder, id).await
}

pub(crate) async fn step(exchange: &mut Exchange) -> Answered {
    let (recorder, _, id) = recorded(exchange).await?;
    serve_step(exchange, recorder, id).await
}

/// The trajectory that the path names: this node's, or an archived one. With a bound key, only those of sandboxes that exist within
/// its bounds.
pub(crate) async fn recorded(exchange: &Exchange) -> Result<(Recorder, TenantId, String), Refusal> {
    let Exchange { gateway, context, .. } = exchange;
    let id = exchange.param("id").to_owned();
    if context.principal.is_bound() {
        let sandbox = async {
            let sandbox_ref = SandboxRef::Id(id.parse().ok()?);
            target::look_up(&gateway.control, context, &sandbox_ref).await.ok()
        };
        if sandbox.await.is_none() {
            return Err(refused(TrajectoryError::NoTrajectory { trajectory: id }));
        }
    }
    let (recorder, tenant) = (gateway.recorder.clone(), context.tenant().clone());
    let (here, owner, wanted) = (recorder.clone(), tenant.clone(), id.clone());
    if blocking(move || here.has(&owner, &wanted)).await? {
        return Ok((recorder, tenant, id));
    }
    // A node that asks this one reads the archive itself.
    let archive = gateway.config.archive.as_ref().filter(|_| exchange.passed().is_none());
    let archived = match archive {
        Some(archive) => archive.open(&tenant, &id).await.map_err(refused)?,
        None => None,
    };
    match archived {
        Some(recorder) => Ok((recorder, tenant, id)),
        None => {
            let refusal = refused(TrajectoryError::NoTrajectory { trajectory: id });
            let silent = exchange.silent_nodes.join(", ");
            Err(if silent.is_empty() { refusal } else { refusal.hint(format!("nodes that may have it do not answer: {silent}")) })
        }
    }
}

/// The filter that `origin`, `result` and `class` request; `usual` is the default for `origin`.
pub(crate) fn filter(parts: &Parts, usual: Filter) -> Result<Filter, Refusal> {
    let mut filter = match query_value(parts.uri.query(), "origin") {
        Some(origins) => Filter::of_origins(&origins).map_err(refused)?,
        None => usual,
    };
    filter.failed = match query_value(parts.uri.query(), "result").as_deref() {
        None => None,
        Some("failed") => Some(true),
        Some("succeeded") => Some(false),
        Some(_) => return Err(Refusal::bad_request("result is failed or succeeded")),
    };
    filter.class = query_value(parts.uri.query(), "class").map(|class| class.parse().map_err(refused)).transpose()?;
    Ok(filter)
}

/// A page of the trajectories.
pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let [sandbox, worker, task] = ["sandbox", "worker", "task"].map(|key| exchange.query(key));
    let (since, until) = (time_in_query(exchange, "since")?, time_in_query(exchange, "until")?);
    let page = PageQuery::read(exchange)?;
    let (recorder, tenant) = (exchange.gateway.recorder.clone(), exchange.context.tenant().clone());
    let annotated = annotations::selected(exchange).await?;
    let failed = exchange.query("failed").map(|value| value == "true");
    let selection = Selection { sandbox, worker, task, since, until, failed, annotated };
    let fits = |summary: &Summary| selection.takes(summary);
    let after = page.after::<Position>()?;
    let (archive, owner) = (archived(exchange, after, page.limit, &fits), tenant.clone());
    let here = blocking(move || recorder.list(&owner));
    let (here, theirs, archive) = tokio::join!(here, nodes::list_of_nodes::<Summary>(exchange, "trajectories"), archive);
    let Theirs { entries: summaries, mut has_more, mut warnings } = theirs;
    let mut listed = here?;
    listed.retain(fits);
    if exchange.context.principal.is_bound() {
        let sandboxes = target::list(&exchange.gateway.control, &exchange.context).await?;
        listed.retain(|summary| sandboxes.iter().any(|sandbox| sandbox.id.as_str() == summary.trajectory));
    }
    listed.extend(summaries);
    let archive = archive.unwrap_or_else(|error| {
        tracing::warn!(%error, "archived trajectories are missing in a list");
        warnings.push("the archive can't be read: trajectories that only it has are missing".to_owned());
        Listed::default()
    });
    // What a node still has is newer than its copy in the archive.
    listed.extend(archive.summaries);
    let mut known = HashSet::new();
    listed.retain(|summary| known.insert(position(summary)));
    let end = archive.until.map(|(first_at, id)| (Reverse(first_at), id));
    if let Some(end) = &end {
        // It may have more after this, and the other nodes are read that far.
        listed.retain(|summary| position(summary) <= *end);
        has_more = true;
    }
    let (mut trajectories, mut next_cursor) = page.take_from(listed, position, has_more)?;
    if trajectories.len() < page.limit
        && let Some(end) = end
    {
        next_cursor = Some(page.cursor(&end));
    }
    annotations::summarize(exchange, &mut trajectories).await?;
    Ok(json_response(StatusCode::OK, &TrajectoryList { trajectories, next_cursor, warnings }))
}

/// The trajectories of a list.
struct Selection {
    sandbox: Option<String>,
    worker: Option<String>,
    task: Option<String>,
    since: Option<Timestamp>,
    until: Option<Timestamp>,
    /// Those with a failed step, or without one.
    failed: Option<bool>,
    /// Those with annotations that fit. None: all.
    annotated: Option<HashSet<String>>,
}

impl Selection {
    fn takes(&self, summary: &Summary) -> bool {
        let fits = |wanted: &Option<String>, found: &Option<String>| wanted.is_none() || wanted == found;
        let of_sandbox = |wanted: &String| *wanted == summary.trajectory || *wanted == summary.sandbox_name;
        fits(&self.worker, &summary.worker)
            && fits(&self.task, &summary.task)
            && self.sandbox.as_ref().is_none_or(of_sandbox)
            && self.since.is_none_or(|since| summary.last_at >= since)
            && self.until.is_none_or(|until| summary.first_at <= until)
            && self.failed.is_none_or(|wanted| summary.failures.is_some_and(|failures| (failures.steps > 0) == wanted))
            && self.annotated.as_ref().is_none_or(|annotated| annotated.contains(&summary.trajectory))
    }
}

/// Archived trajectories of a list. A node that is asked by another one lists its own, and a bound key sees sandboxes that exist.
async fn archived(
    exchange: &Exchange,
    after: Option<Position>,
    most: usize,
    fits: impl Fn(&Summary) -> bool,
) -> Result<Listed, TrajectoryError> {
    let is_here = exchange.passed().is_some() || exchange.context.principal.is_bound();
    let Some(archive) = exchange.gateway.config.archive.as_ref().filter(|_| !is_here) else { return Ok(Listed::default()) };
    let after = after.map(|(Reverse(first_at), id)| (first_at, id));
    archive.list(exchange.context.tenant(), after.as_ref(), most, fits).await
}

type Position = (Reverse<i64>, String);

/// Where a list has a trajectory. The time of its last step changes, so it is no position.
fn position(summary: &Summary) -> Position {
    (Reverse(summary.first_at.as_microsecond()), summary.trajectory.clone())
}

/// `/steps` of a sandbox: under its prefix, or on its own host, where no route reveals other sandboxes. It contains only what the
/// sandbox could see anyway, so a page of it that reads this learns nothing.
pub(crate) async fn own_steps(exchange: &mut Exchange) -> Answered {
    let sandbox = own_sandbox(exchange).await?;
    steps_of_sandbox(exchange, &sandbox).await
}

/// The arguments or the observation of one of them.
pub(crate) async fn own_step(exchange: &mut Exchange) -> Answered {
    let sandbox = own_sandbox(exchange).await?;
    step_of_sandbox(exchange, &sandbox).await
}

async fn own_sandbox(exchange: &Exchange) -> Result<Sandbox, Refusal> {
    let target = exchange.target()?;
    target::look_up(&exchange.gateway.control, &exchange.context, &target.sandbox_ref).await
}

/// The steps of a sandbox that exists. It may not have been called yet: then it has none.
pub(crate) async fn steps_of_sandbox(exchange: &Exchange, sandbox: &Sandbox) -> Answered {
    let (recorder, id) = (exchange.gateway.recorder.clone(), sandbox.id.to_string());
    match serve_steps(exchange, recorder.clone(), id.clone()).await {
        Err(refusal) if refusal.code == ErrorCode::NotFound => {
            if follow::is_wanted(&exchange.parts) {
                return begin_to_follow(exchange, recorder, id).await;
            }
            Ok(json_response(StatusCode::OK, &StepPage { trajectory: id, steps: Vec::new(), next_after: None }))
        }
        other => other,
    }
}

/// The arguments or the observation of a step of a sandbox that exists.
pub(crate) async fn step_of_sandbox(exchange: &Exchange, sandbox: &Sandbox) -> Answered {
    serve_step(exchange, exchange.gateway.recorder.clone(), sandbox.id.to_string()).await
}

/// The steps of a trajectory: a page of them, a file, or events as they come.
async fn serve_steps(exchange: &Exchange, recorder: Recorder, id: String) -> Answered {
    let tenant = exchange.context.tenant().clone();
    if follow::is_wanted(&exchange.parts) {
        let (from, trajectory) = (recorder.clone(), id.clone());
        blocking(move || from.steps(&tenant, &trajectory, 0, 1)).await?;
        return begin_to_follow(exchange, recorder, id).await;
    }
    page(exchange, recorder, tenant, id).await
}

async fn serve_step(exchange: &Exchange, recorder: Recorder, id: String) -> Answered {
    let (number, part) = (exchange.param("number"), exchange.param("part"));
    if !matches!(part, "arguments" | "observation") {
        return Err(Refusal::not_found("a step has arguments and an observation, nothing else"));
    }
    let number: u64 = number.parse().map_err(|_| Refusal::bad_request(format!("step {number:?} is not a number")))?;
    step_body(recorder, exchange.context.tenant().clone(), id, number, part == "observation").await
}

async fn begin_to_follow(exchange: &Exchange, recorder: Recorder, id: String) -> Answered {
    let Exchange { gateway, context, parts, .. } = exchange;
    let after = follow::last_event(parts).map_or_else(|| number(parts, "after", 0), Ok)?;
    let tail = query_value(parts.uri.query(), "tail").map(|_| number(parts, "tail", 0)).transpose()?;
    let tenant = context.tenant().clone();
    let begun = blocking(move || recorder.follow(&tenant, &id, after, tail)).await?;
    Ok(follow::steps(gateway, begun))
}

/// Reads files off the async threads.
pub(crate) async fn blocking<T: Send + 'static>(
    read: impl FnOnce() -> Result<T, TrajectoryError> + Send + 'static,
) -> Result<T, Refusal> {
    tokio::task::spawn_blocking(read)
        .await
        .map_err(|e| Refusal::new(ErrorCode::Internal, format!("reading failed: {e}")))?
        .map_err(refused)
}

/// The error, without the server's internals.
pub(crate) fn refused(error: TrajectoryError) -> Refusal {
    if let TrajectoryError::Archive { .. } = error {
        tracing::warn!(%error, "an archived trajectory could not be read");
        let refusal =
            Refusal::new(ErrorCode::Internal, "the archive of trajectories can't be read now; the server's log says why");
        return Refusal { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: Some(RETRY), ..refusal };
    }
    let is_told = matches!(error, TrajectoryError::DamagedBlob { .. } | TrajectoryError::DamagedObject { .. });
    let mut refusal = Refusal::from(error);
    if refusal.code == ErrorCode::Internal && !is_told {
        refusal.message = "the trajectory could not be read; the server's log says why".to_owned();
    }
    refusal
}

fn number<T: std::str::FromStr>(parts: &Parts, key: &str, default: T) -> Result<T, Refusal> {
    match query_value(parts.uri.query(), key) {
        Some(text) => text.parse().map_err(|_| Refusal::bad_request(format!("{key} {text:?} is not a number"))),
        None => Ok(default),
    }
}

async fn page(exchange: &Exchange, recorder: Recorder, tenant: TenantId, id: String) -> Answered {
    let parts = &exchange.parts;
    let after: u64 = number(parts, "after", 0)?;
    let lines = query_value(parts.uri.query(), "format").as_deref() == Some("jsonl")
        || parts.headers.get(ACCEPT).and_then(|v| v.to_str().ok()).is_some_and(|v| v.contains("application/x-ndjson"));
    if lines {
        let inline = query_value(parts.uri.query(), "bodies").as_deref() == Some("inline");
        let filter = filter(parts, Filter::default())?;
        return export::lines(recorder, tenant, id, after, inline, filter).await;
    }
    let limit = lists::limit(exchange, DEFAULT_PAGE)?;
    let filter = filter(parts, Filter::default())?;
    let trajectory = id.clone();
    let (steps, next_after) = blocking(move || recorder.filtered(&tenant, &id, (after, limit), &filter)).await?;
    Ok(json_response(StatusCode::OK, &StepPage { trajectory, steps, next_after }))
}

/// The arguments or the answer of a step, wherever they are stored.
async fn step_body(
    recorder: Recorder,
    tenant: TenantId,
    id: String,
    number: u64,
    observed: bool,
) -> Result<Response<Body>, Refusal> {
    let which = if observed { "observation" } else { "arguments" };
    let (from, owner, trajectory) = (recorder.clone(), tenant.clone(), id.clone());
    let step = blocking(move || from.steps(&owner, &trajectory, number.saturating_sub(1), 1)).await?.pop();
    let step = step.filter(|step| step.step == number).ok_or_else(|| Refusal::not_found(format!("there is no step {number}")))?;
    let text = match if observed { step.observation } else { step.arguments } {
        Some(Recorded::Blob(body)) => return kept(recorder, body.blake3).await,
        Some(Recorded::Json(raw)) => raw.get().to_owned(),
        Some(Recorded::Text(text) | Recorded::Base64(text)) => text,
        None => return Err(Refusal::not_found(format!("step {number} has no {which}, or not yet"))),
    };
    let mut response = Response::new(Body::from(text));
    as_bytes(response.headers_mut());
    Ok(response)
}

/// A kept body, sent as bytes: content from a sandbox must not become a page of this server.
async fn kept(recorder: Recorder, digest: String) -> Answered {
    let (file, length) = blocking(move || {
        let file = recorder.read_blob(&digest)?;
        let length = file.metadata().map(|m| m.len()).ok();
        Ok((file, length))
    })
    .await?;
    let reader = tokio_util::io::ReaderStream::with_capacity(tokio::fs::File::from_std(file), PIECE_BYTES);
    let mut response = Response::new(Body::from_stream(reader));
    let headers = response.headers_mut();
    as_bytes(headers);
    if let Some(length) = length {
        headers.insert(http::header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    Ok(response)
}

fn as_bytes(headers: &mut HeaderMap) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}
