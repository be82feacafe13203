//! The browser's policies, which it reads at start and whenever the file changes.

use std::io;
use std::path::Path;

use arenite_model::protocol::INSIDE_PORT;
use serde_json::{Map, Value, json};

use super::types::RestartRequest;
use arenite_guest_runtime::Runtime;

const DIRECTORY: &str = "/etc/chromium/policies/managed";
const FILE: &str = "arenite.json";

/// Settings from restarts, which override the sandbox's environment.
#[derive(Debug, Clone, Default)]
pub(super) struct Policy {
    blocked: Vec<String>,
    allowed: Vec<String>,
    /// `None`: as in the environment.
    file_dialogs: Option<Option<bool>>,
    pub(super) locale: Option<String>,
}

impl Policy {
    pub(super) fn change(&mut self, request: &RestartRequest) {
        if let Some(list) = &request.url_blocklist {
            self.blocked.clone_from(list);
        }
        if let Some(list) = &request.url_allowlist {
            self.allowed.clone_from(list);
        }
        if let Some(choice) = request.allow_file_selection_dialogs {
            self.file_dialogs = Some(choice);
        }
        if let Some(locale) = request.locale.as_ref().filter(|locale| !locale.is_empty()) {
            self.locale = Some(locale.clone());
        }
    }

    fn values(&self, runtime: &Runtime) -> Map<String, Value> {
        let config = runtime.config();
        let env = |name: &str| config.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty());
        // The browser shows no prompts and sends no reports.
        let mut values = json!({
            "AutofillAddressEnabled": false,
            "AutofillCreditCardEnabled": false,
            "BackgroundModeEnabled": false,
            "BrowserSignin": 0,
            "CommandLineFlagSecurityWarningsEnabled": false,
            "DefaultBrowserSettingEnabled": false,
            "MetricsReportingEnabled": false,
            "PasswordManagerEnabled": false,
            "PromotionsEnabled": false,
            "SyncDisabled": true,
            "DownloadDirectory": runtime.user.home.join("Downloads"),
            "PromptForDownloadLocation": false,
        });
        let mut set = |name: &str, value: Value| values[name] = value;
        if !self.blocked.is_empty() {
            set("URLBlocklist", json!(self.blocked));
        }
        if !self.allowed.is_empty() {
            set("URLAllowlist", json!(self.allowed));
        }
        let of_environment = || env("BROWSER_ALLOW_FILE_SELECTION_DIALOGS").and_then(boolean);
        if let Some(allowed) = self.file_dialogs.unwrap_or_else(of_environment) {
            set("AllowFileSelectionDialogs", json!(allowed));
        }
        if let Some(templates) = env("DNS_OVER_HTTPS_TEMPLATES") {
            set("DnsOverHttpsMode", json!("secure"));
            set("DnsOverHttpsTemplates", json!(templates));
        }
        if runtime.proxy_address().borrow().is_some() {
            let pac = format!("http://127.0.0.1:{INSIDE_PORT}/v1/browser/proxy.pac");
            set("ProxySettings", json!({"ProxyMode": "pac_script", "ProxyPacUrl": pac}));
        }
        match values {
            Value::Object(values) => values,
            _ => Map::new(),
        }
    }

    /// Writes the file as root: the sandbox's user can't change it.
    pub(super) fn write(&self, runtime: &Runtime) -> io::Result<()> {
        std::fs::create_dir_all(DIRECTORY)?;
        let (path, next) = (Path::new(DIRECTORY).join(FILE), Path::new(DIRECTORY).join(".arenite.next"));
        std::fs::write(&next, Value::Object(self.values(runtime)).to_string())?;
        std::fs::rename(next, path)
    }
}

fn boolean(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}
