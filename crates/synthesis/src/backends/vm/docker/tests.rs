//! VMs on a fake Docker with containers that fake OSWorld's agent.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::net::UnixListener;

use super::*;
use crate::backends::vm::osworld::fake::FakeAgent;

/// State of a fake Docker.
#[derive(Default)]
struct Held {
    containers: BTreeMap<String, Value>,
    made: Vec<Value>,
    asked: Vec<String>,
    agent_port: u16,
    /// Containers exit as soon as they are started.
    dies: bool,
}

struct FakeDocker {
    dir: tempfile::TempDir,
    held: Arc<Mutex<Held>>,
}

impl FakeDocker {
    fn start(agent_port: u16) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(dir.path().join("docker.sock")).unwrap();
        let held = Arc::new(Mutex::new(Held { agent_port, ..Held::default() }));
        let shared = Arc::clone(&held);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let held = Arc::clone(&shared);
                let service = service_fn(move |request| answer(Arc::clone(&held), request));
                tokio::spawn(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service));
            }
        });
        Self { dir, held }
    }

    fn socket(&self) -> Socket {
        Socket::new(self.dir.path().join("docker.sock"))
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap()
    }
}

async fn answer(held: Arc<Mutex<Held>>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
    let query = percent_encoding::percent_decode_str(request.uri().query().unwrap_or_default()).decode_utf8_lossy().into_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let mut held = held.lock().unwrap();
    held.asked.push(format!("{method} {path}"));
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let (status, said) = match (method.as_str(), parts.as_slice()) {
        ("GET", ["_ping"]) => (200, json!("OK")),
        ("POST", ["containers", "create"]) => {
            let spec: Value = serde_json::from_slice(&body).unwrap();
            held.made.push(spec.clone());
            if spec["Image"] == "missing" {
                (404, json!({ "message": "No such image: missing" }))
            } else {
                let id = format!("c{}", held.made.len());
                held.containers.insert(id.clone(), spec);
                (201, json!({ "Id": id }))
            }
        }
        ("POST", ["containers", _, "start"]) => (204, Value::Null),
        ("GET", ["containers", "json"]) => {
            let of = |spec: &Value| query.contains(&format!("arenite.vm={}", spec["Labels"]["arenite.vm"].as_str().unwrap()));
            (200, held.containers.iter().filter(|(_, spec)| of(spec)).map(|(id, _)| json!({ "Id": id })).collect())
        }
        ("GET", ["containers", id, "json"]) => {
            let spec = &held.containers[*id];
            let bound =
                |port: &String| (port.clone(), json!([{ "HostIp": "127.0.0.1", "HostPort": held.agent_port.to_string() }]));
            let ports: Map<String, Value> = spec["ExposedPorts"].as_object().unwrap().keys().map(bound).collect();
            let state = json!({ "Running": !held.dies, "ExitCode": 7 });
            (200, json!({ "NetworkSettings": { "Ports": ports }, "State": state }))
        }
        ("GET", ["containers", _, "logs"]) => (200, json!("no boot disk")),
        ("DELETE", ["containers", id]) => {
            assert_eq!(query, "force=true&v=true");
            let status = if held.containers.remove(*id).is_some() { 204 } else { 404 };
            (status, Value::Null)
        }
        _ => (500, json!({ "message": "what?" })),
    };
    let body = if said.is_null() { Bytes::new() } else { said.to_string().into() };
    Ok(Response::builder().status(status).body(Full::new(body)).unwrap())
}

fn options(more: Value) -> Options {
    let mut config = json!({ "vm_path": "/disks/Ubuntu.qcow2", "ready_timeout": 1 });
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Options::from_config(config.as_object().unwrap(), "me").unwrap()
}

async fn agent() -> (FakeAgent, u16) {
    let agent = FakeAgent::start().await;
    let port = agent.address.rsplit(':').next().unwrap().parse().unwrap();
    (agent, port)
}

#[tokio::test]
async fn a_machine_is_made_and_reset_and_removed() {
    let (_agent, port) = agent().await;
    let docker = FakeDocker::start(port);
    let vm = DockerVm::make_by(docker.socket(), options(json!({ "ram_size": "8G", "docker_network": "apart" }))).await.unwrap();
    assert_eq!(vm.size().await.unwrap(), (1920, 1080));
    let made = docker.held().made[0].clone();
    assert_eq!(made["Image"], IMAGE);
    assert_eq!(made["HostConfig"]["NetworkMode"], "apart");
    assert_eq!(made["HostConfig"]["Binds"], json!(["/disks/Ubuntu.qcow2:/System.qcow2:ro"]));
    let bindings = made["HostConfig"]["PortBindings"].as_object().unwrap();
    assert_eq!(bindings.keys().collect::<Vec<_>>(), ["5000/tcp", "8006/tcp", "8080/tcp", "9222/tcp"]);
    assert!(bindings.values().all(|bound| *bound == json!([{ "HostIp": "127.0.0.1", "HostPort": "" }])));
    let env: Vec<&str> = made["Env"].as_array().unwrap().iter().map(|one| one.as_str().unwrap()).collect();
    assert!(env.contains(&"RAM_SIZE=8G"));
    assert_eq!(env.contains(&"KVM=N"), made["HostConfig"]["Devices"] == json!([]));
    vm.reset().await.unwrap();
    assert_eq!(docker.held().containers.keys().collect::<Vec<_>>(), ["c2"]);
    vm.end().await;
    assert!(docker.held().containers.is_empty());
    assert_eq!(vm.size().await.unwrap_err().to_string(), "the VM is gone");
}

#[tokio::test]
async fn one_that_ends_or_is_too_slow_leaves_nothing() {
    let docker = FakeDocker::start(1);
    let slow = DockerVm::make_by(docker.socket(), options(json!({}))).await.err().unwrap().to_string();
    assert!(slow.contains("no screen after 1 s") && slow.contains("no boot disk"), "{slow}");
    docker.held().dies = true;
    let dead = DockerVm::make_by(docker.socket(), options(json!({}))).await.err().unwrap().to_string();
    assert!(dead.contains("ended with code 7: \"no boot disk\""), "{dead}");
    let missing =
        DockerVm::make_by(docker.socket(), options(json!({ "docker_image": "missing" }))).await.err().unwrap().to_string();
    assert_eq!(missing, "image \"missing\" is not there; run: docker pull missing");
    assert!(docker.held().containers.is_empty());
}

#[tokio::test]
async fn a_machine_that_is_given_up_is_removed() {
    let docker = FakeDocker::start(1);
    let socket = docker.socket();
    let making = tokio::spawn(DockerVm::make_by(socket, options(json!({ "ready_timeout": 60 }))));
    while docker.held().containers.is_empty() {
        tokio::task::yield_now().await;
    }
    making.abort();
    while !docker.held().containers.is_empty() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn only_ones_own_orphans_are_removed() {
    let docker = FakeDocker::start(1);
    for (id, owner) in [("a", "me"), ("b", "other"), ("c", "me")] {
        docker.held().containers.insert(id.to_owned(), json!({ "Labels": { "arenite.vm": owner } }));
    }
    assert_eq!(orphans(&docker.socket(), "me").await.unwrap(), 2);
    assert_eq!(docker.held().containers.keys().collect::<Vec<_>>(), ["b"]);
}

#[tokio::test]
async fn without_docker_it_is_said() {
    let docker = FakeDocker::start(1);
    let socket = docker.socket();
    tokio::task::spawn_blocking(move || answers(&socket)).await.unwrap().unwrap();
    let nothing = Socket::new(docker.dir.path().join("nothing"));
    assert!(answers(&nothing).unwrap_err().to_string().contains("Docker does not answer at"));
    let error = DockerVm::make_by(nothing, options(json!({}))).await.err().unwrap().to_string();
    assert!(error.contains("Docker can't be reached at"), "{error}");
}

#[test]
fn what_is_wrong_in_a_configuration_is_named() {
    let of = |config: Value| Options::from_config(config.as_object().unwrap(), "me").unwrap_err().to_string();
    assert!(of(json!({})).contains("vm_path"));
    assert!(of(json!({ "vm_path": "relative" })).contains("vm_path"));
    assert!(of(json!({ "vm_path": "/a:/b" })).contains("colon"));
    assert!(of(json!({ "vm_path": "/a", "server_port": 70000 })).contains("server_port"));
    assert!(of(json!({ "vm_path": "/a", "docker_image": [] })).contains("docker_image"));
}
