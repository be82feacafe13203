//! The VM's settings: the image's file, overridden by the sandbox's environment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::service::VmError;

/// The settings file of an image with a VM, and its earlier name.
const FILES: [&str; 2] = ["/etc/arenite/vm.json", "/etc/arenite/machine.json"];
const KVM: &str = "/dev/kvm";
/// Maximum bytes of that file.
const MAX_BYTES: u64 = 64 << 10;
/// Prefixes of the variables that override a setting; the rest is the setting's name. The second is the earlier name; the first wins.
const VARIABLES: [&str; 2] = ["ARENITE_VM_", "ARENITE_MACHINE_"];

/// The kind of devices in the VM. Systems without drivers for `virtio` support the plain ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Devices {
    #[default]
    Virtio,
    /// A disk on IDE, an e1000 network card, a USB tablet, and a PS/2 keyboard.
    Plain,
}

/// The accelerator of the VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Accel {
    /// The host's KVM, in sandboxes that have it: the host provides it where a probe boot has shown that it works. Otherwise,
    /// QEMU's emulation.
    #[default]
    Auto,
    /// QEMU's emulation.
    Tcg,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    /// The image's disk, a qcow2 file. It is never written to.
    pub(super) disk: String,
    #[serde(default = "usual_memory")]
    pub(super) memory_mb: u32,
    #[serde(default = "usual_cpus")]
    pub(super) cpus: u32,
    /// The port of the agent in the VM, and on the sandbox's loopback. 0: there is no agent, and the VM counts as ready when it
    /// runs.
    #[serde(default = "usual_port")]
    pub(super) agent_port: u16,
    /// Timeout from its start until the agent answers, in seconds.
    #[serde(default = "usual_boot")]
    pub(super) boot_seconds: u32,
    #[serde(default)]
    pub(super) devices: Devices,
    #[serde(default)]
    pub(super) accel: Accel,
    /// Whether its state is saved when it is first ready, so that a reset takes seconds.
    #[serde(default = "yes")]
    pub(super) snapshot: bool,
    /// Width of the screen in pixels, if the system in the VM supports it.
    #[serde(default = "usual_width")]
    pub(super) width: u32,
    #[serde(default = "usual_height")]
    pub(super) height: u32,
}

fn usual_memory() -> u32 {
    1024
}

fn usual_cpus() -> u32 {
    2
}

fn usual_port() -> u16 {
    5000
}

fn usual_boot() -> u32 {
    300
}

fn yes() -> bool {
    true
}

fn usual_width() -> u32 {
    1280
}

fn usual_height() -> u32 {
    800
}

impl Settings {
    /// Reads the settings of this sandbox; `None` if its image has no VM.
    pub(super) fn read(env: &BTreeMap<String, String>) -> Result<Option<Self>, VmError> {
        Self::read_from(FILES.map(Path::new), env)
    }

    fn read_from<const N: usize>(files: [&Path; N], env: &BTreeMap<String, String>) -> Result<Option<Self>, VmError> {
        let text = match files.iter().find_map(|file| File::open(file).ok()) {
            Some(file) => {
                let mut text = String::new();
                let read = file.take(MAX_BYTES).read_to_string(&mut text);
                read.map_err(|error| VmError::Settings(error.to_string()))?;
                Some(text)
            }
            None => None,
        };
        let mut value: serde_json::Map<String, serde_json::Value> = match &text {
            Some(text) => serde_json::from_str(text).map_err(|error| VmError::Settings(error.to_string()))?,
            None if VARIABLES.iter().any(|prefix| env.contains_key(&format!("{prefix}DISK"))) => Default::default(),
            None => return Ok(None),
        };
        let overrides = |prefix| env.iter().filter_map(move |(name, given)| Some((name.strip_prefix(prefix)?, given)));
        for (name, given) in VARIABLES.iter().rev().flat_map(overrides) {
            // Numbers and booleans are parsed; everything else is a string.
            let given = match serde_json::from_str(given) {
                Ok(plain @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => plain,
                _ => given.clone().into(),
            };
            value.insert(name.to_ascii_lowercase(), given);
        }
        let settings: Self = serde_json::from_value(value.into()).map_err(|error| VmError::Settings(error.to_string()))?;
        settings.checked().map(Some)
    }

    /// Whether KVM runs it here.
    pub(super) fn has_kvm(&self) -> bool {
        self.accel == Accel::Auto && File::options().read(true).write(true).open(KVM).is_ok()
    }

    fn checked(self) -> Result<Self, VmError> {
        let bounds = [
            ("memory_mb", self.memory_mb, 64..=1 << 20),
            ("cpus", self.cpus, 1..=64),
            ("boot_seconds", self.boot_seconds, 1..=24 * 3600),
            ("width", self.width, 320..=4096),
            ("height", self.height, 200..=4096),
        ];
        for (name, number, range) in bounds {
            if !range.contains(&number) {
                let (least, most) = (range.start(), range.end());
                return Err(VmError::Settings(format!("{name} is {number}, and can be {least} to {most}")));
            }
        }
        // In an option, QEMU reads a comma as its end.
        if !self.disk.starts_with('/') || self.disk.contains([',', '\0']) {
            return Err(VmError::Settings("disk must be an absolute path without a comma".to_owned()));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: Option<&str>, env: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let dir = std::env::temp_dir().join(format!("arenite-vm-{}-{:x}", std::process::id(), getrandom::u64().unwrap()));
        std::fs::create_dir(&dir).unwrap();
        let place = dir.join("vm.json");
        if let Some(text) = text {
            std::fs::write(&place, text).unwrap();
        }
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let settings = Settings::read_from([&place], &env).map_err(|error| error.to_string());
        std::fs::remove_dir_all(&dir).unwrap();
        settings
    }

    #[test]
    fn the_environment_goes_before_the_file() {
        assert_eq!(read(None, &[]), Ok(None));
        assert_eq!(read(None, &[("ARENITE_VM_CPUS", "1")]), Ok(None));
        let env = [
            ("ARENITE_VM_MEMORY_MB", "2048"),
            ("ARENITE_VM_DEVICES", "plain"),
            ("ARENITE_VM_ACCEL", "tcg"),
            ("ARENITE_VM_SNAPSHOT", "false"),
        ];
        let settings = read(Some(r#"{"disk": "/d.qcow2", "memory_mb": 512, "agent_port": 0}"#), &env).unwrap().unwrap();
        assert_eq!((settings.memory_mb, settings.agent_port, settings.snapshot), (2048, 0, false));
        assert_eq!((settings.devices, settings.accel, settings.has_kvm()), (Devices::Plain, Accel::Tcg, false));
        assert_eq!(read(None, &[("ARENITE_VM_DISK", "/x")]).unwrap().unwrap().disk, "/x");
        let both = [("ARENITE_MACHINE_DISK", "/old"), ("ARENITE_MACHINE_CPUS", "2"), ("ARENITE_VM_DISK", "/new")];
        let read = read(None, &both).unwrap().unwrap();
        assert_eq!((read.disk.as_str(), read.cpus), ("/new", 2), "the old variables work, and the new ones win");
    }

    #[test]
    fn what_can_not_be_is_refused_by_name() {
        for (text, said) in [
            ("{", "EOF"),
            ("{}", "missing field `disk`"),
            (r#"{"disk": "/d", "cpu": 1}"#, "unknown field `cpu`"),
            (r#"{"disk": "/d", "accel": "kvm"}"#, "unknown variant `kvm`"),
            (r#"{"disk": "/d", "cpus": 0}"#, "cpus is 0"),
            (r#"{"disk": "/d", "memory_mb": 4294967295}"#, "memory_mb is"),
            (r#"{"disk": "/d,readonly=on"}"#, "without a comma"),
            (r#"{"disk": "d"}"#, "absolute"),
            (r#"{"disk": "/d", "agent_port": 70000}"#, "70000"),
        ] {
            let error = read(Some(text), &[]).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
