//! `cargo xtask dist`: what users install without a compiler.
//!
//! ```text
//!  arenite-VERSION-ARCHITECTURE-linux.tar.gz   the program, manual pages, completions
//!  arenite_VERSION_ARCHITECTURE.deb            the same, with units of systemd and /etc/arenite.toml
//!  arenite-VERSION-ARCHITECTURE-container.tar  an image with the program, for Kubernetes and Docker
//!  arenite-VERSION.cdx.json                    the crates that the program is built from (CycloneDX)
//!  arenite-image-NAME-ARCHITECTURE.tar         an image for a host without network; only with --image
//!  SHA256SUMS
//! ```
//!
//! The same commit gives the same bytes: files carry the commit's time, and no path of this machine is in the program.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Deserialize;
use serde_json::json;

use crate::binary::Profile;
use crate::failure::{Attempt, Failure, Outcome};
use crate::{binary, command, container_image, host, image};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Completion scripts: the shell, and where Debian's packages put it.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/arenite"),
    ("zsh", "usr/share/zsh/vendor-completions/_arenite"),
    ("fish", "usr/share/fish/vendor_completions.d/arenite.fish"),
];

#[derive(Debug, Args)]
pub(crate) struct DistArgs {
    /// Package this program instead of building one
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Directory for the results; its content is replaced [default: dist in the target directory]
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Also save these images of the data directory, for hosts without network; needs root
    #[arg(long = "image", value_name = "NAME")]
    images: Vec<String>,
    /// The server's data directory, which has the images
    #[arg(long, default_value = "/var/lib/arenite", value_name = "DIR")]
    data_dir: PathBuf,
    /// Build the last commit a second time, in another directory, and compare all files
    #[arg(long, conflicts_with_all = ["program", "images"])]
    check_reproducible: bool,
}

pub(crate) fn run(args: &DistArgs) -> Outcome {
    if !args.images.is_empty() {
        host::must_be_root("dist --image")?;
    }
    let output = build(args)?;
    if args.check_reproducible { compare_with_second_build(&output) } else { Ok(()) }
}

/// Builds everything; returns the directory of the results.
fn build(args: &DistArgs) -> Result<PathBuf, Failure> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => {
            host::prepare(&[host::TO_BUILD])?;
            binary::build(Profile::Dist)?
        }
    };
    let output = args.output.clone().unwrap_or_else(|| command::target_dir().join("dist"));
    if output.exists() {
        fs::remove_dir_all(&output).attempt(|| format!("could not empty {}", output.display()))?;
    }
    let stage = output.join("stage");
    let dist = Dist { program, epoch: commit_time()?, stage };
    let tarball = dist.tarball(&output)?;
    let package = dist.package(&output)?;
    let materials = output.join(format!("arenite-{VERSION}.cdx.json"));
    fs::write(&materials, bill_of_materials()?).attempt(|| format!("could not write {}", materials.display()))?;
    let container = output.join(format!("arenite-{VERSION}-{}-container.tar", std::env::consts::ARCH));
    container_image::write_image(
        &dist.program,
        &container_image::default_name(),
        false,
        &dist.stage.join("container"),
        &container,
    )?;
    fs::remove_dir_all(&dist.stage).attempt(|| "could not remove the staging directory".into())?;

    let mut files = vec![tarball, package, container, materials];
    for name in &args.images {
        let file = output.join(format!("arenite-image-{}-{}.tar", name.replace(['/', ':'], "_"), std::env::consts::ARCH));
        image::ensure(&dist.program, name, &args.data_dir)?;
        let mut save = command::program(&dist.program);
        save.args(["image", "save", name, "--data-dir"]).arg(&args.data_dir).arg("--output").arg(&file);
        command::run(&mut save)?;
        files.push(file);
    }
    let names: Vec<_> = files.iter().filter_map(|file| file.file_name()).collect();
    let sums = command::output(command::program("sha256sum").current_dir(&output).args(&names))?;
    fs::write(output.join("SHA256SUMS"), &sums).attempt(|| "could not write SHA256SUMS".into())?;
    for file in &files {
        let bytes = fs::metadata(file).attempt(|| format!("could not read {}", file.display()))?.len();
        println!("{:>8.1} MiB  {}", bytes as f64 / f64::from(1 << 20), file.display());
    }
    Ok(output)
}

/// Builds a clone of the last commit in another directory, with its own output, and compares the checksums.
fn compare_with_second_build(first: &Path) -> Outcome {
    let changed = command::output(command::program("git").args(["status", "--porcelain", "--untracked-files=no"]))?;
    if !changed.is_empty() {
        return Err(Failure::new(format!("commit these changes first, since the second build has only commits:\n{changed}")));
    }
    let scratch = command::target_dir().join("dist-second");
    if scratch.exists() {
        fs::remove_dir_all(&scratch).attempt(|| format!("could not empty {}", scratch.display()))?;
    }
    let (clone, second) = (scratch.join("another/clone"), scratch.join("dist"));
    command::run(command::program("git").args(["clone", "--quiet", "--no-hardlinks", "."]).arg(&clone))?;
    let mut again = command::cargo();
    again.current_dir(&clone).env("CARGO_TARGET_DIR", scratch.join("target")).args(["xtask", "dist", "--output"]).arg(&second);
    command::run(&mut again)?;
    let [a, b] = [first, &second].map(|dir| {
        let sums = dir.join("SHA256SUMS");
        fs::read_to_string(&sums).attempt(|| format!("could not read {}", sums.display()))
    });
    let (a, b) = (a?, b?);
    if a != b {
        let both = format!("{}:\n{a}{}:\n{b}", first.display(), second.display());
        return Err(Failure::new(format!("two builds of the same commit differ:\n{both}")));
    }
    println!("a second build has the same bytes:\n{a}");
    fs::remove_dir_all(&scratch).attempt(|| format!("could not remove {}", scratch.display()))
}

struct Dist {
    program: PathBuf,
    /// The time that all files get, in seconds since 1970.
    epoch: String,
    /// Where trees are put together.
    stage: PathBuf,
}

impl Dist {
    fn tarball(&self, output: &Path) -> Result<PathBuf, Failure> {
        let name = format!("arenite-{VERSION}-{}-linux", std::env::consts::ARCH);
        let tree = self.stage.join(&name);
        self.put(&self.program, &tree.join("arenite"), 0o755)?;
        for file in ["LICENSE", "README.md", "CHANGELOG.md", "packaging/arenite.toml"] {
            let path = Path::new(file);
            self.put(&command::repository().join(path), &tree.join(path.file_name().unwrap_or_default()), 0o644)?;
        }
        self.write_man(&tree.join("man"))?;
        for (shell, path) in COMPLETIONS {
            let file = Path::new(path).file_name().unwrap_or_default();
            self.write_completions(shell, &tree.join("completions").join(file))?;
        }
        let file = output.join(format!("{name}.tar.gz"));
        let mut tar = command::program("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=ustar"]);
        tar.arg(format!("--mtime=@{}", self.epoch)).args(["--use-compress-program", "gzip -6n", "-C"]).arg(&self.stage);
        command::run(tar.arg("-cf").arg(&file).arg(&name))?;
        Ok(file)
    }

    fn package(&self, output: &Path) -> Result<PathBuf, Failure> {
        let tree = self.stage.join("deb");
        let architecture = command::output(command::program("dpkg").arg("--print-architecture"))?.trim().to_owned();
        self.put(&self.program, &tree.join("usr/bin/arenite"), 0o755)?;
        let packaging = command::repository().join("packaging");
        for unit in ["arenite.service", "arenite.socket"] {
            self.put(&packaging.join(unit), &tree.join("lib/systemd/system").join(unit), 0o644)?;
        }
        self.put(&packaging.join("arenite.toml"), &tree.join("etc/arenite.toml"), 0o644)?;
        let documents = tree.join("usr/share/doc/arenite");
        self.put(&command::repository().join("LICENSE"), &documents.join("copyright"), 0o644)?;
        self.put(&command::repository().join("README.md"), &documents.join("README.md"), 0o644)?;
        self.put(&command::repository().join("CHANGELOG.md"), &documents.join("changelog"), 0o644)?;
        let pages = tree.join("usr/share/man/man1");
        self.write_man(&pages)?;
        self.compress(&files_below(&pages)?)?;
        self.compress(&[documents.join("changelog")])?;
        for (shell, path) in COMPLETIONS {
            self.write_completions(shell, &tree.join(path))?;
        }
        let bytes: u64 = files_below(&tree)?.iter().filter_map(|file| fs::metadata(file).ok()).map(|about| about.len()).sum();
        let control = fs::read_to_string(packaging.join("control")).attempt(|| "could not read packaging/control".into())?;
        let control = control.replace("VERSION", VERSION).replace("ARCHITECTURE", &architecture);
        let debian = tree.join("DEBIAN");
        write(&debian.join("control"), control.replace("KIBIBYTES", &(bytes / 1024).to_string()).as_bytes())?;
        write(&debian.join("conffiles"), b"/etc/arenite.toml\n")?;
        for script in ["postinst", "prerm"] {
            self.put(&packaging.join(script), &debian.join(script), 0o755)?;
        }
        let file = output.join(format!("arenite_{VERSION}_{architecture}.deb"));
        // gzip: also older releases of Debian read it, and its bytes don't depend on the number of processors.
        let mut build = command::program("dpkg-deb");
        build
            .env("SOURCE_DATE_EPOCH", &self.epoch)
            .args(["--root-owner-group", "-Zgzip", "-z6", "--build"])
            .arg(&tree)
            .arg(&file);
        // Directories get their modes from the umask, and everything its time from now; dpkg-deb lowers times to the commit's.
        command::run(command::program("chmod").args(["-R", "u=rwX,go=rX"]).arg(&tree))?;
        command::run(
            command::program("find")
                .arg(&tree)
                .args(["-exec", "touch", "-h", "-d"])
                .arg(format!("@{}", self.epoch))
                .args(["{}", "+"]),
        )?;
        command::run(&mut build)?;
        Ok(file)
    }

    fn write_man(&self, dir: &Path) -> Outcome {
        command::run(command::program(&self.program).arg("man").arg(dir))
    }

    fn write_completions(&self, shell: &str, file: &Path) -> Outcome {
        let script = command::output(command::program(&self.program).args(["completions", shell]))?;
        write(file, script.as_bytes())
    }

    fn compress(&self, files: &[PathBuf]) -> Outcome {
        command::run(command::program("gzip").arg("-9n").args(files))
    }

    fn put(&self, from: &Path, to: &Path, mode: u32) -> Outcome {
        write(to, &fs::read(from).attempt(|| format!("could not read {}", from.display()))?)?;
        fs::set_permissions(to, fs::Permissions::from_mode(mode))
            .attempt(|| format!("could not set the mode of {}", to.display()))
    }
}

pub(crate) fn write(file: &Path, content: &[u8]) -> Outcome {
    if let Some(parent) = file.parent() {
        fs::create_dir_all(parent).attempt(|| format!("could not create {}", parent.display()))?;
    }
    fs::write(file, content).attempt(|| format!("could not write {}", file.display()))
}

/// All files below a directory, sorted.
pub(crate) fn files_below(dir: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir).attempt(|| format!("could not list {}", dir.display()))? {
        let path = entry.attempt(|| format!("could not list {}", dir.display()))?.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// When the commit was made; `SOURCE_DATE_EPOCH` outside a clone.
pub(crate) fn commit_time() -> Result<String, Failure> {
    match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(time) => Ok(time),
        Err(_) => Ok(command::output(command::program("git").args(["log", "-1", "--format=%ct"]))?.trim().to_owned()),
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct Package {
    id: String,
    name: String,
    version: String,
    license: Option<String>,
    /// None for a member of the workspace.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    pkg: String,
    dep_kinds: Vec<DependencyKind>,
}

#[derive(Deserialize)]
struct DependencyKind {
    /// None for a normal dependency, else `build` or `dev`.
    kind: Option<String>,
}

/// The crates that end in the program, as CycloneDX 1.5.
fn bill_of_materials() -> Result<String, Failure> {
    let mut metadata = command::cargo();
    metadata.args(["metadata", "--format-version", "1", "--locked", "--filter-platform"]);
    let metadata = command::output(metadata.arg(format!("{}-unknown-linux-gnu", std::env::consts::ARCH)))?;
    let metadata: Metadata = serde_json::from_str(&metadata).attempt(|| "could not read cargo's metadata".into())?;
    let packages: BTreeMap<&str, &Package> = metadata.packages.iter().map(|package| (package.id.as_str(), package)).collect();
    let nodes: BTreeMap<&str, &Node> = metadata.resolve.nodes.iter().map(|node| (node.id.as_str(), node)).collect();
    let top = metadata.packages.iter().find(|package| package.source.is_none() && package.name == "arenite");
    let top = top.ok_or_else(|| Failure::new("the workspace has no package arenite"))?;

    let normal = |id: &str| -> Vec<&str> {
        let dependencies = nodes.get(id).map_or(&[][..], |node| &node.deps);
        let is_normal = |dependency: &&Dependency| dependency.dep_kinds.iter().any(|kind| kind.kind.is_none());
        dependencies.iter().filter(is_normal).map(|dependency| dependency.pkg.as_str()).collect()
    };
    let mut reached = BTreeSet::from([top.id.as_str()]);
    let mut waiting = vec![top.id.as_str()];
    while let Some(id) = waiting.pop() {
        waiting.extend(normal(id).into_iter().filter(|id| reached.insert(id)));
    }
    let reference = |package: &Package| format!("pkg:cargo/{}@{}", package.name, package.version);
    let reference_of = |id: &str| packages.get(id).map(|package| reference(package));
    let component = |package: &Package, kind: &str| {
        let mut component = json!({
            "type": kind,
            "bom-ref": reference(package),
            "name": package.name,
            "version": package.version,
        });
        if package.source.is_some() {
            component["purl"] = component["bom-ref"].clone();
        }
        if let Some(license) = &package.license {
            component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
        }
        component
    };
    let others = || reached.iter().filter(|id| **id != top.id).filter_map(|id| packages.get(id));
    let document = json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(top, "application") },
        "components": others().map(|package| component(package, "library")).collect::<Vec<_>>(),
        "dependencies": reached.iter().map(|id| json!({
            "ref": reference_of(id),
            "dependsOn": normal(id).into_iter().filter_map(reference_of).collect::<BTreeSet<_>>(),
        })).collect::<Vec<_>>(),
    });
    Ok(format!("{document:#}\n"))
}
