//! Users and passwords of registries, from Docker's configuration: what `docker login` wrote there, or a credential helper.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;

/// Maximum size of the file, and of a helper's answer, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// Maximum time that a helper takes: it may ask a key store over the network.
const HELPER_TIMEOUT: Duration = Duration::from_secs(15);
/// The key of Docker's own registry.
const DEFAULT_KEY: &str = "https://index.docker.io/v1/";

/// How a client signs in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Credentials {
    Password {
        user: String,
        password: String,
    },
    /// Exchanged for a token of each repository.
    IdentityToken(String),
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(…)")
    }
}

impl Credentials {
    /// The value of an `Authorization` header, if it is a password.
    pub(super) fn basic(&self) -> Option<String> {
        match self {
            Self::Password { user, password } => Some(format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))),
            Self::IdentityToken(_) => None,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DockerConfig {
    auths: BTreeMap<String, Auth>,
    cred_helpers: BTreeMap<String, String>,
    creds_store: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Auth {
    /// `user:password` in Base64.
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Auth(…)")
    }
}

/// Docker's configuration of the user that runs this process.
pub fn docker_config_file() -> Option<PathBuf> {
    let dir = std::env::var_os("DOCKER_CONFIG").filter(|dir| !dir.is_empty()).map(PathBuf::from);
    let dir = dir.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".docker")))?;
    Some(dir.join("config.json"))
}

/// The credentials for a registry; none if the file doesn't exist or has none. The error says why they can't be used.
pub(super) fn find(file: &Path, registry: &str) -> Result<Option<Credentials>, String> {
    let mut text = Vec::new();
    match std::fs::File::open(file) {
        Ok(opened) => {
            opened.take(MAX_BYTES).read_to_end(&mut text).map_err(|error| format!("could not read {file:?}: {error}"))?
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("could not read {file:?}: {error}")),
    };
    // The message of the parser could show a password.
    let config: DockerConfig = serde_json::from_slice(&text).map_err(|_| format!("{file:?} is not a configuration of Docker"))?;
    let keys = keys(registry);
    let helper = keys.iter().find_map(|key| config.cred_helpers.get(key));
    if let Some(helper) = helper {
        return ask_helper(helper, &keys[0]);
    }
    // Keys may be written as URLs.
    let bare = |key: &str| {
        let key = key.trim_start_matches("https://").trim_start_matches("http://");
        key.split('/').next().unwrap_or_default().to_owned()
    };
    let known = |(key, _): &(&String, &Auth)| keys.contains(*key) || (registry != "docker.io" && bare(key) == registry);
    if let Some(found) = config.auths.iter().find(known).and_then(|(_, auth)| auth.credentials().transpose()) {
        return found.map(Some).map_err(|()| format!("the entry for {registry} in {file:?} is malformed"));
    }
    match &config.creds_store {
        Some(store) => ask_helper(store, &keys[0]),
        None => Ok(None),
    }
}

/// The names under which Docker keeps a registry's credentials.
fn keys(registry: &str) -> Vec<String> {
    if registry == "docker.io" {
        return [DEFAULT_KEY, "docker.io", "index.docker.io", "https://index.docker.io/v1"].map(str::to_owned).to_vec();
    }
    vec![registry.to_owned(), format!("https://{registry}")]
}

impl Auth {
    /// None if it is empty, as Docker leaves it beside a store of credentials.
    fn credentials(&self) -> Result<Option<Credentials>, ()> {
        if !self.identitytoken.is_empty() {
            return Ok(Some(Credentials::IdentityToken(self.identitytoken.clone())));
        }
        if !self.username.is_empty() {
            return Ok(Some(Credentials::Password { user: self.username.clone(), password: self.password.clone() }));
        }
        if self.auth.is_empty() {
            return Ok(None);
        }
        let plain = STANDARD.decode(self.auth.trim_end_matches('\0')).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let plain = plain.ok_or(())?;
        let (user, password) = plain.split_once(':').ok_or(())?;
        let password = password.trim_end_matches('\0');
        Ok(Some(Credentials::Password { user: user.to_owned(), password: password.to_owned() }))
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    username: String,
    secret: String,
}

/// Runs `docker-credential-NAME get`.
fn ask_helper(name: &str, registry: &str) -> Result<Option<Credentials>, String> {
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) {
        return Err(format!("{name:?} is not the name of a credential helper"));
    }
    let program = format!("docker-credential-{name}");
    let failed = |what: String| format!("the credential helper {program} {what}");
    let mut child = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(format!("could not be started: {error}")))?;
    let mut input = child.stdin.take().expect("it has a pipe");
    // It may have ended without reading.
    let _ = input.write_all(registry.as_bytes());
    drop(input);
    let answer = read_in_time(&mut child);
    if answer.is_none() {
        // It may have ended just now.
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| failed(format!("could not be waited for: {error}")))?;
    let answer = answer.ok_or_else(|| failed(format!("did not answer within {HELPER_TIMEOUT:?}")))?;
    if !status.success() {
        let text = String::from_utf8_lossy(&answer);
        return if text.contains("credentials not found") { Ok(None) } else { Err(failed(format!("failed: {status}"))) };
    }
    let answer: Answer = serde_json::from_slice(&answer).map_err(|_| failed("answered without credentials".to_owned()))?;
    Ok(Some(match answer.username.as_str() {
        "<token>" => Credentials::IdentityToken(answer.secret),
        _ => Credentials::Password { user: answer.username, password: answer.secret },
    }))
}

fn read_in_time(child: &mut Child) -> Option<Vec<u8>> {
    let output = child.stdout.take().expect("it has a pipe");
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = output.take(MAX_BYTES).read_to_end(&mut bytes);
        // Nobody waits any more after the timeout.
        let _ = sender.send(read.map(|_| bytes));
    });
    receiver.recv_timeout(HELPER_TIMEOUT).ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_found_under_each_name_that_docker_writes() {
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("config.json");
        let secret = STANDARD.encode("u:p:q");
        std::fs::write(
            &file,
            format!(
                r#"{{"auths": {{"localhost:5000": {{"auth": "{secret}"}}, "https://r.example/v2/": {{"username": "a", "password": "b"}},
                "https://index.docker.io/v1/": {{"identitytoken": "t"}}, "bad.example": {{"auth": "!"}}, "empty.example": {{}}}}}}"#
            ),
        )
        .unwrap();
        let password = |user: &str, password: &str| Credentials::Password { user: user.into(), password: password.into() };
        for (registry, expected) in [
            ("localhost:5000", Some(password("u", "p:q"))),
            ("r.example", Some(password("a", "b"))),
            ("docker.io", Some(Credentials::IdentityToken("t".into()))),
            ("empty.example", None),
            ("localhost:5001", None),
            ("example", None),
        ] {
            assert_eq!(find(&file, registry).unwrap(), expected, "{registry}");
        }
        assert!(find(&file, "bad.example").unwrap_err().contains("bad.example"));
        assert_eq!(find(&scratch.path().join("missing"), "r.example").unwrap(), None);
        std::fs::write(&file, r#"{"auths": {"r.example": "secret"}}"#).unwrap();
        assert!(!find(&file, "r.example").unwrap_err().contains("secret"));
        std::fs::write(&file, r#"{"credHelpers": {"r.example": "../x"}}"#).unwrap();
        assert!(find(&file, "r.example").unwrap_err().contains("not the name"));
        std::fs::write(&file, r#"{"credsStore": "is-not-installed"}"#).unwrap();
        assert!(find(&file, "r.example").unwrap_err().contains("docker-credential-is-not-installed"));
    }

    #[test]
    fn secrets_are_not_in_debug_output() {
        let shown = format!("{:?}", Credentials::IdentityToken("secret".into()));
        assert!(!shown.contains("secret"));
    }
}
