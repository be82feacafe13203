//! Code without a session, and the packages and runtimes for it.

use std::collections::BTreeMap;

use axum::http::StatusCode;
use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::bounded::{SHOWN_CHARS, bounded};
use super::tool::{Caller, Effect, Tool, ToolResult, structured, worded};
use crate::Guest;
use crate::sandbox::{self, SandboxDetail};
use arenite_guest_code::code::{self, CodeExecuteRequest};
use arenite_guest_code::packages::{self, Package};
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::http::ApiError;

/// Maximum seconds of one execution.
const MAX_TIMEOUT: f64 = 900.0;
/// Maximum images of one answer.
const MAX_PICTURES: usize = 10;
/// Maximum other outputs of one answer.
const MAX_OUTPUTS: usize = 50;
/// Media types that models can see.
const PICTURES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];

pub(super) fn execution_tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_execute_code", "Run code", Effect::Anything, execute)]
}

pub(super) fn context_tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_get_context", "Describe the sandbox", Effect::Reads, context)]
}

pub(super) fn package_tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_get_packages", "List installed packages", Effect::Reads, packages)]
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum Language {
    #[default]
    #[serde(alias = "py", alias = "python3", alias = "Python")]
    Python,
    #[serde(alias = "js", alias = "node", alias = "nodejs", alias = "JavaScript")]
    Javascript,
}

/// Runs Python (IPython, with the packages of `sandbox_get_packages`) or JavaScript (Node.js) and returns what it prints.
///
/// The value of the last expression is in `result`: no print is needed. `await` works at the top level. Figures and pictures that
/// the code displays are returned as images. Each call starts with a fresh state: variables don't last, files do.
#[derive(Debug, Deserialize, JsonSchema)]
struct ExecuteCode {
    /// The code.
    #[schemars(example = "import math\nmath.sqrt(2)")]
    code: String,
    /// Its language.
    #[serde(default)]
    language: Language,
    /// Seconds until it is stopped.
    #[serde(default = "timeout")]
    #[schemars(range(min = 1.0, max = 900.0))]
    timeout: f64,
}

fn timeout() -> f64 {
    30.0
}

#[derive(Debug, Serialize)]
struct Executed {
    language: code::Language,
    /// `ok`, `error` or `timeout`.
    status: String,
    exit_code: Option<i32>,
    stdout: String,
    stderr: String,
    /// The value of the last expression, as text.
    result: Option<String>,
    /// Further displays.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    outputs: Vec<Shown>,
    #[serde(skip_serializing_if = "Option::is_none")]
    traceback: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

/// A display, in its most readable form.
#[derive(Debug, Serialize)]
struct Shown {
    output_type: String,
    text: Option<String>,
    /// The media types of the display; images among them are images of the answer.
    media_types: Vec<String>,
}

/// The used part of a service's output.
#[derive(Debug, Deserialize)]
struct Output {
    output_type: String,
    text: Option<String>,
    #[serde(default)]
    data: Option<BTreeMap<String, Value>>,
}

impl Output {
    fn pictures(&self) -> impl Iterator<Item = ContentBlock> {
        let data = self.data.iter().flatten().filter(|(kind, _)| PICTURES.contains(&kind.as_str()));
        data.filter_map(|(kind, data)| {
            let mut base64 = joined(data)?;
            base64.retain(|c| !c.is_ascii_whitespace());
            Some(ContentBlock::image(base64, kind.clone()))
        })
    }

    /// Returns plain text, unless that only names an object with a more readable form.
    fn words(&self) -> Option<String> {
        let of = |kind: &str| self.data.as_ref().and_then(|data| data.get(kind)).and_then(joined);
        let plain = self.text.clone().or_else(|| of("text/plain"));
        match plain {
            Some(text) if !text.starts_with("<IPython.core.display.") => Some(text),
            plain => of("text/markdown").or_else(|| of("text/html")).or(plain),
        }
    }
}

/// A notebook's text, which may be a list of lines.
fn joined(data: &Value) -> Option<String> {
    match data {
        Value::String(text) => Some(text.clone()),
        Value::Array(lines) => lines.iter().map(Value::as_str).collect(),
        _ => None,
    }
}

async fn execute(caller: Caller, args: ExecuteCode) -> ToolResult {
    let guest = &caller.guest;
    let language = match args.language {
        Language::Python => code::Language::Python,
        Language::Javascript => code::Language::Javascript,
    };
    let request = CodeExecuteRequest {
        language,
        code: args.code,
        timeout: Some(args.timeout.clamp(1.0, MAX_TIMEOUT).ceil() as i64),
        // Code starts in the same directory as commands and files.
        cwd: Some(guest.runtime.default_dir().display().to_string()),
        stateful: None,
        session_id: None,
    };
    let answer = code::execute(&guest.code, request, caller.progress.sender()).await?;
    let message = answer.message.unwrap_or_default();
    let Some(done) = answer.data else { return Err(ApiError::new(StatusCode::FAILED_DEPENDENCY, message)) };
    let mut hints = Vec::from_iter(answer.hint);
    if done.status != "ok" {
        hints.insert(0, message);
    }
    let mut pictures = Vec::new();
    let (mut result, mut outputs, mut left_out) = (None, Vec::new(), 0);
    for output in &done.outputs {
        let Ok(output) = serde_json::from_str::<Output>(output.get()) else { continue };
        if matches!(output.output_type.as_str(), "stream" | "error") {
            continue;
        }
        let shown = output.pictures().take(MAX_PICTURES - pictures.len()).collect::<Vec<_>>();
        pictures.extend(shown);
        if output.output_type == "execute_result" {
            result = output.words();
        } else if outputs.len() < MAX_OUTPUTS {
            let text = output.words();
            let media_types = output.data.unwrap_or_default().into_keys().collect();
            outputs.push(Shown { output_type: output.output_type, text, media_types });
        } else {
            left_out += 1;
        }
    }
    let mut limited = async |text: Option<String>| {
        let bounded = bounded(&guest.runtime, text.unwrap_or_default()).await;
        hints.extend(bounded.hint);
        bounded.text
    };
    let stdout = limited(done.stdout).await;
    let stderr = limited(done.stderr).await;
    let traceback = match done.traceback {
        Some(lines) => Some(limited(Some(lines.join("\n"))).await),
        None => None,
    };
    let result = match result {
        Some(text) => Some(limited(Some(text)).await),
        None => None,
    };
    let mut room = SHOWN_CHARS;
    for text in outputs.iter_mut().filter_map(|output| output.text.as_mut()) {
        let chars = text.chars().count();
        if chars > room {
            *text = text.chars().take(room).chain(" […]".chars()).collect();
        }
        room = room.saturating_sub(chars);
    }
    if left_out > 0 || room == 0 {
        hints.push("there are more displays than fit here: print less of them, or write them to a file".to_owned());
    }
    let hint = (!hints.is_empty()).then(|| hints.join("; "));
    let mut told = structured(&Executed {
        language: done.language,
        status: done.status,
        exit_code: done.exit_code,
        stdout,
        stderr,
        result,
        outputs,
        traceback,
        hint,
    })?;
    told.content.extend(pictures);
    Ok(told)
}

fn not_looked(failure: &Failure) -> ApiError {
    ApiError::new(StatusCode::FAILED_DEPENDENCY, format!("could not look at the sandbox: {failure}"))
}

/// Describes this sandbox: system, user, directories, runtimes with their versions, installed tools and used ports.
#[derive(Debug, Deserialize, JsonSchema)]
struct GetContext {}

#[derive(Debug, Serialize)]
struct ContextTold {
    home_dir: String,
    workspace: String,
    version: &'static str,
    detail: SandboxDetail,
}

async fn context(caller: Caller, _: GetContext) -> ToolResult {
    let context = sandbox::context(&caller.guest.sandbox).await.map_err(|failure| not_looked(&failure))?;
    let sandbox::Context { home_dir, workspace, version, detail, summary } = context;
    worded(summary, &ContextTold { home_dir, workspace, version, detail })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum PackagesOf {
    #[serde(alias = "py", alias = "python3", alias = "pip")]
    Python,
    #[serde(alias = "node", alias = "js", alias = "javascript", alias = "npm")]
    Nodejs,
}

/// Lists the installed Python packages and global Node.js packages, with their versions.
#[derive(Debug, Deserialize, JsonSchema)]
struct GetPackages {
    /// Those of one language only; absent: of both.
    language: Option<PackagesOf>,
}

#[derive(Debug, Serialize)]
struct PackagesTold {
    #[serde(skip_serializing_if = "Option::is_none")]
    python: Option<Vec<Named>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nodejs: Option<Vec<Named>>,
}

#[derive(Debug, Serialize)]
struct Named {
    name: String,
    version: String,
}

async fn packages(caller: Caller, args: GetPackages) -> ToolResult {
    let guest: &Guest = &caller.guest;
    let is_wanted = |language| args.language.is_none_or(|wanted| wanted == language);
    let mut parts = Vec::new();
    let mut named = |heading: &str, found: Vec<Package>| {
        let lines = found.iter().map(|package| format!("  - {}", package.spec));
        parts.push([heading.to_owned()].into_iter().chain(lines).collect::<Vec<_>>().join("\n"));
        found.into_iter().map(|Package { name, version, .. }| Named { name, version }).collect::<Vec<_>>()
    };
    let python = match is_wanted(PackagesOf::Python) {
        true => Some(named("Python Packages:", packages::python(&guest.runtime).await.map_err(|f| not_looked(&f))?)),
        false => None,
    };
    let nodejs = match is_wanted(PackagesOf::Nodejs) {
        true => Some(named("Node.js Packages:", packages::nodejs(&guest.runtime).await.map_err(|f| not_looked(&f))?)),
        false => None,
    };
    worded(parts.join("\n\n"), &PackagesTold { python, nodejs })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn languages_have_several_names() {
        let read = |name: &str| serde_json::from_value::<ExecuteCode>(json!({"code": "1", "language": name})).map(|a| a.language);
        for name in ["python", "py", "python3"] {
            assert_eq!(read(name).unwrap(), Language::Python, "{name}");
        }
        for name in ["javascript", "js", "node", "nodejs"] {
            assert_eq!(read(name).unwrap(), Language::Javascript, "{name}");
        }
        assert!(read("ruby").unwrap_err().to_string().contains("javascript"));
        let plain: ExecuteCode = serde_json::from_value(json!({"code": "1"})).unwrap();
        assert_eq!((plain.language, plain.timeout), (Language::Python, 30.0));
    }

    #[test]
    fn displays_are_shown_in_the_form_that_says_most() {
        let output = |data: Value, text: Option<&str>| -> Output {
            serde_json::from_value(json!({"output_type": "display_data", "text": text, "data": data})).unwrap()
        };
        let html = json!({"text/plain": "<IPython.core.display.HTML object>", "text/html": ["<b>", "x</b>"]});
        assert_eq!(output(html, Some("<IPython.core.display.HTML object>")).words().as_deref(), Some("<b>x</b>"));
        let table = json!({"text/plain": "a b", "text/html": "<table>"});
        assert_eq!(output(table, None).words().as_deref(), Some("a b"));
        let figure = output(json!({"image/png": "aG\nk=\n", "text/plain": "<Figure>"}), Some("<Figure>"));
        let picture = serde_json::to_value(figure.pictures().collect::<Vec<_>>()).unwrap();
        assert_eq!((picture[0]["data"].as_str(), picture[0]["mimeType"].as_str()), (Some("aGk="), Some("image/png")));
    }
}
