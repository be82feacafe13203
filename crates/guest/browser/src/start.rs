//! Starts the image's browser program and waits until it answers.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use arenite_isolation::spawner::SpawnError;
use arenite_model::protocol::BROWSER_PORT;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout, timeout_at};

use super::policy::Policy;
use super::service::{BrowserError, EMPTY};
use crate::BrowserService;
use arenite_guest_cdp::{CdpError, Client};
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::process::{self, Command, Kept, OwnedProcess, Said, ScratchDir};
use arenite_guest_runtime::requirements::Requirement;
use arenite_guest_runtime::workers::Kind;

/// Timeout for the browser to answer. On an idle machine it takes a quarter of a second.
const START: Duration = Duration::from_secs(60);
/// Possible locations of Chromium: the program itself before scripts that start it.
const PROGRAM: &str = "/usr/lib/chromium/chromium";
/// The profile's directory, in the user's home.
const PROFILE: &str = ".config/browser";
/// The text before the WebSocket's address in the browser's output.
const ANNOUNCED: &str = "DevTools listening on ws://";

/// A browser that answers.
#[derive(Debug)]
pub(super) struct Started {
    pub(super) process: Kept,
    pub(super) client: Client,
    /// Its port on loopback.
    pub(super) port: u16,
    /// The path of its WebSocket, such as `/devtools/browser/…`.
    pub(super) path: String,
    pub(super) user_agent: String,
}

pub(super) async fn start(service: &Arc<BrowserService>, display: &str, policy: &Policy) -> Result<Started, BrowserError> {
    let at = |what: &'static str| move |source: io::Error| BrowserError::Io { what, source };
    let program = program(&service.runtime).ok_or(BrowserError::NoBrowser)?;
    policy.write(&service.runtime).map_err(at("its policy"))?;
    let profile = prepare(&service.runtime).await?;
    let port = free_port().await.map_err(at("a port"))?;
    service.note_port(port);
    let dir = ScratchDir::new(&service.runtime.user).map_err(at("its directory"))?;
    let (output, stderr) = process::output_pipe(&service.runtime.user).map_err(at("its output"))?;
    let child = service
        .runtime
        .processes
        .spawn(Command {
            argv: arguments(&service.runtime, program, &profile, port, policy),
            env: environment(&service.runtime, display, policy),
            cwd: service.runtime.user.home.display().to_string(),
            user: &service.runtime.user,
            stdio: [process::dev_null().map_err(at("its input"))?, stderr.try_clone().map_err(at("its output"))?, stderr],
            controlling_tty: false,
        })
        .await
        .map_err(BrowserError::NotSpawned)?;
    let said = Said::default();
    let (announce, announced) = oneshot::channel();
    let mut announce = Some(announce);
    let listening = tokio::spawn(said.clone().listen_for(output, move |text| {
        if let Some(address) = find_address(text)
            && let Some(announce) = announce.take()
        {
            // The receiver may have been dropped.
            drop(announce.send(address));
        }
    }));
    let mut process = OwnedProcess::new(child, dir);
    let deadline = Instant::now() + START;
    let announced = tokio::select! {
        announced = timeout_at(deadline, announced) => announced,
        _ = process.wait() => {
            drop(timeout(Duration::from_millis(200), listening).await);
            let how = process.wait().await.to_string();
            return Err(BrowserError::Ended { how, said: last_line(&said) });
        }
    };
    let late = || BrowserError::TooSlow { seconds: START.as_secs(), said: last_line(&said) };
    let (port, path) = announced.map_err(|_| late())?.map_err(|_| late())?;
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        user_agent: String,
    }
    let reached = async {
        let client = Client::connect(port, &path).await?;
        let version: Version = client.call("Browser.getVersion", serde_json::json!({})).await?;
        Ok::<_, CdpError>((client, version.user_agent))
    };
    let (client, user_agent) = timeout_at(deadline, reached).await.map_err(|_| late())??;
    Ok(Started { process: process.keep(), client, port, path, user_agent })
}

fn program(runtime: &Runtime) -> Option<String> {
    match std::path::Path::new(PROGRAM).is_file() {
        true => Some(PROGRAM.to_owned()),
        false => Requirement::BROWSER.commands.iter().find_map(|command| runtime.locate(command)),
    }
}

/// Creates the directories of the profile and of downloads, and removes the lock files of a running browser: none runs, and those
/// in a snapshot would be another machine's.
async fn prepare(runtime: &Runtime) -> Result<PathBuf, BrowserError> {
    let (profile, downloads) = (runtime.user.home.join(PROFILE), runtime.user.home.join("Downloads"));
    let dir = profile.clone();
    let make = move |_: &_| {
        for dir in [&dir, &downloads] {
            std::fs::create_dir_all(dir).map_err(|e| Failure::io(e, &dir.display().to_string()))?;
        }
        for mark in ["SingletonLock", "SingletonSocket", "SingletonCookie"] {
            // Usually, there is none.
            let _ = std::fs::remove_file(dir.join(mark));
        }
        Ok(())
    };
    let made = runtime.workers.run(Kind::Brief, &runtime.user, make).await;
    made.map_err(|failure: Failure| BrowserError::Io { what: "its profile", source: io::Error::other(failure.to_string()) })?;
    Ok(profile)
}

/// Returns the default port, or any free one if a program of the sandbox uses it.
async fn free_port() -> io::Result<u16> {
    match TcpListener::bind((Ipv4Addr::LOCALHOST, BROWSER_PORT)).await {
        Ok(listener) => Ok(listener.local_addr()?.port()),
        Err(_) => Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()?.port()),
    }
}

fn arguments(runtime: &Runtime, program: String, profile: &std::path::Path, port: u16, policy: &Policy) -> Vec<String> {
    let config = runtime.config();
    let env = |name: &str| config.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
    let mut arguments = vec![program, format!("--user-data-dir={}", profile.display())];
    let fixed = [
        // Sandboxes can't create namespaces, which Chromium's own sandbox needs: see docs/THREATS.md.
        "--no-sandbox",
        "--start-maximized",
        "--no-first-run",
        "--no-default-browser-check",
        "--password-store=basic",
        "--hide-crash-restore-bubble",
        "--disable-breakpad",
        "--disable-crash-reporter",
        // No page uses these features.
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-domain-reliability",
        "--disable-sync",
        // All frames of a page in one process: operations in pages reach each frame over the page's own session. Without
        // Chromium's own sandbox, a compromised renderer has the user's files anyway: see docs/THREATS.md.
        "--disable-site-isolation-trials",
        // Also disables suggestions that are pages of the browser's own: each start would load two, which doubles the work.
        "--disable-features=IsolateOrigins,site-per-process,IsolateSandboxedIframes,BackForwardCache,WebUIOmniboxPopup,WebUIOmniboxAimPopup",
        // A separate process would not isolate anything from the browser's here, and is one more to start.
        "--enable-features=NetworkServiceInProcess2",
        // No GPU: the CPU draws, including WebGL.
        "--disable-gpu",
        "--enable-unsafe-swiftshader",
        // Agents also work in tabs that are not visible.
        "--disable-background-timer-throttling",
        "--disable-backgrounding-occluded-windows",
        "--disable-renderer-backgrounding",
    ];
    arguments.extend(fixed.map(str::to_owned));
    arguments.push(format!("--remote-debugging-port={port}"));
    let language = policy.locale.as_deref().or(env("BROWSER_LANG")).unwrap_or("en-US");
    arguments.push(format!("--accept-lang={language}"));
    arguments.push(format!("--lang={}", policy.locale.as_deref().or(env("CHROME_UI_LANG")).unwrap_or(language)));
    if let Some(agent) = env("BROWSER_USER_AGENT") {
        arguments.push(format!("--user-agent={agent}"));
    }
    arguments.extend(env("BROWSER_EXTRA_ARGS").map(words).unwrap_or_default());
    arguments.push(env("HOMEPAGE").unwrap_or(EMPTY).to_owned());
    arguments
}

/// Splits a line into words, with a shell's quotes.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let (mut word, mut quote, mut has_word) = (String::new(), None, false);
    for character in line.chars() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (None, '\'' | '"') => (quote, has_word) = (Some(character), true),
            (None, _) if character.is_whitespace() => {
                if std::mem::take(&mut has_word) {
                    words.push(std::mem::take(&mut word));
                }
            }
            _ => {
                has_word = true;
                word.push(character);
            }
        }
    }
    if has_word {
        words.push(word);
    }
    words
}

fn environment(runtime: &Runtime, display: &str, policy: &Policy) -> Vec<(String, String)> {
    let mut extra = vec![("DISPLAY".to_owned(), display.to_owned())];
    let config = runtime.config();
    let language = policy.locale.as_ref().or(config.env.get("CHROME_UI_LANG")).or(config.env.get("BROWSER_LANG"));
    if let Some(language) = language {
        // On Linux, the browser's own language comes from the environment.
        extra.push(("LANGUAGE".to_owned(), language.replace('-', "_")));
    }
    runtime.environment(&runtime.user, &extra)
}

/// Finds the port and path at which the browser listens in its output.
fn find_address(said: &[u8]) -> Option<(u16, String)> {
    let text = String::from_utf8_lossy(said);
    let (_, after) = text.rsplit_once(ANNOUNCED)?;
    // The line may be incomplete.
    let (address, _) = after.split_once('\n')?;
    let (host, path) = address.trim().split_once('/')?;
    let port = host.rsplit_once(':')?.1.parse().ok()?;
    Some((port, format!("/{path}")))
}

fn last_line(said: &Said) -> String {
    said.text().lines().last().unwrap_or_default().to_owned()
}

impl From<SpawnError> for BrowserError {
    fn from(error: SpawnError) -> Self {
        Self::NotSpawned(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_once_its_line_is_whole() {
        let line = "noise\n\nDevTools listening on ws://127.0.0.1:9222/devtools/browser/a-b";
        assert_eq!(find_address(line.as_bytes()), None);
        let whole = format!("{line}\nmore");
        assert_eq!(find_address(whole.as_bytes()), Some((9222, "/devtools/browser/a-b".to_owned())));
        assert_eq!(find_address(b"DevTools listening on ws://nonsense\n"), None);
    }

    #[test]
    fn arguments_may_be_quoted() {
        assert_eq!(words(r#" --a  --b="c d" '' --e='f"g' "#), ["--a", "--b=c d", "", "--e=f\"g"]);
        assert!(words("  ").is_empty());
    }
}
