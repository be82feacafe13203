//! What Agent-Sandbox has since 0.2: pause and resume, files, commands, logs and measurements of a sandbox, and its limits.
//!
//! Answers have the original's fields. `pod` and `container` are the sandbox's name and `sandbox`: there are no pods here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::Sandbox;
use arenite_engine::Usage;
use arenite_model::{ErrorCode, PauseKind, SandboxName};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use jiff::Timestamp;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{DIALECT, failure, finish, known, named, success};
use crate::api;
use crate::exchange::{Answered, Exchange};
use crate::lifecycle::{self, Change, LifecycleAnswer, LifecycleCall};
use crate::path::Path;
use crate::proxy::{self, InternalAnswer};
use crate::refusal::Refusal;
use crate::target::{self, SandboxRef, Target};

/// Largest uploaded form, in bytes, as in the original.
const MAX_UPLOAD: usize = 100 << 20;
/// Largest answer of a guest that is read here, in bytes.
const MAX_ANSWER: usize = 16 << 20;
/// The most sandboxes that one request measures.
const MAX_MEASURED: usize = 100;
/// Time between the two measurements that a CPU rate needs.
const MEASURED_FOR: Duration = Duration::from_millis(200);
/// Lines of a log: by default, and the most.
const LINES: usize = 200;
const MAX_LINES: usize = 2000;
/// The end of a log that is searched for its last lines, in bytes.
const MAX_LOG: usize = 4 << 20;
/// Seconds after which a command is killed.
const COMMAND_LIMIT: f64 = 300.0;

/// A command, run by `sh -lc`.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = AgentSandboxCommand)]
#[serde(default)]
pub(crate) struct Command {
    command: String,
}

/// Names of sandboxes to measure.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[schema(as = AgentSandboxNames)]
#[serde(default)]
pub(crate) struct Names {
    names: Vec<String>,
}

/// An answer in an envelope; its `data` depends on the route.
#[derive(Debug, ToSchema)]
#[schema(as = AgentSandboxData)]
#[expect(dead_code, reason = "only its schema is used")]
pub(crate) struct DataAnswer {
    /// `0`
    code: String,
    data: Value,
}

pub(crate) async fn pause(exchange: &mut Exchange) -> Answered {
    let changed = change(exchange, Change::Pause(PauseKind::Freeze), "pause", "paused").await;
    finish(exchange, changed)
}

pub(crate) async fn resume(exchange: &mut Exchange) -> Answered {
    let changed = change(exchange, Change::Resume, "resume", "resumed").await;
    finish(exchange, changed)
}

async fn change(exchange: &Exchange, wanted: Change, verb: &str, done: &'static str) -> Result<LifecycleAnswer, Refusal> {
    let given = exchange.param("name");
    let name = named(given)?;
    let call = LifecycleCall { dialect: DIALECT, action: format!("POST /api/v1/sandbox/{verb}/{name}"), arguments: None };
    let answer = move |sandbox: Sandbox| success(format!("Sandbox {} {done} successfully", sandbox.name).into());
    let changed = lifecycle::change(&exchange.gateway, &exchange.context, call, name, wanted, answer).await;
    changed.map_err(|refusal| known(refusal, given))
}

/// CPU and memory of sandboxes. Unknown ones are left out, and so are those that can't be measured.
pub(crate) async fn metrics(exchange: &mut Exchange) -> Answered {
    let measured = measure(exchange).await;
    finish(exchange, measured)
}

async fn measure(exchange: &mut Exchange) -> Result<LifecycleAnswer, Refusal> {
    let (Names { names }, _) = exchange.json().await?;
    let mut wanted: Vec<SandboxName> = names.iter().filter_map(|name| name.trim().parse().ok()).collect();
    wanted.sort();
    wanted.dedup();
    if wanted.is_empty() {
        return Err(Refusal::bad_request("names is required"));
    }
    if wanted.len() > MAX_MEASURED {
        return Err(Refusal::bad_request(format!("names: give at most {MAX_MEASURED}")));
    }
    let mut found = Vec::new();
    for name in wanted {
        if target::look_up(&exchange.gateway.control, &exchange.context, &SandboxRef::Name(name.clone())).await.is_ok() {
            found.push(name);
        }
    }
    let first = usages(exchange, &found).await;
    let begun = tokio::time::Instant::now();
    tokio::time::sleep(MEASURED_FOR).await;
    let second = usages(exchange, &found).await;
    let nanoseconds = begun.elapsed().as_nanos().max(1);
    let now = Timestamp::now().to_string();
    let item = |(name, usage): (&SandboxName, &Usage)| {
        let before = first.get(name).map_or(usage.cpu_nanoseconds, |usage| usage.cpu_nanoseconds);
        let millis = u128::from(usage.cpu_nanoseconds.saturating_sub(before)) * 1000 / nanoseconds;
        let item = json!({
            "sandbox": name, "pod": name, "cpuMilli": u64::try_from(millis).unwrap_or(u64::MAX),
            "memoryBytes": usage.memory_bytes, "memoryMB": usage.memory_bytes >> 20, "sampledAt": now,
        });
        (name.to_string(), item)
    };
    let items: serde_json::Map<String, Value> = second.iter().map(item).collect();
    Ok(success(json!({ "items": items })))
}

/// Measures the caller's sandboxes of these names.
async fn usages(exchange: &Exchange, names: &[SandboxName]) -> BTreeMap<SandboxName, Usage> {
    let mut found = BTreeMap::new();
    for name in names {
        if let Ok(usage) = exchange.gateway.control.usage(exchange.context.tenant(), name).await {
            found.insert(name.clone(), usage);
        }
    }
    found
}

/// The last lines of the main command's output.
pub(crate) async fn logs(exchange: &mut Exchange) -> Answered {
    let read = read_log(exchange).await;
    finish(exchange, read)
}

async fn read_log(exchange: &Exchange) -> Result<LifecycleAnswer, Refusal> {
    let lines = match exchange.query("tailLines").filter(|given| !given.is_empty()) {
        None => LINES,
        Some(given) => match given.parse::<usize>() {
            Ok(lines) if lines > 0 => lines.min(MAX_LINES),
            _ => return Err(Refusal::bad_request("tailLines must be a positive integer")),
        },
    };
    let sandbox = find(exchange).await?;
    let lease = target::lease(&exchange.gateway, &exchange.context, &SandboxRef::Name(sandbox.name.clone())).await?;
    let (link, answer) = proxy::internal_get(&exchange.gateway, &lease.sandbox.id, api::MAIN_LOG).await?;
    let mut log = BytesMut::new();
    if answer.status() == StatusCode::OK {
        let mut answer = InternalAnswer::new(link, answer.into_body());
        while let Some(piece) = answer.next().await {
            let piece = piece.map_err(|error| Refusal::new(ErrorCode::SandboxFailed, format!("the log broke off: {error}")))?;
            log.extend_from_slice(&piece);
            if log.len() > 2 * MAX_LOG {
                drop(log.split_to(log.len() - MAX_LOG));
            }
        }
    }
    let text = String::from_utf8_lossy(&log);
    let all: Vec<&str> = text.lines().collect();
    let last = all[all.len().saturating_sub(lines)..].join("\n");
    Ok(success(json!({
        "sandbox": sandbox.name, "pod": sandbox.name, "container": "sandbox", "logs": last,
        "fetchedAt": Timestamp::now().to_string(),
    })))
}

/// Limits and use of the caller's tenant.
pub(crate) async fn rate_limit(exchange: &mut Exchange) -> Answered {
    let context = &exchange.context;
    let control = &exchange.gateway.control;
    let (limits, own) = (control.limits(), control.tenant_limits(context.tenant()));
    let current = control.list(context.tenant()).await.map(|all| all.len() as u64);
    let answer = current.map_err(Refusal::from).map(|current| {
        let most = own.sandboxes.unwrap_or(limits.max_sandboxes as u64);
        let creates = own.concurrent_creates.unwrap_or(limits.max_concurrent_creates as u64);
        success(json!({
            "default_config": { "enabled": true, "max_concurrency": creates, "max_sandbox": most },
            "users": [{
                "user": context.tenant(), "concurrency_active": control.creates_of(context.tenant()),
                "concurrency_max": creates, "sandbox_current": current, "sandbox_max": most,
                "sandbox_usage_percent": current * 100 / most.max(1),
            }],
        }))
    });
    finish(exchange, answer)
}

/// Runs a command to its end.
pub(crate) async fn terminal(exchange: &mut Exchange) -> Answered {
    let run = run_command(exchange).await;
    finish(exchange, run)
}

async fn run_command(exchange: &mut Exchange) -> Result<LifecycleAnswer, Refusal> {
    let name = find(exchange).await?.name;
    let (Command { command }, _) = exchange.json().await?;
    let command = command.trim();
    if command.is_empty() {
        return Err(Refusal::bad_request("command is required"));
    }
    let result = run(exchange, &name, &format!("exec sh -lc {}", quoted(command))).await?;
    Ok(success(json!({
        "sandbox": name, "pod": name, "container": "sandbox", "command": command,
        "output": result["stdout"].as_str().unwrap_or_default(), "errorOutput": result["stderr"].as_str().unwrap_or_default(),
        "executedAt": Timestamp::now().to_string(),
    })))
}

/// The best shell of a sandbox.
pub(crate) async fn detect_shell(exchange: &mut Exchange) -> Answered {
    let found = async {
        let name = find(exchange).await?.name;
        let result = run(exchange, &name, "command -v bash || command -v sh").await?;
        let shell = result["stdout"].as_str().unwrap_or_default().trim();
        Ok(success(json!({ "shell": shell })))
    };
    let found = found.await;
    finish(exchange, found)
}

/// Runs a command with the guest's `bash/exec`, and returns the result's data.
async fn run(exchange: &Exchange, name: &SandboxName, command: &str) -> Result<Value, Refusal> {
    let body = json!({ "command": command, "hard_timeout": COMMAND_LIMIT, "timeout": COMMAND_LIMIT + 10.0, "close_stdin": true });
    call_json(exchange, name, "/v1/bash/exec", &body).await
}

/// A text as one word of a shell command.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The path in the query.
fn path_in_query(exchange: &Exchange) -> Result<String, Refusal> {
    let path = exchange.query("path").map(|path| path.trim().to_owned()).filter(|path| !path.is_empty());
    path.ok_or_else(|| Refusal::bad_request("path is required"))
}

pub(crate) async fn list_files(exchange: &mut Exchange) -> Answered {
    let listed = async {
        let name = find(exchange).await?.name;
        let path = path_in_query(exchange).unwrap_or_else(|_| "/".to_owned());
        let body = json!({ "path": path, "show_hidden": true, "include_size": true });
        let listed = call_json(exchange, &name, "/v1/file/list", &body).await?;
        let files = listed["files"].as_array().into_iter().flatten();
        let entry = |file: &Value| {
            json!({
                "name": file["name"], "path": file["path"], "isDir": file["is_directory"], "size": file["size"].as_u64().unwrap_or_default(),
            })
        };
        let entries: Vec<Value> = files.map(entry).collect();
        Ok(success(json!({
            "sandbox": name, "pod": name, "container": "sandbox", "path": listed["path"], "entries": entries,
            "fetchedAt": Timestamp::now().to_string(),
        })))
    };
    let listed = listed.await;
    finish(exchange, listed)
}

/// Stores an uploaded file: the part `file` of a form, in the directory or at the path that the query names.
pub(crate) async fn upload_file(exchange: &mut Exchange) -> Answered {
    let uploaded = upload(exchange).await;
    finish(exchange, uploaded)
}

async fn upload(exchange: &mut Exchange) -> Result<LifecycleAnswer, Refusal> {
    let name = find(exchange).await?.name;
    let path = path_in_query(exchange).unwrap_or_else(|_| "/".to_owned());
    let kind = exchange.parts.headers.get(CONTENT_TYPE).cloned();
    let kind = kind.ok_or_else(|| Refusal::bad_request("the body is not a form (multipart/form-data)"))?;
    let boundary = boundary(&kind).ok_or_else(|| Refusal::bad_request("the body is not a form (multipart/form-data)"))?;
    let body = api::read_up_to(exchange.take_body(), MAX_UPLOAD).await?;
    // The guest takes the path as a part of the form. It comes first, so that the file is stored as it arrives.
    let head = format!("--{boundary}\r\nContent-Disposition: form-data; name=\"path\"\r\n\r\n{path}\r\n");
    let mut form = BytesMut::with_capacity(head.len() + body.len());
    form.extend_from_slice(head.as_bytes());
    form.extend_from_slice(&body);
    let request = Request::post("/v1/file/upload").header(CONTENT_TYPE, kind).body(form.freeze());
    let stored = call_data(exchange, &name, request.map_err(|error| Refusal::bad_request(error.to_string()))?).await?;
    let path = stored["file_path"].as_str().unwrap_or(&path).to_owned();
    Ok(success(json!({
        "sandbox": name, "pod": name, "container": "sandbox", "path": path,
        "fileName": path.rsplit('/').next().unwrap_or_default(), "uploadedAt": Timestamp::now().to_string(),
    })))
}

/// The boundary of a form's parts.
fn boundary(kind: &HeaderValue) -> Option<String> {
    let kind = kind.to_str().ok()?;
    let (name, parameters) = kind.split_once(';')?;
    if !name.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let mut parameters = parameters.split(';').filter_map(|parameter| parameter.trim().split_once('='));
    let (_, value) = parameters.find(|(name, _)| name.trim().eq_ignore_ascii_case("boundary"))?;
    let value = value.trim().trim_matches('"');
    (!value.is_empty() && value.len() <= 70).then(|| value.to_owned())
}

pub(crate) async fn download_file(exchange: &mut Exchange) -> Answered {
    match download(exchange).await {
        Ok(answer) => Ok(answer),
        Err(refusal) => Ok(failure(&refusal, exchange.gateway.config.agent_sandbox_always_200)),
    }
}

async fn download(exchange: &Exchange) -> Result<Response<Body>, Refusal> {
    let name = find(exchange).await?.name;
    let path = path_in_query(exchange)?;
    let path_in_query = utf8_percent_encode(&path, NON_ALPHANUMERIC);
    let request = Request::get(format!("/v1/file/download?path={path_in_query}")).body(Bytes::new());
    let answer = call(exchange, &name, request.map_err(|error| Refusal::bad_request(error.to_string()))?).await?;
    if !answer.status().is_success() {
        return Err(refused(answer).await);
    }
    let mut answer = Response::new(answer.into_body());
    let file: String =
        path.rsplit('/').next().unwrap_or_default().chars().filter(|c| c.is_ascii_graphic() && !"\"\\".contains(*c)).collect();
    let file = if file.is_empty() { "download.bin".to_owned() } else { file };
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    if let Ok(disposition) = HeaderValue::from_str(&format!("attachment; filename=\"{file}\"")) {
        headers.insert(CONTENT_DISPOSITION, disposition);
    }
    // Content of a sandbox must not become a page of this server.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox"));
    Ok(answer)
}

/// Deletes a file, or a directory with everything in it.
pub(crate) async fn delete_file(exchange: &mut Exchange) -> Answered {
    let deleted = async {
        let name = find(exchange).await?.name;
        let path = path_in_query(exchange)?;
        let result = run(exchange, &name, &format!("rm -r -- {}", quoted(&path))).await?;
        if result["exit_code"] != 0 {
            let why = result["stderr"].as_str().unwrap_or("it can't be deleted").trim().to_owned();
            return Err(Refusal::bad_request(why));
        }
        Ok(success(json!({
            "sandbox": name, "pod": name, "container": "sandbox", "path": path, "deletedAt": Timestamp::now().to_string(),
        })))
    };
    let deleted = deleted.await;
    finish(exchange, deleted)
}

/// The templates with sandboxes that are created in advance.
pub(crate) async fn pools(exchange: &mut Exchange) -> Answered {
    let templates = exchange.gateway.control.templates().into_iter().filter(|template| template.pool > 0);
    let pool = |template: arenite_control::Template| {
        json!({
            "name": template.name, "image": template.spec.image, "description": template.description,
            "pool": { "size": template.pool },
        })
    };
    finish(exchange, Ok(success(templates.map(pool).collect())))
}

/// The sandbox in the path, for a call to its guest.
async fn find(exchange: &Exchange) -> Result<Sandbox, Refusal> {
    let given = exchange.param("name");
    let found = target::look_up(&exchange.gateway.control, &exchange.context, &SandboxRef::Name(named(given)?)).await;
    found.map_err(|refusal| known(refusal, given))
}

async fn call_json(exchange: &Exchange, name: &SandboxName, path: &str, body: &Value) -> Result<Value, Refusal> {
    let request = Request::builder().method(Method::POST).uri(path).header(CONTENT_TYPE, "application/json");
    let request = request.body(Bytes::from(body.to_string())).map_err(|error| Refusal::bad_request(error.to_string()))?;
    call_data(exchange, name, request).await
}

async fn call(exchange: &Exchange, name: &SandboxName, request: Request<Bytes>) -> Result<Response<Body>, Refusal> {
    let target = Target {
        sandbox_ref: SandboxRef::Name(name.clone()),
        path: Path::parse(request.uri().path())?,
        prefix: format!("/sandbox/{name}"),
        own_host: false,
    };
    let gateway = Arc::clone(&exchange.gateway);
    proxy::call_guest(&gateway, &exchange.context, &target, request).await
}

/// Calls the guest, and returns the `data` of a success.
async fn call_data(exchange: &Exchange, name: &SandboxName, request: Request<Bytes>) -> Result<Value, Refusal> {
    let answer = call(exchange, name, request).await?;
    let status = answer.status();
    let bytes = api::read_up_to(answer.into_body(), MAX_ANSWER).await?;
    let mut envelope: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    if status.is_success() && envelope["success"] != false {
        return Ok(envelope["data"].take());
    }
    Err(said(status, &envelope))
}

async fn refused(answer: Response<Body>) -> Refusal {
    let status = answer.status();
    match api::read_up_to(answer.into_body(), MAX_ANSWER).await {
        Ok(bytes) => said(status, &serde_json::from_slice(&bytes).unwrap_or_default()),
        Err(refusal) => refusal,
    }
}

/// The refusal of a guest. Its text is a sandbox's, and goes to the caller as text only.
fn said(status: StatusCode, envelope: &Value) -> Refusal {
    let message: String = envelope["message"].as_str().unwrap_or("the sandbox refused the call").chars().take(1000).collect();
    let status = if status.is_client_error() || status.is_server_error() { status } else { StatusCode::BAD_REQUEST };
    Refusal { status, ..Refusal::bad_request(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_shell_commands_stay_one_word() {
        assert_eq!(quoted("it's; rm -r /"), r"'it'\''s; rm -r /'");
    }

    #[test]
    fn boundaries_of_forms_are_found() {
        let found = |kind: &'static str| boundary(&HeaderValue::from_static(kind));
        assert_eq!(found("multipart/form-data; boundary=abc").as_deref(), Some("abc"));
        assert_eq!(found("Multipart/Form-Data; charset=utf-8; Boundary=\"a b\"").as_deref(), Some("a b"));
        for other in ["application/json", "multipart/form-data", "multipart/mixed; boundary=a", "multipart/form-data; boundary="]
        {
            assert_eq!(found(other), None, "{other}");
        }
    }
}
