//! Decisions of network policies, written into the trajectories of their sandboxes: refusals, and connections that were allowed, at
//! their end, and logins by SSH. They are no steps.

use std::sync::Arc;

use arenite_engine::{EgressEvent, EventKind, Protocol};
use arenite_trajectory::NetworkEvent;
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::gateway::Gateway;

/// Decisions that are written by one task.
const BATCH: usize = 256;

/// Writes decisions as they come, until the engine is gone.
pub(crate) async fn record(gateway: Arc<Gateway>, mut events: Receiver<EgressEvent>) {
    loop {
        let mut batch = match events.recv().await {
            Ok(event) => vec![event],
            Err(RecvError::Lagged(missed)) => {
                tracing::warn!(missed, "decisions of network policies are missing in trajectories: there were too many at once");
                continue;
            }
            Err(RecvError::Closed) => return,
        };
        while batch.len() < BATCH
            && let Ok(event) = events.try_recv()
        {
            batch.push(event);
        }
        let gateway = Arc::clone(&gateway);
        let written = tokio::task::spawn_blocking(move || batch.iter().for_each(|event| write(&gateway, event)));
        if written.await.is_err() {
            tracing::error!("writing decisions of network policies was cut off");
        }
    }
}

fn write(gateway: &Gateway, event: &EgressEvent) {
    // A signature has no end.
    let has_end = event.allowed && event.protocol != Protocol::Ssh;
    let is_recorded = event.kind == if has_end { EventKind::End } else { EventKind::Decision };
    let Some(tenant) = event.sandbox.parse().ok().filter(|_| is_recorded).and_then(|id| gateway.control.tenant_of(&id)) else {
        // Or its sandbox is gone.
        return;
    };
    // Both have the same names.
    let record: Result<NetworkEvent, _> = serde_json::to_value(event).and_then(serde_json::from_value);
    let noted = record
        .map_err(|error| error.to_string())
        .and_then(|record| gateway.recorder.note_network(&tenant, &event.sandbox, record).map_err(|error| error.to_string()));
    if let Err(error) = noted {
        tracing::warn!(sandbox = event.sandbox, error, "a decision of a network policy could not be recorded");
    }
}
