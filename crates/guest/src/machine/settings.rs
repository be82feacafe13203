//! What the machine is made of: the image's file, and the sandbox's environment over it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use super::service::MachineError;

/// Where an image says that it has a machine.
pub(super) const PLACE: &str = "/etc/arenite/machine.json";
const KVM: &str = "/dev/kvm";
/// Bytes of that file.
const MAX_BYTES: u64 = 64 << 10;
/// What variables of the sandbox that change a setting begin with; the rest is the setting's name.
const VARIABLE: &str = "ARENITE_MACHINE_";

/// Which kind of device the machine finds. Systems without drivers for `virtio` know the other ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Devices {
    #[default]
    Virtio,
    /// A disk on IDE, an e1000 network card, a USB tablet and a PS/2 keyboard.
    Plain,
}

/// What runs the machine's instructions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Accel {
    /// The host's KVM, in sandboxes that have it: the host gives it where a probe boot has shown that it works. Else QEMU.
    #[default]
    Auto,
    /// QEMU alone.
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
    /// Where the agent in the machine listens, and where it is reached on the sandbox's loopback. 0: there is none, and the
    /// machine counts as ready when it runs.
    #[serde(default = "usual_port")]
    pub(super) agent_port: u16,
    /// How long it may take from its start until the agent answers.
    #[serde(default = "usual_boot")]
    pub(super) boot_seconds: u32,
    #[serde(default)]
    pub(super) devices: Devices,
    #[serde(default)]
    pub(super) accel: Accel,
    /// Whether its state is kept when it is ready for the first time, so that a reset takes seconds.
    #[serde(default = "yes")]
    pub(super) snapshot: bool,
    /// Of the screen, in pixels, as far as the system in the machine follows it.
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
    /// Those of this sandbox; none: its image has no machine.
    pub(super) fn read(env: &BTreeMap<String, String>) -> Result<Option<Self>, MachineError> {
        Self::read_from(Path::new(PLACE), env)
    }

    fn read_from(place: &Path, env: &BTreeMap<String, String>) -> Result<Option<Self>, MachineError> {
        let text = match File::open(place) {
            Ok(file) => {
                let mut text = String::new();
                let read = file.take(MAX_BYTES).read_to_string(&mut text);
                read.map_err(|error| MachineError::Settings(error.to_string()))?;
                Some(text)
            }
            Err(_) => None,
        };
        let mut value: serde_json::Map<String, serde_json::Value> = match &text {
            Some(text) => serde_json::from_str(text).map_err(|error| MachineError::Settings(error.to_string()))?,
            None if env.contains_key(&format!("{VARIABLE}DISK")) => Default::default(),
            None => return Ok(None),
        };
        for (name, given) in env {
            let Some(name) = name.strip_prefix(VARIABLE) else { continue };
            // A number or true and false are those; the rest is a text.
            let given = match serde_json::from_str(given) {
                Ok(plain @ (serde_json::Value::Number(_) | serde_json::Value::Bool(_))) => plain,
                _ => given.clone().into(),
            };
            value.insert(name.to_ascii_lowercase(), given);
        }
        let settings: Self = serde_json::from_value(value.into()).map_err(|error| MachineError::Settings(error.to_string()))?;
        settings.checked().map(Some)
    }

    /// Whether KVM runs it here.
    pub(super) fn has_kvm(&self) -> bool {
        self.accel == Accel::Auto && File::options().read(true).write(true).open(KVM).is_ok()
    }

    fn checked(self) -> Result<Self, MachineError> {
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
                return Err(MachineError::Settings(format!("{name} is {number}, and can be {least} to {most}")));
            }
        }
        // QEMU reads a comma in an option as its end.
        if !self.disk.starts_with('/') || self.disk.contains([',', '\0']) {
            return Err(MachineError::Settings("disk must be an absolute path without a comma".to_owned()));
        }
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: Option<&str>, env: &[(&str, &str)]) -> Result<Option<Settings>, String> {
        let dir = std::env::temp_dir().join(format!("arenite-machine-{}-{:x}", std::process::id(), getrandom::u64().unwrap()));
        std::fs::create_dir(&dir).unwrap();
        let place = dir.join("machine.json");
        if let Some(text) = text {
            std::fs::write(&place, text).unwrap();
        }
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let settings = Settings::read_from(&place, &env).map_err(|error| error.to_string());
        std::fs::remove_dir_all(&dir).unwrap();
        settings
    }

    #[test]
    fn the_environment_goes_before_the_file() {
        assert_eq!(read(None, &[]), Ok(None));
        assert_eq!(read(None, &[("ARENITE_MACHINE_CPUS", "1")]), Ok(None));
        let env = [
            ("ARENITE_MACHINE_MEMORY_MB", "2048"),
            ("ARENITE_MACHINE_DEVICES", "plain"),
            ("ARENITE_MACHINE_ACCEL", "tcg"),
            ("ARENITE_MACHINE_SNAPSHOT", "false"),
        ];
        let settings = read(Some(r#"{"disk": "/d.qcow2", "memory_mb": 512, "agent_port": 0}"#), &env).unwrap().unwrap();
        assert_eq!((settings.memory_mb, settings.agent_port, settings.snapshot), (2048, 0, false));
        assert_eq!((settings.devices, settings.accel, settings.has_kvm()), (Devices::Plain, Accel::Tcg, false));
        assert_eq!(read(None, &[("ARENITE_MACHINE_DISK", "/x")]).unwrap().unwrap().disk, "/x");
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
