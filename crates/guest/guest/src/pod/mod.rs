//! The guest of a pod: starts without a server, and waits until one assigns its sandbox over TLS.
//!
//! It runs with any rights: as root, or as the only user that the pod has. Commands run as the same user then.

mod freeze;
mod listener;
mod usage;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use arenite_channel::{Acceptor, Identity, PublicKey};
use arenite_isolation::container::begin_alone;
use arenite_isolation::counters::Counters;
use arenite_model::protocol::{
    Assignment, GuestConfig, INSIDE_PORT, POD_FREEZE_PATH, POD_ID_ENV, POD_KEYS_ENV, POD_PATH, POD_PORT, POD_PROGRAM,
    POD_THAW_PATH, POD_TOKEN_FILE, POD_USAGE_PATH, PodFacts,
};
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::signal::unix::{SignalKind, signal};

use crate::container::{self, Environment};
use crate::{log, server};
use freeze::Frozen;
use listener::PodListener;

/// The argument after `guest` that starts [`main`].
pub(crate) const ARGUMENT: &str = "pod";
/// The argument after `guest` that starts [`install`].
pub(crate) const INSTALL_ARGUMENT: &str = "install";
/// Maximum number of open descriptors of a process.
const OPEN_FILES: u64 = 65_536;
/// Maximum size of a token, in bytes.
const MAX_TOKEN: u64 = 64 << 10;

/// What the guest of a pod needs beyond a sandbox's.
#[derive(Debug, Clone)]
pub struct Pod {
    acceptor: Acceptor,
    env: Environment,
    workdir: Option<String>,
    frozen: Arc<Mutex<Option<Frozen>>>,
}

/// Runs the guest of a pod until it is killed.
pub(crate) fn main() -> io::Result<()> {
    let mut env = container::environment();
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    let keys =
        env.remove(POD_KEYS_ENV).ok_or_else(|| invalid(format!("{POD_KEYS_ENV} is not set: the server sets it in pods")))?;
    let keys = keys.split(',').map(str::parse).collect::<Result<Vec<PublicKey>, _>>().map_err(|e| invalid(e.to_string()))?;
    let sandbox_id = env.remove(POD_ID_ENV).unwrap_or_default();
    let identity = Identity::generate().map_err(io::Error::other)?;
    let acceptor = Acceptor::new(&identity, keys)?;
    env.retain(|name, _| is_of_image(name));
    let user = container::user(&mut env, container::ids());
    let workdir = container::directory();
    let config = GuestConfig {
        sandbox_name: sandbox_id.clone(),
        sandbox_id,
        env: env.clone(),
        workdir: workdir.clone(),
        user,
        assignment: Assignment::Pooled,
        ..GuestConfig::default()
    };
    let given = begin_alone(OPEN_FILES)?;
    log::start();
    server::run(server::Start {
        config,
        host_listener: None,
        host_connections: None,
        host_proof: None,
        pod: Some(Pod { acceptor, env, workdir, frozen: Arc::default() }),
        spawner: Some(given.spawner),
        work_entrances: given.work_entrances,
        inside: Some(([127, 0, 0, 1], INSIDE_PORT).into()),
        container: None,
        counters: Counters::default(),
    })
}

/// Whether a variable comes from the image or from the operator's pod template. The others are the container runtime's.
fn is_of_image(name: &str) -> bool {
    !matches!(name, "HOSTNAME" | "TERM") && !name.starts_with("KUBERNETES_")
}

/// Copies this program into a directory that the pod's main container mounts.
pub(crate) fn install(dir: Option<OsString>) -> io::Result<()> {
    let Some(dir) = dir.map(PathBuf::from) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "name the directory: arenite guest install DIR"));
    };
    install_into(Path::new("/proc/self/exe"), &dir)
}

fn install_into(program: &Path, dir: &Path) -> io::Result<()> {
    // Another name until it is whole, since an init container may run again.
    let temporary = dir.join(format!("{POD_PROGRAM}.new"));
    fs::copy(program, &temporary)?;
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755))?;
    fs::rename(temporary, dir.join(POD_PROGRAM))
}

impl Pod {
    /// Accepts the server's connections.
    pub(crate) async fn listen(self) -> io::Result<PodListener> {
        // Kubernetes asks with it first. Nothing in a sandbox is saved by a slower end.
        let mut terminate = signal(SignalKind::terminate())?;
        tokio::spawn(async move {
            terminate.recv().await;
            std::process::exit(0);
        });
        Ok(PodListener::new(container::listen(POD_PORT).await?, self.acceptor))
    }

    /// Routes for the engine only.
    pub(crate) fn router(&self) -> Router {
        Router::new()
            .route(POD_PATH, get(facts))
            .route(POD_USAGE_PATH, get(async || Json(usage::of_pod())))
            .route(POD_FREEZE_PATH, post(stop_all))
            .route(POD_THAW_PATH, post(continue_all))
            .with_state(self.clone())
    }

    fn frozen(&self) -> std::sync::MutexGuard<'_, Option<Frozen>> {
        self.frozen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn facts(State(pod): State<Pod>) -> Json<PodFacts> {
    Json(PodFacts {
        token: token().unwrap_or_default(),
        env: pod.env.clone(),
        workdir: pod.workdir.clone(),
        is_frozen: pod.frozen().is_some(),
    })
}

/// The token that Kubernetes renews in its file.
fn token() -> io::Result<String> {
    let file = fs::File::open(POD_TOKEN_FILE)?;
    io::read_to_string(io::Read::take(file, MAX_TOKEN)).map(|token| token.trim().to_owned())
}

async fn stop_all(State(pod): State<Pod>) -> (StatusCode, Json<()>) {
    let stopped = tokio::task::spawn_blocking(move || {
        let mut frozen = pod.frozen();
        if frozen.is_none() {
            *frozen = Some(freeze::stop_all()?);
        }
        io::Result::Ok(())
    });
    answer(stopped.await.unwrap_or_else(|error| Err(io::Error::other(error))))
}

async fn continue_all(State(pod): State<Pod>) -> (StatusCode, Json<()>) {
    if let Some(frozen) = pod.frozen().take() {
        frozen.continue_all();
    }
    answer(Ok(()))
}

fn answer(done: io::Result<()>) -> (StatusCode, Json<()>) {
    let status = match done {
        Ok(()) => StatusCode::OK,
        Err(error) => {
            tracing::error!(%error, "the sandbox's processes could not be stopped");
            StatusCode::INTERNAL_SERVER_ERROR
        }
    };
    (status, Json(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_is_installed_whole_and_again() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("given");
        for text in ["one", "another"] {
            fs::write(&program, text).unwrap();
            install_into(&program, dir.path()).unwrap();
            let installed = dir.path().join(POD_PROGRAM);
            assert_eq!(fs::read_to_string(&installed).unwrap(), text);
            assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
        }
        assert!(install(None).is_err());
    }

    #[test]
    fn variables_of_the_cluster_are_not_the_images() {
        assert!(is_of_image("PATH") && is_of_image("PYTHON_VERSION"));
        assert!(!is_of_image("KUBERNETES_SERVICE_HOST") && !is_of_image("HOSTNAME"));
    }
}
