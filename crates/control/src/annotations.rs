//! Annotations of trajectories and their steps. They are in the store, and not in a trajectory's log: a log is only appended to, and
//! each of its lines is checked.
//!
//! The caller checks that the trajectory and the step exist. An annotation is changed only from the revision that was read, so of two
//! changes at once, the second one is made from the result of the first, or refused if it names a version.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arenite_model::{Annotation, AnnotationId, AnnotationLabel, AnnotationSummary, Rating, TenantId};
use jiff::Timestamp;

use crate::store::{AnnotationRow, AnnotationStore, MostAnnotations};
use crate::{Control, ControlError};

/// The most annotations of a trajectory, and of a tenant.
pub const MOST: MostAnnotations = MostAnnotations { of_trajectory: 1_000, of_tenant: 100_000 };
pub(crate) const OF_TRAJECTORY: &str = "annotations of this trajectory";
pub(crate) const OF_TENANT: &str = "annotations of this tenant";
/// How often a change is made again that another one overtook.
const ATTEMPTS: usize = 16;

/// A new annotation.
#[derive(Debug, Clone, Default)]
pub struct NewAnnotation {
    /// None: of the whole trajectory.
    pub step: Option<u64>,
    pub text: String,
    pub labels: BTreeSet<AnnotationLabel>,
    pub rating: Option<Rating>,
    pub author: Option<String>,
}

/// A change of an annotation. What is none stays as it is.
#[derive(Debug, Clone, Default)]
pub struct AnnotationChange {
    pub text: Option<String>,
    pub labels: Option<BTreeSet<AnnotationLabel>>,
    /// None within: it rates no longer.
    pub rating: Option<Option<Rating>>,
    /// The versions of which it may be a change; none: any.
    pub versions: Option<Vec<String>>,
    /// Who makes it.
    pub author: Option<String>,
}

/// Selects trajectories by their annotations. The default takes all that have one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnnotationFilter {
    /// Each is a label of the trajectory or of one of its steps.
    pub labels: Vec<AnnotationLabel>,
    /// The least mean of the ratings of the whole trajectory.
    pub min_rating: Option<Rating>,
}

impl Control {
    fn annotation_store(&self) -> Result<Arc<dyn AnnotationStore>, ControlError> {
        Arc::clone(&self.store).annotation_store().ok_or(ControlError::NoAnnotations)
    }

    /// The annotations of a trajectory, the oldest first.
    pub async fn annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<Vec<Annotation>, ControlError> {
        let found = self.annotation_store()?.annotations(tenant, trajectory).await;
        found.map_err(ControlError::store("read the annotations"))
    }

    /// An annotation.
    ///
    /// # Errors
    /// [`ControlError::NoAnnotation`].
    pub async fn annotation(&self, tenant: &TenantId, trajectory: &str, id: &AnnotationId) -> Result<Annotation, ControlError> {
        let found = self.annotation_store()?.annotation(tenant, trajectory, id).await;
        let found = found.map_err(ControlError::store("read an annotation"))?;
        found.ok_or_else(|| ControlError::NoAnnotation { id: id.to_string() })
    }

    /// Adds an annotation.
    ///
    /// # Errors
    /// [`ControlError::Annotation`] if it says nothing or too much; [`ControlError::TooMany`].
    pub async fn annotate(&self, tenant: &TenantId, trajectory: &str, new: NewAnnotation) -> Result<Annotation, ControlError> {
        let NewAnnotation { step, text, labels, rating, author } = new;
        let (id, now) = (AnnotationId::random(), Timestamp::now());
        let annotation = Annotation {
            id,
            step,
            text,
            labels,
            rating,
            author,
            created_at: now,
            changed_by: None,
            changed_at: now,
            revision: 1,
        };
        annotation.check()?;
        let store = self.annotation_store()?;
        let row = row(tenant, trajectory, &annotation);
        let failed = ControlError::store("add an annotation");
        // A transaction with a lost answer is repeated, and finds its own row.
        if store.add_annotation(row, MOST).await.map_err(&failed)?
            || store.annotation(tenant, trajectory, &annotation.id).await.map_err(&failed)?.is_some()
        {
            return Ok(annotation);
        }
        let of_trajectory = store.annotations(tenant, trajectory).await.map_err(&failed)?.len() as u64;
        let (what, most) = match of_trajectory >= MOST.of_trajectory {
            true => (OF_TRAJECTORY, MOST.of_trajectory),
            false => (OF_TENANT, MOST.of_tenant),
        };
        Err(ControlError::TooMany { what, most: usize::try_from(most).unwrap_or(usize::MAX) })
    }

    /// Changes an annotation.
    ///
    /// # Errors
    /// [`ControlError::NoAnnotation`]; [`ControlError::AnnotationChanged`] if it has none of the change's versions.
    pub async fn change_annotation(
        &self,
        tenant: &TenantId,
        trajectory: &str,
        id: &AnnotationId,
        change: AnnotationChange,
    ) -> Result<Annotation, ControlError> {
        let store = self.annotation_store()?;
        let AnnotationChange { text, labels, rating, versions, author } = change;
        for _ in 0..ATTEMPTS {
            let mut annotation = self.annotation(tenant, trajectory, id).await?;
            check_version(&annotation, versions.as_deref())?;
            let before = annotation.revision;
            annotation.text = text.clone().unwrap_or(annotation.text);
            annotation.labels = labels.clone().unwrap_or(annotation.labels);
            annotation.rating = rating.unwrap_or(annotation.rating);
            annotation.check()?;
            annotation.revision = before.saturating_add(1);
            annotation.changed_by.clone_from(&author);
            annotation.changed_at = Timestamp::now();
            let replaced = store.replace_annotation(row(tenant, trajectory, &annotation), before).await;
            if replaced.map_err(ControlError::store("change an annotation"))? {
                return Ok(annotation);
            }
        }
        let annotation = self.annotation(tenant, trajectory, id).await?;
        Err(ControlError::AnnotationChanged { id: id.clone(), version: annotation.version() })
    }

    /// Removes an annotation.
    ///
    /// # Errors
    /// Those of [`Control::change_annotation`].
    pub async fn remove_annotation(
        &self,
        tenant: &TenantId,
        trajectory: &str,
        id: &AnnotationId,
        versions: Option<&[String]>,
    ) -> Result<Annotation, ControlError> {
        let store = self.annotation_store()?;
        for _ in 0..ATTEMPTS {
            let annotation = self.annotation(tenant, trajectory, id).await?;
            check_version(&annotation, versions)?;
            let removed = store.remove_annotation(tenant, trajectory, id, annotation.revision).await;
            if removed.map_err(ControlError::store("remove an annotation"))? {
                return Ok(annotation);
            }
        }
        let annotation = self.annotation(tenant, trajectory, id).await?;
        Err(ControlError::AnnotationChanged { id: id.clone(), version: annotation.version() })
    }

    /// Removes all annotations of a trajectory, which may be gone, and returns their number.
    pub async fn remove_annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<u64, ControlError> {
        let removed = self.annotation_store()?.remove_annotations(tenant, trajectory).await;
        removed.map_err(ControlError::store("remove annotations"))
    }

    /// The trajectories with annotations that fit.
    pub async fn annotated(&self, tenant: &TenantId, filter: AnnotationFilter) -> Result<Vec<String>, ControlError> {
        let found = self.annotation_store()?.annotated(tenant, filter).await;
        found.map_err(ControlError::store("select trajectories by their annotations"))
    }

    /// What the annotations of trajectories say together; those without annotations are left out.
    pub async fn annotation_summaries(
        &self,
        tenant: &TenantId,
        trajectories: Vec<String>,
    ) -> Result<HashMap<String, AnnotationSummary>, ControlError> {
        let Some(store) = Arc::clone(&self.store).annotation_store() else { return Ok(HashMap::new()) };
        store.annotation_summaries(tenant, trajectories).await.map_err(ControlError::store("read the annotations"))
    }
}

fn row(tenant: &TenantId, trajectory: &str, annotation: &Annotation) -> AnnotationRow {
    AnnotationRow { tenant: tenant.clone(), trajectory: trajectory.to_owned(), annotation: annotation.clone() }
}

fn check_version(annotation: &Annotation, versions: Option<&[String]>) -> Result<(), ControlError> {
    let version = annotation.version();
    match versions.is_none_or(|versions| versions.contains(&version)) {
        true => Ok(()),
        false => Err(ControlError::AnnotationChanged { id: annotation.id.clone(), version }),
    }
}
