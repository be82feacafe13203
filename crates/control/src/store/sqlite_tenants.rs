//! Tenants, keys and the audit log in the SQLite file.

use std::sync::{Arc, Mutex, PoisonError};

use arenite_model::{KeyId, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row, Rows, params};

use super::sqlite::Work;
use super::tenants::{RemovedTenant, TenantStore};
use super::{SqliteStore, StoreError, TenantContents, TenantRow, number as to_number, to_json};
use crate::tenants::{ApiKey, AuditEntry, AuditQuery, AuditRow, Tenant, TenantSettings};

pub(super) const SCHEMA: &str = "
    CREATE TABLE tenants (
        name       TEXT PRIMARY KEY,
        created_at INTEGER NOT NULL,
        limits     TEXT NOT NULL,  -- JSON of `TenantSettings`
        disabled   INTEGER NOT NULL,
        removed_at INTEGER
    ) WITHOUT ROWID;
    CREATE TABLE api_keys (
        id         TEXT PRIMARY KEY,
        tenant     TEXT NOT NULL,
        name       TEXT NOT NULL,
        role       TEXT NOT NULL,
        operator   INTEGER NOT NULL,
        hash       BLOB NOT NULL,  -- SHA-256 of the secret
        bound      TEXT NOT NULL,  -- JSON
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        revoked_at INTEGER
    ) WITHOUT ROWID;
    CREATE TABLE audit (
        number  INTEGER PRIMARY KEY AUTOINCREMENT,
        at      INTEGER NOT NULL,
        tenant  TEXT NOT NULL,  -- empty: none
        key     TEXT,  -- see `AuditEntry::actor`
        action  TEXT NOT NULL,
        object  TEXT NOT NULL,
        client  TEXT,
        outcome TEXT NOT NULL
    );
    CREATE INDEX audit_by_tenant ON audit (tenant, number);
";

const TENANT: &str = "name, created_at, limits, disabled";
const KEY: &str = "id, tenant, name, role, operator, hash, bound, created_at, expires_at, revoked_at";
const AUDIT: &str = "number, at, tenant, key, action, object, client, outcome";

impl SqliteStore {
    /// Runs a transaction on the store's thread.
    pub(super) async fn transaction<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let result = Arc::new(Mutex::new(None));
        let write = Arc::clone(&result);
        let work = move |db: &Connection| {
            let done = work(db)?;
            *write.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
            Ok(())
        };
        self.carry_out(Work::Transaction(Box::new(work))).await?;
        let done = result.lock().unwrap_or_else(PoisonError::into_inner).take();
        done.ok_or(StoreError::Closed)
    }
}

pub(super) fn time(micros: i64) -> Result<Timestamp, StoreError> {
    Timestamp::from_microsecond(micros).map_err(|error| StoreError::Database(error.to_string()))
}

pub(super) fn unreadable(id: &str, reason: impl ToString) -> StoreError {
    StoreError::BadRow { id: id.to_owned(), reason: reason.to_string() }
}

pub(super) fn read_all<T>(mut rows: Rows<'_>, read: impl Fn(&Row<'_>) -> Result<T, StoreError>) -> Result<Vec<T>, StoreError> {
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(read(row)?);
    }
    Ok(all)
}

fn read_tenant(row: &Row<'_>) -> Result<Tenant, StoreError> {
    let (name, settings): (String, String) = (row.get(0)?, row.get(2)?);
    let TenantSettings { limits, network } = serde_json::from_str(&settings).map_err(|error| unreadable(&name, error))?;
    Ok(Tenant {
        name: name.parse().map_err(|error| unreadable(&name, error))?,
        created_at: time(row.get(1)?)?,
        limits,
        network,
        disabled: row.get(3)?,
    })
}

fn read_key(row: &Row<'_>) -> Result<ApiKey, StoreError> {
    let id: String = row.get(0)?;
    let (tenant, role, bound): (String, String, String) = (row.get(1)?, row.get(3)?, row.get(6)?);
    let optional = |at: usize| row.get::<_, Option<i64>>(at)?.map(time).transpose();
    Ok(ApiKey {
        tenant: tenant.parse().map_err(|error| unreadable(&id, error))?,
        name: row.get(2)?,
        role: role.parse().map_err(|error: String| unreadable(&id, error))?,
        operator: row.get(4)?,
        hash: row.get(5)?,
        bound: serde_json::from_str(&bound).map_err(|error| unreadable(&id, error))?,
        created_at: time(row.get(7)?)?,
        expires_at: optional(8)?,
        revoked_at: optional(9)?,
        id: id.parse().map_err(|error| unreadable(&id, error))?,
    })
}

/// All rows of tenants.
pub(super) fn load(db: &Connection) -> Result<TenantContents, StoreError> {
    let mut tenants = db.prepare(&format!("SELECT {TENANT}, removed_at FROM tenants ORDER BY name"))?;
    let read_row = |row: &Row<'_>| {
        let removed_at = row.get::<_, Option<i64>>(4)?.map(time).transpose()?;
        Ok(TenantRow { tenant: read_tenant(row)?, removed_at })
    };
    let mut keys = db.prepare(&format!("SELECT {KEY} FROM api_keys ORDER BY created_at, id"))?;
    let mut audit = db.prepare(&format!("SELECT {AUDIT} FROM audit ORDER BY number"))?;
    Ok(TenantContents {
        tenants: read_all(tenants.query([])?, read_row)?,
        keys: read_all(keys.query([])?, read_key)?,
        audit: read_all(audit.query([])?, read_audit)?,
    })
}

/// Replaces all rows of tenants. Without `replace`, only those that a first start creates.
pub(super) fn import(db: &Connection, contents: &TenantContents, replace: bool) -> Result<(), StoreError> {
    let count = |select| -> Result<usize, StoreError> {
        let found: i64 = db.query_row(select, [], |row| row.get(0))?;
        Ok(usize::try_from(found).unwrap_or(usize::MAX))
    };
    let (tenants, keys) =
        (count("SELECT count(*) FROM tenants WHERE name <> 'default'")?, count("SELECT count(*) FROM api_keys")?);
    if !replace && tenants + keys > 0 {
        return Err(StoreError::HasTenants { tenants, keys });
    }
    db.execute_batch("DELETE FROM tenants; DELETE FROM api_keys; DELETE FROM audit")?;
    for TenantRow { tenant, removed_at } in &contents.tenants {
        insert_tenant(db, tenant)?;
        let removed_at = removed_at.map(Timestamp::as_microsecond);
        db.execute("UPDATE tenants SET removed_at = ?2 WHERE name = ?1", params![tenant.name.as_str(), removed_at])?;
    }
    for key in &contents.keys {
        insert_key(db, key)?;
    }
    for row in &contents.audit {
        insert_audit(db, Some(row.number), &row.entry)?;
    }
    Ok(())
}

fn insert_tenant(db: &Connection, tenant: &Tenant) -> Result<(), StoreError> {
    db.execute(
        "INSERT INTO tenants (name, created_at, limits, disabled) VALUES (?1, ?2, ?3, ?4)",
        params![tenant.name.as_str(), tenant.created_at.as_microsecond(), to_json(&tenant.settings())?, tenant.disabled],
    )?;
    Ok(())
}

fn insert_audit(db: &Connection, number: Option<u64>, row: &AuditEntry) -> Result<(), StoreError> {
    db.prepare_cached(&format!("INSERT INTO audit ({AUDIT}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"))?.execute(params![
        number.map(to_number),
        row.at.as_microsecond(),
        text_of(row.tenant.as_ref()),
        row.actor(),
        row.action,
        row.object,
        row.client,
        row.outcome,
    ])?;
    Ok(())
}

fn insert_key(db: &Connection, key: &ApiKey) -> Result<(), StoreError> {
    let bound = to_json(&key.bound)?;
    db.prepare_cached(&format!("INSERT INTO api_keys ({KEY}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"))?.execute(
        params![
            key.id.as_str(),
            key.tenant.as_str(),
            key.name,
            key.role.as_str(),
            key.operator,
            key.hash,
            bound,
            key.created_at.as_microsecond(),
            key.expires_at.map(Timestamp::as_microsecond),
            key.revoked_at.map(Timestamp::as_microsecond),
        ],
    )?;
    Ok(())
}

fn delete_keys(db: &Connection, ids: &[KeyId]) -> Result<(), StoreError> {
    let mut delete = db.prepare_cached("DELETE FROM api_keys WHERE id = ?1")?;
    for id in ids {
        delete.execute([id.as_str()])?;
    }
    Ok(())
}

fn text_of(tenant: Option<&TenantId>) -> &str {
    tenant.map_or("", TenantId::as_str)
}

fn read_audit(row: &Row<'_>) -> Result<AuditRow, StoreError> {
    let number: i64 = row.get(0)?;
    let tenant: String = row.get(2)?;
    let bad = |error: arenite_model::IdError| unreadable(&number.to_string(), error);
    let (key, subject) = AuditEntry::read_actor(row.get(3)?).map_err(bad)?;
    Ok(AuditRow {
        number: number.unsigned_abs(),
        entry: AuditEntry {
            at: time(row.get(1)?)?,
            tenant: (!tenant.is_empty()).then(|| tenant.parse()).transpose().map_err(bad)?,
            key,
            subject,
            action: row.get(4)?,
            object: row.get(5)?,
            client: row.get(6)?,
            outcome: row.get(7)?,
        },
    })
}

#[async_trait]
impl TenantStore for SqliteStore {
    async fn tenants(&self) -> Result<Vec<Tenant>, StoreError> {
        self.transaction(|db| {
            let mut select = db.prepare(&format!("SELECT {TENANT} FROM tenants WHERE removed_at IS NULL"))?;
            read_all(select.query([])?, read_tenant)
        })
        .await
    }

    async fn create_tenant(&self, tenant: &Tenant) -> Result<(), StoreError> {
        let tenant = tenant.clone();
        self.transaction(move |db| insert_tenant(db, &tenant)).await
    }

    async fn set_tenant(&self, tenant: &Tenant) -> Result<(), StoreError> {
        let tenant = tenant.clone();
        self.transaction(move |db| {
            let values = params![tenant.name.as_str(), to_json(&tenant.settings())?, tenant.disabled];
            db.execute("UPDATE tenants SET limits = ?2, disabled = ?3 WHERE name = ?1", values)?;
            Ok(())
        })
        .await
    }

    async fn remove_tenant(&self, name: &TenantId, at: Timestamp) -> Result<RemovedTenant, StoreError> {
        let name = name.clone();
        self.transaction(move |db| {
            let count = "SELECT count(*) FROM sandboxes WHERE tenant = ?1";
            let sandboxes: i64 = db.query_row(count, [name.as_str()], |row| row.get(0))?;
            if sandboxes > 0 {
                return Ok(RemovedTenant::HasSandboxes(sandboxes.unsigned_abs()));
            }
            let removed = "UPDATE tenants SET removed_at = ?2 WHERE name = ?1";
            db.execute(removed, params![name.as_str(), at.as_microsecond()])?;
            db.execute("DELETE FROM api_keys WHERE tenant = ?1", [name.as_str()])?;
            Ok(RemovedTenant::Removed)
        })
        .await
    }

    async fn keys(&self) -> Result<Vec<ApiKey>, StoreError> {
        self.transaction(|db| {
            let mut select = db.prepare(&format!("SELECT {KEY} FROM api_keys"))?;
            read_all(select.query([])?, read_key)
        })
        .await
    }

    async fn create_key(&self, key: &ApiKey, ended: &[KeyId]) -> Result<(), StoreError> {
        let (key, ended) = (key.clone(), ended.to_vec());
        self.transaction(move |db| {
            delete_keys(db, &ended)?;
            insert_key(db, &key)
        })
        .await
    }

    async fn rotate_key(&self, old: &ApiKey, new: &ApiKey, ended: &[KeyId]) -> Result<(), StoreError> {
        let (old, new, ended) = (old.clone(), new.clone(), ended.to_vec());
        self.transaction(move |db| {
            delete_keys(db, &ended)?;
            let end = old.expires_at.map(Timestamp::as_microsecond);
            db.execute("UPDATE api_keys SET expires_at = ?2 WHERE id = ?1", params![old.id.as_str(), end])?;
            insert_key(db, &new)
        })
        .await
    }

    async fn revoke_key(&self, key: &ApiKey) -> Result<(), StoreError> {
        let key = key.clone();
        self.transaction(move |db| {
            let at = key.revoked_at.map(Timestamp::as_microsecond);
            db.execute("UPDATE api_keys SET revoked_at = ?2 WHERE id = ?1", params![key.id.as_str(), at])?;
            Ok(())
        })
        .await
    }

    async fn append_audit(&self, rows: Vec<AuditEntry>) -> Result<(), StoreError> {
        self.transaction(move |db| rows.iter().try_for_each(|row| insert_audit(db, None, row))).await
    }

    async fn trim_audit(&self, tenant: Option<&TenantId>, keep: u64) -> Result<(), StoreError> {
        let tenant = text_of(tenant).to_owned();
        let keep = i64::try_from(keep).unwrap_or(i64::MAX);
        self.transaction(move |db| {
            let select = "SELECT number FROM audit WHERE tenant = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2";
            let last: Option<i64> = db.query_row(select, params![tenant, keep], |row| row.get(0)).optional()?;
            if let Some(last) = last {
                db.execute("DELETE FROM audit WHERE tenant = ?1 AND number <= ?2", params![tenant, last])?;
            }
            Ok(())
        })
        .await
    }

    async fn audit(&self, query: AuditQuery) -> Result<Vec<AuditRow>, StoreError> {
        self.transaction(move |db| {
            let of_tenant = if query.tenant.is_some() { "tenant = ?1" } else { "?1 = ''" };
            let mut select = db.prepare_cached(&format!(
                "SELECT {AUDIT} FROM audit
                 WHERE {of_tenant} AND number < ?2 AND at >= ?3 AND at <= ?4 ORDER BY number DESC LIMIT ?5"
            ))?;
            let micros = |time: Option<Timestamp>, unset: i64| time.map_or(unset, Timestamp::as_microsecond);
            let before = query.before.and_then(|number| i64::try_from(number).ok()).unwrap_or(i64::MAX);
            let limit = i64::try_from(query.limit).unwrap_or(i64::MAX);
            let (since, until) = (micros(query.since, i64::MIN), micros(query.until, i64::MAX));
            read_all(select.query(params![text_of(query.tenant.as_ref()), before, since, until, limit])?, read_audit)
        })
        .await
    }
}
