//! Docker's API over its socket: only the calls that a VM needs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::net::UnixStream;

use crate::backends::vm::osworld::http::{Reply, Request, exchange};
use crate::error::{SynthesisError, machine};

/// Largest answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;
const MOMENT: Duration = Duration::from_secs(60);
/// Docker unpacks and mounts while it creates and starts a container.
const MAKING: Duration = Duration::from_secs(180);
/// Lines of a container's log in an error.
const LOG_LINES: usize = 5;

/// The socket on which Docker listens.
#[derive(Debug, Clone)]
pub(super) struct Socket {
    path: PathBuf,
}

impl Socket {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Finds it as Docker's own client does.
    pub(super) fn of_environment() -> Self {
        let named = std::env::var("DOCKER_HOST").ok().and_then(|host| host.strip_prefix("unix://").map(PathBuf::from));
        Self::new(named.unwrap_or_else(|| PathBuf::from("/var/run/docker.sock")))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    async fn ask(
        &self,
        method: &'static str,
        path: &str,
        body: Option<&Value>,
        timeout: Duration,
    ) -> Result<Reply, SynthesisError> {
        let stream = UnixStream::connect(&self.path).await;
        let stream =
            stream.map_err(|error| SynthesisError::io(format!("Docker can't be reached at {}", self.path.display()), error))?;
        let content_type = body.map(|_| "application/json");
        let body = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = Request { method, path, content_type, body, timeout, most: MAX_ANSWER };
        exchange(stream, "docker", request).await.map_err(|why| why.within("Docker"))
    }

    /// Creates a container, and returns its id.
    pub(super) async fn create(&self, name: &str, spec: &Value) -> Result<String, SynthesisError> {
        let path = format!("/containers/create?name={}", utf8_percent_encode(name, NON_ALPHANUMERIC));
        let reply = self.ask("POST", &path, Some(spec), MAKING).await?;
        if reply.status == 404 {
            let image = spec["Image"].as_str().unwrap_or_default();
            return Err(machine(format!("image {image:?} is not there; run: docker pull {image}")));
        }
        let made = json(&good("could not make a container", reply)?)?;
        let id = made["Id"].as_str().filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric()));
        id.map(str::to_owned).ok_or_else(|| machine("Docker made a container without an id"))
    }

    pub(super) async fn start(&self, id: &str) -> Result<(), SynthesisError> {
        let reply = self.ask("POST", &format!("/containers/{id}/start"), None, MAKING).await?;
        if reply.status == 304 { Ok(()) } else { good("could not start the container", reply).map(drop) }
    }

    pub(super) async fn inspect(&self, id: &str) -> Result<Value, SynthesisError> {
        json(&good("does not know the container", self.ask("GET", &format!("/containers/{id}/json"), None, MOMENT).await?)?)
    }

    /// Stops and removes it. Succeeds if it does not exist.
    pub(super) async fn remove(&self, id: &str) -> Result<(), SynthesisError> {
        let reply = self.ask("DELETE", &format!("/containers/{id}?force=true&v=true"), None, MOMENT).await?;
        if reply.status == 404 { Ok(()) } else { good("could not remove the container", reply).map(drop) }
    }

    /// Ids of all containers with the label.
    pub(super) async fn labelled(&self, label: &str) -> Result<Vec<String>, SynthesisError> {
        let filters = json!({ "label": [label] }).to_string();
        let path = format!("/containers/json?all=true&filters={}", utf8_percent_encode(&filters, NON_ALPHANUMERIC));
        let listed = json(&good("could not list containers", self.ask("GET", &path, None, MOMENT).await?)?)?;
        let ids = listed.as_array().into_iter().flatten().filter_map(|one| one["Id"].as_str().map(str::to_owned));
        Ok(ids.collect())
    }

    /// The last lines of its log, joined to one line.
    pub(super) async fn log(&self, id: &str) -> String {
        let path = format!("/containers/{id}/logs?stdout=true&stderr=true&tail={LOG_LINES}");
        let Ok(reply) = self.ask("GET", &path, None, MOMENT).await else { return String::new() };
        let text = String::from_utf8_lossy(&reply.body);
        // Docker separates its streams with binary headers.
        let lines = text.lines().map(|line| line.chars().filter(|c| !c.is_control() && *c != '\u{fffd}').collect::<String>());
        lines.filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().join(" / ").chars().take(1000).collect()
    }
}

fn good(what: &str, reply: Reply) -> Result<Vec<u8>, SynthesisError> {
    if (200..300).contains(&reply.status) {
        return Ok(reply.body);
    }
    let told = serde_json::from_slice::<Value>(&reply.body).unwrap_or_default();
    let said = told["message"].as_str().unwrap_or("it does not say why");
    Err(machine(format!("Docker {what} (status {}): {said}", reply.status)))
}

fn json(body: &[u8]) -> Result<Value, SynthesisError> {
    serde_json::from_slice(body).map_err(|error| machine(format!("Docker's answer is no JSON: {error}")))
}
