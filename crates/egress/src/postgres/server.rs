//! The server's side of the start of a connection.

use std::fmt::Display;
use std::io;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{ChannelBinding, SCRAM_SHA_256, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

use super::Leg;
use super::message::{Message, Startup};
use crate::policy::Reason;
use crate::secrets::SandboxSecrets;
use crate::tls::HANDSHAKE;

/// Messages of a server until it is ready for queries. Each has a bound, too.
const MAX_MESSAGES: usize = 256;
/// Time for a server to end a connection after a request to cancel.
const CANCEL: Duration = Duration::from_secs(10);

/// What a server gets to know.
pub(super) struct Login<'a> {
    pub(super) startup: &'a Startup,
    pub(super) password: &'a [u8],
    /// Masked in what the server says.
    pub(super) secrets: &'a SandboxSecrets,
}

/// Requests of a server for a proof, by their numbers.
mod request {
    pub(super) const DONE: u32 = 0;
    pub(super) const CLEARTEXT: u32 = 3;
    pub(super) const MD5: u32 = 5;
    pub(super) const SASL: u32 = 10;
    pub(super) const SASL_CONTINUE: u32 = 11;
    pub(super) const SASL_FINAL: u32 = 12;
}

/// Asks the server for TLS.
pub(super) async fn begin_tls(mut stream: TcpStream, name: &str) -> Result<TcpStream, (Reason, String)> {
    let ask = async {
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        stream.write_all(&request).await?;
        // One byte alone: more would be no TLS.
        stream.read_u8().await
    };
    let failed = |why: &dyn Display| Err((Reason::NotConnected, format!("{name} did not answer: {why}")));
    match timeout(HANDSHAKE, ask).await {
        Ok(Ok(b'S')) => Ok(stream),
        Ok(Ok(_)) => Err((Reason::ServerWithoutTls, format!("{name} offers no TLS, and a secret is only sent by TLS"))),
        Ok(Err(error)) => failed(&error),
        Err(_) => failed(&"it took too long"),
    }
}

/// Sends a request to cancel, and waits until the server has taken it.
pub(super) async fn forward_cancel(mut stream: TlsStream<TcpStream>, packet: &[u8]) {
    let forward = async {
        stream.write_all(packet).await?;
        stream.flush().await?;
        stream.read_u8().await
    };
    let _ = timeout(CANCEL, forward).await;
}

/// Logs in, and passes on what the server says until it is ready for queries. False if it refused; the client has its message
/// then. The error is a sentence part for people.
pub(super) async fn log_in(server: &mut TlsStream<TcpStream>, client: &mut dyn Leg, login: Login<'_>) -> Result<bool, String> {
    let ended = |error: io::Error| match error.kind() {
        io::ErrorKind::InvalidData => "the server sent a message that is too long or malformed".to_owned(),
        _ => format!("the connection ended during the login: {error}"),
    };
    send(server, login.startup.bytes()).await.map_err(ended)?;
    let mut proof = Proof::Nothing;
    let mut is_logged_in = false;
    for _ in 0..MAX_MESSAGES {
        let message = Message::read(server).await.map_err(ended)?;
        match message.kind {
            b'R' if !is_logged_in => {
                let (answer, next) = proof.answer(&message.body, &login).await?;
                proof = next;
                if let Some(answer) = answer {
                    send(server, &answer).await.map_err(ended)?;
                    continue;
                }
                is_logged_in = matches!(proof, Proof::Accepted);
                if !is_logged_in {
                    continue;
                }
            }
            // Errors, notices, the version of the protocol, parameters, the key to cancel, and that it is ready.
            b'E' | b'N' | b'v' => {}
            b'S' | b'K' | b'Z' if is_logged_in => {}
            kind => return Err(format!("the server sent the unexpected message {:?}", char::from(kind))),
        }
        let kind = message.kind;
        pass(client, message, login.secrets).await.map_err(ended)?;
        match kind {
            b'E' => return Ok(false),
            b'Z' => return Ok(true),
            _ => {}
        }
    }
    Err("the server sent too many messages before it was ready".to_owned())
}

/// How far the proof of a password is.
enum Proof {
    Nothing,
    /// The password, or its hash, was sent.
    Sent,
    ScramStarted(Box<ScramSha256>),
    ScramSent(Box<ScramSha256>),
    /// The server proved that it knows the password, too.
    ScramProved,
    Accepted,
}

impl Proof {
    /// The answer to a request of the server, if it needs one.
    async fn answer(self, body: &[u8], login: &Login<'_>) -> Result<(Option<Zeroizing<Vec<u8>>>, Self), String> {
        let unsupported =
            |what: String| format!("the server asks for {what}, and not for a password by cleartext, MD5, or SCRAM-SHA-256");
        let scram = |error: io::Error| format!("the login by SCRAM-SHA-256 failed: {error}");
        let (request, data) = body.split_first_chunk::<4>().ok_or("the server's request for a login is malformed")?;
        let mut answer = BytesMut::new();
        let next = match (u32::from_be_bytes(*request), self) {
            // A server that trusts the client asks for nothing.
            (request::DONE, Self::Nothing | Self::Sent | Self::ScramProved) => return Ok((None, Self::Accepted)),
            (request::CLEARTEXT, Self::Nothing) => {
                frontend::password_message(login.password, &mut answer).map_err(scram)?;
                Self::Sent
            }
            (request::MD5, Self::Nothing) => {
                let salt = data.try_into().map_err(|_| "the server's salt is malformed")?;
                let hash = md5_hash(login.startup.user(), login.password, salt);
                frontend::password_message(hash.as_bytes(), &mut answer).map_err(scram)?;
                Self::Sent
            }
            (request::SASL, Self::Nothing) => {
                if !data.split(|byte| *byte == 0).any(|mechanism| mechanism == SCRAM_SHA_256.as_bytes()) {
                    return Err(unsupported("another mechanism of SASL".to_owned()));
                }
                let started = ScramSha256::new(login.password, ChannelBinding::unsupported());
                frontend::sasl_initial_response(SCRAM_SHA_256, started.message(), &mut answer).map_err(scram)?;
                Self::ScramStarted(Box::new(started))
            }
            (request::SASL_CONTINUE, Self::ScramStarted(mut started)) => {
                let data = data.to_vec();
                // It repeats a hash as often as the server says, up to 100,000 times.
                let updated = spawn_blocking(move || started.update(&data).map(|()| started)).await;
                let updated = updated.map_err(|error| error.to_string())?.map_err(scram)?;
                frontend::sasl_response(updated.message(), &mut answer).map_err(scram)?;
                Self::ScramSent(updated)
            }
            (request::SASL_FINAL, Self::ScramSent(mut sent)) => {
                sent.finish(data).map_err(scram)?;
                return Ok((None, Self::ScramProved));
            }
            (number @ (request::DONE | request::SASL_CONTINUE | request::SASL_FINAL), _) => {
                return Err(format!("the server's request {number} for a login is out of order"));
            }
            (_, Self::Sent | Self::ScramStarted(_) | Self::ScramSent(_) | Self::ScramProved | Self::Accepted) => {
                return Err("the server asks for a second proof".to_owned());
            }
            (number, Self::Nothing) => return Err(unsupported(format!("the login of number {number}"))),
        };
        Ok((Some(Zeroizing::new(answer.to_vec())), next))
    }
}

/// Passes a message of the server on, with placeholders in the place of values.
async fn pass(client: &mut dyn Leg, message: Message, secrets: &SandboxSecrets) -> io::Result<()> {
    let body = secrets.mask_bytes(&message.body).unwrap_or(message.body);
    client.write_all(&Message { body, ..message }.bytes()).await?;
    client.flush().await
}

async fn send(server: &mut TlsStream<TcpStream>, bytes: &[u8]) -> io::Result<()> {
    server.write_all(bytes).await?;
    server.flush().await
}
