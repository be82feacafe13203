//! Settings from a session's configuration: AgentFlow's keys, and a few of Arenite's.
//!
//! Keys about VMs that run elsewhere (`region`, `connection_type`, `host`, `port`, the ports of the guest, `client_password`,
//! `vm_path`, `snapshot_name`, `use_proxy`, `headless`) apply only to the providers that know them.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::time::Duration;

use serde_json::{Map, Value};

use super::desktop::Desktop;
use super::docker::{DockerVm, Options};
use super::driver::VirtualMachine;
use super::qemu::{AGENT, Qemu};
use crate::error::{SynthesisError, invalid};
use crate::sandboxes::{SandboxHandle, SandboxRequest};

/// Default image of QEMU VMs, which `arenite vm build` builds.
const IMAGE: &str = "vm";
/// Allowed sides of a screen, in pixels.
const SIDES: std::ops::RangeInclusive<u64> = 320..=7680;
/// Memory for a desktop with a browser and an office suite. This is a limit: nothing is reserved.
const MEMORY_MB: u64 = 4096;
const PIDS: u32 = 2048;
/// Default of `settle_seconds`: seconds between an action and the next look at the screen. Programs don't report when they have
/// processed a click.
const SETTLE: f64 = 0.3;
const MAX_SETTLE: f64 = 60.0;
/// The most steps of a setup.
const MAX_STEPS: usize = 1000;
/// The most VMs that are kept ready.
const MAX_POOL: u64 = 64;

/// The provider of a VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Provider {
    /// A sandbox's own desktop.
    Desktop,
    /// A QEMU in a sandbox.
    Qemu,
    /// A container of OSWorld's image.
    Docker,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub(super) provider: Provider,
    pub(super) screen: Option<(u64, u64)>,
    /// Steps that prepare the VM for the start of a task.
    pub(super) setup: Vec<Value>,
    pub(super) recording: bool,
    /// Whether answers include the accessibility tree.
    pub(super) tells: bool,
    pub(super) settle: Duration,
}

/// Whether Docker can run VMs here. Checked once, because it may take seconds.
///
/// # Errors
/// What is missing.
fn docker() -> Result<(), SynthesisError> {
    static ASKED: LazyLock<Result<(), SynthesisError>> = LazyLock::new(|| {
        let asked = super::docker::available();
        if let Err(error) = &asked {
            tracing::warn!("{error}: VMs of the provider docker are desktops of sandboxes instead, unless fallback is \"none\"");
        }
        asked
    });
    ASKED.clone()
}

fn provider(config: &Map<String, Value>) -> Result<Provider, SynthesisError> {
    const INSTEAD: &str = "set provider to \"desktop\", or fallback to \"desktop\"";
    let known_docker = || docker().map(|()| Provider::Docker);
    let name = |key: &str| config.get(key).filter(|value| !value.is_null()).map(|value| value.as_str().unwrap_or_default());
    let falls_back = match name("fallback") {
        None => None,
        Some("desktop") => Some(true),
        Some("none") => Some(false),
        Some(other) => return Err(invalid(format!("fallback is {other:?}, and can be \"desktop\" or \"none\""))),
    };
    match name("provider").unwrap_or("desktop") {
        "desktop" => Ok(Provider::Desktop),
        "qemu" => Ok(Provider::Qemu),
        // AgentFlow's own files name it. They should also work without Docker.
        "docker" if falls_back != Some(false) => Ok(known_docker().unwrap_or(Provider::Desktop)),
        "docker" => known_docker().map_err(|error| error.hinted(INSTEAD)),
        "aliyun" if falls_back == Some(true) => Ok(Provider::Desktop),
        "aliyun" => Err(invalid(format!("VMs of Alibaba Cloud (aliyun) are not rented from here; {INSTEAD}"))),
        other => Err(invalid(format!("provider is {other:?}, and can be \"desktop\", \"qemu\" or \"docker\""))),
    }
}

/// `[1280, 720]`, `{"width": 1280, "height": 720}` or `"1280x720"`.
fn screen(value: &Value) -> Result<(u64, u64), SynthesisError> {
    let sides = match value {
        Value::Array(sides) => match &sides[..] {
            [width, height] => width.as_u64().zip(height.as_u64()),
            _ => None,
        },
        Value::Object(sides) => {
            let side = |name| sides.get(name).and_then(Value::as_u64);
            side("width").zip(side("height"))
        }
        Value::String(sides) => {
            let split = sides.split_once(['x', 'X', '*', ',']);
            split.and_then(|(width, height)| width.trim().parse().ok().zip(height.trim().parse().ok()))
        }
        _ => None,
    };
    let fits = |sides: &(u64, u64)| SIDES.contains(&sides.0) && SIDES.contains(&sides.1);
    let (least, most) = (SIDES.start(), SIDES.end());
    sides.filter(fits).ok_or_else(|| invalid(format!("screen_size is {value}, and has to be two numbers of {least} to {most}")))
}

fn switch(config: &Map<String, Value>, key: &str, default: bool) -> Result<bool, SynthesisError> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(default),
        Some(Value::Bool(on)) => Ok(*on),
        // A variable from the environment is always a string.
        Some(Value::String(text)) => match text.to_lowercase().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" | "" => Ok(false),
            _ => Err(invalid(format!("{key} is {text:?}, and has to be true or false"))),
        },
        Some(other) => Err(invalid(format!("{key} is {other}, and has to be true or false"))),
    }
}

/// The number of VMs to keep ready.
///
/// # Errors
/// Why the number is invalid.
pub(super) fn pool_size(config: &Map<String, Value>) -> Result<usize, SynthesisError> {
    let size = match config.get("pool_size") {
        None | Some(Value::Null) => Some(0),
        Some(Value::String(text)) => text.parse().ok(),
        Some(number) => number.as_u64(),
    };
    let size = size.filter(|size| *size <= MAX_POOL);
    size.map(|size| size as usize).ok_or_else(|| invalid(format!("pool_size has to be a whole number of 0 to {MAX_POOL}")))
}

impl Settings {
    /// # Errors
    /// What is wrong with the configuration.
    pub(super) fn from_config(config: &Map<String, Value>) -> Result<Self, SynthesisError> {
        let given = |key: &str| config.get(key).filter(|value| !value.is_null());
        let provider = provider(config)?;
        if provider == Provider::Desktop
            && let Some(system) = given("os_type").and_then(Value::as_str)
            && !["ubuntu", "linux", "debian"].contains(&system.to_lowercase().as_str())
        {
            return Err(invalid(format!(
                "os_type is {system:?}, and a desktop of a sandbox is Linux; take the provider qemu for others"
            )));
        }
        let setup = match given("setup") {
            None => Vec::new(),
            Some(Value::Array(steps)) if steps.len() <= MAX_STEPS => steps.clone(),
            Some(_) => return Err(invalid(format!("setup has to be a list of at most {MAX_STEPS} steps"))),
        };
        let settle = match given("settle_seconds") {
            None => Some(SETTLE),
            Some(seconds) => seconds.as_f64().filter(|seconds| (0.0..=MAX_SETTLE).contains(seconds)),
        };
        Ok(Self {
            provider,
            screen: given("screen_size").map(screen).transpose()?,
            setup,
            recording: switch(config, "recording", false)?,
            tells: switch(config, "accessibility_tree", true)?,
            settle: Duration::from_secs_f64(
                settle.ok_or_else(|| invalid(format!("settle_seconds has to be 0 to {MAX_SETTLE}")))?,
            ),
        })
    }

    /// The sandbox in which such a VM runs. None: it runs elsewhere.
    pub(super) fn sandbox_request(&self) -> Option<SandboxRequest> {
        match self.provider {
            Provider::Docker => None,
            Provider::Desktop | Provider::Qemu => {
                // The desktop stays as long as the session, used or not.
                let mut env = BTreeMap::from([("DESKTOP_IDLE_SECONDS".to_owned(), "0".to_owned())]);
                if let Some((width, height)) = self.screen {
                    env.insert("DISPLAY_WIDTH".to_owned(), width.to_string());
                    env.insert("DISPLAY_HEIGHT".to_owned(), height.to_string());
                }
                let image = (self.provider == Provider::Qemu).then(|| IMAGE.parse().expect("the image's name is valid"));
                Some(SandboxRequest { image, env, memory_mb: Some(MEMORY_MB), pids: Some(PIDS), ..SandboxRequest::default() })
            }
        }
    }

    /// Connects to the VM.
    ///
    /// # Errors
    /// Why it is not available.
    pub(super) async fn vm(
        &self,
        handle: Option<&SandboxHandle>,
        config: &Map<String, Value>,
        owner: &str,
    ) -> Result<Box<dyn VirtualMachine>, SynthesisError> {
        match (self.provider, handle) {
            (Provider::Docker, _) => Ok(Box::new(DockerVm::make(Options::from_config(config, owner)?).await?)),
            (Provider::Desktop, Some(handle)) => Ok(Box::new(Desktop::new(handle.clone(), self.tells))),
            (Provider::Qemu, Some(handle)) => {
                let port = config.get("server_port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
                Ok(Box::new(Qemu::new(handle.clone(), port.unwrap_or(AGENT), self.tells)))
            }
            _ => Err(SynthesisError::NoSandbox),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn settings(config: Value) -> Result<Settings, SynthesisError> {
        Settings::from_config(config.as_object().unwrap())
    }

    #[test]
    fn agentflows_keys_are_taken() {
        let whole = json!({
            "provider": "docker", "fallback": "desktop", "region": "us-east-1", "os_type": "Ubuntu", "headless": true,
            "screen_size": [1920, 1080], "connection_type": "http", "host": "h", "port": 1, "pool_size": 2,
            "pool_reset": true, "snapshot_name": "init", "setup": [{"type": "sleep"}], "use_proxy": false,
            "client_password": "p", "server_port": 5000, "chromium_port": 9222, "vnc_port": 8006, "vlc_port": 8080,
            "vm_path": "/x", "recording": "true", "recording_path": "/y",
        });
        assert_eq!(pool_size(whole.as_object().unwrap()).unwrap(), 2);
        let read = settings(whole).unwrap();
        assert_eq!((read.provider, read.screen, read.recording), (Provider::Desktop, Some((1920, 1080)), true));
        let env = read.sandbox_request().unwrap().env;
        assert_eq!((env["DISPLAY_WIDTH"].as_str(), env["DISPLAY_HEIGHT"].as_str()), ("1920", "1080"));
        for size in [json!("800x600"), json!({"width": 800, "height": 600}), json!([800, 600])] {
            assert_eq!(settings(json!({"screen_size": size})).unwrap().screen, Some((800, 600)));
        }
    }

    #[test]
    fn what_can_not_be_is_refused_in_words() {
        for (config, said) in [
            (json!({"provider": "aliyun"}), "aliyun"),
            (json!({"provider": "vmware"}), "vmware"),
            (json!({"provider": 1}), "provider"),
            (json!({"provider": "docker", "fallback": "none"}), "Docker"),
            (json!({"fallback": "qemu"}), "fallback"),
            (json!({"os_type": "Windows"}), "qemu"),
            (json!({"screen_size": [1, 1]}), "320"),
            (json!({"screen_size": [1e9]}), "two numbers"),
            (json!({"screen_size": "wide"}), "wide"),
            (json!({"setup": {}}), "setup"),
            (json!({"recording": "maybe"}), "recording"),
            (json!({"settle_seconds": -1}), "settle_seconds"),
        ] {
            let refused = settings(config.clone()).unwrap_err().to_string();
            assert!(refused.contains(said), "{config}: {refused}");
        }
        for wrong in [json!({"pool_size": -1}), json!({"pool_size": 65}), json!({"pool_size": "many"}), json!({"pool_size": []})]
        {
            assert!(pool_size(wrong.as_object().unwrap()).is_err(), "{wrong}");
        }
    }
}
