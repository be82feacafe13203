//! The upstream proxy and its credentials.

use std::fmt;
use std::time::Duration;

use axum::http::HeaderValue;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use percent_encoding::percent_decode_str;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

use super::pattern::host_and_port;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Command, Exit, Signal};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::shells::CommandShell;

/// Timeout of the command that prints credentials.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of its output.
const MAX_CREDENTIALS: u64 = 8 << 10;
const MAX_COMMAND: usize = 4 << 10;

#[derive(Clone, PartialEq, Eq)]
pub(super) struct Upstream {
    pub(super) host: String,
    pub(super) port: u16,
    credentials: Option<Credentials>,
    /// A command that prints new credentials.
    pub(super) command: Option<String>,
}

#[derive(Clone, PartialEq, Eq)]
struct Credentials {
    username: String,
    password: String,
}

/// Leaves out the credentials, so that no log contains them.
impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({})", self.address())
    }
}

impl Upstream {
    /// Parses `[http://][user:pass@]host:port`. Errors never repeat the text, which may hold a password.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        if !scheme.eq_ignore_ascii_case("http") {
            return Err("an upstream is spoken to over http".to_owned());
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (credentials, authority) = match rest.rsplit_once('@') {
            Some((credentials, authority)) => (Some(Credentials::read(credentials, true)?), authority),
            None => (None, rest),
        };
        let invalid = || "an upstream is written [user:password@]host:port".to_owned();
        let (host, port) = host_and_port(authority).map_err(|_| invalid())?;
        let valid = |c: char| c.is_ascii_alphanumeric() || "-_.:".contains(c);
        if host.is_empty() || host.len() > 253 || !host.chars().all(valid) {
            return Err(invalid());
        }
        Ok(Self { host, port: port.ok_or_else(invalid)?, credentials, command: None })
    }

    pub(super) fn address(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }

    pub(super) fn username(&self) -> Option<String> {
        self.credentials.as_ref().map(|c| c.username.clone())
    }

    /// The value of `Proxy-Authorization`.
    pub(super) fn authorization(&self) -> Option<HeaderValue> {
        let Credentials { username, password } = self.credentials.as_ref()?;
        let mut value =
            HeaderValue::from_str(&format!("Basic {}", BASE64_STANDARD.encode(format!("{username}:{password}")))).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// The same upstream with new credentials from its command.
    pub(super) async fn renewed(&self, runtime: &Runtime) -> Result<Self, String> {
        let Some(command) = &self.command else { return Ok(self.clone()) };
        let told = tell(runtime, command).await?;
        let credentials = Credentials::read(told.trim(), false)?;
        Ok(Self { credentials: Some(credentials), ..self.clone() })
    }

    pub(super) fn with_command(self, command: Option<String>) -> Result<Self, String> {
        let command = command.filter(|c| !c.trim().is_empty());
        match &command {
            Some(c) if c.len() > MAX_COMMAND || c.contains('\0') => {
                Err(format!("`auth_cmd` is longer than {MAX_COMMAND} bytes or holds a NUL byte"))
            }
            _ => Ok(Self { command, ..self }),
        }
    }
}

impl Credentials {
    fn read(text: &str, encoded: bool) -> Result<Self, String> {
        let (username, password) = text.split_once(':').ok_or("credentials are written user:password")?;
        let plain = |text: &str| match encoded {
            true => percent_decode_str(text).decode_utf8_lossy().into_owned(),
            false => text.to_owned(),
        };
        let (username, password) = (plain(username), plain(password));
        match username.is_empty() || [&username, &password].iter().any(|t| t.chars().any(char::is_control)) {
            true => Err("credentials need a user, and no control characters".to_owned()),
            false => Ok(Self { username, password }),
        }
    }
}

/// The output of a command, run as the sandbox's user. Its standard error is discarded, since its content is unknown.
async fn tell(runtime: &Runtime, command: &str) -> Result<String, String> {
    let failed = |e: &dyn fmt::Display| format!("`auth_cmd` could not be run: {e}");
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|e| failed(&e))?;
    let null = || std::fs::File::options().read(true).write(true).open("/dev/null").map(Into::into);
    let env = runtime.environment(&runtime.user, &[]);
    let shell = CommandShell::find(&env).ok_or_else(|| failed(&Requirement::SHELL.message()))?;
    let command = Command {
        argv: shell.run(command),
        env,
        cwd: runtime.default_dir().display().to_string(),
        user: &runtime.user,
        stdio: [null().map_err(|e| failed(&e))?, write, null().map_err(|e| failed(&e))?],
        controlling_tty: false,
    };
    let pipe = Receiver::from_owned_fd(read).map_err(|e| failed(&e))?;
    let mut child = runtime.processes.spawn(command).await.map_err(|e| failed(&e))?;
    let mut told = Vec::new();
    let answer = async {
        let read = pipe.take(MAX_CREDENTIALS + 1).read_to_end(&mut told).await;
        (read, child.wait().await)
    };
    let outcome = timeout(PATIENCE, answer).await;
    let (pid, marker) = (child.pid, child.marker);
    if outcome.is_err() || told.len() as u64 > MAX_CREDENTIALS {
        tokio::task::spawn_blocking(move || process::kill_members(Some(pid), &marker, Signal::KILL));
    }
    match outcome {
        Err(_) => Err(format!("`auth_cmd` did not end within {} s", PATIENCE.as_secs())),
        Ok((Err(error), _)) => Err(failed(&error)),
        Ok(_) if told.len() as u64 > MAX_CREDENTIALS => Err(format!("`auth_cmd` says more than {MAX_CREDENTIALS} bytes")),
        Ok((_, Exit::Code(0))) => String::from_utf8(told).map_err(|_| "`auth_cmd` says what is not text".to_owned()),
        Ok((_, exit)) => Err(format!("`auth_cmd` ended with code {}", exit.shell_code())),
    }
}

#[cfg(test)]
mod tests {
    use super::Upstream;

    #[test]
    fn upstreams_are_read_and_never_shown_with_a_password() {
        let upstream = Upstream::read("http://me:p%40ss:x@Proxy.example:3128/").unwrap();
        assert_eq!((upstream.address(), upstream.username()), ("proxy.example:3128".to_owned(), Some("me".to_owned())));
        // me:p@ss:x
        assert_eq!(upstream.authorization().unwrap().to_str().unwrap(), "Basic bWU6cEBzczp4");
        assert!(!format!("{upstream:?}").contains("ss"));
        assert_eq!(Upstream::read("[::1]:81").unwrap().address(), "[::1]:81");
        for text in ["", "host", "host:0", "https://a:1", "sekrit@a:1", ":sekrit@a:1", "u:sekrit@", "u:sekrit\u{1}@a:1", "a b:1"]
        {
            let error = Upstream::read(text).unwrap_err();
            assert!(!error.contains("sekrit"), "{error}");
        }
    }
}
