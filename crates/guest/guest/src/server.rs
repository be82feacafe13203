//! The guest's HTTP server and its start.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_isolation::counters::Counters;
use arenite_isolation::{Given, memory, spawner};
use arenite_model::protocol::{self, Assignment, GuestConfig, Hello};
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use axum::middleware::{self, Next};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use tokio::sync::Notify;
use tokio::time::timeout;

use crate::Guest;
use crate::SharedGuest;
use crate::activity;
use crate::agent;
use crate::ahead;
use crate::guard;
use crate::handed::HandedConnections;
use crate::hooks;
use crate::inside::InsideSteps;
use crate::main_command;
use crate::mcp;
use crate::places;
use crate::pod::Pod;
use crate::ports;
use crate::services::Services;
use crate::sessions;
use crate::ssh_agent;
use crate::standalone::Container;
use crate::trust;
use crate::unread;
use arenite_guest_desktop::vm;
use arenite_guest_runtime::process::Processes;
use arenite_guest_shell::carry;

/// Time without a call from the host after which a sandbox counts as idle.
const IDLE: Duration = Duration::from_secs(10);

/// The guest's start parameters. In a sandbox, they come from the server: see [`Start::from_given`].
#[derive(Debug)]
pub struct Start {
    pub config: GuestConfig,
    /// The listener that the host dials.
    pub host_listener: Option<OwnedFd>,
    /// The socket over which connections of the host arrive, under gVisor.
    pub host_connections: Option<OwnedFd>,
    /// The proof with which the guest connects for such connections, in a container under gVisor.
    pub host_proof: Option<String>,
    /// The pod that this is the guest of.
    pub pod: Option<Pod>,
    /// The socket of the process that starts commands. None: the guest forks one.
    pub spawner: Option<OwnedFd>,
    /// The cgroups for replacements of that process.
    pub work_entrances: Vec<OwnedFd>,
    /// The address of the same API for processes inside the sandbox.
    pub inside: Option<SocketAddr>,
    /// The port for clients, in a container without a server.
    pub container: Option<Container>,
    /// The counters of the sandbox's cgroups.
    pub counters: Counters,
}

impl Start {
    /// Takes the listener, the configuration, and the counters of the sandbox's cgroups.
    ///
    /// # Errors
    /// The configuration can't be read.
    pub fn from_given(given: Given) -> io::Result<Self> {
        let Given { mut named, spawner, work_entrances } = given;
        let config = match named.remove(protocol::CONFIG) {
            Some(fd) => serde_json::from_reader(io::BufReader::new(std::fs::File::from(fd)))?,
            None => GuestConfig::default(),
        };
        let host_proof = match named.remove(protocol::PROOF) {
            Some(fd) => Some(io::read_to_string(std::fs::File::from(fd))?),
            None => None,
        };
        Ok(Self {
            config,
            host_proof,
            host_listener: named.remove(protocol::LISTENER),
            host_connections: named.remove(protocol::CONNECTIONS),
            pod: None,
            spawner: Some(spawner),
            work_entrances,
            inside: Some(([127, 0, 0, 1], protocol::INSIDE_PORT).into()),
            container: None,
            counters: Counters::take(&mut named),
        })
    }
}

/// Runs the guest until it is killed. Call it in a process with one thread.
pub fn run(start: Start) -> io::Result<()> {
    let started = Instant::now();
    let spawner = match start.spawner {
        Some(socket) => socket,
        None => spawner::fork_off()?,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().max_blocking_threads(16).build()?;
    runtime.block_on(async move {
        let counters = start.counters.clone();
        let mut config = start.config;
        let sessions_of_parent = config.sessions.take();
        let guest = Arc::new(Guest::new(config, Processes::start(spawner, start.work_entrances)?, start.counters));
        // Clients that connect meanwhile wait in the listener's queue, or in that of the connection to the server.
        let handed = match (start.host_connections, start.host_proof) {
            (Some(fd), _) => Some(HandedConnections::by_keeper(fd, counters)?),
            (None, Some(proof)) => Some(HandedConnections::by_server(proof).await),
            (None, None) => None,
        };
        begin(&guest).await;
        if let Some(sessions) = sessions_of_parent {
            carry::take_over(&guest.shell, &guest.bash, sessions);
        }
        let steps = InsideSteps::default();
        let services = Services::new(guest.clone());
        let app = |services: Services| Router::new().fallback(move |request| services.clone().call(request));
        let inside = app(services.clone()).layer(middleware::from_fn_with_state(steps.clone(), crate::inside::record));
        let inside = mcp::inside_router(inside.clone()).merge(inside).layer(middleware::from_fn(guard::refuse_pages));
        let container = start.container.map(|port| {
            let api = app(services.clone());
            (port, mcp::inside_router(api.clone()).merge(api))
        });
        let called = Arc::new(Notify::new());
        tokio::spawn(give_back_when_idle(Arc::clone(&called)));
        let version = HeaderValue::from(protocol::VERSION);
        let mut host = app(services.clone()).merge(internal(&guest, services, steps, started));
        if let Some(pod) = &start.pod {
            host = host.merge(pod.router());
        }
        let host = host.layer(middleware::from_fn(move |request: Request, next: Next| {
            let (version, called) = (version.clone(), Arc::clone(&called));
            async move {
                // The server traces this call.
                let traced_since = request.headers().contains_key("traceparent").then(Instant::now);
                let mut answer = next.run(request).await;
                answer.headers_mut().insert(HeaderName::from_static(protocol::VERSION_HEADER), version);
                if let Some(time) = traced_since.and_then(handler_time) {
                    answer.headers_mut().insert(HeaderName::from_static("server-timing"), time);
                }
                called.notify_one();
                answer
            }
        }));
        let host = host.layer(middleware::from_fn(unread::close));
        // The host's listener is older than this process: earlier connections wait in its queue.
        let host = async {
            if let Some(pod) = start.pod {
                return axum::serve(pod.listen().await?, host).await;
            }
            match (start.host_listener, handed) {
                (Some(fd), _) => {
                    let listener = StdUnixListener::from(fd);
                    listener.set_nonblocking(true)?;
                    axum::serve(tokio::net::UnixListener::from_std(listener)?, host).await
                }
                (None, Some(handed)) => axum::serve(handed, host).await,
                (None, None) => Ok(()),
            }
        };
        let inside = async {
            match start.inside {
                Some(address) => axum::serve(tokio::net::TcpListener::bind(address).await?, inside).await,
                None => Ok(()),
            }
        };
        let container = async {
            match container {
                Some((port, api)) => port.serve(&guest, api).await,
                None => Ok(()),
            }
        };
        tokio::try_join!(host, inside, container)?;
        Ok(())
    })
}

fn handler_time(since: Instant) -> Option<HeaderValue> {
    HeaderValue::try_from(format!("handler;dur={:.3}", since.elapsed().as_secs_f64() * 1e3)).ok()
}

/// Returns memory to the kernel when the host has not called for a while. The next call takes some tenths of a millisecond
/// longer.
async fn give_back_when_idle(called: Arc<Notify>) {
    loop {
        called.notified().await;
        while timeout(IDLE, called.notified()).await.is_ok() {}
        if let Err(error) = memory::give_back() {
            tracing::warn!(%error, "no memory can be given back");
            return;
        }
    }
}

/// Runs the configured steps before the first call, and starts those that run beside the calls.
pub(crate) async fn begin(guest: &SharedGuest) {
    places::make_missing(guest);
    if guest.runtime.config().assignment == Assignment::Pooled {
        // The rest runs once, when the sandbox is assigned.
        return;
    }
    trust::install(&guest.runtime).await;
    guest.agent.begin(&guest.runtime).await;
    guest.ssh_agent.begin(&guest.runtime);
    hooks::before_services(&guest.hooks).await;
    guest.proxy.begin().await;
    main_command::start(guest.runtime.clone());
    hooks::when_ready(guest.hooks.clone());
}

/// Routes for the gateway only.
fn internal(guest: &SharedGuest, services: Services, steps: InsideSteps, started: Instant) -> Router {
    let runtime = guest.runtime.clone();
    let hello = move || {
        let hello = Hello {
            protocol: protocol::VERSION,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            sandbox_id: runtime.config().sandbox_id.clone(),
            uptime_ms: started.elapsed().as_millis() as u64,
        };
        std::future::ready(Json(hello))
    };
    let ending = guest.clone();
    Router::new()
        .route(protocol::SHUTDOWN_PATH, post(move || std::future::ready(shutdown(&ending))))
        .route(protocol::HELLO_PATH, get(hello))
        .route(
            protocol::INSIDE_STEPS_PATH,
            get({
                let steps = steps.clone();
                move || std::future::ready(steps.stream())
            }),
        )
        .merge(ports::router(guest))
        .merge(activity::router(guest))
        .merge(agent::router(guest))
        .merge(ssh_agent::router(guest))
        .merge(sessions::router(guest))
        .merge(vm::engine_router(protocol::VM_STATE_PATH, guest.vm.clone()))
        .merge(ahead::router(guest, services, steps))
}

/// Runs the hooks of the sandbox's end.
fn shutdown(guest: &SharedGuest) -> Response<Body> {
    let Some(hooks) = hooks::shutdown(&guest.hooks) else { return StatusCode::NO_CONTENT.into_response() };
    let end = futures_util::stream::once(async move {
        // A hook that panicked has ended too.
        drop(hooks.await);
        Ok::<_, std::convert::Infallible>(Bytes::from_static(b"done\n"))
    });
    Body::from_stream(end).into_response()
}
