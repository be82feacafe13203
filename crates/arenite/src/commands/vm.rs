//! `vm build|import|probe|list`: images that contain a VM, built in the same steps as every image.
//!
//! ```text
//!  vm-host: base with QEMU ──────────────┬────────────────────────────┐
//!                                             ▼                            ▼
//!  NAME-root ──► NAME-tar ──── one file ──► NAME-disk ──── one file ──►  NAME ──► booted, its state kept
//!  (Imagefile)   (its files)                (a disk that boots)
//! ```
//!
//! Every step runs in a sandbox: the host needs no disk tools and never reads a disk.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use arenite_engine::namespace::{Builder, KvmVerdict, VM_LABEL, WithKvm, kvm_opens};
use arenite_guest::vm::{KEEP_READY, PROBE_KVM};
use arenite_image::{BuildEnv, BuildOptions, BuildRequest, BuildRunner, Image, ImageError, Imagefile};
use arenite_model::ImageName;
use serde_json::json;

use super::{base, image};
use crate::cli::{VmBuildArgs, VmCommand, VmImportArgs, VmListArgs, VmProbeArgs, VmSettings};
use crate::config::values::Size;
use crate::failure::{Attempt, Failure, Outcome};
use crate::output::{Entries, Form, View};
use crate::{output, serve};

/// Seconds in which a VM must boot with KVM to count as working. Without KVM it takes a minute or two.
const PROBE_SECONDS: u32 = 60;
/// Why a host without the device runs VMs without KVM.
const NO_DEVICE: &str = "there is no /dev/kvm that opens";
/// The base image of images with a VM.
const HOST: &str = "vm-host";

/// An embedded file: its path below the directory that COPY copies from, and its content.
macro_rules! along {
    ($($path:literal),*) => { &[$(($path, include_str!(concat!("../../../../images/", $path)))),*] };
}
const HOST_FILES: &[(&str, &str)] = along!("vm-host/mkdisk", "vm-host/check");
const ROOT_FILES: &[(&str, &str)] =
    along!("vm/agent.py", "vm/boot", "vm/initrd", "vm/inittab", "vm/jwmrc", "vm/kernel", "vm/screen", "vm/session");
const HOST_IMAGEFILE: &str = include_str!("../../../../images/vm-host.Imagefile");
const ROOT_IMAGEFILE: &str = include_str!("../../../../images/vm.Imagefile");

pub(crate) fn run(command: &VmCommand) -> Outcome {
    match command {
        VmCommand::Build(args) => worked(&args.settings, build(args)),
        VmCommand::Import(args) => worked(&args.settings, import(args)),
        VmCommand::Probe(args) => probe(args),
        VmCommand::List(args) => list(args),
    }
}

/// Runs the work, unless it is interrupted.
fn done<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    image::must_be_root()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().attempt(|| "could not start".into())?;
    runtime.block_on(async {
        tokio::select! {
            done = work => done,
            () = image::interrupted() => Err(Failure::new("it was interrupted; the steps that were done are kept").exit_code(130)),
        }
    })
}

fn worked(settings: &VmSettings, work: impl Future<Output = Result<Image, Failure>>) -> Outcome {
    let image = done(work)?;
    eprintln!(
        "image {} is built: {}, with a VM with {} memory",
        image.name,
        Size(image.size_bytes).short(),
        settings.memory.short()
    );
    Ok(ExitCode::SUCCESS)
}

/// Builds of one command, one after another.
struct Work<'a> {
    builder: Builder,
    env: BuildEnv,
    data_dir: &'a Path,
    verbose: bool,
}

impl<'a> Work<'a> {
    async fn begin(data_dir: &'a Path, verbose: bool) -> Result<Self, Failure> {
        let config = serve::namespace_config(data_dir)?;
        let builder = Builder::open(config)
            .await
            .map_err(|error| Failure::new(format!("the build could not begin: {error}")).maybe_hint(error.hint()))?;
        Ok(Self { builder, env: BuildEnv::of_host(), data_dir, verbose })
    }

    async fn image(&self, name: &ImageName, file: &Imagefile, context: &Path, use_cache: bool) -> Result<Image, Failure> {
        self.image_by(&self.builder, name, file, context, use_cache).await.map_err(|error| image::refused(&error))
    }

    /// As [`Self::image`], with steps run by a builder that may have KVM.
    async fn image_by(
        &self,
        runner: &dyn BuildRunner,
        name: &ImageName,
        file: &Imagefile,
        context: &Path,
        use_cache: bool,
    ) -> Result<Image, ImageError> {
        eprintln!("image {name}");
        let options = BuildOptions::default();
        let request = BuildRequest {
            imagefile: file,
            context_dir: context,
            name,
            env: &self.env,
            use_cache,
            options: &options,
            tenant: None,
        };
        let mut progress = image::Progress::new(self.verbose);
        let built = arenite_image::build(self.builder.images(), request, runner, &mut |event| progress.show(&event)).await;
        progress.end();
        built
    }

    /// Builds an image from an Imagefile that is embedded or generated here, with embedded files.
    async fn of_text(&self, name: &ImageName, text: &str, files: &[(&str, &str)], use_cache: bool) -> Result<Image, Failure> {
        let context = tempfile::tempdir().attempt(|| "could not make a directory".into())?;
        for (path, content) in files {
            let path = context.path().join(path);
            let parent = path.parent().unwrap_or(context.path());
            std::fs::create_dir_all(parent).attempt(|| format!("could not make {}", parent.display()))?;
            std::fs::write(&path, content).attempt(|| format!("could not write {}", path.display()))?;
        }
        self.image(name, &parsed(text)?, context.path(), use_cache).await
    }

    /// Builds the base image of images with a VM, and its own base.
    async fn host(&self, no_cache: bool) -> Result<(), Failure> {
        let base = named("base")?;
        if self.builder.images().get(&base).is_err() {
            self.of_text(&base, base::BASE, &[], true).await?;
        }
        self.of_text(&named(HOST)?, HOST_IMAGEFILE, HOST_FILES, !no_cache).await?;
        Ok(())
    }

    /// Builds the image with the disk. The disk is checked first, and booted last.
    async fn vm_image(
        &self,
        name: &ImageName,
        disk: &Path,
        devices: &str,
        is_own: bool,
        settings: &VmSettings,
    ) -> Result<Image, Failure> {
        let VmSettings { memory, cpus, agent_port, boot_seconds, cold, no_cache, .. } = settings;
        let memory_mb = memory.0 >> 20;
        let file = disk.file_name().and_then(|name| name.to_str()).filter(|name| !name.contains(char::is_control));
        let file = file.ok_or_else(|| Failure::new(format!("{} is no file that can be copied", disk.display())))?;
        let settings = json!({
            "disk": "/var/lib/machine/disk.qcow2", "memory_mb": memory_mb, "cpus": cpus, "agent_port": agent_port,
            "boot_seconds": boot_seconds, "devices": devices,
        });
        let copy = json!([file, "/var/lib/machine/disk.qcow2"]);
        let write = json!([
            "/bin/sh",
            "-c",
            "mkdir -p /etc/arenite && printf '%s\\n' \"$0\" >/etc/arenite/vm.json",
            settings.to_string()
        ]);
        let told = format!("{}, {cpus} cores, {}", memory.short(), if *cold { "boots" } else { "booted" });
        let mut text = format!("FROM {HOST}\nUSER root\nCOPY --chmod=644 {copy}\n");
        if !is_own {
            text += "RUN [\"/usr/local/lib/machine/check\", \"/var/lib/machine/disk.qcow2\"]\n";
        }
        text += &format!("RUN {write}\nLABEL {VM_LABEL}=\"{told}\"\nUSER gem\n");
        let context = disk.parent().unwrap_or(Path::new("/"));
        if *cold || *agent_port == 0 {
            return self.image(name, &parsed(&text)?, context, !no_cache).await;
        }
        let known = KvmVerdict::read(self.data_dir);
        let (verdict, is_begun) = match known {
            Some(verdict) => (verdict, false),
            None if !kvm_opens() => (KvmVerdict::new(false, NO_DEVICE.to_owned()), false),
            None => (self.probe(name, &text, context, PROBE_SECONDS, !no_cache).await?, true),
        };
        // The earlier steps are those of the probe.
        let use_cache = is_begun || !no_cache;
        if !verdict.works {
            text += &format!("RUN {}\n", json!([KEEP_READY]));
            return self.image(name, &parsed(&text)?, context, use_cache).await;
        }
        text += &format!("RUN {}\n", json!([KEEP_READY, "kvm"]));
        let built = self.image_by(&WithKvm(&self.builder), name, &parsed(&text)?, context, use_cache).await;
        built.map_err(|error| image::refused(&error))
    }

    /// Boots the VM of an Imagefile with KVM, and stores the result. Keeps nothing else.
    async fn probe(
        &self,
        name: &ImageName,
        text: &str,
        context: &Path,
        seconds: u32,
        use_cache: bool,
    ) -> Result<KvmVerdict, Failure> {
        eprintln!("trying whether VMs boot with KVM here, for {seconds} s at most");
        // The time prevents the step from being cached.
        let words = json!([PROBE_KVM, seconds.to_string(), jiff::Timestamp::now().to_string()]);
        let (image, file) = (named(&format!("{name}-kvm"))?, parsed(&format!("{text}RUN {words}\n"))?);
        let verdict = match self.image_by(&WithKvm(&self.builder), &image, &file, context, use_cache).await {
            Ok(_) => KvmVerdict::new(true, format!("VM {name} booted with it")),
            Err(ImageError::Failed { tail, .. }) => {
                let why = tail.last().map_or("it failed", String::as_str);
                KvmVerdict::new(false, format!("VM {name} did not boot with it: {}", output::harmless(why)))
            }
            Err(error) => return Err(image::refused(&error)),
        };
        self.drop_step(&image);
        verdict.keep(self.data_dir).attempt(|| format!("could not write to {}", self.data_dir.display()))?;
        eprintln!("{}", told(&verdict));
        Ok(verdict)
    }

    /// Removes an intermediate image, with the layers that no other uses.
    fn drop_step(&self, name: &ImageName) {
        // A leftover uses space and does no harm; `image rm` removes it.
        let Ok(records) = image::records(self.data_dir) else { return };
        let used = image::layers_of(&records);
        drop(self.builder.images().remove(name, &|digest| used.contains(digest)));
    }
}

fn parsed(text: &str) -> Result<Imagefile, Failure> {
    Imagefile::parse(text.as_bytes()).map_err(|error| image::refused(&error.into()))
}

fn named(name: &str) -> Result<ImageName, Failure> {
    name.parse().map_err(|error: arenite_model::IdError| Failure::new(format!("{name:?} can't be an image's name: {error}")))
}

/// The single file that the last step of an image created.
fn made(image: &Image, path: &str) -> Result<PathBuf, Failure> {
    let layer = image.layers.last().ok_or_else(|| Failure::new(format!("image {} has no layer", image.name)))?;
    Ok(layer.dir.join(path))
}

async fn build(args: &VmBuildArgs) -> Result<Image, Failure> {
    let VmBuildArgs { name, file, context, size, settings } = args;
    let step = |suffix: &str| named(&format!("{name}-{suffix}"));
    let (root, tar, disk) = (step("root")?, step("tar")?, step("disk")?);
    let work = Work::begin(&settings.data_dir.data_dir, settings.verbose).await?;
    work.host(settings.no_cache).await?;
    match file {
        None => work.of_text(&root, ROOT_IMAGEFILE, ROOT_FILES, !settings.no_cache).await?,
        Some(path) => {
            let imagefile = Imagefile::read(path).map_err(|error| {
                Failure::new(format!("{}: {}", path.display(), image::refused(&error))).maybe_hint(error.hint())
            })?;
            let beside = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            work.image(&root, &imagefile, context.as_deref().unwrap_or(beside), !settings.no_cache).await?
        }
    };
    let pack = "tar --one-file-system --exclude=./vm-root.tar --exclude='./run/*' --exclude='./tmp/*' --exclude='./var/cache/apt/*.bin' \
        -C / -cf /vm-root.tar .";
    let packed = work.of_text(&tar, &format!("FROM {root}\nUSER root\nRUN {pack}\n"), &[], true).await?;
    let archive = made(&packed, "vm-root.tar")?;
    let make = format!(
        "FROM {HOST}\nUSER root\nCOPY vm-root.tar /var/tmp/\n\
         RUN set -eu; mkdir /var/tmp/root; tar -C /var/tmp/root -xf /var/tmp/vm-root.tar; \
         /usr/local/lib/machine/mkdisk /var/tmp/root {} /vm-disk.qcow2; rm -rf /var/tmp/root /var/tmp/vm-root.tar\n",
        size.0
    );
    let context = archive.parent().unwrap_or(Path::new("/"));
    let made_disk = work.image(&disk, &parsed(&make)?, context, true).await?;
    work.drop_step(&tar);
    let built = work.vm_image(name, &made(&made_disk, "vm-disk.qcow2")?, "virtio", true, settings).await?;
    work.drop_step(&disk);
    Ok(built)
}

async fn import(args: &VmImportArgs) -> Result<Image, Failure> {
    let path = args.path.canonicalize().attempt(|| format!("could not find {}", args.path.display()))?;
    let settings = &args.settings;
    let work = Work::begin(&settings.data_dir.data_dir, settings.verbose).await?;
    work.host(settings.no_cache).await?;
    work.vm_image(&args.name, &path, &args.devices, false, settings).await
}

fn told(verdict: &KvmVerdict) -> String {
    format!("VMs run with{} KVM here: {}", if verdict.works { "" } else { "out" }, verdict.reason)
}

fn probe(args: &VmProbeArgs) -> Outcome {
    let VmProbeArgs { image, seconds, off, verbose, format, data_dir } = args;
    let data_dir = &data_dir.data_dir;
    let verdict = done(async {
        if *off || !kvm_opens() {
            let reason = if *off { "it was turned off" } else { NO_DEVICE };
            let verdict = KvmVerdict::new(false, reason.to_owned());
            std::fs::create_dir_all(data_dir)
                .and_then(|()| verdict.keep(data_dir))
                .attempt(|| format!("could not write to {}", data_dir.display()))?;
            eprintln!("{}", told(&verdict));
            return Ok(verdict);
        }
        let work = Work::begin(data_dir, *verbose).await?;
        work.probe(image, &format!("FROM {image}\n"), Path::new("/"), *seconds, true).await
    })?;
    if format.json {
        output::json(&json!({ "works": verdict.works, "reason": verdict.reason, "made_at": verdict.made_at }));
    }
    Ok(ExitCode::SUCCESS)
}

fn list(args: &VmListArgs) -> Outcome {
    let images = match image::open(&args.data_dir.data_dir)? {
        Some(store) => store.list().map_err(|error| image::refused(&error))?,
        None => Vec::new(),
    };
    let vms: Vec<&Image> = images.iter().filter(|image| image.config.labels.contains_key(VM_LABEL)).collect();
    let form = args.output.form();
    if form != Form::Table {
        let value = serde_json::to_value(&vms).attempt(|| "could not write the list".into())?;
        return form.show(json!({ "vms": value }), Entries { list: "vms", names: &["name"] }, |_| Ok(View::default()));
    }
    if vms.is_empty() {
        eprintln!("no VM image is built here; build one with: arenite vm build");
        return Ok(ExitCode::SUCCESS);
    }
    let now = jiff::Timestamp::now();
    let mut rows = output::table(&["image", "vm", "size", "built"]);
    for image in vms {
        rows.add_row([
            image.name.to_string(),
            output::harmless(&image.config.labels[VM_LABEL]),
            Size(image.size_bytes).short(),
            format!("{} ago", output::distance(image.created_at, now)),
        ]);
    }
    output::rows(&rows);
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_along_is_valid_and_whole() {
        for (text, files) in [(HOST_IMAGEFILE, HOST_FILES), (ROOT_IMAGEFILE, ROOT_FILES)] {
            Imagefile::parse(text.as_bytes()).unwrap();
            let directory = files[0].0.split('/').next().unwrap();
            let there =
                std::fs::read_dir(Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("../../images").join(directory))
                    .unwrap();
            let mut there: Vec<String> =
                there.map(|entry| format!("{directory}/{}", entry.unwrap().file_name().to_string_lossy())).collect();
            there.sort();
            assert_eq!(
                there,
                files.iter().map(|(path, _)| *path).collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
            );
        }
    }
}
