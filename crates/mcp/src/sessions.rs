//! Sessions by their last use. Their number is bounded, and a client that leaves during a call gets some time to come back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rmcp::model::{CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage, CustomNotification, NumberOrString};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::session::{SessionId, SessionManager};

/// Sessions at a time. Beyond this, the longest unused ones are removed. Each holds some 160 KB after its first 35 calls, three
/// quarters of it blocks of the library's channels, which have space for 32 messages each.
pub const MAX_SESSIONS: usize = 1024;
/// A session without any message ends after this time; longer than the longest call.
const KEEP_ALIVE: Duration = Duration::from_secs(2 * 3600);
/// How long answers are kept for clients that come back for them: a little longer than [`AWAY`].
const KEEP_ANSWERS: Duration = Duration::from_secs(8);
/// How often sessions are reminded to drop what they need not keep: they check only when they get a message.
const SWEEP: Duration = Duration::from_secs(10);
/// How long a client that left during a call may stay away before the call is cancelled.
pub(crate) const AWAY: Duration = Duration::from_secs(5);

pub(crate) struct Sessions {
    pub(crate) manager: Arc<LocalSessionManager>,
    used: Mutex<HashMap<SessionId, Used>>,
    /// Whether the task that reminds them runs; it runs while sessions exist.
    sweeps: AtomicBool,
}

struct Used {
    owner: Box<str>,
    last: Instant,
    /// When it last resumed an answer.
    resumed: Option<Instant>,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        let mut config = SessionConfig::default();
        config.keep_alive = Some(KEEP_ALIVE);
        config.completed_cache_ttl = KEEP_ANSWERS;
        let mut manager = LocalSessionManager::default();
        manager.session_config = config;
        Self { manager: Arc::new(manager), used: Mutex::default(), sweeps: AtomicBool::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn belongs_to(&self, id: &str, owner: &str) -> bool {
        self.lock().get(id).is_some_and(|session| *session.owner == *owner)
    }

    /// Notes a use of the session. A new session may evict others.
    pub(crate) async fn touch(self: &Arc<Self>, id: &str, owner: &str, resumes: bool) {
        if !self.sweeps.swap(true, Ordering::Relaxed) {
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        let now = Instant::now();
        let mut gone = Vec::new();
        {
            let mut used = self.lock();
            match used.get_mut(id) {
                Some(session) => {
                    session.last = now;
                    if resumes {
                        session.resumed = Some(now);
                    }
                }
                None => {
                    used.insert(id.into(), Used { owner: owner.into(), last: now, resumed: None });
                    while used.len() > MAX_SESSIONS {
                        let oldest = used.iter().min_by_key(|(_, session)| session.last).map(|(id, _)| SessionId::clone(id));
                        let Some(oldest) = oldest else { break };
                        used.remove(&oldest);
                        gone.push(oldest);
                    }
                }
            }
        }
        for id in gone {
            // It may have ended by itself.
            drop(self.manager.close_session(&id).await);
        }
    }

    /// Sessions that were used a moment ago.
    fn fresh(&self) -> Vec<SessionId> {
        let used = self.lock();
        used.iter().filter(|(_, session)| session.last.elapsed() < 3 * SWEEP).map(|(id, _)| SessionId::clone(id)).collect()
    }

    pub(crate) fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    /// Handles a client that left before its answer: cancels the call unless the client comes back for it in time.
    pub(crate) fn left(self: &Arc<Self>, id: String, request: NumberOrString) {
        let sessions = Arc::clone(self);
        let left = Instant::now();
        tokio::spawn(async move {
            tokio::time::sleep(AWAY).await;
            let is_back = sessions.lock().get(id.as_str()).is_none_or(|used| used.resumed.is_some_and(|at| at >= left));
            if !is_back {
                let reason = "the client is gone".to_owned();
                let cancel = CancelledNotification::new(CancelledNotificationParam::new(Some(request), Some(reason)));
                let cancel = ClientJsonRpcMessage::notification(cancel.into());
                // The session may have ended meanwhile, and its calls with it.
                drop(sessions.manager.accept_message(&id.into(), cancel).await);
            }
        });
    }
}

/// Makes sessions drop answers that no client comes back for. Without messages, a session would keep its last ones.
async fn sweep(sessions: Weak<Sessions>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        let Some(sessions) = sessions.upgrade() else { return };
        for id in sessions.fresh() {
            let nothing = ClientJsonRpcMessage::notification(CustomNotification::new("notifications/arenite/sweep", None).into());
            // It may have ended by itself.
            drop(sessions.manager.accept_message(&id, nothing).await);
        }
        if sessions.lock().is_empty() {
            sessions.sweeps.store(false, Ordering::Relaxed);
            return;
        }
    }
}
