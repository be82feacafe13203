//! One test suite for all stores, and what only a file can show. `postgres.rs` has failures of a database.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;

use arenite_control::store::archive::{self, ArchiveError};
use arenite_control::store::{
    self, AnnotationRow, Contents, MemoryStore, PostgresStore, Record, RecordId, RecordKind, SqliteStore, Store, StoreError,
    TenantContents, TenantRow, UsageContents,
};
use arenite_control::tenants::{ApiKey, AuditEntry, AuditRow, Quota, Role, Tenant, TenantLimits};
use arenite_control::usage::{Meter, UsageHour, UsedAmounts};
use arenite_control::webhooks::Webhook;
use arenite_control::{ControlError, DefaultNetwork, EventKind, Keyed, Provenance, Sandbox, TenantNetwork};
use arenite_model::{Annotation, Death, DeathReason, NetworkMode, NetworkPolicy, SandboxId, SandboxState, WebhookId};
use jiff::Timestamp;
use support::cluster::{self, Cluster};
use support::{sandbox, text};

async fn behaves(store: &dyn Store) {
    assert!(store.load().await.unwrap().is_empty());
    keeps_quotas(store).await;
    let mut first = sandbox("default", "one");
    let mut second = sandbox("other", "one");
    second.spec.env.insert("NUL".to_owned(), "a\0b".to_owned());
    store.insert(&first).await.unwrap();
    store.insert(&second).await.unwrap();
    for taken in [sandbox("default", "one"), Sandbox { id: first.id.clone(), ..sandbox("default", "two") }] {
        let error = store.insert(&taken).await.unwrap_err();
        assert!(matches!(error, StoreError::Taken), "{error}");
    }

    first.state = SandboxState::Failed;
    first.reason = Some("it's \"gone\" \u{1f4a5}".to_owned());
    first.isolation = vec!["namespaces".to_owned(), "seccomp".to_owned()];
    first.state_since = Timestamp::from_microsecond(5).unwrap();
    first.died = Some(Death::with_message(DeathReason::Oom, "it's gone\0").noticed_at(first.state_since));
    first.spec.labels.insert("team".to_owned(), "a".to_owned());
    first.expires_at = None;
    first.revision = 7;
    store.update(&first).await.unwrap();
    store.update(&sandbox("default", "absent")).await.unwrap();
    first.last_used_at = Timestamp::from_microsecond(7).unwrap();
    let used = vec![(first.id.clone(), first.last_used_at), (SandboxId::random(), first.last_used_at)];
    store.touch(used).await.unwrap();
    let rows = store.load().await.unwrap();
    assert_eq!(rows.len(), 2);
    for wanted in [&first, &second] {
        let found = rows.iter().find(|row| row.id == wanted.id).unwrap();
        assert_eq!(text(found), text(wanted));
    }

    records_behave(store).await;
    store.remove(&first.id).await.unwrap();
    store.remove(&first.id).await.unwrap();
    store.insert(&sandbox("default", "one")).await.unwrap();
    assert_eq!(store.load().await.unwrap().len(), 2);
    store.close().await;
    assert!(matches!(store.remove(&second.id).await, Err(StoreError::Closed)));
    store.close().await;
}

/// Ends without rows.
async fn keeps_quotas(store: &dyn Store) {
    let mut one = sandbox("default", "one");
    one.state = SandboxState::Running;
    let spec = one.spec.resources.clone();
    let [cpu, memory, disk] = [spec.cpu_millis.into(), spec.memory_bytes, spec.disk_bytes];
    let unlimited = TenantLimits::default();
    for (limits, quota) in [
        (TenantLimits { sandboxes: Some(1), ..unlimited.clone() }, Quota::Sandboxes),
        (TenantLimits { cpu_millis: Some(2 * cpu - 1), ..unlimited.clone() }, Quota::CpuMillis),
        (TenantLimits { memory_bytes: Some(2 * memory - 1), ..unlimited.clone() }, Quota::MemoryBytes),
        (TenantLimits { disk_bytes: Some(2 * disk - 1), ..unlimited.clone() }, Quota::DiskBytes),
    ] {
        let (mut one, two) = (one.clone(), sandbox("default", "two"));
        store.insert_within(&one, &limits).await.unwrap();
        let limit = limits.get(quota).unwrap();
        let refused = store.insert_within(&two, &limits).await;
        assert!(
            matches!(&refused, Err(StoreError::Quota(e)) if e.quota == quota && e.limit == limit && e.used > 0 && e.used + e.requested > limit),
            "{quota}: {refused:?}"
        );
        let taken = store.insert_within(&sandbox("default", "one"), &unlimited).await;
        assert!(matches!(taken, Err(StoreError::Taken)), "{taken:?}");
        store.insert_within(&sandbox("other", "one"), &limits).await.unwrap();
        // A dead sandbox has only its place and its disk.
        one.state = SandboxState::Failed;
        store.update(&one).await.unwrap();
        let has_room = matches!(quota, Quota::CpuMillis | Quota::MemoryBytes);
        assert_eq!(store.insert_within(&two, &limits).await.is_ok(), has_room, "{quota}");
        store.remove(&two.id).await.unwrap();
        // Its deletion changes nothing of this.
        one.state = SandboxState::Deleting;
        one.died = Some(Death::new(DeathReason::Oom));
        store.update(&one).await.unwrap();
        assert_eq!(store.insert_within(&two, &limits).await.is_ok(), has_room, "{quota}");
        one.died = None;
        one.state = SandboxState::Running;
        let again = store.reserve(&one, &limits).await;
        assert!(matches!(&again, Err(StoreError::Quota(e)) if e.quota == quota) == has_room, "{quota}: {again:?}");
        store.remove(&two.id).await.unwrap();
        store.reserve(&one, &limits).await.unwrap();
        for row in store.load().await.unwrap() {
            assert_eq!(row.state == SandboxState::Running, row.id == one.id);
            store.remove(&row.id).await.unwrap();
        }
    }
}

async fn records_behave(store: &dyn Store) {
    use RecordKind::{Group, Idempotency};
    let at = |second| Timestamp::from_second(second).unwrap();
    let id = |kind, tenant: &str, key: &str| RecordId { kind, tenant: tenant.parse().unwrap(), key: key.to_owned() };
    let record = |id: &RecordId, value: &str, expires_at| Record { id: id.clone(), value: value.to_owned(), expires_at };
    let (one, two) = (id(Idempotency, "default", "one"), id(Idempotency, "default", "two"));
    let group = record(&id(Group, "default", "one"), "{}", None);
    store.put_record(record(&one, "1", Some(at(10)))).await.unwrap();
    store.put_record(record(&one, "{\"a\": \"\u{1f4a5}\"}", Some(at(20)))).await.unwrap();
    store.put_record(record(&two, "2", Some(at(30)))).await.unwrap();
    store.put_record(group.clone()).await.unwrap();
    assert_eq!(store.record(&one).await.unwrap().unwrap().value, "{\"a\": \"\u{1f4a5}\"}");
    assert_eq!(store.records(Group).await.unwrap(), std::slice::from_ref(&group));
    let count = async |tenant: &str| store.count_records(Idempotency, &tenant.parse().unwrap()).await.unwrap();
    assert_eq!((count("default").await, count("other").await), (2, 0));
    store.remove_expired(at(25)).await.unwrap();
    assert_eq!((store.record(&one).await.unwrap(), count("default").await), (None, 1));
    store.remove_record(&two).await.unwrap();
    store.remove_record(&two).await.unwrap();

    // A row and the record of its key are one change: a refused row leaves no record.
    let keyed = |name: &str, key: &str| {
        let since = at(1_700_000_000);
        let keyed = Keyed { key: key.parse().unwrap(), fingerprint: "f".to_owned(), since, index: 0 };
        Sandbox { provenance: Provenance { keyed: Some(keyed), ..Provenance::default() }, ..sandbox("keyed", name) }
    };
    let of_key = |key: &str| id(Idempotency, "keyed", key);
    let (first, second) = (keyed("a", "k"), keyed("b", "k"));
    store.insert(&first).await.unwrap();
    let added = store.record(&of_key("k")).await.unwrap().unwrap();
    store.put_record(Record { value: "answer".to_owned(), ..added.clone() }).await.unwrap();
    store.insert(&second).await.unwrap();
    assert_eq!(store.record(&of_key("k")).await.unwrap().unwrap().value, "answer");
    assert!(matches!(store.insert(&keyed("a", "l")).await, Err(StoreError::Taken)));
    assert_eq!(store.record(&of_key("l")).await.unwrap(), None);
    let loaded = store.load().await.unwrap();
    assert_eq!(text(loaded.iter().find(|row| row.id == first.id).unwrap()), text(&first));
    store.remove(&first.id).await.unwrap();
    store.remove(&second.id).await.unwrap();
    store.remove_record(&of_key("k")).await.unwrap();
    store.remove_record(&group.id).await.unwrap();
}

#[tokio::test]
async fn the_memory_store_behaves() {
    behaves(&MemoryStore::default()).await;
}

#[tokio::test]
async fn the_sqlite_store_behaves_and_its_rows_outlive_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b.sqlite");
    let store = SqliteStore::open(path.clone()).unwrap();
    let in_use = SqliteStore::open(path.clone()).err().unwrap();
    assert!(matches!(in_use, ControlError::StoreInUse { .. }));
    behaves(&store).await;
    let again = SqliteStore::open(path).unwrap();
    assert_eq!(again.load().await.unwrap().len(), 2);
}

#[tokio::test]
async fn the_postgres_store_behaves_and_its_rows_outlive_it() {
    let cluster = Cluster::start();
    let dir = tempfile::tempdir().unwrap();
    behaves(&PostgresStore::open(cluster.address(), dir.path()).await.unwrap()).await;
    let again = PostgresStore::open(cluster.address(), dir.path()).await.unwrap();
    assert_eq!(again.load().await.unwrap().len(), 2);
}

#[tokio::test]
async fn many_writers_at_once_each_get_their_own_answer() {
    let dir = tempfile::tempdir().unwrap();
    let cluster = Cluster::start();
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(MemoryStore::default()),
        Arc::new(SqliteStore::open(dir.path().join("control.sqlite")).unwrap()),
        Arc::new(PostgresStore::open(cluster.address(), dir.path()).await.unwrap()),
    ];
    for store in stores {
        answers_many(Arc::clone(&store)).await;
        races_for_the_last_places(store).await;
    }
}

/// A hundred writers race for one place, and then again for seven, beside those of another tenant.
async fn races_for_the_last_places(store: Arc<dyn Store>) {
    for places in [1, 7] {
        let tenant = format!("race-{places}");
        let limits = TenantLimits { sandboxes: Some(places), ..TenantLimits::default() };
        let writers: Vec<_> = (0..100)
            .map(|n| {
                let (store, limits) = (Arc::clone(&store), limits.clone());
                let (row, other) = (sandbox(&tenant, &format!("n{n}")), sandbox("beside", &format!("n{places}-{n}")));
                tokio::spawn(async move {
                    let (own, other) = tokio::join!(store.insert_within(&row, &limits), store.insert(&other));
                    other.unwrap();
                    own
                })
            })
            .collect();
        let mut won = 0;
        for writer in writers {
            match writer.await.unwrap() {
                Ok(()) => won += 1,
                Err(StoreError::Quota(exceeded)) => assert_eq!((exceeded.limit, exceeded.used), (places, places)),
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(won, places);
        let rows = store.load().await.unwrap();
        assert_eq!(rows.iter().filter(|row| row.tenant.as_str() == tenant).count() as u64, places);
    }
}

async fn answers_many(store: Arc<dyn Store>) {
    let writers: Vec<_> = (0..200)
        .map(|n| {
            let store = Arc::clone(&store);
            // Every name twice: in a batch as well as alone, one of the two is refused and does not affect others.
            tokio::spawn(async move { store.insert(&sandbox("default", &format!("n{}", n / 2))).await })
        })
        .collect();
    let mut taken = 0;
    for writer in writers {
        match writer.await.unwrap() {
            Ok(()) => {}
            Err(StoreError::Taken) => taken += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!((taken, store.load().await.unwrap().len()), (100, 100));
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sqlite");
    drop(SqliteStore::open(path.clone()).unwrap());
    let version = |set: Option<i64>| -> i64 {
        let db = rusqlite::Connection::open(&path).unwrap();
        if let Some(version) = set {
            db.pragma_update(None, "user_version", version).unwrap();
        }
        db.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap()
    };
    let known = version(None);
    version(Some(known + 1));
    // The thread of the previous store releases its lock soon after it was dropped, not at once.
    let error = loop {
        match SqliteStore::open(path.clone()).err().unwrap() {
            ControlError::StoreInUse { .. } => std::thread::yield_now(),
            error => break error,
        }
    };
    assert!(matches!(error, ControlError::NewerStore { found, .. } if found == known + 1), "{error}");
    assert_eq!(version(None), known + 1);
}

/// Opens it, with its notes, once the thread of the previous store has ended.
async fn reopened(path: &std::path::Path) -> Result<(SqliteStore, Vec<String>), ControlError> {
    loop {
        match SqliteStore::open(path.to_owned()) {
            Err(ControlError::StoreInUse { .. }) => tokio::task::yield_now().await,
            Err(error) => return Err(error),
            Ok(store) => {
                let notes = store.notes();
                return Ok((store, notes));
            }
        }
    }
}

#[tokio::test]
async fn a_store_that_can_t_be_read_is_kept_under_another_name() {
    let sql = |path: &std::path::Path, text: &str| rusqlite::Connection::open(path).unwrap().execute_batch(text).unwrap();
    type Damage<'a> = &'a dyn Fn(&std::path::Path);
    let damages: [(&str, bool, Damage<'_>); 7] = [
        ("none", false, &|_| {}),
        ("missing", false, &|path| std::fs::remove_file(path).unwrap()),
        ("empty", false, &|path| std::fs::write(path, "").unwrap()),
        ("garbage", true, &|path| std::fs::write(path, "x".repeat(9000)).unwrap()),
        ("a header alone", true, &|path| {
            let mut text = std::fs::read(path).unwrap();
            text[100..].fill(0xff);
            std::fs::write(path, text).unwrap();
        }),
        ("a bad row", true, &|path| sql(path, "UPDATE sandboxes SET spec = '{'")),
        ("no table", true, &|path| sql(path, "DROP TABLE sandboxes")),
    ];
    for (what, is_set_aside, damage) in damages {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sqlite");
        let (store, notes) = reopened(&path).await.unwrap();
        assert!(notes.is_empty());
        store.insert(&sandbox("default", "one")).await.unwrap();
        store.close().await;
        damage(&path);
        let damaged = std::fs::read(&path).unwrap_or_default();
        let (store, notes) = reopened(&path).await.unwrap();
        let rows = store.load().await.unwrap();
        assert_eq!(rows.len(), usize::from(what == "none"), "{what}");
        store.insert(&sandbox("default", "two")).await.unwrap();
        let aside: Vec<_> = std::fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.to_string_lossy().contains(".unreadable-"))
            .collect();
        assert_eq!((notes.len(), !aside.is_empty()), (usize::from(is_set_aside), is_set_aside), "{what}: {notes:?}");
        if is_set_aside {
            let kept =
                aside.iter().any(|path| notes[0].contains(&*path.to_string_lossy()) && std::fs::read(path).unwrap() == damaged);
            assert!(kept, "{what}");
        }
    }
}

#[tokio::test]
async fn a_store_that_is_only_locked_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sqlite");
    let (store, _) = reopened(&path).await.unwrap();
    store.insert(&sandbox("default", "one")).await.unwrap();
    store.close().await;
    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; DELETE FROM sandboxes;").unwrap();
    let refused = tokio::task::spawn_blocking({
        let path = path.clone();
        move || SqliteStore::open(path).err().map(|error| error.to_string())
    });
    assert!(refused.await.unwrap().unwrap().contains("locked"));
    other.execute_batch("ROLLBACK").unwrap();
    drop(other);
    let (store, notes) = reopened(&path).await.unwrap();
    assert_eq!((store.load().await.unwrap().len(), notes.len()), (1, 0));
}

/// Another process, such as a `sqlite3` shell, that locks the database.
fn lock(path: &std::path::Path) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(path).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    db
}

#[tokio::test]
async fn what_a_locked_store_owes_is_written_before_anything_else() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sqlite");
    let store = SqliteStore::open(path.clone()).unwrap();
    let there = sandbox("default", "there");
    store.insert(&there).await.unwrap();
    store.check().await.unwrap();
    let other = lock(&path);
    let begun = std::time::Instant::now();
    let error = store.insert(&sandbox("default", "new")).await.unwrap_err();
    assert!(matches!(error, StoreError::Locked), "{error}");
    assert!(matches!(store.update(&there).await, Err(StoreError::Locked)));
    store.remove(&there.id).await.unwrap();
    assert!(begun.elapsed() < std::time::Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert!(matches!(store.check().await, Err(StoreError::Locked)));
    drop(other);
    // Its name is free again with the first row after the lock.
    let again = sandbox("default", "there");
    while store.insert(&again).await.is_err() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(10));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let rows = store.load().await.unwrap();
    assert_eq!(rows.iter().map(|row| &row.id).collect::<Vec<_>>(), [&again.id]);
    store.check().await.unwrap();
}

#[tokio::test]
async fn what_is_owed_is_written_without_another_call() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("control.sqlite");
    let store = SqliteStore::open(path.clone()).unwrap();
    let there = sandbox("default", "there");
    store.insert(&there).await.unwrap();
    let other = lock(&path);
    store.remove(&there.id).await.unwrap();
    drop(other);
    let reader = rusqlite::Connection::open(&path).unwrap();
    let rows = || reader.query_row("SELECT count(*) FROM sandboxes", [], |row| row.get::<_, i64>(0)).unwrap();
    let begun = std::time::Instant::now();
    while rows() > 0 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(10));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_database_of_a_newer_version_is_refused_and_left_alone() {
    let cluster = Cluster::start();
    let dir = tempfile::tempdir().unwrap();
    PostgresStore::open(cluster.address(), dir.path()).await.unwrap().close().await;
    cluster.run("UPDATE arenite_store SET version = version + 1").await;
    let error = PostgresStore::open(cluster.address(), dir.path()).await.err().unwrap();
    let ControlError::NewerStore { found, known, .. } = error else { panic!("{error}") };
    assert_eq!(found, known + 1);
    let error = store::read(dir.path(), Some(&cluster.address())).await.unwrap_err();
    assert!(matches!(error, ControlError::NewerStore { .. }), "{error}");
    let version = cluster.client().await.query_one("SELECT version FROM arenite_store", &[]).await.unwrap();
    assert_eq!(version.get::<_, i64>(0), found);
}

/// Undoes the migrations for calls of models and for annotations.
const WITHOUT_MODELS: &str = "
    DROP TABLE annotations;
    ALTER TABLE usage DROP COLUMN model_calls;
    ALTER TABLE usage DROP COLUMN model_input_tokens;
    ALTER TABLE usage DROP COLUMN model_output_tokens;
    ALTER TABLE usage DROP COLUMN model_cost_usd;
    ALTER TABLE usage_hours DROP COLUMN model_calls;
    ALTER TABLE usage_hours DROP COLUMN model_input_tokens;
    ALTER TABLE usage_hours DROP COLUMN model_output_tokens;
    ALTER TABLE usage_hours DROP COLUMN model_cost_usd;";

/// Undoes the other migrations from version 9 on.
const WITHOUT_NODES: &str = "
    ALTER TABLE sandboxes DROP COLUMN pause_kind;
    ALTER TABLE sandboxes DROP COLUMN node;
    ALTER TABLE records DROP COLUMN node;
    ALTER TABLE deliveries DROP COLUMN node;
    ALTER TABLE arenite_store DROP COLUMN shared;
    DROP FUNCTION arenite_fence, arenite_changed CASCADE;
    DROP FUNCTION arenite_node, arenite_now;
    DROP TABLE nodes, removals, workers;";

#[tokio::test]
async fn dead_sandboxes_of_an_earlier_version_reserve_nothing() {
    let mut dead = sandbox("default", "dead");
    let limits = TenantLimits { cpu_millis: Some(dead.spec.resources.cpu_millis.into()), ..TenantLimits::default() };
    let as_before = format!("UPDATE sandboxes SET cpu_millis = {}", dead.spec.resources.cpu_millis);
    dead.state = SandboxState::Lost;
    let cluster = Cluster::start();
    for database in [None, Some(cluster.address())] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("control.sqlite");
        let open = store::open(dir.path(), database.as_ref()).await.unwrap();
        open.insert(&dead).await.unwrap();
        open.close().await;
        drop(open);
        if database.is_some() {
            cluster.run(&format!("{WITHOUT_MODELS} {WITHOUT_NODES} {as_before}; UPDATE arenite_store SET version = 7")).await;
        } else {
            let db = rusqlite::Connection::open(&path).unwrap();
            db.execute_batch(&format!(
                "{WITHOUT_MODELS} {as_before}; ALTER TABLE sandboxes DROP COLUMN pause_kind; PRAGMA user_version = 7"
            ))
            .unwrap();
        }
        let open = store::open(dir.path(), database.as_ref()).await.unwrap();
        open.insert_within(&sandbox("default", "one"), &limits).await.unwrap();
        open.close().await;
    }
}

#[tokio::test]
async fn a_store_is_read_while_a_server_uses_it() {
    let cluster = Cluster::start();
    let dir = tempfile::tempdir().unwrap();
    let database = cluster.address();
    for database in [None, Some(&database)] {
        let missing = store::read(dir.path(), database).await.unwrap_err();
        assert!(matches!(missing, ControlError::Store { .. }), "{missing}");
        let open = store::open(dir.path(), database).await.unwrap();
        open.insert(&sandbox("default", "one")).await.unwrap();
        assert_eq!(store::read(dir.path(), database).await.unwrap().sandboxes.len(), 1);
        open.close().await;
        assert_eq!(store::read(dir.path(), database).await.unwrap().sandboxes.len(), 1);
    }
}

fn without_tenants(sandboxes: Vec<Sandbox>) -> Contents {
    Contents { sandboxes, ..Contents::default() }
}

async fn moves_rows(from: &dyn Store, to: &dyn Store) {
    let rows = [sandbox("default", "one"), sandbox("default", "two"), sandbox("other", "one")];
    for row in &rows {
        from.insert(row).await.unwrap();
    }
    let mut file = Vec::new();
    archive::write(without_tenants(from.load().await.unwrap()), &mut file).unwrap();
    let texts = |rows: Vec<Sandbox>| {
        let mut texts: Vec<String> = rows.iter().map(text).collect();
        texts.sort();
        texts
    };
    let moved = archive::read(&file[..]).unwrap();
    assert!(moved.tenants.is_none());
    to.import(moved.clone(), false).await.unwrap();
    let there = texts(to.load().await.unwrap());
    assert_eq!(there, texts(rows.to_vec()));

    let error = to.import(moved.clone(), false).await.unwrap_err();
    assert!(matches!(error, StoreError::NotEmpty { rows: 3 }), "{error}");
    let twice = [&moved.sandboxes[..], &moved.sandboxes[..1]].concat();
    assert!(matches!(to.import(without_tenants(twice), true).await, Err(StoreError::Taken)));
    assert_eq!(texts(to.load().await.unwrap()), there, "a failed import changes nothing");
    to.insert(&sandbox("default", "new")).await.unwrap();
    to.import(moved, true).await.unwrap();
    assert_eq!(texts(to.load().await.unwrap()), there);
    to.check().await.unwrap();
}

#[tokio::test]
async fn rows_move_between_stores_through_an_archive() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| SqliteStore::open(dir.path().join(name)).unwrap();
    moves_rows(&open("a.sqlite"), &open("b.sqlite")).await;
    moves_rows(&MemoryStore::default(), &open("c.sqlite")).await;
    moves_rows(&open("d.sqlite"), &MemoryStore::default()).await;
    let cluster = Cluster::start();
    cluster.run("CREATE DATABASE second").await;
    let database = PostgresStore::open(cluster.address(), dir.path()).await.unwrap();
    moves_rows(&open("e.sqlite"), &database).await;
    database.import(Contents::default(), true).await.unwrap();
    moves_rows(&database, &open("f.sqlite")).await;
    let second = cluster::url(cluster.dir(), "second").parse().unwrap();
    moves_rows(&PostgresStore::open(second, dir.path()).await.unwrap(), &MemoryStore::default()).await;
}

/// Tenants with something in each column.
fn tenants() -> TenantContents {
    let at = Timestamp::from_microsecond(1_700_000_000_123_456).unwrap();
    let limits = TenantLimits { sandboxes: Some(3), ..TenantLimits::default() };
    let policy = NetworkPolicy { allow: vec!["a.example".into()], ..NetworkPolicy::default() };
    let default = DefaultNetwork { mode: NetworkMode::Open, policy: Some(policy.clone()) };
    let network = TenantNetwork { default: Some(default), floor: Some(policy) };
    let tenant = |name: &str, removed_at: Option<Timestamp>| TenantRow {
        tenant: Tenant {
            name: name.parse().unwrap(),
            created_at: at,
            limits: limits.clone(),
            network: network.clone(),
            disabled: removed_at.is_some(),
        },
        removed_at,
    };
    let key = |id: &str, revoked_at: Option<Timestamp>| ApiKey {
        id: id.parse().unwrap(),
        tenant: "acme".parse().unwrap(),
        name: "a \"key\" \u{1f511}".to_owned(),
        role: Role::Admin,
        hash: [0xab; 32],
        created_at: at,
        expires_at: revoked_at,
        revoked_at,
        bound: vec!["one".parse().unwrap(), "k=v".parse().unwrap()],
        operator: revoked_at.is_none(),
    };
    let row = |number, tenant: Option<&str>| AuditRow {
        number,
        entry: AuditEntry {
            at,
            tenant: tenant.map(|name: &str| name.parse().unwrap()),
            key: tenant.map(|_| "k3w9x0qz7a2m".parse().unwrap()),
            subject: tenant.is_none().then(|| "a user".to_owned()),
            action: "key.create".to_owned(),
            object: "a key".to_owned(),
            client: tenant.map(str::to_owned),
            outcome: "ok".to_owned(),
        },
    };
    TenantContents {
        tenants: vec![tenant("acme", None), tenant("default", None), tenant("gone", Some(at))],
        keys: vec![key("k3w9x0qz7a2m", None), key("k3w9x0qz7a2n", Some(at))],
        audit: vec![row(7, None), row(9, Some("acme"))],
    }
}

fn usage() -> UsageContents {
    let at = Timestamp::from_second(1_700_000_000).unwrap();
    let hour: Timestamp = "2026-01-31T10:00:00Z".parse().unwrap();
    let used = UsedAmounts { core_seconds: 1.5, memory_gib_seconds: 0.25, egress_bytes: 1 << 40, ..UsedAmounts::default() };
    let sandbox = SandboxId::random();
    let acme = UsageHour {
        hour,
        tenant: "acme".parse().unwrap(),
        subject: Some(sandbox.clone().into()),
        name: Some("one".to_owned()),
        template: "a \"template\"".to_owned(),
        used,
    };
    let merged =
        UsageHour { tenant: "default".parse().unwrap(), subject: None, name: None, template: String::new(), ..acme.clone() };
    let meter = Meter { subject: sandbox.into(), at, cpu_nanoseconds: 1, sent_bytes: 2, received_bytes: 3 };
    UsageContents { hours: vec![acme, merged], meters: vec![meter] }
}

/// A group, an idempotency key, and a webhook.
fn records() -> Vec<Record> {
    let record = |kind, key: &str, expires_at| Record {
        id: RecordId { kind, tenant: "acme".parse().unwrap(), key: key.to_owned() },
        value: format!("{{\"a \\\"key\\\"\":\"{key}\"}}"),
        expires_at,
    };
    let end = Timestamp::from_microsecond(4_000_000_000_123_456).unwrap();
    vec![record(RecordKind::Idempotency, "k", Some(end)), record(RecordKind::Group, "g", None)]
}

fn webhooks() -> Vec<Webhook> {
    vec![Webhook {
        id: WebhookId::random(),
        tenant: "acme".parse().unwrap(),
        url: "https://example.com/\u{e9}".to_owned(),
        secret: vec![0, 1, 0xff],
        kinds: vec![EventKind::Died],
        created_at: Timestamp::from_microsecond(1_700_000_000_123_456).unwrap(),
    }]
}

fn annotations() -> Vec<AnnotationRow> {
    let row = |id: &str, step, second: i64| AnnotationRow {
        tenant: "acme".parse().unwrap(),
        trajectory: "s0123456789a".to_owned(),
        annotation: Annotation {
            id: id.parse().unwrap(),
            step,
            text: "a \"note\" \u{e9}\n<b>".to_owned(),
            labels: ["good".parse().unwrap()].into(),
            rating: Some(4.try_into().unwrap()),
            author: Some("ada".to_owned()),
            created_at: Timestamp::from_second(1_700_000_000 + second).unwrap(),
            changed_by: None,
            changed_at: Timestamp::from_microsecond(1_700_000_001_123_456).unwrap(),
            revision: 3,
        },
    };
    vec![row("nzzzzzzzzzzz", Some(7), 0), row("naaaaaaaaaaa", None, 1)]
}

#[tokio::test]
async fn tenants_and_usage_move_between_stores_through_an_archive() {
    let cluster = Cluster::start();
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let database = cluster.address();
    let mut file = Vec::new();
    archive::write(
        Contents {
            sandboxes: vec![sandbox("acme", "one")],
            tenants: Some(tenants()),
            usage: Some(usage()),
            records: Some(records()),
            webhooks: Some(webhooks()),
            annotations: Some(annotations()),
        },
        &mut file,
    )
    .unwrap();
    let before = String::from_utf8(file).unwrap();
    assert_eq!(before.lines().count(), 18);
    let mut moved = before.clone();
    for (dir, database) in [(first.path(), None), (first.path(), Some(&database)), (second.path(), None)] {
        let store = store::open(dir, database).await.unwrap();
        let archived = moved;
        let contents = || archive::read(archived.as_bytes()).unwrap();
        store.import(contents(), false).await.unwrap();
        store.import(without_tenants(Vec::new()), true).await.unwrap();
        let error = store.import(contents(), false).await.unwrap_err();
        assert!(matches!(error, StoreError::HasTenants { tenants: 2, keys: 2 }), "{error}");
        let double = TenantContents { keys: [tenants().keys, tenants().keys].concat(), ..tenants() };
        let double = Contents { tenants: Some(double), ..Contents::default() };
        assert!(matches!(store.import(double, true).await, Err(StoreError::Taken)));
        store.import(contents(), true).await.unwrap();
        let mut file = Vec::new();
        archive::write(store::read(dir, database).await.unwrap(), &mut file).unwrap();
        moved = String::from_utf8(file).unwrap();
        assert_eq!(moved, before);
        // An archive of version 2 leaves records, webhooks and annotations as they are.
        let older = Contents { records: None, webhooks: None, annotations: None, ..contents() };
        store.import(older, true).await.unwrap();
        let hooks = Arc::clone(&store).webhook_store().unwrap().webhooks().await.unwrap();
        assert_eq!((store.records(RecordKind::Group).await.unwrap().len(), hooks.len()), (1, 1));
        assert_eq!(hooks[0].secret, [0, 1, 0xff]);
        let notes = Arc::clone(&store).annotation_store().unwrap();
        let found = notes.annotations(&"acme".parse().unwrap(), "s0123456789a").await.unwrap();
        assert_eq!(found, annotations().into_iter().map(|row| row.annotation).collect::<Vec<_>>());
        let found = Arc::clone(&store).tenant_store().unwrap();
        assert_eq!(found.tenants().await.unwrap().len(), 2);
        // The next row of the audit log gets a higher number.
        found.append_audit(vec![tenants().audit[0].entry.clone()]).await.unwrap();
        assert!(store::read(dir, database).await.unwrap().tenants.unwrap().audit[2].number > 9);
        store.close().await;
    }
}

#[test]
fn a_damaged_archive_gives_no_rows() {
    let mut file = Vec::new();
    archive::write(without_tenants(vec![sandbox("default", "one"), sandbox("default", "two")]), &mut file).unwrap();
    let whole = String::from_utf8(file).unwrap();
    let lines: Vec<&str> = whole.split_inclusive('\n').collect();
    let read = |text: String| archive::read(text.as_bytes()).map(|contents| contents.sandboxes.len());
    assert_eq!(read(whole.clone()).unwrap(), 2);
    assert!(matches!(read(lines[..3].concat()), Err(ArchiveError::Truncated)));
    assert!(matches!(read(String::new()), Err(ArchiveError::Truncated)));
    assert!(matches!(read([lines[0], lines[1], lines[3]].concat()), Err(ArchiveError::Count { expected: 2, found: 1 })));
    assert!(matches!(read(whole.replace("\"test\"", "\"best\"")), Err(ArchiveError::Checksum)));
    assert!(matches!(read(whole.replacen("\"version\":1", "\"version\":5", 1)), Err(ArchiveError::Version { found: 5 })));
    assert!(matches!(read(format!("{whole}{{}}\n")), Err(ArchiveError::Line { line: 5, .. })));
    assert!(matches!(read("{}\n".to_owned()), Err(ArchiveError::Line { line: 1, .. })));
    assert!(matches!(read(whole.replace("arenite-store", "other")), Err(ArchiveError::Line { line: 1, .. })));
}
