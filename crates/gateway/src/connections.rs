//! Connections, from accept to close.
//!
//! ```text
//!  accepted ──► waiting ──first authorized call──► admitted ──► ended: no call for too long
//!                  │
//!                  └──► ended: no head in time, too old, or evicted by newer ones
//! ```
//!
//! Every program that can reach the port can open connections. So unauthenticated ones are few, short-lived, and evicted by newer
//! ones: a flood of them takes only their own slots, not those of callers. Health routes are answered on waiting connections, so
//! they need no slot among the admitted ones.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use arenite_model::ErrorCode;
use axum::body::Body;
use bytes::Bytes;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::descriptors::{Lent, Shortage};
use crate::refusal::Refusal;

/// The most that wait for admission while descriptors are short.
const WAITING_AT_SHORTAGE: usize = 8;

/// Limits on connections. The defaults are in docs/LIMITS.md.
#[derive(Debug, Clone)]
pub struct ConnectionLimits {
    /// The most that are admitted at once; a call on a further one is refused with 503.
    pub admitted: usize,
    /// The most that wait for admission, in total.
    pub waiting: usize,
    /// The most waiting ones of one peer: an IPv4 address, or an IPv6 /64 network. Trusted proxies have no such limit.
    pub waiting_per_peer: usize,
    /// Time from the accept to the end of the first head, including the TLS handshake. Also the time that the rest of a closing connection may take.
    pub head: Duration,
    /// The total time of a connection that is never admitted.
    pub unadmitted: Duration,
    /// How long an admitted connection may be without a call.
    pub idle: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            admitted: 8192,
            waiting: 2048,
            waiting_per_peer: 1024,
            head: Duration::from_secs(10),
            unadmitted: Duration::from_secs(30),
            idle: Duration::from_secs(60),
        }
    }
}

/// All connections of a server.
pub(crate) struct Connections {
    limits: ConnectionLimits,
    admitted: Arc<Semaphore>,
    waiting: Mutex<Waiting>,
}

/// Waiting connections, by age and by peer. The key grows with each.
#[derive(Default)]
struct Waiting {
    next: u64,
    all: BTreeMap<u64, (Option<IpAddr>, CancellationToken)>,
    of_peer: HashMap<IpAddr, BTreeSet<u64>>,
}

impl Waiting {
    fn remove(&mut self, key: u64) -> Option<CancellationToken> {
        let (peer, evicted) = self.all.remove(&key)?;
        if let Some(peer) = peer
            && let Some(keys) = self.of_peer.get_mut(&peer)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.of_peer.remove(&peer);
            }
        }
        Some(evicted)
    }
}

impl Connections {
    pub(crate) fn new(limits: ConnectionLimits) -> Self {
        Self { admitted: Arc::new(Semaphore::new(limits.admitted)), waiting: Mutex::default(), limits }
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a new connection, and evicts the oldest ones if needed. `peer`: none for a trusted proxy.
    pub(crate) fn enter(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        shortage: Option<Shortage>,
        lent: Option<Lent>,
    ) -> Arc<Connection> {
        let peer = peer.map(network);
        let evicted = CancellationToken::new();
        let mut waiting = self.waiting();
        let key = waiting.next;
        waiting.next += 1;
        if let Some(peer) = peer {
            let keys = waiting.of_peer.entry(peer).or_default();
            keys.insert(key);
            let oldest = keys.first().copied().filter(|_| keys.len() > self.limits.waiting_per_peer);
            oldest.and_then(|key| waiting.remove(key)).inspect(CancellationToken::cancel);
        }
        waiting.all.insert(key, (peer, evicted.clone()));
        let most = if shortage.is_some() { WAITING_AT_SHORTAGE } else { self.limits.waiting };
        while waiting.all.len() > most
            && let Some(oldest) = waiting.all.keys().next().copied()
        {
            waiting.remove(oldest).inspect(CancellationToken::cancel);
        }
        drop(waiting);
        Arc::new(Connection {
            all: Arc::clone(self),
            key,
            evicted,
            accepted: Instant::now(),
            has_head: AtomicBool::new(false),
            asked: CancellationToken::new(),
            has_unread: AtomicBool::new(false),
            changed: Notify::new(),
            calls: Mutex::new(Calls { slot: None, under_way: 0, last: Instant::now() }),
            shortage,
            _lent: lent,
        })
    }

    /// Frees a descriptor when the process has none left.
    pub(crate) fn evict_oldest(&self) {
        let mut waiting = self.waiting();
        let oldest = waiting.all.keys().next().copied();
        oldest.and_then(|key| waiting.remove(key)).inspect(CancellationToken::cancel);
    }

    /// The numbers of waiting and of admitted connections.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.waiting().all.len(), self.limits.admitted - self.admitted.available_permits())
    }
}

/// What counts as one peer: the /64 network of an IPv6 address, because one client has 2^64 addresses.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() >> 64 << 64).into()),
        v4 => v4,
    }
}

/// One connection. Everything that uses it holds it, including a WebSocket.
pub(crate) struct Connection {
    all: Arc<Connections>,
    key: u64,
    evicted: CancellationToken,
    accepted: Instant,
    /// A first head has arrived.
    has_head: AtomicBool,
    /// Cancelled by the first head.
    asked: CancellationToken,
    /// A call was answered before its body was read.
    has_unread: AtomicBool,
    changed: Notify,
    calls: Mutex<Calls>,
    /// It was accepted when few descriptors were left, so it may make only one call.
    shortage: Option<Shortage>,
    _lent: Option<Lent>,
}

struct Calls {
    /// Its slot among the admitted ones.
    slot: Option<OwnedSemaphorePermit>,
    under_way: usize,
    /// When the last call ended.
    last: Instant,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.all.waiting().remove(self.key);
    }
}

impl Connection {
    fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a call: its head has arrived.
    pub(crate) fn begin(self: &Arc<Self>) -> UnderWay {
        self.has_head.store(true, Ordering::Relaxed);
        self.asked.cancel();
        self.calls().under_way += 1;
        UnderWay(Arc::clone(self))
    }

    /// Whether it is closed after its first answer.
    pub(crate) fn is_for_one_call(&self) -> bool {
        self.shortage.is_some()
    }

    /// Notes a call that is answered before its body was read.
    pub(crate) fn linger(&self) {
        self.has_unread.store(true, Ordering::Relaxed);
    }

    /// Whether its client may still be sending when it closes. Without descriptors for others, that is not waited for.
    pub(crate) fn lingers(&self) -> bool {
        self.has_unread.load(Ordering::Relaxed) && self.shortage.is_none()
    }

    /// Admits the connection of an identified caller, so that it is no longer evicted for others. `is_frugal`: the call needs no
    /// further descriptor for long, or frees some.
    pub(crate) fn admit(&self, is_frugal: bool) -> Result<(), Refusal> {
        if let Some(Shortage { limit }) = self.shortage
            && !is_frugal
        {
            let message =
                format!("the server has few of its {limit} descriptors left, and keeps them for health checks and deletes");
            let refusal = Refusal::new(ErrorCode::Exhausted, message)
                .hint("delete sandboxes that are not needed, or raise the server's limit: LimitNOFILE, or ulimit -n");
            return Err(Refusal { status: StatusCode::SERVICE_UNAVAILABLE, retry_after: Some(5), ..refusal });
        }
        let mut calls = self.calls();
        if calls.slot.is_some() {
            return Ok(());
        }
        let Ok(slot) = Arc::clone(&self.all.admitted).try_acquire_owned() else {
            let message = format!("the server has {} connections under way, the most it takes", self.all.limits.admitted);
            let status = StatusCode::SERVICE_UNAVAILABLE;
            return Err(Refusal { status, retry_after: Some(1), ..Refusal::new(ErrorCode::Exhausted, message) });
        };
        calls.slot = Some(slot);
        drop(calls);
        self.all.waiting().remove(self.key);
        self.changed.notify_one();
        Ok(())
    }

    /// When it ends unless something happens. None: an admitted call is in progress.
    fn end(&self) -> Option<Instant> {
        let limits = &self.all.limits;
        let calls = self.calls();
        match calls.slot {
            Some(_) if self.shortage.is_some() => (calls.under_way == 0).then_some(calls.last),
            None if self.shortage.is_some() => Some(self.accepted + limits.head),
            Some(_) => (calls.under_way == 0).then(|| calls.last + limits.idle),
            None if self.has_head.load(Ordering::Relaxed) => Some(self.accepted + limits.unadmitted),
            None => Some(self.accepted + limits.head),
        }
    }

    /// Completes when the connection's time is over.
    async fn expired(&self) {
        loop {
            let changed = self.changed.notified();
            match self.end() {
                Some(end) if end <= Instant::now() => return,
                Some(end) => {
                    let _ = tokio::time::timeout_at(end, changed).await;
                }
                None => changed.await,
            }
        }
    }

    /// Completes a handshake before the first head, within that head's time.
    pub(crate) async fn handshake<T>(
        &self,
        handshake: impl Future<Output = io::Result<T>>,
        stopping: &CancellationToken,
    ) -> io::Result<T> {
        tokio::select! {
            done = handshake => done,
            () = self.evicted.cancelled() => Err(io::ErrorKind::ConnectionAborted.into()),
            () = self.stopped(stopping) => Err(io::ErrorKind::ConnectionAborted.into()),
            () = self.expired() => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Drives the connection to its end. Closes it gracefully when the server stops or its time is over. Cuts it off if that
    /// takes longer than a head may, or if it is evicted.
    pub(crate) async fn drive<C: GracefulConnection>(&self, connection: C, stopping: &CancellationToken) -> Result<(), C::Error> {
        let mut connection = pin!(connection);
        let is_expired = tokio::select! {
            ended = connection.as_mut() => return ended,
            () = self.evicted.cancelled() => return Ok(()),
            () = self.stopped(stopping) => false,
            () = self.expired() => true,
        };
        if is_expired && !self.has_head.load(Ordering::Relaxed) {
            return Ok(());
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            ended = connection => ended,
            () = self.overdue(), if is_expired => Ok(()),
        }
    }

    /// Completes when the server stops. A client that has just connected still gets an answer: it can't know that it was too
    /// late.
    async fn stopped(&self, stopping: &CancellationToken) {
        /// How long to wait for the first byte of a connection.
        const FIRST_REQUEST: Duration = Duration::from_secs(1);
        stopping.cancelled().await;
        let _ = tokio::time::timeout(FIRST_REQUEST, self.asked.cancelled()).await;
    }

    /// Completes when the rest of a closing connection takes too long. A call that came at the last moment may take its time.
    async fn overdue(&self) {
        loop {
            tokio::time::sleep(self.all.limits.head).await;
            let calls = self.calls();
            if calls.slot.is_none() || calls.under_way == 0 {
                return;
            }
        }
    }
}

/// A call, from its head to the end of its answer.
pub(crate) struct UnderWay(Arc<Connection>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut calls = self.0.calls();
        calls.under_way -= 1;
        calls.last = Instant::now();
        drop(calls);
        self.0.changed.notify_one();
    }
}

impl UnderWay {
    /// The answer's body. The call ends with it.
    pub(crate) fn until_sent(self, body: Body) -> Body {
        Body::new(Sending { body, _call: self })
    }
}

struct Sending {
    body: Body,
    _call: UnderWay,
}

impl http_body::Body for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(admitted: usize, waiting: usize, waiting_per_peer: usize) -> Arc<Connections> {
        let limits = ConnectionLimits { admitted, waiting, waiting_per_peer, ..ConnectionLimits::default() };
        Arc::new(Connections::new(limits))
    }

    fn alive(all: &[Arc<Connection>]) -> Vec<bool> {
        all.iter().map(|connection| !connection.evicted.is_cancelled()).collect()
    }

    #[test]
    fn the_oldest_of_a_peer_and_of_all_make_way() {
        let connections = connections(8, 5, 2);
        let peer = |n: u8| Some(IpAddr::from([192, 0, 2, n]));
        let of_one: Vec<_> = (0..3).map(|_| connections.enter(peer(1), None, None)).collect();
        assert_eq!(alive(&of_one), [false, true, true]);
        let others: Vec<_> = [2, 2, 3].map(|n| connections.enter(peer(n), None, None)).into();
        assert_eq!(alive(&others), [true; 3]);
        let one_more = connections.enter(peer(4), None, None);
        assert_eq!((alive(&of_one), alive(&[one_more])), (vec![false, false, true], vec![true]));
        assert_eq!(connections.counts(), (4, 0));
        drop((of_one, others));
        assert_eq!(connections.counts(), (0, 0));
        assert!(connections.waiting().of_peer.is_empty());
    }

    #[test]
    fn admitted_ones_stay_and_are_bounded() {
        let connections = connections(2, 2, 1);
        let first = connections.enter(Some([192, 0, 2, 1].into()), None, None);
        first.admit(false).unwrap();
        let all: Vec<_> = (0..3).map(|_| connections.enter(Some([192, 0, 2, 1].into()), None, None)).collect();
        assert!(!first.evicted.is_cancelled());
        assert_eq!(alive(&all), [false, false, true]);
        all[2].admit(false).unwrap();
        all[2].admit(false).unwrap();
        let refused = connections.enter(Some([192, 0, 2, 1].into()), None, None).admit(false).unwrap_err();
        assert_eq!((refused.code, refused.retry_after), (ErrorCode::Exhausted, Some(1)));
        drop(first);
        assert_eq!(connections.counts(), (0, 1));
    }

    #[test]
    fn few_descriptors_are_for_calls_that_need_none() {
        let connections = connections(8, 20, 20);
        let before: Vec<_> = (0..10).map(|n| connections.enter(Some([192, 0, 2, n].into()), None, None)).collect();
        let shortage = Some(Shortage { limit: 256 });
        let last = connections.enter(Some([192, 0, 2, 99].into()), shortage, None);
        assert_eq!(alive(&before).iter().filter(|alive| **alive).count(), WAITING_AT_SHORTAGE - 1, "older ones make way");
        let refused = last.admit(false).unwrap_err();
        assert_eq!(
            (refused.code, refused.status, refused.retry_after),
            (ErrorCode::Exhausted, StatusCode::SERVICE_UNAVAILABLE, Some(5))
        );
        assert!(refused.message.contains("256") && last.is_for_one_call());
        last.admit(true).unwrap();
        assert!(last.end().is_some_and(|end| end <= Instant::now()), "it isn't kept for another call");
    }

    #[test]
    fn a_proxys_clients_are_not_one_peer() {
        let connections = connections(2, 3, 1);
        let all: Vec<_> = (0..4).map(|_| connections.enter(None, None, None)).collect();
        assert_eq!(alive(&all), [false, true, true, true]);
        let networks = ["2001:db8::1", "2001:db8::ffff:1", "2001:db8:0:1::1"].map(|text| network(text.parse().unwrap()));
        assert!(networks[0] == networks[1] && networks[0] != networks[2]);
        assert_eq!(network("::ffff:192.0.2.1".parse().unwrap()), IpAddr::from([192, 0, 2, 1]));
    }
}
