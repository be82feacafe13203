//! A server that runs beside the tests, on the default ports. No test may reach or disturb it.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::command::{self, program, target_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::server::{self, STOP_LIMIT};
use crate::{host, image};

/// The default port of the server.
const PORT: u16 = 8080;
const AGENTFLOW_PORT: u16 = 18890;
/// The sandbox that it has from the start.
const FIRST: &str = "decoy-first";
const SECOND: &str = "decoy-second";

pub(crate) struct Decoy {
    arenite: PathBuf,
    server: Child,
}

impl Decoy {
    /// Starts it in a separate data directory. None if another server is already on a default port.
    pub(crate) fn start(arenite: &Path, images: &Path, data_dir: &Path) -> Result<Option<Self>, Failure> {
        if let Some(port) = [PORT, AGENTFLOW_PORT].into_iter().find(|port| TcpListener::bind(("127.0.0.1", *port)).is_err()) {
            eprintln!("port {port} is in use, so no decoy is started there; the tests leave the program on that port alone");
            return Ok(None);
        }
        image::copy(arenite, &["base"], images, data_dir)?;
        let log = target_dir().join("decoy.log");
        let file = File::create(&log).attempt(|| format!("could not create {}", log.display()))?;
        let copy = file.try_clone().attempt(|| "could not share a file".into())?;
        let mut serve = program(arenite);
        serve.arg("serve").arg("--data-dir").arg(data_dir).stdin(Stdio::null()).stdout(file).stderr(copy);
        if let Some((_, ca)) = host::extra_ca() {
            serve.arg("--extra-ca").arg(ca);
        }
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("ARENITE_")) {
            serve.env_remove(name);
        }
        let server = serve.spawn().attempt(|| format!("could not start {}", arenite.display()))?;
        let mut decoy = Self { arenite: arenite.to_owned(), server };
        server::wait_ready(&mut decoy.server, PORT, &log)?;
        for stale in decoy.names("/api/v2/sandboxes", "sandboxes", "name")? {
            decoy.cli(&["rm", &stale])?;
        }
        decoy.cli(&["create", FIRST])?;
        Ok(Some(decoy))
    }

    /// Fails if a test left something in it, or if it can't create sandboxes any more. Ends it.
    pub(crate) fn check(mut self) -> Outcome {
        let checked = self.untouched();
        self.end();
        checked.map_err(|failure| Failure::new(format!("the tests disturbed the server on the default ports: {failure}")))
    }

    fn untouched(&self) -> Outcome {
        self.cli(&["create", SECOND])?;
        self.cli(&["exec", SECOND, "--", "true"])?;
        let mut sandboxes = self.names("/api/v2/sandboxes", "sandboxes", "name")?;
        sandboxes.sort_unstable();
        if sandboxes != [FIRST, SECOND] {
            return Err(Failure::new(format!("it should have {FIRST} and {SECOND}, and has {}", sandboxes.join(", "))));
        }
        let workers = self.names("/api/v2/workers", "workers", "worker_id")?;
        if !workers.is_empty() {
            return Err(Failure::new(format!("it has workers: {}", workers.join(", "))));
        }
        for name in sandboxes {
            self.cli(&["rm", &name])?;
        }
        Ok(())
    }

    /// One field of each entry of a list in its answer.
    fn names(&self, path: &str, list: &str, field: &str) -> Result<Vec<String>, Failure> {
        let answer = server::get(PORT, path).filter(|(status, _)| *status == 200);
        let (_, body) = answer.ok_or_else(|| Failure::new(format!("it didn't answer {path}")))?;
        let body: Value = serde_json::from_str(&body).attempt(|| format!("could not read its answer to {path}"))?;
        let entries = body[list].as_array().ok_or_else(|| Failure::new(format!("its answer to {path} has no {list}")))?;
        Ok(entries.iter().filter_map(|entry| entry[field].as_str().map(str::to_owned)).collect())
    }

    fn cli(&self, words: &[&str]) -> Result<String, Failure> {
        command::output(program(&self.arenite).args(words).env_remove("ARENITE_SERVER"))
    }

    fn end(&mut self) {
        server::terminate(&mut self.server, STOP_LIMIT);
    }
}

impl Drop for Decoy {
    fn drop(&mut self) {
        self.end();
    }
}
