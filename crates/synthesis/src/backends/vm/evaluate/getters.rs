//! OSWorld's getters, by their names: what an evaluation reads from a VM.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::super::driver::{Output, VirtualMachine};
use super::super::osworld::table;
use super::super::setup::{self, Params, Run, Setting, chrome, scripts, text, texts};
use super::Wrong;
use crate::answer::random_hex;
use crate::error::{SynthesisError, invalid};

/// Bytes of all files of one evaluation.
const MAX_BYTES: usize = 512 << 20;
const MOMENT: Duration = Duration::from_secs(30);
/// Longest file name, in characters.
const MAX_NAME: usize = 60;

/// The supported getters.
const GETTERS: [&str; 23] = [
    "accessibility_tree",
    "active_tab_info",
    "active_url_from_accessTree",
    "bookmarks",
    "chrome_font_size",
    "cloud_file",
    "default_search_engine",
    "enable_do_not_track",
    "enable_enhanced_safety_browsing",
    "list_directory",
    "open_tabs_info",
    "profile_name",
    "rule",
    "vm_command_error",
    "vm_command_line",
    "vm_file",
    "vm_platform",
    "vm_screen_size",
    "vm_terminal_output",
    "vm_wallpaper",
    "vm_window_size",
    "vm_desktop_path",
    "chrome_language",
];

/// Locations of Chrome's settings.
const PROFILES: [&str; 3] = [".config/google-chrome", ".config/chromium", "snap/chromium/common/chromium"];

const TREE: &str = r#"
import json, os, sys
def tree(path):
    node = {"type": "directory", "name": os.path.basename(path), "children": []}
    for entry in sorted(os.scandir(path), key=lambda entry: entry.name):
        if entry.is_dir(follow_symlinks=False):
            node["children"].append(tree(entry.path))
        else:
            node["children"].append({"type": "file", "name": entry.name})
    return node
print(json.dumps(tree(sys.argv[1].rstrip("/") or "/")))
"#;

/// The result of a getter.
#[derive(Debug, PartialEq)]
pub(super) enum Found {
    /// Nothing was found, which is not an error.
    Nothing,
    Value(Value),
    /// A file of the evaluation's folder, by its name there.
    File(String),
    Files(Vec<Option<String>>),
}

/// Reads from one VM for one evaluation.
pub(super) struct Getting<'a> {
    vm: &'a dyn VirtualMachine,
    setting: &'a Setting,
    run: Run<'a>,
    dir: &'a Path,
    bytes: usize,
}

impl From<SynthesisError> for Wrong {
    fn from(why: SynthesisError) -> Self {
        Self::Other(why)
    }
}

impl<'a> Getting<'a> {
    pub(super) fn new(vm: &'a dyn VirtualMachine, setting: &'a Setting, dir: &'a Path) -> Self {
        Self { vm, setting, run: Run::new(vm, setting), dir, bytes: 0 }
    }

    /// `folder`: the subfolder of the evaluation's folder for this getter's files.
    pub(super) async fn get(&mut self, config: &Value, folder: &str) -> Result<Found, Wrong> {
        let mut config = config.clone();
        self.run.fill(&mut config).await?;
        let Value::Object(config) = config else { return Err(Wrong::Evaluator(invalid("a getter has to be an object"))) };
        let kind = config.get("type").and_then(Value::as_str).unwrap_or_default();
        if !GETTERS.contains(&kind) {
            return Err(Wrong::Evaluator(invalid(format!("there is no getter {kind:?}; there are {}", GETTERS.join(", ")))));
        }
        self.found(kind, &config, folder).await
    }

    async fn found(&mut self, kind: &str, config: &Params, folder: &str) -> Result<Found, Wrong> {
        let value = match kind {
            "rule" => config.get("rules").cloned().ok_or_else(|| Wrong::Evaluator(invalid("a rule needs rules")))?,
            "vm_file" => return self.files(config, folder, false).await,
            "cloud_file" => return self.files(config, folder, true).await,
            "vm_command_line" => self.command(config).await?.stdout.into(),
            "vm_command_error" => self.command(config).await?.stderr.into(),
            "vm_terminal_output" => self.vm.terminal().await?.into(),
            "accessibility_tree" => self.vm.accessibility().await?.into(),
            "vm_screen_size" => {
                let (width, height) = self.vm.size().await?;
                json!({ "width": width, "height": height })
            }
            "vm_platform" => self.shell("uname -s").await?.stdout.trim().into(),
            "vm_desktop_path" => {
                let said = self.shell("xdg-user-dir DESKTOP 2>/dev/null || printf %s \"$HOME/Desktop\"").await?;
                said.stdout.trim().into()
            }
            "vm_window_size" => self.window(text(config, "app_class_name").map_err(Wrong::Evaluator)?).await?,
            "vm_wallpaper" => return self.wallpaper(config, folder).await,
            "list_directory" => {
                let path = self.run.path(text(config, "path").map_err(Wrong::Evaluator)?).await?;
                let command = ["python3".to_owned(), "-c".to_owned(), TREE.to_owned(), path];
                let done = self.vm.run(&command, MOMENT).await?;
                serde_json::from_str(&done.stdout).unwrap_or_default()
            }
            "open_tabs_info" | "active_tab_info" => {
                let tabs = chrome::tabs(self.vm, self.run.port(), 0).await?;
                let mut told = tabs.into_iter().map(|tab| json!({ "title": tab.title, "url": tab.url }));
                if kind == "open_tabs_info" { told.collect() } else { told.next().unwrap_or_default() }
            }
            "active_url_from_accessTree" => self.address_bar(config).await?,
            _ => self.chrome(kind).await?,
        };
        Ok(if value.is_null() { Found::Nothing } else { Found::Value(value) })
    }

    async fn shell(&self, script: &str) -> Result<Output, SynthesisError> {
        self.vm.run(&["sh".to_owned(), "-c".to_owned(), script.to_owned()], MOMENT).await
    }

    async fn command(&mut self, config: &Params) -> Result<Output, Wrong> {
        let command = self.run.command(config).await.map_err(Wrong::Evaluator)?;
        Ok(self.vm.run(&command, setup::COMMAND).await?)
    }

    /// The files that a getter names; `gives` selects which of several are judged.
    async fn files(&mut self, config: &Params, folder: &str, of_cloud: bool) -> Result<Found, Wrong> {
        let is_many = config.get("multi").and_then(Value::as_bool).unwrap_or(false);
        let several = |name: &str| {
            if is_many { texts(config, name) } else { text(config, name).map(|one| vec![one.to_owned()]) }
        };
        let paths = several("path").map_err(Wrong::Evaluator)?;
        let names = match config.get("dest") {
            Some(_) => several("dest").map_err(Wrong::Evaluator)?,
            None => paths.clone(),
        };
        if paths.is_empty() || paths.len() != names.len() || paths.len() > 100 {
            return Err(Wrong::Evaluator(invalid("path and dest have to be of one length, from 1 to 100")));
        }
        let gives: Vec<usize> = match config.get("gives") {
            None => vec![0],
            Some(gives) => {
                serde_json::from_value(gives.clone()).map_err(|error| Wrong::Evaluator(invalid(format!("gives: {error}"))))?
            }
        };
        if gives.is_empty() || gives.iter().any(|at| *at >= paths.len()) {
            return Err(Wrong::Evaluator(invalid("gives has to name places in path")));
        }
        let mut kept = Vec::with_capacity(paths.len());
        for (at, (path, name)) in paths.iter().zip(&names).enumerate() {
            let content = if of_cloud { Some(self.of_cloud(path, name).await?) } else { self.of_vm(path).await? };
            kept.push(match content {
                Some(content) => Some(self.keep(folder, name, at, &content).await?),
                None => None,
            });
        }
        match gives.as_slice() {
            [one] => Ok(kept.swap_remove(*one).map_or(Found::Nothing, Found::File)),
            many => Ok(Found::Files(many.iter().map(|at| kept[*at].clone()).collect())),
        }
    }

    /// A file of the VM; none if it does not exist.
    async fn of_vm(&mut self, path: &str) -> Result<Option<Vec<u8>>, Wrong> {
        let path = self.run.path(path).await?;
        match self.vm.read(&path).await {
            Ok(content) => Ok(Some(content)),
            // VMs report a missing file in different texts; this command reports it as an exit code.
            Err(why) => match self.vm.run(&["test", "-f", &path].map(str::to_owned), MOMENT).await {
                Ok(Output { code: 1, .. }) => Ok(None),
                _ => Err(Wrong::Other(why)),
            },
        }
    }

    /// A file of the network: from the configured folder if it exists there, otherwise fetched by the VM. A file that a VM
    /// fetches is as untrusted as the VM, so expected files should be in the folder.
    async fn of_cloud(&mut self, url: &str, name: &str) -> Result<Vec<u8>, Wrong> {
        let last = url.split(['?', '#']).next().unwrap_or(url).rsplit('/').next().unwrap_or_default();
        if let Some(root) = self.setting.files.clone() {
            let names = [name.to_owned(), last.to_owned()];
            let read = tokio::task::spawn_blocking(move || {
                names.iter().filter(|name| !name.is_empty()).find_map(|name| setup::local(&root, name).ok())
            });
            if let Some(content) = read.await.map_err(SynthesisError::from)? {
                return Ok(content);
            }
        }
        if !url.starts_with("https://") && !url.starts_with("http://") {
            return Err(Wrong::Evaluator(invalid(format!("{url:?} is no address of http or https"))));
        }
        let path = format!("/tmp/arenite-{}", random_hex(12));
        let most = setup::MAX_DOWNLOAD.to_string();
        let fetched = self.run.script(url, scripts::DOWNLOAD, &[url, &path, &most], setup::DOWNLOADING).await;
        fetched.map_err(|why| why.hinted(format!("put {last:?} into the configured folder of files, or let the VM reach it")))?;
        let content = self.vm.read(&path).await;
        let _ = self.vm.run(&["rm", "-f", &path].map(str::to_owned), MOMENT).await;
        Ok(content?)
    }

    /// Writes a file for the metrics, under a name that can't leave the folder.
    async fn keep(&mut self, folder: &str, name: &str, at: usize, content: &[u8]) -> Result<String, SynthesisError> {
        self.bytes = self.bytes.saturating_add(content.len());
        if self.bytes > MAX_BYTES {
            return Err(invalid(format!("the files of one evaluation are over {} MiB", MAX_BYTES >> 20)));
        }
        let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
        let plain = |c: char| if c.is_alphanumeric() || " ._-()".contains(c) { c } else { '_' };
        // The end is kept, because the file's type may depend on it.
        let from = last.chars().count().saturating_sub(MAX_NAME);
        let mut safe: String = last.chars().skip(from).map(plain).collect();
        if safe.trim_matches('.').is_empty() {
            safe = format!("file-{at}");
        }
        let place = self.dir.join(folder);
        let full = |error| SynthesisError::io("no room for what is looked at", error);
        tokio::fs::create_dir_all(&place).await.map_err(full)?;
        if place.join(&safe).exists() {
            safe = format!("{at}-{safe}");
        }
        tokio::fs::write(place.join(&safe), content).await.map_err(full)?;
        Ok(format!("{folder}/{safe}"))
    }

    async fn wallpaper(&mut self, config: &Params, folder: &str) -> Result<Found, Wrong> {
        let said = self.shell("gsettings get org.gnome.desktop.background picture-uri").await?;
        let path = said.stdout.trim().trim_matches('\'').trim_start_matches("file://").to_owned();
        if path.is_empty() {
            return Ok(Found::Nothing);
        }
        let name = config.get("dest").and_then(Value::as_str).unwrap_or("wallpaper.png");
        Ok(match self.of_vm(&path).await? {
            Some(content) => Found::File(self.keep(folder, name, 0, &content).await?),
            None => Found::Nothing,
        })
    }

    /// A property of the first window of a class.
    async fn window(&self, class: &str) -> Result<Value, SynthesisError> {
        let listed = self.vm.run(&["wmctrl", "-lGx"].map(str::to_owned), MOMENT).await?;
        let sizes = listed.stdout.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split_whitespace().take(7).collect();
            let is_it = fields.get(6)?.split('.').any(|part| part == class) || *fields.get(6)? == class;
            is_it.then_some(())?;
            Some(json!({ "width": fields[4].parse::<u32>().ok()?, "height": fields[5].parse::<u32>().ok()? }))
        });
        Ok(sizes.into_iter().next().unwrap_or_default())
    }

    /// The text of Chrome's address bar, which omits the scheme.
    async fn address_bar(&self, config: &Params) -> Result<Value, SynthesisError> {
        let Some(xml) = self.vm.accessibility().await? else { return Ok(Value::Null) };
        let prefix = config.get("goto_prefix").and_then(Value::as_str).unwrap_or("https://");
        let mut address = None;
        table::walk(&xml, |node, around| {
            let is_chrome =
                || around.iter().any(|node| node.tag == "application" && ["Google Chrome", "Chromium"].contains(&&*node.name));
            if address.is_none() && node.name == "Address and search bar" && is_chrome() {
                address = Some(format!("{prefix}{}", node.text.trim()));
            }
        })?;
        Ok(address.into())
    }

    /// A setting of Chrome, in the format of OSWorld's getter.
    async fn chrome(&self, kind: &str) -> Result<Value, SynthesisError> {
        let file = match kind {
            "bookmarks" => "Default/Bookmarks",
            "chrome_language" => "Local State",
            _ => "Default/Preferences",
        };
        let places: Vec<String> = PROFILES.iter().map(|profile| format!("\"$HOME/{profile}/{file}\"")).collect();
        let said =
            self.shell(&format!("for f in {}; do [ -f \"$f\" ] && exec cat -- \"$f\"; done; exit 0", places.join(" "))).await?;
        let settings: Value = serde_json::from_str(&said.stdout).unwrap_or_default();
        let is_on = |pointer: &str| {
            let is_on = settings.pointer(pointer).and_then(Value::as_bool).unwrap_or(false);
            Value::from(if is_on { "true" } else { "false" })
        };
        let or = |pointer: &str, default: &str| settings.pointer(pointer).cloned().unwrap_or_else(|| default.into());
        Ok(match kind {
            "bookmarks" => settings["roots"].clone(),
            "chrome_language" => or("/intl/app_locale", "en-US"),
            "enable_do_not_track" => is_on("/enable_do_not_track"),
            "enable_enhanced_safety_browsing" => is_on("/safebrowsing/enhanced"),
            "default_search_engine" => or("/default_search_provider_data/template_url_data/short_name", "Google"),
            "profile_name" => settings.pointer("/profile/name").cloned().unwrap_or_default(),
            _ => settings
                .pointer("/webkit/webprefs")
                .cloned()
                .unwrap_or_else(|| json!({ "default_fixed_font_size": 13, "default_font_size": 16, "minimum_font_size": 13 })),
        })
    }
}
