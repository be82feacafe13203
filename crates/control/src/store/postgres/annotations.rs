//! Annotations in the database.

use std::collections::HashMap;
use std::sync::Arc;

use arenite_model::{Annotation, AnnotationId, AnnotationSummary, TenantId};
use async_trait::async_trait;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::PostgresStore;
use super::rows::{Unreadable, read_all};
use super::session::{Fault, pipeline};
use super::tenants::IMPORTED;
use crate::annotations::AnnotationFilter;
use crate::store::annotations::{self, AnnotationRow, AnnotationStore, Columns, MostAnnotations};
use crate::store::{StoreError, number};

const PARTS: &str = "
    SELECT trajectory, step, rating, labels FROM annotations WHERE tenant = $1 AND trajectory = ANY ($2)";

fn read(row: &Row) -> Result<AnnotationRow, Unreadable> {
    annotations::read_row(row.try_get(0)?, row.try_get(1)?, row.try_get(2)?)
}

fn read_annotation(row: &Row) -> Result<Annotation, Unreadable> {
    Ok(read(row)?.annotation)
}

async fn insert(client: &Client, add: &Statement, row: &AnnotationRow, most: MostAnnotations) -> Result<bool, Fault> {
    let AnnotationRow { tenant, trajectory, annotation } = row;
    let Columns { revision, created_at, step, rating, labels, value } =
        Columns::from_annotation(annotation).map_err(Fault::Refused)?;
    let (tenant, id) = (tenant.as_str(), annotation.id.as_str());
    let [of_trajectory, of_tenant] = [most.of_trajectory, most.of_tenant].map(number);
    let values: [&(dyn ToSql + Sync); 11] =
        [&tenant, trajectory, &id, &revision, &created_at, &step, &rating, &labels, &value, &of_trajectory, &of_tenant];
    Ok(client.execute(add, &values).await? > 0)
}

/// All annotations.
pub(super) async fn load(client: &Client) -> Result<Vec<AnnotationRow>, Fault> {
    read_all(&client.query(annotations::ALL, &[]).await?, read)
}

/// Replaces all annotations.
pub(super) async fn import(client: &Client, rows: &[AnnotationRow]) -> Result<(), Fault> {
    client.batch_execute(annotations::CLEAR).await?;
    let add = client.prepare(annotations::ADD).await?;
    for rows in rows.chunks(IMPORTED) {
        let inserts = rows.iter().map(|row| insert(client, &add, row, MostAnnotations::UNLIMITED)).collect();
        pipeline(inserts).await.into_iter().collect::<Result<Vec<bool>, Fault>>()?;
    }
    Ok(())
}

#[async_trait]
impl AnnotationStore for PostgresStore {
    async fn annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<Vec<Annotation>, StoreError> {
        let (tenant, trajectory) = (tenant.to_string(), trajectory.to_owned());
        self.transaction(move |client, _| {
            let (tenant, trajectory) = (tenant.clone(), trajectory.clone());
            Box::pin(async move {
                read_all(&client.query(annotations::OF_TRAJECTORY, &[&tenant, &trajectory]).await?, read_annotation)
            })
        })
        .await
    }

    async fn annotation(&self, tenant: &TenantId, trajectory: &str, id: &AnnotationId) -> Result<Option<Annotation>, StoreError> {
        let (tenant, trajectory, id) = (tenant.to_string(), trajectory.to_owned(), id.to_string());
        self.transaction(move |client, _| {
            let (tenant, trajectory, id) = (tenant.clone(), trajectory.clone(), id.clone());
            Box::pin(async move {
                let found = client.query(annotations::ONE, &[&tenant, &trajectory, &id]).await?;
                Ok(read_all(&found, read_annotation)?.pop())
            })
        })
        .await
    }

    async fn add_annotation(&self, row: AnnotationRow, most: MostAnnotations) -> Result<bool, StoreError> {
        let row = Arc::new(row);
        self.transaction(move |client, _| {
            let row = Arc::clone(&row);
            Box::pin(async move {
                let add = client.prepare(annotations::ADD).await?;
                insert(client, &add, &row, most).await
            })
        })
        .await
    }

    async fn replace_annotation(&self, row: AnnotationRow, before: u64) -> Result<bool, StoreError> {
        let row = Arc::new(row);
        self.transaction(move |client, _| {
            let row = Arc::clone(&row);
            Box::pin(async move {
                let AnnotationRow { tenant, trajectory, annotation } = &*row;
                let Columns { revision, rating, labels, value, .. } =
                    Columns::from_annotation(annotation).map_err(Fault::Refused)?;
                let (tenant, id) = (tenant.as_str(), annotation.id.as_str());
                let values: [&(dyn ToSql + Sync); 8] =
                    [&revision, &rating, &labels, &value, &tenant, trajectory, &id, &number(before)];
                Ok(client.execute(annotations::REPLACE, &values).await? > 0)
            })
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
        let (tenant, trajectory, id) = (tenant.to_string(), trajectory.to_owned(), id.to_string());
        self.transaction(move |client, _| {
            let (tenant, trajectory, id) = (tenant.clone(), trajectory.clone(), id.clone());
            Box::pin(async move {
                Ok(client.execute(annotations::REMOVE, &[&tenant, &trajectory, &id, &number(revision)]).await? > 0)
            })
        })
        .await
    }

    async fn remove_annotations(&self, tenant: &TenantId, trajectory: &str) -> Result<u64, StoreError> {
        let (tenant, trajectory) = (tenant.to_string(), trajectory.to_owned());
        self.transaction(move |client, _| {
            let (tenant, trajectory) = (tenant.clone(), trajectory.clone());
            Box::pin(async move { Ok(client.execute(annotations::REMOVE_ALL, &[&tenant, &trajectory]).await?) })
        })
        .await
    }

    async fn annotated(&self, tenant: &TenantId, filter: AnnotationFilter) -> Result<Vec<String>, StoreError> {
        let (tenant, filter) = (tenant.to_string(), Arc::new(filter));
        self.transaction(move |client, _| {
            let (tenant, filter) = (tenant.clone(), Arc::clone(&filter));
            Box::pin(async move {
                let labels = annotations::quoted_labels(&filter);
                let rating = filter.min_rating.map(|rating| i64::from(u8::from(rating)));
                let mut values: Vec<&(dyn ToSql + Sync)> = vec![&tenant];
                values.extend(labels.iter().map(|label| label as &(dyn ToSql + Sync)));
                values.extend(rating.as_ref().map(|rating| rating as &(dyn ToSql + Sync)));
                let rows = client.query(&annotations::annotated(&filter), &values).await?;
                read_all(&rows, |row| Ok(row.try_get(0)?))
            })
        })
        .await
    }

    async fn annotation_summaries(
        &self,
        tenant: &TenantId,
        trajectories: Vec<String>,
    ) -> Result<HashMap<String, AnnotationSummary>, StoreError> {
        let (tenant, trajectories) = (tenant.to_string(), Arc::new(trajectories));
        self.transaction(move |client, _| {
            let (tenant, trajectories) = (tenant.clone(), Arc::clone(&trajectories));
            Box::pin(async move {
                let rows = client.query(PARTS, &[&tenant, &*trajectories]).await?;
                let parts = read_all(&rows, |row| {
                    let parts = annotations::read_parts(row.try_get(1)?, row.try_get(2)?, row.try_get(3)?);
                    Ok((row.try_get(0)?, parts?))
                })?;
                Ok(annotations::summarize(parts))
            })
        })
        .await
    }
}
