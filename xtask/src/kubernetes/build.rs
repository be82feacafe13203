//! The programs of a cluster, compiled from their Go modules at pinned versions and kept in `target/tools`.
//!
//! Kubernetes and etcd replace modules in their `go.mod` with directories that only their repositories have, so
//! `go install MODULE@VERSION` refuses them. Each module is built from a wrapper here: a module with the same
//! requirements, and without the replacements.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use serde::Deserialize;

use crate::command::{self, program, target_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::go;

/// A Go module at a pinned version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct GoModule {
    name: &'static str,
    path: &'static str,
    /// Without the `v`.
    version: &'static str,
}

pub(super) const KUBERNETES: GoModule = GoModule { name: "kubernetes", path: "k8s.io/kubernetes", version: "1.36.3" };
pub(super) const ETCD: GoModule = GoModule { name: "etcd", path: "go.etcd.io/etcd/server/v3", version: "3.6.16" };
pub(super) const AGENT_SANDBOX: GoModule =
    GoModule { name: "agent-sandbox", path: "sigs.k8s.io/agent-sandbox", version: "1.0.3" };
pub(super) const KWOK: GoModule = GoModule { name: "kwok", path: "sigs.k8s.io/kwok", version: "0.8.0" };

/// A program: its module, its name, and its package in the module. The first of a module takes longest.
const PROGRAMS: [(GoModule, &str, &str); 9] = [
    (ETCD, "etcd", ""),
    (KUBERNETES, "kube-apiserver", "/cmd/kube-apiserver"),
    (KUBERNETES, "kube-controller-manager", "/cmd/kube-controller-manager"),
    (KUBERNETES, "kube-scheduler", "/cmd/kube-scheduler"),
    (KUBERNETES, "kubelet", "/cmd/kubelet"),
    (KUBERNETES, "kube-proxy", "/cmd/kube-proxy"),
    (KUBERNETES, "kubectl", "/cmd/kubectl"),
    (AGENT_SANDBOX, "agent-sandbox-controller", "/cmd/agent-sandbox-controller"),
    (KWOK, "kwok", "/cmd/kwok"),
];
/// The first process of each pod, which only waits. Its source is in Kubernetes' module, in C.
pub(super) const PAUSE: &str = "pause";
/// The definitions and roles of agent-sandbox, which its module contains.
pub(super) const AGENT_SANDBOX_MANIFESTS: &str = "manifests";
/// What kwok pretends for nodes and pods, as one file.
pub(super) const KWOK_STAGES: &str = "stages.yaml";

impl GoModule {
    /// Where its programs and files are.
    pub(super) fn dir(self) -> PathBuf {
        target_dir().join("tools").join(format!("{}-{}", self.name, self.version))
    }
}

/// The path of a program or file that [`ensure`] builds.
pub(super) fn path(module: GoModule, name: &str) -> PathBuf {
    module.dir().join(name)
}

/// Builds what is missing; kwok only if nodes are to be pretended.
pub(super) fn ensure(with_kwok: bool) -> Outcome {
    let missing: Vec<_> = PROGRAMS
        .into_iter()
        .filter(|(module, ..)| with_kwok || *module != KWOK)
        .filter(|(module, name, _)| !path(*module, name).is_file())
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let go = Go::find()?;
    eprintln!("{} programs of the cluster are not there yet; building all takes 10 to 18 minutes, once", missing.len());
    let begun = Instant::now();
    for (number, (module, name, package)) in (1..).zip(&missing) {
        let seconds = begun.elapsed().as_secs();
        eprintln!("\n== {name} {}, {number} of {} ({seconds} s so far)", module.version, missing.len());
        let wrapper = go.wrap(*module)?;
        go.add_files(*module)?;
        go.build(*module, &wrapper, name, package)?;
    }
    go.remove_caches()
}

/// Go with its caches.
struct Go {
    program: PathBuf,
    modules: PathBuf,
    objects: PathBuf,
    /// Wrappers, and caches unless the environment names others.
    scratch: PathBuf,
}

/// The part of `go mod download -json` that is used.
#[derive(Debug, Deserialize)]
struct Downloaded {
    #[serde(rename = "Dir")]
    dir: PathBuf,
}

impl Go {
    fn find() -> Result<Self, Failure> {
        let scratch = target_dir().join("tools/kubernetes-build");
        let cache = |variable, name| std::env::var_os(variable).map_or_else(|| scratch.join(name), PathBuf::from);
        Ok(Self {
            program: go::toolchain()?,
            modules: cache("GOMODCACHE", "modules"),
            objects: cache("GOCACHE", "objects"),
            scratch,
        })
    }

    fn command(&self, dir: &Path) -> Command {
        let mut command = program(&self.program);
        command.current_dir(dir).env("GOMODCACHE", &self.modules).env("GOCACHE", &self.objects);
        // The wrappers are inside this repository, which is no part of them. Nodes need no library of the host.
        command.env("GOFLAGS", "-mod=mod -modcacherw -buildvcs=false").env("GOWORK", "off").env("CGO_ENABLED", "0");
        command
    }

    /// Downloads a module, and returns where it is.
    fn download(&self, module: GoModule) -> Result<PathBuf, Failure> {
        let reference = format!("{}@v{}", module.path, module.version);
        command::download(self.command(Path::new("/")).args(["mod", "download", &reference]))?;
        let text = command::output(self.command(Path::new("/")).args(["mod", "download", "-json", &reference]))?;
        let downloaded: Downloaded = serde_json::from_str(&text).attempt(|| format!("could not read where {reference} is"))?;
        Ok(downloaded.dir)
    }

    /// Makes the module from which the programs of another are built.
    fn wrap(&self, module: GoModule) -> Result<PathBuf, Failure> {
        let dir = self.scratch.join(format!("{}-{}", module.name, module.version));
        let file = dir.join("go.mod");
        if file.is_file() {
            return Ok(dir);
        }
        let source = self.download(module)?;
        let original = source.join("go.mod");
        let text = std::fs::read_to_string(&original).attempt(|| format!("could not read {}", original.display()))?;
        // The name of a wrapper from before is not reused: Go adds to its files.
        create_dir(&dir)?;
        // Go adds the checksums of the modules that were replaced.
        let sums = std::fs::read(source.join("go.sum")).attempt(|| format!("could not read the checksums of {}", module.path))?;
        std::fs::write(dir.join("go.sum"), sums).attempt(|| format!("could not write to {}", dir.display()))?;
        std::fs::write(&file, wrapper(&text, module)).attempt(|| format!("could not write {}", file.display()))?;
        Ok(dir)
    }

    fn build(&self, module: GoModule, wrapper: &Path, name: &str, package: &str) -> Outcome {
        create_dir(&module.dir())?;
        let file = path(module, name);
        let unfinished = file.with_extension("unfinished");
        let mut build = self.command(wrapper);
        build.args(["build", "-trimpath", "-ldflags", &linker_flags(module), "-o"]).arg(&unfinished);
        command::download(build.arg(format!("{}{package}", module.path)))?;
        std::fs::rename(&unfinished, &file).attempt(|| format!("could not name {}", file.display()))
    }

    /// Takes what the cluster needs of a module besides its programs.
    fn add_files(&self, module: GoModule) -> Outcome {
        let wanted = match module {
            KUBERNETES => PAUSE,
            AGENT_SANDBOX => AGENT_SANDBOX_MANIFESTS,
            KWOK => KWOK_STAGES,
            _ => return Ok(()),
        };
        let target = path(module, wanted);
        if target.exists() {
            return Ok(());
        }
        create_dir(&module.dir())?;
        let source = self.download(module)?;
        match module {
            KUBERNETES => {
                let mut compile = program("cc");
                compile.args(["-Os", "-static", "-s", "-o"]).arg(&target).arg(source.join("build/pause/linux/pause.c"));
                command::run(&mut compile)
            }
            AGENT_SANDBOX => command::run(program("cp").arg("-r").arg(source.join("k8s")).arg(&target)),
            _ => {
                let stages = source.join("kustomize/stage");
                let mut documents = Vec::new();
                for dir in ["node/fast", "node/heartbeat-with-lease", "pod/fast"] {
                    documents.extend(stages_in(&stages.join(dir))?);
                }
                std::fs::write(&target, documents.join("\n---\n")).attempt(|| format!("could not write {}", target.display()))
            }
        }
    }

    /// Removes some 6 GB that are not needed again. Caches that the environment names stay.
    fn remove_caches(&self) -> Outcome {
        if self.scratch.is_dir() {
            std::fs::remove_dir_all(&self.scratch).attempt(|| format!("could not remove {}", self.scratch.display()))?;
        }
        Ok(())
    }
}

fn create_dir(dir: &Path) -> Outcome {
    std::fs::create_dir_all(dir).attempt(|| format!("could not make {}", dir.display()))
}

/// The stages of a directory, sorted by file. The others in it are for kustomize.
fn stages_in(dir: &Path) -> Result<Vec<String>, Failure> {
    let failed = || format!("could not read kwok's stages in {}", dir.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).attempt(failed)? {
        files.push(entry.attempt(failed)?.path());
    }
    files.sort_unstable();
    let texts = files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "yaml"));
    let texts: Result<Vec<String>, Failure> = texts.map(|file| std::fs::read_to_string(file).attempt(failed)).collect();
    let stages: Vec<String> = texts?.into_iter().filter(|text| text.lines().any(|line| line == "kind: Stage")).collect();
    if stages.is_empty() { Err(Failure::new(format!("no stages of kwok are in {}", dir.display()))) } else { Ok(stages) }
}

/// Strips symbols. Kubernetes' programs get their version here: without it they report v0.0.0, which clients can't handle.
fn linker_flags(module: GoModule) -> String {
    if module != KUBERNETES {
        return "-s -w".to_owned();
    }
    let mut parts = module.version.split('.');
    let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    let values = [("gitVersion", format!("v{}", module.version)), ("gitMajor", major.to_owned()), ("gitMinor", minor.to_owned())];
    let values: String = values.iter().map(|(name, value)| format!(" -X k8s.io/component-base/version.{name}={value}")).collect();
    format!("-s -w{values}")
}

/// The `go.mod` of a wrapper, from that of the module.
fn wrapper(original: &str, module: GoModule) -> String {
    // Modules of Kubernetes' repository are published as v0 with the same minor and patch.
    let staged = format!("v0.{}", module.version.split_once('.').map_or("0", |(_, rest)| rest));
    let mut lines = vec![format!("module arenite.test/{}", module.name)];
    let mut is_replacing = false;
    for line in original.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["replace", "("] => is_replacing = true,
            [")"] if is_replacing => is_replacing = false,
            ["module" | "toolchain" | "replace", ..] => {}
            _ if is_replacing => {}
            [path, "v0.0.0", ..] if path.starts_with("k8s.io/") => lines.push(line.replace("v0.0.0", &staged)),
            _ => lines.push(line.to_owned()),
        }
    }
    lines.push(format!("require {} v{}\n", module.path, module.version));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIGINAL: &str = "module k8s.io/kubernetes

go 1.26.0
toolchain go1.26.1
godebug default=go1.26

require (
\tgithub.com/spf13/cobra v1.10.0
\tk8s.io/api v0.0.0
\tk8s.io/klog/v2 v2.130.1
)

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
)

replace k8s.io/client-go => ./staging/src/k8s.io/client-go
";

    #[test]
    fn a_wrapper_requires_what_the_module_requires() {
        let expected = "module arenite.test/kubernetes

go 1.26.0
godebug default=go1.26

require (
\tgithub.com/spf13/cobra v1.10.0
\tk8s.io/api v0.36.3
\tk8s.io/klog/v2 v2.130.1
)


require k8s.io/kubernetes v1.36.3
";
        assert_eq!(wrapper(ORIGINAL, KUBERNETES), expected);
    }

    #[test]
    fn kubernetes_knows_its_version() {
        assert!(linker_flags(KUBERNETES).ends_with("version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"));
        assert_eq!(linker_flags(ETCD), "-s -w");
    }
}
