//! The store in one SQLite file.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arenite_model::PauseKind;
use jiff::Timestamp;
use rusqlite::{Connection, OpenFlags, Params, Row, TransactionBehavior, params};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::database::Database;
use super::writer::Writer;
use super::{
    Answer, Contents, DEAD_RESERVE_NOTHING, Op, PAUSE_KINDS, Record, RecordId, RecordKind, Rows, StoreError, VolumeRow,
    annotations, check_version, number, sqlite_annotations, sqlite_tenants, sqlite_usage, sqlite_webhooks, to_json, unreadable,
    usage, waits,
};
use crate::tenants::{Reserved, TenantLimits};
use crate::{ControlError, Sandbox};

/// Queue of writes for the thread; beyond it, callers wait to enqueue.
const QUEUE: usize = 256;
/// How long another process may lock the database, such as a `sqlite3` shell, before a write fails.
const LOCKED: Duration = Duration::from_millis(700);

/// Each migrates the schema from its index to the next. Released ones are never edited; append new ones.
const MIGRATIONS: [&str; 11] = [
    "
    CREATE TABLE sandboxes (
        id           TEXT PRIMARY KEY,
        tenant       TEXT NOT NULL,
        name         TEXT NOT NULL,
        state        TEXT NOT NULL,
        reason       TEXT,
        template     TEXT,
        origin       TEXT NOT NULL,
        spec         TEXT NOT NULL,  -- JSON
        isolation    TEXT NOT NULL,  -- JSON
        created_at   INTEGER NOT NULL,  -- microseconds since 1970, as all times
        last_used_at INTEGER NOT NULL,
        state_since  INTEGER NOT NULL,
        expires_at   INTEGER,
        UNIQUE (tenant, name)
    ) WITHOUT ROWID;
",
    sqlite_tenants::SCHEMA,
    sqlite_webhooks::SCHEMA,
    "
    ALTER TABLE sandboxes ADD COLUMN cpu_millis INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sandboxes ADD COLUMN memory_bytes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE sandboxes ADD COLUMN disk_bytes INTEGER NOT NULL DEFAULT 0;
    UPDATE sandboxes SET
        cpu_millis = coalesce(json_extract(spec, '$.resources.cpu_millis'), 0),
        memory_bytes = coalesce(json_extract(spec, '$.resources.memory_bytes'), 0),
        disk_bytes = coalesce(json_extract(spec, '$.resources.disk_bytes'), 0)
        WHERE json_valid(spec);
    CREATE INDEX sandboxes_by_tenant ON sandboxes (tenant, state, cpu_millis, memory_bytes, disk_bytes);
",
    usage::SCHEMA,
    "
    ALTER TABLE sandboxes ADD COLUMN provenance TEXT NOT NULL DEFAULT '{}';  -- JSON
    CREATE TABLE records (
        kind       TEXT NOT NULL,
        tenant     TEXT NOT NULL,
        key        TEXT NOT NULL,
        value      TEXT NOT NULL,  -- JSON
        expires_at INTEGER,
        PRIMARY KEY (kind, tenant, key)
    ) WITHOUT ROWID;
    CREATE INDEX records_by_expiry ON records (expires_at);
",
    "
    ALTER TABLE sandboxes ADD COLUMN revision INTEGER NOT NULL DEFAULT 1;
    ALTER TABLE sandboxes ADD COLUMN died TEXT;  -- JSON
",
    DEAD_RESERVE_NOTHING,
    PAUSE_KINDS,
    usage::MODELS,
    annotations::SCHEMA,
];

/// Sandboxes in a SQLite file.
pub struct SqliteStore {
    jobs: mpsc::Sender<Job>,
    permits: Arc<Semaphore>,
    thread: Mutex<Option<JoinHandle<()>>>,
    notes: Vec<String>,
}

pub(super) struct Job {
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<Answer>,
    _permit: OwnedSemaphorePermit,
}

/// A transaction that keeps its own result.
pub(super) type Transaction = Box<dyn Fn(&Connection) -> Result<(), StoreError> + Send>;

pub(super) enum Work {
    Rows(Op),
    Transaction(Transaction),
}

impl SqliteStore {
    /// Opens the file, creates it if needed, and migrates its schema. A file that is damaged or no store is renamed, and a new
    /// one is created.
    ///
    /// # Errors
    /// [`ControlError::NewerStore`] for a file of a newer version, which stays unchanged; [`ControlError::StoreInUse`] if
    /// another process has it.
    pub fn open(path: PathBuf) -> Result<Self, ControlError> {
        let failed = |what, reason: String| ControlError::Store { what, source: StoreError::Database(reason) };
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|e| failed("make its directory", format!("{}: {e}", dir.display())))?;
        }
        let lock = lock(&path)?;
        let unopened = |e: rusqlite::Error| failed("be opened", format!("{}: {e}", path.display()));
        let mut notes = Vec::new();
        let mut set_aside = |reason: &str| {
            let moved = unreadable::set_aside(&path)
                .map_err(|e| failed("be set aside", format!("{}, which can't be read ({reason}): {e}", path.display())))?;
            if let Some(moved) = moved {
                let note = format!(
                    "the store {} could not be read ({reason}); it is kept as {}, and sandboxes got their rows back from their records",
                    path.display(),
                    moved.display()
                );
                tracing::error!("{note}");
                notes.push(note);
            }
            Ok::<(), ControlError>(())
        };
        if unreadable::has_orphans(&path).map_err(|e| failed("be opened", format!("{}: {e}", path.display())))? {
            set_aside("its journal is there without it")?;
        }
        let mut db = match connect(&path, true) {
            Err(error) if unreadable::is_unreadable(&error) => {
                set_aside(&error.to_string())?;
                connect(&path, true)
            }
            other => other,
        }
        .map_err(unopened)?;
        migrate(&mut db, &path)?;
        if let Some(fault) = unreadable::fault(&db).map_err(unopened)? {
            drop(db);
            set_aside(&fault)?;
            db = connect(&path, true).map_err(unopened)?;
            migrate(&mut db, &path)?;
        }
        let (jobs, queue) = mpsc::channel();
        let writer = Writer::new(db, path);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || {
                writer.run(&queue);
                drop(lock);
            })
            .map_err(|e| failed("start its thread", e.to_string()))?;
        Ok(Self { jobs, permits: Arc::new(Semaphore::new(QUEUE)), thread: Mutex::new(Some(thread)), notes })
    }

    pub(super) async fn carry_out(&self, work: Work) -> Answer {
        let since = Instant::now();
        let (reply, answer) = oneshot::channel();
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(|_| StoreError::Closed)?;
        self.jobs.send(Job { work, reply, _permit: permit }).map_err(|_| StoreError::Closed)?;
        let answer = answer.await.unwrap_or(Err(StoreError::Closed));
        waits::add_since(since);
        answer
    }
}

/// Opens the database, also if it is read-only, so that its sandboxes are known.
pub(super) fn connect(path: &Path, may_make: bool) -> rusqlite::Result<Connection> {
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, may_make);
    let db = Connection::open_with_flags(path, flags)?;
    db.busy_timeout(LOCKED)?;
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.pragma_update(None, "cache_size", -1024)?;
    Ok(db)
}

/// The lock is on a separate file: SQLite's own locks are dropped when any descriptor of the database is closed.
fn lock(path: &Path) -> Result<File, ControlError> {
    let lock = path.with_extension("lock");
    let failed = |e: std::io::Error| ControlError::Store {
        what: "be locked",
        source: StoreError::Database(format!("{}: {e}", lock.display())),
    };
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(&lock).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(ControlError::StoreInUse { store: path.display().to_string() }),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

fn migrate(db: &mut Connection, path: &Path) -> Result<(), ControlError> {
    let failed = |reason: String| ControlError::Store {
        what: "bring its schema up to date",
        source: StoreError::Database(format!("{}: {reason}", path.display())),
    };
    let database = |e: rusqlite::Error| failed(e.to_string());
    let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(database)?;
    let known = MIGRATIONS.len() as i64;
    let Ok(done) = usize::try_from(found) else {
        return Err(failed(format!("its version is {found}")));
    };
    if done > MIGRATIONS.len() {
        return Err(ControlError::NewerStore { store: path.display().to_string(), found, known });
    }
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        let change = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(database)?;
        change.execute_batch(migration).map_err(database)?;
        change.pragma_update(None, "user_version", index as i64 + 1).map_err(database)?;
        change.commit().map_err(database)?;
    }
    Ok(())
}

/// See [`super::read`].
pub(super) fn read(path: &Path) -> Result<Contents, ControlError> {
    let failed = |source| ControlError::Store { what: "be read", source };
    let unread = |e: rusqlite::Error| failed(StoreError::Database(format!("{}: {e}", path.display())));
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(unread)?;
    db.busy_timeout(LOCKED).map_err(unread)?;
    let found: i64 = db.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(unread)?;
    check_version(&path.display().to_string(), found, MIGRATIONS.len() as i64)?;
    let read = || -> Result<Contents, StoreError> {
        let snapshot = db.unchecked_transaction()?;
        Ok(Contents {
            sandboxes: load(&snapshot)?,
            tenants: Some(sqlite_tenants::load(&snapshot)?),
            usage: Some(sqlite_usage::load(&snapshot)?),
            records: Some(all_records(&snapshot)?),
            webhooks: Some(sqlite_webhooks::load(&snapshot)?),
            annotations: Some(sqlite_annotations::load(&snapshot)?),
        })
    };
    read().map_err(failed)
}

pub(super) fn apply(db: &Connection, op: &Op) -> Answer {
    match op {
        Op::Load => return Ok(Rows { sandboxes: load(db)?, ..Rows::default() }),
        Op::Records(kind) => return records(db, "kind = ?1", [kind.as_str()], *kind),
        Op::RecordsOf(kind, tenant) => {
            return records(db, "kind = ?1 AND tenant = ?2", [kind.as_str(), tenant.as_str()], *kind);
        }
        Op::FindRecord(RecordId { kind, tenant, key }) => {
            let id = [kind.as_str(), tenant.as_str(), key];
            return records(db, "kind = ?1 AND tenant = ?2 AND key = ?3", id, *kind);
        }
        Op::CountRecords(kind, tenant) => {
            let count = "SELECT count(*) FROM records WHERE kind = ?1 AND tenant = ?2";
            let count: i64 = db.prepare_cached(count)?.query_row([kind.as_str(), tenant.as_str()], |row| row.get(0))?;
            return Ok(Rows { count: count.unsigned_abs(), ..Rows::default() });
        }
        Op::PutRecord(record) => put_record(db, record, "REPLACE")?,
        Op::PutVolume(row) => put_volume(db, row)?,
        Op::RemoveRecord(RecordId { kind, tenant, key }) => {
            let remove = "DELETE FROM records WHERE kind = ?1 AND tenant = ?2 AND key = ?3";
            db.prepare_cached(remove)?.execute([kind.as_str(), tenant.as_str(), key])?;
        }
        Op::RemoveExpired(now) => {
            db.prepare_cached("DELETE FROM records WHERE expires_at < ?1")?.execute([now.as_microsecond()])?;
        }
        Op::Check | Op::Close => {}
        Op::Insert(sandbox, limits) => {
            check(db, sandbox, limits)?;
            let [cpu, memory, disk] = amounts(sandbox);
            db.prepare_cached(
                "INSERT INTO sandboxes (id, tenant, name, state, reason, template, origin, spec, isolation,
                     created_at, last_used_at, state_since, expires_at, cpu_millis, memory_bytes, disk_bytes, provenance,
                     revision, died, pause_kind)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)",
            )?
            .execute(params![
                sandbox.id.as_str(),
                sandbox.tenant.as_str(),
                sandbox.name.as_str(),
                sandbox.state.as_str(),
                sandbox.reason,
                sandbox.template,
                sandbox.origin,
                to_json(&sandbox.spec)?,
                to_json(&sandbox.isolation)?,
                sandbox.created_at.as_microsecond(),
                sandbox.last_used_at.as_microsecond(),
                sandbox.state_since.as_microsecond(),
                sandbox.expires_at.map(Timestamp::as_microsecond),
                cpu,
                memory,
                disk,
                to_json(&sandbox.provenance)?,
                number(sandbox.revision),
                sandbox.died.as_ref().map(to_json).transpose()?,
                sandbox.pause_kind.map(PauseKind::as_str),
            ])?;
            if let Some(record) = sandbox.key_record()? {
                put_record(db, &record, "IGNORE")?;
            }
        }
        Op::Reserve(sandbox, limits) => {
            check(db, sandbox, limits)?;
            return apply(db, &Op::Update(sandbox.clone()));
        }
        Op::Update(sandbox) => {
            let [cpu, memory, _] = amounts(sandbox);
            db.prepare_cached(
                "UPDATE sandboxes SET state = ?2, reason = ?3, state_since = ?4, isolation = ?5, last_used_at = ?6, spec = ?7,
                     expires_at = ?8, revision = ?9, died = ?10, cpu_millis = ?11, memory_bytes = ?12, pause_kind = ?13
                 WHERE id = ?1",
            )?
            .execute(params![
                sandbox.id.as_str(),
                sandbox.state.as_str(),
                sandbox.reason,
                sandbox.state_since.as_microsecond(),
                to_json(&sandbox.isolation)?,
                sandbox.last_used_at.as_microsecond(),
                to_json(&sandbox.spec)?,
                sandbox.expires_at.map(Timestamp::as_microsecond),
                number(sandbox.revision),
                sandbox.died.as_ref().map(to_json).transpose()?,
                cpu,
                memory,
                sandbox.pause_kind.map(PauseKind::as_str),
            ])?;
        }
        Op::Touch(used) => {
            let mut touch = db.prepare_cached("UPDATE sandboxes SET last_used_at = ?2 WHERE id = ?1")?;
            for (id, at) in used {
                touch.execute(params![id.as_str(), at.as_microsecond()])?;
            }
        }
        Op::Import { contents, replace } => {
            let found: i64 = db.query_row("SELECT count(*) FROM sandboxes", [], |row| row.get(0))?;
            if found > 0 && !replace {
                return Err(StoreError::NotEmpty { rows: usize::try_from(found).unwrap_or(usize::MAX) });
            }
            db.execute("DELETE FROM sandboxes", [])?;
            for row in &contents.sandboxes {
                apply(db, &Op::Insert(Box::new(row.clone()), TenantLimits::default()))?;
            }
            if let Some(tenants) = &contents.tenants {
                sqlite_tenants::import(db, tenants, *replace)?;
            }
            if let Some(usage) = &contents.usage {
                sqlite_usage::import(db, usage)?;
            }
            if let Some(records) = &contents.records {
                if *replace {
                    db.execute("DELETE FROM records", [])?;
                }
                // A sandbox's row has added the record of its key, without the answer.
                records.iter().try_for_each(|record| put_record(db, record, "REPLACE"))?;
            }
            if let Some(webhooks) = &contents.webhooks {
                sqlite_webhooks::import(db, webhooks, *replace)?;
            }
            if let Some(annotations) = &contents.annotations {
                sqlite_annotations::import(db, annotations)?;
            }
        }
        Op::Remove(id) => {
            db.prepare_cached("DELETE FROM sandboxes WHERE id = ?1")?.execute([id.as_str()])?;
        }
    }
    Ok(Rows::default())
}

fn put_record(db: &Connection, record: &Record, or: &str) -> Result<(), StoreError> {
    let Record { id: RecordId { kind, tenant, key }, value, expires_at } = record;
    let put = format!("INSERT OR {or} INTO records (kind, tenant, key, value, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)");
    let expires_at = expires_at.map(Timestamp::as_microsecond);
    db.prepare_cached(&put)?.execute(params![kind.as_str(), tenant.as_str(), key, value, expires_at])?;
    Ok(())
}

/// Compares, counts and writes. The store has one connection, which nothing else uses meanwhile.
fn put_volume(db: &Connection, row: &VolumeRow) -> Result<(), StoreError> {
    let VolumeRow { record: Record { id: RecordId { kind, tenant, key }, value, .. }, before, .. } = row;
    let id = [kind.as_str(), tenant.as_str(), key];
    let found = records(db, "kind = ?1 AND tenant = ?2 AND key = ?3", id, *kind)?.records.pop();
    if found.as_ref().map(|found| &found.value) != before.as_ref() {
        return Err(StoreError::Taken);
    }
    let mut select = db.prepare_cached(
        "SELECT count(*), coalesce(sum(json_extract(value, '$.size_bytes')), 0) FROM records
         WHERE kind = ?1 AND tenant = ?2 AND key <> ?3",
    )?;
    let (volumes, bytes): (i64, i64) = select.query_row(id, |row| Ok((row.get(0)?, row.get(1)?)))?;
    row.check(volumes.unsigned_abs(), bytes.unsigned_abs())?;
    let put = "INSERT OR REPLACE INTO records (kind, tenant, key, value) VALUES (?1, ?2, ?3, ?4)";
    db.prepare_cached(put)?.execute(params![kind.as_str(), tenant.as_str(), key, value])?;
    Ok(())
}

fn records(db: &Connection, condition: &str, values: impl Params, kind: RecordKind) -> Answer {
    let mut select = db.prepare_cached(&format!("SELECT tenant, key, value, expires_at FROM records WHERE {condition}"))?;
    let mut rows = select.query(values)?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        let key: String = row.get(1)?;
        let unreadable = |error: Box<dyn std::error::Error>| StoreError::BadRow { id: key.clone(), reason: error.to_string() };
        records.push(read_record(row, kind).map_err(unreadable)?);
    }
    Ok(Rows { records, ..Rows::default() })
}

fn all_records(db: &Connection) -> Result<Vec<Record>, StoreError> {
    let all = RecordKind::ALL.map(|kind| records(db, "kind = ?1", [kind.as_str()], kind));
    Ok(all.into_iter().collect::<Result<Vec<Rows>, _>>()?.into_iter().flat_map(|rows| rows.records).collect())
}

fn read_record(row: &Row<'_>, kind: RecordKind) -> Result<Record, Box<dyn std::error::Error>> {
    Ok(Record {
        id: RecordId { kind, tenant: row.get::<_, String>(0)?.parse()?, key: row.get(1)? },
        value: row.get(2)?,
        expires_at: row.get::<_, Option<i64>>(3)?.map(Timestamp::from_microsecond).transpose()?,
    })
}

/// What a row reserves: CPU, memory, disk.
fn amounts(sandbox: &Sandbox) -> [i64; 3] {
    let reserved = Reserved::from_sandbox(sandbox);
    [reserved.cpu_millis, reserved.memory_bytes, reserved.disk_bytes].map(number)
}

/// Refuses a sandbox beyond its tenant's limits.
fn check(db: &Connection, sandbox: &Sandbox, limits: &TenantLimits) -> Result<(), StoreError> {
    if !limits.apply_to_sandboxes() {
        return Ok(());
    }
    let mut select = db.prepare_cached(
        "SELECT count(*), coalesce(sum(cpu_millis), 0), coalesce(sum(memory_bytes), 0), coalesce(sum(disk_bytes), 0)
         FROM sandboxes WHERE tenant = ?1 AND id <> ?2",
    )?;
    let used = select.query_row([sandbox.tenant.as_str(), sandbox.id.as_str()], |row| {
        let amount = |at| Ok::<_, rusqlite::Error>(row.get::<_, i64>(at)?.unsigned_abs());
        Ok(Reserved {
            sandboxes: amount(0)?,
            cpu_millis: amount(1)?,
            memory_bytes: amount(2)?,
            disk_bytes: amount(3)?,
            ..Reserved::default()
        })
    })?;
    Ok(used.check(&Reserved::from_sandbox(sandbox), limits)?)
}

pub(super) fn load(db: &Connection) -> Result<Vec<Sandbox>, StoreError> {
    let mut select = db.prepare(
        "SELECT id, tenant, name, state, reason, template, origin, spec, isolation,
                created_at, last_used_at, state_since, expires_at, provenance, revision, died, pause_kind
         FROM sandboxes ORDER BY created_at, id",
    )?;
    let mut rows = select.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let id: String = row.get(0)?;
        all.push(read_row(row).map_err(|error| StoreError::BadRow { id, reason: error.to_string() })?);
    }
    Ok(all)
}

fn read_row(row: &Row<'_>) -> Result<Sandbox, Box<dyn std::error::Error>> {
    let text = |at| row.get::<_, String>(at);
    let time = |at| -> Result<Timestamp, Box<dyn std::error::Error>> { Ok(Timestamp::from_microsecond(row.get(at)?)?) };
    Ok(Sandbox {
        id: text(0)?.parse()?,
        tenant: text(1)?.parse()?,
        name: text(2)?.parse()?,
        state: text(3)?.parse()?,
        pause_kind: row.get::<_, Option<String>>(16)?.map(|kind| kind.parse()).transpose()?,
        reason: row.get(4)?,
        template: row.get(5)?,
        origin: text(6)?,
        spec: serde_json::from_str(&text(7)?)?,
        isolation: serde_json::from_str(&text(8)?)?,
        created_at: time(9)?,
        last_used_at: time(10)?,
        state_since: time(11)?,
        expires_at: row.get::<_, Option<i64>>(12)?.map(Timestamp::from_microsecond).transpose()?,
        provenance: serde_json::from_str(&text(13)?)?,
        revision: row.get::<_, i64>(14)?.unsigned_abs(),
        died: row.get::<_, Option<String>>(15)?.map(|died| serde_json::from_str(&died)).transpose()?,
        stages: Vec::new(),
        node: None,
    })
}

impl Database for SqliteStore {
    async fn ask(&self, op: Op) -> Answer {
        self.carry_out(Work::Rows(op)).await
    }

    fn notes(&self) -> Vec<String> {
        self.notes.clone()
    }

    async fn join(&self) {
        let thread = self.thread.lock().ok().and_then(|mut thread| thread.take());
        if let Some(thread) = thread {
            // It has answered the last request and only closes the file.
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the store's thread panicked");
            }
        }
    }
}
