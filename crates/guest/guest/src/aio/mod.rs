//! `aio`: the sandbox's own API as a command inside it.
//!
//! ```text
//!  aio GROUP METHOD … ─► calls: which operation ─► arguments: its path, query and body ─► send ─► show: JSON or text
//! ```
//!
//! It takes all its knowledge of the API from [`crate::api`], so it offers every operation of the services. It has no more rights
//! than the user who runs it, and its calls are steps of the sandbox.

mod arguments;
mod calls;
mod help;
mod send;
mod show;

use std::ffi::OsStr;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;

use arenite_model::protocol::INSIDE_PORT;
use calls::ApiCall;
use send::ApiReply;

/// The name of the program as a command.
pub const NAME: &str = "aio";

/// Whether a program with this name is the command.
pub fn is_meant(argv0: Option<&OsStr>) -> bool {
    argv0.is_some_and(|name| Path::new(name).file_name() == Some(OsStr::new(NAME)))
}

/// Why there is no answer to show.
#[derive(Debug, thiserror::Error)]
enum AioError {
    /// The command line does not name a valid call.
    #[error("{message}")]
    Usage { message: String, help: String },
    #[error("could not read or write {what}: {source}")]
    Input { what: String, source: io::Error },
    #[error("the API at {url} can't be reached: {source}")]
    Unreachable { url: String, source: io::Error },
    #[error("could not write to standard output: {0}")]
    Output(io::Error),
}

impl AioError {
    fn code(&self) -> u8 {
        match self {
            Self::Input { .. } => 1,
            Self::Usage { .. } => 2,
            Self::Unreachable { .. } => 3,
            // 128 + SIGPIPE: the reader has closed the pipe, as in `aio … | head -1`.
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => 141,
            Self::Output(_) => 1,
        }
    }
}

/// The options before the group.
#[derive(Debug)]
struct Options {
    api_url: String,
    /// Print answers as JSON instead of formatting them.
    json: bool,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args_os().skip(1).map(|a| a.to_string_lossy().into_owned()).collect();
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            if error.code() != 141 {
                eprintln!("error: {error}");
            }
            if let AioError::Usage { help, .. } = &error {
                eprintln!("hint: {help}");
            }
            ExitCode::from(error.code())
        }
    }
}

fn usage(message: impl Into<String>, help: impl Into<String>) -> AioError {
    AioError::Usage { message: message.into(), help: help.into() }
}

fn run(arguments: Vec<String>) -> Result<ExitCode, AioError> {
    let calls = calls::all();
    let mut options = Options { api_url: format!("http://127.0.0.1:{INSIDE_PORT}"), json: !io::stdout().is_terminal() };
    let mut rest = arguments.into_iter();
    let group = loop {
        let Some(word) = rest.next() else { return told(&help::all(&calls)) };
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value.to_owned())));
        match name {
            "-h" | "--help" | "help" => return told(&help::all(&calls)),
            "--version" => return told(&format!("{NAME} {}\n", env!("CARGO_PKG_VERSION"))),
            "-o" | "--output" => match value.or_else(|| rest.next()).as_deref() {
                Some("json") => options.json = true,
                Some("text") => options.json = false,
                _ => return Err(usage(format!("{name} is json or text"), "aio --help")),
            },
            "--api-url" => {
                let url = value.or_else(|| rest.next()).ok_or_else(|| usage("--api-url needs an address", "aio --help"))?;
                options.api_url = url.trim_end_matches('/').to_owned();
            }
            _ if name.starts_with('-') => return Err(usage(format!("there is no option {name}"), "aio --help")),
            _ => break word,
        }
    };
    let of_group: Vec<&ApiCall> = calls.iter().filter(|call| call.group == calls::group_of(&group)).collect();
    if of_group.is_empty() {
        let groups = calls::groups(&calls).join(", ");
        return Err(usage(format!("there is no group {group:?}: there are {groups}"), "aio --help"));
    }
    let method = match rest.next() {
        None => return told(&help::group(&group, &of_group)),
        Some(word) if matches!(word.as_str(), "-h" | "--help" | "help") => return told(&help::group(&group, &of_group)),
        Some(method) => method,
    };
    let Some(call) = calls::find(&calls, &group, &method) else {
        let methods: Vec<&str> = of_group.iter().map(|call| call.method.as_str()).collect();
        let message = format!("{group} has no method {method:?}: there are {}", methods.join(", "));
        return Err(usage(message, format!("aio {group} --help")));
    };
    let (words, file) = output(call, rest.collect(), &mut options)?;
    if words.iter().take_while(|word| *word != "--").any(|word| matches!(word.as_str(), "-h" | "--help")) {
        return told(&help::call(call));
    }
    let request = arguments::request(call, words)?;
    let mut out = io::stdout().lock();
    let answer = match &file {
        None => send::send(&options.api_url, call, request, &mut out)?,
        Some(path) => {
            let failed = |source| AioError::Input { what: path.clone(), source };
            // The file is created only with its content: a failed call leaves an existing file unchanged.
            let mut content = Vec::new();
            let answer = send::send(&options.api_url, call, request, &mut content)?;
            if let ApiReply::Json { body, .. } = &answer {
                content = format!("{body}\n").into_bytes();
            }
            if answer.failure().is_none() {
                std::fs::write(path, &content).map_err(failed)?;
                let told = match options.json {
                    true => format!("{}\n", serde_json::json!({"path": path, "bytes": content.len()})),
                    false => format!("{path}: {} bytes\n", content.len()),
                };
                out.write_all(told.as_bytes()).map_err(AioError::Output)?;
                return Ok(ExitCode::SUCCESS);
            }
            answer
        }
    };
    let failure = answer.failure();
    if let ApiReply::Json { body, .. } = &answer {
        let shown = match (options.json, &failure) {
            // With --json, a program gets the whole answer even of a failed call.
            (true, _) => format!("{body}\n"),
            (false, None) => show::text(body),
            (false, Some(_)) => String::new(),
        };
        out.write_all(shown.as_bytes()).map_err(AioError::Output)?;
    }
    out.flush().map_err(AioError::Output)?;
    if let Some(message) = &failure {
        eprintln!("error: {}", show::harmless(message));
    }
    if let Some(hint) = answer.hint().filter(|_| failure.is_some() || !options.json) {
        eprintln!("hint: {}", show::harmless(&hint));
    }
    Ok(if failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Removes `-o` from a call's arguments. It sets the answer's format, or the file to write the answer to.
fn output(call: &ApiCall, words: Vec<String>, options: &mut Options) -> Result<(Vec<String>, Option<String>), AioError> {
    let (mut rest, mut file) = (Vec::new(), None);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let is_field = call.fields.iter().any(|field| field.name == "output");
        let value = match word.as_str() {
            "-o" => words.next(),
            "--output" if !is_field => words.next(),
            "--" => {
                rest.push(word);
                rest.extend(words.by_ref());
                break;
            }
            _ => match word.strip_prefix("--output=").filter(|_| !is_field) {
                Some(value) => Some(value.to_owned()),
                None => {
                    rest.push(word);
                    continue;
                }
            },
        };
        let help = || format!("aio {} {} --help", call.group, call.method);
        match value.ok_or_else(|| usage("-o needs json, text or the name of a file", help()))?.as_str() {
            "json" => options.json = true,
            "text" => options.json = false,
            path => file = Some(path.to_owned()),
        }
    }
    Ok((rest, file))
}

fn told(text: &str) -> Result<ExitCode, AioError> {
    io::stdout().lock().write_all(text.as_bytes()).map_err(AioError::Output)?;
    Ok(ExitCode::SUCCESS)
}

/// A text field of a JSON object; `None` for any other type.
fn text_of(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(Value::as_str).map(str::to_owned)
}
