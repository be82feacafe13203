use std::io::Read;

use arenite_model::TenantId;

use super::call::{Content, ExportedCall};
use super::{Annotations, MAX_PARSED};
use crate::{BlobRef, Body, Recorder, Step, TrajectoryError};

const PAGE: usize = 64;

/// Steps of one trajectory by their numbers. Ascending numbers are read a page at a time.
pub(super) struct Source<'a> {
    recorder: &'a Recorder,
    tenant: &'a TenantId,
    trajectory: &'a str,
    annotations: &'a Annotations,
    page: Vec<Step>,
}

impl<'a> Source<'a> {
    pub(super) fn new(
        recorder: &'a Recorder,
        tenant: &'a TenantId,
        (trajectory, annotations): (&'a str, &'a Annotations),
    ) -> Self {
        Self { recorder, tenant, trajectory, annotations, page: Vec::new() }
    }

    pub(super) fn trajectory(&self) -> &'a str {
        self.trajectory
    }

    pub(super) fn annotations(&self) -> &'a Annotations {
        self.annotations
    }

    /// A page of steps after the given one.
    pub(super) fn after(&mut self, step: u64) -> Result<&[Step], TrajectoryError> {
        self.page = self.recorder.steps(self.tenant, self.trajectory, step, PAGE)?;
        Ok(&self.page)
    }

    /// A step with its arguments and answer. None: its trajectory was removed meanwhile.
    pub(super) fn call(&mut self, number: u64) -> Result<Option<ExportedCall<'_>>, TrajectoryError> {
        let at = |page: &[Step]| page.binary_search_by_key(&number, |step| step.step).ok();
        if at(&self.page).is_none() {
            self.after(number.saturating_sub(1))?;
        }
        let Some(step) = at(&self.page).map(|at| &self.page[at]) else {
            return Ok(None);
        };
        let arguments = self.content(step.arguments.as_ref())?;
        let answer = self.content(step.observation.as_ref())?;
        Ok(Some(ExportedCall::new(step, arguments, answer)))
    }

    fn content(&self, body: Option<&Body>) -> Result<Content, TrajectoryError> {
        Ok(match body {
            None => Content::Nothing,
            Some(Body::Json(raw)) => Content::parse(raw.get()),
            Some(Body::Text(text)) => Content::Text(text.clone()),
            Some(Body::Base64(text)) => Content::Text(text.clone()),
            Some(Body::Blob(blob)) => self.blob(blob)?,
        })
    }

    fn blob(&self, blob: &BlobRef) -> Result<Content, TrajectoryError> {
        let reference = |picture| Content::Elsewhere { blake3: blob.blake3.clone(), bytes: blob.bytes, kept: blob.kept, picture };
        if !blob.kept {
            return Ok(reference(None));
        }
        let file = match self.recorder.read_blob(&blob.blake3) {
            Err(TrajectoryError::NoBlob { .. } | TrajectoryError::DamagedBlob { .. }) => {
                return Ok(Content::Elsewhere { blake3: blob.blake3.clone(), bytes: blob.bytes, kept: false, picture: None });
            }
            other => other?,
        };
        // Of a larger one, only the first bytes, which show whether it is a picture.
        let most = if blob.bytes > MAX_PARSED { 16 } else { blob.bytes };
        let mut bytes = Vec::new();
        file.take(most).read_to_end(&mut bytes).map_err(|e| TrajectoryError::io("read", &blob.blake3, e))?;
        if blob.bytes > MAX_PARSED {
            return Ok(reference(super::shown::picture(&bytes)));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Content::parse_owned(text)),
            Err(error) => Ok(reference(super::shown::picture(error.as_bytes()))),
        }
    }
}
