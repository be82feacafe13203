//! Actions as Python code for pyautogui in the VM.

use std::fmt::Write as _;

use crate::backends::vm::driver::{Action, Button};
use crate::error::{SynthesisError, invalid};

/// Runs before each action. The fail-safe for corners is off: no person sits before the VM.
const HEAD: &str = "import pyautogui, time\npyautogui.FAILSAFE = False\n";

/// pyautogui would silently ignore unknown keys.
const KEYS: &str = r#"keys = KEYS
unknown = [key for key in keys if not pyautogui.isValidKey(key.lower() if len(key) > 1 else key)]
if unknown:
    raise SystemExit("there is no key " + ", ".join(map(repr, unknown)))
"#;

/// xdotool types characters that are on no key: it remaps one.
const XDOTOOL: &str = r#"import subprocess
try:
    subprocess.run(["xdotool", "type", "--delay", DELAY, "--", TEXT], check=True)
except FileNotFoundError:
    raise SystemExit("characters that are on no key need xdotool in the VM, and it is not there")
"#;

/// A text as an ASCII-only literal: it passes through programs of any locale.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        // Writing to a string does not fail.
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            ' '..='~' => write!(out, "{c}"),
            '\0'..='\u{ff}' => write!(out, "\\x{:02x}", u32::from(c)),
            '\u{100}'..='\u{ffff}' => write!(out, "\\u{:04x}", u32::from(c)),
            _ => write!(out, "\\U{:08x}", u32::from(c)),
        };
    }
    out.push('"');
    out
}

fn button(button: Button) -> &'static str {
    match button {
        Button::Left => "left",
        Button::Middle => "middle",
        Button::Right => "right",
    }
}

/// A number as Python source; positions are whole pixels.
fn place(at: f64) -> Result<i64, SynthesisError> {
    if at.is_finite() && at.abs() < 1e6 { Ok(at.round() as i64) } else { Err(invalid(format!("{at} is no place on a screen"))) }
}

fn keys(names: &[String]) -> String {
    let list: Vec<String> = names.iter().map(|name| literal(name)).collect();
    KEYS.replace("KEYS", &format!("[{}]", list.join(", ")))
}

/// The program for an action.
pub(super) fn program(action: &Action) -> Result<String, SynthesisError> {
    let body = match action {
        Action::Move { x, y } => format!("pyautogui.moveTo({}, {})", place(*x)?, place(*y)?),
        Action::Click { at, button: which, times } => {
            let at = match at {
                Some((x, y)) => format!("x={}, y={}, ", place(*x)?, place(*y)?),
                None => String::new(),
            };
            format!("pyautogui.click({at}clicks={times}, interval=0.05, button=\"{}\")", button(*which))
        }
        Action::Press { button: which } => format!("pyautogui.mouseDown(button=\"{}\")", button(*which)),
        Action::Release { button: which } => format!("pyautogui.mouseUp(button=\"{}\")", button(*which)),
        Action::Drag { from, to, button: which, takes } => format!(
            "pyautogui.moveTo({}, {})\npyautogui.dragTo({}, {}, duration={:.3}, button=\"{}\")",
            place(from.0)?,
            place(from.1)?,
            place(to.0)?,
            place(to.1)?,
            takes.as_secs_f64(),
            button(*which)
        ),
        Action::Scroll { at, up, right } => {
            let mut lines = Vec::new();
            if let Some((x, y)) = at {
                lines.push(format!("pyautogui.moveTo({}, {})", place(*x)?, place(*y)?));
            }
            if *up != 0 {
                lines.push(format!("pyautogui.scroll({up})"));
            }
            if *right != 0 {
                lines.push(format!("pyautogui.hscroll({right})"));
            }
            lines.join("\n")
        }
        Action::Type { text, interval } => typing(text, interval.as_secs_f64()),
        Action::Keys { keys: names } => match names.as_slice() {
            [] => return Err(invalid("there is no key to press")),
            [_] => format!("{}pyautogui.press(keys[0])", keys(names)),
            _ => format!("{}pyautogui.hotkey(*keys)", keys(names)),
        },
        Action::KeyDown { key } => format!("{}pyautogui.keyDown(keys[0])", keys(std::slice::from_ref(key))),
        Action::KeyUp { key } => format!("{}pyautogui.keyUp(keys[0])", keys(std::slice::from_ref(key))),
    };
    Ok(format!("{HEAD}{body}\n"))
}

/// The typed text, in pieces: pyautogui types `>` for `<`, which is on the key of the comma on the keyboards of these VMs.
fn typing(text: &str, interval: f64) -> String {
    let mut lines = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let odd = |c: char| c == '<' || !c.is_ascii();
        let plain = rest.find(odd).unwrap_or(rest.len());
        if plain > 0 {
            let _ = writeln!(lines, "pyautogui.typewrite({}, interval={interval:.3})", literal(&rest[..plain]));
        }
        rest = &rest[plain..];
        if let Some(more) = rest.strip_prefix('<') {
            lines.push_str("pyautogui.hotkey(\"shift\", \",\")\n");
            rest = more;
            continue;
        }
        let foreign = rest.find(|c: char| c.is_ascii()).unwrap_or(rest.len());
        if foreign > 0 {
            let delay = format!("\"{:.0}\"", interval * 1e3);
            lines.push_str(&XDOTOOL.replace("DELAY", &delay).replace("TEXT", &literal(&rest[..foreign])));
            rest = &rest[foreign..];
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use super::*;

    /// Runs a program with a fake pyautogui that prints its calls.
    fn calls(action: &Action) -> String {
        let fake = r#"
import sys, types
class Fake(types.ModuleType):
    def isValidKey(self, key): return key in ("ctrl", "shift", "c", "enter", ",")
    def __getattr__(self, name):
        def called(*a, **k): print(name, ascii(a), dict(sorted(k.items())))
        return called
sys.modules["pyautogui"] = Fake("pyautogui")
"#;
        let code = format!("{fake}{}", program(action).unwrap());
        let done = Command::new("python3").args(["-c", &code]).env("PATH", "/nowhere:/usr/bin:/bin").output().unwrap();
        format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr))
    }

    fn typed(text: &str) -> Action {
        Action::Type { text: text.to_owned(), interval: Duration::ZERO }
    }

    #[test]
    fn what_is_typed_is_a_literal_whatever_it_holds() {
        let hostile = "\"); import os; os.system('x') #\\\n\u{0}";
        let said = calls(&typed(hostile));
        assert_eq!(said, "typewrite ('\"); import os; os.system(\\'x\\') #\\\\\\n\\x00',) {'interval': 0.0}\n");
        assert_eq!(literal("é€😀"), r#""\xe9\u20ac\U0001f600""#);
    }

    #[test]
    fn less_than_is_shift_and_comma() {
        let said = calls(&typed("a<b<"));
        let expected = "typewrite ('a',) {'interval': 0.0}\nhotkey ('shift', ',') {}\ntypewrite ('b',) {'interval': 0.0}\nhotkey ('shift', ',') {}\n";
        assert_eq!(said, expected);
    }

    #[test]
    fn keys_that_are_not_there_are_named() {
        assert_eq!(calls(&Action::Keys { keys: vec!["ctrl".into(), "c".into()] }), "hotkey ('ctrl', 'c') {}\n");
        assert_eq!(calls(&Action::KeyDown { key: "warp".into() }), "there is no key 'warp'\n");
    }

    #[test]
    fn places_are_whole_pixels_on_a_screen() {
        let click = Action::Click { at: Some((10.4, 20.6)), button: Button::Right, times: 2 };
        assert_eq!(calls(&click), "click () {'button': 'right', 'clicks': 2, 'interval': 0.05, 'x': 10, 'y': 21}\n");
        assert!(program(&Action::Move { x: f64::NAN, y: 0.0 }).is_err());
        let scroll = Action::Scroll { at: Some((1.0, 2.0)), up: -3, right: 1 };
        assert_eq!(calls(&scroll), "moveTo (1, 2) {}\nscroll (-3,) {}\nhscroll (1,) {}\n");
    }
}
