//! VMs of OSWorld's image in Docker: a container with QEMU, which runs OSWorld's agent.
//!
//! ```text
//!  created ──► started ──► its agent shows a screen: ready ──► removed
//!                    └───► ended or too slow: removed, with its last output in the error
//! ```
//!
//! A reset recreates the container: the disk is read-only, and the VM writes into the container.

mod socket;

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, Value, json};
use tokio::sync::RwLock;
use tokio::time::Instant;

use super::driver::{Action, Output, Recording, VirtualMachine};
use super::osworld::OsWorld;
use super::osworld::http::Tcp;
use crate::answer::random_hex;
use crate::error::{SynthesisError, invalid, machine};
use socket::Socket;

/// OSWorld's image.
pub(super) const IMAGE: &str = "happysixd/osworld-docker";
/// Label of each container: the server that created it.
const LABEL: &str = "arenite.vm";
/// Path of the disk in the image.
const DISK: &str = "/System.qcow2";
const KVM: &str = "/dev/kvm";
/// Default time until a VM has a screen. Without KVM, this takes minutes.
const READY: Duration = Duration::from_secs(300);
/// Pause between two checks, and timeout of each.
const PAUSE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_secs(10);
/// Pause between two log lines about a starting VM.
const PROGRESS: Duration = Duration::from_secs(15);

/// Settings of VMs.
#[derive(Debug, Clone)]
pub(super) struct Options {
    pub(super) image: String,
    /// The disk's path on Docker's host.
    pub(super) vm_path: PathBuf,
    /// The owner of these containers: one word for each data directory, the same after a restart.
    pub(super) owner: String,
    /// In the format of the image's environment: `32G`, `4G`, `4`.
    pub(super) disk_size: String,
    pub(super) ram_size: String,
    pub(super) cpu_cores: String,
    /// A Docker network. None: its bridge, from which a VM reaches what the host reaches.
    pub(super) network: Option<String>,
    /// Ports in the container: the agent's, Chrome's debugger's, the screen's and VLC's.
    pub(super) ports: [u16; 4],
    pub(super) ready: Duration,
}

impl Options {
    /// Reads AgentFlow's configuration.
    ///
    /// # Errors
    /// Which field is missing or wrong.
    pub(super) fn from_config(config: &Map<String, Value>, owner: &str) -> Result<Self, SynthesisError> {
        let text = |name: &str, default: &str| match config.get(name) {
            None | Some(Value::Null) => Ok(default.to_owned()),
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            Some(_) => Err(invalid(format!("{name} has to be a text"))),
        };
        let port = |name: &str, default: u16| match config.get(name) {
            None | Some(Value::Null) => Ok(default),
            Some(given) => {
                let port = given.as_u64().and_then(|port| u16::try_from(port).ok()).filter(|port| *port > 0);
                port.ok_or_else(|| invalid(format!("{name} has to be a port")))
            }
        };
        let vm_path = PathBuf::from(text("vm_path", "")?);
        if !vm_path.is_absolute() || vm_path.to_str().is_none_or(|path| path.contains([':', '\0'])) {
            return Err(invalid("vm_path has to be the absolute path of OSWorld's disk (Ubuntu.qcow2), without a colon"));
        }
        let ready = config.get("ready_timeout").and_then(Value::as_f64).map(|seconds| seconds.clamp(1.0, 3600.0));
        Ok(Self {
            image: text("docker_image", IMAGE)?,
            vm_path,
            owner: owner.to_owned(),
            disk_size: text("disk_size", "32G")?,
            ram_size: text("ram_size", "4G")?,
            cpu_cores: text("cpu_cores", "4")?,
            network: Some(text("docker_network", "")?).filter(|network| !network.is_empty()),
            ports: [port("server_port", 5000)?, port("chromium_port", 9222)?, port("vnc_port", 8006)?, port("vlc_port", 8080)?],
            ready: ready.map_or(READY, Duration::from_secs_f64),
        })
    }

    /// The request to Docker.
    fn spec(&self, has_kvm: bool) -> Value {
        let name = |port: &u16| format!("{port}/tcp");
        // A port of Docker's choice, only on loopback: the agent obeys every client.
        let published = |port: &u16| (name(port), json!([{ "HostIp": "127.0.0.1", "HostPort": "" }]));
        let mut env = vec![
            format!("DISK_SIZE={}", self.disk_size),
            format!("RAM_SIZE={}", self.ram_size),
            format!("CPU_CORES={}", self.cpu_cores),
        ];
        let mut devices = Vec::new();
        if has_kvm {
            devices.push(json!({ "PathOnHost": KVM, "PathInContainer": KVM, "CgroupPermissions": "rwm" }));
        } else {
            env.push("KVM=N".to_owned());
        }
        let mut spec = json!({
            "Image": self.image,
            "Env": env,
            "Labels": { LABEL: self.owner },
            "ExposedPorts": self.ports.iter().map(|port| (name(port), json!({}))).collect::<Map<_, _>>(),
            "HostConfig": {
                "Binds": [format!("{}:{DISK}:ro", self.vm_path.display())],
                "PortBindings": self.ports.iter().map(published).collect::<Map<_, _>>(),
                // QEMU's network is set up in the container.
                "CapAdd": ["NET_ADMIN"],
                "Devices": devices,
            },
        });
        if let Some(network) = &self.network {
            spec["HostConfig"]["NetworkMode"] = network.as_str().into();
        }
        spec
    }
}

/// Whether Docker answers.
///
/// # Errors
/// Why not.
pub(super) fn available() -> Result<(), SynthesisError> {
    answers(&Socket::of_environment())
}

fn answers(socket: &Socket) -> Result<(), SynthesisError> {
    let path = socket.path().display();
    let asked = || {
        let mut stream = UnixStream::connect(socket.path())?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")?;
        let mut answer = [0; 64];
        let read = stream.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
    };
    let answer =
        asked().map_err(|error: std::io::Error| SynthesisError::io(format!("Docker does not answer at {path}"), error))?;
    let status = answer.split(' ').nth(1).unwrap_or_default();
    if status == "200" { Ok(()) } else { Err(machine(format!("what answers at {path} is not Docker"))) }
}

/// Whether a container could use KVM.
fn has_kvm() -> bool {
    std::fs::OpenOptions::new().read(true).write(true).open(KVM).is_ok()
}

/// Removes the VMs of a server that was killed. Returns their number.
///
/// # Errors
/// When Docker does not answer.
pub(super) async fn remove_orphans(owner: &str) -> Result<usize, SynthesisError> {
    orphans(&Socket::of_environment(), owner).await
}

async fn orphans(socket: &Socket, owner: &str) -> Result<usize, SynthesisError> {
    let left = socket.labelled(&format!("{LABEL}={owner}")).await?;
    for id in &left {
        socket.remove(id).await?;
        tracing::info!(container = id, "a VM that a killed server left is removed");
    }
    Ok(left.len())
}

/// A container. Dropping it removes it.
struct Container {
    socket: Socket,
    id: String,
    is_removed: bool,
}

impl Container {
    async fn remove(&mut self) -> Result<(), SynthesisError> {
        self.socket.remove(&self.id).await?;
        self.is_removed = true;
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if self.is_removed {
            return;
        }
        let (socket, id) = (self.socket.clone(), std::mem::take(&mut self.id));
        // Without a runtime, the server is ending, and the next start removes it.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                if let Err(error) = socket.remove(&id).await {
                    tracing::warn!(container = id, %error, "a VM's container could not be removed");
                }
            });
        }
    }
}

/// A running VM.
struct Running {
    container: Container,
    vm: Arc<OsWorld>,
}

/// An OSWorld VM in Docker.
pub(super) struct DockerVm {
    socket: Socket,
    options: Options,
    /// None: it was ended, or a reset failed.
    running: RwLock<Option<Running>>,
}

impl DockerVm {
    /// Creates a VM, and waits until it has a screen.
    ///
    /// # Errors
    /// Why it could not be created. Nothing is left of it then.
    pub(super) async fn make(options: Options) -> Result<Self, SynthesisError> {
        Self::make_by(Socket::of_environment(), options).await
    }

    async fn make_by(socket: Socket, options: Options) -> Result<Self, SynthesisError> {
        let running = start(&socket, &options).await?;
        Ok(Self { socket, options, running: RwLock::new(Some(running)) })
    }

    async fn vm(&self) -> Result<Arc<OsWorld>, SynthesisError> {
        let running = self.running.read().await;
        running.as_ref().map(|running| Arc::clone(&running.vm)).ok_or_else(|| machine("the VM is gone"))
    }
}

async fn start(socket: &Socket, options: &Options) -> Result<Running, SynthesisError> {
    let has_kvm = has_kvm();
    if !has_kvm {
        tracing::warn!("{KVM} can't be used: VMs start and run many times slower");
    }
    // A caller that gives up meanwhile leaves a container with an id that is not known yet. So the creation goes on in its own
    // task, and a container that no caller takes is removed.
    let (by, name, spec) = (socket.clone(), format!("arenite-vm-{}", random_hex(12)), options.spec(has_kvm));
    let making = tokio::spawn(async move {
        let id = by.create(&name, &spec).await?;
        Ok::<_, SynthesisError>(Container { socket: by, id, is_removed: false })
    });
    let mut container = making.await??;
    let vm = match until_ready(&container, options).await {
        Ok(ready) => ready,
        Err(why) => {
            if let Err(error) = container.remove().await {
                tracing::warn!(container = container.id, %error, "a VM's container could not be removed");
            }
            return Err(why);
        }
    };
    Ok(Running { container, vm: Arc::new(vm) })
}

async fn until_ready(container: &Container, options: &Options) -> Result<OsWorld, SynthesisError> {
    let Container { socket, id, .. } = container;
    socket.start(id).await?;
    let facts = socket.inspect(id).await?;
    let agent = options.ports[0];
    let port = facts["NetworkSettings"]["Ports"][format!("{agent}/tcp")][0]["HostPort"].as_str();
    let port: Option<u16> = port.and_then(|port| port.parse().ok());
    let port = port.ok_or_else(|| machine(format!("Docker does not publish the port {agent}")))?;
    let vm = OsWorld::new(Box::new(Tcp { address: format!("127.0.0.1:{port}") }));
    let (begun, mut said) = (Instant::now(), Instant::now());
    let mut look = tokio::time::interval(PAUSE);
    loop {
        look.tick().await;
        if vm.is_ready(LOOK).await {
            tracing::info!(container = id, seconds = begun.elapsed().as_secs(), "a VM is ready");
            return Ok(vm);
        }
        let state = &socket.inspect(id).await?["State"];
        if state["Running"] != Value::Bool(true) {
            let code = state["ExitCode"].as_i64().unwrap_or(-1);
            return Err(machine(format!("the VM's container ended with code {code}: {}", socket.log(id).await)));
        }
        if begun.elapsed() > options.ready {
            let log = socket.log(id).await;
            return Err(machine(format!("the VM has no screen after {} s; its log ends with: {log}", options.ready.as_secs())));
        }
        if said.elapsed() > PROGRESS {
            said = Instant::now();
            tracing::info!(container = id, seconds = begun.elapsed().as_secs(), "a VM is starting");
        }
    }
}

#[async_trait]
impl VirtualMachine for DockerVm {
    async fn end(&self) {
        if let Some(mut running) = self.running.write().await.take()
            && let Err(error) = running.container.remove().await
        {
            tracing::warn!(container = running.container.id, %error, "a VM's container could not be removed");
        }
    }

    async fn size(&self) -> Result<(u32, u32), SynthesisError> {
        self.vm().await?.size().await
    }
    async fn screenshot(&self) -> Result<Vec<u8>, SynthesisError> {
        self.vm().await?.screenshot().await
    }
    async fn tree(&self) -> Result<Option<String>, SynthesisError> {
        self.vm().await?.tree().await
    }
    async fn accessibility(&self) -> Result<Option<String>, SynthesisError> {
        self.vm().await?.accessibility().await
    }
    async fn terminal(&self) -> Result<Option<String>, SynthesisError> {
        self.vm().await?.terminal().await
    }
    async fn act(&self, action: &Action) -> Result<(), SynthesisError> {
        self.vm().await?.act(action).await
    }
    async fn run(&self, command: &[String], timeout: Duration) -> Result<Output, SynthesisError> {
        self.vm().await?.run(command, timeout).await
    }
    async fn launch(&self, command: &[String]) -> Result<(), SynthesisError> {
        self.vm().await?.launch(command).await
    }
    async fn read(&self, path: &str) -> Result<Vec<u8>, SynthesisError> {
        self.vm().await?.read(path).await
    }
    async fn write(&self, path: &str, content: &[u8]) -> Result<(), SynthesisError> {
        self.vm().await?.write(path, content).await
    }
    async fn record(&self, what: Recording) -> Result<Vec<u8>, SynthesisError> {
        self.vm().await?.record(what).await
    }

    async fn reset(&self) -> Result<(), SynthesisError> {
        let mut running = self.running.write().await;
        if let Some(old) = running.as_mut() {
            old.container.remove().await?;
        }
        *running = None;
        *running = Some(start(&self.socket, &self.options).await?);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
