//! The container of a sandbox, as Docker's API wants it.

use std::io;
use std::path::Path;

use arenite_image::Image;
use arenite_isolation::container::{self, ARGUMENT, DIR, PROGRAM};
use arenite_model::{NetworkMode, Resources, SandboxId, SandboxSpec, Tier};
use serde_json::{Value, json};

use super::DockerConfig;
use crate::EngineError;

/// Label with the installation's tag.
pub(super) const TAG: &str = "arenite.installation";
/// Label with the sandbox's id.
pub(super) const ID: &str = "arenite.sandbox";
/// The command `aio` in a sandbox.
const COMMAND: &str = "usr/local/bin/aio";

/// What is particular to one container.
pub(super) struct Wanted<'a> {
    pub(super) config: &'a DockerConfig,
    pub(super) tag: &'a str,
    pub(super) id: &'a SandboxId,
    pub(super) spec: &'a SandboxSpec,
    pub(super) image: &'a Image,
    /// Docker's name of the image.
    pub(super) reference: &'a str,
    /// The host's directory that becomes [`DIR`].
    pub(super) inside: &'a Path,
    pub(super) hostname: &'a str,
    /// Of the network, if it has one: also the address of its resolver.
    pub(super) gateway: Option<String>,
    pub(super) limits_disk: bool,
    pub(super) tier: Tier,
}

/// The name of a sandbox's container.
pub(super) fn name(tag: &str, id: &SandboxId) -> String {
    format!("arenite-{tag}-{id}")
}

/// Refuses what Docker can't enforce here.
pub(super) fn check(spec: &SandboxSpec, limits_disk: bool) -> Result<(), EngineError> {
    let refuse = |what: String, reason: &str| Err(EngineError::Unsupported { what, reason: reason.to_owned() });
    // The default is what nobody asked for: warned of at the start of the server, and missing in the reported isolation.
    if !limits_disk && spec.resources.disk_bytes != Resources::default().disk_bytes {
        return refuse(
            format!("the disk limit of {} bytes", spec.resources.disk_bytes),
            "Docker limits disks only with the storage drivers btrfs and zfs, and with overlay2 on XFS mounted with pquota; leave the limit out, or move Docker's data-root",
        );
    }
    if spec.network == NetworkMode::Host {
        return refuse("the host's network".to_owned(), "it is for image builds");
    }
    Ok(())
}

/// The body of the request that creates it.
pub(super) fn body(wanted: &Wanted<'_>) -> Result<Value, EngineError> {
    let Wanted { config, spec, .. } = wanted;
    let resources = &spec.resources;
    let utf8 = |path: &Path| {
        path.to_str().map(str::to_owned).ok_or_else(|| EngineError::Unsupported {
            what: format!("the path {}", path.display()),
            reason: "Docker's API takes only UTF-8".to_owned(),
        })
    };
    let mount = |source: String, target: &str, read_only: bool| json!({"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only, "BindOptions": {"Propagation": "rprivate"}});
    let mut mounts = vec![mount(utf8(wanted.inside)?, DIR, true)];
    if has_room_for_command(wanted.image) {
        mounts.push(mount(utf8(&wanted.inside.join(PROGRAM))?, &format!("/{COMMAND}"), true));
    }
    for volume in &spec.volumes {
        let declared = config.volumes.get(&volume.name).ok_or_else(|| EngineError::NoVolume {
            name: volume.name.clone(),
            known: config.volumes.keys().cloned().collect(),
        })?;
        mounts.push(mount(utf8(&declared.dir)?, &volume.path, declared.read_only || volume.read_only));
    }
    let mut security = vec![format!("seccomp={}", container::seccomp_profile())];
    if config.no_new_privileges {
        security.push("no-new-privileges".to_owned());
    }
    let storage = if wanted.limits_disk { json!({"size": resources.disk_bytes.to_string()}) } else { json!({}) };
    let mut body = json!({
        "Image": wanted.reference,
        "Entrypoint": [format!("{DIR}/{PROGRAM}")],
        "Cmd": ["guest", ARGUMENT],
        "Hostname": wanted.hostname,
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": {TAG: wanted.tag, ID: wanted.id.as_str()},
        // Limits of open files and core dumps are the guest's to set: a hard limit above Docker's own would be refused. It also
        // raises the OOM score of commands, so that they die before it.
        "HostConfig": {
            "Mounts": mounts,
            "NetworkMode": "none",
            // Without any, Docker would show the host's resolvers.
            "Dns": [wanted.gateway.as_deref().unwrap_or("127.0.0.1")],
            // The names of the sandbox itself: Docker knows none without a network.
            "ExtraHosts": [format!("{}:127.0.1.1", wanted.hostname)],
            "Memory": resources.memory_bytes,
            // Both together: no swap.
            "MemorySwap": resources.memory_bytes,
            "NanoCpus": u64::from(resources.cpu_millis) * 1_000_000,
            "PidsLimit": resources.pids,
            "ShmSize": resources.shm_bytes,
            "StorageOpt": storage,
            "CapDrop": ["ALL"],
            "CapAdd": container::capabilities().collect::<Vec<_>>(),
            "SecurityOpt": security,
            "MaskedPaths": container::masked_paths(),
            "ReadonlyPaths": container::read_only_paths(),
            "Privileged": false,
            "IpcMode": "private",
            "CgroupnsMode": "private",
            "Init": false,
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none"},
        },
    });
    if wanted.tier == Tier::Gvisor {
        body["HostConfig"]["Runtime"] = json!(config.gvisor_runtime);
    }
    Ok(body)
}

/// Whether the image has no file where the command `aio` goes, and directories on the way to it. Docker would hide
/// the file.
fn has_room_for_command(image: &Image) -> bool {
    let of_image = |path: &Path| image.layers.iter().rev().find_map(|layer| layer.dir.join(path).symlink_metadata().ok());
    let path = Path::new(COMMAND);
    let parents_fit = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
    let is_whiteout = |about: &std::fs::Metadata| {
        use std::os::unix::fs::{FileTypeExt, MetadataExt};
        about.file_type().is_char_device() && about.rdev() == 0
    };
    let mut parents_fit = parents_fit.map(|parent| of_image(parent).is_none_or(|about| about.is_dir()));
    parents_fit.all(|fits| fits) && of_image(path).is_none_or(|about| is_whiteout(&about))
}

/// Explains an error that is likely due to a particular cause.
pub(super) fn with_hint(error: EngineError) -> EngineError {
    match error {
        EngineError::Stage { stage, source, hint: None } => {
            let text = source.to_string();
            let hint = if text.contains("no space left") {
                Some("Docker's disk is full: delete sandboxes, or free space with docker image prune")
            } else if text.contains("Mounts denied") || text.contains("bind source path does not exist") {
                Some("Docker must run on this host, with the same file system: its socket must not be another machine's")
            } else {
                None
            };
            EngineError::Stage { stage, source, hint: hint.map(str::to_owned) }
        }
        other => other,
    }
}

pub(super) fn other_host() -> EngineError {
    EngineError::Stage {
        stage: "the container's first process".to_owned(),
        source: io::ErrorKind::NotFound.into(),
        hint: Some("Docker must run on this host, with the same processes: not in a VM or a container".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use arenite_model::ImageName;

    use super::*;

    fn spec() -> SandboxSpec {
        SandboxSpec::of_image("base".parse::<ImageName>().unwrap())
    }

    #[test]
    fn a_disk_limit_that_nobody_enforces_is_refused_if_it_was_asked_for() {
        let mut spec = spec();
        check(&spec, false).unwrap();
        spec.resources.disk_bytes = 1 << 30;
        assert!(check(&spec, false).unwrap_err().to_string().contains("can't be enforced"));
        check(&spec, true).unwrap();
        spec.network = NetworkMode::Host;
        assert!(check(&spec, true).is_err());
    }
}
