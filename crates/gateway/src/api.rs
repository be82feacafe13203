//! `/api/v2`: Arenite's own control API, for the `arenite` command and the console.
//!
//! The routes are in [`crate::routes`], their requests and answers in [`types`]; `/api/v2/openapi.json` describes them.
//!
//! Without a name, a sandbox is named by its id. A create of an existing name is refused (409), so a client that repeats one
//! creates no second sandbox. A delete of a missing one is refused (404). Fields that are not listed are refused.

pub(crate) mod types;

use std::sync::Arc;

use arenite_control::{
    ControlError, CreateClient, CreateRequest, HeldKey, MeasuredSandbox, Provenance, Sandbox, SpecOverlay, StartState,
    check_labels,
};
use arenite_engine::Usage;
use arenite_model::{ErrorCode, Resources, SandboxName, SandboxState};
use arenite_synthesis::WorkerInfo;
use axum::body::Body;
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, LOCATION, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Response, StatusCode};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::batch::{self, Several};
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::idempotency::{self, Begun};
use crate::lifecycle::{self, Change, LifecycleAnswer, LifecycleCall};
use crate::lists::PageQuery;
use crate::network::NetworkRequest;
use crate::nodes::{self, Theirs};
use crate::path::query_pairs;
use crate::proxy::{self, InternalAnswer};
use crate::refusal::{Refusal, json_response};
use crate::sandbox_filter::SandboxFilter;
use crate::target::{self, SandboxRef};
use crate::{changes, follow, images, tenants, trajectories};

use types::{
    CreateSandbox, DeletedSandbox, LiveUsage, Nothing, PauseSandbox, ProcessesAfter, SandboxInfo, SandboxList, SandboxLoad,
    SandboxUsage, ServerInfo, Stage, TemplateList, Urls, WorkerList,
};

pub(crate) const PATH: &str = "/api/v2";
pub(crate) const DIALECT: &str = "api";
/// Largest body, in bytes: far above what a spec's own limits allow.
pub(crate) const MAX_BODY: usize = 1 << 20;
/// The guest's route to the main command's output.
pub(crate) const MAIN_LOG: &str = "/v1/file/download?path=/var/log/arenite/main.log";
/// Longest client tag, in characters.
const MAX_TAG: usize = 256;
/// The most sandboxes that are measured for one answer: those that were called most recently.
const MAX_LOADS: usize = 1000;

impl CreateSandbox {
    fn request(self) -> Result<CreateRequest, Refusal> {
        self.labels.as_ref().map_or(Ok(()), check_labels).map_err(ControlError::from)?;
        if self.client_tag.as_ref().is_some_and(|tag| !is_tag(tag)) {
            return Err(Refusal::bad_request(format!(
                "client_tag is not valid: use 1 to {MAX_TAG} characters, and no control characters"
            )));
        }
        let network = self.network.map(NetworkRequest::read).transpose()?;
        let (network, network_policy) = network.map_or((None, None), |(mode, policy)| (Some(mode), policy));
        Ok(CreateRequest {
            name: self.name,
            template: self.template,
            start: match (self.snapshot, self.restart_processes) {
                (Some(name), restart) => StartState::Snapshot { name, restart_processes: restart.unwrap_or_default() },
                (None, None) => StartState::Image,
                (None, Some(_)) => return Err(Refusal::bad_request("restart_processes needs a snapshot")),
            },
            spec: SpecOverlay {
                image: self.image,
                args: self.args,
                image_command: self.image_command,
                env: self.env,
                workdir: self.workdir,
                hostname: self.hostname,
                resources: self.resources.unwrap_or_default(),
                network,
                network_policy,
                secrets: self.secrets,
                tier: self.tier,
                volumes: self.volumes,
                ports: self.ports,
                timeout_seconds: self.timeout_seconds,
                idle_timeout_seconds: self.idle_timeout_seconds,
                idle_policy: self.idle_policy,
                disk_after_seconds: self.disk_after_seconds,
                disk_under_pressure: self.disk_under_pressure,
                checkpoint: self.checkpoint,
                labels: self.labels,
            },
            origin: DIALECT.to_owned(),
            provenance: Provenance {
                client_tag: self.client_tag,
                group: self.group,
                child_budget: self.child_budget,
                ..Provenance::default()
            },
            parent: None,
            client: None,
            own_volumes_only: false,
        })
    }
}

fn is_tag(text: &str) -> bool {
    (1..=MAX_TAG).contains(&text.chars().count()) && !text.contains(char::is_control)
}

/// What there is, for a path that leads to nothing.
pub(crate) async fn unknown(exchange: &mut Exchange) -> Answered {
    Err(Refusal::not_found(format!("there is no {}", exchange.path.decoded)).hint(
        "there are info, me, events, webhooks, usage, usage/live, templates, templates/{name}, images, images/pull, images/pulls, images/{name}, registries, registries/{host}, corpora, workers, nodes, nodes/{name}/{drain,uncordon}, quarantine, tenants, keys, audit, groups, groups/{name}/renew, secrets, secrets/{name}, snapshots, snapshots/{name}, volumes, volumes/{name}/{copy,files,content}, sandboxes and sandboxes/{name}/{extend,pause,resume,start,checkpoints,history,rollback,reset,diff,fork,network,usage,logs,steps}",
    ))
}

pub(crate) async fn workers(exchange: &mut Exchange) -> Answered {
    let mut workers = exchange.gateway.synthesis()?.overview(exchange.context.tenant());
    let node = exchange.gateway.control.own_node();
    workers.iter_mut().for_each(|worker| worker.node.clone_from(&node));
    let page = PageQuery::read(exchange)?;
    let Theirs { entries, has_more, warnings } = nodes::list_of_nodes::<WorkerInfo>(exchange, "workers").await;
    workers.extend(entries);
    let (workers, next_cursor) = page.take_from(workers, |worker| worker.worker_id.clone(), has_more)?;
    Ok(json_response(StatusCode::OK, &WorkerList { workers, next_cursor, warnings }))
}

pub(crate) async fn templates(exchange: &mut Exchange) -> Answered {
    let templates = exchange.gateway.control.templates();
    let (templates, next_cursor) = PageQuery::read(exchange)?.take(templates, |template| template.name.clone())?;
    Ok(json_response(StatusCode::OK, &TemplateList { templates, next_cursor }))
}

pub(crate) async fn template(exchange: &mut Exchange) -> Answered {
    Ok(json_response(StatusCode::OK, &exchange.gateway.control.template(exchange.param("name"))?))
}

/// The name in the path.
pub(crate) fn named(exchange: &Exchange) -> Result<SandboxName, Refusal> {
    Ok(exchange.param("name").parse()?)
}

/// The sandbox in the path.
pub(crate) async fn find(exchange: &Exchange) -> Result<Sandbox, Refusal> {
    target::look_up(&exchange.gateway.control, &exchange.context, &SandboxRef::Name(named(exchange)?)).await
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let sandbox = find(exchange).await?;
    let body = shape(&exchange.gateway, &exchange.context, sandbox);
    Ok(changes::tagged(json_response(StatusCode::OK, &body), &body))
}

pub(crate) async fn steps(exchange: &mut Exchange) -> Answered {
    let sandbox = find(exchange).await?;
    trajectories::steps_of_sandbox(exchange, &sandbox).await
}

pub(crate) async fn step(exchange: &mut Exchange) -> Answered {
    let sandbox = find(exchange).await?;
    trajectories::step_of_sandbox(exchange, &sandbox).await
}

pub(crate) async fn pause(exchange: &mut Exchange) -> Answered {
    let (PauseSandbox { kind }, arguments) = exchange.json().await?;
    change_state(exchange, Change::Pause(kind), "pause", Some(arguments)).await
}

pub(crate) async fn resume(exchange: &mut Exchange) -> Answered {
    exchange.json::<Nothing>().await?;
    change_state(exchange, Change::Resume, "resume", None).await
}

pub(crate) async fn start(exchange: &mut Exchange) -> Answered {
    exchange.json::<Nothing>().await?;
    change_state(exchange, Change::Start, "start", None).await
}

/// Reads a JSON body; an empty one means an object without fields.
pub(crate) async fn read_json<T: DeserializeOwned + Default>(body: Body) -> Result<(T, Value), Refusal> {
    let bytes = read(body).await?;
    if bytes.trim_ascii().is_empty() {
        return Ok((T::default(), json!({})));
    }
    let value: Value = serde_json::from_slice(&bytes).map_err(|e| Refusal::bad_request(format!("the body is not JSON: {e}")))?;
    if !value.is_object() {
        return Err(Refusal::bad_request("the body is not a JSON object"));
    }
    Ok((deserialize(&value)?, value))
}

/// Reads a type from JSON. Errors name the position.
pub(crate) fn deserialize<T: DeserializeOwned>(value: &Value) -> Result<T, Refusal> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.into_inner());
        Refusal::bad_request(if path == "." { inner.to_string() } else { format!("{path}: {inner}") })
    })
}

/// Reads a whole body of a request of this API.
pub(crate) async fn read(body: Body) -> Result<bytes::Bytes, Refusal> {
    read_up_to(body, MAX_BODY).await
}

/// Reads a whole body up to a number of bytes.
pub(crate) async fn read_up_to(body: Body, most: usize) -> Result<bytes::Bytes, Refusal> {
    match Limited::new(body, most).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => {
            Err(Refusal::new(ErrorCode::TooLarge, format!("the body is larger than {most} bytes")))
        }
        Err(error) => Err(Refusal::bad_request(format!("the body broke off: {error}"))),
    }
}

pub(crate) async fn info(exchange: &mut Exchange) -> Answered {
    let gateway = &exchange.gateway;
    let engine = gateway.control.engine();
    let (mut capacity, mut warnings) = (None, Vec::new());
    // They say what other tenants use.
    if exchange.context.principal.operator {
        capacity = engine.capacity().await.ok();
        warnings.extend(gateway.config.warnings.iter().cloned().chain(gateway.control.warnings()));
        warnings.extend(gateway.config.tls.iter().flat_map(|certificates| certificates.warnings()));
        warnings.extend(gateway.control.problems().await.iter().cloned());
        warnings.extend(gateway.config.archive.iter().filter_map(|archive| archive.problem()));
    }
    Ok(json_response(
        StatusCode::OK,
        &ServerInfo {
            name: "arenite",
            version: env!("CARGO_PKG_VERSION"),
            engine: engine.name().to_owned(),
            uptime_seconds: gateway.started.elapsed().as_secs(),
            capacity,
            warnings,
        },
    ))
}

/// A page of the sandboxes, or their changes as they come.
pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let Exchange { gateway, parts, .. } = &*exchange;
    if follow::is_wanted(parts) {
        if query_pairs(parts.uri.query().unwrap_or_default()).count() > 1 {
            return Err(Refusal::bad_request("follow=true takes no other parameter")
                .hint(format!("GET {PATH}/events streams the events of selected sandboxes")));
        }
        return Ok(follow::changes(gateway, &exchange.context));
    }
    let context = &match tenants::of_list(exchange)? {
        Some(tenant) => exchange.context.of_tenant(tenant),
        None => exchange.context.clone(),
    };
    let filter = SandboxFilter::read(exchange.parts.uri.query())?;
    let page = PageQuery::in_order(exchange, filter.order_name())?;
    let after = page.after()?;
    let (found, has_more) = target::page(&gateway.control, context, &filter, after.as_ref(), page.limit).await?;
    let next_cursor = found.last().filter(|_| has_more).map(|last| page.cursor(&last.position()));
    let sandboxes = found.into_iter().map(|sandbox| described(gateway, context, sandbox)).collect();
    Ok(json_response(StatusCode::OK, &SandboxList { sandboxes, next_cursor }))
}

/// Answers with the sandbox after a change.
pub(crate) fn shaped(exchange: &Exchange, status: StatusCode) -> impl FnOnce(Sandbox) -> LifecycleAnswer + Send + use<> {
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    move |sandbox| (status, shape(&gateway, &context, sandbox))
}

pub(crate) async fn create(exchange: &mut Exchange) -> Answered {
    let (create, arguments) = exchange.json::<CreateSandbox>().await?;
    let several = Several::read(create.count, create.min)?;
    // A node that has them has been chosen by now, if there is one.
    if let Some(selector) = &create.node_selector {
        exchange.gateway.control.check_selector(selector)?;
    }
    let request = create.request()?;
    let key = match idempotency::begin(exchange, &arguments, several.map_or(1, |several| several.count)).await? {
        Begun::Create(key) => key,
        Begun::Replay(answer) => {
            lifecycle::check_create(&exchange.gateway, &exchange.context, &request)?;
            let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            return Ok(changes::tagged(located(idempotency::replay(answer), &body), &body));
        }
    };
    let call = LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/sandboxes"), arguments: Some(arguments) };
    if !images::wants_events(&exchange.parts) {
        let create = Create { call, request, several, key };
        let (status, body) = create.run(&exchange.gateway, &exchange.context).await?;
        return Ok(changes::tagged(located(json_response(status, &body), &body), &body));
    }
    let (client, progress) = CreateClient::new();
    let create = Create { call, request: CreateRequest { client: Some(client), ..request }, several, key };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let path = exchange.path.raw.clone();
    let created = async move {
        let created = create.run(&gateway, &context).await;
        created.map(|(_, body)| ("created", body)).map_err(|refusal| refusal.of_request(&path))
    };
    Ok(images::stream(&exchange.gateway, progress, created))
}

/// A create with what it needs.
struct Create {
    call: LifecycleCall,
    request: CreateRequest,
    several: Option<Several>,
    key: Option<HeldKey>,
}

impl Create {
    async fn run(self, gateway: &Arc<Gateway>, context: &Context) -> Result<LifecycleAnswer, Refusal> {
        let Self { call, request, several, key } = self;
        let (shared, of_caller) = (Arc::clone(gateway), context.clone());
        let shape = move |sandbox| started(&shared, &of_caller, sandbox);
        match several {
            None => {
                let answer = move |sandbox| (StatusCode::CREATED, shape(sandbox));
                lifecycle::create_keyed(gateway, context, call, request, key, answer).await
            }
            Some(several) => batch::create(gateway, context, call, request, several, key, shape).await,
        }
    }
}

/// Adds the address of a created sandbox.
fn located(mut response: Response<Body>, body: &Value) -> Response<Body> {
    let location = body["name"].as_str().map(|name| HeaderValue::from_str(&format!("{PATH}/sandboxes/{name}")));
    if let Some(Ok(location)) = location {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

pub(crate) async fn delete(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    let call = LifecycleCall { dialect: DIALECT, action: format!("DELETE {PATH}/sandboxes/{name}"), arguments: None };
    let answer = |sandbox: Sandbox| {
        let deleted = DeletedSandbox { name: sandbox.name, id: sandbox.id, deleted: true };
        (StatusCode::OK, json!(deleted))
    };
    let (status, body) = lifecycle::delete(&exchange.gateway, &exchange.context, call, name, answer).await?;
    Ok(json_response(status, &body))
}

async fn change_state(exchange: &mut Exchange, change: Change, verb: &str, arguments: Option<Value>) -> Answered {
    let before = find(exchange).await?;
    let name = before.name.clone();
    let call = LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}/sandboxes/{name}/{verb}"), arguments };
    let (gateway, context) = (Arc::clone(&exchange.gateway), exchange.context.clone());
    let answer = move |sandbox: Sandbox| {
        let processes = Some(processes_after(&before, &sandbox));
        let info = SandboxInfo { processes, ..described(&gateway, &context, sandbox) };
        (StatusCode::OK, serde_json::to_value(info).unwrap_or_default())
    };
    let (status, body) = lifecycle::change(&exchange.gateway, &exchange.context, call, name, change, answer).await?;
    Ok(changes::tagged(json_response(status, &body), &body))
}

fn processes_after(before: &Sandbox, after: &Sandbox) -> ProcessesAfter {
    let had_none = before.is_stopped() || matches!(before.state, SandboxState::Failed | SandboxState::Lost);
    match after.is_stopped() {
        true => ProcessesAfter::Ended,
        false if had_none => ProcessesAfter::Restarted,
        false => ProcessesAfter::Kept,
    }
}

pub(crate) async fn usage(exchange: &mut Exchange) -> Answered {
    let sandbox = find(exchange).await?;
    let usage = exchange.gateway.control.usage(exchange.context.tenant(), &sandbox.name).await?;
    Ok(json_response(StatusCode::OK, &measured(&usage, sandbox.spec.resources)))
}

fn measured(usage: &Usage, limits: Resources) -> SandboxUsage {
    SandboxUsage {
        memory_bytes: usage.memory_bytes,
        cpu_nanoseconds: usage.cpu_nanoseconds,
        pids: usage.pids,
        disk_bytes: usage.disk_bytes,
        oom_kills: usage.oom_kills,
        limits,
    }
}

/// The usage of all sandboxes in one answer. It wakes none.
pub(crate) async fn live_usage(exchange: &mut Exchange) -> Answered {
    let (mut loads, left_out) = exchange.gateway.control.usages_of(exchange.context.tenant(), MAX_LOADS).await;
    loads.retain(|load| exchange.context.principal.sees(&load.sandbox));
    let load = |MeasuredSandbox { sandbox, usage, calls }| SandboxLoad {
        usage: measured(&usage, sandbox.spec.resources),
        id: sandbox.id,
        name: sandbox.name,
        state: sandbox.state,
        image: sandbox.spec.image,
        created_at: sandbox.created_at,
        last_used_at: sandbox.last_used_at,
        calls,
    };
    Ok(json_response(StatusCode::OK, &LiveUsage { sandboxes: loads.into_iter().map(load).collect(), left_out }))
}

/// The main command's output, as the guest keeps it. Resumes a paused sandbox, because its guest reads the file.
pub(crate) async fn logs(exchange: &mut Exchange) -> Answered {
    // A lease would create the sandbox `default`.
    let name = find(exchange).await?.name;
    let gateway = &exchange.gateway;
    let lease = target::lease(gateway, &exchange.context, &SandboxRef::Name(name.clone())).await?;
    let (link, answer) = proxy::internal_get(gateway, &lease.sandbox.id, MAIN_LOG).await?;
    let body = match answer.status() {
        StatusCode::OK => {
            let answer = InternalAnswer::new(link, answer.into_body());
            let pieces = futures_util::stream::unfold((answer, lease), |(mut answer, lease)| async move {
                Some((answer.next().await?, (answer, lease)))
            });
            Body::from_stream(pieces)
        }
        StatusCode::NOT_FOUND => Body::empty(),
        other => {
            return Err(Refusal::new(
                ErrorCode::SandboxFailed,
                format!("the guest of sandbox {name} answered {} for its log", other.as_u16()),
            ));
        }
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    // Output of a sandbox must not become a page of this server.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    Ok(response)
}

/// A sandbox in the form of this API, as JSON for its step and its answer.
pub(crate) fn shape(gateway: &Gateway, context: &Context, sandbox: Sandbox) -> Value {
    // A struct with text keys: always JSON.
    serde_json::to_value(described(gateway, context, sandbox)).unwrap_or_default()
}

/// The same of a sandbox that was just created: with what became of the processes of the state that it started as.
pub(crate) fn started(gateway: &Gateway, context: &Context, sandbox: Sandbox) -> Value {
    let processes = gateway.control.keeps_processes(&sandbox.spec).map(|kept| match kept {
        true => ProcessesAfter::Kept,
        false => ProcessesAfter::Restarted,
    });
    serde_json::to_value(SandboxInfo { processes, ..described(gateway, context, sandbox) }).unwrap_or_default()
}

fn described(gateway: &Gateway, context: &Context, sandbox: Sandbox) -> SandboxInfo {
    SandboxInfo {
        urls: urls(gateway, context, &sandbox),
        deadline: gateway.control.next_deadline(context.tenant(), &sandbox.id),
        pause_kind: sandbox.pause(),
        stages: sandbox.stages.into_iter().map(|(name, ms)| Stage { name, ms }).collect(),
        id: sandbox.id,
        name: sandbox.name,
        node: sandbox.node.or_else(|| gateway.control.own_node()),
        processes: None,
        state: sandbox.state,
        reason: sandbox.reason,
        died: sandbox.died,
        revision: sandbox.revision,
        template: sandbox.template,
        client_tag: sandbox.provenance.client_tag,
        group: sandbox.provenance.group,
        parent: sandbox.provenance.ancestors.last().cloned(),
        forked_from: sandbox.provenance.forked_from,
        child_budget: sandbox.provenance.child_budget,
        tier: sandbox.spec.tier.unwrap_or_default(),
        spec: sandbox.spec,
        isolation: sandbox.isolation,
        origin: sandbox.origin,
        created_at: sandbox.created_at,
        last_used_at: sandbox.last_used_at,
        state_since: sandbox.state_since,
        expires_at: sandbox.expires_at,
    }
}

/// The addresses of its services.
pub(crate) fn urls(gateway: &Gateway, context: &Context, sandbox: &Sandbox) -> Urls {
    let base = context.base_url();
    Urls {
        path: format!("{base}/sandbox/{}/", sandbox.name),
        host: own_host(base, gateway.config.domain.as_deref(), sandbox.id.as_str()),
    }
}

/// The sandbox's own host. A client on this machine gets a name that resolves there whatever the domain is.
fn own_host(base: &str, domain: Option<&str>, id: &str) -> String {
    let (scheme, authority) = base.split_once("://").unwrap_or(("http", base));
    // The colons of a bracketed address don't separate a port.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, format!(":{port}")),
        _ => (authority, String::new()),
    };
    let local = host == "localhost" || host.starts_with("127.") || host == "[::1]" || host.ends_with(".localhost");
    match domain {
        Some(domain) if !local => format!("{scheme}://{id}.{domain}{port}/"),
        _ => format!("{scheme}://{id}.localhost{port}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Harness;

    #[tokio::test]
    async fn a_sandboxs_life_over_the_api() {
        let server = Harness::new().await;
        let body = json!({
            "name": "demo", "env": {"A": "b=c"}, "args": ["sleep", "9"], "network": "none", "timeout_seconds": 3600,
            "resources": {"memory_bytes": 1u64 << 30, "cpu_millis": 500}, "labels": {"k": "v"}, "idle_policy": "pause",
        });
        let made = server.call("POST", "/api/v2/sandboxes", body.clone()).await;
        assert_eq!(made.status, 201, "{}", made.text);
        assert_eq!(made.headers[LOCATION], "/api/v2/sandboxes/demo");
        let sandbox = &made.json;
        let id = sandbox["id"].as_str().unwrap().to_owned();
        assert_eq!(
            (&sandbox["name"], &sandbox["state"], &sandbox["template"], &sandbox["reason"], &sandbox["origin"]),
            (&json!("demo"), &json!("running"), &json!("default"), &json!(null), &json!("api"))
        );
        assert_eq!(
            sandbox["urls"],
            json!({ "path": "http://127.0.0.1:8080/sandbox/demo/", "host": format!("http://{id}.localhost:8080/") })
        );
        assert!(sandbox["stages"].as_array().unwrap().iter().all(|s| s["name"].is_string() && s["ms"].is_number()));
        let spec = &sandbox["spec"];
        assert_eq!((&spec["network"], &spec["env"], &spec["args"]), (&json!("none"), &body["env"], &body["args"]));
        assert_eq!((&spec["resources"]["memory_bytes"], &spec["resources"]["cpu_millis"]), (&json!(1 << 30), &json!(500)));
        assert_eq!((&spec["timeout_seconds"], &spec["idle_timeout_seconds"]), (&json!(3600), &json!(null)));

        let got = server.call("GET", "/api/v2/sandboxes/demo", Value::Null).await.json;
        let list = server.call("GET", "/api/v2/sandboxes", Value::Null).await.json;
        assert_eq!(list["sandboxes"], json!([got]));
        for (verb, state) in [("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("resume", "running")] {
            let changed = server.call("POST", &format!("/api/v2/sandboxes/demo/{verb}"), json!({})).await;
            assert_eq!((changed.status, &changed.json["state"]), (200, &json!(state)));
        }
        let usage = server.call("GET", "/api/v2/sandboxes/demo/usage", Value::Null).await.json;
        assert!(usage["memory_bytes"].is_number() && usage["cpu_nanoseconds"].is_number(), "{usage}");

        let again = server.call("POST", "/api/v2/sandboxes", json!({ "name": "demo" })).await;
        assert_eq!((again.status, &again.json["code"]), (409, &json!("already_exists")));
        let deleted = server.call("DELETE", "/api/v2/sandboxes/demo", Value::Null).await;
        assert_eq!((deleted.status, deleted.json), (200, json!({ "name": "demo", "id": id, "deleted": true })));
        let gone = server.call("DELETE", "/api/v2/sandboxes/demo", Value::Null).await;
        assert_eq!((gone.status, &gone.json["code"]), (404, &json!("not_found")));
        assert!(gone.json["message"].is_string() && gone.json["hint"].is_string());

        // Everything is in the sandbox's own trajectory, which has ended.
        let list = server.call("GET", "/api/v1/trajectories", Value::Null).await.json;
        assert_eq!((&list["trajectories"][0]["trajectory"], &list["trajectories"][0]["ended"]), (&json!(id), &json!(true)));
        let page = server.call("GET", &format!("/api/v1/trajectories/{id}"), Value::Null).await.json;
        let steps = page["steps"].as_array().unwrap();
        let actions: Vec<_> = steps.iter().map(|s| s["action"].as_str().unwrap()).collect();
        assert_eq!(actions[0], "POST /api/v2/sandboxes");
        assert_eq!(actions[1], "POST /api/v2/sandboxes/demo/pause");
        assert_eq!(*actions.last().unwrap(), "DELETE /api/v2/sandboxes/demo");
        assert!(steps.iter().all(|s| s["outcome"] == "ok" && s["dialect"] == "api"), "{steps:?}");
        assert_eq!((&steps[0]["arguments"]["json"], &steps[0]["status"]), (&body, &json!(201)));
        assert_eq!(steps[0]["observation"]["json"], made.json);
    }

    #[tokio::test]
    async fn what_is_not_understood_is_refused_with_its_place() {
        let server = Harness::new().await;
        for (body, word) in [
            (json!({ "nmae": "x" }), "nmae"),
            (json!({ "name": "No" }), "sandbox name"),
            (json!({ "resources": { "memory": 1 } }), "resources"),
            (json!({ "resources": { "memory_bytes": "1Gi" } }), "resources.memory_bytes"),
            (json!({ "resources": { "memory_bytes": 1 } }), "memory_bytes"),
            (json!({ "network": "host" }), "network"),
            (json!({ "ports": [70000] }), "ports"),
            (json!({ "workdir": "here" }), "workdir"),
            (json!({ "env": { "A B": "1" } }), "env"),
            (json!({ "labels": { "": "1" } }), "labels"),
            (json!([]), "object"),
            (json!("{"), "object"),
        ] {
            let answer = server.call("POST", "/api/v2/sandboxes", body.clone()).await;
            assert_eq!((answer.status, &answer.json["code"]), (400, &json!("invalid_request")), "{body}: {}", answer.text);
            assert!(answer.json["message"].as_str().unwrap().contains(word), "{body}: {}", answer.text);
        }
        let answer = server.bytes("POST", "/api/v2/sandboxes", b"{".to_vec()).await;
        assert_eq!(answer.status, 400);
        let answer = server.bytes("POST", "/api/v2/sandboxes", vec![b' '; MAX_BODY + 1]).await;
        assert_eq!((answer.status, &answer.json["code"]), (413, &json!("too_large")));
        let answer = server.call("POST", "/api/v2/sandboxes", json!({ "template": "nothing" })).await;
        assert_eq!(answer.status, 404);
        assert_eq!(answer.json["hint"], "known templates: aio, default");
        let answer = server.call("PUT", "/api/v2/sandboxes", Value::Null).await;
        assert_eq!((answer.status, answer.headers["allow"].to_str().unwrap()), (405, "GET, HEAD, POST"));
        assert_eq!(server.call("GET", "/api/v2/nothing", Value::Null).await.status, 404);
        assert_eq!(
            server.call("GET", "/api/v2/sandboxes", Value::Null).await.json,
            json!({ "sandboxes": [], "next_cursor": null })
        );
    }

    #[tokio::test]
    async fn a_full_server_says_when_to_come_back() {
        let server = Harness::with(|control, _| control.limits.max_sandboxes = 1).await;
        // Without a name, it is named by its id.
        let first = server.bytes("POST", "/api/v2/sandboxes", Vec::new()).await;
        assert_eq!((first.status, &first.json["name"]), (201, &first.json["id"]));
        let full = server.call("POST", "/api/v2/sandboxes", json!({})).await;
        assert_eq!((full.status, &full.json["code"]), (429, &json!("exhausted")));
        assert!(full.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() > 0);
    }

    #[tokio::test]
    async fn a_full_tenant_learns_which_quota_and_when_to_come_back() {
        let server = Harness::with(|control, _| {
            control.tenant_limits.sandboxes = Some(1);
            control.tenant_limits.memory_bytes = Some(4 << 30);
        })
        .await;
        let create = async |body| server.call("POST", "/api/v2/sandboxes", body).await;
        let never = create(json!({ "resources": { "memory_bytes": 5u64 << 30 } })).await;
        assert_eq!((never.status, &never.json["code"]), (403, &json!("quota_exceeded")), "{}", never.text);
        assert_eq!(
            never.json["quota"],
            json!({ "quota": "memory_bytes", "limit": 4u64 << 30, "used": 0, "requested": 5u64 << 30 })
        );
        assert!(!never.headers.contains_key("retry-after"));
        assert_eq!(create(json!({ "name": "a" })).await.status, 201);
        let full = create(json!({})).await;
        assert_eq!((full.status, &full.json["code"]), (429, &json!("exhausted")), "{}", full.text);
        assert_eq!(full.json["quota"], json!({ "quota": "sandboxes", "limit": 1, "used": 1, "requested": 1 }));
        assert_eq!(full.headers["retry-after"], "30");
        // The first call would create the sandbox default.
        let called = server.call("POST", "/v1/bash/exec", json!({ "command": "true" })).await;
        assert_eq!((called.status, &called.json["quota"]["quota"]), (429, &json!("sandboxes")), "{}", called.text);
        let agent_sandbox = server.call("POST", "/api/v1/sandbox", json!({ "name": "b" })).await;
        assert_eq!((agent_sandbox.status, &agent_sandbox.json["code"]), (429, &json!("429")), "{}", agent_sandbox.text);
        let me = server.call("GET", "/api/v2/me", Value::Null).await.json;
        assert_eq!(me["quotas"][0], json!({ "quota": "sandboxes", "limit": 1, "used": 1 }));
        assert_eq!(me["quotas"].as_array().unwrap().len(), 11);
    }

    #[tokio::test]
    async fn requests_beyond_the_rate_of_a_tenant_are_refused() {
        let server = Harness::with(|control, _| control.tenant_limits.requests_per_second = Some(3)).await;
        let mut refused = None;
        for _ in 0..50 {
            refused = Some(server.call("GET", "/api/v2/info", Value::Null).await).filter(|answer| answer.status != 200);
            if refused.is_some() {
                break;
            }
        }
        let refused = refused.unwrap();
        assert_eq!((refused.status, &refused.json["quota"]["quota"]), (429, &json!("requests_per_second")), "{}", refused.text);
        assert_eq!(refused.headers["retry-after"], "1");
        assert_eq!(server.call("GET", "/health", Value::Null).await.status, 200, "a public route has no caller");
    }

    #[tokio::test]
    async fn a_tenant_with_full_records_makes_no_calls_and_can_delete() {
        let server = Harness::with(|control, _| control.tenant_limits.trajectory_bytes = Some(1)).await;
        assert_eq!(server.call("POST", "/api/v2/sandboxes", json!({ "name": "a" })).await.status, 201);
        for (method, path) in
            [("POST", "/sandbox/a/v1/bash/exec"), ("POST", "/api/v2/sandboxes/a/pause"), ("POST", "/api/v2/sandboxes")]
        {
            let refused = server.call(method, path, json!({})).await;
            assert_eq!((refused.status, &refused.json["quota"]["quota"]), (429, &json!("trajectory_bytes")), "{}", refused.text);
            assert!(refused.headers.contains_key("retry-after") && refused.json["quota"]["used"].as_u64().unwrap() > 1);
        }
        assert_eq!(server.call("GET", "/api/v2/sandboxes", Value::Null).await.json["sandboxes"].as_array().unwrap().len(), 1);
        assert_eq!(server.call("DELETE", "/api/v2/sandboxes/a", Value::Null).await.status, 200);
    }

    #[tokio::test]
    async fn the_server_tells_of_itself() {
        let server = Harness::with(|_, gateway| gateway.warnings.push("swap is on".to_owned())).await;
        let info = server.call("GET", "/api/v2/info", Value::Null).await.json;
        assert_eq!((&info["name"], &info["warnings"]), (&json!("arenite"), &json!(["swap is on"])));
        assert!(info["engine"].is_string() && info["version"].is_string());
        let templates = server.call("GET", "/api/v2/templates", Value::Null).await.json;
        assert_eq!(templates["templates"][0]["name"], "aio");
        assert!(templates["templates"][0]["spec"]["image"].is_string());
        let template = server.call("GET", "/api/v2/templates/aio", Value::Null).await;
        assert_eq!((template.status, &template.json), (200, &templates["templates"][0]));
        let missing = server.call("GET", "/api/v2/templates/nothing", Value::Null).await;
        assert_eq!((missing.status, &missing.json["hint"]), (404, &json!("known templates: aio, default")));
        assert_eq!(server.call("GET", "/api/v2/templates/..%2Fx", Value::Null).await.status, 400);
        assert_eq!(server.call("GET", "/api/v2/images", Value::Null).await.status, 501);
    }

    #[test]
    fn a_sandboxs_own_host_resolves_for_whoever_asks() {
        for (base, domain, expected) in [
            ("http://127.0.0.1:8080", None, "http://s1.localhost:8080/"),
            ("http://localhost", None, "http://s1.localhost/"),
            ("http://[::1]:8080", Some("box.example"), "http://s1.localhost:8080/"),
            ("http://[::1]", Some("box.example"), "http://s1.localhost/"),
            ("https://box.example", Some("box.example"), "https://s1.box.example/"),
            ("http://box.example:81", Some("box.example"), "http://s1.box.example:81/"),
        ] {
            assert_eq!(own_host(base, domain, "s1"), expected);
        }
    }
}
