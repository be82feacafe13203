//! The socket of the SSH agent, if the sandbox has an SSH key. The keys are at the server, which answers each connection.
//!
//! ```text
//!  ssh ──► $SSH_AUTH_SOCK ──► the guest ◄── the server's waiting request
//! ```

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::sync::OnceLock;

use arenite_guest_runtime::Runtime;
use arenite_model::protocol::{SSH_AGENT_ENV, SSH_AGENT_PATH, SSH_AGENT_SOCKET, SSH_AGENT_UPGRADE};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::net::UnixListener;

use crate::SharedGuest;
use crate::agent::{is_upgrade_to, pass_to_server};

/// The agent's socket.
#[derive(Debug, Default)]
pub struct SshAgentSocket {
    listener: OnceLock<UnixListener>,
}

impl SshAgentSocket {
    /// Opens the socket, if the configuration has one.
    pub(crate) fn begin(&self, runtime: &Runtime) {
        let config = runtime.config();
        let is_wanted = config.env.get(SSH_AGENT_ENV).is_some_and(|socket| socket == SSH_AGENT_SOCKET);
        // Restored processes have it open.
        if !is_wanted || self.listener.get().is_some() {
            return;
        }
        match listen(Path::new(SSH_AGENT_SOCKET), (runtime.user.uid, runtime.user.gid)) {
            // The configuration is applied once.
            Ok(listener) => drop(self.listener.set(listener)),
            Err(error) => tracing::error!(%error, "the socket of the SSH agent could not be opened"),
        }
    }
}

/// Opens a socket for its owner alone. One from an earlier life of the disk, or a link, is replaced and not followed.
fn listen(path: &Path, (uid, gid): (u32, u32)) -> io::Result<UnixListener> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o600))?;
    chown(path, Some(uid), Some(gid))?;
    Ok(listener)
}

pub(crate) fn router(guest: &SharedGuest) -> Router {
    Router::new().route(SSH_AGENT_PATH, get(wait)).with_state(guest.clone())
}

/// Answers when a process inside connects.
async fn wait(State(guest): State<SharedGuest>, request: Request) -> Response {
    if !is_upgrade_to(&request, SSH_AGENT_UPGRADE) {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    }
    let Some(listener) = guest.ssh_agent.listener.get() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    match listener.accept().await {
        Ok((local, _)) => pass_to_server(request, local, SSH_AGENT_UPGRADE),
        Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_socket_is_private_and_replaces_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("run/ssh-agent"), dir.path().join("other"));
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&other, "untouched").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        for _ in 0..2 {
            let listener = listen(&path, owner).unwrap();
            assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            let (connected, accepted) = tokio::join!(tokio::net::UnixStream::connect(&path), listener.accept());
            assert!(connected.is_ok() && accepted.is_ok());
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
    }
}
