//! RUN steps of image builds, each in a separate sandbox.
//!
//! | | of the operator's build | of a client's build |
//! | --- | --- | --- |
//! | network | the host's, or none | that of sandboxes, or none |
//! | limits | 4 GiB of memory, 8192 processes | those of the build |
//! | ids | one range for all, as one build runs at a time | their own |
//! | cgroups | of builds | of the server's sandboxes |

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arenite_image::{BuildEnv, BuildRunner, ImageStore, MountContent, RunStep, RunnerError, StepOutput, StepSecret};
use arenite_isolation::mounts::{self, Attributes};
use arenite_isolation::{Begin, Bind};
use arenite_model::protocol::{self, GuestConfig};
use arenite_model::{NetworkMode, Resources, SandboxId, SandboxSpec};
use async_trait::async_trait;
use tokio::io::AsyncReadExt;

use super::data_dir::write_shared_file;
use super::engine::{blocking, config_file};
use super::network::EffectivePolicy;
use super::reset::failed_network;
use super::slot::{IdRanges, Slot, cgroup, kill, resolver, wait_end};
use super::{Host, NamespaceConfig, NamespaceEngine, Role, at};
use crate::EngineError;

/// Builds images on this host. One at a time per data directory: a second one waits.
pub struct Builder {
    host: Arc<Host>,
}

/// A step's processes, which end with it, also when it is canceled.
struct Running {
    host: Arc<Host>,
    slot: Slot,
    /// Files that the step sees until it ends.
    scratch: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        kill(&self.slot.first.pidfd);
        wait_end(&self.slot.first.pidfd, Duration::from_secs(30));
        self.host.sweep(&self.slot.id, self.slot.uid_index, self.slot.net_index);
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// The resolvers of a step.
enum Resolvers {
    OfHost,
    /// The content of the file.
    Of(String),
}

/// Runs steps of clients' builds as sandboxes of a server, with limits and on the network of sandboxes. Cheap to clone.
#[derive(Clone)]
pub struct SandboxSteps {
    host: Arc<Host>,
    spec: SandboxSpec,
}

impl NamespaceEngine {
    /// Runs the steps of a build with the limits and the network of a spec. The disk limit is the build's own concern: it provides
    /// the layers.
    pub fn steps(&self, spec: SandboxSpec) -> SandboxSteps {
        SandboxSteps { host: Arc::clone(&self.shared.host), spec }
    }

    /// The CA file that steps trust, as sandboxes do.
    pub fn extra_ca(&self) -> Option<&Path> {
        self.shared.host.config.extra_ca.as_deref()
    }
}

#[async_trait]
impl BuildRunner for SandboxSteps {
    async fn run(&self, step: RunStep, output: &mut StepOutput<'_>) -> Result<i32, RunnerError> {
        let network = match self.spec.network {
            NetworkMode::Open if !step.is_offline => NetworkMode::Open,
            // Never the host's.
            _ => NetworkMode::None,
        };
        let gateway = match network {
            NetworkMode::Open => Some(self.host.network()?.gateway()),
            _ => None,
        };
        let id = SandboxId::random();
        let scratch = self.host.records.step_dir(&id);
        // Before its processes: a start recognizes them by it.
        fs::create_dir_all(&scratch)?;
        let slot = match self.host.prepare_limited_step(id, network, self.spec.resources.clone()).await {
            Ok(slot) => slot,
            Err(error) => {
                let _ = fs::remove_dir_all(&scratch);
                return Err(error.into());
            }
        };
        let mut running = Running { host: Arc::clone(&self.host), slot, scratch };
        if let Some(index) = running.slot.net_index {
            let spec = self.spec.clone();
            running = blocking(move || {
                let policy = EffectivePolicy::of_spec(&spec);
                running.host.network()?.police(index, running.slot.id.as_str(), policy, false).map_err(failed_network)?;
                Ok(running)
            })
            .await?;
        }
        run_step(running, &step, &Resolvers::Of(resolver(gateway)), output).await
    }
}

impl Drop for Builder {
    fn drop(&mut self) {
        self.host.cgroups.close();
        self.host.storage.release();
    }
}

/// Builds images, with the host's KVM in their steps.
pub struct WithKvm<'a>(pub &'a Builder);

impl Builder {
    /// Opens the data directory for building; the server may be running on it.
    pub async fn open(mut config: NamespaceConfig) -> Result<Self, EngineError> {
        config.default_resources = Resources { memory_bytes: 4 << 30, cpu_millis: 64_000, pids: 8192, ..Resources::default() };
        let host = Arc::new(Host::open(config, Role::Build).await?);
        // Processes that an interrupted build left running.
        for stray in host.cgroups.list().map_err(cgroup)? {
            host.end_processes(&stray);
            let _ = host.cgroups.remove(&stray);
            let _ = fs::remove_dir_all(host.records.build_dir(&stray));
        }
        Ok(Self { host })
    }

    pub fn images(&self) -> &ImageStore {
        &self.host.images
    }

    async fn step(&self, step: RunStep, output: &mut StepOutput<'_>, kvm: bool) -> Result<i32, RunnerError> {
        let slot = self.host.prepare_step(SandboxId::random(), step.is_offline, kvm).await?;
        let scratch = self.host.records.build_dir(&slot.id);
        let running = Running { host: self.host.clone(), slot, scratch };
        run_step(running, &step, &Resolvers::OfHost, output).await
    }
}

/// Runs a step to its end in a slot that was prepared for it.
async fn run_step(
    running: Running,
    step: &RunStep,
    resolvers: &Resolvers,
    output: &mut StepOutput<'_>,
) -> Result<i32, RunnerError> {
    let (read, write) = io::pipe()?;
    let (mut status, status_write) = io::pipe()?;
    running.start(step, resolvers, write.into(), status_write.into())?;
    let mut read = tokio::net::unix::pipe::Receiver::from_owned_fd_unchecked(OwnedFd::from(read))?;
    let mut buffer = vec![0u8; 64 << 10];
    // Closes when every process of the step has ended, which the end of the first one causes.
    loop {
        match read.read(&mut buffer).await? {
            0 => break,
            length => output(&buffer[..length]),
        }
    }
    let mut text = String::new();
    status.read_to_string(&mut text)?;
    let kills = running.host.cgroups.counts(&running.slot.id).map_or(0, |counts| counts.oom_kills.unwrap_or(0));
    if kills > 0 {
        let limit = running.slot.limits.memory_bytes >> 20;
        output(
            format!("\narenite: the step used its {limit} MiB of memory, and the kernel killed {kills} of its processes\n")
                .as_bytes(),
        );
    }
    tokio::task::spawn_blocking(move || drop(running)).await?;
    // The path where the host's resolvers were mounted.
    let resolver = step.upper.join("etc/resolv.conf");
    if fs::symlink_metadata(&resolver).is_ok_and(|m| m.is_file() && m.len() == 0) {
        fs::remove_file(&resolver)?;
    }
    exit_code(&text)
}

impl Running {
    fn start(&self, step: &RunStep, resolvers: &Resolvers, output: OwnedFd, status: OwnedFd) -> Result<(), EngineError> {
        let slot = &self.slot;
        let mapped = |dir: &PathBuf, read_only| {
            mounts::detached(dir, Attributes { read_only, idmap: Some(slot.userns.as_fd()), ..Attributes::default() })
        };
        let layers = step
            .lower
            .iter()
            .map(|dir| mapped(dir, true))
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| at("id-mapped layer", e))?;
        let layer = mapped(&step.layer, false).map_err(|e| at("id-mapped writable layer", e))?;
        let config = config_file(&GuestConfig {
            env: step.env.clone(),
            args: step.argv.clone(),
            workdir: Some(step.workdir.clone()),
            user: Some(step.user.clone()),
            ..GuestConfig::default()
        })
        .map_err(|e| at("guest configuration", e))?;

        // All files are mounted read-only, so that a step can't change the host's.
        fs::create_dir_all(&self.scratch).map_err(|e| at("build files", e))?;
        let resolvers = match resolvers {
            Resolvers::OfHost => "/etc/resolv.conf".into(),
            Resolvers::Of(content) => {
                let file = self.scratch.join("resolv.conf");
                write_shared_file(&file, content.as_bytes()).map_err(|e| at("build files", e))?;
                file
            }
        };
        let mut files: Vec<(PathBuf, String)> = vec![(resolvers, "/etc/resolv.conf".to_owned())];
        files.extend(step.ca_file.clone().map(|file| (file, BuildEnv::CA_PATH.to_owned())));
        for (number, (target, content)) in step.files.iter().enumerate() {
            let file = self.scratch.join(number.to_string());
            write_shared_file(&file, content).map_err(|e| at("build files", e))?;
            files.push((file, target.clone()));
        }
        for (number, secret) in step.secrets.iter().enumerate() {
            let file = self.scratch.join(format!("secret-{number}"));
            // Its owner is the sandbox's own id on the host: the file system of the scratch directory may have no id maps.
            let base = IdRanges::base(slot.uid_index);
            write_secret(&file, secret, base).map_err(|e| at("build secrets", e))?;
            files.push((file, secret.target.clone()));
        }
        let mut bound: Vec<OwnedFd> = files
            .iter()
            .map(|(file, _)| mounts::detached(&file.canonicalize()?, Attributes { read_only: true, ..Attributes::default() }))
            .collect::<io::Result<_>>()
            .map_err(|e| at("build files", e))?;
        let mut binds: Vec<Bind> = files.into_iter().map(|(_, target)| Bind { target, directory: false }).collect();
        let mut tmpfs = Vec::new();
        for mount in &step.mounts {
            match &mount.content {
                MountContent::Bind { path, is_directory, is_read_only } => {
                    bound.push(mapped(path, *is_read_only).map_err(|e| at("build mount", e))?);
                    binds.push(Bind { target: mount.target.clone(), directory: *is_directory });
                }
                MountContent::Tmpfs { bytes } => tmpfs.push((mount.target.clone(), *bytes)),
            }
        }

        let begin = Begin {
            layers: layers.len(),
            upper: below(&step.layer, &step.upper)?,
            work: below(&step.layer, &step.work)?,
            hostname: "build".to_owned(),
            shm_bytes: slot.limits.shm_bytes,
            open_files: self.host.config.open_files,
            given: [protocol::OUTPUT, protocol::STATUS, protocol::CONFIG].map(str::to_owned).into(),
            scratch: vec!["/run".to_owned()],
            command: None,
            binds,
            tmpfs,
            container: None,
        };
        let given: Vec<_> = layers
            .iter()
            .map(|l| l.as_fd())
            .chain([layer.as_fd(), output.as_fd(), status.as_fd(), config.as_fd()])
            .chain(bound.iter().map(|b| b.as_fd()))
            .collect();
        slot.begin(&begin, &given)
    }
}

/// Writes a secret that only its owner in the sandbox can read.
fn write_secret(path: &Path, secret: &StepSecret, base: u32) -> io::Result<()> {
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(&secret.content)?;
    std::os::unix::fs::fchown(&file, Some(base + secret.owner.0), Some(base + secret.owner.1))?;
    file.set_permissions(fs::Permissions::from_mode(secret.mode))
}

/// The path of a directory relative to the layer.
fn below(layer: &Path, dir: &Path) -> Result<String, EngineError> {
    let name = dir.strip_prefix(layer).ok().and_then(Path::to_str).map(str::to_owned);
    name.ok_or_else(|| at("writable layer", io::ErrorKind::InvalidInput.into()))
}

/// The exit code that the step's first process wrote.
fn exit_code(status: &str) -> Result<i32, RunnerError> {
    match status.parse() {
        Ok(code) => Ok(code),
        Err(_) if status.is_empty() => {
            Err("the step was killed before it ended; it may have used more memory than a build may".into())
        }
        Err(_) => Err(status.strip_prefix("error: ").unwrap_or(status).into()),
    }
}

#[async_trait]
impl BuildRunner for Builder {
    async fn run(&self, step: RunStep, output: &mut StepOutput<'_>) -> Result<i32, RunnerError> {
        self.step(step, output, false).await
    }
}

#[async_trait]
impl BuildRunner for WithKvm<'_> {
    async fn run(&self, step: RunStep, output: &mut StepOutput<'_>) -> Result<i32, RunnerError> {
        self.0.step(step, output, true).await
    }
}
