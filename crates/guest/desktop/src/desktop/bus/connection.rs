//! A connection to a bus: authentication, then calls and their answers.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

use super::message::{BusCall, BusReply, Inbox};
use super::wire::{Malformed, Writer};

/// Timeout for the bus itself to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum bytes of a line during authentication.
const MAX_LINE: usize = 512;
/// Maximum bytes of all answers to calls that are made at once; those beyond count as too long.
const MAX_ANSWERS: usize = 8 << 20;
/// The name of the bus itself, as a destination.
const BUS: &str = "org.freedesktop.DBus";
/// The error for a call to a name that does not exist and can't be started.
const UNKNOWN: &str = "org.freedesktop.DBus.Error.ServiceUnknown";
const BUS_PATH: &str = "/org/freedesktop/DBus";

#[derive(Debug, Error)]
pub enum BusError {
    #[error("it could not be reached: {0}")]
    Io(#[from] io::Error),
    #[error("it refused: {0}")]
    Refused(String),
    #[error("it knows no such service")]
    NoService,
    #[error("it did not answer within {} s", PATIENCE.as_secs())]
    Silent,
    #[error("it sent a message that is malformed")]
    Malformed,
    #[error("it has ended")]
    Gone,
}

impl From<Malformed> for BusError {
    fn from(_: Malformed) -> Self {
        Self::Malformed
    }
}

/// A connection that has a name on its bus.
#[derive(Debug)]
pub(in crate::desktop) struct Connection {
    from_bus: OwnedReadHalf,
    to_bus: OwnedWriteHalf,
    inbox: Inbox,
    serial: u32,
}

impl Connection {
    /// Authenticates with our user's id, which the bus checks with the kernel.
    pub(in crate::desktop) async fn open(stream: UnixStream) -> Result<Self, BusError> {
        let (from_bus, to_bus) = stream.into_split();
        let mut connection = Self { from_bus, to_bus, inbox: Inbox::default(), serial: 0 };
        timeout(PATIENCE, connection.introduce()).await.map_err(|_| BusError::Silent)??;
        connection.bus("Hello", "", Writer::default()).await?;
        Ok(connection)
    }

    async fn introduce(&mut self) -> Result<(), BusError> {
        let uid = rustix::process::geteuid().as_raw().to_string();
        let hex: String = uid.bytes().map(|byte| format!("{byte:02x}")).collect();
        self.to_bus.write_all(format!("\0AUTH EXTERNAL {hex}\r\n").as_bytes()).await?;
        let line = loop {
            if let Some(end) = self.inbox.bytes.windows(2).position(|pair| pair == b"\r\n") {
                break self.inbox.bytes.split_to(end + 2);
            }
            if self.inbox.bytes.len() > MAX_LINE {
                return Err(BusError::Malformed);
            }
            self.receive().await?;
        };
        if !line.starts_with(b"OK") {
            return Err(BusError::Refused(String::from_utf8_lossy(&line).trim().to_owned()));
        }
        Ok(self.to_bus.write_all(b"BEGIN\r\n").await?)
    }

    async fn receive(&mut self) -> Result<(), BusError> {
        match self.from_bus.read_buf(&mut self.inbox.bytes).await? {
            0 => Err(BusError::Gone),
            _ => Ok(()),
        }
    }

    /// Calls a method of the bus itself.
    pub(in crate::desktop) async fn bus(
        &mut self,
        member: &'static str,
        signature: &'static str,
        body: Writer,
    ) -> Result<BusReply, BusError> {
        self.one(of_bus(member, signature, body)).await
    }

    /// Makes one call. An error reply is an error.
    pub(in crate::desktop) async fn one(&mut self, call: BusCall) -> Result<BusReply, BusError> {
        let answer = self.all(std::slice::from_ref(&call), PATIENCE).await?.pop().flatten().ok_or(BusError::Silent)?;
        match answer.error.as_deref() {
            None => Ok(answer),
            Some(UNKNOWN) => Err(BusError::NoService),
            Some(_) => Err(BusError::Refused(answer.reason())),
        }
    }

    /// Makes calls at once. `None` for answers that did not arrive in time.
    pub(in crate::desktop) async fn all(
        &mut self,
        calls: &[BusCall],
        patience: Duration,
    ) -> Result<Vec<Option<BusReply>>, BusError> {
        let mut places = HashMap::with_capacity(calls.len());
        let mut bytes = Vec::new();
        for (place, call) in calls.iter().enumerate() {
            // 0 is no serial number.
            self.serial = self.serial.checked_add(1).unwrap_or(1);
            places.insert(self.serial, place);
            bytes.extend(call.encode(self.serial));
        }
        let mut answers = vec![None; calls.len()];
        let Self { from_bus, to_bus, inbox, .. } = self;
        let mut room = MAX_ANSWERS;
        // Writing and reading run concurrently: if both sides waited for the other to empty its buffer, they would wait forever.
        let mut is_written = false;
        let write = async {
            to_bus.write_all(&bytes).await?;
            is_written = true;
            std::future::pending::<Result<(), BusError>>().await
        };
        let read = async {
            while !places.is_empty() {
                while let Some(answer) = inbox.next()? {
                    // Answers to abandoned calls are dropped.
                    let Some(place) = places.remove(&answer.to) else { continue };
                    let left = room.checked_sub(answer.weight());
                    answers[place] = Some(if left.is_some() { answer } else { answer.without_values() });
                    room = left.unwrap_or(room);
                }
                if !places.is_empty() && from_bus.read_buf(&mut inbox.bytes).await? == 0 {
                    return Err(BusError::Gone);
                }
            }
            Ok(())
        };
        let done = async {
            tokio::select! {
                written = write => written,
                read = read => read,
            }
        };
        match timeout(patience, done).await {
            Ok(Err(error)) => Err(error),
            // Reading can be abandoned at any time, but half of a call can't be taken back.
            Err(_) if !is_written => Err(BusError::Silent),
            Ok(Ok(())) | Err(_) => Ok(answers),
        }
    }
}

/// Builds a call of the bus itself.
pub(in crate::desktop) fn of_bus(member: &'static str, signature: &'static str, body: Writer) -> BusCall {
    BusCall { destination: BUS.to_owned(), path: BUS_PATH.to_owned(), interface: BUS, member, signature, body, starts: false }
}
