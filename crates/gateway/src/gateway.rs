//! State shared by all requests, and the context of one request.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use arenite_control::store::{counted_here, current_waits};
use arenite_control::tenants::Principal;
use arenite_control::{Control, Event};
use arenite_model::{ErrorCode, TenantId};
use arenite_synthesis::Synthesis;
use arenite_synthesis::config::Switches;
use arenite_trajectory::{Origin, Recorder};
use matchit::Router;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::auth::Grants;
use crate::connections::Connections;
use crate::descriptors::Descriptors;
use crate::metrics::Metrics;
use crate::nodes::Peers;
use crate::outgoing::Reach;
use crate::proxy::{Commands, Pools};
use crate::refusal::Refusal;
use crate::traces::{Trace, Traces};
use crate::webhooks::WebhookSender;
use crate::{GatewayConfig, dialect};

/// KiB of JSON bodies over 64 KiB that are held at once; further bodies wait.
pub(crate) const HELD_KIB: usize = 512 << 10;

/// State shared by all requests. Handlers get `&Gateway` or an `Arc` of it.
pub(crate) struct Gateway {
    pub(crate) config: GatewayConfig,
    pub(crate) connections: Arc<Connections>,
    pub(crate) descriptors: Arc<Descriptors>,
    pub(crate) control: Arc<Control>,
    pub(crate) recorder: Recorder,
    pub(crate) started: Instant,
    pub(crate) metrics: Arc<Metrics>,
    /// Idle connections to guests.
    pub(crate) pools: Pools,
    /// Tasks beside the requests: readers of inside steps, tunnels.
    pub(crate) tasks: TaskTracker,
    /// Cancelled when a stop starts.
    pub(crate) stopping: CancellationToken,
    /// Cancelled when the time to drain is over.
    pub(crate) cut: CancellationToken,
    /// Cancelled when a client stops the server.
    pub(crate) shutdown: CancellationToken,
    /// Set before the server serves, if it has workers.
    pub(crate) synthesis: OnceLock<Arc<Synthesis>>,
    /// Shares of [`HELD_KIB`].
    pub(crate) held: Arc<Semaphore>,
    pub(crate) tickets: Grants,
    /// Secrets in addresses of sandbox hosts to which this server redirects a browser: the browser signs in there with one.
    pub(crate) handovers: Grants,
    /// Commands of the command line in progress.
    pub(crate) commands: Arc<Commands>,
    pub(crate) webhooks: WebhookSender,
    /// The addresses that model routes may reach.
    pub(crate) model_reach: Reach,
    pub(crate) traces: Traces,
    /// Connections to the other nodes of the cluster; set before the server serves, if it is one.
    pub(crate) peers: Option<Peers>,
    /// MCP's sessions and tools.
    pub(crate) mcp: arenite_mcp::Server<dialect::mcp::Hub>,
    /// Sessions of signed-in browsers.
    pub(crate) sessions: Grants,
    /// `/v1/openapi.json`, made at the first request.
    pub(crate) document: OnceLock<Value>,
    guest_routes: OnceLock<Router<&'static str>>,
    /// Makes request ids differ between starts.
    epoch: u64,
    requests: AtomicU64,
}

impl Gateway {
    pub(crate) fn new(config: GatewayConfig, control: Arc<Control>, recorder: Recorder) -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let webhooks = WebhookSender::new(config.webhook_ranges.clone(), config.outgoing_tls.clone());
        let model_reach = Reach::new(config.model_ranges.clone(), "model_allow");
        let traces = Traces::new(config.traces.as_ref());
        let limits = Arc::downgrade(&control);
        recorder.limit_tenants(move |tenant| limits.upgrade()?.tenant_limits(tenant).trajectory_bytes);
        Self {
            connections: Arc::new(Connections::new(config.connections.clone())),
            descriptors: Descriptors::new(),
            config,
            control,
            recorder,
            started: Instant::now(),
            metrics: Arc::default(),
            pools: Pools::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            cut: CancellationToken::new(),
            shutdown: CancellationToken::new(),
            synthesis: OnceLock::new(),
            held: Arc::new(Semaphore::new(HELD_KIB)),
            tickets: Grants::default(),
            handovers: Grants::default(),
            commands: Arc::default(),
            webhooks,
            model_reach,
            traces,
            peers: None,
            mcp: arenite_mcp::Server::new(dialect::mcp::Hub),
            sessions: Grants::default(),
            document: OnceLock::new(),
            guest_routes: OnceLock::new(),
            epoch: since.map_or(0, |d| d.as_micros() as u64),
            requests: AtomicU64::new(0),
        }
    }

    /// Whether callers need credentials.
    pub(crate) fn needs_credentials(&self) -> bool {
        self.config.auth.is_required() || self.control.tenants().is_some()
    }

    /// Completes when the caller's key or token is no longer accepted. None: it never ends. An agent's connections end with its sandbox.
    pub(crate) fn ended(&self, principal: &Principal) -> Option<impl Future<Output = ()> + Send + use<>> {
        let tenants = self.control.tenants().filter(|_| principal.may_end())?;
        Some(tenants.ended(principal))
    }

    /// AgentFlow's workers.
    pub(crate) fn synthesis(&self) -> Result<&Arc<Synthesis>, Refusal> {
        self.synthesis.get().ok_or_else(|| Refusal::new(ErrorCode::Unsupported, "this server has no workers"))
    }

    pub(crate) fn workers_switches(&self) -> &Switches {
        static NONE: std::sync::LazyLock<Switches> = std::sync::LazyLock::new(Switches::default);
        self.config.workers.as_ref().map_or(&NONE, |workers| &workers.switches)
    }

    /// The routes of the guest's API, with their patterns, for metrics.
    pub(crate) fn guest_routes(&self) -> &Router<&'static str> {
        self.guest_routes.get_or_init(|| {
            let mut routes = Router::new();
            for path in (self.config.guest.api)().paths.paths.into_keys() {
                // Built once, and kept for the life of the process.
                let pattern: &'static str = path.leak();
                if let Err(error) = routes.insert(pattern, pattern) {
                    tracing::warn!(pattern, %error, "a route of the guest is counted as another");
                }
            }
            routes
        })
    }

    /// Runs a part of a request to its end, whether or not its client waits for it.
    pub(crate) async fn run_to_end<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Refusal>> + Send + 'static,
    ) -> Result<T, Refusal> {
        let ended = self.tasks.spawn(counted_here(current_waits(), work).in_current_span());
        ended.await.unwrap_or_else(|error| Err(Refusal::new(ErrorCode::Internal, format!("the call broke off: {error}"))))
    }

    /// A new request's id: unique on this server.
    pub(crate) fn request_id(&self) -> String {
        let n = self.requests.fetch_add(1, Ordering::Relaxed);
        format!("{:x}-{n:x}", self.epoch)
    }
}

/// Context of one request, known before it is answered.
#[derive(Debug, Clone)]
pub(crate) struct Context {
    /// The caller, with its tenant and its rights.
    pub(crate) principal: Arc<Principal>,
    /// The dialect of a call to a sandbox, for its step.
    pub(crate) dialect: &'static str,
    /// Arenite's id, in `x-request-id` of the answer and in the step.
    pub(crate) request_id: String,
    /// The client's address, without its port; none for the server itself.
    pub(crate) client: Option<String>,
    /// The cause of the request, for its steps.
    pub(crate) origin: Origin,
    /// The server's address as the client sees it: `http://host:port`, from the client's Host header (checked) or a trusted
    /// proxy's, with the path under which a trusted proxy serves this server. None for a call that did not come over HTTP.
    pub(crate) base_url: Option<String>,
    /// None: the request is not traced.
    pub(crate) trace: Option<Arc<Trace>>,
}

impl Context {
    pub(crate) fn tenant(&self) -> &TenantId {
        &self.principal.tenant
    }

    /// The same caller for a list of another tenant's.
    pub(crate) fn of_tenant(&self, tenant: TenantId) -> Self {
        Self { principal: Arc::new(Principal { tenant, ..Principal::clone(&self.principal) }), ..self.clone() }
    }

    /// Whether an event concerns a sandbox that exists for the caller.
    pub(crate) fn sees_event(&self, event: &Event) -> bool {
        event.tenant == *self.tenant() && self.principal.covers(Some(&event.name), &event.labels)
    }

    /// The server's address for the client. A caller without one reaches the server on this host.
    pub(crate) fn base_url(&self) -> &str {
        self.base_url.as_deref().unwrap_or("http://localhost")
    }

    /// Scheme and authority of [`Self::base_url`].
    pub(crate) fn outer_origin(&self) -> &str {
        let base = self.base_url();
        &base[..base.len() - self.outer_path().len()]
    }

    /// The path under which a trusted proxy serves this server; usually empty.
    pub(crate) fn outer_path(&self) -> &str {
        let authority = self.base_url().split_once("://").map_or("", |(_, rest)| rest);
        authority.find('/').map_or("", |at| &authority[at..])
    }
}
