//! Images from elsewhere: creates from a pulled one, a large one under many sandboxes, and unpacking next to Docker's.

mod archive;
mod daemons;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;

use super::http::Connection;
use super::report::{Report, Row};
use super::{PAUSE, WARM_UP};
use crate::command::{self, program};
use crate::failure::{Attempt, Failure, Outcome};

use archive::ImageDir;
use daemons::{Docker, Registry};

/// Sandboxes of the large image.
const MANY: usize = 50;
/// Content of the large image beyond `base`, in files of `LARGE_FILE` bytes.
const LARGE_BYTES: u64 = 2 << 30;
const LARGE_FILE: u64 = 64 << 20;
const FILES: u64 = LARGE_BYTES / LARGE_FILE;
/// Memory of the sandbox that reads it first: the kernel counts the page cache of its files as its own.
const READER_MEMORY: u64 = 4 << 30;
/// Loads that are measured.
const LOADS: usize = 5;
const MIB: f64 = (1u64 << 20) as f64;

/// Where the group measures.
pub(super) struct Setting<'a> {
    pub(super) arenite: &'a Path,
    pub(super) data_dir: &'a Path,
    pub(super) work: &'a Path,
    /// That of the measured server.
    pub(super) port: u16,
    pub(super) rounds: usize,
}

impl Setting<'_> {
    fn scratch(&self) -> Result<PathBuf, Failure> {
        let work = self.work.join("images");
        std::fs::create_dir_all(&work).attempt(|| format!("could not make {}", work.display()))?;
        Ok(work)
    }

    fn image(&self, words: &[&str]) -> Result<String, Failure> {
        command::output(program(self.arenite).arg("image").args(words).arg("--data-dir").arg(self.data_dir))
    }

    /// Removes an image, with its layers, if it is there.
    fn remove(&self, name: &str) -> Outcome {
        if self.image(&["inspect", name]).is_ok() {
            self.image(&["rm", "--force", name])?;
        }
        self.image(&["prune"]).map(drop)
    }

    /// Bytes of the storage that are in use, after all is written to it.
    fn used(&self) -> Result<f64, Failure> {
        let pool = self.data_dir.join("pool");
        command::output(program("sync").arg("-f").arg(&pool))?;
        let text = command::output(program("df").args(["--output=used", "--block-size=1"]).arg(&pool))?;
        text.lines().nth(1).and_then(|line| line.trim().parse().ok()).ok_or_else(|| Failure::new(format!("df printed {text:?}")))
    }
}

/// Create → first output from a pulled image, against the same from `base` with the same files.
pub(super) fn creates(setting: &Setting<'_>, report: &mut Report) -> Outcome {
    let work = setting.scratch()?;
    let registry = Registry::start(&work.join("registry"))?;
    let image = format!("{}/bench/pulled:1", registry.host);
    setting.image(&["push", "base", &image])?;
    setting.image(&["pull", &image])?;
    // After what takes long: the server closes idle connections.
    let mut api = Connection::open(setting.port)?;
    let (mut pulled, mut built) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + setting.rounds {
        // Each is first in half of the rounds: what a delete leaves to do is in the other's time otherwise.
        let names = if round % 2 == 0 { ["base", &image] } else { [&image, "base"] };
        for name in names {
            let took = create(&mut api, name)?;
            if round >= WARM_UP {
                if name == "base" { built.push(took) } else { pulled.push(took) }
            }
        }
    }
    setting.remove(&image)?;
    let row = Row::ratio("create from a pulled image → first output, p50", &pulled, 0.50, &built, 0.50, 1.1);
    report.push(row.against("the same from `base`"));
    Ok(())
}

fn create(api: &mut Connection, image: &str) -> Result<Duration, Failure> {
    let name = "bench-image";
    let begun = Instant::now();
    api.create_of(name, image)?;
    let output = api.bash(name, "echo hi")?;
    let took = begun.elapsed();
    if output != "hi\n" {
        return Err(Failure::new(format!("the first command of a sandbox of {image} answered {output:?}")));
    }
    api.delete(name)?;
    std::thread::sleep(PAUSE);
    Ok(took)
}

/// What 50 sandboxes of a large image cost on disk and in the page cache, of which it is the same files.
pub(super) fn shared(setting: &Setting<'_>, report: &mut Report) -> Outcome {
    let work = setting.scratch()?;
    let image = "bench/large:1";
    setting.remove(image)?;
    let before = setting.used()?;
    {
        let dir = ImageDir::of_base(&work.join("large"), setting)?;
        let file = dir.layer("large", |tar| tar.large_files("data", FILES, LARGE_FILE, true))?;
        dir.finish(image, &[file])?;
        setting.image(&["load", &dir.path()])?;
    }
    let loaded = setting.used()?;
    report.push(Row::plain("an image of 2 GiB beyond `base`: disk of its layers", (loaded - before) / MIB, "MiB"));
    let mut api = Connection::open(setting.port)?;
    let name = |number: usize| format!("bench-large-{number}");
    let mut groups = Vec::new();
    for number in 0..MANY {
        let mut request = json!({ "name": name(number), "image": image });
        if number == 0 {
            request["resources"] = json!({ "memory_bytes": READER_MEMORY });
        }
        let created = api.post("/api/v2/sandboxes", &request)?;
        groups.push(control_group(created["id"].as_str().unwrap_or_default())?);
        api.bash(&name(number), "echo hi > /tmp/hi")?;
    }
    let on_disk = (setting.used()? - loaded) / MIB;
    report.push(Row::at_most("50 sandboxes of it: disk that they add", on_disk, "MiB", 100.0));

    // What loading it left in the page cache belongs to none of them.
    std::fs::write("/proc/sys/vm/drop_caches", "1").attempt(|| "could not empty the page cache".into())?;
    for number in 0..MANY {
        let read = "for file in /data/*; do dd if=$file of=/dev/null bs=1M status=none || exit; done; ls /data | wc -l";
        let read = api.bash(&name(number), read)?;
        if read.trim() != FILES.to_string() {
            return Err(Failure::new(format!("{} read {read:?}", name(number))));
        }
    }
    let cached = groups.iter().map(|group| page_cache(group)).collect::<Result<Vec<_>, _>>()?;
    report.push(Row::plain("all of them read the 2 GiB: page cache of the first", cached[0] / MIB, "MiB"));
    let others = cached[1..].iter().sum::<f64>() / MIB;
    report.push(Row::at_most("all of them read the 2 GiB: page cache of the 49 others", others, "MiB", 1024.0));
    for number in 0..MANY {
        api.delete(&name(number))?;
    }
    setting.remove(image)
}

/// The directory of a sandbox's control group that counts its memory.
fn control_group(id: &str) -> Result<PathBuf, Failure> {
    let found = command::output(program("find").args(["/sys/fs/cgroup", "-ignore_readdir_race", "-type", "d", "-name", id]))?;
    let counts = |dir: &&str| Path::new(dir).join("memory.stat").is_file();
    found.lines().find(counts).map(PathBuf::from).ok_or_else(|| Failure::new(format!("the sandbox {id:?} has no control group")))
}

/// Bytes of the page cache that the kernel counts as a control group's and those in it: the files' pages that they read first.
fn page_cache(group: &Path) -> Result<f64, Failure> {
    let path = group.join("memory.stat");
    let text = std::fs::read_to_string(&path).attempt(|| format!("could not read {}", path.display()))?;
    // Version 1 of control groups has the first, and version 2 the second.
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    let bytes = field("total_cache ").or_else(|| field("file "));
    bytes.ok_or_else(|| Failure::new(format!("{} has no page cache", path.display())))
}

/// Loads of the same archive here and in Docker, until all is on disk.
pub(super) fn loads(setting: &Setting<'_>, report: &mut Report) -> Outcome {
    let work = setting.scratch()?;
    let image = "bench/unpacked:1";
    let dir = ImageDir::empty(&work.join("unpacked"))?;
    // As in a Debian root: many small files, and a few large ones, of which half are compressed already.
    let small = dir.layer("small", |tar| tar.small_files("usr/share", 1_500, 10))?;
    let large = dir.layer("large", |tar| {
        tar.large_files("usr/lib", 12, 8 << 20, false)?;
        tar.large_files("opt", 12, 8 << 20, true)
    })?;
    let layers = [dir.compress(small)?, dir.compress(large)?];
    let bytes: u64 = layers.iter().map(|layer| layer.bytes).sum();
    dir.finish(image, &layers)?;
    let archive = dir.pack()?;
    let docker = Docker::start(&work.join("docker"))?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..1 + LOADS {
        setting.remove(image)?;
        let begun = Instant::now();
        setting.image(&["load", &archive])?;
        let our = begun.elapsed();
        let their = docker.load(&archive)?;
        docker.remove(image)?;
        if round > 0 {
            ours.push(our);
            theirs.push(their);
        }
    }
    setting.remove(image)?;
    let name = format!("load of an image with 15,024 files, {} MiB in two layers", bytes >> 20);
    let row = Row::faster(&name, &ours, &theirs, 0.8);
    report.push(row.against("docker load, and sync as ours does"));
    Ok(())
}
