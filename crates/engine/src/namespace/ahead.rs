//! Complete sandboxes created in advance, and assigned on request.
//!
//! Beyond a slot, which waits for its spec, the guest of such a sandbox runs, and a Jupyter kernel in it if its image has one:
//! that takes half a second, which no caller should wait for. What depends on the request comes last: name, host name,
//! environment, directory and main command.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use arenite_isolation::uts;
use arenite_model::protocol::{ACTIVITY_PATH, Activity, BECOME_PATH, Become, PREPARE_PATH};
use arenite_model::{SandboxId, SandboxName, SandboxSpec};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::at;
use super::engine::{NamespaceEngine, blocking, guest_config};
use crate::{Created, Engine, EngineError, Row, request_guest};

/// Time for a guest to start its runtimes.
const PREPARE_LIMIT: Duration = Duration::from_secs(90);
/// Time for a guest to apply the request's spec.
const BECOME_LIMIT: Duration = Duration::from_secs(5);
/// Time for a guest to report its activity.
const ACTIVITY_LIMIT: Duration = Duration::from_secs(2);
/// Maximum size of its answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;

impl NamespaceEngine {
    pub(super) async fn make_ahead(&self, spec: &SandboxSpec) -> Result<SandboxId, EngineError> {
        let id = self.reserve().await?;
        let name: SandboxName = id.as_str().parse().map_err(|error| at("name", io::Error::other(error)))?;
        self.start_sandbox(&id, &name, None, spec).await?;
        let socket = self.shared.host.records.socket(&id);
        if let Err(error) = ask(&socket, "POST", PREPARE_PATH, Vec::new(), PREPARE_LIMIT).await {
            self.destroy(&id).await?;
            return Err(at("starting runtimes", error));
        }
        Ok(id)
    }

    /// A client's work in a sandbox that continues without a call, as reported by its guest.
    pub(super) async fn client_work(&self, id: &SandboxId) -> Result<Option<String>, EngineError> {
        let socket = self.shared.host.records.socket(id);
        let answer = ask(&socket, "GET", ACTIVITY_PATH, Vec::new(), ACTIVITY_LIMIT).await.map_err(|e| at("activity", e))?;
        let activity: Activity = serde_json::from_str(&answer).map_err(|e| at("activity", e.into()))?;
        Ok(activity.running)
    }

    pub(super) async fn give_away(&self, row: &Row, spec: &SandboxSpec) -> Result<Created, EngineError> {
        let begun = Instant::now();
        let (shared, socket) = (self.shared.clone(), self.shared.host.records.socket(&row.id));
        let (Row { id, name, memo }, spec) = (row.clone(), spec.clone());
        let body = blocking(move || {
            let image = shared.image(&spec)?;
            let (pidfd, mut record) = {
                let state = shared.state();
                let live = state.live.get(&id).ok_or_else(|| EngineError::NotFound { id: id.clone() })?;
                (live.pidfd.clone(), live.record.clone())
            };
            if !image.layers.iter().all(|layer| record.layers.contains(&layer.dir)) {
                return Err(at("image", io::Error::other("it was rebuilt since this sandbox was prepared")));
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
            serde_json::to_vec(&Become { config, hostname }).map_err(|e| at("guest configuration", e.into()))
        })
        .await?;
        ask(&socket, "POST", BECOME_PATH, body, BECOME_LIMIT).await.map_err(|e| at("guest configuration", e))?;
        Ok(Created { isolation: self.shared.isolation(), stages: vec![("adopt", begun.elapsed())] })
    }
}

/// Calls a guest and returns the answer's body.
async fn ask(socket: &Path, method: &str, path: &str, body: Vec<u8>, limit: Duration) -> io::Result<String> {
    let asked = async {
        let answer = request_guest(UnixStream::connect(socket).await?, method, path, body).await?;
        Ok::<_, io::Error>((answer.is_ok(), answer.text(MAX_ANSWER).await?))
    };
    match timeout(limit, asked).await?? {
        (true, said) => Ok(said),
        (false, said) => Err(io::Error::other(format!("the guest said: {}", said.chars().take(500).collect::<String>()))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_guests_refusal_is_told() {
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
        let mut told = Vec::new();
        for _ in answers {
            told.push(ask(&path, "POST", "/internal/x", b"body".into(), Duration::from_secs(5)).await);
        }
        guest.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(told[0].is_ok());
        assert!(told[1].as_ref().unwrap_err().to_string().contains("no") && told[2].is_err());
    }
}
