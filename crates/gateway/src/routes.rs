//! The routes: one entry each in one table. Dispatch, permissions, refusals' formats and metrics' names come from it.

use std::sync::LazyLock;

use arenite_control::Template;
use arenite_control::models::ModelRouteSpec;
use arenite_control::nodes::Node;
use arenite_control::tenants::Role;
use arenite_model::{Annotation, ErrorCode};
use arenite_synthesis::ToolInfo;
use arenite_trajectory::Verification;
use axum::body::Body;
use futures_util::future::BoxFuture;
use http::{Method, Response};
use matchit::Router;

use crate::annotations::{AnnotationList, ChangeAnnotation, CreateAnnotation, RemovedAnnotation, RemovedAnnotations};
use crate::api::types::{
    AdoptSandbox, AuditPage, ChangeTenant, CheckpointInfo, CorpusInfo, CorpusList, CreateAnswer, CreateGroup, CreateKey,
    CreateSandbox, CreateSnapshot, CreateTenant, CreatedSandboxes, DeletedGroup, DeletedSandbox, DeletedState, Differences,
    DrainNode, ForkSandbox, FoundPassages, GroupInfo, GroupList, HistoryInfo, ImageList, KeyInfo, KeyList, LiveUsage, Me,
    NetworkRecordList, NewCheckpoint, NewKeyInfo, NodeList, Nothing, PauseSandbox, QuarantineList, RemovedSandbox, RemovedTenant,
    RenewGroup, ResetSandbox, RollBack, RolledBack, RotateKey, SandboxInfo, SandboxList, SandboxUsage, SearchCorpus, ServerInfo,
    SessionList, SnapshotInfo, SnapshotList, StepPage, TemplateList, TenantInfo, TenantList, TrajectoryList, UsageReport,
    WorkerList,
};
use crate::auth::Need;
use crate::changes::{ChangeSandbox, ExtendSandbox};
use crate::dialect::agentflow::types::{
    ActiveSessions, BatchResults, CreatedSession, DestroyedSession, DisconnectedWorker, Envelope, ExecuteBatchRequest,
    ExecuteRequest, Failure, InitBatchRequest, InitFromConfigRequest, InitResourceRequest, InitializedBatch, InitializedResource,
    LoadedConfig, Message, RefreshedSessions, ServerShutdown, SessionCreateRequest, SessionDestroyRequest, SessionRefreshRequest,
    ShutdownRequest, ToolList, WarmedBackends, WarmupRequest, WarmupStatus, WorkerDisconnectRequest, WorkerRequest,
    WorkerSessions, WorkerStatus,
};
use crate::dialect::{agent_sandbox, agentflow, mcp};
use crate::events::EventPage;
use crate::exchange::{Answered, Exchange};
use crate::files::{FileEntry, FileList};
use crate::gateway::Gateway;
use crate::guard::HostKind;
use crate::health::{Health, Ready};
use crate::images::{ImageDetails, PullImage, PullList, RemovedImage};
use crate::lists::MAX_PAGE;
use crate::models::{ModelRouteDetails, ModelRouteList, RemovedModelRoute};
use crate::network::NetworkInfo;
use crate::operation::{Operation, SchemaOf, schema_of};
use crate::path::is_under;
use crate::problem::{PROBLEM_JSON, Problem};
use crate::query::{self, Query};
use crate::refusal::{Refusal, RefusedEnvelope};
use crate::registries::{RegistryInfo, RegistryList, RemovedRegistry, SetRegistry};
use crate::secrets::{PutSecret, ReencryptedSecrets, RemovedSecret, SecretInfo, SecretList};
use crate::volumes::{ChangeVolume, CopyVolume, CreateVolume, RemovedFile, RemovedVolume, VolumeInfo, VolumeList};
use crate::webhooks::{
    CreateWebhook, DeliveryInfo, DeliveryPage, NewWebhookInfo, RemovedWebhook, WebhookInfo, WebhookList, WebhookTest,
};
use crate::{
    annotations, api, auth, builds, changes, corpora, events, groups, health, images, metrics, models, network, nodes, own_state,
    pages, problem, proxy, quarantine, registries, sandbox_filter, secrets, snapshots, states, tenants, trajectories, usage,
    volumes, webhooks,
};

/// Answers a request of a route.
pub(crate) type Handler = for<'a> fn(&'a mut Exchange) -> BoxFuture<'a, Answered>;

/// Parts of a path by their names in the pattern.
pub(crate) type Params = Vec<(String, String)>;

/// A path with its methods and its handler.
#[derive(Debug)]
pub(crate) struct Route {
    /// `{name}` is any one segment. `/**` at the end is the path itself and everything below it.
    pub(crate) pattern: &'static str,
    /// None: the handler, or a sandbox's guest, decides.
    pub(crate) methods: Option<&'static [Method]>,
    at: At,
    pub(crate) surface: &'static Surface,
    /// It needs no credentials, or checks them itself.
    pub(crate) public: bool,
    /// None: `read` for GET and HEAD, otherwise `manage`.
    needs: Option<Need>,
    /// It concerns more than single sandboxes, so a key that is bound to some can't use it.
    for_whole_tenant: bool,
    /// People open it in a browser, so links from elsewhere may lead to it.
    pub(crate) page: bool,
    /// A browser without credentials gets the page to sign in.
    pub(crate) signs_in: bool,
    /// A program of the sandbox answers, so the answer is untrusted.
    pub(crate) runs_in_sandbox: bool,
    /// A sandbox may redirect to it: it leads only into that sandbox.
    leads_into_sandbox: bool,
    pub(crate) handler: Handler,
    /// Its description, if an OpenAPI document has it.
    operation: Option<Operation>,
}

/// Where a route exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// At the root of the server's own hosts.
    Server,
    /// Below `/sandbox/{name}`, and on the sandbox's own host.
    Sandbox,
    /// Both: at the root, for the sandbox that a header names, otherwise `default`.
    Both,
}

/// Properties that the routes of one interface share.
#[derive(Debug)]
pub(crate) struct Surface {
    /// For metrics.
    pub(crate) name: &'static str,
    /// A refusal in its format.
    pub(crate) refuse: fn(&Refusal) -> Response<Body>,
    /// Answered even when the server has few descriptors left.
    pub(crate) frugal: bool,
    /// AgentFlow's document describes it, and a setting for AgentFlow's clients closes the connection after its answers.
    pub(crate) is_agentflow: bool,
    /// All its routes concern more than single sandboxes.
    is_for_whole_tenant: bool,
    /// `GET` implies `HEAD`.
    has_head: bool,
    /// Its paths may end with a slash.
    has_slash: bool,
    /// The schema of its refusals, for documents.
    pub(crate) error: SchemaOf,
    /// The content type of its refusals.
    pub(crate) error_content: &'static str,
    /// Parameters that a route's description lacks are refused.
    has_strict_queries: bool,
    /// Answers a request with a wrong method.
    pub(crate) wrong_method: fn(&Exchange, Refusal) -> Answered,
}

impl Surface {
    /// For sandboxes and pages.
    const fn aio(name: &'static str) -> Self {
        Self {
            name,
            refuse: Refusal::envelope,
            frugal: false,
            is_agentflow: false,
            is_for_whole_tenant: false,
            has_head: true,
            has_slash: false,
            error: schema_of::<RefusedEnvelope>,
            error_content: "application/json",
            has_strict_queries: false,
            wrong_method: |_, refusal| Err(refusal),
        }
    }

    const fn agentflow(name: &'static str) -> Self {
        let (error, wrong_method) = (schema_of::<Failure>, agentflow::wrong_method);
        Self { is_agentflow: true, has_head: false, error, wrong_method, ..Self::aio(name) }
    }

    /// For Arenite's own interfaces.
    const fn own(name: &'static str) -> Self {
        let (refuse, error, error_content): (_, SchemaOf, _) = (Refusal::api, schema_of::<Problem>, PROBLEM_JSON);
        Self { refuse, error, error_content, has_slash: true, has_strict_queries: true, ..Self::aio(name) }
    }
}

static AIO: Surface = Surface::aio("aio");
static CONSOLE: Surface = Surface::aio("console");
static DOCS: Surface = Surface::aio("docs");
static OPENAPI: Surface = Surface::aio("openapi");
static AGENT_SANDBOX: Surface = Surface {
    refuse: |refusal| agent_sandbox::failure(refusal, false),
    error: schema_of::<agent_sandbox::Failure>,
    error_content: "application/json",
    has_strict_queries: false,
    frugal: true,
    wrong_method: agent_sandbox::wrong_method,
    ..Surface::own("agent_sandbox")
};
static AGENTFLOW: Surface = Surface { has_slash: true, is_for_whole_tenant: true, ..Surface::agentflow("agentflow") };
static TRAJECTORIES: Surface = Surface::own("trajectories");
static API: Surface = Surface { frugal: true, ..Surface::own("api") };
static HEALTH: Surface = Surface::agentflow("health");
static METRICS: Surface = Surface { frugal: true, has_slash: false, ..Surface::own("metrics") };
static MODELS: Surface = Surface { refuse: models::refuse, ..Surface::aio("models") };
static PREVIEW: Surface = Surface::aio("preview");
static AUTH: Surface = Surface::aio("auth");
static TERMINAL: Surface = Surface::aio("terminal");
static DESKTOP: Surface = Surface::aio("desktop");
static LLMS: Surface = Surface::aio("llms");
static MCP: Surface = Surface::aio("mcp");
static MISSING: Surface = Surface::aio("missing");
static UNKNOWN: Surface = Surface::aio("unknown");

const GET: Option<&[Method]> = Some(&[Method::GET]);
const POST: Option<&[Method]> = Some(&[Method::POST]);
const DELETE: Option<&[Method]> = Some(&[Method::DELETE]);
const PUT: Option<&[Method]> = Some(&[Method::PUT]);
const PATCH: Option<&[Method]> = Some(&[Method::PATCH]);
const ANY: Option<&[Method]> = None;

impl Route {
    const fn new(
        at: At,
        surface: &'static Surface,
        methods: Option<&'static [Method]>,
        pattern: &'static str,
        handler: Handler,
    ) -> Self {
        Self {
            pattern,
            methods,
            at,
            surface,
            public: false,
            needs: None,
            for_whole_tenant: false,
            page: false,
            signs_in: false,
            runs_in_sandbox: false,
            leads_into_sandbox: false,
            handler,
            operation: None,
        }
    }

    /// The least role of its callers.
    const fn needs(self, role: Role) -> Self {
        Self { needs: Some(Need::Role(role)), ..self }
    }

    const fn needs_operator(self) -> Self {
        Self { needs: Some(Need::Operator), ..self }
    }

    const fn for_whole_tenant(self) -> Self {
        Self { for_whole_tenant: true, ..self }
    }

    /// The right that it needs for a method.
    pub(crate) fn need(&self, method: &Method) -> Need {
        let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        self.needs.unwrap_or(Need::Role(if is_read { Role::Read } else { Role::Manage }))
    }

    /// Whether it concerns more than single sandboxes, as everything does that only admins and operators may do.
    pub(crate) fn is_for_whole_tenant(&self, need: Need) -> bool {
        self.for_whole_tenant || self.surface.is_for_whole_tenant || matches!(need, Need::Operator | Need::Role(Role::Admin))
    }

    const fn public(self) -> Self {
        Self { public: true, ..self }
    }

    const fn page(self) -> Self {
        Self { page: true, signs_in: true, ..self }
    }

    const fn signs_in(self) -> Self {
        Self { signs_in: true, ..self }
    }

    const fn leads_into_sandbox(self) -> Self {
        Self { leads_into_sandbox: true, ..self }
    }

    const fn doc(self, operation: Operation) -> Self {
        Self { operation: Some(operation), ..self }
    }

    const fn runs_in_sandbox(self) -> Self {
        Self { runs_in_sandbox: true, ..self }
    }

    /// Everything below a path of the sandbox's guest.
    const fn guest(pattern: &'static str) -> Self {
        let route = Self::new(At::Both, &AIO, ANY, pattern, |e| Box::pin(proxy::serve(e)));
        route.needs(Role::Use).leads_into_sandbox().runs_in_sandbox()
    }

    /// The usual size of a page of its list.
    pub(crate) fn page_size(&self) -> usize {
        self.operation.as_ref().and_then(Operation::page_size).unwrap_or(MAX_PAGE)
    }

    /// Compares a query with the description, if the interface does that.
    pub(crate) fn check_query(&self, query: Option<&str>) -> Result<(), Refusal> {
        match &self.operation {
            Some(operation) if self.surface.has_strict_queries => query::check(&operation.parameters(), query),
            _ => Ok(()),
        }
    }

    /// Its pattern, and for AgentFlow's the shorter one.
    fn patterns(&self) -> impl Iterator<Item = &'static str> + use<> {
        let short = self.pattern.strip_prefix(agentflow::ROOT);
        let short = short.filter(|short| std::ptr::eq(self.surface, &AGENTFLOW) && !short.ends_with("/**"));
        std::iter::once(self.pattern).chain(short)
    }

    /// What is below the prefix of a pattern that ends with `/**`.
    fn prefix(&self) -> Option<&'static str> {
        self.pattern.strip_suffix("/**")
    }

    fn takes(&self, method: &Method) -> bool {
        let implied = *method == Method::HEAD && self.surface.has_head;
        self.methods.is_none_or(|methods| methods.contains(method) || implied && methods.contains(&Method::GET))
    }

    /// The methods to name to a caller with another one.
    fn allowed(&self) -> Vec<Method> {
        let methods = self.methods.unwrap_or_default();
        let head = (self.surface.has_head && methods.contains(&Method::GET)).then_some(Method::HEAD);
        methods.iter().cloned().chain(head).collect()
    }
}

/// All routes. Of several patterns that match a path, the most specific one applies.
#[rustfmt::skip]
static ROUTES: &[Route] = &[
    // Pages of the server.
    Route::new(At::Server, &CONSOLE, GET, "/", |e| Box::pin(pages::console::serve(e))).page(),
    Route::new(At::Server, &CONSOLE, GET, "/trajectories", |e| Box::pin(pages::viewer::serve(e))).page(),
    Route::new(At::Server, &CONSOLE, GET, "/trajectory", |e| Box::pin(pages::viewer::lead_to_list(e))).page(),
    Route::new(At::Server, &CONSOLE, GET, "/trajectory/", |e| Box::pin(pages::viewer::lead_to_list(e))).page(),
    Route::new(At::Server, &CONSOLE, GET, "/trajectory/{id}", |e| Box::pin(pages::viewer::serve(e))).page(),
    // The server's state.
    Route::new(At::Server, &HEALTH, ANY, "/healthz", |e| Box::pin(health::healthz(e))).public(),
    Route::new(At::Server, &HEALTH, GET, "/health", |e| Box::pin(health::health(e))).public()
        .doc(Operation::new("Health", "get_health", "Whether the server answers").answers::<Health>(200)),
    Route::new(At::Server, &HEALTH, GET, "/ready", |e| Box::pin(health::ready(e))).public()
        .doc(Operation::new("Health", "get_ready", "Whether it is ready, and how many tools, workers and sessions it has").answers::<Ready>(200)),
    Route::new(At::Server, &METRICS, GET, "/metrics", |e| Box::pin(metrics::serve(e))).signs_in().needs_operator()
        .doc(Operation::new("server", "get_metrics", "Returns the server's metrics in Prometheus' format").sends("text/plain")),
    // Signing in.
    Route::new(At::Server, &AUTH, POST, "/login", |e| Box::pin(auth::sign_in(e))).public()
        .doc(Operation::new("sign-in", "sign_in", "Signs a browser in, as a cookie that no script can read").takes::<auth::SignIn>().answers_nothing()),
    Route::new(At::Server, &AUTH, POST, "/logout", |e| Box::pin(auth::sign_out(e))).public()
        .doc(Operation::new("sign-in", "sign_out", "Ends the sign-in of a browser").answers_nothing()),
    Route::new(At::Both, &AUTH, POST, "/tickets", |e| Box::pin(auth::create_ticket(e))).needs(Role::Read),
    Route::new(At::Both, &AUTH, GET, "/auth", |e| Box::pin(auth::authenticate(e))).public(),
    // Pages of a sandbox.
    Route::new(At::Sandbox, &CONSOLE, GET, "/", |e| Box::pin(pages::dashboard::serve(e))).page(),
    Route::new(At::Both, &CONSOLE, GET, "/index.html", |e| Box::pin(pages::dashboard::serve(e))).page(),
    Route::new(At::Both, &DOCS, GET, "/v1/docs", |e| Box::pin(pages::docs::serve(e))).page(),
    Route::new(At::Both, &OPENAPI, GET, "/v1/openapi.json", |e| Box::pin(pages::openapi::of_sandbox(e))).signs_in(),
    Route::new(At::Both, &LLMS, GET, "/llms.txt", |e| Box::pin(pages::manual::serve(e))).page(),
    Route::new(At::Both, &TERMINAL, GET, "/terminal", |e| Box::pin(pages::terminal::serve(e))).page().leads_into_sandbox(),
    Route::new(At::Both, &CONSOLE, GET, "/static/web/**", |e| Box::pin(pages::built::serve(e))).public(),
    Route::new(At::Both, &TERMINAL, GET, "/static/sandbox/**", |e| Box::pin(pages::assets::serve(e))).public(),
    Route::new(At::Both, &DESKTOP, GET, "/vnc", |e| Box::pin(pages::vnc::serve(e))).page(),
    Route::new(At::Both, &DESKTOP, GET, "/vnc/", |e| Box::pin(pages::vnc::serve(e))).page(),
    Route::new(At::Both, &DESKTOP, GET, "/vnc/index.html", |e| Box::pin(pages::vnc::serve(e))).page(),
    Route::new(At::Both, &DESKTOP, GET, "/vnc/vnc.html", |e| Box::pin(pages::vnc::serve(e))).page(),
    Route::new(At::Both, &DESKTOP, GET, "/vnc/vnc_lite.html", |e| Box::pin(pages::vnc::serve(e))).page(),
    // What a sandbox's dashboard shows of it.
    Route::new(At::Both, &CONSOLE, GET, "/state", |e| Box::pin(own_state::serve(e)))
        .doc(Operation::new("sandbox", "get_own_state", "Describes the sandbox's state, limits and use, without waking it").answers::<own_state::OwnState>(200)),
    // A sandbox's steps.
    Route::new(At::Both, &TRAJECTORIES, GET, "/steps", |e| Box::pin(trajectories::own_steps(e)))
        .doc(Operation::new("steps", "list_own_steps", "Returns the steps of the sandbox").query(STEPS).answers::<StepPage>(200).also(&[EVENTS, LINES])),
    Route::new(At::Both, &TRAJECTORIES, GET, "/steps/{number}/{part}", |e| Box::pin(trajectories::own_step(e)))
        .doc(Operation::new("steps", "get_own_step", "Returns the `arguments` or the `observation` of a step")),
    Route::new(At::Both, &TRAJECTORIES, ANY, "/steps/**", |e| Box::pin(trajectories::unknown(e))),
    // MCP.
    Route::new(At::Both, &MCP, ANY, "/mcp", |e| Box::pin(mcp::serve(e))).needs(Role::Use),
    Route::new(At::Both, &MCP, ANY, "/mcp/", |e| Box::pin(mcp::serve(e))).needs(Role::Use),
    Route::new(At::Both, &MCP, ANY, "/v1/mcp", |e| Box::pin(mcp::serve(e))).needs(Role::Use),
    Route::new(At::Both, &MCP, ANY, "/v1/mcp/", |e| Box::pin(mcp::serve(e))).needs(Role::Use),
    Route::new(At::Both, &MCP, ANY, "/mcp/sse", |e| Box::pin(mcp::serve(e))).needs(Role::Use),
    Route::new(At::Both, &MCP, ANY, "/sse", |e| Box::pin(mcp::serve(e))).needs(Role::Use),
    Route::new(At::Both, &MCP, ANY, "/mcp/messages", |e| Box::pin(mcp::serve(e))).needs(Role::Use),
    // AIO's paths that the guest answers.
    Route::guest("/v1/**"),
    Route::guest("/cdp/**").page(),
    Route::guest("/json/**").page(),
    Route::guest("/websockify/**").page(),
    Route::guest("/code-server/**").page(),
    Route::guest("/jupyter/**").page(),
    Route::guest("/proxy/**").page(),
    Route::guest("/absproxy/**").page(),
    Route::guest("/opencode/**").page(),
    Route::guest("/codex/**").page(),
    // Arenite's own API.
    Route::new(At::Server, &DOCS, GET, "/api/v2/docs", |e| Box::pin(pages::docs::serve(e))).page(),
    Route::new(At::Server, &DOCS, GET, problem::ERRORS_PAGE, |e| Box::pin(pages::errors::serve(e))).page(),
    Route::new(At::Server, &OPENAPI, GET, "/api/v2/openapi.json", |e| Box::pin(pages::openapi::of_server(e))).signs_in(),
    Route::new(At::Server, &API, GET, "/api/v2/info", |e| Box::pin(api::info(e)))
        .doc(Operation::new("server", "get_info", "Describes the server, its capacity and its problems").answers::<ServerInfo>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/workers", |e| Box::pin(api::workers(e))).for_whole_tenant()
        .doc(Operation::new("server", "list_workers", "Lists AgentFlow's workers with their sessions").paged(MAX_PAGE).answers::<WorkerList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/templates", |e| Box::pin(api::templates(e)))
        .doc(Operation::new("server", "list_templates", "Lists the templates for sandboxes").paged(MAX_PAGE).answers::<TemplateList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/templates/{name}", |e| Box::pin(api::template(e)))
        .doc(Operation::new("server", "get_template", "Describes a template").answers::<Template>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/images", |e| Box::pin(images::list(e)))
        .doc(Operation::new("images", "list_images", "Lists the images on this host that the caller may use").paged(MAX_PAGE).answers::<ImageList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/images/pull", |e| Box::pin(images::pull(e))).for_whole_tenant()
        .doc(Operation::new("images", "pull_image", "Pulls an image from a registry; with `Accept: text/event-stream` its progress comes as server-sent events").takes::<PullImage>().example(r#"{"image":"alpine:3"}"#).answers::<ImageDetails>(200).also(&[EVENTS])),
    Route::new(At::Server, &API, POST, "/api/v2/images/build", |e| Box::pin(builds::build(e))).for_whole_tenant()
        .doc(Operation::new("images", "build_image", "Builds an image from a tar of its context, plain or compressed; with `Accept: text/event-stream` its steps and their output come as server-sent events").query(builds::PARAMETERS).receives(builds::CONTENT).answers::<ImageDetails>(200).also(&[EVENTS])),
    Route::new(At::Server, &API, GET, "/api/v2/images/pulls", |e| Box::pin(images::pulls(e)))
        .doc(Operation::new("images", "list_pulls", "Lists the pulls that are under way").paged(MAX_PAGE).answers::<PullList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/images/{name}", |e| Box::pin(images::get(e)))
        .doc(Operation::new("images", "get_image", "Describes an image; its name may have slashes").answers::<ImageDetails>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/images/{name}", |e| Box::pin(images::remove(e))).for_whole_tenant()
        .doc(Operation::new("images", "remove_image", "Removes an image of the caller's tenant; sandboxes keep what they have").answers::<RemovedImage>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/registries", |e| Box::pin(registries::list(e))).needs(Role::Admin)
        .doc(Operation::new("images", "list_registries", "Lists the registries that have a user for pulls").paged(MAX_PAGE).answers::<RegistryList>(200)),
    Route::new(At::Server, &API, PUT, "/api/v2/registries/{host}", |e| Box::pin(registries::set(e))).needs(Role::Admin)
        .doc(Operation::new("images", "set_registry", "Sets the user and the password for pulls from a registry").takes::<SetRegistry>().example(r#"{"user":"me","password":"a-password"}"#).answers::<RegistryInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/registries/{host}", |e| Box::pin(registries::remove(e))).needs(Role::Admin)
        .doc(Operation::new("images", "remove_registry", "Forgets the user for pulls from a registry").answers::<RemovedRegistry>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/secrets", |e| Box::pin(secrets::list(e))).needs(Role::Manage).for_whole_tenant()
        .doc(Operation::new("secrets", "list_secrets", "Lists the secrets without their values").paged(MAX_PAGE).answers::<SecretList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/secrets/{name}", |e| Box::pin(secrets::get(e))).needs(Role::Manage).for_whole_tenant()
        .doc(Operation::new("secrets", "get_secret", "Describes a secret without its value").answers::<SecretInfo>(200)),
    Route::new(At::Server, &API, PUT, "/api/v2/secrets/{name}", |e| Box::pin(secrets::put(e))).needs(Role::Admin)
        .doc(Operation::new("secrets", "set_secret", "Creates a secret, or changes it; in effect at once, also in running sandboxes").takes::<PutSecret>().example(r#"{"value":"a-secret-value","hosts":["api.example.com"]}"#).answers::<SecretInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/secrets/{name}", |e| Box::pin(secrets::remove(e))).needs(Role::Admin)
        .doc(Operation::new("secrets", "remove_secret", "Removes a secret; further requests with its placeholders are refused").answers::<RemovedSecret>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/secrets/reencrypt", |e| Box::pin(secrets::reencrypt(e))).needs_operator()
        .doc(Operation::new("secrets", "reencrypt_secrets", "Reads the keys again, and encrypts the secrets of all tenants with the first one").takes::<Nothing>().answers::<ReencryptedSecrets>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/models", |e| Box::pin(models::list(e))).needs(Role::Admin)
        .doc(Operation::new("models", "list_model_routes", "Lists the routes to models").paged(MAX_PAGE).answers::<ModelRouteList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/models/{name}", |e| Box::pin(models::get(e))).needs(Role::Admin)
        .doc(Operation::new("models", "get_model_route", "Describes a route to models, with what it used").answers::<ModelRouteDetails>(200)),
    Route::new(At::Server, &API, PUT, "/api/v2/models/{name}", |e| Box::pin(models::set(e))).needs(Role::Admin)
        .doc(Operation::new("models", "set_model_route", "Adds a route to models, or replaces it; it keeps what it used").takes::<ModelRouteSpec>().example(r#"{"upstream":"https://api.example.com/v1","dialect":"openai"}"#).answers::<ModelRouteDetails>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/models/{name}", |e| Box::pin(models::remove(e))).needs(Role::Admin)
        .doc(Operation::new("models", "remove_model_route", "Removes a route to models with what it used").answers::<RemovedModelRoute>(200)),
    // Calls of models, in the APIs of their upstreams.
    Route::new(At::Server, &MODELS, ANY, "/models/**", |e| Box::pin(models::serve(e))).needs(Role::Use),
    // The same for names with slashes.
    Route::new(At::Server, &API, GET, "/api/v2/images/**", |e| Box::pin(images::get(e))),
    Route::new(At::Server, &API, DELETE, "/api/v2/images/**", |e| Box::pin(images::remove(e))).for_whole_tenant(),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes", |e| Box::pin(api::list(e)))
        .doc(Operation::new("sandboxes", "list_sandboxes", "Lists the sandboxes; with `follow=true` their changes as server-sent events").query(sandbox_filter::PARAMETERS).paged(MAX_PAGE).answers::<SandboxList>(200).also(&[EVENTS])),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes", |e| Box::pin(api::create(e)))
        .doc(Operation::new("sandboxes", "create_sandbox", "Creates a sandbox, or several; with `Accept: text/event-stream` the progress of a pull comes as server-sent events").keyed().takes::<CreateSandbox>().example(r#"{"name":"demo","timeout_seconds":3600,"labels":{"team":"red"}}"#).answers::<CreateAnswer>(201).partial().also(&[EVENTS])),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}", |e| Box::pin(api::get(e)))
        .doc(Operation::new("sandboxes", "get_sandbox", "Describes a sandbox").answers::<SandboxInfo>(200)),
    Route::new(At::Server, &API, PATCH, "/api/v2/sandboxes/{name}", |e| Box::pin(changes::change(e)))
        .doc(Operation::new("sandboxes", "change_sandbox", "Changes the labels and times of a sandbox, without waking it").versioned().takes::<ChangeSandbox>().example(r#"{"labels":{"team":"red"}}"#).answers::<SandboxInfo>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/extend", |e| Box::pin(changes::extend(e)))
        .doc(Operation::new("sandboxes", "extend_sandbox", "Adds to the lifetime of a sandbox, without waking it").versioned().takes::<ExtendSandbox>().example(r#"{"seconds":600}"#).answers::<SandboxInfo>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/checkpoints", |e| Box::pin(states::checkpoint(e)))
        .doc(Operation::new("states", "create_checkpoint", "Seals the disk of a sandbox as a checkpoint of its history, without waking it").takes::<NewCheckpoint>().example(r#"{"note":"before the change"}"#).answers::<CheckpointInfo>(201)),
    Route::new(At::Server, &API, DELETE, "/api/v2/sandboxes/{name}/checkpoints/{checkpoint}", |e| Box::pin(states::remove_checkpoint(e)))
        .doc(Operation::new("states", "delete_checkpoint", "Removes a checkpoint, by number or id").answers::<DeletedState>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}/history", |e| Box::pin(states::history(e)))
        .doc(Operation::new("states", "list_checkpoints", "Lists the checkpoints of a sandbox, the oldest first").paged(MAX_PAGE).answers::<HistoryInfo>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}/network", |e| Box::pin(network::show(e)))
        .doc(Operation::new("sandboxes", "get_sandbox_network", "Describes what a sandbox may reach, and what it reached, without waking it").answers::<NetworkInfo>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/rollback", |e| Box::pin(states::roll_back(e)))
        .doc(Operation::new("states", "roll_back_sandbox", "Returns a sandbox to a checkpoint in place; its processes end").takes::<RollBack>().example(r#"{"to":"beginning"}"#).answers::<RolledBack>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/reset", |e| Box::pin(states::reset(e)))
        .doc(Operation::new("states", "reset_sandbox", "Returns a sandbox to its beginning, or to a snapshot, in place; its processes end").versioned().takes::<ResetSandbox>().answers::<RolledBack>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}/diff", |e| Box::pin(states::diff(e)))
        .doc(Operation::new("states", "compare_states", "Compares two states of a sandbox's disk by path, without waking it").query(DIFF).answers::<Differences>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/fork", |e| Box::pin(states::fork(e)))
        .doc(Operation::new("states", "fork_sandbox", "Creates sandboxes with the disk and the spec of another").takes::<ForkSandbox>().example(r#"{"count":2}"#).answers::<CreatedSandboxes>(201).partial()),
    Route::new(At::Server, &API, GET, "/api/v2/snapshots", |e| Box::pin(states::snapshots(e))).for_whole_tenant()
        .doc(Operation::new("states", "list_snapshots", "Lists the snapshots").paged(MAX_PAGE).answers::<SnapshotList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/snapshots", |e| Box::pin(states::create_snapshot(e))).for_whole_tenant()
        .doc(Operation::new("states", "create_snapshot", "Seals the disk of a sandbox as a snapshot, from which sandboxes are created").takes::<CreateSnapshot>().example(r#"{"name":"prepared","sandbox":"demo"}"#).answers::<SnapshotInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/snapshots/{name}", |e| Box::pin(states::snapshot(e))).for_whole_tenant()
        .doc(Operation::new("states", "get_snapshot", "Describes a snapshot").answers::<SnapshotInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/snapshots/{name}", |e| Box::pin(states::remove_snapshot(e))).for_whole_tenant()
        .doc(Operation::new("states", "delete_snapshot", "Removes a snapshot; sandboxes that were created from it stay").answers::<DeletedState>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/snapshots/import", |e| Box::pin(snapshots::import(e))).for_whole_tenant()
        .doc(Operation::new("states", "import_snapshot", "Adds the snapshot of an archive, with the image below it").query(snapshots::IMPORT_QUERY).receives(snapshots::ARCHIVE).answers::<SnapshotInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/snapshots/{name}/archive", |e| Box::pin(snapshots::export(e))).needs(Role::Use).for_whole_tenant()
        .doc(Operation::new("states", "export_snapshot", "Returns a snapshot with the image below it as one archive, an OCI image layout; processes that it keeps are left out, and `X-Arenite-Processes` says so").sends("application/x-tar")),
    Route::new(At::Server, &API, GET, "/api/v2/snapshots/{name}/files", |e| Box::pin(snapshots::list_files(e))).needs(Role::Use).for_whole_tenant()
        .doc(Operation::new("states", "list_snapshot_files", "Lists a directory of a snapshot").query(snapshots::FILES_QUERY).paged(MAX_PAGE).answers::<FileList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/snapshots/{name}/content", |e| Box::pin(snapshots::get_content(e))).needs(Role::Use).for_whole_tenant()
        .doc(Operation::new("states", "get_snapshot_file", "Returns a file of a snapshot, or the part of it that a `Range` names").query(snapshots::GET_QUERY)),
    Route::new(At::Server, &API, DELETE, "/api/v2/sandboxes/{name}", |e| Box::pin(api::delete(e)))
        .doc(Operation::new("sandboxes", "delete_sandbox", "Deletes a sandbox with its files").answers::<DeletedSandbox>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/pause", |e| Box::pin(api::pause(e)))
        .doc(Operation::new("sandboxes", "pause_sandbox", "Pauses a sandbox until its next call").takes::<PauseSandbox>().example(r#"{"kind":"freeze"}"#).answers::<SandboxInfo>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/resume", |e| Box::pin(api::resume(e)))
        .doc(Operation::new("sandboxes", "resume_sandbox", "Resumes a paused sandbox").takes::<Nothing>().answers::<SandboxInfo>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/sandboxes/{name}/start", |e| Box::pin(api::start(e)))
        .doc(Operation::new("sandboxes", "start_sandbox", "Runs a failed or lost sandbox again with its files, or one that is paused to its disk").takes::<Nothing>().answers::<SandboxInfo>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}/usage", |e| Box::pin(api::usage(e)))
        .doc(Operation::new("sandboxes", "get_usage", "Measures a sandbox's resource usage").answers::<SandboxUsage>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/usage/live", |e| Box::pin(api::live_usage(e)))
        .doc(Operation::new("sandboxes", "list_usage", "Measures the resource usage of all sandboxes").answers::<LiveUsage>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/events", |e| Box::pin(events::serve(e)))
        .doc(Operation::new("events", "list_events", "Returns the latest events of the sandboxes, the oldest first; with `follow=true` events as they come").query(EVENT_QUERY).answers::<EventPage>(200).also(&[EVENTS])),
    Route::new(At::Server, &API, GET, "/api/v2/usage", |e| Box::pin(usage::report(e))).for_whole_tenant()
        .doc(Operation::new("usage", "report_usage", "Returns what sandboxes used, as sums of whole hours").query(USAGE).answers::<UsageReport>(200).also(&["text/csv"])),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}/logs", |e| Box::pin(api::logs(e))).needs(Role::Use)
        .doc(Operation::new("sandboxes", "get_logs", "Returns the output of a sandbox's main command").sends("text/plain")),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}/steps", |e| Box::pin(api::steps(e)))
        .doc(Operation::new("sandboxes", "list_sandbox_steps", "Returns the steps of a sandbox").query(STEPS).answers::<StepPage>(200).also(&[EVENTS, LINES])),
    Route::new(At::Server, &API, GET, "/api/v2/sandboxes/{name}/steps/{number}/{part}", |e| Box::pin(api::step(e)))
        .doc(Operation::new("sandboxes", "get_sandbox_step", "Returns the `arguments` or the `observation` of a step")),
    Route::new(At::Server, &API, GET, "/api/v2/groups", |e| Box::pin(groups::list(e))).for_whole_tenant()
        .doc(Operation::new("groups", "list_groups", "Lists the groups of sandboxes").paged(MAX_PAGE).answers::<GroupList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/groups", |e| Box::pin(groups::create(e))).for_whole_tenant()
        .doc(Operation::new("groups", "create_group", "Creates a group with a lease; its sandboxes end with it").keyed().takes::<CreateGroup>().example(r#"{"name":"trainer","ttl_seconds":600}"#).answers::<GroupInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/groups/{name}", |e| Box::pin(groups::get(e))).for_whole_tenant()
        .doc(Operation::new("groups", "get_group", "Describes a group").answers::<GroupInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/groups/{name}", |e| Box::pin(groups::delete(e))).for_whole_tenant()
        .doc(Operation::new("groups", "delete_group", "Deletes a group with its sandboxes").answers::<DeletedGroup>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/groups/{name}/renew", |e| Box::pin(groups::renew(e))).for_whole_tenant()
        .doc(Operation::new("groups", "renew_group", "Starts the lease of a group again").takes::<RenewGroup>().example(r#"{"ttl_seconds":600}"#).answers::<GroupInfo>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/volumes", |e| Box::pin(volumes::list(e))).for_whole_tenant()
        .doc(Operation::new("volumes", "list_volumes", "Lists the volumes").paged(MAX_PAGE).answers::<VolumeList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/volumes", |e| Box::pin(volumes::create(e))).for_whole_tenant()
        .doc(Operation::new("volumes", "create_volume", "Creates an empty volume").keyed().takes::<CreateVolume>().example(r#"{"name":"data","size_bytes":1073741824}"#).answers::<VolumeInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/volumes/{name}", |e| Box::pin(volumes::get(e))).for_whole_tenant()
        .doc(Operation::new("volumes", "get_volume", "Describes a volume").answers::<VolumeInfo>(200)),
    Route::new(At::Server, &API, PATCH, "/api/v2/volumes/{name}", |e| Box::pin(volumes::change(e))).for_whole_tenant()
        .doc(Operation::new("volumes", "change_volume", "Changes the size and the labels of a volume").takes::<ChangeVolume>().example(r#"{"size_bytes":2147483648}"#).answers::<VolumeInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/volumes/{name}", |e| Box::pin(volumes::remove(e))).for_whole_tenant()
        .doc(Operation::new("volumes", "remove_volume", "Removes a volume with its files, unless sandboxes have it").query(volumes::REMOVE_QUERY).answers::<RemovedVolume>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/volumes/{name}/copy", |e| Box::pin(volumes::copy(e))).for_whole_tenant()
        .doc(Operation::new("volumes", "copy_volume", "Copies a volume at once: the copies share their files until one of them changes").keyed().takes::<CopyVolume>().example(r#"{"name":"data-copy"}"#).answers::<VolumeInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/volumes/{name}/files", |e| Box::pin(volumes::list_files(e))).needs(Role::Use).for_whole_tenant()
        .doc(Operation::new("volumes", "list_volume_files", "Lists a directory of a volume").query(volumes::FILES_QUERY).paged(MAX_PAGE).answers::<FileList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/volumes/{name}/content", |e| Box::pin(volumes::get_content(e))).needs(Role::Use).for_whole_tenant()
        .doc(Operation::new("volumes", "get_volume_file", "Returns a file of a volume, or the part of it that a `Range` names").query(volumes::GET_QUERY)),
    Route::new(At::Server, &API, PUT, "/api/v2/volumes/{name}/content", |e| Box::pin(volumes::put_content(e))).needs(Role::Use).for_whole_tenant()
        .doc(Operation::new("volumes", "put_volume_file", "Stores a file in a volume; it appears when it is complete").query(volumes::PUT_QUERY).receives(volumes::CONTENT).answers::<FileEntry>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/volumes/{name}/content", |e| Box::pin(volumes::delete_content(e))).needs(Role::Use).for_whole_tenant()
        .doc(Operation::new("volumes", "delete_volume_file", "Removes a file or a directory of a volume").query(volumes::DELETE_QUERY).answers::<RemovedFile>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/nodes", |e| Box::pin(nodes::list(e))).needs_operator()
        .doc(Operation::new("nodes", "list_nodes", "Lists the nodes of the cluster; none without a cluster").paged(MAX_PAGE).answers::<NodeList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/nodes/{name}/drain", |e| Box::pin(nodes::drain(e))).needs_operator()
        .doc(Operation::new("nodes", "drain_node", "Gives a node no new sandboxes, and deletes those that it has after a deadline").takes::<DrainNode>().answers::<Node>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/nodes/{name}/uncordon", |e| Box::pin(nodes::uncordon(e))).needs_operator()
        .doc(Operation::new("nodes", "uncordon_node", "Ends the drain of a node").takes::<Nothing>().answers::<Node>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/quarantine", |e| Box::pin(quarantine::list(e))).needs_operator()
        .doc(Operation::new("quarantine", "list_quarantine", "Lists the sandboxes that the server could not explain when it started").paged(MAX_PAGE).answers::<QuarantineList>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/quarantine/{id}", |e| Box::pin(quarantine::remove(e))).needs_operator()
        .doc(Operation::new("quarantine", "remove_quarantined", "Removes a quarantined sandbox").answers::<RemovedSandbox>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/quarantine/{id}/adopt", |e| Box::pin(quarantine::adopt(e))).needs_operator()
        .doc(Operation::new("quarantine", "adopt_quarantined", "Takes a sandbox out of quarantine").takes::<AdoptSandbox>().answers::<SandboxInfo>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/me", |e| Box::pin(tenants::me(e)))
        .doc(Operation::new("tenants", "get_me", "Describes the caller: its tenant and its rights").answers::<Me>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/tenants", |e| Box::pin(tenants::list(e))).needs_operator()
        .doc(Operation::new("tenants", "list_tenants", "Lists the tenants").paged(MAX_PAGE).answers::<TenantList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/tenants", |e| Box::pin(tenants::create(e))).needs_operator()
        .doc(Operation::new("tenants", "create_tenant", "Creates a tenant").keyed().takes::<CreateTenant>().example(r#"{"name":"red-team"}"#).answers::<TenantInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/tenants/{name}", |e| Box::pin(tenants::get(e))).needs_operator()
        .doc(Operation::new("tenants", "get_tenant", "Describes a tenant").answers::<TenantInfo>(200)),
    Route::new(At::Server, &API, PATCH, "/api/v2/tenants/{name}", |e| Box::pin(tenants::change(e))).needs_operator()
        .doc(Operation::new("tenants", "change_tenant", "Changes a tenant").takes::<ChangeTenant>().answers::<TenantInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/tenants/{name}", |e| Box::pin(tenants::remove(e))).needs_operator()
        .doc(Operation::new("tenants", "remove_tenant", "Removes a tenant with its keys; its trajectories stay").query(&[("force", "boolean", "Deletes its sandboxes, which otherwise prevent the removal")]).answers::<RemovedTenant>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/keys", |e| Box::pin(tenants::keys(e))).needs(Role::Admin)
        .doc(Operation::new("keys", "list_keys", "Lists the keys of a tenant").query(&[TENANT]).paged(MAX_PAGE).answers::<KeyList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/keys", |e| Box::pin(tenants::create_key(e))).needs(Role::Admin)
        .doc(Operation::new("keys", "create_key", "Creates a key; its text is shown only in this answer").keyed().takes::<CreateKey>().example(r#"{"name":"ci","role":"manage"}"#).answers::<NewKeyInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/keys/{id}", |e| Box::pin(tenants::get_key(e))).needs(Role::Admin)
        .doc(Operation::new("keys", "get_key", "Describes a key").answers::<KeyInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/keys/{id}", |e| Box::pin(tenants::revoke_key(e))).needs(Role::Admin)
        .doc(Operation::new("keys", "revoke_key", "Revokes a key at once, with everything that was opened with it").answers::<KeyInfo>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/keys/{id}/rotate", |e| Box::pin(tenants::rotate_key(e))).needs(Role::Admin)
        .doc(Operation::new("keys", "rotate_key", "Creates a key with the same rights, and ends the old one after an overlap").takes::<RotateKey>().answers::<NewKeyInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/audit", |e| Box::pin(tenants::audit(e))).needs(Role::Admin)
        .doc(Operation::new("audit", "list_audit", "Returns rows of the audit log, the newest first").query(AUDIT).paged(100).answers::<AuditPage>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/webhooks", |e| Box::pin(webhooks::list(e))).needs(Role::Admin)
        .doc(Operation::new("webhooks", "list_webhooks", "Lists the webhooks").paged(MAX_PAGE).answers::<WebhookList>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/webhooks", |e| Box::pin(webhooks::create(e))).needs(Role::Admin)
        .doc(Operation::new("webhooks", "create_webhook", "Creates a webhook; its secret is shown only in this answer").keyed().takes::<CreateWebhook>().example(r#"{"url":"https://example.com/hook","types":["sandbox.died"]}"#).answers::<NewWebhookInfo>(201)),
    Route::new(At::Server, &API, GET, "/api/v2/webhooks/{id}", |e| Box::pin(webhooks::get(e))).needs(Role::Admin)
        .doc(Operation::new("webhooks", "get_webhook", "Describes a webhook").answers::<WebhookInfo>(200)),
    Route::new(At::Server, &API, DELETE, "/api/v2/webhooks/{id}", |e| Box::pin(webhooks::remove(e))).needs(Role::Admin)
        .doc(Operation::new("webhooks", "remove_webhook", "Removes a webhook with its deliveries").answers::<RemovedWebhook>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/webhooks/{id}/test", |e| Box::pin(webhooks::test(e))).needs(Role::Admin)
        .doc(Operation::new("webhooks", "test_webhook", "Sends a test to a webhook once, and answers with the result").takes::<Nothing>().answers::<WebhookTest>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/webhooks/{id}/deliveries", |e| Box::pin(webhooks::deliveries(e))).needs(Role::Admin)
        .doc(Operation::new("webhooks", "list_deliveries", "Lists a webhook's deliveries, the newest first").query(DELIVERIES).paged(100).answers::<DeliveryPage>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/webhooks/{id}/deliveries/{number}/redeliver", |e| Box::pin(webhooks::redeliver(e))).needs(Role::Admin)
        .doc(Operation::new("webhooks", "redeliver", "Delivers an event again, with all retries").takes::<Nothing>().answers::<DeliveryInfo>(202)),
    Route::new(At::Server, &API, GET, "/api/v2/corpora", |e| Box::pin(corpora::list(e)))
        .doc(Operation::new("corpora", "list_corpora", "Lists the corpora").paged(MAX_PAGE).answers::<CorpusList>(200)),
    Route::new(At::Server, &API, GET, "/api/v2/corpora/{name}", |e| Box::pin(corpora::get(e)))
        .doc(Operation::new("corpora", "get_corpus", "Describes a corpus").answers::<CorpusInfo>(200)),
    Route::new(At::Server, &API, POST, "/api/v2/corpora/{name}/search", |e| Box::pin(corpora::search(e))).needs(Role::Read)
        .doc(Operation::new("corpora", "search_corpus", "Searches a corpus").takes::<SearchCorpus>().example(r#"{"query":"who built it?"}"#).answers::<FoundPassages>(200)),
    Route::new(At::Server, &API, ANY, "/api/v2/**", |e| Box::pin(api::unknown(e))),
    // Trajectories.
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories", |e| Box::pin(trajectories::list(e)))
        .doc(Operation::new("trajectories", "list_trajectories", "Lists the trajectories, those that started last first").query(TRAJECTORY_QUERY).paged(MAX_PAGE).answers::<TrajectoryList>(200)),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}", |e| Box::pin(trajectories::steps(e)))
        .doc(Operation::new("trajectories", "get_trajectory", "Returns the steps of a trajectory").query(STEPS).answers::<StepPage>(200).also(&[EVENTS, LINES])),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/steps", |e| Box::pin(trajectories::steps(e)))
        .doc(Operation::new("trajectories", "list_steps", "The same").query(STEPS).answers::<StepPage>(200).also(&[EVENTS, LINES])),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/steps/{number}/{part}", |e| Box::pin(trajectories::step(e)))
        .doc(Operation::new("trajectories", "get_step", "Returns the `arguments` or the `observation` of a step")),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/sessions", |e| Box::pin(trajectories::sessions(e)))
        .doc(Operation::new("trajectories", "list_sessions", "Lists the starts and ends of a trajectory's sessions").paged(MAX_PAGE).answers::<SessionList>(200)),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/network", |e| Box::pin(trajectories::network(e)))
        .doc(Operation::new("trajectories", "list_network_records", "Lists what the network policy of a trajectory's sandbox decided: refusals, and connections that ended").paged(MAX_PAGE).answers::<NetworkRecordList>(200)),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/verify", |e| Box::pin(trajectories::verify(e)))
        .doc(Operation::new("trajectories", "verify_trajectory", "Checks a trajectory, and lists what was altered").answers::<Verification>(200)),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/export", |e| Box::pin(trajectories::export(e)))
        .doc(Operation::new("trajectories", "export_trajectory", "Exports a trajectory as a file").query(&[("format", "string", "The format of the file; `jsonl` by default"), ORIGIN, RESULT, CLASS, ("network", "boolean", "Whether `jsonl` has the network records, too"), ("annotations", "boolean", "Whether the file has the annotations; by default if the format has a place for them, so not in `openai-messages` and `sharegpt`")])
            .sends(LINES).also(&["application/json", "application/x-asciicast"])),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/blobs/{digest}", |e| Box::pin(trajectories::blob(e)))
        .doc(Operation::new("trajectories", "get_blob", "Returns a large body by its BLAKE3 hash")),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/annotations", |e| Box::pin(annotations::list(e)))
        .doc(Operation::new("trajectories", "list_annotations", "Lists the annotations of a trajectory, the oldest first").query(ANNOTATIONS).paged(100).answers::<AnnotationList>(200)),
    Route::new(At::Server, &TRAJECTORIES, POST, "/api/v1/trajectories/{id}/annotations", |e| Box::pin(annotations::create(e))).needs(Role::Use)
        .doc(Operation::new("trajectories", "create_annotation", "Annotates a trajectory, or one of its steps").keyed().takes::<CreateAnnotation>().answers::<Annotation>(201)),
    Route::new(At::Server, &TRAJECTORIES, DELETE, "/api/v1/trajectories/{id}/annotations", |e| Box::pin(annotations::remove_all(e)))
        .doc(Operation::new("trajectories", "remove_annotations", "Removes all annotations of a trajectory, also after it is gone").answers::<RemovedAnnotations>(200)),
    Route::new(At::Server, &TRAJECTORIES, GET, "/api/v1/trajectories/{id}/annotations/{annotation}", |e| Box::pin(annotations::get(e)))
        .doc(Operation::new("trajectories", "get_annotation", "Returns an annotation").answers::<Annotation>(200)),
    Route::new(At::Server, &TRAJECTORIES, PATCH, "/api/v1/trajectories/{id}/annotations/{annotation}", |e| Box::pin(annotations::change(e))).needs(Role::Use)
        .doc(Operation::new("trajectories", "change_annotation", "Changes an annotation").versioned().takes::<ChangeAnnotation>().answers::<Annotation>(200)),
    Route::new(At::Server, &TRAJECTORIES, DELETE, "/api/v1/trajectories/{id}/annotations/{annotation}", |e| Box::pin(annotations::remove(e))).needs(Role::Use)
        .doc(Operation::new("trajectories", "remove_annotation", "Removes an annotation").versioned().answers::<RemovedAnnotation>(200)),
    Route::new(At::Server, &TRAJECTORIES, ANY, "/api/v1/trajectories/**", |e| Box::pin(trajectories::unknown(e))),
    // Agent-Sandbox.
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/sandbox", |e| Box::pin(agent_sandbox::serve_list(e)))
        .doc(Operation::new("agent-sandbox", "agent_sandbox_list", "Lists the sandboxes").answers::<agent_sandbox::ListAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, POST, "/api/v1/sandbox", |e| Box::pin(agent_sandbox::serve_create(e)))
        .doc(Operation::new("agent-sandbox", "agent_sandbox_create", "Creates a sandbox").takes::<agent_sandbox::Create>().answers::<agent_sandbox::MessageAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/sandbox/{name}", |e| Box::pin(agent_sandbox::serve_get(e)))
        .doc(Operation::new("agent-sandbox", "agent_sandbox_get", "Describes a sandbox").answers::<agent_sandbox::OneAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, DELETE, "/api/v1/sandbox/{name}", |e| Box::pin(agent_sandbox::serve_delete(e)))
        .doc(Operation::new("agent-sandbox", "agent_sandbox_delete", "Deletes a sandbox").answers::<agent_sandbox::MessageAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, POST, "/api/v1/sandbox/pause/{name}", |e| Box::pin(agent_sandbox::tools::pause(e)))
        .doc(Operation::new("agent-sandbox", "agent_sandbox_pause", "Pauses a sandbox").answers::<agent_sandbox::MessageAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, POST, "/api/v1/sandbox/resume/{name}", |e| Box::pin(agent_sandbox::tools::resume(e)))
        .doc(Operation::new("agent-sandbox", "agent_sandbox_resume", "Resumes a sandbox").answers::<agent_sandbox::MessageAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, POST, "/api/v1/sandbox/metrics", |e| Box::pin(agent_sandbox::tools::metrics(e))).needs(Role::Read)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_metrics", "Measures CPU and memory of sandboxes").takes::<agent_sandbox::tools::Names>().answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/sandbox/files/{name}", |e| Box::pin(agent_sandbox::tools::list_files(e))).needs(Role::Use)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_list_files", "Lists a directory").query(PATH_IN_SANDBOX).answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, DELETE, "/api/v1/sandbox/files/{name}", |e| Box::pin(agent_sandbox::tools::delete_file(e))).needs(Role::Use)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_delete_file", "Deletes a file or a directory").query(PATH_IN_SANDBOX).answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, POST, "/api/v1/sandbox/files/{name}/upload", |e| Box::pin(agent_sandbox::tools::upload_file(e))).needs(Role::Use)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_upload_file", "Stores the part `file` of a form").query(PATH_IN_SANDBOX).answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/sandbox/files/{name}/download", |e| Box::pin(agent_sandbox::tools::download_file(e))).needs(Role::Use)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_download_file", "Returns a file").query(PATH_IN_SANDBOX)),
    Route::new(At::Server, &AGENT_SANDBOX, POST, "/api/v1/terminal/sandbox/{name}", |e| Box::pin(agent_sandbox::tools::terminal(e))).needs(Role::Use)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_terminal", "Runs a command").takes::<agent_sandbox::tools::Command>().answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/terminal/sandbox/{name}/detect-shell", |e| Box::pin(agent_sandbox::tools::detect_shell(e))).needs(Role::Use)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_detect_shell", "Finds a sandbox's shell").answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/logs/sandbox/{name}", |e| Box::pin(agent_sandbox::tools::logs(e))).needs(Role::Use)
        .doc(Operation::new("agent-sandbox", "agent_sandbox_logs", "Returns the end of the main command's output").query(&[("tailLines", "integer", "The number of lines, at most 2000; 200 by default")]).answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/ratelimit", |e| Box::pin(agent_sandbox::tools::rate_limit(e))).for_whole_tenant()
        .doc(Operation::new("agent-sandbox", "agent_sandbox_rate_limit", "Shows the tenant's limits and use").answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, GET, "/api/v1/pool", |e| Box::pin(agent_sandbox::tools::pools(e)))
        .doc(Operation::new("agent-sandbox", "agent_sandbox_pools", "Lists the templates with warm pools").answers::<agent_sandbox::tools::DataAnswer>(200)),
    Route::new(At::Server, &AGENT_SANDBOX, ANY, "/api/v1/sandbox/**", |e| Box::pin(agent_sandbox::unknown(e))),
    // AgentFlow. Its paths work without `/api/v1` too, see [`agentflow::ROOT`].
    Route::new(At::Server, &AGENTFLOW, GET, "/docs", |e| Box::pin(pages::docs::serve(e))).page(),
    Route::new(At::Server, &AGENTFLOW, GET, "/redoc", |e| Box::pin(pages::docs::serve(e))).page(),
    Route::new(At::Server, &AGENTFLOW, GET, "/openapi.json", |e| Box::pin(pages::openapi::of_agentflow(e))),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/execute", |e| Box::pin(agentflow::execute(e))).needs(Role::Use)
        .doc(Operation::new("Execute", "post_execute", "Runs a tool").takes::<ExecuteRequest>().takes_also::<Message>().answers::<Envelope>(200)),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/execute/batch", |e| Box::pin(agentflow::execute_batch(e))).needs(Role::Use)
        .doc(Operation::new("Execute", "post_execute_batch", "Runs several tools").takes::<ExecuteBatchRequest>().takes_also::<Message>().envelops::<Envelope, BatchResults>().partial()),
    Route::new(At::Server, &AGENTFLOW, GET, "/api/v1/tools", |e| Box::pin(agentflow::tools(e)))
        .doc(Operation::new("Tools", "get_tools", "Lists the tools with their parameters").query(TOOLS).answers::<ToolList>(200)),
    Route::new(At::Server, &AGENTFLOW, GET, "/api/v1/tools/{tool_name}/schema", |e| Box::pin(agentflow::tool_schema(e)))
        .doc(Operation::new("Tools", "get_tools__tool_name__schema", "Describes one tool").answers::<ToolInfo>(200)),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/session/create", |e| Box::pin(agentflow::session_create(e))).needs(Role::Manage)
        .doc(Operation::new("Sessions", "post_session_create", "Creates a worker's session").takes::<SessionCreateRequest>().envelops::<Envelope, CreatedSession>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/session/destroy", |e| Box::pin(agentflow::session_destroy(e))).needs(Role::Manage)
        .doc(Operation::new("Sessions", "post_session_destroy", "Ends a session").takes::<SessionDestroyRequest>().envelops::<Envelope, DestroyedSession>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/session/list", |e| Box::pin(agentflow::session_list(e))).needs(Role::Read)
        .doc(Operation::new("Sessions", "post_session_list", "Lists a worker's sessions").takes::<WorkerRequest>().envelops::<Envelope, WorkerSessions>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/session/refresh", |e| Box::pin(agentflow::session_refresh(e))).needs(Role::Use)
        .doc(Operation::new("Sessions", "post_session_refresh", "Restarts the lifetime of one session, or of all").takes::<SessionRefreshRequest>().envelops::<Envelope, RefreshedSessions>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/lifecycle/heartbeat", |e| Box::pin(agentflow::heartbeat(e))).needs(Role::Use)
        .doc(Operation::new("Sessions", "post_lifecycle_heartbeat", "Lists the active sessions of a worker").takes::<WorkerRequest>().envelops::<Envelope, ActiveSessions>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/lifecycle/status", |e| Box::pin(agentflow::status(e))).needs(Role::Read)
        .doc(Operation::new("Sessions", "post_lifecycle_status", "Reports the state of a worker's sessions").takes::<WorkerRequest>().envelops::<Envelope, WorkerStatus>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/worker/disconnect", |e| Box::pin(agentflow::disconnect(e))).needs(Role::Manage)
        .doc(Operation::new("Sessions", "post_worker_disconnect", "Ends all sessions of a worker").takes::<WorkerDisconnectRequest>().envelops::<Envelope, DisconnectedWorker>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/init/resource", |e| Box::pin(agentflow::init(e))).needs(Role::Manage)
        .doc(Operation::new("Sessions", "post_init_resource", "Creates a session, or finds it").takes::<InitResourceRequest>().envelops::<Envelope, InitializedResource>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/init/batch", |e| Box::pin(agentflow::init_batch(e))).needs(Role::Manage)
        .doc(Operation::new("Sessions", "post_init_batch", "Creates several sessions").takes::<InitBatchRequest>().envelops::<Envelope, InitializedBatch>().partial()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/init/from-config", |e| Box::pin(agentflow::init_from_config(e))).needs_operator()
        .doc(Operation::new("Sessions", "post_init_from_config", "Reads a configuration file of the server").takes::<InitFromConfigRequest>().envelops::<Envelope, LoadedConfig>()),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/warmup", |e| Box::pin(agentflow::warmup(e))).needs(Role::Use)
        .doc(Operation::new("Server", "post_warmup", "Prepares backends").takes::<WarmupRequest>().answers::<WarmedBackends>(200)),
    Route::new(At::Server, &AGENTFLOW, GET, "/api/v1/warmup/status", |e| Box::pin(agentflow::warmup_status(e)))
        .doc(Operation::new("Server", "get_warmup_status", "Lists which backends are prepared").answers::<WarmupStatus>(200)),
    Route::new(At::Server, &AGENTFLOW, POST, "/api/v1/server/shutdown", |e| Box::pin(agentflow::shutdown(e))).needs_operator()
        .doc(Operation::new("Server", "post_server_shutdown", "Stops the server").takes::<ShutdownRequest>().answers::<ServerShutdown>(200)),
    Route::new(At::Server, &AGENTFLOW, POST, "/shutdown", |e| Box::pin(agentflow::shutdown(e))).needs_operator(),
    Route::new(At::Server, &AGENTFLOW, ANY, "/api/v1/**", |e| Box::pin(agentflow::unknown(e))),
    Route::new(At::Server, &AGENTFLOW, ANY, "/execute/**", |e| Box::pin(agentflow::unknown(e))),
    Route::new(At::Server, &AGENTFLOW, ANY, "/session/**", |e| Box::pin(agentflow::unknown(e))),
    Route::new(At::Server, &AGENTFLOW, ANY, "/tools/**", |e| Box::pin(agentflow::unknown(e))),
    Route::new(At::Server, &AGENTFLOW, ANY, "/lifecycle/**", |e| Box::pin(agentflow::unknown(e))),
    Route::new(At::Server, &AGENTFLOW, ANY, "/worker/**", |e| Box::pin(agentflow::unknown(e))),
    Route::new(At::Server, &AGENTFLOW, ANY, "/init/**", |e| Box::pin(agentflow::unknown(e))),
    Route::new(At::Server, &AGENTFLOW, ANY, "/warmup/**", |e| Box::pin(agentflow::unknown(e))),
    // Not there.
    Route::new(At::Server, &MISSING, ANY, "/sandboxes/**", |e| Box::pin(missing(e))),
    Route::new(At::Server, &MISSING, ANY, "/v2/sandboxes/**", |e| Box::pin(missing(e))),
    Route::new(At::Server, &MISSING, ANY, "/templates/**", |e| Box::pin(missing(e))),
    Route::new(At::Both, &UNKNOWN, ANY, "/internal/**", |e| Box::pin(internal(e))),
];

const EVENTS: &str = "text/event-stream";
const LINES: &str = "application/x-ndjson";
pub(crate) const FOLLOW: Query = ("follow", "boolean", "Sends events as they come, instead of what there is");
const ORIGIN: Query = ("origin", "string", "Only steps of these causes: `agent`, `person`, `system`, separated by commas");
const RESULT: Query = ("result", "string", "Only `failed` or `succeeded` steps");
const CLASS: Query = ("class", "agent|infrastructure", "Only failed steps of this class");
const PATH_IN_SANDBOX: &[Query] = &[("path", "string", "A path in the sandbox")];
const TENANT: Query = ("tenant", "string", "Another tenant than the caller's; for operators");
const EVENT_QUERY: &[Query] = &[
    ("type", "string[]", "Only events of these types, separated by commas"),
    ("sandbox", "string[]", "Only events of this sandbox, by its name or its id; repeatable"),
    ("label", "string[]", "Only events of sandboxes with this label, as `KEY=VALUE`; repeatable"),
    ("after", "string", "The `id` of the event before the first one; `Last-Event-ID` takes precedence"),
    ("limit", "integer", "The most events, from 1 to 1000; 100 by default"),
    FOLLOW,
];
const DELIVERIES: &[Query] = &[("state", "pending|delivered|dead", "Only deliveries in this state")];
const AUDIT: &[Query] = &[
    ("tenant", "string", "Only rows of this tenant; without it, operators get the rows of all tenants"),
    ("since", "date-time", "Only rows from this time on, in RFC 3339"),
    ("until", "date-time", "Only rows up to this time, in RFC 3339"),
];
const USAGE: &[Query] = &[
    ("tenant", "string", "Only this tenant; without it, operators get all tenants"),
    ("since", "date-time", "From the hour that has this time, in RFC 3339"),
    ("until", "date-time", "Up to the hour that has the moment before this time, in RFC 3339"),
    ("group", "tenant|sandbox|hour|template", "What the rows are sums of; `tenant` by default"),
    ("format", "json|csv", "`csv` for comma-separated values, as with `Accept: text/csv`"),
];
const DIFF: &[Query] = &[
    ("before", "string", "A checkpoint's number or id, `beginning` (the default), or `current`"),
    ("after", "string", "The same; `current` by default"),
    ("limit", "integer", "The most paths, from 1 to 10000; 1000 by default"),
];
const STEPS: &[Query] = &[
    ("after", "integer", "The number of the step before the first one"),
    ("limit", "integer", "The most steps, from 1 to 1000; 100 by default"),
    ORIGIN,
    RESULT,
    CLASS,
    ("format", "string", "`jsonl` for all steps, one a line"),
    ("bodies", "string", "With `format=jsonl`, `inline` also for large bodies"),
    FOLLOW,
    ("tail", "integer", "With `follow=true`, the most past steps"),
];
const TRAJECTORY_QUERY: &[Query] = &[
    ("sandbox", "string", "Only trajectories of this sandbox, by its name or its id"),
    ("worker", "string", "Only trajectories of this worker"),
    ("task", "string", "Only trajectories of this task"),
    ("since", "date-time", "Only trajectories with steps from this time on, in RFC 3339"),
    ("until", "date-time", "Only trajectories with steps up to this time, in RFC 3339"),
    (
        "failed",
        "boolean",
        "`true`: only trajectories with failed steps; `false`: only those without, as far as they were counted",
    ),
    annotations::ANNOTATED,
    annotations::LABEL,
    annotations::MIN_RATING,
];
const ANNOTATIONS: &[Query] = &[("step", "integer", "Only annotations of this step")];

const TOOLS: &[Query] = &[
    ("include_hidden", "boolean", "Also the hidden tools; false by default"),
    ("format", "openai|openai_responses|anthropic|mcp|agentflow", "The format of another API"),
];

static NOWHERE: Route = Route::new(At::Both, &UNKNOWN, ANY, OTHER, |e| Box::pin(unknown(e)));
static PORT: Route =
    Route::new(At::Both, &PREVIEW, ANY, OTHER, |e| Box::pin(proxy::preview::serve(e))).needs(Role::Use).page().runs_in_sandbox();

/// The name in metrics of a path without its own route.
const OTHER: &str = "other";

/// The routes of one kind of host.
struct Table {
    exact: Router<Vec<&'static Route>>,
    /// Those that end with `/**`; longer prefixes first.
    below: Vec<(String, &'static Route)>,
}

impl Table {
    fn new(kinds: [At; 2]) -> Self {
        let mut table = Self { exact: Router::new(), below: Vec::new() };
        for route in ROUTES.iter().filter(|route| kinds.contains(&route.at)) {
            route.patterns().for_each(|pattern| table.insert(pattern, route));
        }
        table.below.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        table
    }

    fn insert(&mut self, pattern: &str, route: &'static Route) {
        if let Some(prefix) = pattern.strip_suffix("/**") {
            self.below.push((prefix.to_owned(), route));
            return;
        }
        let slash = (route.surface.has_slash && pattern.len() > 1).then(|| format!("{pattern}/"));
        for pattern in [Some(pattern.to_owned()), slash].into_iter().flatten() {
            match self.exact.at_mut(&pattern) {
                Ok(found) if found.value.iter().all(|other| other.pattern == route.pattern) => found.value.push(route),
                _ => self.exact.insert(pattern, vec![route]).unwrap_or_else(|error| unreachable!("{}: {error}", route.pattern)),
            }
        }
    }

    fn find(&self, path: &str, method: &Method) -> Found {
        if let Ok(found) = self.exact.at(path) {
            let params = found.params.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
            if let Some(route) = found.value.iter().find(|route| route.takes(method)) {
                return Found { route, params, wrong_method: None };
            }
            let methods = found.value.iter().flat_map(|route| route.allowed()).collect::<Vec<_>>();
            return Found { route: found.value[0], params, wrong_method: Some(Refusal::method_not_allowed(&methods)) };
        }
        let Some((longest, first)) = self.below.iter().find(|(prefix, _)| is_under(path, prefix)) else {
            return Found::unknown();
        };
        let same = || self.below.iter().filter(|(prefix, _)| prefix == longest).map(|(_, route)| *route);
        let fitting = same().find(|route| route.takes(method));
        let wrong_method = fitting.is_none().then(|| {
            let methods: Vec<_> = same().flat_map(Route::allowed).collect();
            Refusal::method_not_allowed(&methods)
        });
        Found { route: fitting.unwrap_or(first), params: Params::new(), wrong_method }
    }
}

/// The routes at the root of the server's own hosts.
static SERVER: LazyLock<Table> = LazyLock::new(|| Table::new([At::Server, At::Both]));
/// Those of a sandbox: below its prefix, or on its own host. There are no control routes.
static SANDBOX: LazyLock<Table> = LazyLock::new(|| Table::new([At::Sandbox, At::Both]));

/// The route of a request.
pub(crate) struct Found {
    pub(crate) route: &'static Route,
    pub(crate) params: Params,
    pub(crate) wrong_method: Option<Refusal>,
}

impl Found {
    /// No route.
    pub(crate) fn unknown() -> Self {
        Self { route: &NOWHERE, params: Params::new(), wrong_method: None }
    }

    /// A port of a sandbox.
    pub(crate) fn preview() -> Self {
        Self { route: &PORT, ..Self::unknown() }
    }
}

/// The routes of AgentFlow's document, or of the server's other interfaces'.
pub(crate) fn described(is_agentflow: bool) -> impl Iterator<Item = (&'static Route, &'static Operation)> {
    let routes = ROUTES.iter().filter(move |route| route.at == At::Server && route.surface.is_agentflow == is_agentflow);
    routes.filter_map(|route| Some((route, route.operation.as_ref()?)))
}

/// The routes that a sandbox's document has beside those of its guest.
pub(crate) fn described_of_sandbox() -> impl Iterator<Item = (&'static Route, &'static Operation)> {
    let routes = ROUTES.iter().filter(|route| route.at != At::Server);
    routes.filter_map(|route| Some((route, route.operation.as_ref()?)))
}

/// A route as tests see it.
#[derive(Debug, Clone)]
pub struct RouteFacts {
    pub pattern: String,
    /// None: its handler, or a sandbox's guest, decides.
    pub methods: Option<Vec<String>>,
    /// It exists at the root of the server's own hosts.
    pub at_server: bool,
    /// It exists below `/sandbox/{name}` and on the sandbox's own host.
    pub at_sandbox: bool,
    pub public: bool,
    /// The right that it needs, by method: a role, or `operator`.
    pub need: fn(&RouteFacts, &str) -> String,
    route: &'static Route,
}

/// All routes, also under their shorter paths: for the tests that call each of them.
pub fn route_facts() -> Vec<RouteFacts> {
    let need = |facts: &RouteFacts, method: &str| match facts.route.need(&method.parse().unwrap_or(Method::POST)) {
        Need::Role(role) => role.to_string(),
        Need::Operator => "operator".to_owned(),
    };
    let facts = |route: &'static Route, pattern: &str| RouteFacts {
        pattern: pattern.to_owned(),
        methods: route.methods.map(|methods| methods.iter().map(Method::to_string).collect()),
        at_server: route.at != At::Sandbox,
        at_sandbox: route.at != At::Server,
        public: route.public,
        need,
        route,
    };
    let all = ROUTES.iter().flat_map(|route| route.patterns().map(move |pattern| facts(route, pattern)));
    all.collect()
}

/// The route that stands for the interface of a path that can't be decoded.
pub(crate) fn find_interface(path: &str) -> &'static Route {
    let in_sandbox = path.strip_prefix("/sandbox/").and_then(|rest| Some(&rest[rest.find('/')?..]));
    let path = in_sandbox.unwrap_or(path);
    let is_above =
        |route: &&Route| is_under(path, route.pattern.split('{').next().unwrap_or_default().trim_end_matches(['/', '*']));
    let has_own_format =
        |route: &&Route| [&AGENT_SANDBOX, &API, &TRAJECTORIES].iter().any(|own| std::ptr::eq(route.surface, *own));
    let is_there = |route: &&Route| in_sandbox.is_none() || route.at != At::Server;
    ROUTES.iter().filter(has_own_format).filter(is_there).find(is_above).unwrap_or(&NOWHERE)
}

/// Finds the route of a decoded path.
pub(crate) fn find(path: &str, host: &HostKind, method: &Method) -> Found {
    if *host != HostKind::Server {
        return SANDBOX.find(path, method);
    }
    match in_sandbox(path) {
        Some(path) => SANDBOX.find(path, method),
        None => SERVER.find(path, method),
    }
}

/// What comes after `/sandbox/{name}`.
fn in_sandbox(path: &str) -> Option<&str> {
    let rest = path.strip_prefix("/sandbox/")?;
    Some(rest.find('/').map_or("/", |at| &rest[at..]))
}

/// Whether a path of the server's own host leads only into a sandbox.
pub(crate) fn leads_into_sandbox(path: &str) -> bool {
    find(path, &HostKind::Server, &Method::GET).route.leads_into_sandbox
}

/// The name of a request's route, for metrics: one of a bounded set, whatever paths clients request.
pub(crate) fn metric_name(gateway: &Gateway, route: &'static Route, path: &crate::path::Path) -> &'static str {
    if !route.runs_in_sandbox {
        return route.prefix().map_or(route.pattern, |_| OTHER);
    }
    let path = in_sandbox(&path.decoded).unwrap_or(&path.decoded);
    gateway.guest_routes().at(path.strip_suffix('/').unwrap_or(path)).map_or(OTHER, |found| *found.value)
}

async fn unknown(exchange: &mut Exchange) -> Answered {
    let shown: String = exchange.path.decoded.chars().take(200).collect();
    let refusal = Refusal::not_found(format!("there is nothing at {shown}"));
    Err(match &exchange.host.kind {
        HostKind::Sandbox(id) => refusal.hint(format!(
            "this host is sandbox {id}'s own and has its paths alone; call the server by its own name for the others"
        )),
        _ => refusal.hint(
            "a sandbox's API is at /v1 and /sandbox/{name}/v1, sandboxes at /api/v1/sandbox and /api/v2/sandboxes; GET /v1/docs shows all",
        ),
    })
}

/// Never answered from outside.
async fn internal(_: &mut Exchange) -> Answered {
    Err(Refusal::not_found("there is nothing at this path"))
}

async fn missing(_: &mut Exchange) -> Answered {
    Err(Refusal::new(ErrorCode::Unsupported, "E2B's API is not there yet").hint("GET /v1/docs shows what is"))
}

/// The patterns of one interface.
#[cfg(test)]
pub(crate) fn patterns(surface: &str) -> impl Iterator<Item = &'static str> {
    ROUTES.iter().filter(move |route| route.surface.name == surface).map(|route| route.pattern)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;
    use crate::auth::{Authentication, TICKET_TTL};
    use crate::harness::Harness;

    fn pattern(path: &str, host: &HostKind) -> &'static str {
        find(path, host, &Method::GET).route.pattern
    }

    #[test]
    fn a_path_that_cannot_be_decoded_is_of_an_interface() {
        for (path, surface) in [
            ("/api/v2/sandboxes/%00", &API),
            ("/steps/%00/observation", &TRAJECTORIES),
            ("/sandbox/a/steps/%00/observation", &TRAJECTORIES),
            ("/sandbox/a/api/v2/sandboxes/%00", &UNKNOWN),
            ("/sandbox/%00", &UNKNOWN),
            ("/v1/%00", &UNKNOWN),
        ] {
            assert_eq!(find_interface(path).surface.name, surface.name, "{path}");
        }
    }

    #[test]
    fn every_path_has_its_route() {
        for (path, wanted) in [
            ("/", "/"),
            ("/trajectory/sb-1", "/trajectory/{id}"),
            ("/trajectory/", "/trajectory/"),
            ("/trajectory/a/b", OTHER),
            ("/trajectories", "/trajectories"),
            ("/trajectoryx", OTHER),
            ("/v1/ping", "/v1/**"),
            ("/v1", "/v1/**"),
            ("/v1x", OTHER),
            ("/v1/docs", "/v1/docs"),
            ("/v1/openapi.json", "/v1/openapi.json"),
            ("/v1/mcp", "/v1/mcp"),
            ("/v1/mcp/servers", "/v1/**"),
            ("/sandbox/a/v1/mcp", "/v1/mcp"),
            ("/sandbox/a", "/"),
            ("/sandbox/a/", "/"),
            ("/index.html", "/index.html"),
            ("/steps", "/steps"),
            ("/sandbox/a/steps/3/observation", "/steps/{number}/{part}"),
            ("/sandbox/a/steps/3", "/steps/**"),
            ("/sandbox/a/stepsx", OTHER),
            ("/sandbox/a/v1/bash/exec", "/v1/**"),
            ("/sandbox/a/index.html", "/index.html"),
            ("/sandbox/a/internal/hello", "/internal/**"),
            ("/sandbox/a/api/v1/sandbox", OTHER),
            ("/sandbox/a/sandbox/b/v1/ping", OTHER),
            ("/sandbox/a/metrics", OTHER),
            ("/sandbox", OTHER),
            ("/internal", "/internal/**"),
            ("/api/v1/sandbox", "/api/v1/sandbox"),
            ("/api/v1/sandbox/", "/api/v1/sandbox"),
            ("/api/v1/sandbox/a", "/api/v1/sandbox/{name}"),
            ("/api/v1/sandbox/a/b", "/api/v1/sandbox/**"),
            ("/api/v1/sandboxes", "/api/v1/**"),
            ("/api/v1/trajectories/x", "/api/v1/trajectories/{id}"),
            ("/api/v1/trajectories/x/steps/1", "/api/v1/trajectories/**"),
            ("/api/v1/execute", "/api/v1/execute"),
            ("/execute", "/api/v1/execute"),
            ("/execute/", "/api/v1/execute"),
            ("/execute/x", "/execute/**"),
            ("/tools/bash:run/schema", "/api/v1/tools/{tool_name}/schema"),
            ("/tools/bash:run", "/tools/**"),
            ("/shutdown", "/shutdown"),
            ("/shutdown/x", OTHER),
            ("/worker/disconnect", "/api/v1/worker/disconnect"),
            ("/warmup/status", "/api/v1/warmup/status"),
            ("/warmups", OTHER),
            ("/docs", "/docs"),
            ("/openapi.json", "/openapi.json"),
            ("/docs/x", OTHER),
            ("/sandbox/a/docs", OTHER),
            ("/api/v2/sandboxes", "/api/v2/sandboxes"),
            ("/api/v2/sandboxes/a/nothing", "/api/v2/**"),
            ("/sandboxes", "/sandboxes/**"),
            ("/healthz", "/healthz"),
            ("/auth/x", OTHER),
            ("/sandbox/a/login", OTHER),
            ("/sandbox/a/terminal", "/terminal"),
            ("/sandbox/a/vnc/", "/vnc/"),
            ("/vnc/other", OTHER),
            ("/sandbox/a/cdp/json/version", "/cdp/**"),
            ("/sandbox/a/tickets", "/tickets"),
            ("/static/sandbox/xterm@5.3.0/lib/xterm.js", "/static/sandbox/**"),
            ("/static/other", OTHER),
            ("/sandbox/a/llms.txt", "/llms.txt"),
            ("/nothing", OTHER),
        ] {
            assert_eq!(pattern(path, &HostKind::Server), wanted, "{path}");
        }
        let own = HostKind::Sandbox("sabcdefghijk".parse().unwrap());
        for (path, wanted) in [
            ("/", "/"),
            ("/steps", "/steps"),
            ("/v1/ping", "/v1/**"),
            ("/api/v1/sandbox", OTHER),
            ("/api/v2/sandboxes", OTHER),
            ("/metrics", OTHER),
            ("/sandbox/victim/v1/ping", OTHER),
            ("/internal/hello", "/internal/**"),
        ] {
            assert_eq!(pattern(path, &own), wanted, "{path}");
        }
        assert_eq!(find("/", &own, &Method::GET).route.at, At::Sandbox);
        assert_eq!(find("/", &HostKind::Server, &Method::GET).route.at, At::Server);
    }

    #[test]
    fn sandboxes_redirect_only_into_themselves() {
        for (path, wanted) in [
            ("/v1/ping", true),
            ("/sandbox/a/terminal", true),
            ("/code-server/", true),
            ("/", false),
            ("/sandbox/a/", false),
            ("/api/v2/sandboxes", false),
            ("/tickets", false),
            ("/login", false),
            ("/nothing", false),
        ] {
            assert_eq!(leads_into_sandbox(path), wanted, "{path}");
        }
    }

    /// A path that a pattern matches.
    fn example(route: &Route) -> String {
        let of_sandbox = if route.at == At::Server { "" } else { "/sandbox/x" };
        let path = route
            .pattern
            .replace("/**", "/80/x")
            .split('/')
            .map(|segment| if segment.starts_with('{') { "1" } else { segment })
            .collect::<Vec<_>>()
            .join("/");
        format!("{of_sandbox}{path}")
    }

    #[tokio::test]
    async fn no_route_answers_a_caller_without_credentials() {
        let server = Harness::with(|_, gateway| {
            gateway.auth = Authentication::new(Some("the-key-of-the-test"), None, TICKET_TTL).unwrap();
        })
        .await;
        let mut open = BTreeSet::new();
        for route in ROUTES {
            for method in route.methods.unwrap_or(&[Method::GET, Method::POST, Method::DELETE]) {
                let path = example(route);
                let answer = server.call(method.as_str(), &path, Value::Null).await;
                if answer.status != 401 {
                    open.insert(route.pattern);
                }
            }
        }
        // `/auth`, `/login` and a public ping check credentials themselves.
        let public = ["/healthz", "/health", "/ready", "/login", "/logout", "/static/sandbox/**", "/static/web/**"];
        assert_eq!(open, BTreeSet::from(public));
    }

    #[tokio::test]
    async fn every_route_answers_other_methods_with_the_ones_it_has() {
        let server = Harness::new().await;
        for route in ROUTES.iter().filter(|route| route.methods.is_some() && route.at == At::Server) {
            let answer = server.call("TRACE", &example(route), Value::Null).await;
            assert_eq!(answer.status, 405, "{}: {}", route.pattern, answer.text);
            let allowed = answer.headers["allow"].to_str().unwrap();
            assert!(
                route.methods.unwrap().iter().all(|method| allowed.contains(method.as_str())),
                "{}: {allowed}",
                route.pattern
            );
        }
    }
}
