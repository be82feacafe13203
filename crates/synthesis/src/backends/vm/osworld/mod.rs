//! A VM that runs OSWorld's agent: a small HTTP server inside, which executes requests on its screen.
//!
//! Nothing in the VM's answers is trusted, and their size is bounded: an agent may have changed anything in it.

pub(super) mod http;
mod python;
pub(super) mod table;

use std::time::Duration;

use async_trait::async_trait;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::driver::{Action, Output, Recording, VirtualMachine};
use http::{Http, Reply, Request};

use crate::error::{SynthesisError, invalid, machine};

/// Limits in bytes: a picture, a tree or a command's output, a file, and a film.
const MAX_PICTURE: usize = 64 << 20;
const MAX_JSON: usize = 32 << 20;
const MAX_FILE: usize = 256 << 20;
/// Timeouts: for short requests, for trees of large windows, and for files.
const MOMENT: Duration = Duration::from_secs(30);
const TREE: Duration = Duration::from_secs(120);
const FILE: Duration = Duration::from_secs(600);
/// The agent itself gives up on a command after two minutes.
const AGENT_PATIENCE: Duration = Duration::from_secs(115);
/// Time for an answer to arrive after a command's timeout.
const GRACE: Duration = Duration::from_secs(10);
/// Longest message of an agent in an error, in characters.
const MAX_SAID: usize = 500;

/// A VM with OSWorld's agent.
pub(super) struct OsWorld {
    http: Box<dyn Http>,
    /// `Linux`, `Windows` or `Darwin`.
    platform: OnceCell<String>,
}

impl OsWorld {
    pub(super) fn new(http: Box<dyn Http>) -> Self {
        Self { http, platform: OnceCell::new() }
    }

    async fn get(&self, path: &str, timeout: Duration, most: usize) -> Result<Reply, SynthesisError> {
        self.http.send(Request { method: "GET", path, content_type: None, body: Vec::new(), timeout, most }).await
    }

    async fn post(&self, path: &str, body: &Value, timeout: Duration, most: usize) -> Result<Reply, SynthesisError> {
        let body = body.to_string().into_bytes();
        let content_type = Some("application/json");
        self.http.send(Request { method: "POST", path, content_type, body, timeout, most }).await
    }

    /// Whether it already has a screen, which is what OSWorld waits for.
    pub(super) async fn is_ready(&self, timeout: Duration) -> bool {
        self.get("/screenshot", timeout, MAX_PICTURE).await.is_ok_and(|reply| reply.status == 200)
    }

    async fn platform(&self) -> Result<&str, SynthesisError> {
        let asked = self.platform.get_or_try_init(|| async {
            let reply = self.get("/platform", MOMENT, 1 << 10).await?;
            Ok::<_, SynthesisError>(String::from_utf8_lossy(&good("its platform", reply)?).trim().to_owned())
        });
        asked.await.map(String::as_str)
    }

    /// Runs a command with the agent. The error is the agent's message if the command can't be started.
    async fn execute(&self, path: &str, body: &Value, timeout: Duration) -> Result<Output, SynthesisError> {
        let said = object("the command", self.post(path, body, timeout, MAX_JSON).await?)?;
        let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
        let code = said["returncode"].as_i64().ok_or_else(|| machine("the agent's answer has no return code"))?;
        Ok(Output { stdout: text("output"), stderr: text("error"), code })
    }
}

/// The body of an answer that is not an error.
fn good(what: &str, reply: Reply) -> Result<Vec<u8>, SynthesisError> {
    if (200..300).contains(&reply.status) {
        return Ok(reply.body);
    }
    let text = String::from_utf8_lossy(&reply.body);
    let told = serde_json::from_slice::<Value>(&reply.body).ok();
    let told = told.as_ref().and_then(|told| told["message"].as_str().or(told["error"].as_str())).unwrap_or(&text);
    let told: String = told.trim().chars().filter(|c| !c.is_control()).take(MAX_SAID).collect();
    Err(machine(format!("the VM refused {what} (status {}): {told}", reply.status)))
}

fn object(what: &str, reply: Reply) -> Result<Value, SynthesisError> {
    let body = good(what, reply)?;
    serde_json::from_slice(&body).map_err(|error| machine(format!("the VM's answer to {what} is no JSON: {error}")))
}

fn whole(value: &Value) -> Option<u32> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).and_then(|number| u32::try_from(number).ok())
}

/// A form with one file, and its content type.
fn form(path: &str, content: &[u8]) -> (String, Vec<u8>) {
    // Random, so that no content can contain it.
    let boundary = format!("arenite-{}", crate::answer::random_hex(12));
    let mut body = Vec::with_capacity(content.len() + path.len() + 400);
    let field = |name: &str| format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"");
    body.extend_from_slice(format!("{}\r\n\r\n{path}\r\n", field("file_path")).as_bytes());
    body.extend_from_slice(field("file_data").as_bytes());
    body.extend_from_slice(b"; filename=\"file\"\r\nContent-Type: application/octet-stream\r\n\r\n");
    body.extend_from_slice(content);
    body.extend_from_slice(format!("\r\n--{boundary}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={boundary}"), body)
}

#[async_trait]
impl VirtualMachine for OsWorld {
    async fn size(&self) -> Result<(u32, u32), SynthesisError> {
        let said = object("its screen's size", self.post("/screen_size", &json!({}), MOMENT, 1 << 16).await?)?;
        let size = whole(&said["width"]).zip(whole(&said["height"])).filter(|(width, height)| *width > 0 && *height > 0);
        size.ok_or_else(|| machine("the VM does not say how large its screen is"))
    }

    async fn screenshot(&self) -> Result<Vec<u8>, SynthesisError> {
        let picture = good("a screenshot", self.get("/screenshot", MOMENT, MAX_PICTURE).await?)?;
        let is_png = picture.starts_with(b"\x89PNG\r\n\x1a\n");
        if is_png { Ok(picture) } else { Err(machine("the VM's screenshot is no PNG")) }
    }

    async fn tree(&self) -> Result<Option<String>, SynthesisError> {
        let Some(xml) = self.accessibility().await? else { return Ok(None) };
        // A large tree needs much CPU time, so it is parsed off the async threads.
        let made = tokio::task::spawn_blocking(move || table::table(&xml)).await;
        made?.map(Some)
    }

    async fn accessibility(&self) -> Result<Option<String>, SynthesisError> {
        let reply = self.get("/accessibility", TREE, MAX_JSON).await?;
        if matches!(reply.status, 404 | 405 | 501) {
            return Ok(None);
        }
        match object("its accessibility tree", reply)?["AT"].take() {
            Value::String(xml) => Ok(Some(xml)),
            _ => Ok(None),
        }
    }

    async fn terminal(&self) -> Result<Option<String>, SynthesisError> {
        let reply = self.get("/terminal", TREE, MAX_JSON).await?;
        Ok(object("its terminal's text", reply)?["output"].as_str().map(str::to_owned))
    }

    async fn act(&self, action: &Action) -> Result<(), SynthesisError> {
        let takes = match action {
            Action::Drag { takes, .. } => *takes,
            Action::Type { text, interval } => interval.saturating_mul(u32::try_from(text.chars().count()).unwrap_or(u32::MAX)),
            _ => Duration::ZERO,
        };
        if takes > AGENT_PATIENCE {
            return Err(machine(format!(
                "an action of more than {} s is given up by the VM; split it",
                AGENT_PATIENCE.as_secs()
            )));
        }
        let interpreter = if self.platform().await? == "Windows" { "python" } else { "python3" };
        let asked = json!({ "command": [interpreter, "-c", python::program(action)?], "shell": false });
        let done = self.execute("/execute", &asked, takes + MOMENT).await?;
        if done.code == 0 {
            return Ok(());
        }
        let why = done.stderr.trim().lines().last().unwrap_or("it does not say why");
        Err(machine(format!("the VM could not do it: {}", why.chars().take(MAX_SAID).collect::<String>())))
    }

    async fn run(&self, command: &[String], timeout: Duration) -> Result<Output, SynthesisError> {
        if command.is_empty() {
            return Err(invalid("the command is empty"));
        }
        let is_linux = self.platform().await? == "Linux";
        let seconds = timeout.as_secs_f64().max(0.001);
        if is_linux && timeout > AGENT_PATIENCE {
            let words: Vec<String> = command.iter().map(|word| crate::backends::quoted(word)).collect();
            let asked = json!({ "script": format!("exec {}", words.join(" ")), "timeout": seconds.ceil() as u64 });
            let reply = self.post("/run_bash_script", &asked, timeout + GRACE, MAX_JSON).await?;
            // Older agents don't have it, and run no command for this long.
            if !matches!(reply.status, 404 | 405) {
                let said = object("the command", reply)?;
                let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
                return Ok(Output {
                    stdout: text("output"),
                    stderr: text("error"),
                    code: said["returncode"].as_i64().unwrap_or(-1),
                });
            }
        }
        let mut words: Vec<&str> = Vec::new();
        let limit = format!("{:.3}", seconds.min(AGENT_PATIENCE.as_secs_f64()));
        if is_linux {
            // A command should not continue when its result is no longer awaited.
            words.extend(["timeout", "-k", "2", &limit]);
        }
        words.extend(command.iter().map(String::as_str));
        let asked = json!({ "command": words, "shell": false });
        self.execute("/execute", &asked, timeout.min(AGENT_PATIENCE) + GRACE).await
    }

    async fn launch(&self, command: &[String]) -> Result<(), SynthesisError> {
        let asked = json!({ "command": command, "shell": false });
        good("to start a program", self.post("/setup/launch", &asked, MOMENT, 1 << 20).await?).map(drop)
    }

    async fn read(&self, path: &str) -> Result<Vec<u8>, SynthesisError> {
        let body = format!("file_path={}", utf8_percent_encode(path, NON_ALPHANUMERIC)).into_bytes();
        let content_type = Some("application/x-www-form-urlencoded");
        let asked = Request { method: "POST", path: "/file", content_type, body, timeout: FILE, most: MAX_FILE };
        let reply = self.http.send(asked).await?;
        if reply.status == 404 {
            return Err(machine(format!("there is no file {path:?} in the VM")));
        }
        good(&format!("the file {path:?}"), reply)
    }

    async fn write(&self, path: &str, content: &[u8]) -> Result<(), SynthesisError> {
        if content.len() > MAX_FILE {
            return Err(machine(format!("a file of more than {} MiB is not sent to a VM", MAX_FILE >> 20)));
        }
        if path.contains(['\r', '\n', '\0']) {
            return Err(invalid(format!("{path:?} is no path")));
        }
        let (kind, body) = form(path, content);
        let content_type = Some(kind.as_str());
        let asked = Request { method: "POST", path: "/setup/upload", content_type, body, timeout: FILE, most: 1 << 20 };
        good(&format!("the file {path:?}"), self.http.send(asked).await?).map(drop)
    }

    async fn record(&self, what: Recording) -> Result<Vec<u8>, SynthesisError> {
        match what {
            Recording::Start => {
                let reply = self.post("/start_recording", &json!({}), MOMENT, 1 << 20).await?;
                good("to record", reply).map(|_| Vec::new())
            }
            Recording::Stop => good("its recording", self.post("/end_recording", &json!({}), FILE, MAX_FILE).await?),
        }
    }

    async fn reset(&self) -> Result<(), SynthesisError> {
        Err(machine("OSWorld's agent can't put its VM back; that is for what runs the VM"))
    }
}

#[cfg(test)]
pub(super) mod fake;
#[cfg(test)]
mod tests;
