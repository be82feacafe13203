//! `jsonl`: one step a line, as recorded. Large bodies are references. Network records, if they are asked for, are lines with
//! `"kind": "network"` between the steps. A step has its annotations, and those of the whole trajectory are lines with
//! `"kind": "annotation"` at the end.

use arenite_model::{Annotation, TenantId};
use serde::Serialize;

use super::Annotations;
use super::writer::Writer;
use crate::limits::MAX_PAGE;
use crate::{Filter, Kind, NetworkEvent, Recorder, Step, TrajectoryError};

pub(super) fn write(
    recorder: &Recorder,
    (tenant, trajectory): (&TenantId, &str),
    (filter, annotations): (&Filter, &Annotations),
    out: &mut Writer<'_>,
) -> Result<u64, TrajectoryError> {
    let (mut written, mut after) = (0, 0);
    let network = if filter.network { recorder.network(tenant, trajectory)?.events } else { Vec::new() };
    let mut network = network.iter().peekable();
    loop {
        let page = recorder.steps(tenant, trajectory, after, MAX_PAGE.min(64))?;
        let Some(last) = page.last() else {
            network.try_for_each(|event| out.line(&NetworkLine::new(event)))?;
            annotations.of_all().iter().try_for_each(|annotation| out.line(&AnnotationLine::new(annotation)))?;
            return Ok(written);
        };
        after = last.step;
        for step in &page {
            while let Some(event) = network.next_if(|event| event.after < step.step) {
                out.line(&NetworkLine::new(event))?;
            }
            if filter.takes(step) {
                step_line(step, annotations.of_step(step.step), out)?;
                written += 1;
            }
        }
    }
}

fn step_line(step: &Step, annotations: &[Annotation], out: &mut Writer<'_>) -> Result<(), TrajectoryError> {
    if annotations.is_empty() {
        return out.line(step);
    }
    out.raw("{")?;
    out.fields(step)?;
    out.raw(",\"annotations\":")?;
    out.json(&annotations)?;
    out.raw("}\n")
}

/// An annotation of the whole trajectory.
#[derive(Serialize)]
struct AnnotationLine<'a> {
    kind: &'static str,
    #[serde(flatten)]
    annotation: &'a Annotation,
}

impl<'a> AnnotationLine<'a> {
    fn new(annotation: &'a Annotation) -> Self {
        Self { kind: "annotation", annotation }
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
