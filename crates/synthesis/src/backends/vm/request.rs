//! Parses and checks the tools' parameters before anything is done.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::button;
use super::driver::{Action, Button};
use super::pyautogui::Script;
use crate::answer::{Failure, code as codes};
use crate::backends::{Params, number_if, require, text, text_if, wrong};

/// Longest wait that a model may request, in seconds.
const MAX_WAIT: f64 = 3600.0;
/// Longest typed text.
const MAX_TYPED: usize = 1 << 20;
/// Longest pause between two keys, in seconds.
const MAX_INTERVAL: f64 = 60.0;
const MAX_NOTCHES: f64 = 10_000.0;
/// The most keys of a shortcut.
const MAX_KEYS: usize = 16;
/// The most commands of one call.
const MAX_COMMANDS: usize = 256;
/// Duration of a drag: programs follow the motion, and miss a jump.
const DRAG: Duration = Duration::from_millis(150);

/// A request, and its description for the answer.
#[derive(Debug)]
pub(super) enum Request {
    Screenshot,
    Act { action: Action, said: Map<String, Value> },
    Wait(f64),
    Done,
    Fail(Option<String>),
    Scripts { commands: Vec<String>, scripts: Vec<Script> },
    Evaluate(Map<String, Value>),
}

fn said<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A position, and its JSON as given.
fn handle(params: &Params, x: &str, y: &str) -> Result<((f64, f64), Value), Failure> {
    let number = |name| number_if(params, name)?.ok_or_else(|| wrong(name, "a number"));
    Ok(((number(x)?, number(y)?), json!([params.get(x), params.get(y)])))
}

fn click(params: &Params, button: Button, times: u32) -> Result<Request, Failure> {
    let (at, clicked) = handle(params, "x", "y")?;
    let action = Action::Click { at: Some(at), button, times };
    Ok(Request::Act { action, said: said([("clicked", clicked)]) })
}

fn given_button(params: &Params) -> Result<Button, Failure> {
    let name = text_if(params, "button")?.unwrap_or("left");
    button(name).ok_or_else(|| wrong("button", "left, middle or right"))
}

fn key(params: &Params) -> Result<String, Failure> {
    Some(text(params, "key")?).filter(|key| !key.is_empty()).map(str::to_owned).ok_or_else(|| wrong("key", "the name of a key"))
}

/// Splits `ctrl+s` into its keys; a plus as a key stays one.
fn parts(keys: &str) -> Vec<String> {
    let parts: Vec<String> = keys.split('+').map(|part| part.trim().to_owned()).collect();
    if parts.len() > 1 && parts.iter().all(|part| !part.is_empty()) { parts } else { vec![keys.to_owned()] }
}

fn hotkey(params: &Params) -> Result<Request, Failure> {
    let wanted = || wrong("keys", "a list of the names of keys");
    let keys = match params.get("keys") {
        Some(Value::String(keys)) => parts(keys),
        Some(Value::Array(keys)) => {
            let names = keys.iter().map(|key| key.as_str().filter(|key| !key.is_empty()).map(str::to_owned));
            names.collect::<Option<Vec<_>>>().ok_or_else(wanted)?
        }
        _ => return Err(wanted()),
    };
    if keys.is_empty() || keys.len() > MAX_KEYS {
        return Err(wrong("keys", &format!("1 to {MAX_KEYS} keys")));
    }
    let said = said([("keys", json!(keys))]);
    Ok(Request::Act { action: Action::Keys { keys }, said })
}

fn scripts(params: &Params) -> Result<Request, Failure> {
    let mut commands = Vec::new();
    for name in ["command", "commands"] {
        match params.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(command)) => commands.push(command.clone()),
            Some(Value::Array(more)) if more.iter().all(Value::is_string) => {
                commands.extend(more.iter().filter_map(Value::as_str).map(str::to_owned));
            }
            Some(_) => return Err(wrong(name, "a string or a list of strings")),
        }
    }
    let refused = |message: String| Failure::new(codes::INVALID_INPUT, message);
    if commands.is_empty() {
        return Err(refused("command or commands has to be given".to_owned()));
    }
    if commands.len() > MAX_COMMANDS {
        return Err(refused(format!("there are {} commands, and {MAX_COMMANDS} can be given", commands.len())));
    }
    let mut scripts = Vec::with_capacity(commands.len());
    for (at, command) in commands.iter().enumerate() {
        let script = Script::read(command).map_err(|error| {
            refused(format!("command {}: {error}; it has to be pyautogui.NAME(…)", at + 1)).with(json!({ "index": at }))
        })?;
        scripts.push(script);
    }
    Ok(Request::Scripts { commands, scripts })
}

impl Request {
    /// # Errors
    /// What is missing or invalid.
    pub(super) fn parse(tool: &str, params: &Params) -> Result<Self, Failure> {
        let needs = |names: &[&str]| require(tool, params, names);
        match tool {
            "vm:screenshot" => Ok(Self::Screenshot),
            "vm:click" => {
                needs(&["x", "y"])?;
                let button = given_button(params)?;
                let mut request = click(params, button, 1)?;
                if let Self::Act { said, .. } = &mut request {
                    said.insert("button".to_owned(), json!(button));
                }
                Ok(request)
            }
            "vm:double_click" => {
                needs(&["x", "y"])?;
                click(params, Button::Left, 2)
            }
            "vm:right_click" => {
                let given = |name: &str| params.get(name).is_some_and(|value| !value.is_null());
                match (given("x"), given("y")) {
                    (true, true) => click(params, Button::Right, 1),
                    (false, false) => {
                        let action = Action::Click { at: None, button: Button::Right, times: 1 };
                        Ok(Self::Act { action, said: said([("clicked", Value::Null)]) })
                    }
                    _ => Err(Failure::new(codes::INVALID_INPUT, "x and y belong together: give both, or none")),
                }
            }
            "vm:type" => {
                needs(&["text"])?;
                let typed = text(params, "text")?;
                if typed.len() > MAX_TYPED {
                    return Err(wrong("text", &format!("{MAX_TYPED} bytes at most")));
                }
                let interval = number_if(params, "interval")?.unwrap_or_default();
                if !(0.0..=MAX_INTERVAL).contains(&interval) {
                    return Err(wrong("interval", &format!("0 to {MAX_INTERVAL} seconds")));
                }
                let action = Action::Type { text: typed.to_owned(), interval: Duration::from_secs_f64(interval) };
                Ok(Self::Act { action, said: said([("typed", typed.into()), ("length", typed.chars().count().into())]) })
            }
            "vm:key" => {
                needs(&["key"])?;
                let key = key(params)?;
                Ok(Self::Act { action: Action::Keys { keys: parts(&key) }, said: said([("key", key.into())]) })
            }
            "vm:key_down" | "vm:key_up" => {
                needs(&["key"])?;
                let key = key(params)?;
                let said = said([("key", key.clone().into())]);
                let action = if tool == "vm:key_down" { Action::KeyDown { key } } else { Action::KeyUp { key } };
                Ok(Self::Act { action, said })
            }
            "vm:hotkey" => {
                needs(&["keys"])?;
                hotkey(params)
            }
            "vm:scroll" => {
                needs(&["x", "y", "clicks"])?;
                let (at, position) = handle(params, "x", "y")?;
                let clicks = number_if(params, "clicks")?.filter(|clicks| clicks.abs() <= MAX_NOTCHES);
                let clicks = clicks.ok_or_else(|| wrong("clicks", &format!("a number up to {MAX_NOTCHES}")))?;
                let said = said([("position", position), ("clicks", params["clicks"].clone())]);
                Ok(Self::Act { action: Action::Scroll { at: Some(at), up: clicks as i64, right: 0 }, said })
            }
            "vm:drag" => {
                needs(&["start_x", "start_y", "end_x", "end_y"])?;
                let (from, start) = handle(params, "start_x", "start_y")?;
                let (to, end) = handle(params, "end_x", "end_y")?;
                let action = Action::Drag { from, to, button: Button::Left, takes: DRAG };
                Ok(Self::Act { action, said: said([("from", start), ("to", end)]) })
            }
            "vm:move" => {
                needs(&["x", "y"])?;
                let ((x, y), position) = handle(params, "x", "y")?;
                Ok(Self::Act { action: Action::Move { x, y }, said: said([("position", position)]) })
            }
            "vm:mouse_down" | "vm:mouse_up" => {
                let button = given_button(params)?;
                let action = if tool == "vm:mouse_down" { Action::Press { button } } else { Action::Release { button } };
                Ok(Self::Act { action, said: said([("button", json!(button))]) })
            }
            "vm:wait" => {
                let seconds = number_if(params, "seconds")?.unwrap_or(1.0);
                if !(0.0..=MAX_WAIT).contains(&seconds) {
                    return Err(wrong("seconds", &format!("0 to {MAX_WAIT}")));
                }
                Ok(Self::Wait(seconds))
            }
            "vm:done" => Ok(Self::Done),
            "vm:fail" => Ok(Self::Fail(text_if(params, "reason")?.map(str::to_owned))),
            "vm:pyautogui" => scripts(params),
            "vm:evaluate" => {
                needs(&["evaluator"])?;
                let evaluator = params.get("evaluator").and_then(Value::as_object);
                evaluator.cloned().map(Self::Evaluate).ok_or_else(|| wrong("evaluator", "an object with func"))
            }
            other => Err(Failure::new(codes::INVALID_REQUEST_FORMAT, format!("there is no tool {other}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(tool: &str, params: Value) -> Result<Request, Failure> {
        Request::parse(tool, params.as_object().unwrap())
    }

    #[test]
    fn wrong_parameters_are_refused_with_agentflows_codes() {
        for (tool, params, code) in [
            ("vm:click", json!({"x": 1}), 5005),
            ("vm:click", json!({"x": "1", "y": 2}), 4000),
            ("vm:click", json!({"x": 1, "y": null}), 4000),
            ("vm:click", json!({"x": 1, "y": 2, "button": "thumb"}), 4000),
            ("vm:right_click", json!({"x": 1}), 4000),
            ("vm:right_click", json!({"y": 1, "x": null}), 4000),
            ("vm:type", json!({}), 5005),
            ("vm:type", json!({"text": 5}), 4000),
            ("vm:type", json!({"text": "x", "interval": -1}), 4000),
            ("vm:key", json!({"key": ""}), 4000),
            ("vm:hotkey", json!({"keys": []}), 4000),
            ("vm:hotkey", json!({"keys": ["a", 1]}), 4000),
            ("vm:hotkey", json!({"keys": vec!["a"; 17]}), 4000),
            ("vm:scroll", json!({"x": 1, "y": 1, "clicks": 1e6}), 4000),
            ("vm:wait", json!({"seconds": -0.1}), 4000),
            ("vm:wait", json!({"seconds": 1e9}), 4000),
            ("vm:pyautogui", json!({}), 4000),
            ("vm:pyautogui", json!({"command": 1}), 4000),
            ("vm:pyautogui", json!({"commands": ["pyautogui.click()", "import os"]}), 4000),
            ("vm:pyautogui", json!({"commands": vec!["pyautogui.click()"; 257]}), 4000),
            ("vm:evaluate", json!({}), 5005),
            ("vm:evaluate", json!({"evaluator": "exact_match"}), 4000),
        ] {
            let refused = request(tool, params.clone()).unwrap_err();
            assert_eq!(refused.code, code, "{tool} {params}: {}", refused.message);
        }
    }

    #[test]
    fn a_shortcut_may_be_written_as_one() {
        for (given, wanted) in
            [("ctrl+s", vec!["ctrl", "s"]), ("+", vec!["+"]), ("ctrl++", vec!["ctrl++"]), ("enter", vec!["enter"])]
        {
            assert_eq!(parts(given), wanted);
        }
    }

    #[test]
    fn places_are_answered_as_they_were_given() {
        let Ok(Request::Act { action, said }) = request("vm:scroll", json!({"x": 1, "y": 2.5, "clicks": -3})) else { panic!() };
        assert_eq!(action, Action::Scroll { at: Some((1.0, 2.5)), up: -3, right: 0 });
        assert_eq!(Value::from(said), json!({"position": [1, 2.5], "clicks": -3}));
    }
}
