//! `POST /api/v2/images/build`: builds an image from a tar of its context.
//!
//! With `Accept: text/event-stream`, the answer is a stream of events:
//!
//! | event | data |
//! | --- | --- |
//! | `pull` | a `PullProgress` of an image that a FROM names |
//! | `step` | `{step, of, text}`: a step starts |
//! | `log` | `{step, line}`: a line of its output; `skipped` lines before it were left out, as the client was too slow |
//! | `warning` | `{line, text}`: something in the Dockerfile that is probably a mistake |
//! | `step_done` | `{step, cached, seconds, bytes}` |
//! | `built` | the image; the stream ends |
//! | `failed` | the error, as other answers have it; the stream ends |
//!
//! A client that closes the connection cancels its build.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use arenite_control::images::{BuildContext, BuildImage, BuildOptions, BuildPermit, BuildUpdate};
use arenite_control::{Control, ResourcesOverlay};
use arenite_model::{ErrorCode, ImageName, NetworkMode};
use axum::body::Body;
use bytes::{Buf, Bytes};
use http::header::CONTENT_LENGTH;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::exchange::{Answered, Exchange};
use crate::gateway::Gateway;
use crate::images::{details, wants_events};
use crate::path::query_pairs;
use crate::query::Query;
use crate::refusal::{Refusal, json_response};
use crate::{audit, follow, proxy};

/// The parameters of a build.
pub(crate) const PARAMETERS: &[Query] = &[
    ("image", "string", "The name of the image, such as `team/app:1`; required"),
    ("dockerfile", "string", "The path of the Dockerfile in the context; without it, `Imagefile` or `Dockerfile`"),
    ("target", "string", "The stage to build, by its name or its number"),
    ("build_arg", "string[]", "`NAME=VALUE` for an ARG"),
    ("label", "string[]", "`NAME=VALUE`"),
    ("network", "open|none", "The network of RUN steps; by default that of new sandboxes"),
    ("memory_bytes", "integer", "The memory of a step; by default that of a new sandbox, as for the other limits"),
    ("cpu_millis", "integer", "The CPU of a step, in thousandths of a core"),
    ("pids", "integer", "The processes of a step"),
    ("disk_bytes", "integer", "The size of all layers that the build makes"),
    ("no_cache", "boolean", "Runs all steps, also those with a result of an earlier build"),
];
/// What the body is, for documents: clients may say more, such as `application/x-tar`.
pub(crate) const CONTENT: &[&str] = &["application/octet-stream"];

/// Maximum size of an upload, in bytes. Of its files without compression, it is the same.
const MAX_UPLOAD_BYTES: u64 = 4 << 30;
/// The longest upload.
const UPLOAD_TIME: Duration = Duration::from_secs(15 * 60);
/// Pieces of an upload that wait for the disk.
const PIECES: usize = 8;
/// Updates that are sent at once.
const BATCH: usize = 64;

fn pair(text: &str, what: &str) -> Result<(String, String), Refusal> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = pair.ok_or_else(|| Refusal::bad_request(format!("{what} {text:?} is not NAME=VALUE")))?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Reads the query, with checked names and kinds.
fn wanted(query: Option<&str>) -> Result<BuildImage, Refusal> {
    let (mut image, mut dockerfile, mut network, mut use_cache) = (None, None, None, true);
    let (mut options, mut resources) = (BuildOptions::default(), ResourcesOverlay::default());
    let number =
        |name: &str, value: &str| value.parse::<u64>().map_err(|_| Refusal::bad_request(format!("{name} is not a number")));
    let small = |name: &str, value: &str| {
        number(name, value)
            .and_then(|value| u32::try_from(value).map_err(|_| Refusal::bad_request(format!("{name} is more than {}", u32::MAX))))
    };
    for (name, value) in query_pairs(query.unwrap_or_default()) {
        match name.as_str() {
            "image" => image = Some(value.parse::<ImageName>()?),
            "dockerfile" => dockerfile = Some(value.into()),
            "target" => options.target = Some(value),
            "build_arg" => options.build_args.extend([pair(&value, "build_arg")?]),
            "label" => options.labels.extend([pair(&value, "label")?]),
            "network" => network = Some(if value == "none" { NetworkMode::None } else { NetworkMode::Open }),
            "memory_bytes" => resources.memory_bytes = Some(number(&name, &value)?),
            "cpu_millis" => resources.cpu_millis = Some(small(&name, &value)?),
            "pids" => resources.pids = Some(small(&name, &value)?),
            "disk_bytes" => resources.disk_bytes = Some(number(&name, &value)?),
            "no_cache" => use_cache = value != "true",
            _ => {}
        }
    }
    let name = image.ok_or_else(|| Refusal::bad_request("image is missing: the name of the image to build"))?;
    Ok(BuildImage { name, dockerfile, options, network, resources, use_cache })
}

pub(crate) async fn build(exchange: &mut Exchange) -> Answered {
    let build = wanted(exchange.parts.uri.query())?;
    let length = exchange.parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > MAX_UPLOAD_BYTES) {
        return Err(too_large());
    }
    let body = exchange.take_body();
    let place = exchange.gateway.control.begin_build(exchange.context.tenant(), &build).await?;
    let (place, context) = receive(&exchange.gateway, body, place).await?;
    let (updates, seen) = Control::build_updates();
    let (gateway, caller, path) = (Arc::clone(&exchange.gateway), exchange.context.clone(), exchange.path.raw.clone());
    let tenant = caller.tenant().clone();
    let building = async move {
        let (shared, name) = (Arc::clone(&gateway), build.name.clone());
        // To its end, so that a client that leaves is in the audit log, too, and nothing of its build stays.
        let audited = async move {
            let built = shared.control.build_image(place, build, context, updates).await.map_err(Refusal::from);
            audit::record_result(&shared, &caller, "image.build", name.as_str(), built).await
        };
        let image = gateway.run_to_end(audited).await.map_err(|refusal| refusal.of_request(&path))?;
        Ok::<_, Refusal>(json!(details(&gateway, &tenant, image).await))
    };
    if wants_events(&exchange.parts) {
        return Ok(stream(&exchange.gateway, seen, building));
    }
    let body = building.await;
    drop(seen);
    Ok(json_response(StatusCode::OK, &body?))
}

/// The updates of a build until it ends, and its result as the last event.
fn stream(
    gateway: &Gateway,
    mut updates: mpsc::Receiver<BuildUpdate>,
    building: impl Future<Output = Result<Value, Refusal>> + Send + 'static,
) -> Response<Body> {
    follow::stream(gateway, |sender| async move {
        let mut beat = follow::beat();
        let mut building = Box::pin(building);
        let mut batch = Vec::with_capacity(BATCH);
        let text = |batch: &mut Vec<BuildUpdate>| -> String {
            batch.drain(..).map(|update| follow::event(update.name(), &update)).collect()
        };
        loop {
            let piece = tokio::select! {
                biased;
                // Zero: the build has ended, and its result is next.
                count = updates.recv_many(&mut batch, BATCH), if !updates.is_closed() || !updates.is_empty() => {
                    if count == 0 {
                        continue;
                    }
                    text(&mut batch)
                }
                built = &mut building => {
                    while let Ok(update) = updates.try_recv() {
                        batch.push(update);
                    }
                    let last = match built {
                        Ok(image) => follow::event("built", &image),
                        Err(refusal) => follow::event("failed", &refusal.problem()),
                    };
                    let _ = sender.send(text(&mut batch) + &last).await;
                    return;
                }
                _ = beat.tick() => ": \n\n".to_owned(),
            };
            if sender.send(piece).await.is_err() {
                return;
            }
        }
    })
}

fn too_large() -> Refusal {
    Refusal::new(ErrorCode::TooLarge, format!("the context is larger than {} MiB", MAX_UPLOAD_BYTES >> 20))
        .hint("leave out what the Dockerfile does not copy")
}

fn broken() -> Refusal {
    Refusal::bad_request("the context broke off before its end")
}

/// Unpacks a body while it arrives.
async fn receive(gateway: &Gateway, mut body: Body, place: BuildPermit) -> Result<(BuildPermit, BuildContext), Refusal> {
    let (sender, pieces) = mpsc::channel(PIECES);
    let unpacking = tokio::task::spawn_blocking(move || {
        let context = place.unpack(Pieces { pieces, current: Bytes::new(), is_done: false });
        context.map(|context| (place, context))
    });
    let deadline = Instant::now() + UPLOAD_TIME;
    let mut received = 0u64;
    loop {
        let until = deadline.min(Instant::now() + gateway.config.next_piece);
        let next = tokio::time::timeout_at(until, body.frame()).await.map_err(|_| proxy::late_body())?;
        let Some(frame) = next else { break };
        let Ok(piece) = frame.map_err(|_| broken())?.into_data() else { continue };
        received += piece.len() as u64;
        if received > MAX_UPLOAD_BYTES {
            return Err(too_large());
        }
        // It is not read any further: its result says why.
        if !piece.is_empty() && sender.send(piece).await.is_err() {
            break;
        }
    }
    // Without this mark, the tar has broken off.
    let _ = sender.send(Bytes::new()).await;
    drop(sender);
    match unpacking.await {
        Ok(unpacked) => Ok(unpacked?),
        Err(error) => Err(Refusal::new(ErrorCode::Internal, format!("the context could not be unpacked: {error}"))),
    }
}

/// A body for a thread that blocks.
struct Pieces {
    pieces: mpsc::Receiver<Bytes>,
    current: Bytes,
    is_done: bool,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            if self.is_done {
                return Ok(0);
            }
            match self.pieces.blocking_recv() {
                Some(piece) if piece.is_empty() => self.is_done = true,
                Some(piece) => self.current = piece,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it broke off before its end")),
            }
        }
        let length = buffer.len().min(self.current.len());
        self.current.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;

    #[test]
    fn a_query_says_what_to_build() {
        let build = wanted(Some("image=team/app:1&build_arg=A=1&build_arg=B=x=y&label=l=&network=none&pids=70&no_cache=true"));
        let build = build.unwrap();
        assert_eq!((build.name.as_str(), build.use_cache, build.network), ("team/app:1", false, Some(NetworkMode::None)));
        assert_eq!((build.options.build_args["A"].as_str(), build.options.build_args["B"].as_str()), ("1", "x=y"));
        assert_eq!(build.resources.pids, Some(70));
        for bad in ["", "image=", "image=A%20b", "image=x&build_arg=A", "image=x&label==y", "image=x&pids=5000000000"] {
            assert_eq!(wanted(Some(bad)).unwrap_err().status, 400, "{bad}");
        }
    }

    #[test]
    fn a_body_without_its_end_has_broken_off() {
        let (sender, pieces) = mpsc::channel(PIECES);
        let mut read = Pieces { pieces, current: Bytes::new(), is_done: false };
        sender.try_send(Bytes::from_static(b"abc")).unwrap();
        let mut two = [0; 2];
        assert_eq!((read.read(&mut two).unwrap(), &two), (2, b"ab"));
        sender.try_send(Bytes::new()).unwrap();
        let mut rest = Vec::new();
        read.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"c");
        let (sender, pieces) = mpsc::channel(PIECES);
        let mut read = Pieces { pieces, current: Bytes::new(), is_done: false };
        sender.try_send(Bytes::from_static(b"abc")).unwrap();
        drop(sender);
        assert!(read.read_to_end(&mut rest).is_err());
    }

    #[tokio::test]
    async fn a_server_that_can_not_build_says_so() {
        let server = Harness::new().await;
        for (query, status) in [("", 400), ("?image=x", 501), ("?image=x&wrong=1", 400), ("?image=x&network=host", 400)] {
            let answer = server.call("POST", &format!("/api/v2/images/build{query}"), Value::Null).await;
            assert_eq!(answer.status, status, "{query}: {}", answer.text);
        }
    }
}
