//! The messages of Postgres' protocol that start a connection, each with a bound.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt};
use zeroize::Zeroizing;

use super::Refusal;
use crate::policy::Reason;

/// The longest first message, as servers have it, in bytes.
const MAX_STARTUP: usize = 10_000;
/// The longest password of a client, with the byte at its end.
const MAX_PASSWORD: usize = 16 << 10;
/// The longest message of a server until it is ready for queries.
const MAX_MESSAGE: usize = 64 << 10;
const LENGTH: usize = 4;
/// The kind of a first message, which is a version if it is none of the others.
const CANCEL: u32 = 80_877_102;
const SSL: u32 = 80_877_103;
const GSS: u32 = 80_877_104;
const MAJOR_VERSION: u32 = 3;
/// A process's number and its key, which has 4 to 256 bytes.
const CANCEL_BYTES: std::ops::RangeInclusive<usize> = 16..=LENGTH + 8 + 256;

/// A message without a type, at the start of a connection.
pub(super) enum First {
    SslRequest,
    GssRequest,
    Cancel(Vec<u8>),
    Startup(Startup),
    Malformed,
}

/// What a client says about its session.
pub(super) struct Startup {
    /// As it came.
    bytes: Vec<u8>,
    user: Vec<u8>,
}

/// A message of a server.
pub(super) struct Message {
    pub(super) kind: u8,
    pub(super) body: Vec<u8>,
}

impl First {
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> io::Result<Self> {
        let length = stream.read_u32().await? as usize;
        if !(LENGTH + 4..=MAX_STARTUP).contains(&length) {
            return Ok(Self::Malformed);
        }
        let mut bytes = vec![0; length];
        bytes[..LENGTH].copy_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        stream.read_exact(&mut bytes[LENGTH..]).await?;
        let [kind, rest @ ..] = bytes[LENGTH..].as_chunks::<4>().0 else { return Ok(Self::Malformed) };
        Ok(match u32::from_be_bytes(*kind) {
            SSL if rest.is_empty() => Self::SslRequest,
            GSS if rest.is_empty() => Self::GssRequest,
            CANCEL if CANCEL_BYTES.contains(&length) => Self::Cancel(bytes),
            version if version >> 16 == MAJOR_VERSION => Startup::parse(bytes).map_or(Self::Malformed, Self::Startup),
            _ => Self::Malformed,
        })
    }
}

impl Startup {
    /// Pairs of a name and a value, each with a zero at its end, and another zero.
    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let mut parts = bytes[LENGTH + 4..].strip_suffix(&[0, 0])?.split(|byte| *byte == 0);
        let mut user = None;
        while let Some(name) = parts.next() {
            let value = parts.next()?;
            if name.is_empty() {
                return None;
            }
            if name == b"user" && user.replace(value.to_vec()).is_some() {
                return None;
            }
        }
        let user = user.filter(|user| !user.is_empty())?;
        Some(Self { bytes, user })
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn parameters(&self) -> &[u8] {
        &self.bytes[LENGTH + 4..]
    }

    pub(super) fn user(&self) -> &[u8] {
        &self.user
    }
}

/// The client's answer to a request for its password. None if it is something else.
pub(super) async fn read_password(stream: &mut (impl AsyncRead + Unpin + ?Sized)) -> io::Result<Option<Zeroizing<Vec<u8>>>> {
    if stream.read_u8().await? != b'p' {
        return Ok(None);
    }
    let length = (stream.read_u32().await? as usize).checked_sub(LENGTH);
    let Some(length) = length.filter(|length| (1..=MAX_PASSWORD).contains(length)) else { return Ok(None) };
    let mut bytes = Zeroizing::new(vec![0; length]);
    stream.read_exact(&mut bytes).await?;
    // Without the zero at its end.
    if bytes.pop() != Some(0) || bytes.contains(&0) {
        return Ok(None);
    }
    Ok(Some(bytes))
}

impl Message {
    pub(super) async fn read(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let kind = stream.read_u8().await?;
        let length = (stream.read_u32().await? as usize).checked_sub(LENGTH);
        let length = length.filter(|length| *length <= MAX_MESSAGE).ok_or(io::ErrorKind::InvalidData)?;
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Ok(Self { kind, body })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(LENGTH + self.body.len()).unwrap_or(u32::MAX);
        [&[self.kind], &length.to_be_bytes()[..], &self.body].concat()
    }
}

/// The proxy's own message to a client, before it ends the connection.
pub(super) struct ErrorResponse {
    code: &'static str,
    text: String,
}

impl ErrorResponse {
    pub(super) fn new(refusal: &Refusal, port: u16) -> Self {
        let reason = refusal.decision.reason;
        let code = match reason {
            Reason::SecretMisplaced | Reason::SecretRevoked | Reason::SecretLeak => "28000",
            Reason::MalformedPostgres => "08P01",
            Reason::NotResolved
            | Reason::NoAddress
            | Reason::NotConnected
            | Reason::InvalidCertificate
            | Reason::ServerWithoutTls
            | Reason::ServerLogin => "08001",
            Reason::TooMany => "53300",
            _ => "08004",
        };
        let host = refusal.name.as_deref().unwrap_or("the server");
        let text = refusal.text.as_deref().unwrap_or(reason.text());
        Self { code, text: format!("arenite: {host}:{port} is refused: {text}") }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let fields = [('S', "FATAL"), ('V', "FATAL"), ('C', self.code), ('M', &self.text)];
        let body: String = fields.map(|(field, text)| format!("{field}{}\0", text.replace('\0', ""))).concat();
        Message { kind: b'E', body: format!("{body}\0").into_bytes() }.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn first(kind: u32, rest: &[u8]) -> io::Result<First> {
        let length = u32::try_from(8 + rest.len()).unwrap();
        First::read(&mut &[&length.to_be_bytes(), &kind.to_be_bytes(), rest].concat()[..]).await
    }

    #[tokio::test]
    async fn a_connection_starts_in_a_few_ways() {
        assert!(matches!(first(SSL, b"").await, Ok(First::SslRequest)));
        assert!(matches!(first(GSS, b"").await, Ok(First::GssRequest)));
        assert!(matches!(first(CANCEL, &[1; 8]).await, Ok(First::Cancel(bytes)) if bytes.len() == 16));
        assert!(matches!(first(CANCEL, &[1; 260]).await, Ok(First::Cancel(_))));
        let Ok(First::Startup(startup)) = first(3 << 16 | 2, b"database\0user\0user\0me\0empty\0\0\0").await else {
            panic!("it is one");
        };
        assert_eq!((startup.user(), startup.parameters().len(), startup.bytes().len()), (&b"me"[..], 30, 38));
        for (kind, rest) in [
            (SSL, &b"more"[..]),
            (CANCEL, &[1; 4]),
            (CANCEL, &[1; 261]),
            (2 << 16, b"user\0me\0\0"),
            (3 << 16, b""),
            (3 << 16, b"\0"),
            (3 << 16, b"database\0me\0\0"),
            (3 << 16, b"user\0\0\0"),
            (3 << 16, b"user\0me\0user\0you\0\0"),
            (3 << 16, b"user\0me\0"),
            (3 << 16, b"user\0me\0odd\0\0"),
            (3 << 16, &[b'a'; 10_000]),
        ] {
            assert!(matches!(first(kind, rest).await, Ok(First::Malformed)), "{kind} {rest:?}");
        }
    }

    #[tokio::test]
    async fn passwords_and_messages_are_bounded() {
        let read = |bytes: &'static [u8]| async move { read_password(&mut &*bytes).await.unwrap().map(|text| text.to_vec()) };
        assert_eq!(read(b"p\0\0\0\x08abc\0").await, Some(b"abc".to_vec()));
        for bad in [&b"p\0\0\0\x08abcd"[..], b"p\0\0\0\x08a\0c\0", b"p\0\0\0\x04", b"p\0\0\0\x01", b"p\x7f\0\0\0", b"X\0\0\0\x04"]
        {
            assert_eq!(read(bad).await, None, "{bad:?}");
        }
        assert!(Message::read(&mut &b"E\0\x01\0\x05"[..]).await.is_err_and(|e| e.kind() == io::ErrorKind::InvalidData));
        assert!(Message::read(&mut &b"E\0\0\0\x03"[..]).await.is_err());
        let message = Message::read(&mut &b"E\0\0\0\x06ab"[..]).await.unwrap();
        assert_eq!(message.bytes(), b"E\0\0\0\x06ab");
    }
}
