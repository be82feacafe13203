//! The gateway's own calls to guests: no lease, no step, no kept connection.

use std::future::poll_fn;

use arenite_engine::Connection;
use arenite_model::SandboxId;
use arenite_model::protocol::{VERSION, VERSION_HEADER};
use bytes::Bytes;
use http::header::HOST;
use http::{HeaderValue, Request, Response, Uri};
use hyper::body::Incoming;

use crate::gateway::Gateway;
use crate::refusal::Refusal;

use super::call::refusal;
use super::headers;
use super::link::Link;
use super::link::WayOut;
use super::outgoing::Outgoing;

/// Waits for a connection from inside: see [`Link::wait_for_inside`].
pub(crate) async fn wait_for_inside(
    gateway: &Gateway,
    id: &SandboxId,
    way: WayOut,
) -> Result<Option<Box<dyn Connection>>, Refusal> {
    Link::wait_for_inside(gateway, id, way).await
}

/// Requests an internal path from a running guest.
pub(crate) async fn internal_get(
    gateway: &Gateway,
    id: &SandboxId,
    path: &'static str,
) -> Result<(Link, Response<Incoming>), Refusal> {
    let mut link = Link::open(gateway, id).await?;
    let mut request = Request::new(Outgoing::held(Bytes::new()));
    *request.uri_mut() = Uri::from_static(path);
    request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
    request.headers_mut().insert(VERSION_HEADER, HeaderValue::from(VERSION));
    let answer = link.send(request).await.map_err(|failed| refusal(&failed.error, failed.flooded))?;
    headers::check_protocol(answer.headers())?;
    Ok((link, answer))
}

/// The body of such an answer. Dropping it before its end closes the connection.
pub(crate) struct InternalAnswer {
    link: Link,
    body: Incoming,
}

impl InternalAnswer {
    pub(crate) fn new(link: Link, body: Incoming) -> Self {
        Self { link, body }
    }

    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, hyper::Error>> {
        loop {
            match poll_fn(|cx| self.link.poll_body(&mut self.body, cx)).await? {
                Ok(frame) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Some(Ok(bytes));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
