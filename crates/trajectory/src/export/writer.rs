use std::io::{self, Write};

use serde::Serialize;

use crate::TrajectoryError;

/// Writes JSON piece by piece.
pub(super) struct Writer<'a> {
    out: &'a mut dyn Write,
    trajectory: &'a str,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut dyn Write, trajectory: &'a str) -> Self {
        Self { out, trajectory }
    }

    fn failed(&self, error: impl Into<io::Error>) -> TrajectoryError {
        TrajectoryError::io("write the export of", self.trajectory, error.into())
    }

    /// Writes text unchanged.
    pub(super) fn raw(&mut self, text: &str) -> Result<(), TrajectoryError> {
        self.out.write_all(text.as_bytes()).map_err(|e| self.failed(e))
    }

    pub(super) fn json(&mut self, value: &impl Serialize) -> Result<(), TrajectoryError> {
        serde_json::to_writer(&mut *self.out, value).map_err(|e| self.failed(e))
    }

    /// Writes one more item of an array; `first` is true before the first one.
    pub(super) fn item(&mut self, first: &mut bool, value: &impl Serialize) -> Result<(), TrajectoryError> {
        if !std::mem::take(first) {
            self.raw(",")?;
        }
        self.json(value)
    }

    /// JSON that goes into a string.
    pub(super) fn text(&self, value: &impl Serialize) -> Result<String, TrajectoryError> {
        serde_json::to_string(value).map_err(|e| self.failed(e))
    }

    /// Writes the fields of an object, without its braces.
    pub(super) fn fields(&mut self, value: &impl Serialize) -> Result<(), TrajectoryError> {
        let text = self.text(value)?;
        self.raw(text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or_default())
    }

    pub(super) fn line(&mut self, value: &impl Serialize) -> Result<(), TrajectoryError> {
        self.json(value)?;
        self.raw("\n")
    }
}
