//! Images of a cluster, as archives in the form of `docker save`. Nodes have no registry.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use serde_json::json;

use super::build::{self, KUBERNETES};
use crate::command::{self, output, program};
use crate::failure::{Attempt, Failure, Outcome};
use crate::go;

/// The first process of each pod. Tags other than `latest` don't make the kubelet pull.
pub(super) const PAUSE: &str = "localhost/pause:1";
/// A shell and its tools, as a statically linked busybox.
pub(super) const BUSYBOX: &str = "localhost/busybox:1";
/// The program `/arenite`, and nothing else.
pub(super) const GUEST: &str = "localhost/arenite-guest:1";

const SEARCH_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A directory in which trees and archives are made.
pub(super) struct Images {
    dir: PathBuf,
}

impl Images {
    pub(super) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(super) fn pause(&self) -> Result<PathBuf, Failure> {
        let tree = self.tree("pause")?;
        copy(&build::path(KUBERNETES, build::PAUSE), &tree.join("pause"))?;
        self.pack("pause", PAUSE, &["/pause"])
    }

    pub(super) fn busybox(&self) -> Result<PathBuf, Failure> {
        let tree = self.tree("busybox")?;
        for dir in ["bin", "etc", "root", "tmp"] {
            make(&tree.join(dir))?;
        }
        let installed = command::find("busybox").ok_or_else(|| Failure::new("busybox is not installed"))?;
        copy(&installed, &tree.join("bin/busybox"))?;
        for name in output(program(installed).arg("--list"))?.lines().filter(|name| *name != "busybox") {
            symlink("busybox", tree.join("bin").join(name)).attempt(|| format!("could not link {name}"))?;
        }
        write(&tree.join("etc/passwd"), "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")?;
        write(&tree.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
        let tmp = tree.join("tmp");
        fs::set_permissions(&tmp, Permissions::from_mode(0o1777)).attempt(|| "could not open /tmp to all".into())?;
        self.pack("busybox", BUSYBOX, &["sh"])
    }

    pub(super) fn guest(&self, arenite: &Path) -> Result<PathBuf, Failure> {
        let tree = self.tree("guest")?;
        copy(arenite, &tree.join("arenite"))?;
        self.pack("guest", GUEST, &["/arenite"])
    }

    /// An empty tree.
    fn tree(&self, name: &str) -> Result<PathBuf, Failure> {
        let tree = self.dir.join(name).join("tree");
        if tree.exists() {
            fs::remove_dir_all(&tree).attempt(|| format!("could not empty {}", tree.display()))?;
        }
        make(&tree)?;
        Ok(tree)
    }

    /// Packs a tree as the only layer of an image.
    fn pack(&self, name: &str, reference: &str, command: &[&str]) -> Result<PathBuf, Failure> {
        let dir = self.dir.join(name);
        let mut tar = program("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0", "-C"]).arg(dir.join("tree"));
        output(tar.arg("-cf").arg(dir.join("layer.tar")).arg("."))?;
        let sum = output(program("sha256sum").arg(dir.join("layer.tar")))?;
        let sum = sum.split_whitespace().next().unwrap_or_default();
        let config = json!({
            "architecture": go::architecture(),
            "os": "linux",
            "config": {"Cmd": command, "Env": [SEARCH_PATH]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{sum}")]},
        });
        write(&dir.join("config.json"), &config.to_string())?;
        let manifest = json!([{"Config": "config.json", "RepoTags": [reference], "Layers": ["layer.tar"]}]);
        write(&dir.join("manifest.json"), &manifest.to_string())?;
        let archive = self.dir.join(format!("{name}.tar"));
        let mut tar = program("tar");
        tar.arg("-C").arg(&dir).arg("-cf").arg(&archive).args(["manifest.json", "config.json", "layer.tar"]);
        output(&mut tar)?;
        fs::remove_dir_all(&dir).attempt(|| format!("could not remove {}", dir.display()))?;
        Ok(archive)
    }
}

fn make(dir: &Path) -> Outcome {
    fs::create_dir_all(dir).attempt(|| format!("could not make {}", dir.display()))
}

fn copy(from: &Path, to: &Path) -> Outcome {
    fs::copy(from, to).attempt(|| format!("could not copy {}", from.display())).map(drop)
}

fn write(file: &Path, text: &str) -> Outcome {
    fs::write(file, text).attempt(|| format!("could not write {}", file.display()))
}
