//! Passing bytes between two connections, unchanged.

use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::net::Shutdown;
use tokio::net::TcpStream;

use crate::metered::Meter;

/// Buffer of a direction. It exists only while bytes are there, so idle connections cost none.
const BUFFER: usize = 64 << 10;
/// Time without a byte until a connection ends.
pub(crate) const IDLE: Duration = Duration::from_secs(2 * 60 * 60);
/// The same after one side has ended its direction.
const HALF_OPEN_IDLE: Duration = Duration::from_secs(5 * 60);
/// Reads before other connections get their turn.
const READS: usize = 16;

/// Passes bytes until both sides have ended. `first` was read of the client before. An error means that both should be reset.
pub(crate) async fn splice(client: &TcpStream, upstream: &TcpStream, first: &[u8], meter: &Meter) -> io::Result<()> {
    let mut sending = pin!(async {
        write_all(upstream, first).await?;
        meter.add_sent(first.len());
        pass(client, upstream, |bytes| meter.add_sent(bytes)).await
    });
    let mut receiving = pin!(pass(upstream, client, |bytes| meter.add_received(bytes)));
    tokio::select! {
        ended = &mut sending => {
            ended?;
            tokio::select! {
                ended = receiving => ended,
                () = meter.idle(HALF_OPEN_IDLE) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
        ended = &mut receiving => {
            ended?;
            tokio::select! {
                ended = sending => ended,
                () = meter.idle(HALF_OPEN_IDLE) => Err(io::ErrorKind::TimedOut.into()),
            }
        }
        () = meter.idle(IDLE) => Err(io::ErrorKind::TimedOut.into()),
    }
}

async fn pass(from: &TcpStream, to: &TcpStream, count: impl Fn(usize)) -> io::Result<()> {
    loop {
        from.readable().await?;
        let mut buffer = Vec::with_capacity(BUFFER);
        for _ in 0..READS {
            buffer.clear();
            match from.try_read_buf(&mut buffer) {
                Ok(0) => {
                    // The other side may have ended already.
                    let _ = rustix::net::shutdown(to, Shutdown::Write);
                    return Ok(());
                }
                Ok(length) => {
                    write_all(to, &buffer).await?;
                    count(length);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        drop(buffer);
        tokio::task::yield_now().await;
    }
}

async fn write_all(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match to.try_write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
