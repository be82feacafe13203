//! Complete sandboxes created in advance, and assigned on request.
//!
//! Beyond a slot, which waits for its spec, the guest of such a sandbox runs, and a Jupyter kernel in it if its image has one:
//! that takes half a second, which no caller should wait for. What depends on the request comes last: name, host name,
//! environment, directory and main command.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use arenite_isolation::uts;
use arenite_model::protocol::{ACTIVITY_PATH, Activity, BECOME_PATH, Become, PREPARE_PATH};
use arenite_model::{SandboxId, SandboxName, SandboxSpec};

use super::at;
use super::engine::{NamespaceEngine, blocking, guest_config};
use crate::{Created, Engine, EngineError, Row};

/// Time for a guest to start its runtimes.
const PREPARE_LIMIT: Duration = Duration::from_secs(90);
/// Time for a guest to apply the request's spec.
const BECOME_LIMIT: Duration = Duration::from_secs(5);
/// Time for a guest to report its activity.
const ACTIVITY_LIMIT: Duration = Duration::from_secs(2);
/// Maximum size of its answer, in bytes.
const MAX_ANSWER: u64 = 64 << 10;

impl NamespaceEngine {
    pub(super) async fn make_ahead(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        let id = self.reserve().await?;
        let name: SandboxName = id.as_str().parse().map_err(|error| at("name", io::Error::other(error)))?;
        self.start_sandbox(&id, &name, None, spec).await?;
        let socket = self.shared.host.records.socket(&id);
        let prepared = blocking(move || tell(&socket, PREPARE_PATH, b"", PREPARE_LIMIT).map_err(|e| at("starting runtimes", e)));
        if let Err(error) = prepared.await {
            self.destroy(&id).await?;
            return Err(error);
        }
        Ok(id)
    }

    /// A client's work in a sandbox that continues without a call, as reported by its guest.
    pub(super) async fn client_work(&self, id: &SandboxId) -> Result<Option<String>, EngineError> {
        let socket = self.shared.host.records.socket(id);
        blocking(move || {
            let answer = ask(&socket, "GET", ACTIVITY_PATH, b"", ACTIVITY_LIMIT).map_err(|e| at("activity", e))?;
            let activity: Activity = serde_json::from_str(&answer).map_err(|e| at("activity", e.into()))?;
            Ok(activity.running)
        })
        .await
    }

    pub(super) async fn give_away(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let begun = Instant::now();
        let shared = self.shared.clone();
        let (Row { id, name, memo }, spec) = (row.clone(), spec.clone());
        blocking(move || {
            let image = shared.image(&spec)?;
            let (pidfd, mut record) = {
                let state = shared.state();
                let live = state.live.get(&id).ok_or_else(|| EngineError::NotFound { id: id.clone() })?;
                (live.pidfd.clone(), live.record.clone())
            };
            if !image.layers.iter().all(|layer| record.layers.contains(&layer.dir)) {
                return Err(at("image", io::Error::other("it was built anew since this sandbox was prepared")));
            }
            // Before any operation under that name.
            (record.pooled, record.name, record.memo) = (false, Some(name.clone()), Some(memo));
            record.revision += 1;
            shared.host.records.write(&record).map_err(|e| at("record", e))?;
            if let Some(live) = shared.state().live.get_mut(&id) {
                live.record = record;
            }
            let hostname = spec.hostname.clone().unwrap_or_else(|| name.to_string());
            uts::set_hostname(pidfd.as_fd(), &hostname).map_err(|e| at("host name", e))?;
            let config = guest_config(&id, &name, &spec, &image, shared.host.config.extra_ca.is_some());
            let body = serde_json::to_vec(&Become { config, hostname }).map_err(|e| at("guest configuration", e.into()))?;
            tell(&shared.host.records.socket(&id), BECOME_PATH, &body, BECOME_LIMIT).map_err(|e| at("guest configuration", e))?;
            Ok(Created { isolation: shared.isolation(), stages: vec![("adopt", begun.elapsed())] })
        })
        .await
    }
}

/// Sends a `POST` to a guest. Blocks.
fn tell(socket: &Path, path: &str, body: &[u8], limit: Duration) -> io::Result<()> {
    ask(socket, "POST", path, body, limit).map(drop)
}

/// Calls a guest and returns the answer's body. Blocks, for each read and write up to `limit`.
pub(super) fn ask(socket: &Path, method: &str, path: &str, body: &[u8], limit: Duration) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(limit))?;
    stream.set_write_timeout(Some(limit))?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: guest\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat())?;
    let mut answer = Vec::new();
    stream.take(MAX_ANSWER).read_to_end(&mut answer)?;
    let said = String::from_utf8_lossy(&answer);
    let said = said.split_once("\r\n\r\n").map_or(&*said, |(_, body)| body);
    if answer.starts_with(b"HTTP/1.1 200 ") {
        return Ok(said.to_owned());
    }
    Err(io::Error::other(format!("the guest said: {}", said.chars().take(500).collect::<String>())))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_guests_refusal_is_told() {
        let path = std::env::temp_dir().join(format!("arenite-tell-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let answers = ["HTTP/1.1 200 OK\r\n\r\n{}", "HTTP/1.1 424 Failed Dependency\r\n\r\n{\"message\":\"no\"}", ""];
        let guest = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 1024];
                let length = stream.read(&mut asked).unwrap();
                assert!(
                    asked[..length].starts_with(b"POST /internal/x HTTP/1.1\r\n") && asked[..length].ends_with(b"\r\n\r\nbody")
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let told = answers.map(|_| tell(&path, "/internal/x", b"body", Duration::from_secs(5)));
        guest.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(told[0].is_ok());
        assert!(told[1].as_ref().unwrap_err().to_string().contains("no") && told[2].is_err());
    }
}
