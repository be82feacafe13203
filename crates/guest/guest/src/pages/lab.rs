//! JupyterLab.

use std::io;
use std::path::Path;

use serde_json::json;

use super::start::Launch;
use arenite_guest_runtime::Runtime;

/// The default settings.
fn settings() -> String {
    let settings = json!({
        "@jupyterlab/apputils-extension:notification": { "fetchNews": "false", "checkForUpdates": false },
        "@jupyterlab/apputils-extension:themes": { "adaptive-theme": true },
    });
    settings.to_string()
}

pub(super) fn launch(runtime: &Runtime, command: String, dir: &Path, socket: &str) -> io::Result<Launch> {
    let config = dir.join("config");
    std::fs::create_dir_all(config.join("labconfig"))?;
    std::fs::write(config.join("labconfig/default_setting_overrides.json"), settings())?;
    let argv = [
        command,
        "--no-browser".to_owned(),
        format!("--ServerApp.sock={socket}"),
        "--ServerApp.sock_mode=0600".to_owned(),
        "--ServerApp.base_url=/jupyter/".to_owned(),
        format!("--ServerApp.root_dir={}", runtime.default_dir().display()),
        // No authentication: the gateway has checked the host and the origin of each request.
        "--IdentityProvider.token=".to_owned(),
        "--PasswordIdentityProvider.hashed_password=".to_owned(),
        "--ServerApp.allow_remote_access=True".to_owned(),
        "--ServerApp.allow_root=True".to_owned(),
        "--ServerApp.quit_button=False".to_owned(),
        "--LabApp.news_url=None".to_owned(),
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate".to_owned(),
        "--LabApp.extension_manager=readonly".to_owned(),
    ];
    let env = vec![("JUPYTER_CONFIG_PATH".to_owned(), config.display().to_string())];
    Ok(Launch { argv: argv.into(), env })
}
