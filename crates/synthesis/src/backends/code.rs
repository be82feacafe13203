//! `code:*`: runs code, and the six tools of a workspace.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::{Answered, Params, bash, count_if, failed, handle, number_if, require, seconds, spec, text, text_if};
use crate::answer::{Failure, Returned, code as codes};
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::SynthesisError;
use crate::sandboxes::{SandboxHandle, SandboxRequest};
use crate::session::Session;

const NAME: &str = "code";
/// Default timeout in seconds.
const TIMEOUT: f64 = 60.0;
/// The kernel's own limit on one execution, in seconds.
const LONGEST: f64 = 300.0;
/// Default number of lines of one read.
const LINES: u64 = 2000;
/// Files or matches in one answer.
const FOUND: usize = 1000;

/// Runs code and works on files.
pub struct Code {
    config: Map<String, Value>,
}

impl Code {
    pub fn new(config: Map<String, Value>) -> Self {
        Self { config }
    }
}

#[async_trait]
impl Backend for Code {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let string = |description: &str| json!({"type": "string", "description": description});
        let file = string("The file: absolute, or relative to the session's directory.");
        let timeout = json!({"type": "number", "description": "Seconds after which it is stopped.", "default": TIMEOUT});
        let language = json!({"type": "string", "enum": ["python", "javascript", "bash"], "default": "python", "description": "Its language."});
        vec![
            spec(
                "code:execute",
                NAME,
                "Run code. In a session variables stay from call to call.",
                json!({"code": string("The code."), "language": language, "timeout": timeout}),
                &["code"],
            ),
            spec(
                "code:read",
                NAME,
                "Read a text file, with the numbers of its lines.",
                json!({
                    "file_path": file,
                    "offset": {"type": "integer", "description": "The first line, from 1."},
                    "limit": {"type": "integer", "description": "How many lines.", "default": LINES},
                }),
                &["file_path"],
            ),
            spec(
                "code:glob",
                NAME,
                "Find files by a pattern such as **/*.py.",
                json!({"pattern": string("The pattern."), "path": string("The directory to look in.")}),
                &["pattern"],
            ),
            spec(
                "code:grep",
                NAME,
                "Search files for a regular expression.",
                json!({
                    "pattern": string("The regular expression."),
                    "path": string("A file, or a directory to look in."),
                    "glob": string("Which files, such as *.py."),
                }),
                &["pattern"],
            ),
            spec("code:bash", NAME, "Run a command.", json!({"command": string("The command, for bash.")}), &["command"]),
            spec(
                "code:edit",
                NAME,
                "Replace text in a file. The text has to be there once, unless all are to be replaced.",
                json!({
                    "file_path": file,
                    "old_string": string("What is replaced, verbatim."),
                    "new_string": string("What stands there then."),
                    "replace_all": {"type": "boolean", "default": false, "description": "Replace every occurrence."},
                }),
                &["file_path", "old_string", "new_string"],
            ),
            spec(
                "code:write",
                NAME,
                "Write a file, over what was there.",
                json!({"file_path": file, "content": string("What is in it then.")}),
                &["file_path", "content"],
            ),
        ]
    }

    fn default_config(&self) -> Map<String, Value> {
        self.config.clone()
    }

    fn sandbox_request(&self, _config: &Map<String, Value>) -> Option<SandboxRequest> {
        Some(SandboxRequest::default())
    }

    async fn initialize(&self, session: &Arc<Session>, handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        bash::open(session, handle).await
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let params = &call.params;
        let default = bash::default_timeout(call.session, TIMEOUT);
        match call.tool {
            "code:execute" => {
                require(call.tool, params, &["code"])?;
                execute(&call, default).await
            }
            "code:bash" => {
                require(call.tool, params, &["command"])?;
                let done = bash::run(&call, text(params, "command")?, default).await?;
                let Returned::Data(mut data) = done else { return Ok(done) };
                let both = [data["stdout"].as_str(), data["stderr"].as_str()];
                data["result"] = both.into_iter().flatten().collect::<String>().into();
                Ok(Returned::Data(data))
            }
            _ => workspace(&call).await,
        }
    }
}

async fn execute(call: &ToolCall<'_>, default: f64) -> Answered {
    let params = &call.params;
    let code = text(params, "code")?;
    let timeout = number_if(params, "timeout")?.unwrap_or(default);
    let language = text_if(params, "language")?.unwrap_or("python").to_ascii_lowercase();
    let begun = Instant::now();
    let language = match language.as_str() {
        "python" | "python3" | "py" => "python",
        "javascript" | "js" | "node" | "nodejs" => "javascript",
        "bash" | "sh" | "shell" => {
            let done = bash::run(call, code, timeout).await?;
            let Returned::Data(mut data) = done else { return Ok(done) };
            told(&mut data, begun);
            return Ok(Returned::Data(data));
        }
        other => {
            let message = format!("language is {other:?}, and has to be python, javascript or bash");
            return Err(Failure::new(codes::INVALID_INPUT, message));
        }
    };
    let mut request = json!({
        "language": language,
        "code": code,
        // The kernel accepts whole seconds.
        "timeout": seconds(timeout.min(LONGEST), call.deadline).max(1.0) as i64,
    });
    if let Some(session) = call.session.filter(|session| !session.facts.auto_created) {
        request["stateful"] = true.into();
        request["session_id"] = format!("agentflow-{}", session.facts.id).into();
        if let Some(cwd) = session.facts.config.get("cwd") {
            request["cwd"] = cwd.clone();
        }
    }
    let done = handle(call.handle)?.post("/v1/code/execute", &request).await.map_err(failed)?;
    let traceback =
        done["traceback"].as_array().map(|lines| lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n"));
    let mut stderr = done["stderr"].as_str().unwrap_or_default().to_owned();
    if let Some(traceback) = traceback.filter(|traceback| !stderr.contains(traceback.as_str())) {
        stderr.push_str(&traceback);
    }
    let mut stdout = done["stdout"].as_str().unwrap_or_default().to_owned();
    for output in done["outputs"].as_array().into_iter().flatten() {
        // The value of the last line, as a notebook shows it.
        if output["output_type"] == "execute_result"
            && let Some(value) = output["data"]["text/plain"].as_str()
        {
            stdout.push_str(value);
            stdout.push('\n');
        }
    }
    let mut data = json!({
        "stdout": stdout,
        "stderr": stderr,
        "return_code": done["exit_code"],
        "exit_code": done["exit_code"],
        "language": language,
        "outputs": done["outputs"],
    });
    told(&mut data, begun);
    Ok(Returned::Data(data))
}

/// Fields of AgentFlow's documents beside the output. The memory use of one execution is not known.
fn told(data: &mut Value, begun: Instant) {
    data["execution_time_ms"] = (begun.elapsed().as_secs_f64() * 1e3).into();
    data["memory_used_mb"] = Value::Null;
}

/// A path in the sandbox; relative ones belong to the session's directory.
async fn path(call: &ToolCall<'_>, given: &str) -> Result<String, Failure> {
    if given.starts_with('/') {
        return Ok(given.to_owned());
    }
    let cwd = call.session.and_then(|session| session.facts.config.get("cwd")).and_then(Value::as_str);
    let base = match cwd {
        Some(cwd) => cwd.to_owned(),
        None => {
            let asked = json!({ "command": "pwd", "hard_timeout": 10 });
            let told = handle(call.handle)?.post("/v1/bash/exec", &asked).await.map_err(failed)?;
            told["stdout"].as_str().unwrap_or("/").trim_end_matches('\n').to_owned()
        }
    };
    Ok(if given.is_empty() || given == "." { base } else { format!("{}/{given}", base.trim_end_matches('/')) })
}

/// The six tools of an editor's workspace return text. Failures are text too, with the prefix `Error:`.
async fn workspace(call: &ToolCall<'_>) -> Answered {
    let params = &call.params;
    let required: &[&str] = match call.tool {
        "code:read" => &["file_path"],
        "code:write" => &["file_path", "content"],
        "code:edit" => &["file_path", "old_string", "new_string"],
        _ => &["pattern"],
    };
    require(call.tool, params, required)?;
    let handle = handle(call.handle)?;
    let result = match call.tool {
        "code:read" => read(call, params, handle).await?,
        "code:glob" => {
            let root = path(call, text_if(params, "path")?.unwrap_or_default()).await?;
            let asked =
                json!({ "path": root, "pattern": text(params, "pattern")?, "max_results": FOUND, "include_metadata": false });
            handle.post("/v1/file/glob", &asked).await.map(|found| {
                let files = found["files"].as_array().into_iter().flatten();
                let lines: Vec<&str> = files.filter_map(|file| file["path"].as_str()).collect();
                if lines.is_empty() { "No files found".to_owned() } else { lines.join("\n") }
            })
        }
        "code:grep" => {
            let root = path(call, text_if(params, "path")?.unwrap_or_default()).await?;
            let mut asked = json!({ "path": root, "pattern": text(params, "pattern")?, "max_results": FOUND });
            if let Some(glob) = text_if(params, "glob")? {
                asked["include"] = json!([glob]);
            }
            handle.post("/v1/file/grep", &asked).await.map(|found| {
                let line = |found: &Value| {
                    let number = found["line_number"].as_u64().unwrap_or_default();
                    format!(
                        "{}:{number}:{}",
                        found["file"].as_str().unwrap_or_default(),
                        found["line_content"].as_str().unwrap_or_default()
                    )
                };
                let lines: Vec<String> = found["matches"].as_array().into_iter().flatten().map(line).collect();
                if lines.is_empty() { "No matches found".to_owned() } else { lines.join("\n") }
            })
        }
        "code:edit" => {
            let file = path(call, text(params, "file_path")?).await?;
            let all = params.get("replace_all") == Some(&Value::Bool(true));
            let mut asked = json!({
                "command": "str_replace",
                "path": file,
                "old_str": text(params, "old_string")?,
                "new_str": text(params, "new_string")?,
            });
            if all {
                asked["replace_mode"] = "ALL".into();
            }
            handle.post("/v1/file/str_replace_editor", &asked).await.and_then(|done| match done["error"].as_str() {
                Some(error) if !error.is_empty() => Err(SynthesisError::Program { message: error.to_owned() }),
                _ => Ok(format!("Edited {file}")),
            })
        }
        _ => {
            let file = path(call, text(params, "file_path")?).await?;
            let content = text(params, "content")?;
            if let Some((folder, _)) = file.rsplit_once('/').filter(|(folder, _)| !folder.is_empty()) {
                let made = json!({ "command": format!("mkdir -p -- {}", super::quoted(folder)), "hard_timeout": 10 });
                handle.post("/v1/bash/exec", &made).await.map_err(failed)?;
            }
            let asked = json!({ "file": file, "content": content });
            handle.post("/v1/file/write", &asked).await.map(|_| format!("Wrote {} bytes to {file}", content.len()))
        }
    };
    match result {
        Ok(text) => Ok(Returned::Data(json!({ "result": text, "stdout": text, "stderr": "", "return_code": 0 }))),
        Err(error) => {
            let text = format!("Error: {error}");
            let data = json!({ "result": text, "stdout": "", "stderr": text, "return_code": 1 });
            Err(Failure::new(codes::BUSINESS_FAILURE, error).with(data))
        }
    }
}

async fn read(call: &ToolCall<'_>, params: &Params, handle: &SandboxHandle) -> Result<Result<String, SynthesisError>, Failure> {
    let file = path(call, text(params, "file_path")?).await?;
    let first = count_if(params, "offset")?.unwrap_or(1).max(1);
    let limit = count_if(params, "limit")?.unwrap_or(LINES).clamp(1, 100_000);
    let asked = json!({ "file": file, "start_line": first - 1, "end_line": first - 1 + limit });
    Ok(handle.post("/v1/file/read", &asked).await.map(|read| {
        let content = read["content"].as_str().unwrap_or_default();
        let number = |(at, line): (usize, &str)| format!("{:4}→{line}\n", first + at as u64);
        content.lines().enumerate().map(number).collect()
    }))
}
