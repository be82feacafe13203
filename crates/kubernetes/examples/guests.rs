//! Plays the guests of pods that kwok plays, for `tests/kubernetes/test_scale.py`: a fake that runs no commands.
//!
//! kwok gives its pods addresses of 127.64.0.0/16, all of which are this host's. One socket serves them: the address that a
//! connection came to says which pod is meant. Handshake, token, and assignment are those of a real guest.
//!
//! ```text
//! guests KUBECONFIG NAMESPACE LABELS IDENTITY
//! ```
//!
//! `LABELS` select the pods. `IDENTITY` is the server's key file. Prints a line when it listens, and serves until it is killed.

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use arenite_channel::{Acceptor, Identity};
use arenite_model::protocol::{ACTIVITY_PATH, Activity, BECOME_PATH, POD_PATH, POD_PORT, POD_USAGE_PATH, PodFacts, PodUsage};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::{StreamExt, pin_mut};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::{Config as WatchConfig, Event, watcher};
use kube::{Api, Client, Config};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

const AUDIENCE: &str = "arenite";
const ACCOUNT: &str = "default";

type Failure = Box<dyn Error + Send + Sync>;

/// A pod, as its token names it.
#[derive(Clone)]
struct PodRef {
    name: String,
    uid: String,
}

#[derive(Clone)]
struct Guests {
    pods: Arc<Mutex<HashMap<IpAddr, PodRef>>>,
    accounts: Api<ServiceAccount>,
}

/// The guest of one connection.
#[derive(Clone)]
struct Guest {
    pod: PodRef,
    accounts: Api<ServiceAccount>,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kubeconfig, namespace, labels, identity] = args.as_slice() else {
        return Err("usage: guests KUBECONFIG NAMESPACE LABELS IDENTITY".into());
    };
    let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(kubeconfig)?, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let guests = Guests { pods: Arc::default(), accounts: Api::namespaced(client.clone(), namespace) };
    tokio::spawn(follow(Api::namespaced(client, namespace), labels.clone(), Arc::clone(&guests.pods)));
    let server = Identity::open(Path::new(identity))?.public().clone();
    let acceptor = Acceptor::new(&Identity::generate()?, vec![server])?;
    let listener = listen()?;
    println!("guests listen");
    loop {
        let (stream, _) = listener.accept().await?;
        let (acceptor, guests) = (acceptor.clone(), guests.clone());
        tokio::spawn(async move {
            if let Err(error) = serve(stream, &acceptor, guests).await {
                eprintln!("a connection failed: {error}");
            }
        });
    }
}

/// On all addresses of loopback, and no others.
fn listen() -> std::io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.bind_device(Some(b"lo"))?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, POD_PORT)).into())?;
    socket.listen(1024)?;
    socket.set_nonblocking(true)?;
    TcpListener::from_std(socket.into())
}

/// Keeps the addresses of pods.
async fn follow(api: Api<Pod>, labels: String, pods: Arc<Mutex<HashMap<IpAddr, PodRef>>>) {
    let events = watcher(api, WatchConfig::default().labels(&labels));
    pin_mut!(events);
    while let Some(event) = events.next().await {
        let (pod, is_gone) = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => (pod, false),
            Ok(Event::Delete(pod)) => (pod, true),
            Ok(Event::Init | Event::InitDone) => continue,
            Err(error) => {
                eprintln!("the watch of pods failed, and is repeated: {error}");
                continue;
            }
        };
        let address = pod.status.and_then(|status| status.pod_ip?.parse::<IpAddr>().ok());
        let (Some(address), Some(name), Some(uid)) = (address, pod.metadata.name, pod.metadata.uid) else { continue };
        let mut pods = pods.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_gone {
            pods.insert(address, PodRef { name, uid });
        } else if pods.get(&address).is_some_and(|known| known.uid == uid) {
            pods.remove(&address);
        }
    }
}

async fn serve(stream: TcpStream, acceptor: &Acceptor, guests: Guests) -> Result<(), Failure> {
    let address = stream.local_addr()?.ip();
    let pod = guests.pods.lock().unwrap_or_else(PoisonError::into_inner).get(&address).cloned();
    // The server may have been faster to see that it runs. It connects again.
    let Some(pod) = pod else { return Ok(()) };
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let router = Router::new()
        .route(POD_PATH, get(facts))
        .route(BECOME_PATH, post(async || Json(())))
        .route(ACTIVITY_PATH, get(async || Json(Activity::default())))
        .route(POD_USAGE_PATH, get(async || Json(PodUsage::default())))
        .with_state(Guest { pod, accounts: guests.accounts });
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut router = router.clone();
        async move { Ok::<_, Infallible>(router.call(request.map(Body::new)).await.unwrap_or_else(|never| match never {})) }
    });
    Ok(hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await?)
}

/// A token as the kubelet would have it made.
async fn facts(State(guest): State<Guest>) -> Result<Json<PodFacts>, (StatusCode, String)> {
    let bound = BoundObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(guest.pod.name),
        uid: Some(guest.pod.uid),
    };
    let spec = TokenRequestSpec {
        audiences: Some(vec![AUDIENCE.to_owned()]),
        bound_object_ref: Some(bound),
        expiration_seconds: Some(600),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest { spec: Some(spec), ..TokenRequest::default() };
    let made = guest.accounts.create_token_request(ACCOUNT, &PostParams::default(), &request).await;
    let status = made.map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?.status;
    Ok(Json(PodFacts { token: status.and_then(|status| status.token).unwrap_or_default(), ..PodFacts::default() }))
}
