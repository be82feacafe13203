//! Recovery: what a start does with the containers and records that it finds.
//!
//! A record is written before its container is created and removed after it. So a container without a record was never used,
//! unless it has run: then its record was lost, and it stays unchanged in quarantine.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use arenite_model::{Death, DeathReason, SandboxId, Tier};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::api::State;
use super::container::{ID, TAG, other_host};
use super::death::death_of;
use super::engine::{Live, Shared};
use super::record::Record;
use crate::namespace::descriptors;
use crate::namespace::host::at;
use crate::{EngineError, Found, FoundState, Quarantined, Recovery, Remains, Row};

fn record_lost(message: &str) -> Death {
    Death::with_message(DeathReason::RecordLost, message)
}

/// What was found of a sandbox.
struct Traces {
    id: SandboxId,
    container: Option<State>,
    record: io::Result<Option<Record>>,
}

impl Shared {
    pub(super) async fn find_again(self: &Arc<Self>, known: &[Row]) -> Result<Recovery, EngineError> {
        let known: HashMap<&SandboxId, &Row> = known.iter().map(|row| (&row.id, row)).collect();
        // Everything is looked at before anything changes.
        let all = self.look(&known).await?;
        descriptors::check(all.len() as u64, all.len())?;
        let mut recovery = Recovery::default();
        let mut addresses = Vec::new();
        for Traces { id, container, record } in all {
            let row = known.get(&id).copied();
            match (record, container) {
                (Ok(Some(record)), container) => {
                    if row.is_none() && container.is_none() {
                        self.forget(&id, "the record of a sandbox that was deleted", &mut recovery);
                        continue;
                    }
                    let state = match &container {
                        Some(state) => self.adopt(&record, state)?,
                        None => FoundState::Lost(record_lost("its container is gone")),
                    };
                    if !matches!(state, FoundState::Lost(_)) {
                        addresses.extend(record.net_index);
                    }
                    let memo = row.map_or(&record.memo, |row| &row.memo);
                    if *memo != record.memo {
                        let record = Record { memo: memo.clone(), ..record.clone() };
                        self.records.write(&record).map_err(|e| at("record", e))?;
                    }
                    self.records.end_quarantine(&id);
                    let isolation = self.isolation(record.tier.unwrap_or_default());
                    recovery.found.push(Found { id, state, memo: Some(memo.clone()), tier: record.tier, isolation });
                }
                (Ok(None), None) => match row {
                    Some(row) => {
                        let state = FoundState::Lost(record_lost("it has no record, and no container"));
                        recovery.found.push(Found {
                            id,
                            state,
                            memo: Some(row.memo.clone()),
                            tier: None,
                            isolation: self.isolation(Tier::default()),
                        });
                    }
                    None => self.forget(&id, "empty directories of a sandbox", &mut recovery),
                },
                (Ok(None), Some(state)) if row.is_none() && state.status == "created" => {
                    self.docker.remove(&self.name(&id)).await?;
                    self.forget(&id, "a container that was never started, of sandbox", &mut recovery);
                }
                (record, _) => {
                    let reason = match record {
                        Err(error) => format!("its record can't be read: {error}"),
                        Ok(_) => "it has no record".to_owned(),
                    };
                    let since = self.records.note_quarantine(&id, &reason).map_err(|e| at("quarantine", e))?;
                    self.state().quarantined.insert(id.clone());
                    recovery.quarantined.push(Quarantined { id, reason, since });
                }
            }
        }
        // The address of one in quarantine is unknown.
        if self.state().quarantined.is_empty() {
            self.network.adopt(&addresses).await;
        } else {
            self.network.adopt_all().await;
        }
        let live: Vec<_> = self.state().live.iter().map(|(id, live)| (id.clone(), live.pidfd.clone())).collect();
        for (id, pidfd) in live {
            self.watch(id, pidfd);
        }
        if let Err(error) = self.in_docker.sweep(&self.docker, &self.images).await {
            tracing::warn!(%error, "images that are no longer needed stay in Docker");
        }
        Ok(recovery)
    }

    async fn look(&self, known: &HashMap<&SandboxId, &Row>) -> Result<Vec<Traces>, EngineError> {
        let containers = self.docker.list(&format!("{TAG}={}", self.tag)).await?;
        let mut ids: BTreeSet<SandboxId> =
            containers.iter().filter_map(|container| container.labels.get(ID)?.parse().ok()).collect();
        ids.extend(self.records.list().map_err(|source| EngineError::Look { what: "the records".to_owned(), source })?);
        ids.extend(known.keys().map(|id| (*id).clone()));
        let mut all = Vec::with_capacity(ids.len());
        for id in ids {
            let container = self.docker.state(&self.name(&id)).await?;
            let record = self.records.read(&id);
            all.push(Traces { id, container, record });
        }
        Ok(all)
    }

    /// Watches a container's first process again, if it runs.
    fn adopt(&self, record: &Record, state: &State) -> Result<FoundState, EngineError> {
        if !state.running {
            let death = match state.status.as_str() {
                "created" => Death::with_message(DeathReason::Unknown, "its container never started"),
                _ => death_of(state),
            };
            return Ok(FoundState::Lost(death));
        }
        let pid = Pid::from_raw(state.pid).ok_or_else(other_host)?;
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(pidfd) => Arc::new(pidfd),
            // It ended just now.
            Err(rustix::io::Errno::SRCH) => return Ok(FoundState::Lost(Death::new(DeathReason::Unknown))),
            Err(error) => return Err(EngineError::Look { what: format!("sandbox {}", record.id), source: error.into() }),
        };
        let calls = match &record.proof {
            // Its guest connects again.
            Some(proof) => {
                Some(Arc::new(self.records.await_calls(&record.id, proof.clone()).map_err(|e| at("guest socket", e))?))
            }
            None => None,
        };
        self.state().live.insert(record.id.clone(), Live { record: record.clone(), pidfd, calls });
        Ok(if state.paused { FoundState::Paused } else { FoundState::Running })
    }

    fn forget(&self, id: &SandboxId, what: &str, recovery: &mut Recovery) {
        match self.records.remove(id) {
            Ok(()) => recovery.removed.push(format!("{what} {id}")),
            Err(error) => tracing::warn!(%id, %error, "what is left of a sandbox could not be removed"),
        }
    }

    /// One without a usable record becomes lost. Its disk is kept.
    pub(super) async fn adopt_quarantined(self: &Arc<Self>, row: &Row) -> Result<Found, EngineError> {
        let id = &row.id;
        let container = self.docker.state(&self.name(id)).await?;
        let record = self.records.read(id).ok().flatten();
        let tier = record.as_ref().and_then(|record| record.tier);
        let state = match (record, container) {
            (Some(record), Some(state)) => {
                let record = Record { name: row.name.clone(), memo: row.memo.clone(), ..record };
                self.records.write(&record).map_err(|e| at("record", e))?;
                let is_live = self.state().live.contains_key(id);
                match is_live {
                    true if state.paused => FoundState::Paused,
                    true => FoundState::Running,
                    false => {
                        let found = self.adopt(&record, &state)?;
                        let pidfd = self.state().live.get(id).map(|live| live.pidfd.clone());
                        if let Some(pidfd) = pidfd {
                            self.watch(id.clone(), pidfd);
                        }
                        found
                    }
                }
            }
            _ => {
                self.docker.kill(&self.name(id)).await?;
                let program = self.program().map_err(|e| at("program", e))?;
                self.records.make(id, &program).map_err(|e| at("records", e))?;
                let record = Record { tier, ..Record::new(row, String::new(), Tier::default()) };
                self.records.write(&record).map_err(|e| at("record", e))?;
                FoundState::Lost(record_lost("its record could not be read when it was adopted; its disk is kept"))
            }
        };
        self.state().quarantined.remove(id);
        self.records.end_quarantine(id);
        Ok(Found {
            id: id.clone(),
            state,
            memo: Some(row.memo.clone()),
            tier,
            isolation: self.isolation(tier.unwrap_or_default()),
        })
    }

    pub(super) async fn look_at_remains(&self, id: &SandboxId) -> Result<Remains, EngineError> {
        let container = self.docker.state(&self.name(id)).await?;
        Ok(Remains {
            processes: usize::from(container.as_ref().is_some_and(|state| state.running)),
            has_disk: container.is_some(),
            disk_bytes: None,
            has_record: matches!(self.records.read(id), Ok(Some(_))),
        })
    }
}
