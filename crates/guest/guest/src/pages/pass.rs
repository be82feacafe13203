//! Proxies requests and WebSockets to a program.
//!
//! ```text
//!  program had ──► dialled ──► request ──► answer's head ──► body, or bytes both ways
//!     ▲              │ no         │ broke off before it
//!     └── judged: has it ended? ◄─┘   and the request may be repeated
//! ```

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::header::{CONNECTION, LOCATION, UPGRADE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::error::PageError;
use super::program::Program;
use super::running::{Running, Use};
use crate::pages::PagesService;
use arenite_guest_proxy::end_to_end;
use arenite_guest_runtime::http::Address;

/// Attempts for one request: it may find that a program has ended, and that its successor has ended too.
const ATTEMPTS: usize = 3;
/// Time until a program's answer starts.
const ANSWER: Duration = Duration::from_secs(300);
/// The most bytes of an answer's head.
const MAX_HEAD: usize = 64 << 10;
/// The most headers of an answer.
const MAX_HEADERS: usize = 100;

/// Why there was no answer.
enum Unanswered {
    /// The connection ended before an answer started.
    Broken(String),
    /// The answer is not HTTP, or its head is too large.
    Nonsense(String),
    Late,
    /// The client broke off.
    Body,
}

pub(super) async fn pass(
    pages: &Arc<PagesService>,
    program: Program,
    mut request: Request<Body>,
) -> Result<Response<Body>, Arc<PageError>> {
    let is_upgrade = request.headers().get(UPGRADE).is_some_and(|to| to.as_bytes().eq_ignore_ascii_case(b"websocket"));
    let client = is_upgrade.then(|| hyper::upgrade::on(&mut request));
    let (parts, body) = request.into_parts();
    let is_repeatable = matches!(parts.method, Method::GET | Method::HEAD) && body.is_end_stream();
    let mut body = Some(body);
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let running = pages.get(program).await?;
        let place = running.enter().ok_or(PageError::TooMany(program))?;
        let stream = match running.dial(&pages.runtime).await {
            Ok(stream) => stream,
            Err(why) => {
                running.judge(&pages.runtime).await;
                last = Some((running, why));
                continue;
            }
        };
        let body = if is_repeatable { Some(Body::empty()) } else { body.take() };
        let (head, body) = (head(program, &parts, is_upgrade), body.unwrap_or_default());
        match exchange(stream, head, body).await {
            Ok(answer) => return Ok(finish(program, &parts.headers, answer, client, place)),
            Err(Unanswered::Broken(why)) => {
                running.judge(&pages.runtime).await;
                if !is_repeatable {
                    return Err(no_answer(program, &running, why));
                }
                last = Some((running, why));
            }
            Err(Unanswered::Nonsense(why)) => return Err(no_answer(program, &running, why)),
            Err(Unanswered::Body) => return Err(PageError::Body.into()),
            Err(Unanswered::Late) => {
                let why = format!("gave no answer within {} s", ANSWER.as_secs());
                let error = no_answer(program, &running, why);
                let runtime = Arc::clone(&pages.runtime);
                // Judged now, so that the next request need not find out whether the program hangs.
                tokio::spawn(async move { running.judge(&runtime).await });
                return Err(error);
            }
        }
    }
    Err(match last {
        Some((running, why)) => no_answer(program, &running, why),
        None => PageError::BrokeOff(program).into(),
    })
}

fn no_answer(program: Program, running: &Running, why: String) -> Arc<PageError> {
    PageError::NoAnswer { program, why, said: running.said() }.into()
}

/// The request as the program receives it.
fn head(program: Program, parts: &Parts, is_upgrade: bool) -> Request<()> {
    let mut request = Request::new(());
    *request.method_mut() = parts.method.clone();
    let given = parts.uri.path_and_query().map_or("/", |given| given.as_str());
    let path = given.strip_prefix(program.cut()).unwrap_or(given);
    // The suffix of a valid URI, starting at a slash.
    *request.uri_mut() = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    let headers = request.headers_mut();
    headers.clone_from(&parts.headers);
    end_to_end(headers);
    if is_upgrade {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    }
    request
}

async fn exchange(stream: UnixStream, head: Request<()>, body: Body) -> Result<Response<Incoming>, Unanswered> {
    let read = |error: hyper::Error| {
        if error.is_user() {
            Unanswered::Body
        } else if error.is_parse_too_large() {
            Unanswered::Nonsense("answers with a head that is too large".to_owned())
        } else if error.is_parse() {
            Unanswered::Nonsense("answers with what is no HTTP".to_owned())
        } else {
            Unanswered::Broken("closed the connection without an answer".to_owned())
        }
    };
    let mut client = http1::Builder::new();
    client.max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.map_err(read)?;
    tokio::spawn(connection.with_upgrades());
    let answer = timeout(ANSWER, sender.send_request(head.map(|()| body))).await;
    answer.map_err(|_| Unanswered::Late)?.map_err(read)
}

/// The answer as the client receives it. `place` is held until its last byte.
fn finish(
    program: Program,
    asked: &HeaderMap,
    mut answer: Response<Incoming>,
    client: Option<OnUpgrade>,
    place: Use,
) -> Response<Body> {
    let headers = answer.headers_mut();
    end_to_end(headers);
    if let Some(location) = headers.get(LOCATION).and_then(|to| lead(program, asked, to)) {
        headers.insert(LOCATION, location);
    }
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let (head, body) = answer.into_parts();
        let body = body.map_frame(move |frame| {
            let _ = &place;
            frame
        });
        return Response::from_parts(head, Body::new(body));
    }
    let mut head = answer.headers().clone();
    head.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    head.insert(UPGRADE, HeaderValue::from_static("websocket"));
    if let Some(client) = client {
        tokio::spawn(async move {
            if let Ok((client, program)) = tokio::try_join!(client, hyper::upgrade::on(answer)) {
                // However it ends, both sides see it.
                drop(tokio::io::copy_bidirectional(&mut TokioIo::new(client), &mut TokioIo::new(program)).await);
            }
            drop(place);
        });
    }
    let mut switched = Response::new(Body::empty());
    *switched.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *switched.headers_mut() = head;
    switched
}

/// The client's location for an absolute path of the program; `None` if the location needs no change.
fn lead(program: Program, asked: &HeaderMap, to: &HeaderValue) -> Option<HeaderValue> {
    let path = to.to_str().ok().filter(|path| path.starts_with('/') && !path.starts_with("//"))?;
    HeaderValue::try_from(Address::from_headers(asked).path(&format!("{}{path}", program.cut()))).ok()
}
