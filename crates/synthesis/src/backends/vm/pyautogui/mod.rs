//! `pyautogui.click(…)` and related calls, for models that write them. They are parsed, never run as Python: a command with
//! anything except calls of the functions below is refused as a whole.

mod parse;

use std::time::Duration;

use super::driver::{Action, Button, VirtualMachine};
use parse::{CallExpression, Literal, Statement, parse};

use crate::error::{SynthesisError, invalid};

/// The most key strokes, and clicks, of one call.
const MAX_PRESSES: f64 = 1000.0;
const MAX_CLICKS: f64 = 100.0;
/// Longest wait or duration of one call, in seconds.
const MAX_SECONDS: f64 = 600.0;
/// Largest pixel coordinate.
const MAX_PIXELS: f64 = 100_000.0;
/// The most notches of the wheel.
const MAX_NOTCHES: f64 = 10_000.0;
/// Modules that may be imported or configured without effect.
const MODULES: [&str; 2] = ["pyautogui", "time"];
const SETTINGS: [&str; 2] = ["pyautogui.PAUSE", "pyautogui.FAILSAFE"];

/// An operation of a call.
#[derive(Debug, Clone, PartialEq)]
enum Op {
    Act(Action),
    MoveBy(f64, f64),
    DragTo { to: (f64, f64), button: Button, takes: Duration },
    DragBy { by: (f64, f64), button: Button, takes: Duration },
    Wait(Duration),
    TellSize,
    TellPointer,
}

/// A parsed command.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Script(Vec<Op>);

impl Script {
    /// # Errors
    /// What can't be parsed, or is not allowed.
    pub(super) fn read(command: &str) -> Result<Self, SynthesisError> {
        let mut ops = Vec::new();
        for statement in parse(command)? {
            match statement {
                Statement::CallExpression(call) => ops.extend(ops_of(&call).map_err(|error| error.within(&call.name))?),
                Statement::Import(modules) => {
                    if let Some(other) = modules.iter().find(|module| !MODULES.contains(&module.as_str())) {
                        return Err(invalid(format!("{other} is not there; only pyautogui and time are")));
                    }
                }
                Statement::Set(name) if SETTINGS.contains(&name.as_str()) => {}
                Statement::Set(name) => return Err(invalid(format!("{name} can't be set"))),
            }
        }
        Ok(Self(ops))
    }

    /// Runs it, and returns the output of its calls.
    ///
    /// # Errors
    /// The first failure; later calls don't run.
    pub(super) async fn run(&self, vm: &dyn VirtualMachine) -> Result<String, SynthesisError> {
        let mut told = Vec::new();
        for op in &self.0 {
            match op {
                Op::Act(action) => vm.act(action).await?,
                Op::MoveBy(right, down) => {
                    let (x, y) = after_way(vm, (*right, *down)).await?;
                    vm.act(&Action::Move { x, y }).await?;
                }
                Op::DragTo { to, button, takes } => {
                    let from = vm.pointer().await?;
                    vm.act(&Action::Drag { from, to: *to, button: *button, takes: *takes }).await?;
                }
                Op::DragBy { by, button, takes } => {
                    let (from, to) = (vm.pointer().await?, after_way(vm, *by).await?);
                    vm.act(&Action::Drag { from, to, button: *button, takes: *takes }).await?;
                }
                Op::Wait(time) => tokio::time::sleep(*time).await,
                Op::TellSize => {
                    let (width, height) = vm.size().await?;
                    told.push(format!("Size(width={width}, height={height})"));
                }
                Op::TellPointer => {
                    let (x, y) = vm.pointer().await?;
                    told.push(format!("Point(x={x}, y={y})"));
                }
            }
        }
        Ok(told.join("\n"))
    }
}

/// The pointer's position after a relative move. It stops at the edges, as a mouse does.
async fn after_way(vm: &dyn VirtualMachine, (right, down): (f64, f64)) -> Result<(f64, f64), SynthesisError> {
    let ((x, y), (width, height)) = (vm.pointer().await?, vm.size().await?);
    let stop = |at: f64, side: u32| at.clamp(0.0, f64::from(side.max(1) - 1));
    Ok((stop(x + right, width), stop(y + down, height)))
}

/// A call's arguments by the parameter names of its function.
struct Arguments<'a> {
    call: &'a CallExpression,
    names: &'static [&'static str],
}

impl<'a> Arguments<'a> {
    fn new(call: &'a CallExpression, names: &'static [&'static str]) -> Result<Self, SynthesisError> {
        if call.positional.len() > names.len() {
            return Err(invalid(format!("it takes {} arguments, and there are {}", names.len(), call.positional.len())));
        }
        for (name, _) in &call.named {
            match names.iter().position(|known| known == name) {
                Some(at) if at < call.positional.len() => return Err(invalid(format!("{name} is given twice"))),
                // These arguments control how input reaches the screen, which has no meaning here.
                None if !["tween", "logScreenshot", "_pause", "mouseDownUp"].contains(&name.as_str()) => {
                    return Err(invalid(format!("it has no argument {name}")));
                }
                _ => {}
            }
        }
        Ok(Self { call, names })
    }

    fn get(&self, name: &str) -> Option<&'a Literal> {
        let at = self.names.iter().position(|known| *known == name);
        let given = at.and_then(|at| self.call.positional.get(at));
        let named = || self.call.named.iter().find(|(known, _)| known == name).map(|(_, value)| value);
        given.or_else(named).filter(|value| **value != Literal::None)
    }

    fn number(&self, name: &str, most: f64) -> Result<Option<f64>, SynthesisError> {
        match self.get(name) {
            None => Ok(None),
            Some(Literal::Number(number)) if number.abs() <= most => Ok(Some(*number)),
            Some(Literal::Number(number)) => Err(invalid(format!("{name} is {number}, and can be {most} at most"))),
            Some(_) => Err(invalid(format!("{name} has to be a number"))),
        }
    }

    fn needed(&self, name: &str, most: f64) -> Result<f64, SynthesisError> {
        self.number(name, most)?.ok_or_else(|| invalid(format!("{name} is missing")))
    }

    fn count(&self, name: &str, most: f64) -> Result<u32, SynthesisError> {
        let count = self.number(name, most)?.unwrap_or(1.0);
        if count < 0.0 || count.fract() != 0.0 {
            return Err(invalid(format!("{name} has to be a whole number that is not negative")));
        }
        Ok(count as u32)
    }

    fn time(&self, name: &str) -> Result<Duration, SynthesisError> {
        let seconds = self.number(name, MAX_SECONDS)?.unwrap_or(0.0);
        Duration::try_from_secs_f64(seconds).map_err(|_| invalid(format!("{name} is negative")))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>, SynthesisError> {
        match self.get(name) {
            None => Ok(None),
            Some(Literal::Text(text)) => Ok(Some(text)),
            Some(_) => Err(invalid(format!("{name} has to be a string"))),
        }
    }

    fn key(&self, name: &str) -> Result<String, SynthesisError> {
        self.text(name)?.filter(|key| !key.is_empty()).map(str::to_owned).ok_or_else(|| invalid(format!("{name} is missing")))
    }

    /// One key, or a list of keys.
    fn keys(&self, name: &str) -> Result<Vec<String>, SynthesisError> {
        match self.get(name) {
            Some(Literal::List(keys)) => keys.iter().map(key).collect(),
            _ => Ok(vec![self.key(name)?]),
        }
    }

    /// The position in `x` and `y`; `x` may be a pair.
    fn place(&self) -> Result<Option<(f64, f64)>, SynthesisError> {
        if let Some(Literal::List(pair)) = self.get("x") {
            return match pair[..] {
                [Literal::Number(x), Literal::Number(y)] if x.abs().max(y.abs()) <= MAX_PIXELS => Ok(Some((x, y))),
                _ => Err(invalid("a place has to be two numbers")),
            };
        }
        if let Some(Literal::Text(_)) = self.get("x") {
            return Err(invalid("pictures are not looked for on the screen; name a place"));
        }
        match (self.number("x", MAX_PIXELS)?, self.number("y", MAX_PIXELS)?) {
            (None, None) => Ok(None),
            (Some(x), Some(y)) => Ok(Some((x, y))),
            _ => Err(invalid("x and y belong together")),
        }
    }

    fn button(&self) -> Result<Button, SynthesisError> {
        match self.text("button")? {
            None => Ok(Button::Left),
            Some(name) => super::button(&name.to_lowercase()).ok_or_else(|| invalid(format!("there is no button {name:?}"))),
        }
    }
}

fn key(literal: &Literal) -> Result<String, SynthesisError> {
    match literal {
        Literal::Text(key) if !key.is_empty() => Ok(key.clone()),
        _ => Err(invalid("a key has to be a string")),
    }
}

/// Clicks, with pauses between them if requested.
fn clicks(at: Option<(f64, f64)>, button: Button, times: u32, interval: Duration) -> Vec<Op> {
    if interval.is_zero() {
        return vec![Op::Act(Action::Click { at, button, times })];
    }
    spaced((0..times).map(|_| Op::Act(Action::Click { at, button, times: 1 })), interval)
}

fn spaced(ops: impl Iterator<Item = Op>, interval: Duration) -> Vec<Op> {
    let mut all: Vec<Op> = Vec::new();
    for op in ops {
        if !all.is_empty() && !interval.is_zero() {
            all.push(Op::Wait(interval));
        }
        all.push(op);
    }
    all
}

fn press(key: &str) -> Op {
    Op::Act(Action::Keys { keys: vec![key.to_owned()] })
}

fn ops_of(call: &CallExpression) -> Result<Vec<Op>, SynthesisError> {
    let function = match call.name.as_str() {
        "time.sleep" | "sleep" => "sleep",
        name => {
            name.strip_prefix("pyautogui.").ok_or_else(|| invalid("only functions of pyautogui and time.sleep can be called"))?
        }
    };
    Ok(match function {
        "click" => {
            let given = Arguments::new(call, &["x", "y", "clicks", "interval", "button", "duration"])?;
            clicks(given.place()?, given.button()?, given.count("clicks", MAX_CLICKS)?, given.time("interval")?)
        }
        "doubleClick" | "tripleClick" => {
            let given = Arguments::new(call, &["x", "y", "interval", "button", "duration"])?;
            let times = if function == "doubleClick" { 2 } else { 3 };
            clicks(given.place()?, given.button()?, times, given.time("interval")?)
        }
        "rightClick" | "middleClick" | "leftClick" => {
            let given = Arguments::new(call, &["x", "y", "interval", "duration"])?;
            let button = match function {
                "rightClick" => Button::Right,
                "middleClick" => Button::Middle,
                _ => Button::Left,
            };
            clicks(given.place()?, button, 1, Duration::ZERO)
        }
        "moveTo" => {
            let given = Arguments::new(call, &["x", "y", "duration", "tween"])?;
            let (x, y) = given.place()?.ok_or_else(|| invalid("x and y are missing"))?;
            vec![Op::Act(Action::Move { x, y })]
        }
        "moveRel" | "move" => {
            let given = Arguments::new(call, &["xOffset", "yOffset", "duration", "tween"])?;
            let (right, down) = (given.number("xOffset", MAX_PIXELS)?, given.number("yOffset", MAX_PIXELS)?);
            vec![Op::MoveBy(right.unwrap_or(0.0), down.unwrap_or(0.0))]
        }
        "dragTo" => {
            let given = Arguments::new(call, &["x", "y", "duration", "tween", "button"])?;
            let to = given.place()?.ok_or_else(|| invalid("x and y are missing"))?;
            vec![Op::DragTo { to, button: given.button()?, takes: given.time("duration")? }]
        }
        "dragRel" | "drag" => {
            let given = Arguments::new(call, &["xOffset", "yOffset", "duration", "tween", "button"])?;
            let (right, down) = (given.number("xOffset", MAX_PIXELS)?, given.number("yOffset", MAX_PIXELS)?);
            let by = (right.unwrap_or(0.0), down.unwrap_or(0.0));
            vec![Op::DragBy { by, button: given.button()?, takes: given.time("duration")? }]
        }
        "mouseDown" | "mouseUp" => {
            let given = Arguments::new(call, &["x", "y", "button", "duration"])?;
            let there = given.place()?.map(|(x, y)| Op::Act(Action::Move { x, y }));
            let button = given.button()?;
            let action = if function == "mouseDown" { Action::Press { button } } else { Action::Release { button } };
            there.into_iter().chain([Op::Act(action)]).collect()
        }
        "scroll" | "vscroll" | "hscroll" => {
            let given = Arguments::new(call, &["clicks", "x", "y"])?;
            let (at, notches) = (given.place()?, given.needed("clicks", MAX_NOTCHES)? as i64);
            let (up, right) = if function == "hscroll" { (0, notches) } else { (notches, 0) };
            vec![Op::Act(Action::Scroll { at, up, right })]
        }
        "press" => {
            let given = Arguments::new(call, &["keys", "presses", "interval"])?;
            let (keys, times) = (given.keys("keys")?, given.count("presses", MAX_PRESSES)?);
            if keys.len() as f64 * f64::from(times) > MAX_PRESSES {
                return Err(invalid(format!("it presses more than {MAX_PRESSES} keys")));
            }
            spaced((0..times).flat_map(|_| keys.iter().map(|key| press(key))), given.time("interval")?)
        }
        "keyDown" => vec![Op::Act(Action::KeyDown { key: Arguments::new(call, &["key"])?.key("key")? })],
        "keyUp" => vec![Op::Act(Action::KeyUp { key: Arguments::new(call, &["key"])?.key("key")? })],
        "hotkey" => {
            if let Some((name, _)) = call.named.iter().find(|(name, _)| name != "interval" && name != "_pause") {
                return Err(invalid(format!("it has no argument {name}")));
            }
            let keys = match &call.positional[..] {
                [Literal::List(keys)] => keys.iter().map(key).collect::<Result<Vec<_>, _>>()?,
                keys => keys.iter().map(key).collect::<Result<Vec<_>, _>>()?,
            };
            if keys.is_empty() {
                return Err(invalid("its keys are missing"));
            }
            vec![Op::Act(Action::Keys { keys })]
        }
        "write" | "typewrite" => {
            let given = Arguments::new(call, &["message", "interval"])?;
            let interval = given.time("interval")?;
            match given.get("message") {
                Some(Literal::List(_)) => spaced(given.keys("message")?.iter().map(|key| press(key)), interval),
                _ => {
                    let text = given.text("message")?.ok_or_else(|| invalid("message is missing"))?.to_owned();
                    vec![Op::Act(Action::Type { text, interval })]
                }
            }
        }
        "sleep" => {
            let given = Arguments::new(call, &["seconds"])?;
            given.needed("seconds", MAX_SECONDS)?;
            vec![Op::Wait(given.time("seconds")?)]
        }
        "size" => vec![Op::TellSize],
        "position" => vec![Op::TellPointer],
        // Screenshots are taken with vm:screenshot.
        "screenshot" => Vec::new(),
        other => return Err(invalid(format!("there is no {other} here"))),
    })
}

#[cfg(test)]
mod tests {
    use super::super::fake::FakeVm;
    use super::*;

    async fn ran(command: &str) -> (Result<String, SynthesisError>, Vec<String>) {
        let vm = FakeVm::default();
        let told = Script::read(command).unwrap().run(&vm).await;
        (told, vm.done())
    }

    #[tokio::test]
    async fn each_function_does_what_its_name_says() {
        for (command, wanted) in [
            ("pyautogui.click(10, 20)", "click left 1 at 10,20"),
            ("pyautogui.click((10, 20), clicks=5, button='right')", "click right 5 at 10,20"),
            ("pyautogui.click()", "click left 1"),
            ("pyautogui.doubleClick(x=1, y=2)", "click left 2 at 1,2"),
            ("pyautogui.tripleClick([3, 4])", "click left 3 at 3,4"),
            ("pyautogui.rightClick()", "click right 1"),
            ("pyautogui.middleClick(1, 1)", "click middle 1 at 1,1"),
            ("pyautogui.moveTo(5, 6, duration=1, tween=pyautogui.easeInQuad)", "move 5,6"),
            ("pyautogui.move(-3, 4)", "move 97,104"),
            ("pyautogui.moveRel(-500, 5000)", "move 0,599"),
            ("pyautogui.dragTo(5, 6, 0.5, button='left')", "drag left 100,100 to 5,6 in 0.5"),
            ("pyautogui.dragRel(10, 0)", "drag left 100,100 to 110,100 in 0"),
            ("pyautogui.mouseDown(1, 2); pyautogui.mouseUp(button='right')", "move 1,2|down left|up right"),
            ("pyautogui.scroll(-3)", "scroll up -3 right 0"),
            ("pyautogui.hscroll(2, x=7, y=8)", "scroll up 0 right 2 at 7,8"),
            ("pyautogui.press('enter', presses=2)", "keys enter|keys enter"),
            ("pyautogui.press(['a', 'b'])", "keys a|keys b"),
            ("pyautogui.keyDown('shift')\npyautogui.keyUp('shift')", "key down shift|key up shift"),
            ("pyautogui.hotkey('ctrl', 's')", "keys ctrl+s"),
            ("pyautogui.hotkey(['ctrl', 'shift', 'esc'], interval=0.1)", "keys ctrl+shift+esc"),
            ("pyautogui.write('a<b;\\n', interval=0)", "type \"a<b;\\n\""),
            ("pyautogui.typewrite(['a', 'enter'])", "keys a|keys enter"),
            ("import time\ntime.sleep(0)\npyautogui.screenshot()", ""),
        ] {
            let (told, done) = ran(command).await;
            assert_eq!(told.unwrap(), "", "{command}");
            assert_eq!(done.join("|"), wanted, "{command}");
        }
        let (told, _) = ran("pyautogui.size(); pyautogui.position()").await;
        assert_eq!(told.unwrap(), "Size(width=800, height=600)\nPoint(x=100, y=100)");
    }

    #[tokio::test]
    async fn what_fails_ends_its_command() {
        let vm = FakeVm::default();
        let script = Script::read("pyautogui.click(1, 1); pyautogui.click(5000, 1); pyautogui.click(2, 2)").unwrap();
        assert!(script.run(&vm).await.unwrap_err().to_string().contains("800x600"));
        assert_eq!(vm.done(), ["click left 1 at 1,1"]);
    }

    #[test]
    fn what_is_not_offered_is_refused_by_its_name() {
        for (hostile, name) in [
            ("pyautogui.alert('x')", "alert"),
            ("pyautogui.locateOnScreen('x.png')", "locateOnScreen"),
            ("pyautogui.__class__('x')", "__class__"),
            ("os.system('id')", "os.system"),
            ("pyautogui.os.system('id')", "os.system"),
            ("eval('1')", "eval"),
            ("import os", "os"),
            ("pyautogui.KEYBOARD_KEYS = 1", "KEYBOARD_KEYS"),
            ("pyautogui.click('button.png')", "pictures"),
            ("pyautogui.click(1)", "y belong"),
            ("pyautogui.click(x=1e9, y=1)", "x is"),
            ("pyautogui.click(inf, nan)", "x has to be a number"),
            ("pyautogui.click(1, 2, 1.5)", "clicks"),
            ("pyautogui.click(1, 2, button='thumb')", "thumb"),
            ("pyautogui.click(1, 2, wrong=1)", "wrong"),
            ("pyautogui.click(1, 2, x=1)", "x is given twice"),
            ("pyautogui.press('a', presses=1001)", "presses"),
            ("pyautogui.press(['a', 'b'], presses=900)", "more than"),
            ("pyautogui.press('a', interval=-1)", "negative"),
            ("pyautogui.hotkey()", "keys"),
            ("pyautogui.hotkey('')", "key"),
            ("pyautogui.write()", "message"),
            ("pyautogui.sleep(1e7)", "seconds"),
            ("time.sleep()", "seconds"),
            ("pyautogui.moveTo()", "missing"),
        ] {
            let refused = Script::read(hostile).unwrap_err().to_string();
            assert!(refused.contains(name), "{hostile}: {refused}");
        }
    }
}
