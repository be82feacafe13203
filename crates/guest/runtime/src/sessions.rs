//! Sessions of a service by id: who has the turn in each, and which expire.
//!
//! Each executes one call after the other. Sessions that are idle for too long end, and beyond the maximum, the one that was idle
//! longest.

use std::collections::HashMap;
use std::fmt::{self, Debug};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use jiff::Timestamp;
use serde::Serialize;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::http::ApiError;
use crate::saved;

/// The most calls that wait for their turn in one session.
const MAX_WAITING: usize = 64;
/// The shortest time between two checks for expired sessions.
const SOONEST: Duration = Duration::from_secs(5);

/// The id of a session, chosen by a client or generated: 1 to [`SessionId::MAX_BYTES`] bytes.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SessionId(String);

/// A text is too long for a session's id.
#[derive(Debug, Error)]
#[error("{0:?} is no session id: use at most {most} bytes", most = SessionId::MAX_BYTES)]
pub struct BadSessionId(String);

impl SessionId {
    pub const MAX_BYTES: usize = 128;

    pub fn random() -> Self {
        Self(crate::random_id())
    }

    /// The id that a call gives, if it gives one: an empty one is none.
    pub fn given(text: Option<&str>) -> Result<Option<Self>, BadSessionId> {
        text.filter(|text| !text.is_empty()).map(str::parse).transpose()
    }

    /// The id in a call about an existing session. No session has an invalid one.
    pub fn existing(text: &str) -> Result<Self, SessionError> {
        text.parse().map_err(|_| SessionError::NotFound(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for SessionId {
    type Err = BadSessionId;

    fn from_str(text: &str) -> Result<Self, BadSessionId> {
        match text.len() {
            1..=Self::MAX_BYTES => Ok(Self(text.to_owned())),
            _ => Err(BadSessionId(text.chars().take(Self::MAX_BYTES).collect())),
        }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// As the text in quotes, for messages.
impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[derive(Debug, Error)]
pub enum SessionError {
    #[error("session {0:?} not found")]
    NotFound(String),
    #[error(transparent)]
    BadId(#[from] BadSessionId),
    #[error("{0} sessions execute code already; wait for one or delete one")]
    TooMany(usize),
    #[error("{MAX_WAITING} calls wait for session {0:?} already")]
    TooManyWaiting(SessionId),
    #[error("session {id:?} was busy with something else for {seconds} s: this code was not executed")]
    Busy { id: SessionId, seconds: u64 },
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        let message = error.to_string();
        match error {
            SessionError::NotFound(_) => ApiError::not_found(message)
                .hint("sessions end when they are unused for their time, or for others; execute makes one that is not there"),
            SessionError::BadId(_) => ApiError::bad_request(message),
            SessionError::Busy { .. } => ApiError::new(StatusCode::CONFLICT, message)
                .hint("a session executes one thing after the other; use another session"),
            SessionError::TooMany(_) | SessionError::TooManyWaiting(_) => ApiError::new(StatusCode::TOO_MANY_REQUESTS, message),
        }
    }
}

/// The state of every session: its id, its times, and the value to which one caller at a time has exclusive access.
#[derive(Debug)]
pub struct Turns<T> {
    pub id: SessionId,
    /// Cancelled when the session is deleted: its work ends, and no other caller gets a turn.
    pub closed: CancellationToken,
    pub created: Timestamp,
    used: Mutex<(Instant, Timestamp)>,
    turn: tokio::sync::Mutex<T>,
    waiting: AtomicUsize,
}

impl<T: Default> Turns<T> {
    pub fn new(id: SessionId) -> Self {
        let now = Timestamp::now();
        Self {
            id,
            closed: CancellationToken::new(),
            created: now,
            used: Mutex::new((Instant::now(), now)),
            turn: tokio::sync::Mutex::default(),
            waiting: AtomicUsize::new(0),
        }
    }

    /// Waits for a turn, in the order of arrival.
    pub async fn turn(&self, limit: Duration) -> Result<tokio::sync::MutexGuard<'_, T>, SessionError> {
        if self.waiting.fetch_add(1, Ordering::Relaxed) >= MAX_WAITING {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            return Err(SessionError::TooManyWaiting(self.id.clone()));
        }
        let turn = timeout(limit, self.turn.lock()).await;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        let turn = turn.map_err(|_| SessionError::Busy { id: self.id.clone(), seconds: limit.as_secs() })?;
        if self.closed.is_cancelled() { Err(self.gone()) } else { Ok(turn) }
    }

    /// Closes the session, and waits for the holder of the turn.
    pub async fn last_turn(&self) -> tokio::sync::MutexGuard<'_, T> {
        self.closed.cancel();
        self.turn.lock().await
    }

    /// The error for callers that come too late.
    pub fn gone(&self) -> SessionError {
        SessionError::NotFound(self.id.to_string())
    }

    /// Whether a caller waits for a turn.
    pub fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub fn is_busy(&self) -> bool {
        self.turn.try_lock().is_err()
    }

    pub fn touch(&self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = (Instant::now(), Timestamp::now());
    }

    /// When the session was last used.
    pub fn used(&self) -> (Instant, Timestamp) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A session of a service.
pub trait Session: Debug + Send + Sync + 'static {
    type Slot: Default;
    fn turns(&self) -> &Turns<Self::Slot>;
    /// How long it may be idle.
    fn patience(&self) -> Duration;
    /// Ends its work, whatever it does, and waits until it has ended.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

fn due(session: &impl Session) -> Instant {
    saved::last_use(session.turns().used().0) + session.patience()
}

#[derive(Debug)]
pub struct Sessions<S> {
    most: usize,
    by_id: Mutex<HashMap<SessionId, Arc<S>>>,
    /// Whether the task that ends idle sessions runs. It runs while there are sessions.
    reaper_runs: AtomicBool,
    /// Notified when a session is new or expires sooner.
    sooner: Notify,
}

impl<S: Session> Sessions<S> {
    pub fn at_most(most: usize) -> Arc<Self> {
        Arc::new(Self { most, by_id: Mutex::default(), reaper_runs: AtomicBool::new(false), sooner: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<S>>> {
        self.by_id.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find(&self, id: &SessionId) -> Option<Arc<S>> {
        self.lock().get(id).cloned()
    }

    pub fn all(&self) -> Vec<Arc<S>> {
        self.lock().values().cloned().collect()
    }

    /// Whether a session is executing.
    pub fn is_busy(&self) -> bool {
        self.lock().values().any(|session| session.turns().is_busy())
    }

    /// The number of sessions.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Adds the session that `make` creates for an id. If another call has created that session meanwhile, returns it and false.
    pub fn insert(
        self: &Arc<Self>,
        id: Option<SessionId>,
        make: impl FnOnce(SessionId) -> S,
    ) -> Result<(Arc<S>, bool), SessionError> {
        let mut sessions = self.lock();
        if let Some(session) = id.as_ref().and_then(|id| sessions.get(id)) {
            return Ok((Arc::clone(session), false));
        }
        if sessions.len() >= self.most {
            let idle = sessions.values().filter(|s| !s.turns().is_busy());
            let oldest = idle.min_by_key(|s| s.turns().used().0).map(|s| s.turns().id.clone());
            if let Some(oldest) = sessions.remove(&oldest.ok_or(SessionError::TooMany(self.most))?) {
                tokio::spawn(async move { oldest.close().await });
            }
        }
        let session = Arc::new(make(id.unwrap_or_else(SessionId::random)));
        sessions.insert(session.turns().id.clone(), Arc::clone(&session));
        drop(sessions);
        self.look_sooner();
        if !self.reaper_runs.swap(true, Ordering::Relaxed) {
            let weak = Arc::downgrade(self);
            tokio::spawn(async move {
                while let Some((sessions, next)) = weak.upgrade().and_then(|s| s.end_unused().map(|next| (s, next))) {
                    drop(timeout(next.saturating_duration_since(Instant::now()), sessions.sooner.notified()).await);
                }
            });
        }
        Ok((session, true))
    }

    /// Rechecks the times, after a session's has become shorter.
    pub fn look_sooner(&self) {
        self.sooner.notify_one();
    }

    /// Removes a session that was never started. Callers that wait for a turn get an error that it does not exist.
    pub fn forget(&self, session: &S) {
        session.turns().closed.cancel();
        self.lock().remove(&session.turns().id);
    }

    /// Ends a session with all processes that it started.
    pub async fn delete(&self, id: &SessionId) -> Result<(), SessionError> {
        let session = self.lock().remove(id);
        session.ok_or_else(|| SessionError::NotFound(id.to_string()))?.close().await;
        Ok(())
    }

    /// Ends all sessions and returns their number.
    pub async fn delete_all(&self) -> usize {
        let all: Vec<_> = self.lock().drain().map(|(_, session)| session).collect();
        let number = all.len();
        let mut closing = tokio::task::JoinSet::new();
        for session in all {
            closing.spawn(async move { session.close().await });
        }
        closing.join_all().await;
        number
    }

    /// Ends expired sessions and returns when the next one expires. Without sessions, the reaper stops.
    fn end_unused(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut sessions = self.lock();
        for (_, session) in sessions.extract_if(|_, s| !s.turns().is_busy() && due(&**s) <= now) {
            tokio::spawn(async move { session.close().await });
        }
        let next = sessions.values().map(|s| due(&**s).max(now + SOONEST)).min();
        self.reaper_runs.store(next.is_some(), Ordering::Relaxed);
        next
    }
}
