//! `/api/v1/sandbox`: Agent-Sandbox 0.1.0's REST surface.
//!
//! Bodies are the original's: `{"code":"0","data":…}`, and `{"code":"404","error":"…"}` with the real HTTP status; with
//! [`crate::GatewayConfig::agent_sandbox_always_200`], failures are HTTP 200 and code 500 as in the original. Known differences:
//! every field has its effect or is refused; an empty list is `[]` where the original failed; times of 0 mean the default; fields
//! that the original does not have are refused; sandboxes also have `id`, `state` and `url`.
//!
//! A client that asks for version 0.8 gets its form of a sandbox ([`newer`]); the routes that came after 0.1.0 are there for all
//! ([`tools`]).
//!
//! `app` and the requests `cpu` and `memory` are only kept for the answer: only limits are enforced.

mod newer;
pub(crate) mod tools;

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_control::{CreateRequest, ResourcesOverlay, Sandbox, SpecOverlay};
use arenite_model::{ErrorCode, IdlePolicy, ImageName, Resources, SandboxName};
use axum::body::Body;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::quantity;
use crate::api;
use crate::exchange::{Answered, Exchange};
use crate::gateway::{Context, Gateway};
use crate::lifecycle::{self, LifecycleAnswer, LifecycleCall};
use crate::nodes;
use crate::refusal::{Refusal, json_response};
use crate::target::{self, SandboxRef};

pub use newer::AgentSandboxVersion;

const PATH: &str = "/api/v1/sandbox";
const DIALECT: &str = "agent_sandbox";

const CPU: &str = "100m";
const MEMORY: &str = "128Mi";
const CPU_LIMIT: &str = "1000m";
const MEMORY_LIMIT: &str = "1024Mi";
/// Minutes.
const TIMEOUT: i64 = 60;
const MAX_TIMEOUT: i64 = 1440;
const IDLE_TIMEOUT: i64 = 10;
const MAX_IDLE_TIMEOUT: i64 = 60;
/// The reported environment of a request that names neither environment nor image (it gets the server's default image, if no file
/// defines this environment), and of one that names only an image.
const AIO: &str = "aio";
const CUSTOM: &str = "custom";
/// Longest `app`, in characters.
const MAX_APP: usize = 256;
/// Names tried for a sandbox without one: those created in the same second are numbered.
const MAX_NAMES: usize = 1000;

/// Labels that keep the fields of the answer.
const LABEL_ENVIRONMENT: &str = "agent_sandbox.environment";
const LABEL_APP: &str = "agent_sandbox.app";
const LABEL_CPU: &str = "agent_sandbox.cpu";
const LABEL_MEMORY: &str = "agent_sandbox.memory";
const LABEL_CPU_LIMIT: &str = "agent_sandbox.cpu_limit";
const LABEL_MEMORY_LIMIT: &str = "agent_sandbox.memory_limit";

/// A request. As in Go's decoder, `null` leaves a field unset, and so does empty text.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = AgentSandboxRequest)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Create {
    name: Option<String>,
    environment: Option<String>,
    args: Option<Vec<String>>,
    app: Option<String>,
    image: Option<String>,
    env: Option<BTreeMap<String, String>>,
    timeout: Option<i64>,
    idle_timeout: Option<i64>,
    idle_policy: Option<String>,
    workdir: Option<String>,
    cpu: Option<String>,
    memory: Option<String>,
    cpu_limit: Option<String>,
    memory_limit: Option<String>,
    ports: Option<Vec<u16>>,
    /// Read-only in the original too.
    #[serde(rename = "status")]
    _status: Option<Value>,
}

/// A sandbox in an answer: the original's fields, then Arenite's.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentSandbox)]
struct Stored {
    name: SandboxName,
    environment: String,
    args: Vec<String>,
    app: String,
    image: String,
    env: BTreeMap<String, String>,
    /// Minutes, rounded up; 0: none.
    timeout: u64,
    idle_timeout: u64,
    idle_policy: &'static str,
    workdir: String,
    cpu: String,
    memory: String,
    cpu_limit: String,
    memory_limit: String,
    ports: Vec<u16>,
    status: &'static str,
    id: String,
    state: &'static str,
    url: String,
}

/// A refusal.
#[derive(Debug, ToSchema)]
#[schema(as = AgentSandboxFailure)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct Failure {
    /// The HTTP status.
    code: String,
    error: String,
}

/// A sandbox in an envelope.
#[derive(Debug, ToSchema)]
#[schema(as = AgentSandboxAnswer)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct OneAnswer {
    /// `0`
    code: String,
    data: Stored,
}

/// Sandboxes in an envelope.
#[derive(Debug, ToSchema)]
#[schema(as = AgentSandboxList)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct ListAnswer {
    /// `0`
    code: String,
    data: Vec<Stored>,
}

/// A message in an envelope.
#[derive(Debug, ToSchema)]
#[schema(as = AgentSandboxMessage)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct MessageAnswer {
    /// `0`
    code: String,
    data: String,
}

pub(crate) async fn serve_list(exchange: &mut Exchange) -> Answered {
    let listed = list_as(exchange).await;
    finish(exchange, listed)
}

pub(crate) async fn serve_create(exchange: &mut Exchange) -> Answered {
    let created = post(exchange).await;
    finish(exchange, created)
}

pub(crate) async fn serve_get(exchange: &mut Exchange) -> Answered {
    let found = get_as(exchange).await;
    finish(exchange, found)
}

/// A sandbox in the form of a version.
type Form = fn(&Gateway, &Context, Sandbox) -> Value;

/// The version that the request is for.
fn version(exchange: &Exchange) -> Result<AgentSandboxVersion, Refusal> {
    newer::version(&exchange.parts.headers, exchange.gateway.config.agent_sandbox_version)
}

fn form(exchange: &Exchange) -> Result<Form, Refusal> {
    Ok(match version(exchange)? {
        AgentSandboxVersion::First => stored,
        AgentSandboxVersion::Newer => newer::stored,
    })
}

async fn list_as(exchange: &Exchange) -> Result<LifecycleAnswer, Refusal> {
    list_in(&exchange.gateway, &exchange.context, form(exchange)?).await
}

async fn get_as(exchange: &Exchange) -> Result<LifecycleAnswer, Refusal> {
    get_in(&exchange.gateway, &exchange.context, exchange.param("name"), form(exchange)?).await
}

pub(crate) async fn serve_delete(exchange: &mut Exchange) -> Answered {
    let name = exchange.param("name");
    let call = LifecycleCall { dialect: DIALECT, action: format!("DELETE {PATH}/{name}"), arguments: None };
    let deleted = delete(&exchange.gateway, &exchange.context, call, name).await;
    finish(exchange, deleted)
}

/// A path below a sandbox.
pub(crate) async fn unknown(exchange: &mut Exchange) -> Answered {
    let name = exchange.path.decoded.strip_prefix(PATH).unwrap_or_default().trim_start_matches('/');
    finish(exchange, Err(not_found(name)))
}

pub(crate) fn wrong_method(exchange: &Exchange, refusal: Refusal) -> Answered {
    finish(exchange, Err(refusal))
}

fn finish(exchange: &Exchange, answered: Result<LifecycleAnswer, Refusal>) -> Answered {
    Ok(match answered {
        Ok((status, body)) => json_response(status, &body),
        Err(refusal) => failure(&refusal, exchange.gateway.config.agent_sandbox_always_200),
    })
}

fn success(data: Value) -> LifecycleAnswer {
    (StatusCode::OK, json!({ "code": "0", "data": data }))
}

pub(crate) fn failure(refusal: &Refusal, always_200: bool) -> Response<Body> {
    // A wrong method is 405 in the original too.
    let (status, code) =
        if always_200 && refusal.allow.is_none() { (StatusCode::OK, 500) } else { (refusal.status, refusal.status.as_u16()) };
    let text = match &refusal.hint {
        Some(hint) => format!("{}; {hint}", refusal.message),
        None => refusal.message.clone(),
    };
    refusal.finish(json_response(status, &json!({ "code": code.to_string(), "error": text })))
}

/// In the original's format.
fn not_found(name: &str) -> Refusal {
    Refusal::not_found(format!("sandbox {} not found", name.chars().take(80).collect::<String>()))
}

/// A text that is no valid name names no sandbox.
fn named(text: &str) -> Result<SandboxName, Refusal> {
    text.parse().map_err(|_| not_found(text))
}

pub(super) async fn list(gateway: &Arc<Gateway>, context: &Context) -> Result<LifecycleAnswer, Refusal> {
    list_in(gateway, context, stored).await
}

pub(super) async fn get(gateway: &Arc<Gateway>, context: &Context, name: &str) -> Result<LifecycleAnswer, Refusal> {
    get_in(gateway, context, name, stored).await
}

async fn list_in(gateway: &Gateway, context: &Context, form: Form) -> Result<LifecycleAnswer, Refusal> {
    let all = target::list(&gateway.control, context).await?;
    Ok(success(all.into_iter().map(|sandbox| form(gateway, context, sandbox)).collect()))
}

async fn get_in(gateway: &Gateway, context: &Context, name: &str, form: Form) -> Result<LifecycleAnswer, Refusal> {
    let found = target::look_up(&gateway.control, context, &SandboxRef::Name(named(name)?)).await;
    let found = found.map_err(|refusal| known(refusal, name))?;
    Ok(success(form(gateway, context, found)))
}

/// Deletes a sandbox, and records the call.
pub(super) async fn delete(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
    name: &str,
) -> Result<LifecycleAnswer, Refusal> {
    let delete = async {
        let name = named(name)?;
        let answer = |sandbox: Sandbox| success(format!("Sandbox {} deleted successfully", sandbox.name).into());
        lifecycle::delete(gateway, context, call, name, answer).await
    };
    delete.await.map_err(|refusal| {
        let refusal = known(refusal, name);
        let name: String = name.chars().take(80).collect();
        Refusal { message: format!("failed to delete sandbox {name}: {}", refusal.message), ..refusal }
    })
}

/// A missing sandbox, in the original's format.
fn known(refusal: Refusal, name: &str) -> Refusal {
    if refusal.code == ErrorCode::NotFound { not_found(name) } else { refusal }
}

async fn post(exchange: &mut Exchange) -> Result<LifecycleAnswer, Refusal> {
    let bytes = api::read(exchange.take_body()).await?;
    let arguments: Value = match bytes.trim_ascii() {
        [] => json!({}),
        text => serde_json::from_slice(text).map_err(|error| Refusal::bad_request(format!("the body is not JSON: {error}")))?,
    };
    let call = LifecycleCall { dialect: DIALECT, action: format!("POST {PATH}"), arguments: Some(arguments) };
    match version(exchange)? {
        AgentSandboxVersion::First => {
            let name = create(&exchange.gateway, &exchange.context, call).await?;
            Ok(success(created(&name).into()))
        }
        AgentSandboxVersion::Newer => create_newer(&exchange.gateway, &exchange.context, call).await,
    }
}

/// The request of a create.
fn arguments<T: DeserializeOwned>(call: &LifecycleCall) -> Result<T, Refusal> {
    let arguments = call.arguments.as_ref().filter(|arguments| arguments.is_object());
    api::deserialize(arguments.ok_or_else(|| Refusal::bad_request("the body is not a JSON object"))?)
}

/// Creates a sandbox in version 0.8, and answers with it. Without a name, it is named by its template and a random number.
async fn create_newer(gateway: &Arc<Gateway>, context: &Context, call: LifecycleCall) -> Result<LifecycleAnswer, Refusal> {
    let create: newer::NewerCreate = arguments(&call)?;
    let name = given(&create.name).map(str::parse::<SandboxName>).transpose()?;
    let (template, request) = newer::request(gateway, create, name.clone())?;
    let name = match name {
        Some(name) => name,
        None => {
            let random = getrandom::u64().map_err(|error| Refusal::new(ErrorCode::Internal, error.to_string()))?;
            valid_name("sbx-", &template, &format!("-{random:016x}")).parse()?
        }
    };
    let (shared, own) = (Arc::clone(gateway), context.clone());
    let answer = move |sandbox: Sandbox| success(newer::stored(&shared, &own, sandbox));
    let request = CreateRequest { name: Some(name), ..request };
    lifecycle::create(gateway, context, call, request, answer).await.map_err(|mut refusal| {
        refusal.hint = refusal.hint.filter(|_| refusal.code != ErrorCode::AlreadyExists);
        refusal
    })
}

fn created(name: &SandboxName) -> String {
    format!("Sandbox {name} created successfully")
}

/// Creates a sandbox on the node that it is placed on, and returns its name.
pub(super) async fn create_placed(
    gateway: &Arc<Gateway>,
    context: &Context,
    call: LifecycleCall,
) -> Result<SandboxName, Refusal> {
    let wanted = call.arguments.clone().unwrap_or_default();
    let Some(answer) = nodes::create(gateway, context, PATH, &wanted).await? else { return create(gateway, context, call).await };
    let data = &answer["data"];
    let said = data.as_str().and_then(|said| said.strip_prefix("Sandbox ")?.split(' ').next());
    let name = said.or_else(|| data["name"].as_str()).and_then(|name| name.parse().ok());
    name.ok_or_else(|| {
        let said = answer["error"].as_str().unwrap_or("the node's answer names no sandbox");
        in_its_words(Refusal::new(ErrorCode::SandboxFailed, said.to_owned()))
    })
}

/// Creates a sandbox from the call's arguments, and returns its name; records the call.
pub(super) async fn create(gateway: &Arc<Gateway>, context: &Context, call: LifecycleCall) -> Result<SandboxName, Refusal> {
    let create: Create = arguments(&call)?;
    let name = given(&create.name).map(str::parse::<SandboxName>).transpose()?;
    let (environment, request) = request(gateway, create, name.clone())?;
    let made = |request| {
        let answer = |sandbox: Sandbox| success(created(&sandbox.name).into());
        lifecycle::create(gateway, context, call.clone(), request, answer)
    };
    if let Some(name) = name {
        made(request).await.map_err(in_its_words)?;
        return Ok(name);
    }
    let seconds = Timestamp::now().as_second();
    for number in 1..=MAX_NAMES {
        let name: SandboxName = made_up(&environment, seconds, number).parse()?;
        match made(CreateRequest { name: Some(name.clone()), ..request.clone() }).await {
            Err(refusal) if refusal.code == ErrorCode::AlreadyExists => {}
            Err(refusal) => return Err(in_its_words(refusal)),
            Ok(_) => return Ok(name),
        }
    }
    Err(Refusal::new(ErrorCode::Exhausted, format!("{MAX_NAMES} sandboxes without a name were made in this second")))
}

/// In this dialect, a template is called environment, and a taken name needs no hint.
fn in_its_words(mut refusal: Refusal) -> Refusal {
    refusal.message = refusal.message.replace("there is no template", "there is no environment");
    refusal.hint = match refusal.hint {
        Some(hint) if refusal.code != ErrorCode::AlreadyExists => Some(hint.replace("known templates", "known environments")),
        _ => None,
    };
    refusal
}

/// A text that is not empty.
fn given(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

/// `sandbox-{environment}-{unix seconds}`, numbered if there are several, as a valid name.
fn made_up(environment: &str, seconds: i64, number: usize) -> String {
    let tail = if number == 1 { format!("-{seconds}") } else { format!("-{seconds}-{number}") };
    valid_name("sandbox-", environment, &tail)
}

/// A valid name that consists of these, with as much of the middle as fits.
fn valid_name(head: &str, middle: &str, tail: &str) -> String {
    let fit = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    let mut name: String = head.chars().chain(middle.chars().map(fit)).take(63 - tail.len()).collect();
    name.truncate(name.trim_end_matches('-').len());
    name + tail
}

/// Converts the request for `control`, and names its environment. Defaults are this dialect's.
fn request(gateway: &Gateway, create: Create, name: Option<SandboxName>) -> Result<(String, CreateRequest), Refusal> {
    let image = given(&create.image).map(str::parse::<ImageName>).transpose()?;
    let template = given(&create.environment).map(str::to_owned);
    let environment = template.clone().unwrap_or_else(|| if image.is_some() { CUSTOM } else { AIO }.to_owned());
    // The settings of an environment's file override this dialect's defaults. `control` refuses unknown environments.
    let theirs = gateway.control.templates().into_iter().find(|t| t.name == environment).map(|t| t.spec);
    let resources = theirs.as_ref().map(|spec| spec.resources.clone()).unwrap_or_default();
    let app = create.app.unwrap_or_default();
    if app.chars().count() > MAX_APP {
        return Err(Refusal::bad_request(format!("app is longer than {MAX_APP} characters")));
    }

    let asked = [&create.cpu, &create.memory, &create.cpu_limit, &create.memory_limit];
    let Amounts { cpu, memory, cpu_limit, memory_limit, cpu_millis, memory_bytes } =
        amounts(asked, &resources, [CPU, MEMORY, CPU_LIMIT, MEMORY_LIMIT])?;

    let timeout = minutes("timeout", create.timeout, MAX_TIMEOUT)?;
    let idle_timeout = minutes("idle_timeout", create.idle_timeout, MAX_IDLE_TIMEOUT)?;
    let is_default = name.as_ref().is_some_and(SandboxName::is_default);
    let of_file = |seconds: fn(&arenite_model::SandboxSpec) -> Option<u64>| theirs.as_ref().and_then(seconds);
    let seconds = |minutes: i64| minutes.unsigned_abs() * 60;
    let idle_policy = match given(&create.idle_policy) {
        None => theirs.as_ref().filter(|t| t.idle_timeout_seconds.is_some()).map_or(IdlePolicy::Delete, |t| t.idle_policy),
        Some("delete") => IdlePolicy::Delete,
        Some("scaledown") => IdlePolicy::Pause,
        Some(other) => {
            let other: String = other.chars().take(80).collect();
            return Err(Refusal::bad_request(format!("idle_policy is {other:?}; it is delete or scaledown")));
        }
    };

    let mut labels = BTreeMap::from([
        (LABEL_ENVIRONMENT.to_owned(), environment.clone()),
        (LABEL_APP.to_owned(), app),
        (LABEL_CPU.to_owned(), cpu),
        (LABEL_MEMORY.to_owned(), memory),
    ]);
    labels.extend(cpu_limit.map(|text| (LABEL_CPU_LIMIT.to_owned(), text)));
    labels.extend(memory_limit.map(|text| (LABEL_MEMORY_LIMIT.to_owned(), text)));
    let spec = SpecOverlay {
        image,
        args: create.args,
        env: create.env,
        workdir: given(&create.workdir).map(str::to_owned),
        resources: ResourcesOverlay {
            memory_bytes,
            cpu_millis: cpu_millis.map(|millis| u32::try_from(millis).unwrap_or(u32::MAX)),
            ..ResourcesOverlay::default()
        },
        ports: create.ports,
        timeout_seconds: timeout.map(seconds).or(of_file(|t| t.timeout_seconds)).or(Some(seconds(TIMEOUT))),
        // The default sandbox does not expire when idle.
        idle_timeout_seconds: match idle_timeout {
            Some(minutes) => Some(seconds(minutes)),
            None if is_default => Some(0),
            None => of_file(|t| t.idle_timeout_seconds).or(Some(seconds(IDLE_TIMEOUT))),
        },
        idle_policy: Some(idle_policy),
        labels: Some(labels),
        ..SpecOverlay::default()
    };
    Ok((environment, CreateRequest { name, template, spec, origin: DIALECT.to_owned(), ..CreateRequest::default() }))
}

/// CPU and memory of a request.
struct Amounts {
    cpu: String,
    memory: String,
    cpu_limit: Option<String>,
    memory_limit: Option<String>,
    cpu_millis: Option<u64>,
    memory_bytes: Option<u64>,
}

/// Reads CPU and memory, each requested and limited, in this order. Limits that a template sets override the version's defaults.
fn amounts(asked: [&Option<String>; 4], resources: &Resources, defaults: [&str; 4]) -> Result<Amounts, Refusal> {
    let [cpu, memory, cpu_limit, memory_limit] = asked.map(given);
    let [own_cpu, own_memory, own_cpu_limit, own_memory_limit] = defaults;
    let untouched = Resources::default();
    let or_default = |asked: Option<&str>, is_set: bool, own: &str| asked.or((!is_set).then_some(own)).map(str::to_owned);
    let cpu_limit = or_default(cpu_limit, resources.cpu_millis != untouched.cpu_millis, own_cpu_limit);
    let memory_limit = or_default(memory_limit, resources.memory_bytes != untouched.memory_bytes, own_memory_limit);
    let cpu_millis = amount("cpu_limit", &cpu_limit, quantity::millis)?;
    let memory_bytes = amount("memory_limit", &memory_limit, quantity::bytes)?;
    let most = (cpu_millis.unwrap_or(resources.cpu_millis.into()), memory_bytes.unwrap_or(resources.memory_bytes));
    let cpu = demand(["cpu", "cpu_limit"], cpu, own_cpu, most.0, &cpu_limit, quantity::millis)?;
    let memory = demand(["memory", "memory_limit"], memory, own_memory, most.1, &memory_limit, quantity::bytes)?;
    Ok(Amounts { cpu, memory, cpu_limit, memory_limit, cpu_millis, memory_bytes })
}

type Reader = fn(&str) -> Result<u64, quantity::QuantityError>;

fn amount(field: &str, text: &Option<String>, read: Reader) -> Result<Option<u64>, Refusal> {
    let read = |text| read(text).map_err(|error| Refusal::bad_request(format!("{field}: {error}")));
    text.as_deref().map(read).transpose()
}

/// The request for a resource: never more than its limit. A default is cut to a limit below it.
fn demand(
    [field, limit_field]: [&str; 2],
    asked: Option<&str>,
    default: &str,
    limit: u64,
    limit_text: &Option<String>,
    read: Reader,
) -> Result<String, Refusal> {
    let text = asked.unwrap_or(default).to_owned();
    let amount = read(&text).map_err(|error| Refusal::bad_request(format!("{field}: {error}")))?;
    match (amount > limit, asked) {
        (false, _) => Ok(text),
        (true, None) => Ok(limit_text.clone().unwrap_or(text)),
        (true, Some(_)) => Err(Refusal::bad_request(format!(
            "{field} is {text}, above {limit_field}, which is {}",
            limit_text.clone().unwrap_or_else(|| limit.to_string())
        ))),
    }
}

/// Minutes up to their maximum; 0 means unset, as in Go.
fn minutes(field: &str, given: Option<i64>, most: i64) -> Result<Option<i64>, Refusal> {
    match given {
        None | Some(0) => Ok(None),
        Some(minutes) if minutes < 0 => Err(Refusal::bad_request(format!("{field} is {minutes}; give minutes from 1 to {most}"))),
        Some(minutes) => Ok(Some(minutes.min(most))),
    }
}

fn stored(gateway: &Gateway, context: &Context, sandbox: Sandbox) -> Value {
    let url = api::urls(gateway, context, &sandbox).path;
    let mut spec = sandbox.spec;
    // Only this dialect's own labels are used. Other sandboxes have no requests, and limits in bytes.
    let ours = sandbox.origin == DIALECT;
    let mut label = |key: &str| spec.labels.remove(key).filter(|_| ours);
    let environment = label(LABEL_ENVIRONMENT).or(sandbox.template).unwrap_or_else(|| CUSTOM.to_owned());
    let (app, cpu, memory) = (label(LABEL_APP), label(LABEL_CPU), label(LABEL_MEMORY));
    let cpu_limit = label(LABEL_CPU_LIMIT).unwrap_or_else(|| format!("{}m", spec.resources.cpu_millis));
    let memory_limit = label(LABEL_MEMORY_LIMIT).unwrap_or_else(|| match spec.resources.memory_bytes {
        bytes if bytes % (1 << 20) == 0 => format!("{}Mi", bytes >> 20),
        bytes => bytes.to_string(),
    });
    let in_minutes = |seconds: Option<u64>| seconds.unwrap_or_default().div_ceil(60);
    let stored = Stored {
        name: sandbox.name,
        environment,
        args: spec.args,
        app: app.unwrap_or_default(),
        image: spec.image.to_string(),
        env: spec.env,
        timeout: in_minutes(spec.timeout_seconds),
        idle_timeout: in_minutes(spec.idle_timeout_seconds),
        idle_policy: match spec.idle_policy {
            IdlePolicy::Delete => "delete",
            IdlePolicy::Pause | IdlePolicy::Freeze | IdlePolicy::Disk => "scaledown",
        },
        workdir: spec.workdir.unwrap_or_default(),
        cpu: cpu.unwrap_or_else(|| "0".to_owned()),
        memory: memory.unwrap_or_else(|| "0".to_owned()),
        cpu_limit,
        memory_limit,
        ports: spec.ports,
        status: sandbox.state.as_str(),
        id: sandbox.id.to_string(),
        state: sandbox.state.as_str(),
        url,
    };
    // Numbers, texts and maps with text keys: always JSON.
    serde_json::to_value(stored).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::{Harness, TestResponse};

    const AT: &str = "/api/v1/sandbox";

    async fn make(server: &Harness, body: Value) -> TestResponse {
        server.call("POST", AT, body).await
    }

    /// The spec of a sandbox in Arenite's own API: what the engine received.
    async fn spec(server: &Harness, name: &str) -> Value {
        server.call("GET", &format!("/api/v2/sandboxes/{name}"), Value::Null).await.json["spec"].take()
    }

    #[tokio::test]
    async fn golden_bodies_are_the_originals() {
        let server = Harness::new().await;
        let exact = async |method: &str, path: &str, body: Value, status: u16, text: &str| {
            let answer = server.call(method, path, body).await;
            assert_eq!((answer.status, answer.text.as_str()), (status, text), "{method} {path}");
            assert_eq!(answer.headers["content-type"], "application/json");
        };
        exact("GET", AT, Value::Null, 200, r#"{"code":"0","data":[]}"#).await;
        exact("POST", AT, json!({ "name": "demo" }), 200, r#"{"code":"0","data":"Sandbox demo created successfully"}"#).await;
        exact("POST", AT, json!({ "name": "demo" }), 409, r#"{"code":"409","error":"sandbox demo already exists"}"#).await;
        let stored = server.call("GET", "/api/v1/sandbox/demo", Value::Null).await.json;
        assert_eq!(server.call("GET", AT, Value::Null).await.json["data"], json!([stored["data"]]));
        let id = stored["data"]["id"].clone();
        let expected = json!({
            "name": "demo", "environment": "aio", "args": [], "app": "", "image": "base", "env": {}, "timeout": 60, "idle_timeout": 10,
            "idle_policy": "delete", "workdir": "", "cpu": "100m", "memory": "128Mi", "cpu_limit": "1000m", "memory_limit": "1024Mi",
            "ports": [], "status": "running", "state": "running", "id": id, "url": "http://127.0.0.1:8080/sandbox/demo/",
        });
        assert_eq!(stored, json!({ "code": "0", "data": expected }));
        exact("DELETE", "/api/v1/sandbox/demo", Value::Null, 200, r#"{"code":"0","data":"Sandbox demo deleted successfully"}"#)
            .await;
        exact("GET", "/api/v1/sandbox/demo", Value::Null, 404, r#"{"code":"404","error":"sandbox demo not found"}"#).await;
        exact("GET", "/api/v1/sandbox/No/such", Value::Null, 404, r#"{"code":"404","error":"sandbox No/such not found"}"#).await;
        let failed = r#"{"code":"404","error":"failed to delete sandbox demo: sandbox demo not found"}"#;
        exact("DELETE", "/api/v1/sandbox/demo", Value::Null, 404, failed).await;
        let unknown = r#"{"code":"404","error":"there is no environment \"nix\"; known environments: aio, default"}"#;
        exact("POST", AT, json!({ "environment": "nix" }), 404, unknown).await;
        exact("PUT", AT, Value::Null, 405, r#"{"code":"405","error":"this path takes GET, HEAD, POST"}"#).await;

        let steps = server.call("GET", &format!("/api/v1/trajectories/{}", id.as_str().unwrap()), Value::Null).await.json;
        let steps = steps["steps"].as_array().unwrap().iter();
        let told: Vec<_> = steps.map(|s| (s["dialect"].as_str().unwrap(), s["action"].as_str().unwrap())).collect();
        assert_eq!(told, [(DIALECT, "POST /api/v1/sandbox"), (DIALECT, "DELETE /api/v1/sandbox/demo")]);
    }

    #[tokio::test]
    async fn golden_failures_of_the_original_are_http_200() {
        let server = Harness::with(|control, gateway| {
            gateway.agent_sandbox_always_200 = true;
            control.limits.max_sandboxes = 1;
        })
        .await;
        let answer = server.call("GET", "/api/v1/sandbox/nobody", Value::Null).await;
        assert_eq!((answer.status, answer.text.as_str()), (200, r#"{"code":"500","error":"sandbox nobody not found"}"#));
        assert_eq!(make(&server, json!({ "name": "a" })).await.json["code"], "0");
        let full = make(&server, json!({ "name": "b" })).await;
        assert_eq!((full.status, &full.json["code"]), (200, &json!("500")));
        assert!(full.headers.contains_key("retry-after"));
    }

    #[tokio::test]
    async fn every_field_has_its_effect_or_is_refused() {
        let server = Harness::new().await;
        let body = json!({
            "name": "all", "environment": "aio", "args": ["sh", "-c", "true"], "app": "crawler", "image": "team/tools:2", "env": {"A": "1"},
            "timeout": 3, "idle_timeout": 2, "idle_policy": "scaledown", "workdir": "/srv", "cpu": "250m", "memory": "200Mi",
            "cpu_limit": "1.5", "memory_limit": "0.5Gi", "ports": [8000], "status": "ignored",
        });
        assert_eq!(make(&server, body.clone()).await.status, 200);
        let made = spec(&server, "all").await;
        assert_eq!((&made["image"], &made["args"], &made["env"]), (&json!("team/tools:2"), &body["args"], &body["env"]));
        assert_eq!(
            (&made["timeout_seconds"], &made["idle_timeout_seconds"], &made["idle_policy"]),
            (&json!(180), &json!(120), &json!("pause"))
        );
        assert_eq!((&made["resources"]["cpu_millis"], &made["resources"]["memory_bytes"]), (&json!(1500), &json!(512 << 20)));
        assert_eq!((&made["workdir"], &made["ports"]), (&json!("/srv"), &json!([8000])));
        let told = server.call("GET", "/api/v1/sandbox/all", Value::Null).await.json["data"].take();
        for (field, value) in body.as_object().unwrap() {
            let expected = if field == "status" { &json!("running") } else { value };
            assert_eq!(told[field], *expected, "{field}");
        }
        // Nothing of it remains for the next one.
        make(&server, json!({ "name": "next", "image": "base", "timeout": null, "cpu": "" })).await;
        let next = server.call("GET", "/api/v1/sandbox/next", Value::Null).await.json["data"].take();
        assert_eq!(
            (&next["environment"], &next["env"], &next["timeout"], &next["cpu"]),
            (&json!("custom"), &json!({}), &json!(60), &json!("100m"))
        );

        for (body, word) in [
            (json!({ "cpu_limit": "lots" }), "cpu_limit"),
            (json!({ "memory": "12 parsecs" }), "memory"),
            (json!({ "memory_limit": "1Ki" }), "memory_bytes"),
            (json!({ "cpu": "2", "cpu_limit": "1" }), "cpu is 2, above cpu_limit, which is 1"),
            (json!({ "memory": "2Gi" }), "memory is 2Gi, above memory_limit, which is 1024Mi"),
            (json!({ "ports": [70000] }), "ports"),
            (json!({ "idle_policy": "explode" }), "idle_policy"),
            (json!({ "timeout": -5 }), "timeout"),
            (json!({ "timeout": 1.5 }), "timeout"),
            (json!({ "name": "../../etc" }), "name"),
            (json!({ "template": "aio" }), "template"),
            (json!({ "app": "x".repeat(257) }), "app"),
            (json!([]), "object"),
        ] {
            let answer = make(&server, body.clone()).await;
            assert_eq!((answer.status, &answer.json["code"]), (400, &json!("400")), "{body}: {}", answer.text);
            assert!(answer.json["error"].as_str().unwrap().contains(word), "{body}: {}", answer.text);
        }
        assert_eq!(server.call("GET", AT, Value::Null).await.json["data"].as_array().unwrap().len(), 2);
    }

    #[tokio::test]
    async fn defaults_caps_and_limits_below_the_default_request() {
        let server = Harness::new().await;
        make(&server, json!({ "name": "capped", "timeout": 2000, "idle_timeout": 90 })).await;
        let capped = spec(&server, "capped").await;
        assert_eq!((&capped["timeout_seconds"], &capped["idle_timeout_seconds"]), (&json!(1440 * 60), &json!(3600)));
        make(&server, json!({ "name": "small", "cpu_limit": "50m" })).await;
        let small = server.call("GET", "/api/v1/sandbox/small", Value::Null).await.json["data"].take();
        assert_eq!((&small["cpu"], &small["cpu_limit"]), (&json!("50m"), &json!("50m")));
        make(&server, json!({ "name": "default" })).await;
        assert_eq!(spec(&server, "default").await["idle_timeout_seconds"], Value::Null);
        // Another dialect's sandbox has none of these defaults.
        server.call("POST", "/api/v2/sandboxes", json!({ "name": "other", "labels": {LABEL_CPU: "9"} })).await;
        assert_eq!(spec(&server, "other").await["idle_timeout_seconds"], Value::Null);
        let other = server.call("GET", "/api/v1/sandbox/other", Value::Null).await.json["data"].take();
        assert_eq!((&other["idle_timeout"], &other["timeout"], &other["cpu"]), (&json!(0), &json!(0), &json!("0")));
        assert_eq!((&other["cpu_limit"], &other["memory_limit"]), (&json!("2000m"), &json!("2048Mi")));
    }

    #[tokio::test]
    async fn a_templates_own_numbers_stand() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(
            dir.path().join("big.toml"),
            "idle_timeout_seconds = 30\nidle_policy = \"pause\"\n[resources]\nmemory_bytes = 4294967296\n",
        )
        .unwrap();
        let server = Harness::with(|control, _| control.templates_dir = Some(dir.path().to_owned())).await;
        assert_eq!(make(&server, json!({ "name": "big", "environment": "big" })).await.status, 200);
        let big = spec(&server, "big").await;
        assert_eq!((&big["resources"]["memory_bytes"], &big["resources"]["cpu_millis"]), (&json!(4u64 << 30), &json!(1000)));
        assert_eq!(
            (&big["idle_timeout_seconds"], &big["idle_policy"], &big["timeout_seconds"]),
            (&json!(30), &json!("pause"), &json!(3600))
        );
    }

    #[tokio::test]
    async fn sandboxes_without_a_name_get_different_ones() {
        let server = Harness::new().await;
        let mut names = Vec::new();
        for body in ["", "{}", " {\"image\": \"base\"} ", "{\"name\": \"\"}"] {
            let answer = server.bytes("POST", AT, body.as_bytes().to_vec()).await;
            let text = answer.json["data"].as_str().unwrap_or_else(|| panic!("{body}: {}", answer.text)).to_owned();
            names.push(text.split(' ').nth(1).unwrap().to_owned());
        }
        assert!(names[0].starts_with("sandbox-aio-") && names[2].starts_with("sandbox-custom-"), "{names:?}");
        let listed = server.call("GET", AT, Value::Null).await.json["data"].as_array().unwrap().len();
        assert_eq!(listed, 4);
        for (environment, number, expected) in
            [("aio", 1, "sandbox-aio-7"), ("Py_3.11", 2, "sandbox-py-3-11-7-2"), ("é--", 1, "sandbox-7")]
        {
            assert_eq!(made_up(environment, 7, number), expected);
        }
        assert!(made_up(&"x".repeat(200), 1_700_000_000, 1000).parse::<SandboxName>().is_ok());
    }

    #[tokio::test]
    async fn a_failed_create_leaves_nothing() {
        let server = Harness::new().await;
        server.engine.fail(arenite_control::fake_engine::Point::BeforeCreate, 1);
        let failed = make(&server, json!({ "name": "x" })).await;
        assert!(failed.status >= 500, "{}", failed.text);
        assert_eq!(server.call("GET", AT, Value::Null).await.json["data"], json!([]));
        assert_eq!(make(&server, json!({ "name": "x" })).await.status, 200);
    }
}
