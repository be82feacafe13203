//! `bash:*`: commands in a shell that lasts as long as its session, with its directory, variables and functions.

use std::sync::{Arc, LazyLock};

use async_trait::async_trait;
use serde_json::{Map, Value, json};

use super::{Answered, MAX_OUTPUT, alias, failed, handle, number_if, quoted, require, seconds, spec, text};
use crate::answer::Returned;
use crate::backend::{Backend, ToolCall, ToolSpec};
use crate::error::SynthesisError;
use crate::sandboxes::{SandboxHandle, SandboxRequest};
use crate::session::Session;

const NAME: &str = "bash";
/// Default timeout in seconds.
const TIMEOUT: f64 = 30.0;
/// Exit code of a command that timed out, as in `timeout`.
const TIMED_OUT: i64 = 124;

/// Runs before each command of a session, on the same line: restores the state of the previous command, and saves it after this
/// one. Other shells than bash can't list their functions, so these last for one command there.
static KEEP: LazyLock<String> = LazyLock::new(|| {
    let bash = quoted(KEEP_BASH);
    format!(
        r#"[ -r "$AGENTFLOW_STATE" ] && . "$AGENTFLOW_STATE"; if [ -n "${{BASH_VERSION-}}" ]; then eval {bash}; else {KEEP_SH}; fi; trap __af_keep EXIT; "#
    )
});
/// Saves the state, except Bash's own variables and those that can't be set again.
const KEEP_BASH: &str = r#"__af_keep() { local __af_rc=$? __af_v; trap - EXIT; { printf 'cd -- %q\n' "$PWD"; declare -f | grep -v '^declare -f __af_' ; for __af_v in $(compgen -v); do case $__af_v in BASH*|COMP_*|DIRSTACK|EPOCH*|EUID|FUNCNAME|GROUPS|HISTCMD|IFS|LINENO|OPT*|PIPESTATUS|PPID|PS4|PWD|OLDPWD|RANDOM|SECONDS|SHELL|SHELLOPTS|SHLVL|SRANDOM|UID|_|__af_*|AGENTFLOW_STATE) continue;; esac; [[ ${!__af_v@a} == *r* ]] || declare -p "$__af_v"; done; } >"$AGENTFLOW_STATE.new" 2>/dev/null && mv -f "$AGENTFLOW_STATE.new" "$AGENTFLOW_STATE"; exit $__af_rc; }"#;
/// `set` quotes all variables for the shell that reads them, among them the directory.
const KEEP_SH: &str = r#"__af_keep() { __af_rc=$?; trap - EXIT; __af_pwd=$PWD; { set; export -p; printf '%s\n' 'cd -- "$__af_pwd"'; } >"$AGENTFLOW_STATE.new" 2>/dev/null && mv -f "$AGENTFLOW_STATE.new" "$AGENTFLOW_STATE"; exit "$__af_rc"; }"#;

/// Runs commands.
pub struct Bash {
    config: Map<String, Value>,
}

impl Bash {
    pub fn new(config: Map<String, Value>) -> Self {
        Self { config }
    }
}

/// Runs a command in a session's shell, or once.
pub(super) async fn run(call: &ToolCall<'_>, command: &str, timeout: f64) -> Answered {
    let handle = handle(call.handle)?;
    let timeout = seconds(timeout, call.deadline);
    let mut request = json!({
        "command": command,
        // The command is killed slightly before the call times out.
        "hard_timeout": timeout,
        "timeout": timeout + 30.0,
        "max_output_length": MAX_OUTPUT,
    });
    let session = call.session.filter(|session| !session.facts.auto_created);
    let mut stop = None;
    // One after the other: each command continues from the state of the one before.
    let _turn = match session {
        Some(session) => Some(session.turn.lock().await),
        None => None,
    };
    if let Some(session) = session {
        let id = format!("agentflow-{}", session.facts.id);
        request["session_id"] = id.clone().into();
        request["env"] = json!({ "AGENTFLOW_STATE": format!("/tmp/.{id}") });
        request["command"] = format!("{}{command}", *KEEP).into();
        stop = Some(Stop { handle: Some(handle.clone()), session: id });
    }
    let done = handle.post("/v1/bash/exec", &request).await;
    if let Some(stop) = &mut stop {
        stop.handle = None;
    }
    let done = done.map_err(failed)?;
    let timed_out = done["status"] == "timed_out";
    let code = if timed_out { TIMED_OUT.into() } else { done["exit_code"].clone() };
    let mut data = json!({
        "command": command,
        "stdout": done["stdout"].as_str().unwrap_or_default(),
        "stderr": done["stderr"].as_str().unwrap_or_default(),
        // AgentFlow's client reads one name, its documents have the other.
        "return_code": code,
        "exit_code": code,
    });
    if timed_out {
        data["timed_out"] = true.into();
        let said = data["stderr"].as_str().unwrap_or_default();
        data["stderr"] = format!("{said}the command was killed after {timeout:.1} s").into();
    }
    Ok(Returned::Data(data))
}

/// Kills the command when the call is dropped: its client left, or it timed out.
struct Stop {
    /// None: the command has returned.
    handle: Option<SandboxHandle>,
    session: String,
}

impl Drop for Stop {
    fn drop(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let session = std::mem::take(&mut self.session);
            runtime.spawn(async move {
                let _ = handle.post("/v1/bash/kill", &json!({ "session_id": session, "signal": "SIGKILL" })).await;
            });
        }
    }
}

/// The directory in which a session starts.
pub(super) async fn open(session: &Arc<Session>, handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
    let Some(handle) = handle else { return Ok(()) };
    if session.facts.auto_created {
        return Ok(());
    }
    let mut request = json!({ "session_id": format!("agentflow-{}", session.facts.id) });
    if let Some(cwd) = session.facts.config.get("cwd").and_then(Value::as_str) {
        let made = json!({ "command": format!("mkdir -p -- {}", quoted(cwd)), "hard_timeout": 30 });
        handle.post("/v1/bash/exec", &made).await?;
        request["exec_dir"] = cwd.into();
    }
    handle.post("/v1/bash/sessions/create", &request).await.map(drop)
}

pub(super) fn default_timeout(session: Option<&Arc<Session>>, default: f64) -> f64 {
    session.and_then(|session| session.facts.config.get("timeout")).and_then(Value::as_f64).unwrap_or(default)
}

#[async_trait]
impl Backend for Bash {
    fn name(&self) -> &str {
        NAME
    }

    fn tools(&self) -> Vec<ToolSpec> {
        let command = json!({"type": "string", "description": "The command, for bash."});
        let timeout = json!({"type": "number", "description": "Seconds after which it is killed.", "default": TIMEOUT});
        let run = spec(
            "bash:run",
            NAME,
            "Run a command in a shell that keeps its directory, variables and functions while the session lasts.",
            json!({"command": command, "timeout": timeout}),
            &["command"],
        );
        let older = alias(&run, "bash:run_command");
        let pwd = spec("bash:pwd", NAME, "Tell the shell's directory.", json!({}), &[]);
        let path = json!({"path": {"type": "string", "description": "The directory to go to."}});
        let cd = spec("bash:cd", NAME, "Change the shell's directory.", path, &["path"]);
        vec![run, older, pwd, cd]
    }

    fn default_config(&self) -> Map<String, Value> {
        self.config.clone()
    }

    fn sandbox_request(&self, _config: &Map<String, Value>) -> Option<SandboxRequest> {
        Some(SandboxRequest::default())
    }

    async fn initialize(&self, session: &Arc<Session>, handle: Option<&SandboxHandle>) -> Result<(), SynthesisError> {
        open(session, handle).await
    }

    async fn call(&self, call: ToolCall<'_>) -> Answered {
        let default = default_timeout(call.session, TIMEOUT);
        match call.tool {
            "bash:pwd" => run(&call, "pwd", default).await,
            "bash:cd" => {
                require(call.tool, &call.params, &["path"])?;
                let path = quoted(text(&call.params, "path")?);
                run(&call, &format!("cd -- {path} && pwd"), default).await
            }
            _ => {
                require(call.tool, &call.params, &["command"])?;
                let timeout = number_if(&call.params, "timeout")?.unwrap_or(default);
                run(&call, text(&call.params, "command")?, timeout).await
            }
        }
    }

    async fn cleanup(&self, session: &Arc<Session>, handle: Option<&SandboxHandle>) {
        if let Some(handle) = handle.filter(|_| !session.facts.auto_created) {
            let path = format!("/v1/bash/sessions/agentflow-{}/close", session.facts.id);
            let _ = handle.post(&path, &json!({})).await;
        }
    }
}
