//! HTTP: each request is decided on, and passed on over a connection to its own host. It comes without TLS, or in TLS that was
//! ended here; then secrets are inserted and masked.
//!
//! hyper reads requests and writes them again, so what the server sees is what was decided on: there is one reading of lengths,
//! headers, and the end of a request. Bodies stream in both directions.

mod headers;
mod secrets;
mod target;
mod tunnel;

use std::borrow::Cow;
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::header::{CONTENT_TYPE, EXPECT};
use http::uri::Scheme;
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;

use self::headers::{is_encoded, is_websocket, keep_end_to_end, upgrade_again};
use self::target::RequestTarget;
use self::tunnel::Tunnel;
use crate::connection::{Connection, EndEvent};
use crate::dial::Dialed;
use crate::events::{Draft, Protocol};
use crate::metered::Metered;
use crate::policy::{Decision, Reason, Seen, plain_path};
use crate::sandbox::{Admission, Spoken};
use crate::secrets::{PassedBody, SandboxSecrets};
use crate::tls::EndedTls;

/// Time without a byte until a connection takes no further request.
const KEEP_ALIVE: Duration = Duration::from_secs(75);
/// Time for the head of a request, from the end of the one before.
const HEAD: Duration = Duration::from_secs(90);
/// Time without a byte until a connection ends, also while a server thinks.
pub(crate) const IDLE: Duration = Duration::from_secs(15 * 60);
/// Buffer of a direction, and the largest head of a request or answer.
const BUFFER: usize = 64 << 10;

/// The requests of one connection.
pub(crate) struct HttpConnection {
    connection: Connection,
    /// None without TLS.
    ended: Option<EndedTls>,
    upstream: tokio::sync::Mutex<Option<Upstream>>,
    /// Of the last request.
    tunnel: Mutex<Option<Tunnel>>,
}

/// The connection to a server, for further requests to it.
struct Upstream {
    target: RequestTarget,
    dialed: IpAddr,
    sender: SendRequest<PassedBody>,
    task: JoinHandle<()>,
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Why a request was not passed on.
enum Refusal {
    /// With the text for the client, if the reason says too little.
    Decided(Decision, Option<String>),
    /// The server failed after the request was allowed.
    Server(hyper::Error),
}

impl HttpConnection {
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection, ended: None, upstream: tokio::sync::Mutex::default(), tunnel: Mutex::default() }
    }

    pub(crate) fn with_ended_tls(connection: Connection, ended: EndedTls) -> Self {
        Self { ended: Some(ended), ..Self::new(connection) }
    }

    /// Answers requests until the client ends. `first` was read before.
    pub(crate) async fn serve<IO>(self, stream: IO, first: Vec<u8>)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = Metered::new(stream, first, self.connection.meter.clone(), IDLE);
        self.serve_metered(stream).await;
    }

    /// The stream counts its bytes, and ends when nothing moves.
    pub(crate) async fn serve_metered<IO>(self, stream: IO)
    where
        IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let this = Arc::new(self);
        let service = service_fn(|request| {
            let this = this.clone();
            async move { Ok::<_, Infallible>(this.answer(request).await) }
        });
        let mut server = hyper::server::conn::http1::Builder::new();
        server
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(BUFFER)
            .half_close(true)
            .preserve_header_case(true);
        // What a server sends passes as it is.
        server.auto_date_header(false);
        let name = this.ended.as_ref().map(|ended| &*ended.name);
        let draft = Draft { name, ..this.connection.draft(this.protocol()) };
        let decision = Decision { allowed: true, rule: None, reason: Reason::Rule };
        let _end = EndEvent { connection: &this.connection, draft: &draft, decision: &decision };
        let mut serving = pin!(server.serve_connection(TokioIo::new(stream), service).with_upgrades());
        let served = tokio::select! {
            served = &mut serving => served,
            () = this.connection.meter.idle(KEEP_ALIVE) => {
                // What is in progress still gets its answer.
                serving.as_mut().graceful_shutdown();
                serving.await
            }
        };
        if let Err(error) = served {
            tracing::trace!(%error, "a connection of HTTP ended");
        }
        let tunnel = this.tunnel().take();
        if let Some(tunnel) = tunnel {
            tunnel.run(IDLE).await;
        }
    }

    async fn answer(&self, mut request: Request<Incoming>) -> Response<PassedBody> {
        // hyper gives the client's stream back after a request to upgrade, also where it is refused.
        self.set_tunnel(Tunnel { client: hyper::upgrade::on(&mut request), server: None });
        let secrets = self.connection.open.sandbox.secrets();
        let secrets = secrets.as_ref();
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let target = match self.read_target(&request, secrets) {
            Ok(target) => target,
            Err(reason) => {
                self.note(None, &method, &path, &Decision::refused(reason));
                return self.refusal(None, reason, None);
            }
        };
        let seen_path = plain_path(&path);
        let port = self.connection.destination.port();
        let (target, decision) = self.decide(target, &method, &path, seen_path.as_deref());
        if !decision.allowed {
            self.note(Some(&target), &method, &path, &decision);
            return self.refusal(Some(&target), decision.reason, None);
        }
        let spoken = self.spoken(method.as_str().into(), seen_path.unwrap_or(path.clone()).into());
        let upgrades = is_websocket(&request);
        let outgoing = self.outgoing(request, &target, port, upgrades);
        let passed = async {
            let (outgoing, refused_body) = self.fill(outgoing, secrets).await?;
            match self.pass(outgoing, &target, &spoken, (&method, &path), secrets).await {
                Ok(response) => self.incoming(response, upgrades, secrets).await,
                Err(error) => Err(self.name_body(error, secrets, &refused_body)),
            }
        };
        match passed.await {
            Ok(response) => response,
            Err(Refusal::Decided(decision, message)) => {
                self.note(Some(&target), &method, &path, &decision);
                self.refusal(Some(&target), decision.reason, message.as_deref())
            }
            Err(Refusal::Server(error)) => {
                tracing::debug!(%error, "a server failed");
                text(StatusCode::BAD_GATEWAY, format!("arenite: {target} ended without an answer\n"))
            }
        }
    }

    fn protocol(&self) -> Protocol {
        if self.ended.is_some() { Protocol::Https } else { Protocol::Http }
    }

    fn scheme(&self) -> &'static Scheme {
        if self.ended.is_some() { &Scheme::HTTPS } else { &Scheme::HTTP }
    }

    fn spoken(&self, method: Box<str>, path: Box<str>) -> Spoken {
        if self.ended.is_some() { Spoken::Https { method, path } } else { Spoken::Http { method, path } }
    }

    /// The host of a request, which is the server name in TLS.
    fn read_target(&self, request: &Request<Incoming>, secrets: Option<&Arc<SandboxSecrets>>) -> Result<RequestTarget, Reason> {
        let target = RequestTarget::read(request, self.connection.destination, self.scheme())?;
        let name = target.host_name();
        if self.ended.as_ref().is_some_and(|ended| name.as_ref() != Some(&ended.name)) {
            return Err(Reason::HostMismatch);
        }
        if name.is_some_and(|name| secrets.is_some_and(|secrets| secrets.leaks_in_name(&name))) {
            return Err(Reason::SecretLeak);
        }
        Ok(target)
    }

    /// By the name that the request has, or by a rule for the address to which the client connected.
    fn decide(&self, named: RequestTarget, method: &Method, path: &str, plain: Option<&str>) -> (RequestTarget, Decision) {
        let (address, port) = (self.connection.destination.ip(), self.connection.destination.port());
        let policy = self.connection.open.sandbox.policy();
        let decide = |target: &RequestTarget| {
            if plain.is_none() && policy.compares_paths(target.target(), port) {
                return Decision::refused(Reason::AmbiguousPath);
            }
            let (method, path) = (method.as_str(), plain.unwrap_or(path));
            let seen = if self.ended.is_some() { Seen::Https { method, path } } else { Seen::Http { method, path } };
            policy.decide(target.target(), port, seen)
        };
        let decision = decide(&named);
        // TLS ends only where a rule has its name.
        if !decision.lacks_rule() || self.ended.is_some() {
            return (named, decision);
        }
        let by_address = named.at(address);
        match decide(&by_address) {
            other if other.lacks_rule() => (named, decision),
            other => (by_address, other),
        }
    }

    /// Sends an allowed request to its server.
    async fn pass(
        &self,
        mut request: Request<PassedBody>,
        target: &RequestTarget,
        spoken: &Spoken,
        (method, path): (&Method, &str),
        secrets: Option<&Arc<SandboxSecrets>>,
    ) -> Result<Response<Incoming>, Refusal> {
        let mut kept = self.upstream.lock().await;
        loop {
            let is_reused = kept.as_ref().is_some_and(|known| known.target == *target && !known.sender.is_closed());
            if !is_reused {
                // Ends the connection to another server.
                *kept = None;
                *kept = Some(self.connect(target, spoken).await?);
            }
            let upstream = kept.as_mut().expect("it was made if it was missing");
            if upstream.sender.ready().await.is_err() && is_reused {
                *kept = None;
                continue;
            }
            let port = self.connection.destination.port();
            let admission = Admission { name: target.name(), address: upstream.dialed, port, spoken: spoken.clone() };
            // The policy may be another one since the connection to the server was begun.
            let decision = self.connection.open.admit(admission);
            if !decision.allowed {
                return Err(Refusal::Decided(decision, None));
            }
            // So may the secrets be, of which the request may have values.
            if self.ended.is_some() && !self.connection.open.sandbox.has_secrets(secrets) {
                let text = "the sandbox's secrets changed while it was made; send it again".to_owned();
                return Err(Refusal::Decided(Decision::refused(Reason::SecretRevoked), Some(text)));
            }
            match upstream.sender.try_send_request(request).await {
                Ok(response) => {
                    self.note_at(Some(target), Some(upstream.dialed), method, path, &decision);
                    return Ok(response);
                }
                Err(mut error) => {
                    // A server may end a connection just as it is used again; the request was not sent then.
                    let unsent = error.take_message();
                    *kept = None;
                    match unsent {
                        Some(again) if is_reused => request = again,
                        _ => {
                            self.note_at(Some(target), None, method, path, &decision);
                            return Err(Refusal::Server(error.into_error()));
                        }
                    }
                }
            }
        }
    }

    async fn connect(&self, target: &RequestTarget, spoken: &Spoken) -> Result<Upstream, Refusal> {
        let dialer = &self.connection.shared.dialer;
        let destination = self.connection.destination;
        let dialed = match target.name() {
            Some(name) => dialer.dial_name(&self.connection.open.sandbox, &name, destination, spoken).await,
            None => dialer.dial_address(destination).await.map_err(Decision::refused),
        };
        let Dialed { stream, address } = dialed.map_err(|decision| Refusal::Decided(decision, None))?;
        let (sender, task) = match &self.ended {
            None => begin_http(stream).await?,
            Some(ended) => {
                let refused = |(reason, text)| Refusal::Decided(Decision::refused(reason), Some(text));
                // Its size is not for requests without TLS.
                let stream = Box::pin(ended.connect(stream, &self.connection.shared.roots)).await.map_err(refused)?;
                begin_http(stream).await?
            }
        };
        Ok(Upstream { target: target.clone(), dialed: address, sender, task })
    }

    fn outgoing(&self, request: Request<Incoming>, target: &RequestTarget, port: u16, upgrades: bool) -> Request<Incoming> {
        let (mut parts, body) = request.into_parts();
        parts.version = Version::HTTP_11;
        parts.uri = target::origin_form(&parts.uri);
        keep_end_to_end(&mut parts.headers);
        // Answered here, with the first read of the body.
        parts.headers.remove(EXPECT);
        target.set_host(&mut parts.headers, port, self.scheme());
        if upgrades {
            upgrade_again(&mut parts.headers);
        }
        Request::from_parts(parts, body)
    }

    async fn incoming(
        &self,
        mut response: Response<Incoming>,
        upgrades: bool,
        secrets: Option<&Arc<SandboxSecrets>>,
    ) -> Result<Response<PassedBody>, Refusal> {
        *response.version_mut() = Version::HTTP_11;
        let is_encoded = is_encoded(response.headers());
        keep_end_to_end(response.headers_mut());
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            if !upgrades {
                let message = "arenite: the server switched protocols without being asked\n";
                return Ok(text(StatusCode::BAD_GATEWAY, message.to_owned()));
            }
            let server = hyper::upgrade::on(&mut response);
            if let Some(tunnel) = &mut *self.tunnel() {
                tunnel.server = Some(server);
            }
            upgrade_again(response.headers_mut());
        }
        match secrets {
            Some(secrets) if self.ended.is_some() => self.mask(response, is_encoded, secrets).await,
            _ => Ok(response.map(PassedBody::Unchanged)),
        }
    }

    fn tunnel(&self) -> MutexGuard<'_, Option<Tunnel>> {
        self.tunnel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_tunnel(&self, tunnel: Tunnel) {
        *self.tunnel() = Some(tunnel);
    }

    /// The answer to a request that is not passed on.
    fn refusal(&self, target: Option<&RequestTarget>, reason: Reason, message: Option<&str>) -> Response<PassedBody> {
        let status = match reason {
            Reason::MalformedHttp => StatusCode::BAD_REQUEST,
            Reason::HostMismatch => StatusCode::MISDIRECTED_REQUEST,
            Reason::NoAddress
            | Reason::NotResolved
            | Reason::NotConnected
            | Reason::InvalidCertificate
            | Reason::EncodedAnswer => StatusCode::BAD_GATEWAY,
            _ => StatusCode::FORBIDDEN,
        };
        let Some(target) = target else {
            return text(status, format!("arenite: the request is refused: {reason}\n"));
        };
        let port = self.connection.destination.port();
        let mut message = format!("arenite: {target}:{port} is refused: {}\n", message.unwrap_or(reason.text()));
        if reason == Reason::NoRule {
            message
                .push_str(&format!("to allow it, add \"{target}:{port}\" to the allow list of the sandbox's network policy\n"));
        }
        text(status, message)
    }

    fn note(&self, target: Option<&RequestTarget>, method: &Method, path: &str, decision: &Decision) {
        self.note_at(target, Some(self.connection.destination.ip()), method, path, decision);
    }

    fn note_at(&self, target: Option<&RequestTarget>, address: Option<IpAddr>, method: &Method, path: &str, decision: &Decision) {
        let name = target.and_then(RequestTarget::host_name);
        let name = name.or_else(|| self.ended.as_ref().map(|ended| ended.name.clone()));
        let secrets = self.connection.open.sandbox.secrets();
        let show = |text| secrets.as_ref().map_or(Cow::Borrowed(text), |secrets| secrets.show(text));
        let (method, path) = (show(method.as_str()), show(path));
        let draft = Draft {
            name: name.as_deref(),
            address,
            method: Some(&method),
            path: Some(&path),
            ..self.connection.draft(self.protocol())
        };
        self.connection.shared.events.decided(&draft, decision);
    }
}

/// Speaks HTTP on a connection to a server.
async fn begin_http<IO>(stream: IO) -> Result<(SendRequest<PassedBody>, JoinHandle<()>), Refusal>
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut client = hyper::client::conn::http1::Builder::new();
    client.max_buf_size(BUFFER).preserve_header_case(true);
    let (sender, connection) = client.handshake(TokioIo::new(stream)).await.map_err(Refusal::Server)?;
    let task = tokio::spawn(async move {
        if let Err(error) = connection.with_upgrades().await {
            tracing::trace!(%error, "a connection to a server ended");
        }
    });
    Ok((sender, task))
}

fn text(status: StatusCode, message: String) -> Response<PassedBody> {
    let mut response = Response::new(PassedBody::from(message));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

#[cfg(test)]
mod tests;
