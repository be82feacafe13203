//! Passes bytes in both directions, until both have ended or the connection is idle.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::time::{Instant, sleep_until};

/// Time without bytes in either direction after which a connection is closed.
pub(super) const IDLE: Duration = Duration::from_secs(600);
const BUFFER: usize = 16 << 10;

pub(super) async fn join(one: impl AsyncRead + AsyncWrite, other: impl AsyncRead + AsyncWrite) {
    let ((from_one, to_one), (from_other, to_other)) = (split(one), split(other));
    let last = Mutex::new(Instant::now());
    let idle = async {
        loop {
            let until = *last.lock().unwrap_or_else(PoisonError::into_inner) + IDLE;
            if until <= Instant::now() {
                return;
            }
            sleep_until(until).await;
        }
    };
    let both = async { tokio::try_join!(pump(from_one, to_other, &last), pump(from_other, to_one, &last)) };
    tokio::select! {
        _ = both => {}
        () = idle => {}
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, last: &Mutex<Instant>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
        *last.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}
