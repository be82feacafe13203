//! Converts command-line arguments to a request.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use serde_json::{Map, Value, json};

use super::calls::{ApiCall, Body, Field, FieldLocation, Kind};
use super::{AioError, usage};

/// The parts of a call.
#[derive(Debug, Default)]
pub(super) struct Request {
    /// Path parameters by name.
    pub(super) path: Vec<(String, String)>,
    pub(super) query: Vec<(String, String)>,
    pub(super) body: Map<String, Value>,
    pub(super) file: Option<Upload>,
}

/// The file part of a form.
#[derive(Debug)]
pub(super) struct Upload {
    pub(super) field: String,
    /// The file's name.
    pub(super) name: String,
    pub(super) file: File,
}

/// Builds a request from arguments. An argument may name a field (`--field value`, `--field=value`, `--switch`, `--no-switch`);
/// the others are the required fields in order. The value `-` reads standard input, and `--json` sets several fields at once.
pub(super) fn request(call: &ApiCall, words: Vec<String>) -> Result<Request, AioError> {
    let help = || format!("aio {} {} --help", call.group, call.method);
    let mut request = Request::default();
    let mut words = VecDeque::from(words);
    let mut given: Vec<String> = Vec::new();
    let mut only_values = false;
    while let Some(word) = words.pop_front() {
        if word == "--" && !only_values {
            only_values = true;
            continue;
        }
        let Some(option) = word.strip_prefix("--").filter(|_| !only_values) else {
            let next = call.required().find(|field| !given.contains(&field.name));
            let field = next.ok_or_else(|| usage(format!("there is no place for {word:?}"), help()))?;
            given.push(field.name.clone());
            put(&mut request, field, word, &help)?;
            continue;
        };
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value.to_owned())));
        let name = name.replace('-', "_");
        if name == "json" {
            let text = value.or_else(|| words.pop_front()).ok_or_else(|| usage("--json needs an object", help()))?;
            let text = if text == "-" { standard_input()? } else { text };
            let parsed: Result<Map<String, Value>, _> = serde_json::from_str(&text);
            for (name, value) in parsed.map_err(|e| usage(format!("--json is no object: {e}"), help()))? {
                given.push(name.clone());
                let text = || value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                match call.fields.iter().find(|field| field.name == name).map(|field| field.location) {
                    Some(FieldLocation::Path) => request.path.push((name, text())),
                    Some(FieldLocation::Query) => request.query.push((name, text())),
                    Some(FieldLocation::Body) | None => drop(request.body.insert(name, value)),
                }
            }
            continue;
        }
        let switch = |name: &str| call.fields.iter().find(|field| field.name == name && field.kind == Kind::Switch);
        let negated = name.strip_prefix("no_").and_then(switch).filter(|_| value.is_none());
        if let Some(field) = negated.or(switch(&name).filter(|_| value.is_none())) {
            given.push(field.name.clone());
            put(&mut request, field, negated.is_none().to_string(), &help)?;
            continue;
        }
        let mut value =
            || value.clone().or_else(|| words.pop_front()).ok_or_else(|| usage(format!("--{option} needs a value"), help()));
        match call.fields.iter().find(|field| field.name == name) {
            Some(field) => {
                given.push(name);
                put(&mut request, field, value()?, &help)?;
            }
            None if call.body == Body::AnyJson => {
                let text = value()?;
                // The name as the caller wrote it: only the tool knows what it means.
                let name = option.split('=').next().unwrap_or_default().to_owned();
                request.body.insert(name, serde_json::from_str(&text).unwrap_or(Value::String(text)));
            }
            None => return Err(usage(format!("{} {} has no field {name:?}", call.group, call.method), help())),
        }
    }
    let missing: Vec<&str> = call.required().map(|f| f.name.as_str()).filter(|name| !given.iter().any(|g| g == name)).collect();
    if missing.is_empty() { Ok(request) } else { Err(usage(format!("{} is missing", missing.join(", ")), help())) }
}

fn put(request: &mut Request, field: &Field, text: String, help: &dyn Fn() -> String) -> Result<(), AioError> {
    if field.kind == Kind::File {
        let file = open(&text).map_err(|source| AioError::Input { what: text.clone(), source })?;
        let name = text.rsplit('/').next().unwrap_or_default().to_owned();
        request.file = Some(Upload { field: field.name.clone(), name, file });
        return Ok(());
    }
    let text = if text == "-" { standard_input()? } else { text };
    match field.location {
        FieldLocation::Path => request.path.push((field.name.clone(), text)),
        FieldLocation::Query => request.query.push((field.name.clone(), text)),
        FieldLocation::Body => {
            let wrong = |wanted: &str| usage(format!("{} is {wanted}, and not {text:?}", field.name), help());
            let held = request.body.entry(field.name.clone()).or_insert(Value::Null);
            match (field.kind, &mut *held) {
                (Kind::List, Value::Array(items)) if !text.starts_with('[') => {
                    items.push(item(field, &text).ok_or_else(|| wrong("a list of whole numbers"))?);
                }
                (Kind::Map, Value::Object(entries)) if !text.starts_with('{') => {
                    let (key, value) = text.split_once('=').ok_or_else(|| wrong("written KEY=VALUE"))?;
                    entries.insert(key.to_owned(), value.into());
                }
                _ => *held = value(field, &text).map_err(wrong)?,
            }
        }
    }
    Ok(())
}

fn item(field: &Field, text: &str) -> Option<Value> {
    if field.integers { text.parse::<i64>().ok().map(Value::from) } else { Some(text.into()) }
}

/// Parses the first value of a field. The error says what the value should be.
fn value(field: &Field, text: &str) -> Result<Value, &'static str> {
    let parsed = || serde_json::from_str::<Value>(text).ok();
    match field.kind {
        Kind::Text | Kind::File => Ok(text.into()),
        Kind::Integer => text.parse::<i64>().map(Value::from).map_err(|_| "a whole number"),
        Kind::Number => text.parse::<f64>().ok().filter(|n| n.is_finite()).map(Value::from).ok_or("a number"),
        Kind::Switch => text.parse::<bool>().map(Value::from).map_err(|_| "true or false"),
        Kind::List if text.starts_with('[') => parsed().ok_or("a list in JSON"),
        Kind::List => item(field, text).map(|item| json!([item])).ok_or("a list of whole numbers"),
        Kind::Map if text.starts_with('{') => parsed().ok_or("an object in JSON"),
        Kind::Map => text.split_once('=').map(|(key, value)| json!({ key: value })).ok_or("written KEY=VALUE"),
    }
}

fn standard_input() -> Result<String, AioError> {
    io::read_to_string(io::stdin().lock()).map_err(|source| AioError::Input { what: "standard input".to_owned(), source })
}

/// Opens a file. `-` is standard input.
fn open(path: &str) -> io::Result<File> {
    if path == "-" { Ok(io::stdin().as_fd().try_clone_to_owned()?.into()) } else { File::open(path) }
}

#[cfg(test)]
mod tests {
    use super::super::calls;
    use super::*;

    fn made(group: &str, method: &str, words: &[&str]) -> Result<Request, String> {
        let calls = calls::all();
        let call = calls.iter().find(|call| call.group == group && call.is_named(method)).unwrap();
        request(call, words.iter().map(|w| (*w).to_owned()).collect()).map_err(|e| e.to_string())
    }

    fn body(group: &str, method: &str, words: &[&str]) -> Value {
        Value::Object(made(group, method, words).unwrap().body)
    }

    #[test]
    fn words_become_fields_of_their_types() {
        assert_eq!(
            body("bash", "exec", &["ls -l", "--timeout", "5", "--async-mode", "--env", "A=1=2", "--env=B=", "--exec_dir=/tmp"]),
            json!({"command": "ls -l", "timeout": 5.0, "async_mode": true, "env": {"A": "1=2", "B": ""}, "exec_dir": "/tmp"})
        );
        let typed = json!({"id": "s", "input": "y", "press_enter": true});
        assert_eq!(body("shell", "write-to-process", &["s", "y", "--press-enter"]), typed);
        assert_eq!(body("bash", "exec", &["--", "--version"]), json!({"command": "--version"}));
        assert_eq!(
            body("file", "grep", &["/etc", "x", "--include", "*.a", "--include", "*.b", "--no-recursive", "--max-results=3"]),
            json!({"path": "/etc", "pattern": "x", "include": ["*.a", "*.b"], "recursive": false, "max_results": 3})
        );
        let view = ["view", "/f", "--view-range", "1", "--view-range", "9"];
        assert_eq!(body("file", "str_replace_editor", &view)["view_range"], json!([1, 9]));
        assert_eq!(body("bash", "exec", &["--json", r#"{"command": "x", "timeout": 1}"#, "--timeout=2"])["timeout"], 2.0);
        let tool = body("mcp", "execute-tool", &["server", "tool", "--some-Name", "7", "--text=hi"]);
        assert_eq!(tool, json!({"some-Name": 7, "text": "hi"}));
    }

    #[test]
    fn paths_and_queries_have_their_own() {
        let made = made("nodejs", "get-session", &["a/b", "--version", "24"]).unwrap();
        assert_eq!(made.path, [("session_id".to_owned(), "a/b".to_owned())]);
        assert_eq!(made.query, [("version".to_owned(), "24".to_owned())]);
        let same = super::tests::made("nodejs", "get-session", &["--json", r#"{"session_id": "a/b", "version": 24}"#]).unwrap();
        assert_eq!((same.path, same.query), (made.path, made.query));
    }

    #[test]
    fn what_makes_no_request_is_said() {
        for (words, expected) in [
            (&[][..], "command is missing"),
            (&["a", "b"], "there is no place for \"b\""),
            (&["a", "--timeout", "soon"], "timeout is a number, and not \"soon\""),
            (&["a", "--timeout"], "--timeout needs a value"),
            (&["a", "--fast"], "bash exec has no field \"fast\""),
            (&["a", "--env", "A"], "env is written KEY=VALUE, and not \"A\""),
            (&["--json", "[]"], "--json is no object: invalid type: sequence, expected a map at line 1 column 0"),
        ] {
            assert_eq!(made("bash", "exec", words).unwrap_err(), expected);
        }
        assert!(made("file", "upload", &["/absent"]).unwrap_err().starts_with("could not read or write /absent"));
    }
}
