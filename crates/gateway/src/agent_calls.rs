//! Calls of agents from inside sandboxes that have a token.
//!
//! A sandbox can't reach the server over its network. So this server keeps one request waiting at the guest of each sandbox with
//! a budget. When a process inside connects to the guest's port for it, the request's connection carries that process's
//! calls. Such a connection proves which sandbox it comes from, and accepts that sandbox's token alone.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use arenite_engine::Connection;
use arenite_model::{SandboxId, TenantId};
use axum::body::Body;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use crate::exchange::{self, Peer};
use crate::gateway::Gateway;
use crate::proxy::{self, WayOut};

/// The most concurrent connections out of one sandbox. Further ones wait in the guest's queue.
const MAX_CONNECTIONS: usize = 16;
/// Time for a request's head, and for the next request on a kept connection.
const HEAD_TIME: Duration = Duration::from_secs(10);
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Pauses before a failed request is repeated: from the first to the last, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// On requests out of a sandbox.
#[derive(Debug, Clone)]
pub(crate) struct FromInside(pub(crate) SandboxId);

/// Serves the calls out of a sandbox until it is cancelled, if the sandbox has a budget.
pub(crate) async fn serve(gateway: &Arc<Gateway>, tenant: &TenantId, id: &SandboxId) {
    let has_budget = |sandbox: arenite_control::Sandbox| sandbox.provenance.child_budget.is_some();
    if !gateway.control.get_by_id(tenant, id).await.is_ok_and(has_budget) {
        return;
    }
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut pause = FIRST_PAUSE;
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        match proxy::wait_for_inside(gateway, id, WayOut::Calls).await {
            Ok(Some(io)) => {
                pause = FIRST_PAUSE;
                let (shared, id) = (Arc::clone(gateway), id.clone());
                gateway.tasks.spawn(async move {
                    let _permit = permit;
                    serve_connection(shared, id, io).await;
                });
            }
            Ok(None) => {
                tracing::warn!(sandbox = %id, "the guest has no port for the sandbox's agent");
                return;
            }
            Err(refusal) => {
                tracing::debug!(sandbox = %id, why = refusal.message, "the request for calls from inside ended");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }
}

async fn serve_connection(gateway: Arc<Gateway>, id: SandboxId, io: Box<dyn Connection>) {
    // No address that a trusted proxy could have.
    let peer = Peer { address: IpAddr::V4(Ipv4Addr::UNSPECIFIED), scheme: "http" };
    let (stopping, cut) = (gateway.stopping.clone(), gateway.cut.clone());
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(FromInside(id.clone()));
        let gateway = Arc::clone(&gateway);
        async move { Ok::<_, Infallible>(exchange::answer(gateway, peer, request.map(Body::new)).await) }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIME).max_buf_size(MAX_HEAD_BYTES);
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(io), service).with_upgrades());
    tokio::select! {
        // The other end left, or sent no HTTP.
        _ = connection.as_mut() => return,
        () = stopping.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    tokio::select! {
        _ = connection => {}
        () = cut.cancelled() => {}
    }
}
