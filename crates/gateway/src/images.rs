//! Images of a tenant: lists, pulls, removals; and pulls for creates as they go on.
//!
//! A create or a pull with `Accept: text/event-stream` is answered with events:
//!
//! | event | data |
//! | --- | --- |
//! | `pull` | a [`PullProgress`]; the latest one, at most five times a second |
//! | `created` | the sandbox, or for a create of several a `CreatedSandboxes`; the stream ends |
//! | `pulled` | the image; the stream ends |
//! | `failed` | the error, as other answers have it; the stream ends |
//!
//! A client that closes the connection cancels a pull that no one else waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::images::{Image, Layer};
use arenite_control::{CreateClient, PullProgress};
use arenite_model::{ImageName, TenantId};
use axum::body::Body;
use http::header::ACCEPT;
use http::request::Parts;
use http::{Response, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::watch;
use utoipa::ToSchema;

use crate::api::types::ImageList;
use crate::audit;
use crate::config::ImageEntry;
use crate::exchange::{Answered, Exchange};
use crate::follow;
use crate::gateway::Gateway;
use crate::lists::PageQuery;
use crate::refusal::{Refusal, json_response};

/// The pause between two events of a pull.
const PERIOD: Duration = Duration::from_millis(200);
const PREFIX: &str = "/api/v2/images/";

/// An image to pull.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct PullImage {
    /// As in Docker: `python:3.12`, or `registry.example:5000/team/app@sha256:…`.
    #[schema(required)]
    image: Option<ImageName>,
}

/// An image with its configuration.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageDetails {
    #[serde(flatten)]
    entry: ImageEntry,
    /// The registry's reference with the digest of the manifest; null if it was built or loaded here.
    source: Option<String>,
    /// The start of the image's command.
    entrypoint: Vec<String>,
    /// The rest of it.
    cmd: Vec<String>,
    workdir: Option<String>,
    user: Option<String>,
    exposed_ports: Vec<String>,
    /// Its layers, the lowest first.
    history: Vec<ImageLayer>,
}

/// A layer of an image.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ImageLayer {
    digest: String,
    size_bytes: u64,
    /// The instruction that built it.
    created_by: String,
    /// RFC 3339.
    created_at: String,
}

/// The pulls that are under way for a tenant, also for its creates.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PullList {
    pulls: Vec<PullProgress>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedImage {
    name: ImageName,
    deleted: bool,
    freed_bytes: u64,
}

impl From<Image> for ImageEntry {
    fn from(image: Image) -> Self {
        Self {
            name: image.name.to_string(),
            digest: image.digest,
            size_bytes: image.size_bytes,
            created_at: image.created_at.to_string(),
            layers: image.layers.len(),
            base: None,
            labels: image.config.labels,
            shared: image.owner.is_none(),
        }
    }
}

impl From<Image> for ImageDetails {
    fn from(image: Image) -> Self {
        let config = image.config.clone();
        let layer = |layer: &Layer| ImageLayer {
            digest: layer.digest.clone(),
            size_bytes: layer.bytes,
            created_by: layer.created_by.clone(),
            created_at: layer.created_at.to_string(),
        };
        Self {
            history: image.layers.iter().map(layer).collect(),
            source: image.source.clone(),
            entry: image.into(),
            entrypoint: config.entrypoint,
            cmd: config.cmd,
            workdir: config.workdir,
            user: config.user,
            exposed_ports: config.exposed_ports.into_iter().collect(),
        }
    }
}

/// A name and the digests of its layers, the lowest first.
type Stack = (String, Vec<String>);

fn stack(image: &Image) -> Stack {
    (image.name.to_string(), image.layers.iter().map(|layer| layer.digest.clone()).collect())
}

/// For each stack, the name of the one that is the most of its lower layers.
fn bases(of: &[Stack], all: &[Stack]) -> Vec<Option<String>> {
    // One of each content is enough; of equal ones the first by name.
    let mut tops: HashMap<(usize, &str), &Stack> = HashMap::new();
    for stack in all {
        if let Some(top) = stack.1.last() {
            let place = tops.entry((stack.1.len(), top)).or_insert(stack);
            if stack.0 < place.0 {
                *place = stack;
            }
        }
    }
    let base = |(_, layers): &Stack| {
        let below = (1..layers.len()).rev().filter_map(|height| tops.get(&(height, layers[height - 1].as_str())));
        below.into_iter().find(|(_, lower)| layers.starts_with(lower)).map(|(name, _)| name.clone())
    };
    of.iter().map(base).collect()
}

/// An image for an answer. Without a list, it has no base.
pub(crate) async fn details(gateway: &Gateway, tenant: &TenantId, image: Image) -> ImageDetails {
    let all: Vec<Stack> = gateway.control.list_images(tenant).await.unwrap_or_default().iter().map(stack).collect();
    let base = bases(&[stack(&image)], &all).pop().flatten();
    let mut details = ImageDetails::from(image);
    details.entry.base = base;
    details
}

/// Whether a request wants events in place of one answer at the end.
pub(crate) fn wants_events(parts: &Parts) -> bool {
    let accepts = parts.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.into_iter().any(|value| value.contains("text/event-stream"))
}

/// The progress of a pull until `done`, and its result as the last event.
pub(crate) fn stream(
    gateway: &Gateway,
    mut progress: watch::Receiver<Option<PullProgress>>,
    done: impl Future<Output = Result<(&'static str, Value), Refusal>> + Send + 'static,
) -> Response<Body> {
    follow::stream(gateway, |sender| async move {
        let mut beat = follow::beat();
        let mut done = Box::pin(done);
        loop {
            let piece = tokio::select! {
                biased;
                done = &mut done => {
                    let piece = match done {
                        Ok((name, body)) => follow::event(name, &body),
                        Err(refusal) => follow::event("failed", &refusal.problem()),
                    };
                    let _ = sender.send(piece).await;
                    return;
                }
                // Its sender is a part of `done`.
                Ok(()) = progress.changed() => {
                    let Some(latest) = progress.borrow_and_update().clone() else { continue };
                    follow::event("pull", &latest)
                }
                _ = beat.tick() => ": \n\n".to_owned(),
            };
            if sender.send(piece).await.is_err() {
                return;
            }
            // What happens meanwhile is one event.
            if let Ok(done) = tokio::time::timeout(PERIOD, &mut done).await {
                let piece = match done {
                    Ok((name, body)) => follow::event(name, &body),
                    Err(refusal) => follow::event("failed", &refusal.problem()),
                };
                let _ = sender.send(piece).await;
                return;
            }
        }
    })
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let tenant = exchange.context.tenant();
    let images = exchange.gateway.control.list_images(tenant).await?;
    let stacks: Vec<Stack> = images.iter().map(stack).collect();
    let bases = bases(&stacks, &stacks);
    let entry = |(image, base)| ImageEntry { base, ..ImageEntry::from(image) };
    let images: Vec<ImageEntry> = images.into_iter().zip(bases).map(entry).collect();
    let (images, next_cursor) = PageQuery::read(exchange)?.take(images, |image| image.name.clone())?;
    Ok(json_response(StatusCode::OK, &ImageList { images, next_cursor }))
}

pub(crate) async fn pulls(exchange: &mut Exchange) -> Answered {
    let pulls = exchange.gateway.control.pulls(exchange.context.tenant());
    let (pulls, next_cursor) = PageQuery::read(exchange)?.take(pulls, |pull| pull.image.clone())?;
    Ok(json_response(StatusCode::OK, &PullList { pulls, next_cursor }))
}

/// The image in the path, which may have slashes.
fn named(exchange: &Exchange) -> Result<ImageName, Refusal> {
    let name = exchange.path.decoded.strip_prefix(PREFIX).unwrap_or_default();
    Ok(name.trim_end_matches('/').parse()?)
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let tenant = exchange.context.tenant();
    let image = exchange.gateway.control.image(tenant, &named(exchange)?).await?;
    Ok(json_response(StatusCode::OK, &details(&exchange.gateway, tenant, image).await))
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    let (control, tenant, of) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone(), name.clone());
    let removal = Box::pin(async move { Ok(control.remove_image(&tenant, &of).await?) });
    let removed = audit::change_with(exchange, "image.remove", name.to_string(), removal).await?;
    Ok(json_response(StatusCode::OK, &RemovedImage { name, deleted: true, freed_bytes: removed.freed_bytes }))
}

pub(crate) async fn pull(exchange: &mut Exchange) -> Answered {
    let (PullImage { image }, _) = exchange.json().await?;
    let name = image.ok_or_else(|| Refusal::bad_request("image is missing: the reference of the image to pull"))?;
    let (client, progress) = CreateClient::new();
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let path = exchange.path.raw.clone();
    let pulled = async move {
        let (shared, caller, of) = (Arc::clone(&gateway), context.clone(), name.clone());
        // To its end, so that a client that leaves is in the audit log, too.
        let audited = async move {
            let pulled = shared.control.pull_image(caller.tenant(), &of, Some(&client)).await.map_err(Refusal::from);
            audit::record_result(&shared, &caller, "image.pull", of.as_str(), pulled).await
        };
        let image = gateway.run_to_end(audited).await.map_err(|refusal| refusal.of_request(&path))?;
        Ok::<_, Refusal>(json!(details(&gateway, context.tenant(), image).await))
    };
    if wants_events(&exchange.parts) {
        return Ok(stream(&exchange.gateway, progress, async { Ok(("pulled", pulled.await?)) }));
    }
    let body = pulled.await;
    drop(progress);
    Ok(json_response(StatusCode::OK, &body?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stacks(of: &[(&str, &[&str])]) -> Vec<Stack> {
        of.iter().map(|(name, layers)| ((*name).to_owned(), layers.iter().map(|&one| one.to_owned()).collect())).collect()
    }

    #[test]
    fn a_base_is_the_image_with_the_most_of_the_lower_layers() {
        let all = stacks(&[
            ("tools", &["a", "b", "c"]),
            ("base", &["a"]),
            ("again", &["a"]),
            ("code", &["a", "b"]),
            ("other", &["x", "b"]),
            ("same", &["a", "b", "c"]),
            ("alone", &["y", "b", "z"]),
        ]);
        let named = |name: Option<&str>| name.map(str::to_owned);
        let expected = [Some("code"), None, None, Some("again"), None, Some("code"), None].map(named);
        assert_eq!(bases(&all, &all), expected);
        assert_eq!(bases(&stacks(&[("none", &[])]), &all), [None]);
    }
}
