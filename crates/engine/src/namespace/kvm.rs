//! Whether this host's KVM runs VMs, as tested by a probe boot. That the device opens and creates VMs says little: on some
//! hosts, none of them ever boots.

use std::io;
use std::path::Path;

use arenite_image::Image;
use serde::{Deserialize, Serialize};

/// The label of images with a VM. It keeps the earlier name, which built images have.
pub const VM_LABEL: &str = "arenite.machine";

/// Whether sandboxes of an image have a VM.
pub(crate) fn has_vm(image: &Image) -> bool {
    image.config.labels.contains_key(VM_LABEL)
}
/// The file of the data directory that stores the verdict.
const PLACE: &str = "kvm.json";
const DEVICE: &str = "/dev/kvm";

/// The result of a probe, or a decision, for one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvmVerdict {
    pub works: bool,
    /// The source of the verdict, for people.
    pub reason: String,
    /// The kernel and the processor that it applies to.
    host: String,
    pub made_at: String,
}

impl KvmVerdict {
    pub fn new(works: bool, reason: String) -> Self {
        Self { works, reason, host: host(), made_at: jiff::Timestamp::now().to_string() }
    }

    /// Reads the stored verdict, if it is for this kernel and this processor.
    pub fn read(data_dir: &Path) -> Option<Self> {
        let text = std::fs::read(data_dir.join(PLACE)).ok()?;
        serde_json::from_slice(&text).ok().filter(|verdict: &Self| verdict.host == host())
    }

    /// Replaces the stored verdict. Running servers apply it from the next sandbox on.
    ///
    /// # Errors
    /// Errors of the file system.
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
    has_vm(image) && KvmVerdict::read(data_dir).is_some_and(|verdict| verdict.works)
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
