//! A VM that uses a sandbox's own screen: what `/v1/display` and the sandbox's files and commands can do.

use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::driver::{Action, Button, Output, Recording, VirtualMachine};
use super::tree;
use crate::backends::quoted;
use crate::error::{SynthesisError, machine, timeout as late};
use crate::sandboxes::SandboxHandle;

/// The most nodes that are requested of the accessibility tree.
const NODES: usize = 2000;
/// Bytes of one piece of a file for the sandbox.
const PIECE: usize = 8 << 20;
/// Largest film, in bytes: an answer of a sandbox has at most 64 MiB.
const MAX_FILM: u64 = 48 << 20;
/// Longest film, in seconds.
const LONGEST_FILM: u64 = 12 * 3600;
/// Location of the film during the recording.
const FILM: &str = "/tmp/.vm-film.mp4";
/// Longest output of a command, in characters.
const MAX_OUTPUT: u64 = 1 << 20;
/// The longest drag that one action of the sandbox performs itself.
const BRIEF_DRAG: Duration = Duration::from_millis(300);
/// Pause between two steps of a longer drag.
const DRAG_STEP: Duration = Duration::from_millis(40);
/// The longest drag.
const LONGEST_DRAG: Duration = Duration::from_secs(60);
/// Starts panel, wallpaper and icons, in images that have them.
const SESSION: &str = "command -v desktop-session >/dev/null || exit 0; exec desktop-session";
/// Time for programs of the desktop to draw themselves on a busy host.
const SESSION_START: Duration = Duration::from_secs(30);
/// The most clicks in one action of the sandbox.
const CLICKS_AT_ONCE: u32 = 3;

/// The most notches of the wheel in one action of the sandbox.
const NOTCHES_AT_ONCE: i64 = 200;

/// A sandbox's desktop.
pub(super) struct Desktop {
    handle: SandboxHandle,
    /// Whether the accessibility tree is read.
    tells: bool,
}

impl Desktop {
    pub(super) fn new(handle: SandboxHandle, tells: bool) -> Self {
        Self { handle, tells }
    }

    async fn action(&self, action: Value) -> Result<(), SynthesisError> {
        self.handle.post("/v1/display/actions", &action).await.map(drop)
    }

    async fn move_to(&self, (x, y): (f64, f64)) -> Result<(), SynthesisError> {
        self.action(json!({ "action_type": "MOVE_TO", "x": x, "y": y })).await
    }

    async fn drag(&self, from: (f64, f64), to: (f64, f64), button: Button, takes: Duration) -> Result<(), SynthesisError> {
        self.move_to(from).await?;
        if button == Button::Left && takes <= BRIEF_DRAG {
            return self.action(json!({ "action_type": "DRAG_TO", "x": to.0, "y": to.1 })).await;
        }
        let takes = takes.clamp(BRIEF_DRAG, LONGEST_DRAG);
        let steps = (takes.as_millis() / DRAG_STEP.as_millis()).max(1) as u32;
        let held = Held::press(&self.handle, button).await?;
        for step in 1..=steps {
            let part = f64::from(step) / f64::from(steps);
            self.move_to((from.0 + (to.0 - from.0) * part, from.1 + (to.1 - from.1) * part)).await?;
            tokio::time::sleep(takes / steps).await;
        }
        held.release().await
    }

    async fn scroll(&self, mut right: i64, mut up: i64) -> Result<(), SynthesisError> {
        while (right, up) != (0, 0) {
            let (dx, dy) = (right.clamp(-NOTCHES_AT_ONCE, NOTCHES_AT_ONCE), up.clamp(-NOTCHES_AT_ONCE, NOTCHES_AT_ONCE));
            self.action(json!({ "action_type": "SCROLL", "dx": dx, "dy": dy })).await?;
            (right, up) = (right - dx, up - dy);
        }
        Ok(())
    }

    async fn type_text(&self, text: &str, interval: Duration) -> Result<(), SynthesisError> {
        // Only with keys: a paste needs a shortcut, which some programs use for something else.
        let typed = |text: &str| json!({ "action_type": "TYPING", "text": text, "use_clipboard": false });
        if text.is_empty() {
            return Ok(());
        }
        if interval.is_zero() {
            return self.action(typed(text)).await;
        }
        let mut character = [0; 4];
        for (at, one) in text.chars().enumerate() {
            if at > 0 {
                tokio::time::sleep(interval).await;
            }
            self.action(typed(one.encode_utf8(&mut character))).await?;
        }
        Ok(())
    }

    async fn bash(&self, command: &str, timeout: Duration) -> Result<Value, SynthesisError> {
        let timeout = timeout.as_secs_f64();
        let request = json!({
            "command": command,
            "hard_timeout": timeout,
            "timeout": timeout + 30.0,
            "max_output_length": MAX_OUTPUT,
        });
        let done = self.handle.post("/v1/bash/exec", &request).await?;
        if done["status"] == "timed_out" {
            return Err(late(format!("it was killed after {timeout:.1} s")));
        }
        Ok(done)
    }
}

/// A pressed button, which is released even if the drag is aborted.
struct Held<'a> {
    handle: &'a SandboxHandle,
    button: Button,
    is_down: bool,
}

impl<'a> Held<'a> {
    async fn press(handle: &'a SandboxHandle, button: Button) -> Result<Self, SynthesisError> {
        let held = Self { handle, button, is_down: true };
        handle.post("/v1/display/actions", &json!({ "action_type": "MOUSE_DOWN", "button": button })).await?;
        Ok(held)
    }

    async fn release(mut self) -> Result<(), SynthesisError> {
        self.is_down = false;
        self.handle.post("/v1/display/actions", &json!({ "action_type": "MOUSE_UP", "button": self.button })).await.map(drop)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.is_down
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (handle, up) = (self.handle.clone(), json!({ "action_type": "MOUSE_UP", "button": self.button }));
            runtime.spawn(async move { handle.post("/v1/display/actions", &up).await });
        }
    }
}

fn words(command: &[String]) -> String {
    command.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// A path, escaped for a query.
fn escaped(path: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-~".contains(byte);
    path.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[async_trait]
impl VirtualMachine for Desktop {
    async fn size(&self) -> Result<(u32, u32), SynthesisError> {
        let pointer = self.handle.get("/v1/display/pointer").await?;
        let side = |name: &str| pointer[name].as_u64().and_then(|side| u32::try_from(side).ok());
        side("screen_width").zip(side("screen_height")).ok_or_else(|| machine("the sandbox tells no size of its screen"))
    }

    async fn screenshot(&self) -> Result<Vec<u8>, SynthesisError> {
        self.handle.file("/v1/display/screenshot").await
    }

    async fn tree(&self) -> Result<Option<String>, SynthesisError> {
        if !self.tells {
            return Ok(None);
        }
        let path = format!("/v1/display/accessibility?max_nodes={NODES}");
        let (told, windows, size) = tokio::join!(self.handle.get(&path), self.handle.get("/v1/display/windows"), self.size());
        Ok(Some(tree::table(&told?, &windows.unwrap_or_default(), size?)))
    }

    async fn pointer(&self) -> Result<(f64, f64), SynthesisError> {
        let pointer = self.handle.get("/v1/display/pointer").await?;
        let position = pointer["x"].as_f64().zip(pointer["y"].as_f64());
        position.ok_or_else(|| machine("the sandbox does not tell where its pointer is"))
    }

    async fn start_desktop(&self) -> Result<(), SynthesisError> {
        let done = self.bash(SESSION, SESSION_START).await.map_err(|error| error.within("the desktop did not start"))?;
        match done["exit_code"].as_i64() {
            Some(0) => Ok(()),
            _ => Err(machine(format!("the desktop did not start: {}", done["stderr"].as_str().unwrap_or_default().trim()))),
        }
    }

    async fn act(&self, action: &Action) -> Result<(), SynthesisError> {
        match action {
            Action::Move { x, y } => self.move_to((*x, *y)).await,
            Action::Click { at, button, times } => {
                let mut left = *times;
                while left > 0 {
                    let now = left.min(CLICKS_AT_ONCE);
                    let (x, y) = at.unzip();
                    let click = json!({ "action_type": "CLICK", "x": x, "y": y, "button": button, "num_clicks": now });
                    self.action(click).await?;
                    left -= now;
                }
                Ok(())
            }
            Action::Press { button } => self.action(json!({ "action_type": "MOUSE_DOWN", "button": button })).await,
            Action::Release { button } => self.action(json!({ "action_type": "MOUSE_UP", "button": button })).await,
            Action::Drag { from, to, button, takes } => self.drag(*from, *to, *button, *takes).await,
            Action::Scroll { at, up, right } => {
                if let Some(at) = at {
                    self.move_to(*at).await?;
                }
                self.scroll(*right, *up).await
            }
            Action::Type { text, interval } => self.type_text(text, *interval).await,
            Action::Keys { keys } => self.action(json!({ "action_type": "HOTKEY", "keys": keys })).await,
            Action::KeyDown { key } => self.action(json!({ "action_type": "KEY_DOWN", "key": key })).await,
            Action::KeyUp { key } => self.action(json!({ "action_type": "KEY_UP", "key": key })).await,
        }
    }

    async fn run(&self, command: &[String], timeout: Duration) -> Result<Output, SynthesisError> {
        // Bash is replaced by the program: the words are quoted.
        let done = self.bash(&format!("exec -- {}", words(command)), timeout).await?;
        let text = |name: &str| done[name].as_str().unwrap_or_default().to_owned();
        let code = done["exit_code"].as_i64().ok_or_else(|| machine("the command has no exit code"))?;
        Ok(Output { stdout: text("stdout"), stderr: text("stderr"), code })
    }

    async fn launch(&self, command: &[String]) -> Result<(), SynthesisError> {
        let Some(program) = command.first() else { return Err(machine("there is no program to start")) };
        // It detaches at once, so that it outlives the command that starts it.
        let line = format!(
            "command -v -- {} >/dev/null || {{ echo there is no program of this name >&2; exit 127; }}; \
             setsid --fork {} </dev/null >/dev/null 2>&1",
            quoted(program),
            words(command)
        );
        let done = self.bash(&line, Duration::from_secs(30)).await?;
        match done["exit_code"].as_i64() {
            Some(0) => Ok(()),
            _ => Err(machine(format!("{program} could not be started: {}", done["stderr"].as_str().unwrap_or_default().trim()))),
        }
    }

    async fn read(&self, path: &str) -> Result<Vec<u8>, SynthesisError> {
        self.handle.file(&format!("/v1/file/download?path={}", escaped(path))).await
    }

    async fn write(&self, path: &str, content: &[u8]) -> Result<(), SynthesisError> {
        let mut pieces = content.chunks(PIECE);
        // An empty file is written too.
        let first = pieces.next().unwrap_or_default();
        for (append, piece) in std::iter::once((false, first)).chain(pieces.map(|piece| (true, piece))) {
            let content = STANDARD.encode(piece);
            let request = json!({ "file": path, "content": content, "encoding": "base64", "append": append });
            self.handle.post("/v1/file/write", &request).await?;
        }
        Ok(())
    }

    async fn record(&self, what: Recording) -> Result<Vec<u8>, SynthesisError> {
        match what {
            Recording::Start => {
                let start = json!({
                    "action": "start", "save_path": FILM, "max_duration": LONGEST_FILM, "max_bytes": MAX_FILM,
                });
                self.handle.post("/v1/display/record", &start).await?;
                Ok(Vec::new())
            }
            Recording::Stop => {
                self.handle.post("/v1/display/record", &json!({ "action": "stop" })).await?;
                self.read(FILM).await
            }
        }
    }

    async fn reset(&self) -> Result<(), SynthesisError> {
        // Changes by an agent in files, programs and the desktop itself only disappear with the sandbox.
        Err(machine("a desktop is not put back: end the session, and the next one gets a fresh one"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_queries_want_it() {
        assert_eq!(escaped("/home/a b/ü&x=1?#%.txt"), "/home/a%20b/%C3%BC%26x%3D1%3F%23%25.txt");
        assert_eq!(words(&["a b".to_owned(), "it's".to_owned()]), r"'a b' 'it'\''s'");
    }
}
