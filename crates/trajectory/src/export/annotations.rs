//! Annotations in exports. They are not in the log, so the caller passes them.

use std::collections::{BTreeMap, BTreeSet};

use arenite_model::{Annotation, AnnotationLabel, AnnotationSummary};
use serde::Serialize;

/// The annotations of a trajectory: what an export has of them.
#[derive(Debug, Clone, Default)]
pub struct Annotations {
    /// In the order in which they were created. None: of the whole trajectory.
    by_step: BTreeMap<Option<u64>, Vec<Annotation>>,
}

/// The annotations of one line of a format with a line for each branch.
#[derive(Serialize)]
pub(super) struct LineMetadata<'a> {
    /// The mean of the ratings of the whole trajectory.
    rating: Option<f64>,
    labels: BTreeSet<AnnotationLabel>,
    annotations: Vec<&'a Annotation>,
}

impl Annotations {
    pub fn new(all: Vec<Annotation>) -> Self {
        let mut by_step: BTreeMap<_, Vec<Annotation>> = BTreeMap::new();
        for annotation in all {
            by_step.entry(annotation.step).or_default().push(annotation);
        }
        Self { by_step }
    }

    pub(super) fn of_step(&self, step: u64) -> &[Annotation] {
        self.about(Some(step))
    }

    /// Those of the whole trajectory.
    pub(super) fn of_all(&self) -> &[Annotation] {
        self.about(None)
    }

    fn about(&self, step: Option<u64>) -> &[Annotation] {
        self.by_step.get(&step).map(Vec::as_slice).unwrap_or_default()
    }

    /// Those of the whole trajectory and of these steps. None: there are none.
    pub(super) fn of_line(&self, steps: impl IntoIterator<Item = u64>) -> Option<LineMetadata<'_>> {
        if self.by_step.is_empty() {
            return None;
        }
        let of_steps = steps.into_iter().flat_map(|step| self.of_step(step));
        let annotations: Vec<&Annotation> = self.of_all().iter().chain(of_steps).collect();
        let AnnotationSummary { rating, labels, .. } = AnnotationSummary::from_annotations(annotations.iter().copied())?;
        Some(LineMetadata { rating, labels, annotations })
    }
}

/// An annotation in one line: its rating, its labels, its text.
pub(super) fn in_one_line(annotation: &Annotation) -> String {
    let rating = annotation.rating.map(|rating| format!("{}/5", u8::from(rating)));
    let labels = annotation.labels.iter().map(|label| format!("[{label}]"));
    let text = annotation.text.split_whitespace().map(str::to_owned);
    rating.into_iter().chain(labels).chain(text).collect::<Vec<_>>().join(" ")
}
