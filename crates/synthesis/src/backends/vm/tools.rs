//! The tool descriptions.

use serde_json::{Value, json};

use super::NAME;
use crate::backend::ToolSpec;
use crate::backends::spec;

fn number(description: &str) -> Value {
    json!({"type": "number", "description": description})
}

fn string(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn strings(description: &str) -> Value {
    json!({"type": "array", "items": {"type": "string"}, "description": description})
}

pub(super) fn tools() -> Vec<ToolSpec> {
    let tool =
        |name: &str, description: &str, properties: Value, required: &[&str]| spec(name, NAME, description, properties, required);
    let (x, y) = (number("Pixels from the left edge of the screen."), number("Pixels from the upper edge of the screen."));
    let place = json!({"x": x, "y": y});
    let button = json!({"type": "string", "enum": ["left", "middle", "right"], "default": "left", "description": "The button of the mouse."});
    let key = json!({"key": string("Its name, such as enter, ctrl, f5, pagedown or a.")});
    vec![
        tool("vm:screenshot", "Take a picture of the screen, with a table of what is on it.", json!({}), &[]),
        tool("vm:click", "Click at a place on the screen.", json!({"x": x, "y": y, "button": button}), &["x", "y"]),
        tool("vm:double_click", "Click twice at a place on the screen.", place.clone(), &["x", "y"]),
        tool(
            "vm:right_click",
            "Click with the right button at a place on the screen, or where the pointer is.",
            place.clone(),
            &[],
        ),
        tool(
            "vm:type",
            "Type a text into what has the focus. A line's end is the enter key.",
            json!({"text": string("The text."), "interval": {"type": "number", "default": 0.0, "description": "Seconds between two keys."}}),
            &["text"],
        ),
        tool("vm:key", "Press a key and let it go.", key.clone(), &["key"]),
        tool("vm:key_down", "Press a key, and hold it.", key.clone(), &["key"]),
        tool("vm:key_up", "Let a key go.", key, &["key"]),
        tool(
            "vm:hotkey",
            "Press keys together.",
            json!({"keys": strings("Their names in this order, such as [\"ctrl\", \"s\"].")}),
            &["keys"],
        ),
        tool(
            "vm:scroll",
            "Turn the mouse's wheel at a place on the screen.",
            json!({"x": x, "y": y, "clicks": number("Notches up; below 0: down.")}),
            &["x", "y", "clicks"],
        ),
        tool(
            "vm:drag",
            "Drag with the left button from one place to another.",
            json!({
                "start_x": number("From how many pixels from the left edge."),
                "start_y": number("From how many pixels from the upper edge."),
                "end_x": number("To how many pixels from the left edge."),
                "end_y": number("To how many pixels from the upper edge."),
            }),
            &["start_x", "start_y", "end_x", "end_y"],
        ),
        tool("vm:move", "Move the pointer to a place on the screen.", place, &["x", "y"]),
        tool("vm:mouse_down", "Press a button of the mouse, and hold it.", json!({"button": button}), &[]),
        tool("vm:mouse_up", "Let a button of the mouse go.", json!({"button": button}), &[]),
        tool(
            "vm:wait",
            "Wait, and look again.",
            json!({"seconds": {"type": "number", "default": 1.0, "minimum": 0, "description": "How long."}}),
            &[],
        ),
        tool("vm:done", "Say that the task is done.", json!({}), &[]),
        tool("vm:fail", "Say that the task can't be done.", json!({"reason": string("Why not.")}), &[]),
        tool(
            "vm:pyautogui",
            "Do what calls of pyautogui say, such as pyautogui.click(100, 200). Nothing else of Python is there but time.sleep.",
            json!({"command": string("One or more calls, each on a line or with ; between."), "commands": strings("More of them.")}),
            &[],
        ),
        tool(
            "vm:evaluate",
            "Tell whether the task is done: the score of an evaluator of OSWorld's.",
            json!({"evaluator": {"type": "object", "description": "With func, result, expected, options, conj and postconfig."}}),
            &["evaluator"],
        ),
    ]
}
