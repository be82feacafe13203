//! Setup of a VM before a task: AgentFlow's and OSWorld's steps, on any VM.
//!
//! The VM itself fetches files from the network, so that its own network rules apply. Of the server's files, only those in one
//! configured folder are available.

mod acts;
pub(super) mod chrome;
pub(super) mod scripts;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Map, Value};

use super::driver::{Output, VirtualMachine};
use scripts::{CLOSE_OR_ACTIVATE, DOWNLOAD, HISTORY, OPENED, PROXY, WALLPAPER};

use crate::error::{SynthesisError, invalid, timeout};

/// Limits: steps of one list, actions of one step, and seconds that a step may sleep or wait.
const MAX_STEPS: usize = 200;
const MAX_ACTIONS: usize = 1000;
const MAX_WAIT: f64 = 600.0;
/// Largest file that is sent to the VM, in bytes.
const MAX_UPLOAD: u64 = 256 << 20;
/// The most that a VM fetches, in bytes, and its timeout.
pub(super) const MAX_DOWNLOAD: u64 = 2 << 30;
pub(super) const DOWNLOADING: Duration = Duration::from_secs(600);
pub(super) const COMMAND: Duration = Duration::from_secs(120);
const MOMENT: Duration = Duration::from_secs(30);
/// Seconds until a window must appear.
const WINDOW: &str = "60";
/// Pause between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(300);

/// Values for placeholders in steps, and what steps may use.
#[derive(Debug, Clone, Default)]
pub(super) struct Setting {
    /// The value of `{CLIENT_PASSWORD}`.
    pub(super) client_password: String,
    /// The only folder of the server with files that may be sent to a VM. None: no file may be sent.
    pub(super) files: Option<PathBuf>,
    /// `http://host:port`, for the step `proxy`.
    pub(super) proxy: Option<String>,
    /// The port of the debugger of the VM's Chrome. None: 9222.
    pub(super) chromium_port: Option<u16>,
}

/// Runs the steps one after the other, until one fails.
///
/// # Errors
/// Which step failed, and why.
pub(super) async fn run(vm: &dyn VirtualMachine, steps: &[Value], setting: &Setting) -> Result<(), SynthesisError> {
    if steps.len() > MAX_STEPS {
        return Err(invalid(format!("there are {} steps of setup, and {MAX_STEPS} is the most", steps.len())));
    }
    let mut run = Run::new(vm, setting);
    for (at, step) in steps.iter().enumerate() {
        let kind = step["type"].as_str().unwrap_or_default().to_owned();
        run.step(&kind, step).await.map_err(|why| why.within(format!("step {} of the setup ({kind}) failed", at + 1)))?;
    }
    Ok(())
}

/// Steps in progress.
pub(super) struct Run<'a> {
    vm: &'a dyn VirtualMachine,
    setting: &'a Setting,
    /// The value of `~` in the VM, once it was queried.
    home: Option<String>,
    /// Whether browsers are started with the proxy.
    is_proxied: bool,
}

pub(super) type Params = Map<String, Value>;

impl<'a> Run<'a> {
    pub(super) fn new(vm: &'a dyn VirtualMachine, setting: &'a Setting) -> Self {
        Self { vm, setting, home: None, is_proxied: false }
    }

    async fn step(&mut self, kind: &str, step: &Value) -> Result<(), SynthesisError> {
        let mut params = match &step["parameters"] {
            Value::Null => Value::Object(Params::new()),
            Value::Object(params) => Value::Object(params.clone()),
            _ => return Err(invalid("its parameters have to be an object")),
        };
        self.fill(&mut params).await?;
        let Value::Object(params) = params else { return Ok(()) };
        match kind {
            "download" => self.download(&params).await,
            "upload_file" => self.upload(&params).await,
            "change_wallpaper" => {
                let path = self.path(text(&params, "path")?).await?;
                self.script("the wallpaper", WALLPAPER, &[&path], MOMENT).await.map(drop)
            }
            "open" => self.open(&params).await,
            "launch" => self.launch(&params).await,
            "execute" | "command" => self.execute(&params).await,
            "execute_with_verification" => self.execute_with_verification(&params).await,
            "sleep" => {
                let seconds = number(&params, "seconds")?.ok_or_else(|| invalid("it has no seconds"))?;
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
                Ok(())
            }
            "act" => self.act(params.get("action_seq").or(params.get("actions"))).await,
            "replay" => self.replay(&params).await,
            "activate_window" => self.window(&params, "a").await,
            "close_window" => self.window(&params, "c").await,
            "proxy" => self.proxy().await,
            "chrome_open_tabs" => chrome::open(self.vm, self.port(), &texts(&params, "urls_to_open")?).await,
            "chrome_close_tabs" => chrome::close(self.vm, self.port(), &texts(&params, "urls_to_close")?).await,
            "update_browse_history" => {
                let history = params
                    .get("history")
                    .filter(|history| history.is_array())
                    .ok_or_else(|| invalid("history has to be a list"))?;
                self.script("the browser's history", HISTORY, &[&history.to_string()], MOMENT).await.map(drop)
            }
            "googledrive" | "login" => {
                Err(invalid("it needs an account and its secrets, which this server has none of; prepare the VM's disk"))
            }
            "" => Err(invalid("it has no type")),
            _ => Err(invalid("there is no such step")),
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.setting.chromium_port.unwrap_or(chrome::PORT)
    }

    /// Replaces `{CLIENT_PASSWORD}` and similar placeholders by their values.
    pub(super) async fn fill(&self, params: &mut Value) -> Result<(), SynthesisError> {
        let text = params.to_string();
        if !text.contains("{SCREEN_") && !text.contains("{CLIENT_PASSWORD}") {
            return Ok(());
        }
        let (width, height) = if text.contains("{SCREEN_") { self.vm.size().await? } else { (0, 0) };
        let known = [
            ("{CLIENT_PASSWORD}", self.setting.client_password.clone()),
            ("{SCREEN_WIDTH_HALF}", (width / 2).to_string()),
            ("{SCREEN_HEIGHT_HALF}", (height / 2).to_string()),
            ("{SCREEN_WIDTH}", width.to_string()),
            ("{SCREEN_HEIGHT}", height.to_string()),
        ];
        fill(params, &known);
        Ok(())
    }

    /// A path with the VM's `~` resolved.
    pub(super) async fn path(&mut self, given: &str) -> Result<String, SynthesisError> {
        let Some(rest) = given.strip_prefix("~/") else { return Ok(given.to_owned()) };
        if self.home.is_none() {
            let command = ["sh".to_owned(), "-c".to_owned(), "printf %s \"$HOME\"".to_owned()];
            let told = self.vm.run(&command, MOMENT).await?;
            self.home = Some(told.stdout.trim_end_matches('/').to_owned());
        }
        Ok(format!("{}/{rest}", self.home.as_deref().unwrap_or_default()))
    }

    /// Runs one of Arenite's scripts. Its arguments can't become part of the script.
    pub(super) async fn script(
        &self,
        what: &str,
        script: &str,
        arguments: &[&str],
        timeout: Duration,
    ) -> Result<Output, SynthesisError> {
        let mut command = vec!["sh".to_owned(), "-c".to_owned(), script.to_owned(), "sh".to_owned()];
        command.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let done = self.vm.run(&command, timeout).await?;
        if done.code == 0 { Ok(done) } else { Err(SynthesisError::Program { message: format!("{what}: {}", said(&done)) }) }
    }

    async fn download(&mut self, params: &Params) -> Result<(), SynthesisError> {
        for file in list(params, "files")? {
            let file = file.as_object().ok_or_else(|| invalid("files has to be a list of objects with url and path"))?;
            let (url, path) = (text(file, "url")?, self.path(text(file, "path")?).await?);
            if !url.starts_with("https://") && !url.starts_with("http://") {
                return Err(invalid(format!("{url:?} is no address of http or https")));
            }
            let most = MAX_DOWNLOAD.to_string();
            self.script(url, DOWNLOAD, &[url, &path, &most], DOWNLOADING).await?;
        }
        Ok(())
    }

    async fn upload(&mut self, params: &Params) -> Result<(), SynthesisError> {
        for file in list(params, "files")? {
            let file = file.as_object().ok_or_else(|| invalid("files has to be a list of objects with local_path and path"))?;
            let (local, path) = (text(file, "local_path")?, self.path(text(file, "path")?).await?);
            let content = self.local(local).await?;
            self.vm.write(&path, &content).await?;
        }
        Ok(())
    }

    /// A file of the server in a step.
    async fn local(&self, given: &str) -> Result<Vec<u8>, SynthesisError> {
        let root =
            self.setting.files.clone().ok_or_else(|| invalid("no folder of files is configured that could be sent to a VM"))?;
        let given = given.to_owned();
        let read = tokio::task::spawn_blocking(move || local(&root, &given)).await;
        read?
    }

    async fn open(&mut self, params: &Params) -> Result<(), SynthesisError> {
        let path = self.path(text(params, "path")?).await?;
        let kind = self.script(&path, scripts::OPENABLE, &[&path], MOMENT).await?;
        let is_file = kind.stdout.trim() == "file";
        let command = if is_file { vec!["xdg-open".to_owned(), path.clone()] } else { vec![path.clone()] };
        self.vm.launch(&command).await?;
        let name = path.rsplit('/').next().unwrap_or(&path);
        let short = name.rsplit_once('.').map_or(name, |(stem, _)| if stem.is_empty() { name } else { stem });
        self.script(name, OPENED, &[name, short, WINDOW], Duration::from_secs(90)).await.map(drop)
    }

    async fn launch(&mut self, params: &Params) -> Result<(), SynthesisError> {
        let mut command = self.command(params).await?;
        let is_chrome = command.first().is_some_and(|program| program == "google-chrome" || program == "chromium");
        if let Some(proxy) = self.setting.proxy.as_ref().filter(|_| is_chrome && self.is_proxied) {
            command.push(format!("--proxy-server={proxy}"));
        }
        self.vm.launch(&command).await
    }

    /// The words of a command, which is a text or a list, with or without a shell.
    pub(super) async fn command(&mut self, params: &Params) -> Result<Vec<String>, SynthesisError> {
        let for_shell = params.get("shell").and_then(Value::as_bool).unwrap_or(false);
        let words = match (params.get("command"), for_shell) {
            (Some(Value::String(line)), true) => vec!["sh".to_owned(), "-c".to_owned(), line.clone()],
            (Some(Value::String(line)), false) => words(line)?,
            (Some(Value::Array(_)), true) => {
                // As in Python: the first is the shell's command, the rest its arguments.
                let given = texts(params, "command")?;
                ["sh".to_owned(), "-c".to_owned()].into_iter().chain(given).collect()
            }
            (Some(Value::Array(_)), false) => texts(params, "command")?,
            _ => return Err(invalid("command has to be a text or a list of texts")),
        };
        if words.is_empty() || words.iter().any(|word| word.contains('\0')) {
            return Err(invalid("the command is empty"));
        }
        let mut resolved = Vec::with_capacity(words.len());
        for word in words {
            resolved.push(self.path(&word).await?);
        }
        Ok(resolved)
    }

    /// Runs a command and waits for its end. Its exit status does not matter, unless the step states until when it is repeated.
    async fn execute(&mut self, params: &Params) -> Result<(), SynthesisError> {
        let command = self.command(params).await?;
        let until = params.get("until").and_then(Value::as_object).filter(|until| !until.is_empty());
        let Some(until) = until else {
            let done = self.vm.run(&command, COMMAND).await?;
            // Some VMs report a missing program only by the exit code.
            let is_missing = matches!(done.code, 126 | 127) && command[0] != "sh";
            return if is_missing { Err(SynthesisError::Program { message: said(&done) }) } else { Ok(()) };
        };
        let is_met = |done: &Output| {
            until.get("returncode").is_some_and(|code| code.as_i64() == Some(done.code))
                || until.get("stdout").and_then(Value::as_str).is_some_and(|text| done.stdout.contains(text))
                || until.get("stderr").and_then(Value::as_str).is_some_and(|text| done.stderr.contains(text))
        };
        let trying = async {
            while !is_met(&self.vm.run(&command, COMMAND).await?) {
                tokio::time::sleep(PAUSE).await;
            }
            Ok(())
        };
        tokio::time::timeout(COMMAND, trying)
            .await
            .unwrap_or_else(|_| Err(timeout(format!("what it is run until did not come within {} s", COMMAND.as_secs()))))
    }

    async fn execute_with_verification(&mut self, params: &Params) -> Result<(), SynthesisError> {
        let command = self.command(params).await?;
        self.vm.run(&command, COMMAND).await?;
        let Some(wanted) = params.get("verification").and_then(Value::as_object) else { return Ok(()) };
        let window = wanted.get("window_exists").and_then(Value::as_str).map(str::to_lowercase);
        let check = wanted.get("command_success").and_then(Value::as_str);
        let wait = number(params, "max_wait_time")?.unwrap_or(10.0);
        let interval = number(params, "check_interval")?.unwrap_or(1.0).max(0.1);
        let vm = self.vm;
        let looking = async {
            loop {
                let mut is_so = true;
                if let Some(window) = &window {
                    let listed = vm.run(&["wmctrl".to_owned(), "-l".to_owned()], MOMENT).await;
                    is_so &= listed.is_ok_and(|listed| listed.stdout.to_lowercase().contains(window));
                }
                if let Some(check) = check {
                    let command = ["sh".to_owned(), "-c".to_owned(), check.to_owned()];
                    is_so &= vm.run(&command, MOMENT).await.is_ok_and(|done| done.code == 0);
                }
                if is_so {
                    return;
                }
                tokio::time::sleep(Duration::from_secs_f64(interval)).await;
            }
        };
        let looked = tokio::time::timeout(Duration::from_secs_f64(wait), looking).await;
        looked.map_err(|_| timeout(format!("what it should lead to was not so within {wait} s")))
    }

    async fn act(&self, actions: Option<&Value>) -> Result<(), SynthesisError> {
        let actions = actions.and_then(Value::as_array).ok_or_else(|| invalid("action_seq has to be a list of actions"))?;
        if actions.len() > MAX_ACTIONS {
            return Err(invalid(format!("there are {} actions, and {MAX_ACTIONS} is the most", actions.len())));
        }
        for (at, action) in actions.iter().enumerate() {
            let failed = |why: SynthesisError| why.within(format!("action {}", at + 1));
            for part in acts::read(action).map_err(failed)? {
                match part {
                    acts::Part::Wait(wait) => tokio::time::sleep(wait).await,
                    acts::Part::Do(action) => self.vm.act(&action).await.map_err(failed)?,
                    acts::Part::Script(script) => script.run(self.vm).await.map(drop).map_err(failed)?,
                }
            }
        }
        Ok(())
    }

    /// The actions of a file: a list in JSON, or one action a line.
    async fn replay(&self, params: &Params) -> Result<(), SynthesisError> {
        let content = self.local(text(params, "trajectory")?).await?;
        let content = String::from_utf8(content).map_err(|_| invalid("the trajectory is no text"))?;
        let actions = match serde_json::from_str::<Value>(&content) {
            Ok(Value::Array(actions)) => actions,
            _ => {
                let lines = content.lines().filter(|line| !line.trim().is_empty());
                let read = lines.map(|line| serde_json::from_str::<Value>(line).unwrap_or_else(|_| line.into()));
                read.map(|mut line| if line["action"].is_null() { line } else { line["action"].take() }).collect()
            }
        };
        self.act(Some(&Value::Array(actions))).await
    }

    async fn window(&self, params: &Params, what: &str) -> Result<(), SynthesisError> {
        let name = text(params, "window_name")?;
        let is_on = |flag: &str| params.get(flag).and_then(Value::as_bool).unwrap_or(false);
        let by_class = if is_on("by_class") { "x" } else { "" };
        let strict = if is_on("strict") { "F" } else { "" };
        let flags = format!("-{by_class}{strict}{what}");
        self.script(&format!("the window {name:?}"), CLOSE_OR_ACTIVATE, &[&flags, name], MOMENT).await.map(drop)
    }

    async fn proxy(&mut self) -> Result<(), SynthesisError> {
        let proxy =
            self.setting.proxy.as_deref().ok_or_else(|| invalid("no proxy is configured; set proxy in the configuration"))?;
        let address = proxy.strip_prefix("http://").unwrap_or(proxy).trim_end_matches('/');
        let (host, port) =
            address.rsplit_once(':').ok_or_else(|| invalid(format!("{proxy:?} is not of the form http://host:port")))?;
        self.script("the proxy", PROXY, &[proxy, host, port], MOMENT).await?;
        self.is_proxied = true;
        Ok(())
    }
}

/// A command's error output, shortened.
fn said(done: &Output) -> String {
    let line = [&done.stderr, &done.stdout].into_iter().find_map(|text| text.trim().lines().next_back());
    let line: String = line.unwrap_or("it does not say why").chars().filter(|c| !c.is_control()).take(300).collect();
    format!("{line} (exit code {})", done.code)
}

fn fill(value: &mut Value, known: &[(&str, String)]) {
    match value {
        Value::String(text) => {
            for (name, content) in known {
                if text.contains(name) {
                    *text = text.replace(name, content);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, known)),
        Value::Object(fields) => fields.values_mut().for_each(|field| fill(field, known)),
        _ => {}
    }
}

/// A file in the configured folder; links that lead out of it are refused.
pub(super) fn local(root: &Path, given: &str) -> Result<Vec<u8>, SynthesisError> {
    let outside = || invalid(format!("{given:?} is not in the folder of files that may be sent to a VM"));
    let unread = |error| SynthesisError::io(format!("{given:?} can't be read"), error);
    let root = root.canonicalize().map_err(|error| SynthesisError::io("the folder of files can't be used", error))?;
    let path = root.join(given).canonicalize().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => invalid(format!("there is no {given:?} in the folder of files")),
        _ => outside(),
    })?;
    if !path.starts_with(&root) {
        return Err(outside());
    }
    let facts = std::fs::metadata(&path).map_err(unread)?;
    if !facts.is_file() || facts.len() > MAX_UPLOAD {
        return Err(invalid(format!("{given:?} is no file of at most {} MiB", MAX_UPLOAD >> 20)));
    }
    std::fs::read(&path).map_err(unread)
}

pub(super) fn text<'a>(params: &'a Params, name: &str) -> Result<&'a str, SynthesisError> {
    let text = params.get(name).and_then(Value::as_str).filter(|text| !text.is_empty() && !text.contains('\0'));
    text.ok_or_else(|| invalid(format!("{name} has to be a text")))
}

fn list<'a>(params: &'a Params, name: &str) -> Result<&'a [Value], SynthesisError> {
    params.get(name).and_then(Value::as_array).map(Vec::as_slice).ok_or_else(|| invalid(format!("{name} has to be a list")))
}

pub(super) fn texts(params: &Params, name: &str) -> Result<Vec<String>, SynthesisError> {
    let all = list(params, name)?.iter().map(|item| item.as_str().map(str::to_owned));
    all.collect::<Option<_>>().ok_or_else(|| invalid(format!("{name} has to be a list of texts")))
}

fn number(params: &Params, name: &str) -> Result<Option<f64>, SynthesisError> {
    match params.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            let number = value.as_f64().filter(|number| (0.0..=MAX_WAIT).contains(number));
            number.map(Some).ok_or_else(|| invalid(format!("{name} has to be a number of seconds from 0 to {MAX_WAIT}")))
        }
    }
}

/// Splits a line into words, with quotes and backslashes as in shells, and no other shell syntax.
pub(super) fn words(line: &str) -> Result<Vec<String>, SynthesisError> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut rest = line.chars();
    while let Some(c) = rest.next() {
        match (quote, c) {
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(c);
            }
            (Some(open), c) if open == c => quote = None,
            (None | Some('"'), '\\') => {
                let next = rest.next().ok_or_else(|| invalid("the command ends with a backslash"))?;
                if quote.is_some() && !matches!(next, '"' | '\\') {
                    word.get_or_insert_default().push('\\');
                }
                word.get_or_insert_default().push(next);
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    if quote.is_some() {
        return Err(invalid("the command has a quote without its end"));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
pub(super) mod fake;
#[cfg(test)]
mod tests;
