//! Actions in OSWorld's format: pyautogui code, or an object with a type and parameters.

use std::time::Duration;

use serde_json::Value;

use super::super::driver::{Action, Button};
use super::super::pyautogui::Script;
use super::MAX_WAIT;

use crate::error::{SynthesisError, invalid};

/// A part of an action.
#[derive(Debug, PartialEq)]
pub(super) enum Part {
    Do(Action),
    Script(Script),
    Wait(Duration),
}

/// Parses an action to its parts, in order.
pub(super) fn read(action: &Value) -> Result<Vec<Part>, SynthesisError> {
    if let Some(line) = action.as_str() {
        return match line.trim() {
            "WAIT" => Ok(vec![Part::Wait(Duration::from_secs(1))]),
            "DONE" | "FAIL" => Ok(Vec::new()),
            line => Ok(vec![Part::Script(Script::read(line)?)]),
        };
    }
    let kind = action["action_type"].as_str().ok_or_else(|| invalid("an action is a text, or an object with action_type"))?;
    let given = if action["parameters"].is_object() { &action["parameters"] } else { action };
    let number = |name: &str| match &given[name] {
        Value::Null => Ok(None),
        value => value.as_f64().map(Some).ok_or_else(|| invalid(format!("{name} has to be a number"))),
    };
    let at = || Ok::<_, SynthesisError>(number("x")?.zip(number("y")?));
    let needed = || at()?.ok_or_else(|| invalid("x and y have to be numbers"));
    let button = || match given["button"].as_str() {
        None | Some("left") => Ok(Button::Left),
        Some("middle") => Ok(Button::Middle),
        Some("right") => Ok(Button::Right),
        Some(other) => Err(invalid(format!("there is no button {other:?}"))),
    };
    let key = || given["key"].as_str().map(str::to_owned).ok_or_else(|| invalid("key has to be a text"));
    let click = |button, times| Ok::<_, SynthesisError>(vec![Part::Do(Action::Click { at: at()?, button, times })]);
    let whole = |name: &str| Ok::<_, SynthesisError>(number(name)?.unwrap_or(0.0).clamp(-1e6, 1e6) as i64);
    let one = |action| Ok(vec![Part::Do(action)]);
    match kind {
        "MOVE_TO" => needed().and_then(|(x, y)| one(Action::Move { x, y })),
        "CLICK" => click(button()?, number("num_clicks")?.unwrap_or(1.0).clamp(1.0, 10.0) as u32),
        "RIGHT_CLICK" => click(Button::Right, 1),
        "DOUBLE_CLICK" => click(Button::Left, 2),
        "MOUSE_DOWN" => one(Action::Press { button: button()? }),
        "MOUSE_UP" => one(Action::Release { button: button()? }),
        // It starts at the pointer's position, which is unknown here. So the button is held during the move instead.
        "DRAG_TO" => {
            let (x, y) = needed()?;
            let button = Button::Left;
            Ok([Action::Press { button }, Action::Move { x, y }, Action::Release { button }].map(Part::Do).into())
        }
        "SCROLL" => one(Action::Scroll { at: at()?, up: whole("dy")?, right: whole("dx")? }),
        "TYPING" => {
            let text = given["text"].as_str().ok_or_else(|| invalid("text has to be a text"))?.to_owned();
            one(Action::Type { text, interval: Duration::ZERO })
        }
        "PRESS" => one(Action::Keys { keys: vec![key()?] }),
        "KEY_DOWN" => one(Action::KeyDown { key: key()? }),
        "KEY_UP" => one(Action::KeyUp { key: key()? }),
        "HOTKEY" => {
            let keys = given["keys"].as_array().and_then(|keys| keys.iter().map(|key| key.as_str().map(str::to_owned)).collect());
            one(Action::Keys { keys: keys.ok_or_else(|| invalid("keys has to be a list of texts"))? })
        }
        "WAIT" => {
            let seconds = number("time")?.or(number("seconds")?).unwrap_or(1.0);
            Ok(vec![Part::Wait(Duration::from_secs_f64(seconds.clamp(0.0, MAX_WAIT)))])
        }
        "DONE" | "FAIL" => Ok(Vec::new()),
        other => Err(invalid(format!("there is no action {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn actions_are_read_in_both_of_their_forms() {
        let click = json!({"action_type": "CLICK", "parameters": {"x": 1, "y": 2.5, "button": "right", "num_clicks": 2}});
        let expected = Action::Click { at: Some((1.0, 2.5)), button: Button::Right, times: 2 };
        assert_eq!(read(&click).unwrap(), vec![Part::Do(expected)]);
        let flat = json!({"action_type": "TYPING", "text": "a"});
        assert_eq!(read(&flat).unwrap(), vec![Part::Do(Action::Type { text: "a".to_owned(), interval: Duration::ZERO })]);
        let script = Script::read("pyautogui.press('a')").unwrap();
        assert_eq!(read(&json!("pyautogui.press('a')")).unwrap(), vec![Part::Script(script)]);
        assert!(read(&json!("pyautogui.x()")).is_err());
        for wrong in [
            json!({"action_type": "FLY"}),
            json!({"action_type": "MOVE_TO", "x": "1"}),
            json!(3),
            json!({"action_type": "PRESS"}),
        ] {
            assert!(read(&wrong).is_err(), "{wrong}");
        }
        let long = json!({"action_type": "WAIT", "time": 1e30});
        assert_eq!(read(&long).unwrap(), vec![Part::Wait(Duration::from_secs(600))]);
    }
}
