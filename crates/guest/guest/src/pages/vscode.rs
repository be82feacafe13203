//! VS Code, served by code-server.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::start::{Launch, home};
use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::workers::Kind;

/// The default user settings, written unless they exist: no telemetry, and no prompts to sign in or to trust the workspace.
fn settings() -> String {
    let settings = json!({
        "telemetry.telemetryLevel": "off",
        "update.mode": "none",
        "update.showReleaseNotes": false,
        "extensions.autoCheckUpdates": false,
        "extensions.autoUpdate": "off",
        "extensions.ignoreRecommendations": true,
        "security.workspace.trust.enabled": false,
        "workbench.enableExperiments": false,
        "workbench.settings.enableNaturalLanguageSearch": false,
        "workbench.startupEditor": "none",
        "workbench.secondarySideBar.defaultVisibility": "hidden",
        "chat.disableAIFeatures": true,
        "chat.commandCenter.enabled": false,
        "window.autoDetectColorScheme": true,
        "npm.fetchOnlinePackageInfo": false,
        "typescript.disableAutomaticTypeAcquisition": true,
    });
    format!("{settings:#}\n")
}

pub(super) async fn launch(runtime: &Runtime, command: String, dir: &Path, socket: &str) -> io::Result<Launch> {
    // Without this file, it would create one with a password.
    let config = dir.join("config.yaml");
    std::fs::write(&config, "auth: none\n")?;
    let data = home(runtime).join(".local/share/code-server");
    if let Err(error) = write_settings(runtime, data.join("User")).await {
        tracing::warn!(%error, "VS Code's settings could not be written");
    }
    let argv = [
        &command,
        "--config",
        &config.display().to_string(),
        "--socket",
        socket,
        "--socket-mode",
        "600",
        "--auth",
        "none",
        "--user-data-dir",
        &data.display().to_string(),
        "--disable-telemetry",
        "--disable-update-check",
        "--disable-workspace-trust",
        "--disable-getting-started-override",
        // The gateway previews ports, and knows which ones it must not.
        "--disable-proxy",
        "--ignore-last-opened",
        &runtime.default_dir().display().to_string(),
    ];
    Ok(Launch { argv: argv.map(str::to_owned).into(), env: Vec::new() })
}

/// Written with the user's rights: the directory belongs to the user and may hold links.
async fn write_settings(runtime: &Runtime, dir: PathBuf) -> Result<(), Failure> {
    let write = move |_: &_| {
        let file = dir.join("settings.json");
        let failed = |error: io::Error| Failure::io(error, &file.display().to_string());
        std::fs::create_dir_all(&dir).map_err(failed)?;
        match std::fs::File::options().write(true).create_new(true).open(&file) {
            Ok(mut new) => new.write_all(settings().as_bytes()).map_err(failed),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(error) => Err(failed(error)),
        }
    };
    runtime.workers.run(Kind::Brief, &runtime.user, write).await
}
