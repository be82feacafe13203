//! `jsonl`: one step a line, as recorded. Large bodies stand as references.

use arenite_model::TenantId;

use super::writer::Writer;
use crate::limits::MAX_PAGE;
use crate::{Recorder, TrajectoryError};

pub(super) fn write(
    recorder: &Recorder,
    tenant: &TenantId,
    trajectory: &str,
    out: &mut Writer<'_>,
) -> Result<u64, TrajectoryError> {
    let mut written = 0;
    loop {
        let page = recorder.steps(tenant, trajectory, written, MAX_PAGE.min(64))?;
        let Some(last) = page.last() else {
            return Ok(written);
        };
        written = last.step;
        for step in &page {
            out.line(step)?;
        }
    }
}
