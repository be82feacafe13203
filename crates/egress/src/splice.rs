//! Passing bytes between two connections, unchanged.

use std::io;
use std::pin::pin;
use std::time::Duration;

use rustix::fd::OwnedFd;
use rustix::net::Shutdown;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::metered::Meter;

/// Buffer of a direction. It exists only while bytes are there, so idle connections cost none.
const BUFFER: usize = 64 << 10;
/// Time without a byte until a connection ends.
pub(crate) const IDLE: Duration = Duration::from_secs(2 * 60 * 60);
/// The same after one side has ended its direction.
const HALF_OPEN_IDLE: Duration = Duration::from_secs(5 * 60);
/// Reads before other connections get their turn.
const READS: usize = 16;
/// Reads of one turn that filled the buffer, after which a transfer is large.
const FULL_READS: usize = 4;
/// Bytes that are moved at once. A pipe of the usual size holds up to as many.
const PIECE: usize = 1 << 20;
/// Time without a byte until the pipe of a direction is closed.
const PAUSE: Duration = Duration::from_secs(1);
/// Pipes at once. The kernel makes those of a user without privileges small when they hold many pages together, so a sandbox
/// with many transfers must not take them from other programs of the host.
static PIPES: Semaphore = Semaphore::const_new(128);

/// Passes bytes until both sides have ended. `first` was read of the client before. An error means that both should be reset.
pub(crate) async fn pass_both_ways(client: &TcpStream, upstream: &TcpStream, first: &[u8], meter: &Meter) -> io::Result<()> {
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
        let mut full = 0;
        for _ in 0..READS {
            buffer.clear();
            match from.try_read_buf(&mut buffer) {
                Ok(0) => return end(to),
                Ok(length) => {
                    write_all(to, &buffer).await?;
                    count(length);
                    full += usize::from(length == BUFFER);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        drop(buffer);
        if full >= FULL_READS
            && let Some(pipe) = Pipe::new()
            && pipe.pass(from, to, &count).await? == Passed::ToEnd
        {
            return end(to);
        }
        tokio::task::yield_now().await;
    }
}

/// Passes on that a direction ended. The other side may have ended already.
fn end(to: &TcpStream) -> io::Result<()> {
    let _ = rustix::net::shutdown(to, Shutdown::Write);
    Ok(())
}

/// Whether a direction ended.
#[derive(PartialEq)]
enum Passed {
    ToEnd,
    UntilPause,
}

/// Moves pages from socket to socket in the kernel, so that large transfers are not copied here. It exists only while a
/// direction is busy.
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _permit: SemaphorePermit<'static>,
}

impl Pipe {
    /// None at the limit of pipes, or of open files.
    fn new() -> Option<Self> {
        let permit = PIPES.try_acquire().ok()?;
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        Some(Self { read, write, _permit: permit })
    }

    async fn pass(&self, from: &TcpStream, to: &TcpStream, count: &impl Fn(usize)) -> io::Result<Passed> {
        let flags = SpliceFlags::NONBLOCK | SpliceFlags::MOVE;
        let mut turns = 0;
        loop {
            let mut filled = match from.try_io(Interest::READABLE, || Ok(splice(from, None, &self.write, None, PIECE, flags)?)) {
                Ok(0) => return Ok(Passed::ToEnd),
                Ok(filled) => filled,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    match tokio::time::timeout(PAUSE, from.readable()).await {
                        Ok(readable) => readable?,
                        Err(_) => return Ok(Passed::UntilPause),
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            while filled > 0 {
                match to.try_io(Interest::WRITABLE, || Ok(splice(&self.read, None, to, None, filled, flags)?)) {
                    Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                    Ok(moved) => {
                        filled -= moved;
                        count(moved);
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                    Err(error) => return Err(error),
                }
            }
            turns += 1;
            if turns % READS == 0 {
                tokio::task::yield_now().await;
            }
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::events::Traffic;

    /// More than all buffers between two programs hold.
    const BYTES: usize = 24 << 20;

    /// Two ends of a connection.
    async fn connection() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        (near.unwrap(), far.unwrap().0)
    }

    fn bytes(seed: u64) -> Arc<Vec<u8>> {
        let mut state = seed;
        Arc::new(
            std::iter::repeat_with(|| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 56) as u8
            })
            .take(BYTES)
            .collect(),
        )
    }

    /// Sends all bytes and ends, while it reads what the other side sends.
    async fn exchange(stream: TcpStream, sent: Arc<Vec<u8>>) -> Vec<u8> {
        let (mut read, mut write) = stream.into_split();
        let sender = tokio::spawn(async move {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut received = Vec::new();
        read.read_to_end(&mut received).await.unwrap();
        sender.await.unwrap();
        received
    }

    #[tokio::test]
    async fn large_transfers_in_both_directions_arrive_unchanged() {
        let (client, near) = connection().await;
        let (far, server) = connection().await;
        let (up, down) = (bytes(1), bytes(2));
        let meter = Meter::new();
        let (first, rest) = up.split_at(1000);
        let (passed, at_server, at_client) = tokio::join!(
            pass_both_ways(&near, &far, first, &meter),
            exchange(server, down.clone()),
            exchange(client, Arc::new(rest.to_vec())),
        );
        passed.unwrap();
        assert!(at_server == *up && at_client == *down);
        let Traffic { bytes_sent, bytes_received, .. } = meter.traffic();
        assert_eq!((bytes_sent, bytes_received), (BYTES as u64, BYTES as u64));
    }

    #[tokio::test]
    async fn a_pipe_passes_bytes_until_they_pause_or_end() {
        let (mut client, near) = connection().await;
        let (far, mut server) = connection().await;
        let counted = std::cell::Cell::new(0);
        let count = |moved| counted.set(counted.get() + moved);
        let pipe = Pipe::new().unwrap();
        client.write_all(b"some").await.unwrap();
        assert!(pipe.pass(&near, &far, &count).await.unwrap() == Passed::UntilPause);
        let mut received = [0; 4];
        server.read_exact(&mut received).await.unwrap();
        assert_eq!((&received, counted.get()), (b"some", 4));
        client.write_all(b"more").await.unwrap();
        client.shutdown().await.unwrap();
        assert!(pipe.pass(&near, &far, &count).await.unwrap() == Passed::ToEnd);
        server.read_exact(&mut received).await.unwrap();
        assert_eq!((&received, counted.get()), (b"more", 8));
    }
}
