//! The persistent store of annotations. Both databases have the same statements: their parameters are numbered in the order in which
//! they appear first, which is how SQLite numbers them.
//!
//! An annotation is one JSON text. Its step, its rating and its labels are columns too, for lists that select by them.

use std::collections::{BTreeMap, HashMap};

use arenite_model::{Annotation, AnnotationId, AnnotationParts, AnnotationSummary, Rating, TenantId};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use super::{StoreError, number, to_json};
use crate::annotations::AnnotationFilter;

/// An annotation, and what it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnnotationRow {
    pub tenant: TenantId,
    pub trajectory: String,
    pub annotation: Annotation,
}

/// A store of annotations. Each operation is one transaction.
#[async_trait]
pub trait AnnotationStore: Send + Sync + 'static {
    /// Those of a trajectory, the oldest first.
    async fn annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<Vec<Annotation>, StoreError>;
    async fn annotation(&self, tenant: &TenantId, trajectory: &str, id: &AnnotationId) -> Result<Option<Annotation>, StoreError>;
    /// Adds an annotation. False: the trajectory or the tenant has the most already, or the annotation is there.
    async fn add_annotation(&self, row: AnnotationRow, most: MostAnnotations) -> Result<bool, StoreError>;
    /// Replaces an annotation. False: it is gone, or has another revision than `before`.
    async fn replace_annotation(&self, row: AnnotationRow, before: u64) -> Result<bool, StoreError>;
    /// Removes an annotation. False: it is gone, or has another revision.
    async fn remove_annotation(
        &self,
        tenant: &TenantId,
        trajectory: &str,
        id: &AnnotationId,
        revision: u64,
    ) -> Result<bool, StoreError>;
    /// Removes all of a trajectory, and returns their number.
    async fn remove_annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<u64, StoreError>;
    /// The trajectories with annotations that fit.
    async fn annotated(&self, tenant: &TenantId, filter: AnnotationFilter) -> Result<Vec<String>, StoreError>;
    /// What the annotations of trajectories say together; those without annotations are left out.
    async fn annotation_summaries(
        &self,
        tenant: &TenantId,
        trajectories: Vec<String>,
    ) -> Result<HashMap<String, AnnotationSummary>, StoreError>;
}

/// The most annotations of a trajectory, and of a tenant.
#[derive(Debug, Clone, Copy)]
pub struct MostAnnotations {
    pub of_trajectory: u64,
    pub of_tenant: u64,
}

impl MostAnnotations {
    pub(super) const UNLIMITED: Self = Self { of_trajectory: u64::MAX, of_tenant: u64::MAX };
}

pub(super) const SCHEMA: &str = "
    CREATE TABLE annotations (
        tenant     TEXT NOT NULL,
        trajectory TEXT NOT NULL,
        id         TEXT NOT NULL,
        revision   BIGINT NOT NULL,
        created_at BIGINT NOT NULL,
        step       BIGINT,         -- null: the whole trajectory
        rating     BIGINT,
        labels     TEXT NOT NULL,  -- JSON
        value      TEXT NOT NULL,  -- JSON of `Annotation`
        PRIMARY KEY (tenant, trajectory, id)
    );
";

pub(super) const ALL: &str = "SELECT tenant, trajectory, value FROM annotations ORDER BY tenant, trajectory, created_at, id";
pub(super) const CLEAR: &str = "DELETE FROM annotations";
pub(super) const OF_TRAJECTORY: &str =
    "SELECT tenant, trajectory, value FROM annotations WHERE tenant = $1 AND trajectory = $2 ORDER BY created_at, id";
pub(super) const ONE: &str =
    "SELECT tenant, trajectory, value FROM annotations WHERE tenant = $1 AND trajectory = $2 AND id = $3";
pub(super) const ADD: &str = "
    INSERT INTO annotations (tenant, trajectory, id, revision, created_at, step, rating, labels, value)
    SELECT CAST($1 AS TEXT), CAST($2 AS TEXT), CAST($3 AS TEXT), CAST($4 AS BIGINT), CAST($5 AS BIGINT), CAST($6 AS BIGINT),
        CAST($7 AS BIGINT), CAST($8 AS TEXT), CAST($9 AS TEXT)
    WHERE (SELECT count(*) FROM annotations WHERE tenant = $1 AND trajectory = $2) < CAST($10 AS BIGINT)
        AND (SELECT count(*) FROM annotations WHERE tenant = $1) < CAST($11 AS BIGINT)
    ON CONFLICT DO NOTHING";
pub(super) const REPLACE: &str = "
    UPDATE annotations SET revision = $1, rating = $2, labels = $3, value = $4
    WHERE tenant = $5 AND trajectory = $6 AND id = $7 AND revision = $8";
pub(super) const REMOVE: &str = "DELETE FROM annotations WHERE tenant = $1 AND trajectory = $2 AND id = $3 AND revision = $4";
pub(super) const REMOVE_ALL: &str = "DELETE FROM annotations WHERE tenant = $1 AND trajectory = $2";

/// The columns of a row beside its tenant, its trajectory and its id.
pub(super) struct Columns {
    pub(super) revision: i64,
    pub(super) created_at: i64,
    pub(super) step: Option<i64>,
    pub(super) rating: Option<i64>,
    pub(super) labels: String,
    pub(super) value: String,
}

impl Columns {
    pub(super) fn from_annotation(annotation: &Annotation) -> Result<Self, StoreError> {
        Ok(Self {
            revision: number(annotation.revision),
            created_at: annotation.created_at.as_microsecond(),
            step: annotation.step.map(number),
            rating: annotation.rating.map(|rating| u8::from(rating).into()),
            labels: to_json(&annotation.labels)?,
            value: to_json(annotation)?,
        })
    }
}

/// The statement that selects trajectories. Its parameters are the tenant, each label in quotes, and the rating.
pub(super) fn annotated(filter: &AnnotationFilter) -> String {
    let labels = (0..filter.labels.len())
        .map(|at| format!("AND sum(CASE WHEN replace(labels, ${}, '') <> labels THEN 1 ELSE 0 END) > 0", at + 2));
    let rating = filter
        .min_rating
        .map(|_| format!("AND avg(CASE WHEN step IS NULL THEN rating END) >= CAST(${} AS BIGINT)", filter.labels.len() + 2));
    let conditions = labels.chain(rating).collect::<Vec<_>>().join(" ");
    format!("SELECT trajectory FROM annotations WHERE tenant = $1 GROUP BY trajectory HAVING count(*) > 0 {conditions}")
}

/// A label as it is in the column: no label has characters that JSON escapes.
pub(super) fn quoted_labels(filter: &AnnotationFilter) -> Vec<String> {
    filter.labels.iter().map(|label| format!("\"{label}\"")).collect()
}

/// Why a row can't be read.
type Unreadable = Box<dyn std::error::Error>;

pub(super) fn read_row(tenant: &str, trajectory: String, value: &str) -> Result<AnnotationRow, Unreadable> {
    Ok(AnnotationRow { tenant: tenant.parse()?, trajectory, annotation: serde_json::from_str(value)? })
}

/// The columns of an annotation that a summary needs.
pub(super) fn read_parts(step: Option<i64>, rating: Option<i64>, labels: &str) -> Result<AnnotationParts, Unreadable> {
    let rating = rating.map(|rating| Ok::<Rating, Unreadable>(u8::try_from(rating)?.try_into()?)).transpose()?;
    Ok((step.map(i64::unsigned_abs), rating, serde_json::from_str(labels)?))
}

pub(super) fn summarize(rows: Vec<(String, AnnotationParts)>) -> HashMap<String, AnnotationSummary> {
    let mut parts: BTreeMap<String, Vec<AnnotationParts>> = BTreeMap::new();
    for (trajectory, part) in rows {
        parts.entry(trajectory).or_default().push(part);
    }
    parts.into_iter().filter_map(|(trajectory, parts)| Some((trajectory, AnnotationSummary::from_parts(parts)?))).collect()
}
