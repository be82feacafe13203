//! The protocol between guest and gateway: HTTP/1.1 over the guest's Unix socket, with these names.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::Tier;

/// The version of this protocol. A gateway speaks to guests of the same version and the one before.
pub const VERSION: u32 = 1;
/// Request: the gateway's protocol version. Answer: the guest's.
pub const VERSION_HEADER: &str = "x-arenite-protocol";
/// `GET`: the guest's [`Hello`]; an answer also shows that it serves.
pub const HELLO_PATH: &str = "/internal/hello";
/// `GET`, streamed as JSON lines: one [`InsideStep`] for each call made inside the sandbox, until the gateway hangs up.
/// The guest keeps the last 1,000 steps (4 MiB at most) that no gateway has read yet.
pub const INSIDE_STEPS_PATH: &str = "/internal/inside-steps";
/// `GET` with `Upgrade: arenite-port`, and a port after it: after the 101 the connection is one to that port of the sandbox's
/// loopback. 403: the port is one of [`INTERNAL_PORTS`]; 502: nothing listens there; 503: too many at once; 504: the listener
/// accepts no connection.
pub const PORTS_PATH: &str = "/internal/ports/";
/// The name of the upgrade to a port's connection.
pub const PORT_UPGRADE: &str = "arenite-port";
/// Ports on the sandbox's loopback that are no preview: the guest's, and those of programs that it starts for itself.
pub const INTERNAL_PORTS: [u16; 3] = [INSIDE_PORT, BROWSER_PORT, AGENT_SERVER_PORT];
/// `POST`, before the guest is killed: runs the sandbox's shutdown hooks. 204 if there are none; else 200 at once, with a body
/// that ends when they have ended, at most [`SHUTDOWN_SECONDS`] later.
pub const SHUTDOWN_PATH: &str = "/internal/shutdown";
/// Maximum time of all shutdown hooks of a sandbox together, in seconds.
pub const SHUTDOWN_SECONDS: u64 = 30;
/// `POST`, by the engine: starts what is slow to start, before the first caller needs it; answers when that is ready.
pub const PREPARE_PATH: &str = "/internal/prepare";
/// `POST` of a [`Become`], by the engine: assigns a pooled sandbox.
pub const BECOME_PATH: &str = "/internal/become";
/// `POST` of a [`Restored`], by the engine: tells a guest that its processes were restored, and which sandbox it is of now.
pub const RESTORED_PATH: &str = "/internal/restored";
/// Of a sandbox with a VM, by the engine. `POST`: saves the running VM in its disk, and returns the size of its memory, in bytes.
/// `DELETE`: removes that. `PUT`, in a sandbox that got the disk meanwhile: continues the VM, and answers when its agent does.
pub const VM_STATE_PATH: &str = "/internal/vm-state";
/// `GET`, by the server, of a sandbox that is forked: [`CarriedSessions`]. The fork has them in its configuration.
pub const SESSIONS_PATH: &str = "/internal/sessions";
/// Maximum size of [`CarriedSessions`] as JSON, in bytes.
pub const MAX_CARRIED: usize = 1 << 20;
/// `GET`, by the engine: an [`Activity`].
pub const ACTIVITY_PATH: &str = "/internal/activity";
/// Paths that only the gateway may call: the guest answers them on its Unix socket alone.
pub const INTERNAL_PREFIX: &str = "/internal/";
/// The guest's port inside the sandbox, on its loopback.
pub const INSIDE_PORT: u16 = 8080;
/// The browser's port on the sandbox's loopback, unless a program inside uses it.
pub const BROWSER_PORT: u16 = 9222;

/// `GET` with `Upgrade: arenite-server`: answered when a process inside connects to [`AGENT_SERVER_PORT`]. After the 101, the
/// connection is this process's to the server. 404: the sandbox has no token.
pub const SERVER_CALLS_PATH: &str = "/internal/server-calls";
pub const SERVER_CALLS_UPGRADE: &str = "arenite-server";
/// The port on the sandbox's loopback where the server answers agents with a token.
pub const AGENT_SERVER_PORT: u16 = 8077;
/// Variables of a sandbox with a token: the server's address inside, the token, and a file with it that only the sandbox's user
/// can read.
pub const AGENT_SERVER_ENV: &str = "ARENITE_SERVER";
pub const AGENT_KEY_ENV: &str = "ARENITE_API_KEY";
pub const AGENT_KEY_FILE_ENV: &str = "ARENITE_API_KEY_FILE";
pub const AGENT_KEY_FILE: &str = "/run/arenite/api-key";

/// `GET` with `Upgrade: arenite-ssh-agent`: answered when a process inside connects to [`SSH_AGENT_SOCKET`]. After the 101, the
/// connection is this process's to the server, which answers as an SSH agent. 404: the sandbox has no SSH key.
pub const SSH_AGENT_PATH: &str = "/internal/ssh-agent";
pub const SSH_AGENT_UPGRADE: &str = "arenite-ssh-agent";
/// The variable of a sandbox with an SSH key, and its value: the socket of the agent.
pub const SSH_AGENT_ENV: &str = "SSH_AUTH_SOCK";
pub const SSH_AGENT_SOCKET: &str = "/run/arenite/ssh-agent";

/// The sessions of a sandbox that its fork opens, too.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CarriedSessions {
    /// Shells with a terminal.
    pub shell: Vec<CarriedSession>,
    /// Sessions of commands.
    pub bash: Vec<CarriedSession>,
    /// Variables that the fork's request sets: those of the shells give way.
    #[serde(default)]
    pub own_env: BTreeSet<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CarriedSession {
    pub id: String,
    pub dir: String,
    /// Lines for the shell that set and unset the variables that changed since its start.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub env: String,
    /// The script that commands of the session read first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
}

/// Whether a sandbox is assigned to a client.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Assignment {
    /// Created ahead of demand. Main command, hooks and proxy wait until it is assigned.
    Pooled,
    /// A client's sandbox.
    #[default]
    Assigned,
}

/// The guest of a pod, which the server reaches over TCP: the directory with its program, the program's name, and its port.
pub const POD_DIR: &str = "/.arenite";
pub const POD_PROGRAM: &str = "arenite";
pub const POD_PORT: u16 = 8901;
/// Where the pod's token is, and its name there.
pub const POD_TOKEN_DIR: &str = "/.arenite-token";
pub const POD_TOKEN_NAME: &str = "token";
/// The two together.
pub const POD_TOKEN_FILE: &str = "/.arenite-token/token";
/// Variables of the guest of a pod: the public keys of servers that it serves, separated by commas, and the sandbox's id, if it is
/// known at the pod's start.
pub const POD_KEYS_ENV: &str = "ARENITE_SERVER_KEYS";
pub const POD_ID_ENV: &str = "ARENITE_SANDBOX_ID";
/// `GET`, by the engine: [`PodFacts`].
pub const POD_PATH: &str = "/internal/pod";
/// `GET`, by the engine: [`PodUsage`].
pub const POD_USAGE_PATH: &str = "/internal/pod/usage";
/// `POST`, by the engine: stops all processes of the pod but the guest, or continues them.
pub const POD_FREEZE_PATH: &str = "/internal/pod/freeze";
pub const POD_THAW_PATH: &str = "/internal/pod/thaw";

/// What the guest of a pod knows, and the server does not.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodFacts {
    /// The pod's service account token, with which it proves which pod it is. Empty: there is none.
    pub token: String,
    /// The image's environment.
    pub env: BTreeMap<String, String>,
    /// The image's directory.
    pub workdir: Option<String>,
    /// All its processes are stopped.
    pub is_frozen: bool,
}

/// What a pod uses, as it sees it itself.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct PodUsage {
    pub memory_bytes: u64,
    pub cpu_nanoseconds: u64,
    pub pids: u64,
    pub oom_kills: Option<u64>,
    pub received_bytes: Option<u64>,
    pub sent_bytes: Option<u64>,
}

/// Names of the descriptors that the engine gives to a sandbox's first process. The listener that the host dials.
pub const LISTENER: &str = "listener";
/// Under gVisor: the listener on which the server asks the sandbox's first process to save the others.
pub const KEEPER: &str = "keeper";
/// Instead of the listener under gVisor: a socket with messages that carry a connection each.
pub const CONNECTIONS: &str = "connections";
/// Instead of the listener in a container under gVisor: the proof with which the guest connects to the server for such messages.
pub const PROOF: &str = "proof";
/// The guest's configuration: see [`GuestConfig`].
pub const CONFIG: &str = "configuration";
/// The output of a build step's command. The first process of a build step runs that command alone.
pub const OUTPUT: &str = "output";
/// The pipe for a build step's exit code.
pub const STATUS: &str = "status";

/// The guest's configuration: JSON, read once from the descriptor [`CONFIG`], or from a file in development.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestConfig {
    pub sandbox_id: String,
    /// While it is pooled: its id.
    pub sandbox_name: String,
    pub image: String,
    /// Environment of every command: the image's, then the spec's over it.
    pub env: BTreeMap<String, String>,
    /// Default directory of commands; unset: the user's home.
    pub workdir: Option<String>,
    /// The user that commands run as, a name of the image's `/etc/passwd`; unset: `gem` if it exists, else root.
    pub user: Option<String>,
    /// The main command, run once at start.
    pub args: Vec<String>,
    pub ports: Vec<u16>,
    pub assignment: Assignment,
    /// What isolates the sandbox.
    pub tier: Tier,
    /// The certificate in PEM of the authority that its programs have to trust: with secrets, the egress proxy ends TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// The sessions of its parent, which a fork opens before it answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<CarriedSessions>,
}

/// The request-specific part of a pooled sandbox's configuration.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Become {
    pub config: GuestConfig,
    /// Its host name, which the engine has already set; empty: it was created with its name.
    pub hostname: String,
}

/// What a guest learns when its processes were restored. Its memory says that it is of the sandbox that was saved.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Restored {
    pub config: GuestConfig,
    /// Its host name, which its kernel has already.
    pub hostname: String,
    /// The content of `/etc/resolv.conf`.
    pub resolver: String,
}

/// Activity in a sandbox without a waiting call.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Activity {
    /// A client's work, such as `a command`; none: the sandbox is idle unless it is called.
    pub running: Option<String>,
}

/// The content of a sandbox's `/etc/hosts`.
pub fn hosts_file(hostname: &str) -> String {
    format!("127.0.0.1\tlocalhost\n127.0.1.1\t{hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n")
}

impl GuestConfig {
    /// The directory that commands start in, if one is configured: `WORKSPACE` of the environment, as in AIO Sandbox, over
    /// `workdir`.
    pub fn default_dir(&self) -> Option<&str> {
        let workspace = self.env.get("WORKSPACE").map(String::as_str).filter(|dir| dir.starts_with('/'));
        workspace.or(self.workdir.as_deref())
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    pub protocol: u32,
    pub version: String,
    pub sandbox_id: String,
    /// Milliseconds since the guest started.
    pub uptime_ms: u64,
}

/// One call that a process inside the sandbox made to the guest's own port.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct InsideStep {
    pub method: String,
    /// Path with its query.
    pub path: String,
    /// RFC 3339, UTC.
    pub started_at: String,
    pub duration_ms: f64,
    pub status: u16,
    /// The request's body, cut to 64 KiB, when it is JSON.
    pub arguments: Option<serde_json::Value>,
    /// The answer's body, cut to 64 KiB, when it is JSON.
    pub observation: Option<serde_json::Value>,
    /// The number of unread steps that were dropped before this one.
    pub dropped_before: u64,
}
