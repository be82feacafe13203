//! Recovers the previous server's sandboxes at start.

use std::collections::HashMap;
use std::sync::Arc;

use arenite_engine::{Found, FoundState, Recovery, Row};
use arenite_model::{Death, DeathReason, PauseKind, SandboxId, SandboxState};

use crate::events::EventKind;
use crate::memo::{self, Memo};
use crate::registry::Entry;
use crate::{Control, ControlError, Sandbox};

/// Counts for the log.
#[derive(Debug, Default)]
struct Tally {
    running: usize,
    paused: usize,
    lost: usize,
    failed: usize,
    half_created: usize,
    half_deleted: usize,
    /// By other nodes, while this one did not run.
    deleted: usize,
    /// Could not be removed; the reaper tries again.
    stuck: usize,
    /// Their rows were recreated from the engine's records.
    rebuilt: usize,
    quarantined: usize,
}

impl Control {
    pub(crate) async fn recover(&self) -> Result<(), ControlError> {
        let rows = self.store.load().await.map_err(ControlError::store("read the sandboxes"))?;
        let (mut half, settled): (Vec<Sandbox>, Vec<Sandbox>) =
            rows.into_iter().partition(|row| matches!(row.state, SandboxState::Creating | SandboxState::Deleting));
        let known: Vec<Row> = settled.iter().map(memo::row).collect();
        let Recovery { found, quarantined, unclaimed, removed } = self.engine.recover(&known).await?;
        for removed in &removed {
            tracing::info!(%removed, "removed a leftover");
        }
        let mut found: HashMap<SandboxId, Found> = found.into_iter().map(|found| (found.id.clone(), found)).collect();
        let mut quarantined: HashMap<SandboxId, _> = quarantined.into_iter().map(|q| (q.id.clone(), q)).collect();
        let mut tally = Tally::default();
        tally.deleted += self.remove_deleted(&mut found).await?;
        for mut row in settled {
            if unclaimed.contains(&row.id) {
                row.state = SandboxState::Creating;
                half.push(row);
                continue;
            }
            if let Some(quarantined) = quarantined.remove(&row.id) {
                self.set_apart(quarantined, Some(Memo::from_sandbox(&row)), true);
                tally.quarantined += 1;
                continue;
            }
            let (state, pause_kind, died) = match found.remove(&row.id) {
                Some(found) => {
                    row.spec.tier = row.spec.tier.or(found.tier);
                    if row.isolation.is_empty() {
                        // The row of a claim is written before the sandbox is claimed.
                        row.isolation = found.isolation;
                    }
                    state_of(found.state)
                }
                None => (SandboxState::Lost, None, Some(Death::new(DeathReason::RecordLost))),
            };
            self.adopt(row, (state, pause_kind, died), &mut tally).await;
        }
        for row in half {
            found.remove(&row.id);
            quarantined.remove(&row.id);
            self.clean(row, &mut tally).await;
        }
        let mut unknown: Vec<Found> = found.into_values().collect();
        unknown.sort_by(|a, b| a.id.cmp(&b.id));
        for found in unknown {
            self.rebuild(found, &mut tally).await;
        }
        for quarantined in quarantined.into_values() {
            self.set_apart(quarantined, None, false);
            tally.quarantined += 1;
        }
        tracing::info!(found = ?tally, "recovered sandboxes");
        Ok(())
    }

    async fn adopt(&self, mut row: Sandbox, (state, pause_kind, died): Settled, tally: &mut Tally) {
        // A sandbox that failed or was lost before keeps its reason and its time.
        let settled = matches!(row.state, SandboxState::Failed | SandboxState::Lost) && state == SandboxState::Lost;
        if (row.state, row.pause_kind) != (state, pause_kind) && !settled {
            let before = row.clone();
            (row.state, row.pause_kind) = (state, pause_kind);
            row.reason = died.as_ref().map(|death| death.message.clone());
            row.state_since = self.clock.now();
            row.died = died.map(|death| death.noticed_at(row.state_since));
            tracing::info!(id = %row.id, name = %row.name, from = %before.state, to = %state, reason = row.reason.as_deref(), "a sandbox's state has changed");
            if let Err(error) = self.store.update(&row).await {
                tracing::error!(id = %row.id, %error, "a sandbox's state could not be stored");
            }
            self.announce(&row, EventKind::of_change(&before, &row));
        } else if settled && row.died.is_none() {
            // An earlier version stored only the text.
            let message = row.reason.clone().unwrap_or_default();
            row.died = Some(Death::with_message(DeathReason::Unknown, message).noticed_at(row.state_since));
        }
        self.enter_settled(row, tally);
    }

    fn enter_settled(&self, row: Sandbox, tally: &mut Tally) {
        *match row.state {
            SandboxState::Running => &mut tally.running,
            SandboxState::Paused => &mut tally.paused,
            SandboxState::Failed => &mut tally.failed,
            _ => &mut tally.lost,
        } += 1;
        self.enter_open(row);
    }

    /// Registers a sandbox, open for calls if it runs.
    pub(crate) fn enter_open(&self, row: Sandbox) {
        let open = row.state == SandboxState::Running;
        let entry = self.enter(row);
        if open {
            entry.open();
        }
    }

    /// Recreates a sandbox's row. A row is written before its sandbox is created and removed after it, so a missing row was
    /// lost by the store.
    async fn rebuild(&self, found: Found, tally: &mut Tally) {
        let (state, pause_kind, died) = state_of(found.state);
        let memo = found.memo.as_deref().map_or_else(|| Err("its record does not say whose it is".to_owned()), Memo::read);
        let memo = match memo {
            Ok(memo) if self.registry().by_name(&memo.tenant, &memo.name).is_none() => memo,
            other => {
                let (reason, memo) = match other {
                    Ok(memo) => (format!("no row names it, and its name {} is that of another sandbox", memo.name), Some(memo)),
                    Err(reason) => (format!("no row names it, and {reason}"), None),
                };
                let since = self.engine.quarantine(&found.id, &reason).await.unwrap_or_else(|error| {
                    tracing::warn!(id = %found.id, %error, "a quarantine could not be noted");
                    self.clock.now()
                });
                self.set_apart(arenite_engine::Quarantined { id: found.id, reason, since }, memo, false);
                tally.quarantined += 1;
                return;
            }
        };
        let mut row = memo.sandbox(found.id, state, died, self.clock.now());
        (row.isolation, row.pause_kind) = (found.isolation, pause_kind);
        row.spec.tier = found.tier.or(row.spec.tier);
        tracing::warn!(id = %row.id, name = %row.name, state = %row.state, "the store had lost a sandbox; its row is made again from its record");
        if let Err(error) = self.store.insert(&row).await {
            tracing::error!(id = %row.id, %error, "the row of a sandbox could not be stored; the next start tries again");
        }
        tally.rebuilt += 1;
        self.enter_settled(row, tally);
    }

    /// Completes a delete, or undoes a create, that the server's death interrupted.
    async fn clean(&self, mut row: Sandbox, tally: &mut Tally) {
        let destroy = self.engine.destroy(&row.id);
        let cleaned = match self.bounded("the removal", &row.name, destroy).await {
            Ok(()) => self.store.remove(&row.id).await.map_err(ControlError::store("forget a sandbox")),
            Err(error) => Err(error),
        };
        match cleaned {
            Ok(()) if row.state == SandboxState::Creating => {
                tally.half_created += 1;
                self.announce(&row, EventKind::CreateFailed);
            }
            Ok(()) => {
                tally.half_deleted += 1;
                self.announce(&row, EventKind::Deleted);
            }
            Err(error) => {
                tracing::error!(id = %row.id, name = %row.name, %error, "what a crash left half done could not be removed; trying again");
                tally.stuck += 1;
                row.state = SandboxState::Deleting;
                row.state_since = self.clock.now();
                self.enter(row);
            }
        }
    }

    fn enter(&self, row: Sandbox) -> Arc<Entry> {
        let entry = Arc::new(Entry::new(row));
        if !self.registry_mut().insert(&entry) {
            tracing::error!(id = %entry.id, "two rows have one id or name");
        }
        self.reconsider(&entry);
        entry
    }
}

/// The state of a sandbox, the kind of its pause, and its death.
pub(crate) type Settled = (SandboxState, Option<PauseKind>, Option<Death>);

pub(crate) fn state_of(state: FoundState) -> Settled {
    match state {
        FoundState::Running => (SandboxState::Running, None, None),
        FoundState::Paused => (SandboxState::Paused, Some(PauseKind::Freeze), None),
        FoundState::Stopped => (SandboxState::Paused, Some(PauseKind::Disk), None),
        FoundState::Lost(death) => (SandboxState::Lost, None, Some(death)),
    }
}
