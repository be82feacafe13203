//! The floors: small programs and runc, driven one iteration at a time.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use super::http::Connection;
use super::quietly;
use crate::command::{program, repository};
use crate::failure::{Attempt, Failure, Outcome};

/// The compiled programs.
pub(super) struct Programs {
    namespace: PathBuf,
    spawn: PathBuf,
}

pub(super) fn compile(work: &Path) -> Result<Programs, Failure> {
    let build = |name: &str| {
        let source = repository().join("bench/floors").join(format!("{name}.c"));
        let output = work.join(name);
        quietly("cc", &["-O2", "-Wall", "-o", &output.display().to_string(), &source.display().to_string()], work)?;
        Ok(output)
    };
    Ok(Programs { namespace: build("namespace")?, spawn: build("spawn")? })
}

impl Programs {
    pub(super) fn namespace(&self, rootfs: &Path, work: &Path) -> Result<Floor, Failure> {
        let scratch = work.join("namespace.scratch");
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).attempt(|| format!("could not make {}", scratch.display()))?;
        Floor::start(&self.namespace, &[rootfs.display().to_string(), scratch.display().to_string()])
    }

    pub(super) fn spawn(&self) -> Result<Floor, Failure> {
        Floor::start(&self.spawn, &[])
    }
}

/// One running program: it reads a line and writes its microseconds.
pub(super) struct Floor {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Floor {
    pub(super) fn start(path: &Path, arguments: &[String]) -> Result<Self, Failure> {
        let mut child = program(path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .attempt(|| format!("could not start {}", path.display()))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("the floor's pipes are missing"));
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    pub(super) fn once(&mut self) -> Result<Duration, Failure> {
        let mut line = String::new();
        self.input.write_all(b"\n").attempt(|| "the floor ended".into())?;
        self.output.read_line(&mut line).attempt(|| "the floor ended".into())?;
        let microseconds: f64 = line.trim().parse().attempt(|| format!("the floor answered {line:?}"))?;
        Ok(Duration::from_secs_f64(microseconds / 1e6))
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The image of sandboxes, flattened into one directory for runtimes without layers. Copied out of a sandbox, so that it
/// doesn't matter how the store keeps its layers.
pub(super) fn root_file_system(api: &mut Connection, work: &Path) -> Result<PathBuf, Failure> {
    let rootfs = work.join("rootfs");
    if rootfs.join("bin/true").exists() {
        return Ok(rootfs);
    }
    let (unfinished, archive) = (work.join("rootfs.new"), work.join("rootfs.tar"));
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished).attempt(|| format!("could not make {}", unfinished.display()))?;
    api.create("bench-rootfs")?;
    api.bash(
        "bench-rootfs",
        "sudo tar --one-file-system -C / --exclude=./var/tmp/root.tar --exclude=./proc/* --exclude=./sys/* --exclude=./dev/* \
         -cf /var/tmp/root.tar . 2>/dev/null; sudo chmod 644 /var/tmp/root.tar",
    )?;
    let mut file = fs::File::create(&archive).attempt(|| format!("could not make {}", archive.display()))?;
    api.download("/sandbox/bench-rootfs/v1/file/download?path=/var/tmp/root.tar", &mut file)?;
    api.delete("bench-rootfs")?;
    quietly("tar", &["-xpf", &archive.display().to_string(), "-C", &unfinished.display().to_string()], work)?;
    fs::remove_file(&archive).attempt(|| format!("could not remove {}", archive.display()))?;
    for dir in ["proc", "sys", "dev", "tmp"] {
        fs::create_dir_all(unfinished.join(dir)).attempt(|| format!("could not make /{dir}"))?;
    }
    fs::rename(&unfinished, &rootfs).attempt(|| format!("could not make {}", rootfs.display()))?;
    Ok(rootfs)
}

/// `runc run` of `true` on the same files.
pub(super) struct Runc {
    bundle: PathBuf,
}

impl Runc {
    pub(super) fn prepare(rootfs: &Path, work: &Path) -> Result<Self, Failure> {
        let bundle = work.join("runc");
        let _ = fs::remove_dir_all(&bundle);
        fs::create_dir_all(&bundle).attempt(|| format!("could not make {}", bundle.display()))?;
        quietly("runc", &["spec"], &bundle)?;
        let path = bundle.join("config.json");
        let text = fs::read(&path).attempt(|| format!("could not read {}", path.display()))?;
        let mut config: serde_json::Value = serde_json::from_slice(&text).attempt(|| "runc's own spec is no JSON".into())?;
        config["root"] = serde_json::json!({ "path": rootfs, "readonly": true });
        config["process"]["args"] = serde_json::json!(["true"]);
        config["process"]["terminal"] = false.into();
        // The default requires limits above what this process may set on some hosts.
        config["process"]["rlimits"] = serde_json::json!([]);
        fs::write(&path, config.to_string()).attempt(|| format!("could not write {}", path.display()))?;
        Ok(Self { bundle })
    }

    pub(super) fn once(&self) -> Result<Duration, Failure> {
        let name = format!("arenite-bench-{}", std::process::id());
        let begun = Instant::now();
        self.run(&name)?;
        Ok(begun.elapsed())
    }

    fn run(&self, name: &str) -> Outcome {
        quietly("runc", &["run", name], &self.bundle)
    }
}
