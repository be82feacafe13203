//! `vm:*`: a computer with a screen, used in the way a person uses one.
//!
//! ```text
//!  tool ──► request: its parameters, checked ──► VM: input and screenshots ──► answer, with a table of what is on the screen
//!                                                  ├─ desktop: a sandbox's own
//!                                                  └─ others
//! ```
//!
//! Each session has its own VM. Its actions run one after the other, so no click interrupts another action's drag.

mod desktop;
mod docker;
pub mod driver;
mod evaluate;
#[cfg(test)]
mod fake;
mod film;
mod osworld;
mod pool;
mod pyautogui;
mod qemu;
mod request;
mod settings;
mod setup;
mod tools;
mod tree;

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use self::driver::{Button, Recording, VirtualMachine};
use self::evaluate::Scorer;
use self::pool::Pool;
use self::request::Request;
use self::settings::{Provider, Settings};
use self::setup::Setting;
use super::{Answered, Params};
use crate::answer::{Failure, Reason, Returned, code as codes};
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::{SynthesisError, invalid};
use crate::keep::Keep;
use crate::sandboxes::{Caller, SandboxHandle, SandboxRequest};
use crate::session::Session;

const NAME: &str = "vm";
/// The most actions of a session that are remembered.
const HISTORY: usize = 50;
/// A table that takes longer is left out, because the action was already done.
const TABLE: Duration = Duration::from_secs(5);
/// Time to end, fetch and write a film.
const FILM: Duration = Duration::from_secs(120);

/// Uses computers with screens.
pub struct Vm {
    config: Map<String, Value>,
    /// The owner of this server's containers, if Docker runs VMs: the same word after a restart.
    owner: String,
    scorer: Arc<Scorer>,
    /// None until `bind` is called.
    pool: OnceLock<Arc<Pool>>,
    /// By their sessions' ids.
    open: Mutex<HashMap<String, Arc<Open>>>,
}

/// State of an open session.
struct Open {
    vm: Box<dyn VirtualMachine>,
    setting: Setting,
    scorer: Arc<Scorer>,
    settle: Duration,
    /// Whether it is being recorded.
    filmed: bool,
    past: Mutex<Past>,
}

#[derive(Default)]
struct Past {
    history: VecDeque<Done>,
    last_action_failed: bool,
}

/// One action of a session.
#[derive(Debug, Clone)]
struct Done {
    tool: String,
    ok: bool,
    at: Timestamp,
}

fn button(name: &str) -> Option<Button> {
    match name {
        "left" | "primary" => Some(Button::Left),
        "middle" => Some(Button::Middle),
        "right" | "secondary" => Some(Button::Right),
        _ => None,
    }
}

/// A tool's failure, with AgentFlow's message.
fn broken(error: impl Reason) -> Failure {
    let is_infrastructure = error.is_infrastructure();
    let error: String = error.into();
    Failure { is_infrastructure, ..Failure::new(codes::UNEXPECTED_ERROR, format!("[VM] Error: {error}")) }
}

/// Starts a VM's screen, its desktop and its accessibility tree, so that they are ready for the first session.
async fn begin(vm: &dyn VirtualMachine) -> Result<(), SynthesisError> {
    vm.screenshot().await?;
    vm.start_desktop().await?;
    if let Err(error) = vm.tree().await {
        tracing::debug!("a VM tells nothing of what is on its screen: {error}");
    }
    Ok(())
}

/// Width and height, which are at the same offset in every PNG.
fn png_size(picture: &[u8]) -> Option<(u32, u32)> {
    let is_png = picture.starts_with(b"\x89PNG\r\n\x1a\n");
    let side = |at: usize| picture.get(at..at + 4).and_then(|four| four.try_into().ok()).map(u32::from_be_bytes);
    side(16).zip(side(20)).filter(|_| is_png)
}

impl Open {
    fn past(&self) -> MutexGuard<'_, Past> {
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remember(&self, tool: &str, ok: bool) {
        let mut past = self.past();
        if past.history.len() == HISTORY {
            past.history.pop_front();
        }
        past.history.push_back(Done { tool: tool.to_owned(), ok, at: Timestamp::now() });
    }

    async fn table(&self) -> Value {
        match tokio::time::timeout(TABLE, self.vm.tree()).await {
            Ok(Ok(table)) => table.into(),
            Ok(Err(error)) => {
                tracing::debug!("no table of what is on the screen: {error}");
                Value::Null
            }
            Err(_) => Value::Null,
        }
    }

    /// An answer with the current content of the screen.
    async fn looked(&self, mut data: Map<String, Value>) -> Map<String, Value> {
        tokio::time::sleep(self.settle).await;
        data.insert("accessibility_tree".to_owned(), self.table().await);
        data
    }

    async fn screenshot(&self, name: &str) -> Result<Map<String, Value>, Failure> {
        let (picture, table) = tokio::join!(self.vm.screenshot(), self.table());
        let picture = picture.map_err(broken)?;
        let (width, height) = png_size(&picture).ok_or_else(|| broken("the VM's picture is no PNG"))?;
        Ok(fields(json!({
            "image": STANDARD.encode(&picture),
            "size": [width, height],
            "session": name,
            "accessibility_tree": table,
        })))
    }

    async fn scripts(&self, commands: &[String], scripts: &[pyautogui::Script]) -> Result<Map<String, Value>, Failure> {
        let (mut results, mut failed) = (Vec::new(), Vec::new());
        for (at, script) in scripts.iter().enumerate() {
            results.push(match script.run(&*self.vm).await {
                Ok(output) => json!({ "success": true, "output": output }),
                Err(error) => {
                    failed.push(at);
                    json!({ "success": false, "error": error.to_string() })
                }
            });
        }
        let told = failed.first().map(|at| results[*at]["error"].as_str().unwrap_or_default().to_owned());
        let data = self.looked(fields(json!({ "commands": commands, "results": results }))).await;
        let Some(told) = told else { return Ok(data) };
        let message = format!("{} of {} commands failed; the first of these: {told}", failed.len(), commands.len());
        let mut data = Value::from(data);
        data["failed_indices"] = failed.into();
        Err(Failure::new(codes::EXECUTION_ERROR, message).with(data))
    }

    async fn does(&self, request: &Request, session: &str) -> Result<Map<String, Value>, Failure> {
        match request {
            Request::Screenshot => self.screenshot(session).await,
            Request::Act { action, said } => {
                self.vm.act(action).await.map_err(broken)?;
                Ok(self.looked(said.clone()).await)
            }
            Request::Wait(seconds) => {
                tokio::time::sleep(Duration::from_secs_f64(*seconds)).await;
                Ok(self.looked(fields(json!({ "waited": seconds }))).await)
            }
            Request::Done => Ok(fields(json!({ "done": true }))),
            Request::Fail(reason) => {
                let mut data = fields(json!({ "fail": true }));
                if let Some(reason) = reason {
                    data.insert("reason".to_owned(), reason.clone().into());
                }
                data.insert("accessibility_tree".to_owned(), self.table().await);
                Ok(data)
            }
            Request::Scripts { commands, scripts } => self.scripts(commands, scripts).await,
            Request::Evaluate(evaluator) => {
                let gave_up = self.past().last_action_failed;
                let evaluator = evaluator.clone().into();
                let told = evaluate::evaluate(&*self.vm, &evaluator, gave_up, &self.setting, &self.scorer).await?;
                let mut data = fields(told);
                data.insert("accessibility_tree".to_owned(), self.table().await);
                Ok(data)
            }
        }
    }

    /// Performs an action, and remembers it.
    async fn perform(&self, tool: &str, request: &Request, session: &str) -> Answered {
        let done = self.does(request, session).await;
        self.remember(tool, done.is_ok());
        match request {
            Request::Fail(_) => self.past().last_action_failed = true,
            // These only read, and change nothing.
            Request::Screenshot | Request::Evaluate(_) => {}
            _ => self.past().last_action_failed = false,
        }
        done.map(|data| Returned::Data(data.into()))
    }
}

fn fields(object: Value) -> Map<String, Value> {
    match object {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

impl Vm {
    /// `data_dir`: the server's, in which its Python package is unpacked.
    pub fn new(mut config: Map<String, Value>, data_dir: &Path) -> Self {
        // A VM belongs to one session, and is removed with it.
        config.entry("sandbox").or_insert_with(|| "own".into());
        let data_path = std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.to_owned());
        let owner = blake3::hash(data_path.as_os_str().as_encoded_bytes()).to_hex()[..16].to_owned();
        let python = config.get("python").and_then(Value::as_str).unwrap_or("python3");
        let scorer = Arc::new(Scorer::new(python, &data_dir.join("synthesis/python")));
        Self { config, owner, scorer, pool: OnceLock::new(), open: Mutex::default() }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The values for placeholders in a session's steps. Only the server's own steps may use files of the server.
    fn setting(&self, config: &Map<String, Value>, steps: &[Value]) -> Setting {
        let text = |config: &Map<String, Value>, key: &str| {
            config.get(key).and_then(Value::as_str).filter(|text| !text.is_empty() && !text.starts_with("${")).map(str::to_owned)
        };
        let own = self.config.get("setup").and_then(Value::as_array).is_some_and(|own| own == steps);
        let port = config.get("chromium_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
        Setting {
            client_password: text(config, "client_password").unwrap_or_else(|| "password".to_owned()),
            files: text(&self.config, "setup_files").filter(|_| own).map(PathBuf::from),
            proxy: text(config, "proxy"),
            chromium_port: port,
        }
    }

    /// The folder of films, which only the server's own configuration sets.
    fn films(&self) -> Result<PathBuf, SynthesisError> {
        let path = self.config.get("recording_path").and_then(Value::as_str).unwrap_or_default();
        if path.is_empty() || path.starts_with("${") {
            return Err(invalid("recording needs a folder: set recording_path in the server's configuration of vm"));
        }
        std::path::absolute(path).map_err(|error| SynthesisError::io(format!("recording_path {path:?}"), error))
    }

    async fn film(&self, open: &Open, session: &str) -> Result<(), SynthesisError> {
        let film = open.vm.record(Recording::Stop).await?;
        let path = film::keep(&self.films()?, session, film).await?;
        tracing::info!(session, "the film of a session is {}", path.display());
        Ok(())
    }
}

#[async_trait]
impl Backend for Vm {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        tools::tools()
    }

    fn default_config(&self) -> Map<String, Value> {
        self.config.clone()
    }

    fn sandbox_request(&self, config: &Map<String, Value>) -> Option<SandboxRequest> {
        // Errors in it are reported when the session starts.
        Settings::from_config(config).ok()?.sandbox_request()
    }

    fn check(&self, tool: &str, params: &Params, _worker: &str) -> Result<(), Failure> {
        Request::parse(tool, params).map(drop)
    }

    fn bind(&self, keep: Keep) {
        let steps = self.config.get("setup").and_then(Value::as_array).cloned().unwrap_or_default();
        let setting = self.setting(&self.config, &steps);
        // It is bound only once.
        let _ = self.pool.set(Arc::new(Pool::new(self.config.clone(), setting, keep)));
        if Settings::from_config(&self.config).is_ok_and(|settings| settings.provider == Provider::Docker) {
            let owner = self.owner.clone();
            tokio::spawn(async move {
                if let Err(error) = docker::remove_orphans(&owner).await {
                    tracing::warn!("VMs that a killed server left could not be removed: {error}");
                }
            });
        }
    }

    async fn spare(&self, caller: &Caller, config: &Map<String, Value>, sandbox_request: &SandboxRequest) -> Option<String> {
        self.pool.get()?.take(caller, config, sandbox_request).await
    }

    async fn warmup(&self) -> Result<(), SynthesisError> {
        match self.pool.get() {
            Some(pool) => pool.fill().await,
            None => Ok(()),
        }
    }

    async fn initialize(&self, session: &Arc<Session>, handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        let settings = Settings::from_config(&session.facts.config)?;
        if settings.recording {
            self.films()?;
        }
        let vm = settings.vm(handle, &session.facts.config, &self.owner).await?;
        let setting = self.setting(&session.facts.config, &settings.setup);
        if !session.is_resumed() {
            let done = handle.and_then(|handle| self.pool.get()?.done(&handle.name));
            if done.is_none() {
                begin(&*vm).await?;
            }
            if done.is_none_or(|done| done != settings.setup) {
                setup::run(&*vm, &settings.setup, &setting).await?;
            }
            if settings.recording {
                vm.record(Recording::Start).await?;
            }
        }
        let scorer = self.scorer.clone();
        let open = Open { vm, setting, scorer, settle: settings.settle, filmed: settings.recording, past: Mutex::default() };
        self.open().insert(session.facts.id.clone(), Arc::new(open));
        Ok(())
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let request = Request::parse(call.tool, &call.params)?;
        let known = call.session.and_then(|session| Some((session, self.open().get(&session.facts.id).cloned()?)));
        let Some((session, open)) = known else {
            return Err(Failure::new(codes::RESOURCE_NOT_INITIALIZED, "[VM] the session has no VM"));
        };
        let _turn = session.turn.lock().await;
        open.perform(call.tool, &request, &session.facts.name).await
    }

    async fn cleanup(&self, session: &Arc<Session>, _handle: Option<&SandboxHandle>) {
        let Some(open) = self.open().remove(&session.facts.id) else { return };
        for Done { tool, ok, at } in &open.past().history {
            tracing::debug!(session = session.facts.id, tool, ok, %at, "done in a session that ends");
        }
        if !open.filmed {
            return open.vm.end().await;
        }
        match tokio::time::timeout(FILM, self.film(&open, &session.facts.id)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(session = session.facts.id, "the film of a session is lost: {error}"),
            Err(_) => tracing::error!(session = session.facts.id, "the film of a session is lost: it did not end in time"),
        }
        open.vm.end().await;
    }

    async fn shutdown(&self) {
        if let Some(pool) = self.pool.get() {
            pool.close().await;
        }
        self.scorer.end().await;
    }
}

#[cfg(test)]
mod tests {
    use super::fake::FakeVm;
    use super::*;

    fn open() -> Open {
        let past = Mutex::default();
        let scorer = Arc::new(Scorer::new("python3", Path::new(".")));
        Open { vm: Box::new(FakeVm::default()), setting: Setting::default(), scorer, settle: Duration::ZERO, filmed: false, past }
    }

    async fn ask(open: &Open, tool: &str, params: Value) -> Result<Value, Failure> {
        let request = Request::parse(tool, &fields(params))?;
        match open.perform(tool, &request, "vm_w_001").await? {
            Returned::Data(data) => Ok(data),
            Returned::Envelope(_) => unreachable!(),
        }
    }

    #[tokio::test]
    async fn answers_have_agentflows_fields() {
        let open = open();
        for (tool, params, wanted) in [
            ("vm:click", json!({"x": 1, "y": 2}), json!({"clicked": [1, 2], "button": "left"})),
            ("vm:double_click", json!({"x": 1, "y": 2}), json!({"clicked": [1, 2]})),
            ("vm:right_click", json!({}), json!({"clicked": null})),
            ("vm:type", json!({"text": "a<é"}), json!({"typed": "a<é", "length": 3})),
            ("vm:key", json!({"key": "enter"}), json!({"key": "enter"})),
            ("vm:key_down", json!({"key": "shift"}), json!({"key": "shift"})),
            ("vm:hotkey", json!({"keys": ["ctrl", "s"]}), json!({"keys": ["ctrl", "s"]})),
            ("vm:scroll", json!({"x": 1, "y": 2, "clicks": -3}), json!({"position": [1, 2], "clicks": -3})),
            ("vm:drag", json!({"start_x": 1, "start_y": 2, "end_x": 3, "end_y": 4}), json!({"from": [1, 2], "to": [3, 4]})),
            ("vm:move", json!({"x": 1, "y": 2}), json!({"position": [1, 2]})),
            ("vm:mouse_down", json!({"button": "right"}), json!({"button": "right"})),
            ("vm:wait", json!({"seconds": 0}), json!({"waited": 0.0})),
            ("vm:fail", json!({"reason": "no"}), json!({"fail": true, "reason": "no"})),
        ] {
            let mut wanted = wanted;
            wanted["accessibility_tree"] = Value::Null;
            assert_eq!(ask(&open, tool, params).await.unwrap(), wanted, "{tool}");
        }
        assert_eq!(ask(&open, "vm:done", json!({})).await.unwrap(), json!({"done": true}));
    }

    #[tokio::test]
    async fn what_the_machine_can_not_do_is_agentflows_error() {
        let open = open();
        let off = ask(&open, "vm:click", json!({"x": 801, "y": 2})).await.unwrap_err();
        assert_eq!((off.code, off.message.as_str()), (5005, "[VM] Error: 801, 2 is outside of the screen, which is 800x600"));
        let partly = json!({"command": "pyautogui.click(1, 1)", "commands": ["pyautogui.moveTo(900, 1)", "pyautogui.size()"]});
        let partly = ask(&open, "vm:pyautogui", partly).await.unwrap_err();
        assert_eq!((partly.code, &partly.data["failed_indices"]), (5000, &json!([1])));
        assert_eq!(partly.data["results"][2]["output"], "Size(width=800, height=600)");
        assert_eq!(ask(&open, "vm:evaluate", json!({"evaluator": {}})).await.unwrap_err().code, 4000);
    }

    #[tokio::test]
    async fn giving_up_is_remembered_until_the_next_action() {
        let open = open();
        for (tool, params, given_up) in
            [("vm:fail", json!({}), true), ("vm:screenshot", json!({}), true), ("vm:click", json!({"x": 1, "y": 1}), false)]
        {
            let _ = ask(&open, tool, params).await;
            assert_eq!(open.past().last_action_failed, given_up, "{tool}");
        }
        for _ in 0..HISTORY {
            let _ = ask(&open, "vm:key", json!({"key": "a"})).await;
        }
        assert_eq!(open.past().history.len(), HISTORY);
    }

    #[test]
    fn a_png_tells_its_size() {
        let mut picture = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\x05\0\0\0\x04\0".to_vec();
        assert_eq!(png_size(&picture), Some((1280, 1024)));
        picture.truncate(20);
        assert_eq!(png_size(&picture), None);
        assert_eq!(png_size(b""), None);
    }
}
