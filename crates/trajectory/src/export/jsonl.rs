//! `jsonl`: one step a line, as recorded. Large bodies are references.

use arenite_model::TenantId;

use super::writer::Writer;
use crate::limits::MAX_PAGE;
use crate::{Filter, Recorder, TrajectoryError};

pub(super) fn write(
    recorder: &Recorder,
    (tenant, trajectory): (&TenantId, &str),
    filter: &Filter,
    out: &mut Writer<'_>,
) -> Result<u64, TrajectoryError> {
    let (mut written, mut after) = (0, 0);
    loop {
        let page = recorder.steps(tenant, trajectory, after, MAX_PAGE.min(64))?;
        let Some(last) = page.last() else {
            return Ok(written);
        };
        after = last.step;
        for step in page.iter().filter(|step| filter.takes(step)) {
            out.line(step)?;
            written += 1;
        }
    }
}
