//! Sessions by their last use: there is a most, and who goes in the middle of a call is waited for a while.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rmcp::model::{CancelledNotification, CancelledNotificationParam, ClientJsonRpcMessage, NumberOrString};
use rmcp::transport::streamable_http_server::session::local::{LocalSessionManager, SessionConfig};
use rmcp::transport::streamable_http_server::session::{SessionId, SessionManager};

/// Sessions at a time. When there are more, those go first that were unused for longest.
pub const MAX_SESSIONS: usize = 1024;
/// A session without any message ends after this time; longer than the longest call.
const KEEP_ALIVE: Duration = Duration::from_secs(2 * 3600);
/// Answers that are kept for who comes back for them.
const KEEP_ANSWERS: Duration = Duration::from_secs(60);
/// How long a client that went in the middle of a call may stay away before the call is cancelled.
pub(crate) const AWAY: Duration = Duration::from_secs(5);

pub(crate) struct Sessions {
    pub(crate) manager: Arc<LocalSessionManager>,
    used: Mutex<HashMap<SessionId, Used>>,
}

struct Used {
    last: Instant,
    /// When it last took an answer up again.
    resumed: Option<Instant>,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        let mut config = SessionConfig::default();
        config.keep_alive = Some(KEEP_ALIVE);
        config.completed_cache_ttl = KEEP_ANSWERS;
        let mut manager = LocalSessionManager::default();
        manager.session_config = config;
        Self { manager: Arc::new(manager), used: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Used>> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It was used now. A new one may cost others their place.
    pub(crate) async fn touch(&self, id: &str, resumes: bool) {
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
                    used.insert(id.into(), Used { last: now, resumed: None });
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

    pub(crate) fn forget(&self, id: &str) {
        self.lock().remove(id);
    }

    /// A client left before its answer: cancels the call unless the client comes back for it in time.
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
