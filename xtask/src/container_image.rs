//! `cargo xtask container-image`: the image of the control plane, which also brings the guest into pods, or with `--node` the
//! image of a node.
//!
//! The same as `deploy/image/Dockerfile` builds, without Docker: the static program, certificate authorities, and the directories
//! that the program writes to. A node runs two more programs, which are this host's, with their libraries. The file is an OCI
//! image layout and what `docker save` writes in one, so `docker load`, containerd, and tools for registries read it. The same
//! programs give the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::Args;
use serde_json::{Value, json};

use crate::binary::Profile;
use crate::dist::{VERSION, commit_time, files_below, write};
use crate::failure::{Attempt, Failure, Outcome};
use crate::{binary, command, go, host};

/// The user of the image, by number: `runAsNonRoot` needs that.
const USER: &str = "65532";
const PROGRAM: &str = "arenite";
const AUTHORITIES: &str = "etc/ssl/certs/ca-certificates.crt";
/// Where Debian's package has them, without those that someone added to this host.
const DEBIANS_AUTHORITIES: &str = "/usr/share/ca-certificates/mozilla";
/// What the namespace engine runs: the rules of sandboxes' networks, and the file system of the storage pool.
const NODE_PROGRAMS: [&str; 2] = ["nft", "mkfs.btrfs"];
/// The directory of these programs in the image.
const NODE_BIN: &str = "usr/sbin";
/// Directories of the image: path, mode, and whether they are the user's.
const DIRECTORIES: [(&str, u32, bool); 7] = [
    ("etc", 0o755, false),
    ("etc/ssl", 0o755, false),
    ("etc/ssl/certs", 0o755, false),
    ("tmp", 0o1777, false),
    ("var", 0o755, false),
    ("var/lib", 0o755, false),
    ("var/lib/arenite", 0o700, true),
];

#[derive(Debug, Args)]
pub(crate) struct ContainerImageArgs {
    /// Write the image of a node, which runs sandboxes in Linux namespaces: its user is root, and it has nft and mkfs.btrfs
    #[arg(long)]
    node: bool,
    /// Put this program into the image instead of building one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The image's name, with a registry if you will push it there [default: arenite or arenite-node, with the version]
    #[arg(long, value_name = "NAME:TAG")]
    name: Option<String>,
    /// The file to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(args: &ContainerImageArgs) -> Outcome {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => {
            host::prepare(&[host::TO_BUILD])?;
            binary::build(Profile::Dist)?
        }
    };
    if args.node {
        host::prepare(&[host::TO_RUN_NODES])?;
    }
    let stage = command::target_dir().join(format!("container-image-{}", std::process::id()));
    let name = args.name.clone().unwrap_or_else(if args.node { default_node_name } else { default_name });
    let written = write_image(&program, &name, args.node, &stage, &args.output);
    // What a failed run leaves is in nobody's way.
    let _ = fs::remove_dir_all(&stage);
    written?;
    println!("{name} is in {}", args.output.display());
    Ok(())
}

/// The name that the chart has by default.
pub(crate) fn default_name() -> String {
    format!("{PROGRAM}:{VERSION}")
}

fn default_node_name() -> String {
    format!("{PROGRAM}-node:{VERSION}")
}

/// Writes the image to `file`; `stage` is for intermediate files, and does not exist.
pub(crate) fn write_image(program: &Path, name: &str, node: bool, stage: &Path, file: &Path) -> Outcome {
    let absolute = |path: &Path| std::path::absolute(path).attempt(|| format!("could not resolve {}", path.display()));
    let (stage, file) = (absolute(stage)?, absolute(file)?);
    let epoch = commit_time()?;
    let image = stage.join("image");
    let layer = image.join("layer.tar");
    let root = stage.join("root");
    let mut entries = stage_root(program, &root)?;
    if node {
        entries.extend(stage_node_programs(&root)?);
    }
    entries.sort_unstable();
    let user = if node { "0" } else { USER };
    let owned = |is_users: bool| DIRECTORIES.iter().filter(move |(.., of_user)| *of_user == is_users).map(|(path, ..)| *path);
    let of_root: Vec<&str> = entries.iter().map(String::as_str).filter(|entry| !owned(true).any(|path| path == *entry)).collect();
    write(&layer, b"")?;
    command::run(tar(&epoch, "0", "-cf", &layer, &root).args(of_root))?;
    command::run(tar(&epoch, user, "-rf", &layer, &root).args(owned(true)))?;

    let created = command::output(command::program("date").args(["-u", "-d", &format!("@{epoch}"), "+%Y-%m-%dT%H:%M:%SZ"]))?;
    let layer = blob(&image, &layer)?;
    let config = json!({
        "architecture": go::architecture(),
        "os": "linux",
        "created": created.trim(),
        "config": {
            "User": format!("{user}:{user}"),
            "Entrypoint": [format!("/{PROGRAM}")],
            "Cmd": ["serve"],
            "ExposedPorts": { "8080/tcp": {} },
            "Labels": { "org.opencontainers.image.title": PROGRAM, "org.opencontainers.image.version": VERSION },
        },
        "rootfs": { "type": "layers", "diff_ids": [layer.digest()] },
        "history": [{ "created": created.trim(), "created_by": "cargo xtask container-image" }],
    });
    let config = json_blob(&image, &config)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
    });
    let manifest = json_blob(&image, &manifest)?;
    let mut descriptor = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
    descriptor["annotations"] = json!({
        "io.containerd.image.name": full_name(name),
        "org.opencontainers.image.ref.name": name.rsplit_once(':').map_or("latest", |(_, tag)| tag),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [descriptor],
    });
    let docker = json!([{ "Config": config.path(), "RepoTags": [name], "Layers": [layer.path()] }]);
    write(&image.join("oci-layout"), br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    write(&image.join("index.json"), index.to_string().as_bytes())?;
    write(&image.join("manifest.json"), docker.to_string().as_bytes())?;

    let parts = files_below(&image)?;
    let parts = parts.iter().filter_map(|part| part.strip_prefix(&image).ok());
    command::run(tar(&epoch, "0", "-cf", &file, &image).args(parts))
}

/// Puts the image's files below `root`; returns the paths of all entries.
fn stage_root(program: &Path, root: &Path) -> Result<Vec<String>, Failure> {
    let copy = |from: &Path, to: &str, mode: u32| {
        let to = root.join(to);
        write(&to, &fs::read(from).attempt(|| format!("could not read {}", from.display()))?)?;
        set_mode(&to, mode)
    };
    copy(program, PROGRAM, 0o755)?;
    let mut entries = vec![PROGRAM.to_owned()];
    match authorities() {
        Some(pem) => {
            write(&root.join(AUTHORITIES), pem.as_bytes())?;
            set_mode(&root.join(AUTHORITIES), 0o644)?;
            entries.push(AUTHORITIES.to_owned());
        }
        None => eprintln!(
            "the package ca-certificates is missing, so the image gets no certificate authorities: https of webhooks and \
             traces will need SSL_CERT_FILE"
        ),
    }
    for (path, mode, _) in DIRECTORIES {
        let dir = root.join(path);
        fs::create_dir_all(&dir).attempt(|| format!("could not create {}", dir.display()))?;
        set_mode(&dir, mode)?;
        entries.push(path.to_owned());
    }
    Ok(entries)
}

/// Copies the programs of a node and their shared libraries below `root`; returns the paths of all entries.
fn stage_node_programs(root: &Path) -> Result<BTreeSet<String>, Failure> {
    let mut files = BTreeMap::new();
    for name in NODE_PROGRAMS {
        let program = command::find(name).ok_or_else(|| Failure::new(format!("this host has no {name}")))?;
        let libraries = command::output(command::program("ldd").arg(&program))?;
        // `libc.so.6 => /lib/….so.6 (0x…)`, and the loader as `/lib64/….so.2 (0x…)`. The kernel's vdso has no path.
        let paths = libraries.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
        files.extend(paths.map(|path| (path.trim_start_matches('/').to_owned(), PathBuf::from(path))));
        files.insert(format!("{NODE_BIN}/{name}"), program);
    }
    let mut entries = BTreeSet::new();
    for (to, from) in &files {
        write(&root.join(to), &fs::read(from).attempt(|| format!("could not read {}", from.display()))?)?;
        set_mode(&root.join(to), 0o755)?;
        entries.insert(to.clone());
        for dir in Path::new(to).ancestors().skip(1).filter(|dir| *dir != Path::new("")) {
            set_mode(&root.join(dir), 0o755)?;
            entries.insert(dir.display().to_string());
        }
    }
    Ok(entries)
}

fn set_mode(path: &Path, mode: u32) -> Outcome {
    fs::set_permissions(path, Permissions::from_mode(mode)).attempt(|| format!("could not set the mode of {}", path.display()))
}

/// The certificate authorities of Debian's package, as PEM. None if it is not installed.
fn authorities() -> Option<String> {
    let files = files_below(Path::new(DEBIANS_AUTHORITIES)).ok()?;
    let texts: Vec<String> = files.iter().filter_map(|file| fs::read_to_string(file).ok()).collect();
    let pem: String = texts.iter().flat_map(|text| [text.trim_end(), "\n"]).collect();
    (!pem.is_empty()).then_some(pem)
}

/// tar, without names and times of this host. Entries are named one by one.
fn tar(epoch: &str, owner: &str, action: &str, file: &Path, dir: &Path) -> Command {
    let mut tar = command::program("tar");
    tar.args(["--no-recursion", "--numeric-owner", "--format=ustar", "--mtime", &format!("@{epoch}")]);
    tar.args(["--owner", owner, "--group", owner, "-C"]).arg(dir).arg(action).arg(file);
    tar
}

/// A part of the image, known by its SHA-256.
struct Blob {
    sha256: String,
    size: u64,
}

impl Blob {
    fn digest(&self) -> String {
        format!("sha256:{}", self.sha256)
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.sha256)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": self.digest(), "size": self.size })
    }
}

/// Moves a file to where an image layout has it.
fn blob(image: &Path, file: &Path) -> Result<Blob, Failure> {
    let sum = command::output(command::program("sha256sum").arg(file))?;
    let sha256 = sum.split_whitespace().next().unwrap_or_default().to_owned();
    let size = fs::metadata(file).attempt(|| format!("could not read {}", file.display()))?.len();
    let blob = Blob { sha256, size };
    let target = image.join(blob.path());
    fs::create_dir_all(image.join("blobs/sha256")).attempt(|| format!("could not create {}", target.display()))?;
    fs::rename(file, &target).attempt(|| format!("could not move {}", file.display()))?;
    Ok(blob)
}

fn json_blob(image: &Path, content: &Value) -> Result<Blob, Failure> {
    let file = image.join("part.json");
    write(&file, content.to_string().as_bytes())?;
    blob(image, &file)
}

/// The name as containerd and Kubernetes complete it.
fn full_name(name: &str) -> String {
    match name.split_once('/') {
        Some((host, _)) if host.contains(['.', ':']) || host == "localhost" => name.to_owned(),
        Some(_) => format!("docker.io/{name}"),
        None => format!("docker.io/library/{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_completed_as_kubernetes_does() {
        assert_eq!(full_name("arenite:1"), "docker.io/library/arenite:1");
        assert_eq!(full_name("team/arenite:1"), "docker.io/team/arenite:1");
        for whole in ["registry.example/arenite:1", "localhost:5000/arenite:1", "localhost/arenite:1"] {
            assert_eq!(full_name(whole), whole);
        }
    }
}
