//! `exec`: runs a command in a sandbox, streams its output, and passes on its exit code.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

use super::{command_line, environment, terminal};
use crate::cli::ExecArgs;
use crate::client::{Client, encoded};
use crate::failure::{EXEC_FAILED, Failure, INTERRUPTED, Outcome, TIMED_OUT, USAGE};
use crate::{output, wire};

pub(crate) async fn exec(args: ExecArgs) -> Outcome {
    run(args).await.map_err(|failure| match failure.code() {
        // No command can be meant by an invalid command line.
        USAGE if failure.status().is_none() => failure,
        _ => failure.exit_code(EXEC_FAILED),
    })
}

async fn run(args: ExecArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let env = environment(&args.env)?;
    let line = match args.script {
        Some(script) => Some(script),
        None if args.command.is_empty() => None,
        None => Some(command_line(&args.command)),
    };
    let on_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    if on_terminal && !args.no_tty {
        let timeout = args.timeout.map(|t| t.0);
        return terminal::attach(&client, terminal::Session { sandbox: args.sandbox, line, workdir: args.workdir, env, timeout })
            .await;
    }
    let command = Command {
        base: base(args.sandbox.as_str()),
        sandbox: args.sandbox.to_string(),
        // Without a command, stdin is the script.
        line: line.unwrap_or_else(|| "exec bash".to_owned()),
        exec_dir: args.workdir,
        env,
        hard_timeout: args.timeout.map(|t| t.0.as_secs_f64()),
    };
    command.stream(&client, Input::of_process()).await
}

/// Runs a recorded command again to its end, and returns its output and its exit. `asked` has the fields of a call to run a
/// command.
pub(crate) async fn again(client: &Client, sandbox: &str, asked: &Value, input: &str) -> Result<Value, Failure> {
    let text = |name: &str| asked[name].as_str().map(str::to_owned);
    let command = Command {
        exec_dir: text("exec_dir"),
        env: serde_json::from_value(asked["env"].clone()).unwrap_or_default(),
        hard_timeout: asked["hard_timeout"].as_f64(),
        ..Command::new(sandbox, text("command").unwrap_or_default())
    };
    command.whole(client, input).await
}

fn base(sandbox: &str) -> String {
    format!("/sandbox/{sandbox}/v1/bash")
}

/// The source of the command's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    /// None: closed from the start.
    Closed,
    /// This process's stdin.
    Stdin,
}

impl Input {
    /// Detects `/dev/null` and a terminal that is not to be used, so that short commands take one call.
    fn of_process() -> Self {
        let stdin = std::io::stdin();
        match stdin.as_fd().try_clone_to_owned().and_then(|fd| File::from(fd).metadata()) {
            Ok(data) if data.file_type().is_char_device() && (stdin.is_terminal() || is_null(data.rdev())) => Self::Closed,
            Ok(_) => Self::Stdin,
            Err(_) => Self::Closed,
        }
    }
}

/// Device 1:3 is `/dev/null` on every Linux.
fn is_null(device: u64) -> bool {
    (rustix::fs::major(device), rustix::fs::minor(device)) == (1, 3)
}

/// A command for a sandbox's bash service.
#[derive(Debug)]
pub(crate) struct Command {
    sandbox: String,
    /// The path of the service.
    base: String,
    line: String,
    exec_dir: Option<String>,
    env: BTreeMap<String, String>,
    /// In seconds.
    hard_timeout: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Request<'a> {
    command: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    exec_dir: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: &'a BTreeMap<String, String>,
    async_mode: bool,
    close_stdin: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hard_timeout: Option<f64>,
    max_output_length: u64,
}

impl Command {
    /// A line in a sandbox, with defaults for the rest.
    pub(crate) fn new(sandbox: &str, line: impl Into<String>) -> Self {
        Self {
            base: base(sandbox),
            sandbox: sandbox.to_owned(),
            line: line.into(),
            exec_dir: None,
            env: BTreeMap::new(),
            hard_timeout: None,
        }
    }

    /// Starts it. With `patience`, in seconds, the answer may already be the whole result; without, it is immediate.
    async fn start(&self, client: &Client, patience: Option<f64>) -> Result<wire::BashExec, Failure> {
        let request = Request {
            command: &self.line,
            exec_dir: self.exec_dir.as_deref(),
            env: &self.env,
            async_mode: patience.is_none(),
            // A caller that waits for the whole result does not write.
            close_stdin: patience.is_some(),
            timeout: patience,
            hard_timeout: self.hard_timeout,
            max_output_length: 0,
        };
        client.post::<wire::Envelope<wire::BashExec>>(&format!("{}/exec", self.base), &request).await?.into_data()
    }

    /// Runs it to its end with stdin closed, and returns its stdout. Fails when its exit code isn't 0.
    pub(crate) async fn capture(&self, client: &Client) -> Result<String, Failure> {
        let mut result = self.start(client, Some(3600.0)).await?;
        self.close(client, &result.session_id).await;
        match (result.status.as_str(), result.exit_code) {
            ("completed", Some(0)) => Ok(result.stdout.take().unwrap_or_default()),
            (status, code) => {
                let said = result.stderr.unwrap_or_default();
                let said = output::harmless(said.trim().lines().last().unwrap_or_default());
                let code = code.map_or_else(|| status.to_owned(), |code| format!("exit code {code}"));
                Err(Failure::new(if said.is_empty() { format!("a command in the sandbox failed: {code}") } else { said }))
            }
        }
    }

    /// Runs it to its end with this input, and returns its output and its exit code.
    pub(crate) async fn whole(&self, client: &Client, input: &str) -> Result<Value, Failure> {
        let started = self.start(client, input.is_empty().then_some(0.2)).await?;
        let (session, command) = (&started.session_id, &started.command_id);
        if !input.is_empty() {
            let write = json!({ "session_id": session, "command_id": command, "input": input, "close": true });
            client.post::<wire::Envelope<Value>>(&format!("{}/write", self.base), &write).await?;
        }
        let (mut stdout, mut stderr) = (started.stdout.unwrap_or_default(), started.stderr.unwrap_or_default());
        let (mut status, mut exit_code) = (started.status, started.exit_code);
        let (mut offset, mut stderr_offset) = (started.offset, started.stderr_offset);
        while under_way(&status) {
            let request = json!({
                "session_id": session, "command_id": command, "offset": offset, "stderr_offset": stderr_offset,
                "wait": true, "wait_timeout": 30,
            });
            let path = format!("{}/output", self.base);
            let news = client.post::<wire::Envelope<wire::BashOutput>>(&path, &request).await?.into_data()?;
            let nothing_new = news.offset == offset && news.stderr_offset == stderr_offset;
            stdout.push_str(&news.stdout.unwrap_or_default());
            stderr.push_str(&news.stderr.unwrap_or_default());
            (offset, stderr_offset) = (news.offset, news.stderr_offset);
            if let Some(command) = news.command.filter(|command| nothing_new && !under_way(&command.status)) {
                (status, exit_code) = (command.status, command.exit_code);
            }
        }
        self.close(client, session).await;
        Ok(json!({ "stdout": stdout, "stderr": stderr, "exit_code": exit_code, "status": status }))
    }

    /// Runs it with its output on this process's stdout and stderr, and returns its exit code.
    pub(crate) async fn stream(&self, client: &Client, input: Input) -> Outcome {
        let client = &client.recorded_as("exec", &[])?;
        // With a closed stdin a command this short needs one call; a longer one is followed in pieces.
        const PATIENCE: f64 = 0.2;
        let started = self.start(client, (input == Input::Closed).then_some(PATIENCE)).await?;
        let code = self.follow(client, &started, input).await;
        self.close(client, &started.session_id).await;
        client.end_command(&self.sandbox).await;
        code
    }

    async fn follow(&self, client: &Client, started: &wire::BashExec, input: Input) -> Outcome {
        pass_on(started.stdout.as_deref(), started.stderr.as_deref());
        let (mut status, mut exit_code) = (started.status.clone(), started.exit_code);
        let (mut offset, mut stderr_offset) = (started.offset, started.stderr_offset);
        let feeding = (input == Input::Stdin).then(|| {
            let (session, command) = (started.session_id.clone(), started.command_id.clone());
            tokio::spawn(feed(client.clone(), self.base.clone(), session, command))
        });
        let mut interrupts = 0;
        while under_way(&status) {
            let request = json!({
                "session_id": started.session_id, "command_id": started.command_id,
                "offset": offset, "stderr_offset": stderr_offset, "wait": true, "wait_timeout": 30,
            });
            let path = format!("{}/output", self.base);
            let news = tokio::select! {
                news = client.post::<wire::Envelope<wire::BashOutput>>(&path, &request) => news?.into_data()?,
                _ = tokio::signal::ctrl_c() => {
                    interrupts += 1;
                    let signal = if interrupts == 1 { "SIGINT" } else { "SIGKILL" };
                    let kill = json!({"session_id": started.session_id, "signal": signal});
                    client.post::<Value>(&format!("{}/kill", self.base), &kill).await?;
                    continue;
                }
            };
            pass_on(Some(&news.stdout.unwrap_or_default()), Some(&news.stderr.unwrap_or_default()));
            let nothing_new = news.offset == offset && news.stderr_offset == stderr_offset;
            (offset, stderr_offset) = (news.offset, news.stderr_offset);
            // The end counts once everything before it has been read.
            if let Some(command) = news.command.filter(|c| nothing_new && !under_way(&c.status)) {
                (status, exit_code) = (command.status, command.exit_code);
            }
        }
        if let Some(task) = feeding {
            task.abort();
        }
        Ok(ExitCode::from(match (status.as_str(), exit_code) {
            ("timed_out", _) => {
                eprintln!("error: the command was killed after its time was up");
                TIMED_OUT
            }
            // 128 and the signal's number.
            ("killed", _) if interrupts == 1 => INTERRUPTED,
            ("killed", _) => 137,
            (_, Some(code)) => (code & 0xff) as u8,
            (_, None) => EXEC_FAILED,
        }))
    }

    /// Ends the session, so that the guest needn't keep it. A failure does not matter to the caller.
    async fn close(&self, client: &Client, session: &str) {
        let path = format!("{}/sessions/{}/close", self.base, encoded(session));
        let _ = client.post::<Value>(&path, &json!({})).await;
    }
}

fn under_way(status: &str) -> bool {
    matches!(status, "running" | "pending")
}

fn pass_on(stdout: Option<&str>, stderr: Option<&str>) {
    if let Some(text) = stdout.filter(|t| !t.is_empty()) {
        output::bytes(text.as_bytes());
    }
    if let Some(text) = stderr.filter(|t| !t.is_empty()) {
        // Without stderr, nothing can be reported.
        let _ = std::io::stderr().write_all(text.as_bytes());
    }
}

/// Passes this process's stdin to the command, then its end. Ends by itself when the command accepts no more.
async fn feed(client: Client, base: String, session: String, command: String) {
    let path = format!("{base}/write");
    let mut stdin = tokio::io::stdin();
    let mut buffer = vec![0; 256 << 10];
    let mut characters = Characters::default();
    let mut warned = false;
    loop {
        // A failing stdin counts as ended.
        let n = stdin.read(&mut buffer).await.unwrap_or(0);
        let text = if n == 0 { characters.rest() } else { characters.take(&buffer[..n]) };
        if text.contains('\u{fffd}') && !warned {
            warned = true;
            eprintln!("warning: stdin is not all UTF-8, and what isn't was replaced; bring binary files in with: arenite cp");
        }
        let request = json!({"session_id": session, "command_id": command, "input": text, "close": n == 0});
        match client.post::<wire::Envelope<Value>>(&path, &request).await {
            Ok(answer) if answer.success && n > 0 => {}
            _ => return,
        }
    }
}

/// Splits bytes into pieces of whole characters.
#[derive(Debug, Default)]
pub(crate) struct Characters {
    /// The first bytes of an incomplete character.
    pending: Vec<u8>,
}

impl Characters {
    /// All whole characters so far; bytes that can't be part of one are replaced.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> String {
        self.pending.extend_from_slice(bytes);
        // A character has at most four bytes, so what is cut off at the end has at most three.
        let cut = (1..=3.min(self.pending.len())).find(|n| {
            let end = &self.pending[self.pending.len() - n..];
            std::str::from_utf8(end).is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        });
        let rest = self.pending.split_off(self.pending.len() - cut.unwrap_or(0));
        let whole = std::mem::replace(&mut self.pending, rest);
        String::from_utf8_lossy(&whole).into_owned()
    }

    /// The rest at the end.
    pub(crate) fn rest(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_cut_by_a_read_is_passed_whole() {
        let text = "aé€😀\0z";
        let mut characters = Characters::default();
        let passed: String = text.as_bytes().iter().map(|b| characters.take(&[*b])).collect();
        assert_eq!(passed, text);
        assert_eq!(characters.take(b"\xff\xfex\xe2\x82"), "\u{fffd}\u{fffd}x");
        assert_eq!(characters.rest(), "\u{fffd}");
    }
}
