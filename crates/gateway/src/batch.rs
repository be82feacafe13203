//! Creates of several equal sandboxes at once: all, or at least a minimum.

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_control::{CreateRequest, HeldKey, Sandbox};
use arenite_model::{ErrorCode, SandboxName};
use futures_util::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};

use crate::api::types::FailedCreate;
use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleAnswer, LifecycleCall};
use crate::refusal::Refusal;
use crate::{audit, idempotency, nodes};

/// The most sandboxes of one create.
pub(crate) const MAX_COUNT: usize = 100;

/// How many to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Several {
    pub(crate) count: usize,
    /// With fewer, none are created.
    pub(crate) min: usize,
}

impl Several {
    /// Reads the fields of a request. None: one sandbox, which is the whole answer.
    pub(crate) fn read(count: Option<usize>, min: Option<usize>) -> Result<Option<Self>, Refusal> {
        let refuse = |field: &str, value: usize, most: usize| {
            Err(Refusal::bad_request(format!("{field} is {value}, outside 1 to {most}")))
        };
        match (count, min) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(Refusal::bad_request("min is given without count")),
            (Some(count), _) if !(1..=MAX_COUNT).contains(&count) => refuse("count", count, MAX_COUNT),
            (Some(count), Some(min)) if !(1..=count).contains(&min) => refuse("min", min, count),
            (Some(count), min) => Ok(Some(Self { count, min: min.unwrap_or(count) })),
        }
    }
}

/// Creates them, and removes them again if they are too few. `shape` makes an item of the answer. Runs to its end, whether or not
/// its client waits for it.
pub(crate) async fn create(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    mut request: CreateRequest,
    several: Several,
    key: Option<HeldKey>,
    shape: impl Fn(Sandbox) -> Value + Send + Sync + 'static,
) -> Result<LifecycleAnswer, Refusal> {
    let _client = lifecycle::wait_with_client(&mut request);
    let (shared, context) = (Arc::clone(gateway), context.clone());
    let created = async move {
        let created = create_all(&shared, &context, &call, &request, several, key.as_ref(), &shape).await;
        idempotency::settle(key, created).await
    };
    gateway.run_to_end(created).await
}

async fn create_all(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: &LifecycleCall,
    request: &CreateRequest,
    several: Several,
    key: Option<&HeldKey>,
    shape: &(impl Fn(Sandbox) -> Value + Sync),
) -> Result<LifecycleAnswer, Refusal> {
    // Those that an earlier create with the same key made before its server ended.
    let left = match key {
        Some(key) => key.left().await?,
        None => Vec::new(),
    };
    let position = |sandbox: &Sandbox| sandbox.provenance.keyed.as_ref().map_or(0, |keyed| keyed.index);
    let mut left: BTreeMap<usize, Sandbox> = left.into_iter().map(|sandbox| (position(&sandbox), sandbox)).collect();
    let items = (0..several.count).map(|index| {
        let left = left.remove(&index);
        async move {
            let mut request = request.clone();
            request.name = request.name.map(|name| numbered(&name, index)).transpose()?;
            request.provenance.keyed = key.map(|key| key.keyed(index));
            let object = request.name.as_ref().map_or_else(|| "-".to_owned(), SandboxName::to_string);
            let answer = |sandbox| (StatusCode::CREATED, shape(sandbox));
            let created = lifecycle::create_recorded(gateway, context, call.clone(), request, left, answer).await;
            let name = created.as_ref().ok().and_then(|(_, body)| body["name"].as_str().map(str::to_owned));
            audit::record_result(gateway, context, "sandbox.create", name.as_ref().unwrap_or(&object), created).await
        }
    });
    let (mut sandboxes, mut errors) = (Vec::new(), Vec::new());
    for (index, created) in join_all(items.collect::<Vec<_>>()).await.into_iter().enumerate() {
        match created {
            Ok((_, body)) => sandboxes.push(body),
            Err(refusal) => errors.push((index, refusal)),
        }
    }
    let (full, others): (Vec<_>, Vec<_>) = errors.into_iter().partition(|(_, refusal)| lacks_room(refusal));
    errors = others;
    if !full.is_empty() {
        let named = |(index, refusal)| {
            let name = request.name.as_ref().map(|name| numbered(name, index)).transpose();
            // It was valid before.
            (index, name.ok().flatten(), refusal)
        };
        let forked = nodes::fork_elsewhere(gateway, context, call, request, full.into_iter().map(named).collect()).await;
        sandboxes.extend(forked.0);
        errors.extend(forked.1);
        errors.sort_by_key(|(index, _)| *index);
    }
    if sandboxes.len() < several.min {
        remove(gateway, context, &sandboxes).await;
        return Err(too_few(several, sandboxes.len(), errors));
    }
    let status = if errors.is_empty() { StatusCode::CREATED } else { StatusCode::MULTI_STATUS };
    let errors: Vec<FailedCreate> = errors.into_iter().map(|(index, refusal)| failed(index, &refusal)).collect();
    Ok((status, json!({ "requested": several.count, "sandboxes": sandboxes, "errors": errors })))
}

/// Whether this server has no room for a sandbox, and another may have.
fn lacks_room(refusal: &Refusal) -> bool {
    refusal.code == ErrorCode::Exhausted && refusal.quota.is_none()
}

/// The name of one of several: `NAME-0` and so on.
fn numbered(name: &SandboxName, index: usize) -> Result<SandboxName, Refusal> {
    Ok(format!("{name}-{index}").parse()?)
}

fn failed(index: usize, refusal: &Refusal) -> FailedCreate {
    FailedCreate { index, retry_after_seconds: refusal.retry_after, problem: refusal.problem() }
}

/// The first error, for a create of which nothing is left.
fn too_few(several: Several, created: usize, errors: Vec<(usize, Refusal)>) -> Refusal {
    let Several { count, min } = several;
    let first = errors.into_iter().next().map(|(_, refusal)| refusal);
    let first = first.unwrap_or_else(|| Refusal::new(ErrorCode::Internal, "no reason is known"));
    let message =
        format!("only {created} of {count} sandboxes could be created, and at least {min} are needed: {}", first.message);
    Refusal { message, ..first }
}

async fn remove(gateway: &Gateway, context: &Context, sandboxes: &[Value]) {
    let names = sandboxes.iter().filter_map(|body| body["name"].as_str()?.parse::<SandboxName>().ok());
    join_all(names.map(|name| async move {
        if nodes::delete(gateway, context, &name).await.is_ok_and(|is_elsewhere| is_elsewhere) {
            return;
        }
        if let Err(error) = gateway.control.delete(context.tenant(), &name).await {
            tracing::error!(sandbox = %name, %error, "a sandbox of a create with too few could not be removed");
        }
    }))
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_minimums_have_bounds() {
        let read = |count, min| Several::read(count, min).map_err(|refusal| refusal.message);
        assert_eq!(read(None, None), Ok(None));
        assert_eq!(read(Some(3), None), Ok(Some(Several { count: 3, min: 3 })));
        assert_eq!(read(Some(3), Some(1)), Ok(Some(Several { count: 3, min: 1 })));
        for (count, min) in
            [(None, Some(1)), (Some(0), None), (Some(MAX_COUNT + 1), None), (Some(3), Some(0)), (Some(3), Some(4))]
        {
            assert!(read(count, min).is_err(), "{count:?} {min:?}");
        }
        let long: SandboxName = "a".repeat(62).parse().unwrap();
        assert!(numbered(&long, 0).is_err());
    }
}
