//! What a connection speaks, from its first bytes.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::{Instant, timeout_at};

use crate::hello::{ClientHello, HelloReader, HelloStep};

/// Time for the first message of TLS, or the first bytes of another protocol.
pub(crate) const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// Time for the first bytes where the server may speak first.
pub(crate) const SERVER_FIRST: Duration = Duration::from_millis(300);
/// Methods of HTTP are shorter.
const MAX_METHOD: usize = 24;
/// The first byte of a handshake.
const TLS: u8 = 22;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Spoke {
    Tls(ClientHello),
    MalformedTls,
    /// The start of a request.
    Http,
    Other,
    /// Nothing in time, or an end.
    Nothing,
}

/// Reads from the client until it is known what it speaks. The bytes are left in `read`. `patience` is the time for the first
/// byte.
pub(crate) async fn sniff(stream: &mut (impl AsyncRead + Unpin), read: &mut Vec<u8>, patience: Duration) -> io::Result<Spoke> {
    let start = Instant::now();
    let mut until = start + patience;
    let mut hello = HelloReader::default();
    let mut piece = [0; 4096];
    loop {
        let Ok(length) = timeout_at(until, stream.read(&mut piece)).await else {
            return Ok(if read.is_empty() { Spoke::Nothing } else { after_pause(read) });
        };
        let piece = &piece[..length?];
        if piece.is_empty() {
            return Ok(if read.is_empty() { Spoke::Nothing } else { after_pause(read) });
        }
        until = start + FIRST_MESSAGE;
        read.extend(piece);
        if read[0] != TLS {
            match starts_request(read) {
                Some(true) => return Ok(Spoke::Http),
                Some(false) => return Ok(Spoke::Other),
                None => continue,
            }
        }
        match hello.push(piece) {
            HelloStep::More => {}
            HelloStep::Hello(hello) => return Ok(Spoke::Tls(hello)),
            HelloStep::NotTls => return Ok(Spoke::Other),
            HelloStep::Malformed(reason) => {
                tracing::debug!(reason, "a ClientHello is malformed");
                return Ok(Spoke::MalformedTls);
            }
        }
    }
}

/// What came before a client stopped sending.
fn after_pause(read: &[u8]) -> Spoke {
    match (read.first(), starts_request(read)) {
        (Some(&TLS), _) => Spoke::MalformedTls,
        (_, Some(true)) => Spoke::Http,
        _ => Spoke::Other,
    }
}

/// Whether the bytes are the start of a request of HTTP; none: too few to tell.
///
/// Other protocols have words before a space, too, so the target has to look like one.
fn starts_request(bytes: &[u8]) -> Option<bool> {
    let is_method = |b: &u8| b.is_ascii_uppercase() || matches!(b, b'-' | b'_');
    let length = bytes.iter().take_while(|b| is_method(b)).count();
    match &bytes[length..] {
        _ if length > MAX_METHOD => Some(false),
        [] => None,
        [b' '] if length > 0 => None,
        [b' ', first, ..] if length > 0 => Some(&bytes[..length] == b"CONNECT" || matches!(first, b'/' | b'*' | b'h' | b'H')),
        _ => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    /// Pieces that come after a time in milliseconds each, and the end.
    async fn sniff_pieces(pieces: &[(u64, &[u8])], patience: Duration) -> (Spoke, usize, u128) {
        let (mut client, mut stream) = tokio::io::duplex(1 << 16);
        let start = Instant::now();
        let mut read = Vec::new();
        let writes = async {
            for (pause, piece) in pieces {
                tokio::time::sleep(Duration::from_millis(*pause)).await;
                let _ = client.write_all(piece).await;
            }
            std::future::pending::<()>().await;
        };
        let spoke = tokio::select! {
            spoke = sniff(&mut stream, &mut read, patience) => spoke.unwrap(),
            () = writes => unreachable!("it never ends"),
        };
        (spoke, read.len(), start.elapsed().as_millis())
    }

    #[tokio::test(start_paused = true)]
    async fn the_first_message_has_a_time() {
        assert_eq!(sniff_pieces(&[], SERVER_FIRST).await, (Spoke::Nothing, 0, 300));
        assert_eq!(sniff_pieces(&[], FIRST_MESSAGE).await, (Spoke::Nothing, 0, 10_000));
        assert_eq!(sniff_pieces(&[(299, b"GET"), (500, b" /")], SERVER_FIRST).await, (Spoke::Http, 5, 799));
        assert_eq!(sniff_pieces(&[(1, b"SSH-2.0-x\r\n")], SERVER_FIRST).await, (Spoke::Other, 11, 1));
        // One byte each second is too slow, also if it goes on.
        let hello = b"\x16\x03\x01\x01\x00\x01\x00\x00\xf0\x03\x03\x00\x00\x00\x00";
        let slow: Vec<(u64, &[u8])> = hello.chunks(1).map(|byte| (1_100, byte)).collect();
        assert_eq!(sniff_pieces(&slow, FIRST_MESSAGE).await, (Spoke::MalformedTls, 9, 10_000));
        assert_eq!(sniff_pieces(&[(0, b"GET")], FIRST_MESSAGE).await, (Spoke::Other, 3, 10_000));
    }

    #[test]
    fn requests_are_told_from_other_protocols() {
        for bytes in
            [&b"GET / HTTP/1.1"[..], b"OPTIONS * ", b"GET http://a/", b"CONNECT a.example:443 ", b"M-SEARCH /", b"PRI * HTTP/2.0"]
        {
            assert_eq!(starts_request(bytes), Some(true), "{bytes:?}");
        }
        for bytes in [
            &b"SSH-2.0-OpenSSH"[..],
            b"EHLO a.example",
            b"NICK me",
            b"*1\r\n",
            b"\0\0\0\x08",
            b" GET /",
            b"GET\t/",
            b"get /",
            &[b'A'; 25],
        ] {
            assert_eq!(starts_request(bytes), Some(false), "{bytes:?}");
        }
        for bytes in [&b""[..], b"G", b"GET", b"GET "] {
            assert_eq!(starts_request(bytes), None, "{bytes:?}");
        }
    }
}
