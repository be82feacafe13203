//! Commands in a persistent shell.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;

use super::bounded::bounded;
use super::tool::{Caller, Effect, Tool, ToolResult, structured};
use arenite_guest_runtime::http::ApiError;
use arenite_guest_runtime::sessions::SessionId;
use arenite_guest_shell::shell::{
    ShellCommandResult, ShellCreateSessionRequest, ShellError, ShellExecRequest, ShellStatus, ShellWaitRequest, session_id,
};

/// The session that calls share unless they request another.
const SHARED: &str = "mcp";
/// Maximum commands that run concurrently; further calls wait. Each may have a separate shell.
const MAX_COMMANDS: usize = 48;
static TURNS: Semaphore = Semaphore::const_new(MAX_COMMANDS);
/// The spellings of the keys that stop a command.
const STOP: [&str; 3] = ["C-c", "ctrl+c", "^C"];

pub(super) fn tools() -> Vec<Tool> {
    vec![Tool::new("sandbox_execute_bash", "Run a shell command", Effect::Anything, execute)]
}

/// Runs a bash command in the sandbox and returns its output (stdout and stderr together) and exit code.
///
/// Directory and variables last from call to call, in one shared session. While a command still runs there, the next call
/// gets a separate session. A command that takes longer than `timeout` goes on: call again with its `session_id` and an
/// empty `cmd` to wait for the rest of it, or with `cmd` "C-c" to stop it.
#[derive(Debug, Deserialize, JsonSchema)]
struct ExecuteBash {
    /// The command; may have several lines. Empty, with `session_id`: wait for what runs there. "C-c": stop it.
    #[schemars(example = "ls -la && python3 --version")]
    #[serde(alias = "command")]
    cmd: String,
    /// The directory to run it in; the session stays there. Relative ones start at the sandbox's working directory.
    #[schemars(example = "/home/gem/project")]
    #[serde(alias = "exec_dir")]
    cwd: Option<String>,
    /// Run it in a fresh session instead of the shared one.
    #[serde(default)]
    new_session: bool,
    /// Seconds to wait for the end. The command goes on after that.
    #[serde(default = "timeout")]
    #[schemars(range(min = 0.0, max = 3600.0))]
    timeout: f64,
    /// Cut output of more than 30,000 characters in the middle; the whole of it is then kept in a file.
    #[serde(default = "yes")]
    truncate: bool,
    /// The session of an earlier call, from its result.
    #[serde(alias = "id")]
    session_id: Option<String>,
}

fn timeout() -> f64 {
    30.0
}

fn yes() -> bool {
    true
}

#[derive(Debug, Serialize)]
struct Executed {
    session_id: String,
    command: String,
    status: ShellStatus,
    /// `None`: it is still running, or did not exit by itself.
    exit_code: Option<i32>,
    output: String,
    /// The session's current directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

async fn execute(caller: Caller, args: ExecuteBash) -> ToolResult {
    let guest = &caller.guest;
    let seconds = args.timeout.clamp(0.0, 3600.0);
    let cmd = args.cmd.trim();
    let result = match args.session_id.as_deref().filter(|id| !id.is_empty()).map(session_id).transpose()? {
        Some(id) if STOP.contains(&cmd) => {
            guest.shell.kill(&id).await?;
            look(&caller, &id, 0.0).await?
        }
        Some(id) if cmd.is_empty() => look(&caller, &id, seconds).await?,
        _ if cmd.is_empty() => {
            return Err(ApiError::bad_request("cmd is empty").hint("an empty cmd needs the session_id of a command that runs"));
        }
        id => {
            // The semaphore is never closed.
            let _turn = TURNS.acquire().await;
            let shared = session_id(SHARED)?;
            let session = match id {
                Some(id) => Some(id.to_string()),
                None if args.new_session || guest.shell.is_busy(&shared) => None,
                None => {
                    let request = ShellCreateSessionRequest { id: Some(SHARED.to_owned()), ..Default::default() };
                    let made = guest.shell.create(request).await?;
                    // Another call may have used the session meanwhile.
                    Some(made.session_id).filter(|_| !guest.shell.is_busy(&shared))
                }
            };
            let request = ShellExecRequest {
                id: session,
                exec_dir: args.cwd,
                command: args.cmd,
                timeout: Some(seconds),
                strict: Some(true),
                no_change_timeout: Some(0.0),
                truncate: Some(false),
                ..Default::default()
            };
            guest.shell.exec_told(request, caller.progress.sender()).await?
        }
    };
    let output = result.output.unwrap_or_default();
    let (output, mut hint) = match args.truncate {
        true => {
            let bounded = bounded(&guest.runtime, output).await;
            (bounded.text, bounded.hint.or(result.hint))
        }
        false => (output, result.hint),
    };
    if result.status == ShellStatus::Running {
        hint = Some(format!(
            "it still runs: call again with session_id {:?} and an empty cmd to wait for it, or with cmd \"C-c\" to stop it",
            result.session_id
        ));
    }
    let cwd = guest.shell.list().sessions.remove(&result.session_id).map(|session| session.working_dir);
    structured(&Executed {
        session_id: result.session_id,
        command: result.command,
        status: result.status,
        exit_code: result.exit_code,
        output,
        cwd,
        hint,
    })
}

/// Returns the output of a session's command, after its end or after `seconds`.
async fn look(caller: &Caller, id: &SessionId, seconds: f64) -> Result<ShellCommandResult, ShellError> {
    let shell = &caller.guest.shell;
    shell.wait(ShellWaitRequest { id: id.to_string(), seconds: Some(seconds), max_wait_seconds: None }).await?;
    let view = shell.view(id)?;
    Ok(ShellCommandResult {
        session_id: view.session_id,
        command: view.command.unwrap_or_default(),
        status: view.status,
        output: Some(view.output),
        console: None,
        exit_code: view.exit_code,
        hint: None,
    })
}
