//! The service: executes code in either language.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use super::types::*;
use crate::jupyter::JupyterService;
use crate::jupyter::{self, JupyterExecuteRequest, JupyterOutput, Status};
use crate::nodejs::NodeService;
use crate::nodejs::{self, NodeJSExecuteRequest};
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::http::{ApiError, Envelope};
use arenite_guest_runtime::programs::{self, Versions};

const DEFAULT_TIMEOUT: i64 = 30;
const MAX_TIMEOUT: i64 = 300;
/// Executes code in the kernel or process of its language.
#[derive(Debug)]
pub struct CodeService {
    runtime: Arc<Runtime>,
    versions: Arc<Versions>,
    jupyter: Arc<JupyterService>,
    nodejs: Arc<NodeService>,
}

impl CodeService {
    pub fn new(runtime: Arc<Runtime>, versions: Arc<Versions>, jupyter: Arc<JupyterService>, nodejs: Arc<NodeService>) -> Self {
        Self { runtime, versions, jupyter, nodejs }
    }
}

/// Exit code of `timeout` for a command that it ended.
const TIMED_OUT: i32 = 124;

/// Executes code. Without a session, it ends when the caller leaves, and lines are sent as they are printed.
pub async fn execute(
    code: &Arc<CodeService>,
    request: CodeExecuteRequest,
    lines_to: Option<&mpsc::Sender<String>>,
) -> Result<Envelope<CodeExecuteResponse>, ApiError> {
    let (data, (message, hint)) = match request.language {
        Language::Python => python(code, request, lines_to).await?,
        Language::Javascript => javascript(code, request, lines_to).await?,
    };
    Ok(Envelope { success: true, message: Some(message), data: Some(data), hint })
}

type Said = (String, Option<String>);

async fn python(
    code: &Arc<CodeService>,
    request: CodeExecuteRequest,
    lines_to: Option<&mpsc::Sender<String>>,
) -> Result<(CodeExecuteResponse, Said), ApiError> {
    let seconds = request.timeout.unwrap_or(DEFAULT_TIMEOUT);
    let executed = if request.stateful == Some(true) {
        let request = JupyterExecuteRequest {
            code: request.code.clone(),
            timeout: Some(seconds),
            kernel_name: None,
            session_id: request.session_id.clone(),
            cwd: request.cwd.clone(),
        };
        code.jupyter.execute(&request).await?
    } else {
        let limit = Duration::from_secs(seconds.unsigned_abs());
        code.jupyter.execute_once(&request.code, limit, request.cwd.as_deref(), lines_to).await?
    };
    let said = jupyter::call_message(&executed, seconds);
    let execution = executed.execution;
    let stream = |name: &str| {
        let found = execution.outputs.iter().find(|output| output.output_type == "stream" && output.name == Some(name));
        found.and_then(|output| output.text.clone())
    };
    let error = execution.outputs.iter().rev().find(|output| output.output_type == "error");
    let (exit_code, status) = match (execution.status, error) {
        (Status::Ok, _) => (0, Status::Ok),
        (Status::Timeout, _) => (TIMED_OUT, Status::Timeout),
        (Status::Error, Some(error)) => match exit_of(error) {
            // Exiting early with 0 is no error.
            Some(0) => (0, Status::Ok),
            code => (code.unwrap_or(1), Status::Error),
        },
        (Status::Error, None) => (1, Status::Error),
    };
    let data = CodeExecuteResponse {
        language: Language::Python,
        status: status.as_str().to_owned(),
        stdout: stream("stdout"),
        stderr: stream("stderr"),
        exit_code: Some(exit_code),
        traceback: error.filter(|_| status != Status::Ok).and_then(|error| error.traceback.clone()),
        outputs: as_json(&execution.outputs),
        code: request.code,
        session_id: executed.session_id,
    };
    Ok((data, said))
}

/// The argument of `sys.exit`.
fn exit_of(error: &JupyterOutput) -> Option<i32> {
    if error.ename.as_deref() != Some("SystemExit") {
        return None;
    }
    match error.evalue.as_deref().unwrap_or_default() {
        "" | "None" => Some(0),
        code => Some(code.parse().unwrap_or(1)),
    }
}

async fn javascript(
    code: &Arc<CodeService>,
    request: CodeExecuteRequest,
    lines_to: Option<&mpsc::Sender<String>>,
) -> Result<(CodeExecuteResponse, Said), ApiError> {
    let seconds = request.timeout.unwrap_or(DEFAULT_TIMEOUT);
    let is_stateful = request.stateful == Some(true);
    let request = NodeJSExecuteRequest {
        code: request.code,
        timeout: Some(seconds),
        stateful: Some(is_stateful),
        session_id: request.session_id.filter(|_| is_stateful),
        cwd: request.cwd,
        ..Default::default()
    };
    let executed = match is_stateful {
        true => code.nodejs.execute(request).await?,
        false => code.nodejs.execute_once(request, lines_to).await?,
    };
    let said = nodejs::call_message(&executed, seconds);
    let response = executed.response;
    let error = response.outputs.iter().rev().find(|output| output.output_type == "error");
    let some = |text: String| Some(text).filter(|text| !text.is_empty());
    let data = CodeExecuteResponse {
        language: Language::Javascript,
        status: response.status.to_owned(),
        traceback: error.and_then(|error| error.traceback.clone()),
        outputs: as_json(&response.outputs),
        code: response.code,
        stdout: some(response.stdout),
        stderr: some(response.stderr),
        exit_code: Some(response.exit_code),
        session_id: response.session_id,
    };
    Ok((data, said))
}

/// Outputs as raw JSON, so that large ones are not parsed again.
fn as_json<T: Serialize>(outputs: &[T]) -> Vec<Box<RawValue>> {
    outputs.iter().filter_map(|output| serde_json::value::to_raw_value(output).ok()).collect()
}

pub(super) async fn info(code: &Arc<CodeService>) -> Result<CodeInfoResponse, ApiError> {
    let kernels = code.jupyter.info().await?;
    let path = programs::search_path(&code.runtime.environment(&code.runtime.user, &[]));
    let python = match programs::locate("python3", &path) {
        Some(program) => code.versions.version(&program).await,
        None => None,
    };
    let node = code.nodejs.info().await;
    let described = |language, description: &str, runtime_version, details: serde_json::Value| CodeLanguageInfo {
        language,
        description: description.to_owned(),
        runtime_version,
        default_timeout: DEFAULT_TIMEOUT,
        max_timeout: MAX_TIMEOUT,
        details: serde_json::from_value(details).unwrap_or_default(),
    };
    Ok(CodeInfoResponse {
        languages: vec![
            described(
                Language::Python,
                "Python in a Jupyter kernel; each execution in a fresh one, or in a session whose variables last",
                // Without a kernel, no code can be executed, even if Python is installed.
                python.filter(|_| !kernels.available_kernels.is_empty()),
                json!({"default_kernel": kernels.default_kernel, "kernels": kernels.available_kernels}),
            ),
            described(
                Language::Javascript,
                "JavaScript in Node.js; each execution in a fresh process, or in a session whose variables last",
                Some(node.node_version).filter(|version| !version.is_empty()),
                json!({"versions": node.available_versions, "npm": node.npm_version}),
            ),
        ],
    })
}
