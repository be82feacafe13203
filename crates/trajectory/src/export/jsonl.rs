//! `jsonl`: one step a line, as recorded. Large bodies are references. Network records, if they are asked for, are lines with
//! `"kind": "network"` between the steps.

use arenite_model::TenantId;
use serde::Serialize;

use super::writer::Writer;
use crate::limits::MAX_PAGE;
use crate::{Filter, Kind, NetworkEvent, Recorder, TrajectoryError};

pub(super) fn write(
    recorder: &Recorder,
    (tenant, trajectory): (&TenantId, &str),
    filter: &Filter,
    out: &mut Writer<'_>,
) -> Result<u64, TrajectoryError> {
    let (mut written, mut after) = (0, 0);
    let network = if filter.network { recorder.network(tenant, trajectory)?.events } else { Vec::new() };
    let mut network = network.iter().peekable();
    loop {
        let page = recorder.steps(tenant, trajectory, after, MAX_PAGE.min(64))?;
        let Some(last) = page.last() else {
            network.try_for_each(|event| out.line(&NetworkLine::new(event)))?;
            return Ok(written);
        };
        after = last.step;
        for step in &page {
            while let Some(event) = network.next_if(|event| event.after < step.step) {
                out.line(&NetworkLine::new(event))?;
            }
            if filter.takes(step) {
                out.line(step)?;
                written += 1;
            }
        }
    }
}

/// A network record among steps.
#[derive(Serialize)]
struct NetworkLine<'a> {
    kind: Kind,
    #[serde(flatten)]
    event: &'a NetworkEvent,
}

impl<'a> NetworkLine<'a> {
    fn new(event: &'a NetworkEvent) -> Self {
        Self { kind: Kind::Network, event }
    }
}
