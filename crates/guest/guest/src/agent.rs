//! The way of the sandbox's agent to the server, if the sandbox has a token: a file with the token, and a port.
//!
//! ```text
//!  program ──► 127.0.0.1:8077 ──► the guest ◄── the server's waiting request
//! ```
//!
//! A sandbox can't reach the server. So the server keeps a request waiting here; a connection from inside answers it, and the
//! request's connection becomes the program's.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;
use std::sync::OnceLock;

use arenite_guest_runtime::Runtime;
use arenite_model::protocol::{
    AGENT_KEY_ENV, AGENT_KEY_FILE, AGENT_KEY_FILE_ENV, AGENT_SERVER_PORT, SERVER_CALLS_PATH, SERVER_CALLS_UPGRADE,
};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, UPGRADE};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;

use crate::SharedGuest;

/// The agent's port.
#[derive(Debug, Default)]
pub struct AgentPort {
    listener: OnceLock<TcpListener>,
}

impl AgentPort {
    /// Writes the token's file and opens the port, if the configuration has a token.
    pub(crate) async fn begin(&self, runtime: &Runtime) {
        let config = runtime.config();
        let has_file = config.env.get(AGENT_KEY_FILE_ENV).is_some_and(|file| file == AGENT_KEY_FILE);
        let Some(token) = config.env.get(AGENT_KEY_ENV).filter(|_| has_file) else { return };
        if let Err(error) = write(Path::new(AGENT_KEY_FILE), token, (runtime.user.uid, runtime.user.gid)) {
            tracing::error!(%error, "the file with the sandbox's token could not be written");
        }
        if self.listener.get().is_some() {
            // Restored, with its port open.
            return;
        }
        match TcpListener::bind((Ipv4Addr::LOCALHOST, AGENT_SERVER_PORT)).await {
            // The configuration is applied once.
            Ok(listener) => drop(self.listener.set(listener)),
            Err(error) => tracing::error!(%error, "the port for the sandbox's agent could not be opened"),
        }
    }
}

/// Writes a file that only its owner can read. A link from an earlier life of the disk is replaced and not followed.
fn write(path: &Path, token: &str, owner: (u32, u32)) -> io::Result<()> {
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    fchown(&file, Some(owner.0), Some(owner.1))?;
    file.write_all(token.as_bytes())
}

pub(crate) fn router(guest: &SharedGuest) -> Router {
    Router::new().route(SERVER_CALLS_PATH, get(wait)).with_state(guest.clone())
}

/// Answers when a process inside connects.
async fn wait(State(guest): State<SharedGuest>, request: Request) -> Response {
    if !is_upgrade_to(&request, SERVER_CALLS_UPGRADE) {
        return StatusCode::UPGRADE_REQUIRED.into_response();
    }
    let Some(listener) = guest.agent.listener.get() else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let local = match listener.accept().await {
        Ok((local, _)) => local,
        Err(error) => return (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
    };
    // Small answers must not wait for acknowledgements.
    let _ = local.set_nodelay(true);
    pass_to_server(request, local, SERVER_CALLS_UPGRADE)
}

pub(crate) fn is_upgrade_to(request: &Request, name: &str) -> bool {
    request.headers().get(UPGRADE).is_some_and(|wanted| wanted == name)
}

/// Gives the connection of the server's request to a process inside.
pub(crate) fn pass_to_server<L>(mut request: Request, mut local: L, name: &'static str) -> Response
where
    L: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let upgrade = hyper::upgrade::on(&mut request);
    tokio::spawn(async move {
        let Ok(server) = upgrade.await else { return };
        // However it ends, both sides see it.
        drop(tokio::io::copy_bidirectional(&mut TokioIo::new(server), &mut local).await);
    });
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("upgrade"));
    answer.headers_mut().insert(UPGRADE, HeaderValue::from_static(name));
    answer
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_tokens_file_is_private_and_replaces_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("run/api-key"), dir.path().join("other"));
        let owner = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&other, "untouched").unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        for token in ["first", "second"] {
            write(&path, token, owner).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), token);
            assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
        assert_eq!(fs::read_to_string(&other).unwrap(), "untouched");
    }
}
