//! Calls of the engine to a guest.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::time::timeout;

use crate::guest_request::{KeptAnswer, request_and_keep};

/// Maximum size of an answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;

/// How to reach a guest.
pub(super) enum Guest<'a> {
    Socket(&'a Path),
    Connection(UnixStream),
}

/// Calls a guest, and waits for its answer, which has to be a success.
pub(super) async fn ask(
    guest: Guest<'_>,
    method: &str,
    path: &str,
    body: Vec<u8>,
    limit: Duration,
) -> io::Result<KeptAnswer<UnixStream>> {
    let asked = async {
        let connection = match guest {
            Guest::Socket(socket) => UnixStream::connect(socket).await?,
            Guest::Connection(connection) => connection,
        };
        request_and_keep(connection, method, path, body, MAX_ANSWER).await
    };
    let answer = timeout(limit, asked).await??;
    if answer.is_ok {
        return Ok(answer);
    }
    let refusal = serde_json::from_str(&answer.text).map_or(answer.text, |Refusal { message }| message);
    Err(io::Error::other(format!("the guest said: {}", refusal.chars().take(500).collect::<String>())))
}

/// The part of a refusal that people read.
#[derive(serde::Deserialize)]
struct Refusal {
    message: String,
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_guests_refusal_is_told() {
        let path = std::env::temp_dir().join(format!("arenite-tell-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let answers = ["HTTP/1.1 200 OK\r\n\r\n{}", "HTTP/1.1 424 Failed Dependency\r\n\r\n{\"message\":\"no\"}", ""];
        let guest = std::thread::spawn(move || {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut asked = [0; 1024];
                let length = stream.read(&mut asked).unwrap();
                assert!(
                    asked[..length].starts_with(b"POST /internal/x HTTP/1.1\r\n") && asked[..length].ends_with(b"\r\n\r\nbody")
                );
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let mut told = Vec::new();
        for _ in answers {
            told.push(ask(Guest::Socket(&path), "POST", "/internal/x", b"body".into(), Duration::from_secs(5)).await);
        }
        guest.join().unwrap();
        std::fs::remove_file(path).unwrap();
        assert!(told[0].as_ref().is_ok_and(|answer| answer.text == "{}"));
        assert!(told[1].as_ref().unwrap_err().to_string() == "the guest said: no" && told[2].is_err());
    }

    #[tokio::test]
    async fn a_connection_serves_several_requests_until_the_guest_closes_it() {
        let path = std::env::temp_dir().join(format!("arenite-keep-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let guest = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for head in ["", "", "Connection: close\r\n"] {
                let mut asked = [0; 1024];
                let length = stream.read(&mut asked).unwrap();
                assert!(asked[..length].ends_with(b"\r\n\r\nbody"));
                stream.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{head}\r\n{{}}").as_bytes()).unwrap();
            }
        });
        let mut kept = None;
        for last in [false, false, true] {
            let guest = kept.take().map_or(Guest::Socket(&path), Guest::Connection);
            let answer = ask(guest, "POST", "/internal/x", b"body".into(), Duration::from_secs(5)).await.unwrap();
            assert_eq!((answer.text.as_str(), answer.connection.is_none()), ("{}", last));
            kept = answer.connection;
        }
        guest.join().unwrap();
        std::fs::remove_file(path).unwrap();
    }
}
