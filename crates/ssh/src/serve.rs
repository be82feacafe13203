//! Messages on a connection, with bounds on their size and their time.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use crate::Keyring;
use crate::session::{Session, failure};

/// Bytes of a message, as in OpenSSH's agent.
const MAX_MESSAGE: usize = 256 << 10;
/// Bytes for which memory is taken before they are there.
const FIRST_READ: usize = 4 << 10;
/// Time between two messages. Clients that keep their connection may connect again.
const IDLE: Duration = Duration::from_secs(600);
/// Time for the rest of a message that has begun, and for an answer to be taken.
const TRANSFER: Duration = Duration::from_secs(10);

/// Serves a connection to its end. A client that breaks the protocol, or stops in the middle of a message, gets a failure, and the
/// connection ends.
pub async fn serve<IO: AsyncRead + AsyncWrite + Unpin>(mut io: IO, keyring: &impl Keyring) {
    let mut session = Session::default();
    loop {
        let message = match timeout(IDLE, io.read_u8()).await {
            Ok(Ok(first)) => timeout(TRANSFER, read_message(&mut io, first)).await.map_err(io::Error::from).flatten(),
            // The client left, or does nothing.
            _ => return,
        };
        let (answer, is_last) = match message {
            Ok(message) => {
                keyring.admit().await;
                (session.answer(&message, keyring).await, false)
            }
            Err(error) => {
                tracing::debug!(%error, "a message to an SSH agent is malformed or incomplete");
                (failure(), true)
            }
        };
        let sent = timeout(TRANSFER, write_message(&mut io, &answer)).await;
        if is_last || !matches!(sent, Ok(Ok(()))) {
            return;
        }
    }
}

async fn read_message<IO: AsyncRead + Unpin>(io: &mut IO, first: u8) -> io::Result<Vec<u8>> {
    let mut length = [first, 0, 0, 0];
    io.read_exact(&mut length[1..]).await?;
    let length = u32::from_be_bytes(length) as usize;
    if !(1..=MAX_MESSAGE).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    let mut message = Vec::with_capacity(length.min(FIRST_READ));
    io.take(length as u64).read_to_end(&mut message).await?;
    if message.len() < length { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(message) }
}

async fn write_message<IO: AsyncWrite + Unpin>(io: &mut IO, answer: &[u8]) -> io::Result<()> {
    let length = u32::try_from(answer.len()).expect("answers are short");
    io.write_all(&[&length.to_be_bytes(), answer].concat()).await?;
    io.flush().await
}
