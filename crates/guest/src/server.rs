//! The guest's HTTP server and its start.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::Instant;

use arenite_isolation::{descriptors, spawner};
use arenite_model::protocol::{self, GuestConfig, Hello};
use axum::extract::State;
use axum::routing::get;
use axum::{Json, Router};

use crate::process::Processes;
use crate::users::User;
use crate::{Guest, SharedGuest, bash, files, sandbox, shell};

/// How the guest is started. In a sandbox all of it comes from inherited descriptors: see [`Start::from_environment`].
#[derive(Debug)]
pub struct Start {
    pub config: GuestConfig,
    /// The listener that the host dials.
    pub host_listener: Option<OwnedFd>,
    /// The process that starts commands; none: one is forked off.
    pub spawner: Option<OwnedFd>,
    /// Where processes inside the sandbox reach the same API.
    pub inside: Option<SocketAddr>,
}

impl Start {
    /// Takes the listener, the spawner's socket and the configuration from `ARENITE_{LISTEN,SPAWNER,CONFIG}_FD`.
    pub fn from_environment() -> io::Result<Self> {
        let config = match descriptors::inherited("ARENITE_CONFIG_FD")? {
            Some(fd) => serde_json::from_reader(std::io::BufReader::new(std::fs::File::from(fd)))?,
            None => GuestConfig::default(),
        };
        Ok(Self {
            config,
            host_listener: descriptors::inherited("ARENITE_LISTEN_FD")?,
            spawner: descriptors::inherited("ARENITE_SPAWNER_FD")?,
            inside: Some(([127, 0, 0, 1], protocol::INSIDE_PORT).into()),
        })
    }
}

/// Runs the guest until it is killed. Call it in a process with one thread.
pub fn run(start: Start) -> io::Result<()> {
    let spawner = match start.spawner {
        Some(socket) => socket,
        None => spawner::fork_off()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(16)
        .build()?;
    runtime.block_on(async move {
        let user = match &start.config.user {
            Some(name) => User::find(name),
            None => User::find("gem"),
        };
        let guest = Arc::new(Guest {
            processes: Processes::start(spawner)?,
            user: user.unwrap_or_else(User::root),
            root_user: User::root(),
            config: start.config,
        });
        let app = router().with_state(guest);
        let inside = match start.inside {
            Some(address) => Some(tokio::net::TcpListener::bind(address).await?),
            None => None,
        };
        let host = start.host_listener.map(|fd| {
            let listener = StdUnixListener::from(fd);
            listener.set_nonblocking(true)?;
            tokio::net::UnixListener::from_std(listener)
        });
        let host = host.transpose()?;
        tokio::try_join!(
            async {
                match host {
                    Some(listener) => axum::serve(listener, app.clone().merge(internal())).await,
                    None => Ok(()),
                }
            },
            async {
                match inside {
                    Some(listener) => axum::serve(listener, app.clone()).await,
                    None => Ok(()),
                }
            },
        )?;
        Ok(())
    })
}

/// All routes that processes inside may call too.
fn router() -> Router<SharedGuest> {
    Router::new()
        .merge(sandbox::router())
        .merge(shell::router())
        .merge(bash::router())
        .merge(files::router())
}

/// Routes for the gateway alone.
fn internal() -> Router {
    let started = Instant::now();
    Router::new().route(
        protocol::HELLO_PATH,
        get(move |State(()): State<()>| async move {
            Json(Hello {
                protocol: protocol::VERSION,
                version: env!("CARGO_PKG_VERSION").to_owned(),
                sandbox_id: String::new(),
                uptime_ms: started.elapsed().as_millis() as u64,
            })
        }),
    )
}
