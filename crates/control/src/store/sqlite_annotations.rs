//! Annotations in the SQLite file.

use std::collections::HashMap;

use arenite_model::{Annotation, AnnotationId, AnnotationSummary, TenantId};
use async_trait::async_trait;
use rusqlite::{Connection, Row, params, params_from_iter};

use super::annotations::{self, AnnotationRow, AnnotationStore, Columns, MostAnnotations};
use super::sqlite_tenants::{read_all, unreadable};
use super::{SqliteStore, StoreError, number, to_json};
use crate::annotations::AnnotationFilter;

const PARTS: &str = "
    SELECT trajectory, step, rating, labels FROM annotations
    WHERE tenant = $1 AND trajectory IN (SELECT value FROM json_each($2))";

fn read(row: &Row<'_>) -> Result<AnnotationRow, StoreError> {
    let (tenant, trajectory, value): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
    annotations::read_row(&tenant, trajectory.clone(), &value).map_err(|error| unreadable(&trajectory, error))
}

fn read_annotation(row: &Row<'_>) -> Result<Annotation, StoreError> {
    Ok(read(row)?.annotation)
}

fn insert(db: &Connection, row: &AnnotationRow, most: MostAnnotations) -> Result<bool, StoreError> {
    let AnnotationRow { tenant, trajectory, annotation } = row;
    let Columns { revision, created_at, step, rating, labels, value } = Columns::from_annotation(annotation)?;
    let added = db.prepare_cached(annotations::ADD)?.execute(params![
        tenant.as_str(),
        trajectory,
        annotation.id.as_str(),
        revision,
        created_at,
        step,
        rating,
        labels,
        value,
        number(most.of_trajectory),
        number(most.of_tenant),
    ])?;
    Ok(added > 0)
}

/// All annotations.
pub(super) fn load(db: &Connection) -> Result<Vec<AnnotationRow>, StoreError> {
    read_all(db.prepare(annotations::ALL)?.query([])?, read)
}

/// Replaces all annotations.
pub(super) fn import(db: &Connection, rows: &[AnnotationRow]) -> Result<(), StoreError> {
    db.execute_batch(annotations::CLEAR)?;
    rows.iter().try_for_each(|row| insert(db, row, MostAnnotations::UNLIMITED).map(drop))
}

#[async_trait]
impl AnnotationStore for SqliteStore {
    async fn annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<Vec<Annotation>, StoreError> {
        let key = [tenant.to_string(), trajectory.to_owned()];
        self.transaction(move |db| {
            read_all(db.prepare_cached(annotations::OF_TRAJECTORY)?.query(key.each_ref())?, read_annotation)
        })
        .await
    }

    async fn annotation(&self, tenant: &TenantId, trajectory: &str, id: &AnnotationId) -> Result<Option<Annotation>, StoreError> {
        let key = [tenant.to_string(), trajectory.to_owned(), id.to_string()];
        self.transaction(move |db| {
            Ok(read_all(db.prepare_cached(annotations::ONE)?.query(key.each_ref())?, read_annotation)?.pop())
        })
        .await
    }

    async fn add_annotation(&self, row: AnnotationRow, most: MostAnnotations) -> Result<bool, StoreError> {
        self.transaction(move |db| insert(db, &row, most)).await
    }

    async fn replace_annotation(&self, row: AnnotationRow, before: u64) -> Result<bool, StoreError> {
        self.transaction(move |db| {
            let AnnotationRow { tenant, trajectory, annotation } = &row;
            let Columns { revision, rating, labels, value, .. } = Columns::from_annotation(annotation)?;
            let id = annotation.id.as_str();
            let values = params![revision, rating, labels, value, tenant.as_str(), trajectory, id, number(before)];
            Ok(db.prepare_cached(annotations::REPLACE)?.execute(values)? > 0)
        })
        .await
    }

    async fn remove_annotation(
        &self,
        tenant: &TenantId,
        trajectory: &str,
        id: &AnnotationId,
        revision: u64,
    ) -> Result<bool, StoreError> {
        let (tenant, trajectory, id) = (tenant.clone(), trajectory.to_owned(), id.clone());
        self.transaction(move |db| {
            let values = params![tenant.as_str(), trajectory, id.as_str(), number(revision)];
            Ok(db.prepare_cached(annotations::REMOVE)?.execute(values)? > 0)
        })
        .await
    }

    async fn remove_annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<u64, StoreError> {
        let key = [tenant.to_string(), trajectory.to_owned()];
        self.transaction(move |db| Ok(db.prepare_cached(annotations::REMOVE_ALL)?.execute(key.each_ref())? as u64)).await
    }

    async fn annotated(&self, tenant: &TenantId, filter: AnnotationFilter) -> Result<Vec<String>, StoreError> {
        let tenant = tenant.to_string();
        self.transaction(move |db| {
            let mut select = db.prepare_cached(&annotations::annotated(&filter))?;
            let rating = filter.min_rating.map(|rating| u8::from(rating).to_string());
            let values = std::iter::once(tenant.clone()).chain(annotations::quoted_labels(&filter)).chain(rating);
            read_all(select.query(params_from_iter(values))?, |row| Ok(row.get(0)?))
        })
        .await
    }

    async fn annotation_summaries(
        &self,
        tenant: &TenantId,
        trajectories: Vec<String>,
    ) -> Result<HashMap<String, AnnotationSummary>, StoreError> {
        let key = [tenant.to_string(), to_json(&trajectories)?];
        let parts = self.transaction(move |db| {
            read_all(db.prepare_cached(PARTS)?.query(key.each_ref())?, |row| {
                let (trajectory, labels): (String, String) = (row.get(0)?, row.get(3)?);
                let parts = annotations::read_parts(row.get(1)?, row.get(2)?, &labels);
                let parts = parts.map_err(|error| unreadable(&trajectory, error))?;
                Ok((trajectory, parts))
            })
        });
        Ok(annotations::summarize(parts.await?))
    }
}
