//! The SSH agents of sandboxes: the keys are here, and only signatures of logins go in.
//!
//! As for the calls of agents ([`crate::agent_calls`]), one request waits at the guest of each sandbox with an SSH key. When a process
//! inside connects to the agent's socket, it becomes that process's connection. Keys are read from the store for each message, so
//! changes of secrets count at once, on each node.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arenite_engine::{EgressEvent, Reason};
use arenite_model::{SandboxId, SshLogin, TenantId};
use arenite_ssh::{AgentKey, Keyring, Outcome, SignDecision};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::gateway::Gateway;
use crate::proxy::{self, WayOut};

/// The most concurrent connections out of one sandbox. Further ones wait in the guest's queue.
const MAX_CONNECTIONS: usize = 16;
/// Messages of one sandbox: at once, and the time between further ones, which wait.
const BURST: u32 = 128;
const INTERVAL: Duration = Duration::from_millis(30);
/// Signatures that this server makes at a time.
static SIGNATURES: Semaphore = Semaphore::const_new(4);
/// Pauses before a failed request is repeated: from the first to the last, doubling.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LAST_PAUSE: Duration = Duration::from_secs(60);
const SSH_PORT: u16 = 22;

/// Serves the agent of a sandbox until it is cancelled, if the sandbox has an SSH key.
pub(crate) async fn serve(gateway: &Arc<Gateway>, tenant: &TenantId, id: &SandboxId) {
    let has_keys = |sandbox: arenite_control::Sandbox| sandbox.spec.has_ssh_keys();
    if !gateway.control.get_by_id(tenant, id).await.is_ok_and(has_keys) {
        return;
    }
    let secrets = Arc::new(SandboxKeys { gateway: Arc::clone(gateway), id: id.clone(), pace: Pace::default() });
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut pause = FIRST_PAUSE;
    while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
        match proxy::wait_for_inside(gateway, id, WayOut::SshAgent).await {
            Ok(Some(io)) => {
                pause = FIRST_PAUSE;
                let secrets = Arc::clone(&secrets);
                gateway.tasks.spawn(async move {
                    let _permit = permit;
                    tokio::select! {
                        () = arenite_ssh::serve(io, &*secrets) => {}
                        () = secrets.gateway.stopping.cancelled() => {}
                    }
                });
            }
            Ok(None) => {
                tracing::warn!(sandbox = %id, "the guest has no socket for the SSH agent");
                return;
            }
            Err(refusal) => {
                tracing::debug!(sandbox = %id, why = refusal.message, "the request for the SSH agent ended");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }
}

/// The keys of one sandbox.
struct SandboxKeys {
    gateway: Arc<Gateway>,
    id: SandboxId,
    pace: Pace,
}

impl Keyring for SandboxKeys {
    async fn keys(&self) -> Vec<AgentKey> {
        self.gateway.control.ssh_keys(&self.id).await.unwrap_or_else(|error| {
            tracing::warn!(sandbox = %self.id, %error, "the SSH keys of a sandbox can't be read");
            Vec::new()
        })
    }

    async fn admit(&self) {
        tokio::time::sleep_until(self.pace.next(Instant::now())).await;
    }

    async fn run<T: Send + 'static>(&self, sign: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let _permit = SIGNATURES.acquire().await.ok()?;
        tokio::task::spawn_blocking(sign).await.ok()
    }

    fn decided(&self, decision: SignDecision) {
        let reason = match decision.outcome {
            Outcome::Signed => Reason::Signed,
            Outcome::UnknownKey => Reason::SecretRevoked,
            Outcome::NoLogin => Reason::NoLogin,
            Outcome::WrongHost => Reason::WrongHost,
            Outcome::Forwarded => Reason::Forwarded,
        };
        let SignDecision { secret, host, user, fingerprint, host_key, .. } = decision;
        let login = SshLogin { secret, user, fingerprint, host_key };
        let event = EgressEvent::ssh(self.id.as_str(), host.as_deref().map(name_and_port), reason, login);
        self.gateway.control.engine().note_network_event(event);
    }
}

/// A host of a secret. Of several ports, the first one.
fn name_and_port(host: &str) -> (String, u16) {
    let (name, ports) = host.split_once(':').unwrap_or((host, ""));
    let first = ports.split([',', '-']).next().and_then(|port| port.parse().ok());
    (name.to_owned(), first.unwrap_or(SSH_PORT))
}

/// When the next message may be answered.
#[derive(Debug, Default)]
struct Pace(Mutex<Option<Instant>>);

impl Pace {
    fn next(&self, now: Instant) -> Instant {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // What was not used is kept for a burst.
        let earliest = now.checked_sub(INTERVAL * BURST).unwrap_or(now);
        let next = last.map_or(earliest, |last| last.max(earliest)) + INTERVAL;
        *last = Some(next);
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn messages_wait_after_a_burst() {
        let (pace, now) = (Pace::default(), Instant::now() + INTERVAL * BURST);
        for _ in 0..BURST {
            assert!(pace.next(now) <= now);
        }
        assert_eq!(pace.next(now), now + INTERVAL);
        assert_eq!(pace.next(now), now + INTERVAL * 2);
        let later = now + INTERVAL * 3;
        assert_eq!(pace.next(later), later);
        assert!(pace.next(later + INTERVAL * BURST * 2) <= later + INTERVAL * BURST * 2);
    }

    #[test]
    fn hosts_have_ports_or_that_of_ssh() {
        for (host, name, port) in [("a.example", "a.example", 22), ("a.example:2222", "a.example", 2222), ("a:80,90-95", "a", 80)]
        {
            assert_eq!(name_and_port(host), (name.to_owned(), port));
        }
    }
}
