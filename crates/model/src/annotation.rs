//! Annotations of trajectories: notes, labels and ratings.

use std::collections::BTreeSet;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use utoipa::ToSchema;

use crate::{AnnotationId, AnnotationLabel};

/// What someone says about a trajectory, or about one of its steps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Annotation {
    pub id: AnnotationId,
    /// The step's number. Null: it is about the whole trajectory.
    pub step: Option<u64>,
    /// Plain text; empty: it has only labels or a rating.
    pub text: String,
    pub labels: BTreeSet<AnnotationLabel>,
    /// Null: it does not rate.
    pub rating: Option<Rating>,
    /// Who created it: a key's id, or `user:` and the user of a token. Null on a server without authentication, and for its
    /// configured key.
    pub author: Option<String>,
    pub created_at: Timestamp,
    /// Who changed it last, likewise. Absent: nobody has changed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<String>,
    pub changed_at: Timestamp,
    /// Counts its changes, from 1.
    pub revision: u64,
}

impl Annotation {
    /// The longest text, in bytes.
    pub const MAX_TEXT: usize = 8 << 10;
    /// The most labels.
    pub const MAX_LABELS: usize = 16;

    /// Changes with each change, for `ETag` and `If-Match`.
    pub fn version(&self) -> String {
        format!("{}-{}", self.id, self.revision)
    }

    /// Refuses one that says nothing, or too much.
    ///
    /// # Errors
    /// [`AnnotationError`].
    pub fn check(&self) -> Result<(), AnnotationError> {
        if self.text.len() > Self::MAX_TEXT {
            return Err(AnnotationError::LongText { bytes: self.text.len() });
        }
        if let Some(found) = self.text.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) {
            return Err(AnnotationError::Control { code: found.into() });
        }
        if self.labels.len() > Self::MAX_LABELS {
            return Err(AnnotationError::ManyLabels { labels: self.labels.len() });
        }
        if self.text.trim().is_empty() && self.labels.is_empty() && self.rating.is_none() {
            return Err(AnnotationError::Empty);
        }
        Ok(())
    }
}

/// Why an annotation was refused.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
pub enum AnnotationError {
    #[error("the text has {bytes} bytes, and the most is {}", Annotation::MAX_TEXT)]
    LongText { bytes: usize },
    #[error("the text has the control character U+{code:04X}")]
    Control { code: u32 },
    #[error("there are {labels} labels, and the most is {}", Annotation::MAX_LABELS)]
    ManyLabels { labels: usize },
    #[error("an annotation needs a text, a label, or a rating")]
    Empty,
    #[error("rating {given} is not from {} to {}", Rating::LEAST, Rating::MOST)]
    Rating { given: u8 },
}

/// A rating from 1, the worst, to 5, the best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(try_from = "u8", into = "u8")]
#[schema(value_type = u8, minimum = 1, maximum = 5)]
pub struct Rating(u8);

impl Rating {
    pub const LEAST: u8 = 1;
    pub const MOST: u8 = 5;
}

impl TryFrom<u8> for Rating {
    type Error = AnnotationError;
    fn try_from(given: u8) -> Result<Self, AnnotationError> {
        if (Self::LEAST..=Self::MOST).contains(&given) { Ok(Self(given)) } else { Err(AnnotationError::Rating { given }) }
    }
}

impl From<Rating> for u8 {
    fn from(rating: Rating) -> Self {
        rating.0
    }
}

/// What the annotations of a trajectory say together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AnnotationSummary {
    pub count: u64,
    /// The labels of the trajectory and of its steps.
    pub labels: BTreeSet<AnnotationLabel>,
    /// The mean of the ratings of the whole trajectory. Null: nobody rated it.
    pub rating: Option<f64>,
}

/// The step, the rating and the labels of an annotation.
pub type AnnotationParts = (Option<u64>, Option<Rating>, BTreeSet<AnnotationLabel>);

impl AnnotationSummary {
    /// None for no annotations.
    pub fn from_annotations<'a>(all: impl IntoIterator<Item = &'a Annotation>) -> Option<Self> {
        Self::from_parts(all.into_iter().map(|one| (one.step, one.rating, one.labels.clone())))
    }

    /// The same without the texts.
    pub fn from_parts(all: impl IntoIterator<Item = AnnotationParts>) -> Option<Self> {
        let (mut summary, mut ratings) = (Self { count: 0, labels: BTreeSet::new(), rating: None }, Vec::new());
        for (step, rating, labels) in all {
            summary.count += 1;
            summary.labels.extend(labels);
            ratings.extend(rating.filter(|_| step.is_none()).map(|rating| f64::from(rating.0)));
        }
        if !ratings.is_empty() {
            summary.rating = Some(ratings.iter().sum::<f64>() / ratings.len() as f64);
        }
        (summary.count > 0).then_some(summary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotation(step: Option<u64>, text: &str, labels: &[&str], rating: Option<u8>) -> Annotation {
        Annotation {
            id: AnnotationId::random(),
            step,
            text: text.to_owned(),
            labels: labels.iter().map(|label| label.parse().unwrap()).collect(),
            rating: rating.map(|rating| rating.try_into().unwrap()),
            author: None,
            created_at: Timestamp::UNIX_EPOCH,
            changed_by: None,
            changed_at: Timestamp::UNIX_EPOCH,
            revision: 1,
        }
    }

    #[test]
    fn annotations_that_say_nothing_or_too_much_are_refused() {
        let labels: Vec<String> = (0..=Annotation::MAX_LABELS).map(|n| format!("l{n}")).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let long = "ä".repeat(Annotation::MAX_TEXT / 2);
        for good in [
            annotation(None, &long, &labels[1..], Some(5)),
            annotation(Some(1), "<b>\n\tline\r\n", &[], None),
            annotation(None, "", &["a"], None),
            annotation(None, "", &[], Some(1)),
        ] {
            assert_eq!(good.check(), Ok(()));
        }
        for (bad, error) in [
            (annotation(None, &format!("{long}x"), &[], None), AnnotationError::LongText { bytes: 8193 }),
            (annotation(None, "", &labels, None), AnnotationError::ManyLabels { labels: 17 }),
            (annotation(None, " \n", &[], None), AnnotationError::Empty),
            (annotation(None, "a\0", &[], None), AnnotationError::Control { code: 0 }),
            (annotation(None, "a\u{1b}[2J", &[], None), AnnotationError::Control { code: 0x1b }),
        ] {
            assert_eq!(bad.check(), Err(error));
        }
        for given in [0, 6, 255] {
            assert_eq!(Rating::try_from(given), Err(AnnotationError::Rating { given }));
        }
    }

    #[test]
    fn the_rating_of_a_trajectory_is_the_mean_without_those_of_steps() {
        let all = [
            annotation(None, "", &["b"], Some(5)),
            annotation(None, "", &["a", "b"], Some(2)),
            annotation(Some(3), "", &["c"], Some(1)),
            annotation(None, "no rating", &[], None),
        ];
        let summary = AnnotationSummary::from_annotations(&all).unwrap();
        let labels: Vec<&str> = summary.labels.iter().map(AnnotationLabel::as_str).collect();
        assert_eq!((summary.count, summary.rating, labels), (4, Some(3.5), vec!["a", "b", "c"]));
        assert_eq!(AnnotationSummary::from_annotations(&all[2..3]).unwrap().rating, None);
        assert_eq!(AnnotationSummary::from_annotations(&[]), None);
    }
}
