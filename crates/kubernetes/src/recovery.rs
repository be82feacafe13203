//! Recovery: what a start does with the records and pods that it finds.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arenite_engine::{EngineError, Found, FoundState, Quarantined, Recovery, Row};
use arenite_model::{Death, DeathReason, SandboxId, Tier};
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use tokio::time::timeout;

use crate::engine::{Live, Shared};
use crate::guest;
use crate::record::{Record, sandbox_of};
use crate::state::{Phase, PodView, view_of};

/// Guests that are asked at once for their state.
const ASKED_AT_ONCE: usize = 32;
/// Time for a guest to say whether it is frozen. One that does not answer counts as running.
const ASK_LIMIT: Duration = Duration::from_secs(3);

fn record_lost(message: &str) -> FoundState {
    FoundState::Lost(Death::with_message(DeathReason::RecordLost, message))
}

/// The sandbox with its pod, if that is the one of the record and runs. Otherwise what became of it.
fn living(record: &Record, pod: Option<&PodView>) -> Result<Live, FoundState> {
    let identity = record.guest.as_ref().ok_or_else(|| record_lost("its pod never proved its identity"))?;
    let gone = || FoundState::Lost(Death::with_message(DeathReason::Killed, "its pod is gone from the cluster"));
    let pod = pod.ok_or_else(gone)?;
    if pod.uid != identity.pod_uid {
        return Err(record_lost("another pod has its name"));
    }
    match &pod.phase {
        Phase::Running(_) => {
            Live::new(record.clone(), identity).map_err(|_| record_lost("the guest's key in its record can't be read"))
        }
        Phase::Ended(death) => Err(FoundState::Lost(death.clone())),
        Phase::Waiting(_) => Err(record_lost("its pod does not run")),
    }
}

/// What was found of a sandbox.
struct Traces {
    id: SandboxId,
    pod: Option<PodView>,
    /// None: there is no Secret. `Err`: it has no readable record.
    record: Option<Result<Record, ()>>,
}

impl Shared {
    pub(crate) async fn find_again(self: &Arc<Self>, known: &[Row]) -> Result<Recovery, EngineError> {
        let known: HashMap<&SandboxId, &Row> = known.iter().map(|row| (&row.id, row)).collect();
        // Everything is looked at before anything changes.
        let all = self.look(&known).await?;
        let mut recovery = Recovery::default();
        let mut asked = Vec::new();
        for Traces { id, pod, record } in all {
            let row = known.get(&id).copied();
            match record {
                None if row.is_none() => {
                    // Its record is removed last, so this is a pod that is being deleted.
                    self.remove(&id, "a pod without a record", &mut recovery).await;
                }
                None => recovery.found.push(self.found(id, record_lost("it has no record in the cluster"), row, None)),
                Some(Err(())) => {
                    let reason = "its record can't be read".to_owned();
                    recovery.quarantined.push(Quarantined { id, reason, since: Timestamp::now() });
                }
                Some(Ok(record)) if record.name.is_none() => {
                    if row.is_some() {
                        recovery.unclaimed.push(id.clone());
                    }
                    self.remove(&id, "a sandbox that was created in advance", &mut recovery).await;
                }
                Some(Ok(record)) if record.guest.is_none() && row.is_none() => {
                    self.remove(&id, "a sandbox that was never used", &mut recovery).await;
                }
                Some(Ok(mut record)) => {
                    if let Some(row) = row.filter(|row| row.memo != record.memo) {
                        record.memo.clone_from(&row.memo);
                        self.api.update_record(&record).await?;
                    }
                    match living(&record, pod.as_ref()) {
                        Ok(live) => asked.push(live),
                        Err(state) => recovery.found.push(self.found(id, state, row, Some(&record))),
                    }
                }
            }
        }
        recovery.found.extend(self.ask_all(asked).await);
        Ok(recovery)
    }

    async fn look(&self, known: &HashMap<&SandboxId, &Row>) -> Result<Vec<Traces>, EngineError> {
        let secrets = self.api.records().await?;
        let pods = self.api.all_pods().await?;
        let mut records: HashMap<SandboxId, Result<Record, ()>> = secrets
            .iter()
            .filter_map(|secret| {
                let id = sandbox_of(&secret.metadata)?;
                let record = Record::of_secret(&id, secret).ok_or(());
                Some((id, record))
            })
            .collect();
        let mut views = HashMap::new();
        for pod in &pods {
            if let (Some(id), Some(view)) = (sandbox_of(&pod.metadata), view_of(pod)) {
                // The watch may not have shown it yet.
                self.pods.learn(&id, pod);
                views.insert(id, view);
            }
        }
        let ids: BTreeSet<SandboxId> =
            records.keys().chain(views.keys()).cloned().chain(known.keys().map(|id| (*id).clone())).collect();
        let traces = |id: SandboxId| Traces { pod: views.remove(&id), record: records.remove(&id), id };
        Ok(ids.into_iter().map(traces).collect())
    }

    /// Asks running sandboxes whether they are frozen.
    async fn ask_all(self: &Arc<Self>, all: Vec<Live>) -> Vec<Found> {
        let asked = all.into_iter().map(|live| async move {
            let facts = async { guest::facts(self.connect(&live).await.ok()?).await.ok() };
            let is_frozen = timeout(ASK_LIMIT, facts).await.ok().flatten().is_some_and(|facts| facts.is_frozen);
            let state = if is_frozen { FoundState::Paused } else { FoundState::Running };
            let found = self.found(live.record.id.clone(), state, None, Some(&live.record));
            self.running().insert(live.record.id.clone(), live);
            found
        });
        stream::iter(asked).buffer_unordered(ASKED_AT_ONCE).collect().await
    }

    fn found(&self, id: SandboxId, state: FoundState, row: Option<&Row>, record: Option<&Record>) -> Found {
        let memo = row.map(|row| row.memo.clone()).or_else(|| record.map(|record| record.memo.clone()));
        let tier = record.map(|record| record.tier);
        Found { id, state, memo, tier, isolation: self.isolation(tier.unwrap_or(Tier::Namespace)) }
    }

    async fn remove(&self, id: &SandboxId, what: &str, recovery: &mut Recovery) {
        match self.sweep(id).await {
            Ok(()) => recovery.removed.push(format!("{what}: {id}")),
            Err(error) => tracing::warn!(%id, %error, "what is left of a sandbox could not be removed"),
        }
    }

    /// One without a usable record becomes lost.
    pub(crate) async fn adopt_quarantined(self: &Arc<Self>, row: &Row) -> Result<Found, EngineError> {
        let id = &row.id;
        let record = self.api.record(id).await?;
        let found = match record {
            Some(record) => {
                let record = Record { name: Some(row.name.clone()), memo: row.memo.clone(), ..record };
                self.api.update_record(&record).await?;
                match living(&record, self.pods.get(id).as_ref()) {
                    Ok(live) => self.ask_all(vec![live]).await.pop(),
                    Err(state) => Some(self.found(id.clone(), state, Some(row), Some(&record))),
                }
            }
            None => None,
        };
        Ok(found.unwrap_or_else(|| {
            self.found(id.clone(), record_lost("its record could not be read when it was adopted"), Some(row), None)
        }))
    }
}
