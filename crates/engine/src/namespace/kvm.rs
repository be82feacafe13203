//! Whether this host's KVM runs VMs: what a probe boot has shown. That the device opens, and creates VMs, says little: there
//! are hosts where none of them ever boots.

use std::io;
use std::path::Path;

use arenite_image::Image;
use serde::{Deserialize, Serialize};

/// The label of images with a VM. It keeps the earlier name, which built images carry.
pub const VM_LABEL: &str = "arenite.machine";
/// The file of the data directory that keeps the verdict.
const PLACE: &str = "kvm.json";
const DEVICE: &str = "/dev/kvm";

/// What was found, or decided, for one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmVerdict {
    pub works: bool,
    /// How that is known, for people.
    pub reason: String,
    /// The kernel and the processor that it holds for.
    host: String,
    pub made_at: String,
}

impl KvmVerdict {
    pub fn new(works: bool, reason: String) -> Self {
        Self { works, reason, host: host(), made_at: jiff::Timestamp::now().to_string() }
    }

    /// The last one, when it was made under this kernel and on this processor.
    pub fn read(data_dir: &Path) -> Option<Self> {
        let text = std::fs::read(data_dir.join(PLACE)).ok()?;
        serde_json::from_slice(&text).ok().filter(|verdict: &Self| verdict.host == host())
    }

    /// Keeps it in place of the last one. Servers that run follow it from the next sandbox on.
    ///
    /// # Errors
    /// What the disk says.
    pub fn keep(&self, data_dir: &Path) -> io::Result<()> {
        let fresh = data_dir.join(format!("{PLACE}.new"));
        std::fs::write(&fresh, serde_json::to_vec(self)?)?;
        std::fs::rename(fresh, data_dir.join(PLACE))
    }
}

/// Whether this host has the device, and lets this user open it.
pub fn kvm_opens() -> bool {
    std::fs::File::options().read(true).write(true).open(DEVICE).is_ok()
}

/// Whether sandboxes of an image get the device.
pub(super) fn is_for(image: &Image, data_dir: &Path) -> bool {
    image.config.labels.contains_key(VM_LABEL) && KvmVerdict::read(data_dir).is_some_and(|verdict| verdict.works)
}

fn host() -> String {
    let line = |file: &str| std::fs::read_to_string(file).unwrap_or_default().trim().to_owned();
    let processor = line("/proc/cpuinfo");
    let processor = processor.lines().find(|line| line.starts_with("model name")).unwrap_or_default();
    format!("{} {} {processor}", line("/proc/sys/kernel/osrelease"), line("/proc/sys/kernel/version"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_for_its_host_alone() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(KvmVerdict::read(dir.path()), None);
        for works in [true, false] {
            let verdict = KvmVerdict::new(works, "it booted".to_owned());
            verdict.keep(dir.path()).unwrap();
            assert_eq!(KvmVerdict::read(dir.path()), Some(verdict));
        }
        let elsewhere = KvmVerdict { host: "another".to_owned(), ..KvmVerdict::new(true, String::new()) };
        elsewhere.keep(dir.path()).unwrap();
        assert_eq!(KvmVerdict::read(dir.path()), None);
        std::fs::write(dir.path().join(PLACE), "{").unwrap();
        assert_eq!(KvmVerdict::read(dir.path()), None);
    }
}
