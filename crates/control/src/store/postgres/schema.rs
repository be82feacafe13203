//! The schema of the database, and who may write to it.
//!
//! One server at a time writes: it holds a lock for as long as its session lives. The nodes of a cluster share the lock, and each
//! writes only while its epoch is valid (`nodes`). A row of the table `arenite_store` has the
//! identity of the store and the server that used it last. A server that lost its session compares both before it writes
//! again, so it never continues on another database, or on one that another server changed in the meantime.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tokio_postgres::Client;

use super::session::OpenError;
use crate::nodes::NodeClaim;
use crate::store::{DEAD_RESERVE_NOTHING, PAUSE_KINDS, StoreError};

/// The key of the lock in each database, `arenite` in ASCII.
const LOCK: i64 = 0x0061_7265_6e69_7465;
/// The key of the lock of a node that migrates the schema beside others.
const MIGRATION_LOCK: i64 = LOCK + 1;

/// Who has it, or one of the nodes that have it: process id and description.
const HOLDER: &str = "
    SELECT a.pid, coalesce(nullif(concat_ws(', ', nullif(a.application_name, ''), 'from ' || host(a.client_addr),
        'since ' || date_trunc('second', a.backend_start)), ''), 'a session of another user')
    FROM pg_locks l JOIN pg_stat_activity a USING (pid)
    WHERE l.locktype = 'advisory' AND l.granted AND a.datname = current_database() AND l.objsubid = 1
        AND l.classid::bigint = $1::bigint >> 32 AND l.objid::bigint = $1::bigint & 4294967295
    LIMIT 1";

/// How long a lost session may take to end.
const WAIT: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(20);

/// Each migrates the schema from its index to the next. Released ones are never edited; append new ones.
const MIGRATIONS: [&str; 15] = [
    "
    CREATE TABLE sandboxes (
        id           TEXT PRIMARY KEY,
        tenant       TEXT NOT NULL,
        name         TEXT NOT NULL,
        state        TEXT NOT NULL,
        reason       TEXT,
        template     TEXT,
        origin       TEXT NOT NULL,
        spec         TEXT NOT NULL,  -- JSON; the type JSONB refuses the character 0
        isolation    TEXT NOT NULL,  -- JSON
        created_at   BIGINT NOT NULL,  -- microseconds since 1970, as all times
        last_used_at BIGINT NOT NULL,
        state_since  BIGINT NOT NULL,
        expires_at   BIGINT,
        UNIQUE (tenant, name)
    );
",
    super::tenants::SCHEMA,
    // Not by a cast: the type JSON refuses the character 0.
    r#"
    ALTER TABLE sandboxes
        ADD COLUMN cpu_millis BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN memory_bytes BIGINT NOT NULL DEFAULT 0,
        ADD COLUMN disk_bytes BIGINT NOT NULL DEFAULT 0;
    UPDATE sandboxes SET
        cpu_millis = coalesce(substring(spec from '"cpu_millis":(\d+)')::bigint, 0),
        memory_bytes = coalesce(substring(spec from '"memory_bytes":(\d+)')::bigint, 0),
        disk_bytes = coalesce(substring(spec from '"disk_bytes":(\d+)')::bigint, 0);
    CREATE INDEX sandboxes_by_tenant ON sandboxes (tenant)
        INCLUDE (id, state, cpu_millis, memory_bytes, disk_bytes);
"#,
    crate::store::usage::SCHEMA,
    super::webhooks::SCHEMA,
    "
    ALTER TABLE sandboxes ADD COLUMN provenance TEXT NOT NULL DEFAULT '{}';  -- JSON
    CREATE TABLE records (
        kind       TEXT NOT NULL,
        tenant     TEXT NOT NULL,
        key        TEXT NOT NULL,
        value      TEXT NOT NULL,  -- JSON
        expires_at BIGINT,
        PRIMARY KEY (kind, tenant, key)
    );
    CREATE INDEX records_by_expiry ON records (expires_at);
",
    "
    ALTER TABLE sandboxes ADD COLUMN revision BIGINT NOT NULL DEFAULT 1, ADD COLUMN died TEXT;  -- JSON
",
    DEAD_RESERVE_NOTHING,
    super::nodes::SCHEMA,
    super::nodes::REMOVALS_AND_WORKERS,
    super::nodes::SCHEMA_OF_DRAINS,
    PAUSE_KINDS,
    super::nodes::SECRETS,
    crate::store::usage::MODELS,
    crate::store::annotations::SCHEMA,
];

/// Migrations after this version only add: programs that know this one go on beside nodes of later versions. So nodes are upgraded
/// one by one. A later migration that takes something away, or changes a meaning, raises this to its own version.
const ADDS_ONLY_SINCE: i64 = 9;

/// The version of the schema that this program reads.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Refuses servers that lack a feature, and databases that can't hold every character.
pub(super) async fn check_server(client: &Client) -> Result<(), StoreError> {
    let row = client
        .query_one("SELECT current_setting('server_version_num')::int, current_setting('server_encoding')", &[])
        .await
        .map_err(database)?;
    let (version, encoding): (i32, String) = (row.get(0), row.get(1));
    if version < 120_000 {
        return Err(StoreError::Database(format!(
            "the database server has version {}; 12 is the oldest that works",
            version / 10_000
        )));
    }
    if encoding != "UTF8" {
        return Err(StoreError::Database(format!(
            "the database has the encoding {encoding}; create one with: createdb --encoding UTF8 --template template0 NAME"
        )));
    }
    Ok(())
}

/// How a session locks the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lock {
    /// No other server may have it.
    Alone,
    /// Other nodes may have it.
    Shared,
}

/// Locks the database for this session. `previous` is this server's lost session, which the database may still hold.
pub(super) async fn lock(client: &Client, lock: Lock, previous: Option<i32>) -> Result<(), OpenError> {
    let begun = Instant::now();
    let take = match lock {
        Lock::Alone => "SELECT pg_try_advisory_lock($1)",
        Lock::Shared => "SELECT pg_try_advisory_lock_shared($1)",
    };
    loop {
        if client.query_one(take, &[&LOCK]).await?.get(0) {
            return Ok(());
        }
        let holder = client.query_opt(HOLDER, &[&LOCK]).await?;
        let (pid, text) =
            holder.map_or_else(|| (None, "a session that has just ended".to_owned()), |row| (row.get(0), row.get(1)));
        // Without a holder, it ended between the two statements.
        if pid.is_some() && pid != previous || begun.elapsed() > WAIT {
            return Err(OpenError::InUse(text));
        }
        if pid.is_some() {
            client.execute("SELECT pg_terminate_backend($1)", &[&pid]).await?;
        }
        sleep(AGAIN).await;
    }
}

/// Migrates the schema for a node. While other nodes have the database, only by migrations that they can live with.
pub(super) async fn migrate_shared(client: &Client) -> Result<(), OpenError> {
    if client.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?.get(0) {
        let migrated = migrate(client).await;
        client.query_one("SELECT pg_advisory_unlock($1)", &[&LOCK]).await?;
        return migrated;
    }
    match version(client).await? {
        Some(VERSION) => Ok(()),
        Some(found) if found > VERSION => Err(OpenError::Newer { found }),
        Some(found) if found >= ADDS_ONLY_SINCE => {
            client.query_one("SELECT pg_advisory_lock($1)", &[&MIGRATION_LOCK]).await?;
            // A statement that waits for a lock holds up all others of that table.
            client.batch_execute("SET lock_timeout = '2s'").await?;
            let migrated = migrate(client).await;
            client.query_one("SELECT pg_advisory_unlock($1)", &[&MIGRATION_LOCK]).await?;
            migrated
        }
        found => {
            let found = found.unwrap_or(0);
            let reason = format!(
                "other nodes use the schema {found} of an earlier arenite, and this one needs {VERSION}: stop them, and start this one first"
            );
            Err(StoreError::Unavailable(reason).into())
        }
    }
}

/// The version of the schema; none for a database without a store.
pub(super) async fn version(client: &Client) -> Result<Option<i64>, tokio_postgres::Error> {
    if !client.query_one("SELECT to_regclass('arenite_store') IS NOT NULL", &[]).await?.get::<_, bool>(0) {
        return Ok(None);
    }
    Ok(Some(client.query_one("SELECT version FROM arenite_store", &[]).await?.get(0)))
}

/// Migrates the schema, each step in a transaction. The caller holds the lock.
pub(super) async fn migrate(client: &Client) -> Result<(), OpenError> {
    let found = match version(client).await? {
        Some(found) => found,
        None => {
            // `single` keeps the table at one row.
            let create = format!(
                "BEGIN;
                 CREATE TABLE arenite_store (
                     single   BOOLEAN PRIMARY KEY DEFAULT TRUE CHECK (single),
                     version  BIGINT NOT NULL,
                     identity TEXT NOT NULL,
                     owner    TEXT NOT NULL
                 );
                 INSERT INTO arenite_store (version, identity, owner) VALUES (0, '{}', '');
                 COMMIT",
                random_token()
            );
            client.batch_execute(&create).await?;
            0
        }
    };
    let done = usize::try_from(found).ok().filter(|done| *done <= MIGRATIONS.len()).ok_or(OpenError::Newer { found })?;
    for (index, migration) in MIGRATIONS.iter().enumerate().skip(done) {
        let next = index + 1;
        client.batch_execute(&format!("BEGIN; {migration}; UPDATE arenite_store SET version = {next}; COMMIT")).await?;
    }
    Ok(())
}

/// What a server compares when it connects again.
#[derive(Clone)]
pub(super) struct Claim {
    /// Random, made with the store.
    identity: String,
    by: Claimed,
}

#[derive(Clone)]
enum Claimed {
    /// Random for each start of a server.
    Owner(String),
    /// A node, with the epoch of its start.
    Node(NodeClaim, u64),
}

impl Claim {
    /// Makes this server the one that used the store last, or one of its nodes. The caller holds the lock.
    pub(super) async fn take(client: &Client, node: Option<&NodeClaim>) -> Result<Self, OpenError> {
        let owner = random_token();
        let row = client.query_one("UPDATE arenite_store SET owner = $1 RETURNING identity", &[&owner]).await?;
        let by = match node {
            Some(node) => Claimed::Node(node.clone(), node.join(client).await?),
            None => Claimed::Owner(owner),
        };
        Ok(Self { identity: row.get(0), by })
    }

    pub(super) fn lock(&self) -> Lock {
        match self.by {
            Claimed::Owner(_) => Lock::Alone,
            Claimed::Node(..) => Lock::Shared,
        }
    }

    /// Gives a session the settings of the node.
    pub(super) async fn set(&self, client: &Client) -> Result<(), tokio_postgres::Error> {
        match &self.by {
            Claimed::Owner(_) => Ok(()),
            Claimed::Node(node, epoch) => node.set(client, *epoch).await,
        }
    }

    /// Refuses another store, and a store that another server has used since.
    pub(super) async fn verify(&self, client: &Client) -> Result<(), OpenError> {
        if version(client).await?.is_none() {
            return Err(StoreError::Unavailable("the database is another one: it holds no store".to_owned()).into());
        }
        let row = client.query_one("SELECT identity, owner FROM arenite_store", &[]).await?;
        if row.get::<_, String>(0) != self.identity {
            return Err(StoreError::Unavailable("the database is another one: its store has another identity".to_owned()).into());
        }
        if let Claimed::Owner(owner) = &self.by
            && row.get::<_, String>(1) != *owner
        {
            let reason = "another server or an import has used the database in the meantime; restart this server";
            return Err(StoreError::Unavailable(reason.to_owned()).into());
        }
        Ok(())
    }
}

fn database(error: tokio_postgres::Error) -> StoreError {
    super::session::Fault::from(error).into_error()
}

fn random_token() -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the kernel's random source answers");
    format!("{:032x}", u128::from_be_bytes(bytes))
}
