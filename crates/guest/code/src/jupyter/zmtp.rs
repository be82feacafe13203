//! ZeroMQ's wire protocol, ZMTP 3.0, as far as a client of kernels needs it: one DEALER or SUB socket over one Unix stream.
//!
//! This is not a library, because the peer belongs to the sandbox's user: the pure Rust implementation reserves any length that a
//! peer announces and reconnects for ever. Here a message has a bound, and frames beyond it are read but not kept. A closed
//! connection is an error.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// The most bytes kept of one message.
pub(super) const MAX_MESSAGE: usize = 8 << 20;
/// The bytes kept of a frame that is too long.
const MAX_BEGINNING: usize = 2 << 20;
/// The most frames of one message.
const MAX_FRAMES: usize = 64;
/// The longest command, such as READY.
const MAX_COMMAND: u64 = 4 << 10;
const READ_BUFFER: usize = 64 << 10;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Dealer,
    /// Subscribes to everything that is published.
    Subscriber,
}

/// One message of one or more frames.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Message {
    /// The frames. Of those that are too long, the first bytes.
    pub(super) frames: Vec<Bytes>,
    /// Bytes that were not kept.
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct Frame {
    remaining: u64,
    flags: u8,
    /// The number of bytes to keep.
    most: usize,
    body: Vec<u8>,
}

/// Decodes messages from bytes that arrive in any pieces.
#[derive(Debug, Default)]
struct Decoder {
    message: Message,
    bytes: usize,
    frame: Option<Frame>,
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not ZMTP 3: {what}"))
}

impl Decoder {
    /// Consumes the bytes of the next message from `input`; `None` while it is incomplete.
    fn decode(&mut self, input: &mut BytesMut) -> io::Result<Option<Message>> {
        loop {
            let Some(frame) = &mut self.frame else {
                let Some((flags, length)) = header(input)? else { return Ok(None) };
                if flags & COMMAND != 0 && length > MAX_COMMAND {
                    return Err(bad("a command too long"));
                }
                if self.message.frames.len() >= MAX_FRAMES {
                    return Err(bad("a message of too many frames"));
                }
                let room = MAX_MESSAGE - self.bytes;
                let most = usize::try_from(length).ok().filter(|length| *length <= room).unwrap_or(MAX_BEGINNING.min(room));
                self.message.dropped += length - most as u64;
                self.frame = Some(Frame { remaining: length, flags, most, body: Vec::new() });
                continue;
            };
            let here = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(input.len());
            let kept = here.min(frame.most - frame.body.len());
            frame.body.extend_from_slice(&input[..kept]);
            input.advance(here);
            frame.remaining -= here as u64;
            if frame.remaining > 0 {
                return Ok(None);
            }
            let Some(frame) = self.frame.take() else { continue };
            // Heartbeats and similar commands can be ignored: the guest announced version 3.0.
            if frame.flags & COMMAND != 0 {
                continue;
            }
            self.bytes += frame.body.len();
            self.message.frames.push(frame.body.into());
            if frame.flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Some(std::mem::take(&mut self.message)));
            }
        }
    }
}

/// Consumes flags and length of a frame from the input; `None` while they are incomplete.
fn header(input: &mut BytesMut) -> io::Result<Option<(u8, u64)>> {
    let Some(flags) = input.first().copied() else { return Ok(None) };
    if flags & !(MORE | LONG | COMMAND) != 0 {
        return Err(bad("reserved flags are set"));
    }
    let bytes = if flags & LONG != 0 { 8 } else { 1 };
    if input.len() < 1 + bytes {
        return Ok(None);
    }
    input.advance(1);
    Ok(Some((flags, input.get_uint(bytes))))
}

fn push_frame(to: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(length) => to.extend_from_slice(&[flags, length]),
        Err(_) => {
            to.push(flags | LONG);
            to.extend_from_slice(&(body.len() as u64).to_be_bytes());
        }
    }
    to.extend_from_slice(body);
}

fn greeting() -> [u8; 64] {
    let mut greeting = [0u8; 64];
    greeting[0] = 0xff;
    greeting[8] = 1;
    greeting[9] = 0x7f;
    // Version 3.0, in which subscriptions are plain messages.
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn ready(role: Role, identity: &[u8]) -> Vec<u8> {
    let kind: &[u8] = match role {
        Role::Dealer => b"DEALER",
        Role::Subscriber => b"SUB",
    };
    let mut body = b"\x05READY".to_vec();
    for (name, value) in [(&b"Socket-Type"[..], kind), (b"Identity", identity)] {
        body.push(name.len() as u8);
        body.extend_from_slice(name);
        body.extend_from_slice(&(value.len() as u32).to_be_bytes());
        body.extend_from_slice(value);
    }
    body
}

/// A connected socket.
#[derive(Debug)]
pub(super) struct Socket {
    stream: UnixStream,
    input: BytesMut,
    decoder: Decoder,
}

impl Socket {
    /// Does the handshake over a connected stream. Needs a timeout: the peer may never answer.
    pub(super) async fn over(mut stream: UnixStream, role: Role, identity: &[u8]) -> io::Result<Self> {
        stream.write_all(&greeting()).await?;
        let mut theirs = [0u8; 64];
        stream.read_exact(&mut theirs).await?;
        if theirs[0] != 0xff || theirs[9] & 1 == 0 || theirs[10] < 3 {
            return Err(bad("another version or protocol"));
        }
        if &theirs[12..17] != b"NULL\0" {
            return Err(bad("it wants encryption or a password"));
        }
        let mut hello = Vec::new();
        push_frame(&mut hello, COMMAND, &ready(role, identity));
        if role == Role::Subscriber {
            push_frame(&mut hello, 0, &[1]);
        }
        stream.write_all(&hello).await?;
        let mut socket = Self { stream, input: BytesMut::new(), decoder: Decoder::default() };
        loop {
            if let Some((flags, length)) = header(&mut socket.input)? {
                if flags & COMMAND == 0 || length > MAX_COMMAND {
                    return Err(bad("no READY came"));
                }
                while (socket.input.len() as u64) < length {
                    socket.fill().await?;
                }
                let command = socket.input.split_to(length as usize);
                return if command.starts_with(b"\x05READY") { Ok(socket) } else { Err(bad("no READY came")) };
            }
            socket.fill().await?;
        }
    }

    /// Receives the next message. Cancel-safe: nothing is lost when the future is dropped.
    pub(super) async fn receive(&mut self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.decoder.decode(&mut self.input)? {
                return Ok(message);
            }
            self.fill().await?;
        }
    }

    /// Reads once.
    async fn fill(&mut self) -> io::Result<()> {
        self.input.reserve(READ_BUFFER);
        match self.stream.read_buf(&mut self.input).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Sends a message. The connection is unusable if the future is dropped halfway.
    pub(super) async fn send(&mut self, frames: &[Bytes]) -> io::Result<()> {
        let mut out = Vec::with_capacity(frames.iter().map(|f| f.len() + 9).sum());
        for (at, frame) in frames.iter().enumerate() {
            push_frame(&mut out, if at + 1 < frames.len() { MORE } else { 0 }, frame);
        }
        self.stream.write_all(&out).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire(frames: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, frame) in frames.iter().enumerate() {
            push_frame(&mut out, if at + 1 < frames.len() { MORE } else { 0 }, frame);
        }
        out
    }

    #[test]
    fn messages_are_whole_however_they_are_cut() {
        let long = vec![b'x'; 70_000];
        let mut bytes = wire(&[b"", b"<IDS|MSG>", &long]);
        push_frame(&mut bytes, COMMAND, b"\x04PING");
        bytes.extend(wire(&[b"second"]));
        for step in [1, 7, 4096, bytes.len()] {
            let (mut decoder, mut input, mut got) = (Decoder::default(), BytesMut::new(), Vec::new());
            for piece in bytes.chunks(step) {
                input.extend_from_slice(piece);
                while let Some(message) = decoder.decode(&mut input).unwrap() {
                    got.push(message);
                }
            }
            assert_eq!(got.len(), 2, "in steps of {step}");
            assert_eq!(got[0].frames.iter().map(Bytes::len).collect::<Vec<_>>(), [0, 9, 70_000]);
            assert_eq!((&got[1].frames[0][..], got[1].dropped), (&b"second"[..], 0));
        }
    }

    #[test]
    fn what_is_too_long_is_read_past_and_counted() {
        let (mut decoder, mut input) = (Decoder::default(), BytesMut::new());
        input.extend_from_slice(&wire(&[b"head", b"x"])[..6]);
        input.extend_from_slice(&[LONG]);
        input.extend_from_slice(&(1u64 << 40).to_be_bytes());
        assert_eq!(decoder.decode(&mut input).unwrap(), None);
        for _ in 0..64 {
            input.extend_from_slice(&[b'a'; 1 << 16]);
            assert_eq!(decoder.decode(&mut input).unwrap(), None);
        }
        assert!(input.is_empty() && decoder.frame.as_ref().unwrap().body.len() == MAX_BEGINNING);
        decoder.frame.as_mut().unwrap().remaining = 0;
        let message = decoder.decode(&mut input).unwrap().unwrap();
        assert_eq!((message.frames.len(), message.dropped), (2, (1 << 40) - MAX_BEGINNING as u64));
        assert_eq!((&message.frames[0][..], message.frames[1].len()), (&b"head"[..], MAX_BEGINNING));
    }

    #[test]
    fn nonsense_is_an_error_and_no_panic() {
        let flood: Vec<u8> = [MORE, 0].repeat(MAX_FRAMES + 1);
        let command = [&[COMMAND | LONG][..], &u64::MAX.to_be_bytes()].concat();
        for bytes in [&b"GET / HTTP/1.1"[..], &flood, &command] {
            let mut input = BytesMut::from(bytes);
            assert_eq!(Decoder::default().decode(&mut input).unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }

    #[tokio::test]
    async fn a_peer_that_is_no_kernel_is_told_at_once() {
        for (answer, wanted) in [
            (&b"HTTP/1.1 400 Bad Request\r\n\r\n0123456789012345678901234567890123456789"[..], io::ErrorKind::InvalidData),
            (b"short", io::ErrorKind::UnexpectedEof),
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(answer).await.unwrap();
            theirs.shutdown().await.unwrap();
            let error = Socket::over(ours, Role::Dealer, b"").await.unwrap_err();
            assert_eq!(error.kind(), wanted);
        }
    }
}
