//! A backend for Arenite: a counter in each session.
//!
//! Requests come one a line on standard input, answers go one a line to standard output, and what goes to standard
//! error is the log. Each call here takes microseconds, so one after the other will do. A backend with calls that take
//! longer answers from threads, in any order, and heeds `cancel`.

#![forbid(unsafe_code)]

mod counters;

use std::io::{self, BufRead, Write};

use counters::Counters;
use serde_json::{Value, json};

/// What went wrong with a request. The kind tells Arenite which error the agent gets.
struct Refused {
    code: i64,
    kind: &'static str,
    message: String,
}

impl Refused {
    fn new(kind: &'static str, message: impl Into<String>) -> Self {
        Self { code: -32000, kind, message: message.into() }
    }
}

type Answer = Result<Value, Refused>;

fn main() -> io::Result<()> {
    let mut counters = Counters::default();
    let mut out = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        let Some(answer) = answer(&mut counters, &line?) else { continue };
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    // Arenite closed our standard input. Nothing is left to do.
    Ok(())
}

/// None for a notification, which nobody waits for.
fn answer(counters: &mut Counters, line: &str) -> Option<Value> {
    let Ok(request) = serde_json::from_str::<Value>(line) else {
        let refused = Refused { code: -32700, kind: "exception", message: "the line is not JSON".to_owned() };
        return Some(message(&Value::Null, Err(refused)));
    };
    let id = request.get("id")?;
    Some(message(id, request_answer(counters, request["method"].as_str().unwrap_or_default(), &request["params"])))
}

fn request_answer(counters: &mut Counters, method: &str, params: &Value) -> Answer {
    match method {
        "describe" => {
            counters.configure(&params["config"]);
            Ok(description(&params["config"]))
        }
        "warmup" | "shutdown" => Ok(json!({})),
        "initialize" => {
            let session = text(&params["session"], "session_id")?;
            counters.begin(session, &params["config"]);
            Ok(json!({}))
        }
        "cleanup" => {
            counters.end(text(params, "session_id")?);
            Ok(json!({}))
        }
        "call" => Ok(json!({ "result": call(counters, params)? })),
        other => Err(Refused { code: -32601, kind: "exception", message: format!("no method {other:?}") }),
    }
}

/// What the tool returns goes to the agent as it is: `code` 0 is success, and `data` is the tool's own.
fn call(counters: &mut Counters, params: &Value) -> Answer {
    let tool = text(params, "tool")?;
    let session = params["session_id"].as_str();
    let arguments = &params["params"];
    let count = match tool {
        "counter:add" => {
            only(tool, arguments, &["by"])?;
            let by = match &arguments["by"] {
                Value::Null => 1,
                by => by.as_i64().ok_or_else(|| Refused::new("arguments", format!("{tool}: by is a whole number")))?,
            };
            counters.add(session, by).ok_or_else(|| Refused::new("exception", "the counter can't hold that much"))?
        }
        "counter:read" => {
            only(tool, arguments, &[])?;
            counters.read(session)
        }
        other => return Err(Refused::new("unknown_tool", format!("Tool not found: {other}"))),
    };
    Ok(json!({ "code": 0, "message": "success", "data": { "count": count } }))
}

fn description(config: &Value) -> Value {
    json!({
        "protocol": 1,
        "name": "counter",
        "description": "A counter in each session",
        "version": env!("CARGO_PKG_VERSION"),
        "kind": "backend",
        "default_config": if config.is_object() { config.clone() } else { json!({}) },
        "tools": [
            {
                "name": "counter:add",
                "resource_type": "counter",
                "config_key": null,
                "description": "Add to the counter, and answer what it is now",
                "schema": {
                    "type": "object",
                    "properties": {"by": {"type": "integer", "default": 1, "description": "How much to add"}},
                },
                "hidden": false,
            },
            {
                "name": "counter:read",
                "resource_type": "counter",
                "config_key": null,
                "description": "Answer what the counter is",
                "schema": {"type": "object", "properties": {}},
                "hidden": false,
            },
        ],
    })
}

/// Refuses parameters that the tool doesn't have, so that an agent hears of its slip.
fn only(tool: &str, arguments: &Value, known: &[&str]) -> Result<(), Refused> {
    let unknown = arguments.as_object().and_then(|given| given.keys().find(|key| !known.contains(&key.as_str())));
    unknown.map_or(Ok(()), |key| Err(Refused::new("arguments", format!("{tool} got an unexpected parameter '{key}'"))))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, Refused> {
    value[key].as_str().ok_or_else(|| Refused { code: -32602, kind: "exception", message: format!("{key} is missing") })
}

fn message(id: &Value, answer: Answer) -> Value {
    match answer {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(Refused { code, kind, message }) => {
            let error = json!({ "code": code, "message": message, "data": { "type": "Refused", "kind": kind } });
            json!({ "jsonrpc": "2.0", "id": id, "error": error })
        }
    }
}
