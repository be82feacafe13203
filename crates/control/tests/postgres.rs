//! Failures of a database under the store: gone, silent, full, locked, another one, and back again.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arenite_control::fake_engine::FakeEngine;
use arenite_control::store::{self, PostgresAddress, PostgresStore, Store, StoreError};
use arenite_control::tenants::{AuditEntry, AuditQuery, NewKey, Quota, Role};
use arenite_control::{ControlError, Sandbox};
use arenite_model::{PauseKind, SandboxState, TenantId};
use rustix::process::Signal;
use support::cluster::{self, Cluster};
use support::{config, name, named, sandbox, start_on, tenant, text};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

/// Ends the sessions of the store.
const END: &str = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name LIKE 'arenite pid %'";

async fn open(cluster: &Cluster, data: &Path) -> PostgresStore {
    PostgresStore::open(cluster.address(), data).await.unwrap()
}

async fn names(store: &dyn Store) -> BTreeSet<String> {
    store.load().await.unwrap().into_iter().map(|row| row.name.to_string()).collect()
}

/// Waits until the store works again.
async fn healed(store: &dyn Store) {
    let begun = Instant::now();
    while let Err(error) = store.check().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn is_unavailable(result: &Result<(), StoreError>) -> bool {
    matches!(result, Err(StoreError::Unavailable(_)))
}

#[tokio::test]
async fn a_second_server_is_refused_and_learns_which_one_has_the_database() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let first = open(&cluster, data.path()).await;
    let refused = PostgresStore::open(cluster.address(), data.path()).await.err().unwrap();
    assert!(matches!(refused, ControlError::StoreInUse { .. }), "{refused}");
    assert!(refused.to_string().contains(&format!("arenite pid {} on ", std::process::id())), "{refused}");
    first.insert(&sandbox("default", "one")).await.unwrap();
    first.close().await;
    let second = open(&cluster, data.path()).await;
    assert_eq!(names(&second).await.len(), 1);
    // A server that was killed does not keep the lock.
    drop(second);
    open(&cluster, data.path()).await.close().await;
}

#[tokio::test]
async fn sessions_that_end_fail_no_call() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&cluster, data.path()).await);
    let written = Arc::new(AtomicUsize::new(0));
    let writers: Vec<_> = (0..8)
        .map(|writer| {
            let (store, written) = (Arc::clone(&store), Arc::clone(&written));
            tokio::spawn(async move {
                for n in 0..40 {
                    store.insert(&sandbox("default", &format!("w{writer}-{n}"))).await.unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
        .collect();
    let other = cluster.client().await;
    let mut rows = 20;
    while rows < 300 {
        // Each session has written something, so none ends while it is opened.
        while written.load(Ordering::SeqCst) < rows {
            assert!(!writers.iter().any(tokio::task::JoinHandle::is_finished), "a writer failed");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        other.batch_execute(END).await.unwrap();
        // Those that the ended session wrote don't count.
        rows = written.load(Ordering::SeqCst) + 40;
    }
    for writer in writers {
        writer.await.unwrap();
    }
    assert_eq!(names(&*store).await.len(), 320);
}

/// Passes bytes between clients and a server, and can lose the answer with a number, from 1. The server does not see the end of
/// that connection.
async fn proxy(listener: UnixListener, server: std::path::PathBuf, loses: Arc<AtomicUsize>) {
    while let Ok((mut client, _)) = listener.accept().await {
        let Ok(mut server) = UnixStream::connect(&server).await else { continue };
        let loses = Arc::clone(&loses);
        tokio::spawn(async move {
            let (mut up, mut down) = ([0; 8192], [0; 8192]);
            loop {
                tokio::select! {
                    read = client.read(&mut up) => match read {
                        Ok(1..) => server.write_all(&up[..read.unwrap()]).await.unwrap(),
                        _ => return,
                    },
                    read = server.read(&mut down) => match read {
                        Ok(1..) if counts_down(&loses) => {
                            drop(client);
                            return std::future::pending().await;
                        }
                        Ok(1..) => client.write_all(&down[..read.unwrap()]).await.unwrap(),
                        _ => return,
                    },
                }
            }
        });
    }
}

/// Whether it reaches zero.
fn counts_down(number: &AtomicUsize) -> bool {
    number.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |number| number.checked_sub(1)) == Ok(1)
}

async fn through_a_proxy(cluster: &Cluster, dir: &Path) -> (PostgresAddress, Arc<AtomicUsize>) {
    let loses = Arc::new(AtomicUsize::new(0));
    let listener = UnixListener::bind(dir.join(".s.PGSQL.5432")).unwrap();
    tokio::spawn(proxy(listener, cluster.dir().join(".s.PGSQL.5432"), Arc::clone(&loses)));
    (cluster::url(dir, "postgres").parse().unwrap(), loses)
}

#[tokio::test]
async fn a_row_is_found_if_the_answer_of_its_insert_was_lost() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (address, loses) = through_a_proxy(&cluster, data.path()).await;
    let store = PostgresStore::open(address, data.path()).await.unwrap();
    let row = sandbox("default", "one");
    loses.store(1, Ordering::SeqCst);
    store.insert(&row).await.unwrap();
    assert_eq!(loses.load(Ordering::SeqCst), 0, "no answer was lost");
    let again = store.insert(&row).await;
    assert!(matches!(again, Err(StoreError::Taken)), "{again:?}");
    assert_eq!(text(&store.load().await.unwrap()[0]), text(&row));
    // The name of another sandbox is still taken.
    loses.store(1, Ordering::SeqCst);
    let taken = store.insert(&sandbox("default", "one")).await;
    assert!(matches!(taken, Err(StoreError::Taken)), "{taken:?}");
    loses.store(1, Ordering::SeqCst);
    store.remove(&row.id).await.unwrap();
    assert!(names(&store).await.is_empty());
}

#[tokio::test]
async fn a_change_of_tenants_is_made_once_whichever_answer_was_lost() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (address, loses) = through_a_proxy(&cluster, data.path()).await;
    let mut config = config();
    config.tenants = true;
    let store = Arc::new(PostgresStore::open(address, data.path()).await.unwrap());
    let control = start_on(config, &FakeEngine::new(), store).await;
    let tenants = control.tenants().unwrap();
    let lose = |number| loses.store(number, Ordering::SeqCst);
    // A transaction has fewer answers than this.
    for number in 1..8 {
        let tenant: TenantId = format!("t{number}").parse().unwrap();
        lose(number);
        tenants.create(tenant.clone()).await.unwrap();
        let new = NewKey {
            tenant: tenant.clone(),
            name: "test".to_owned(),
            role: Role::Admin,
            expires_in: None,
            bound: Vec::new(),
            operator: false,
        };
        lose(number);
        let (key, _) = tenants.create_key(new).await.unwrap();
        lose(number);
        tenants.rotate_key(&key.id, Duration::ZERO).await.unwrap();
        lose(number);
        tenants.revoke_key(&key.id).await.unwrap();
        lose(number);
        tenants.set_limits(&tenant, &[(Quota::Sandboxes, Some(number as u64))].into()).await.unwrap();
        let entry = |object: &str| AuditEntry {
            at: "2026-01-31T00:00:00Z".parse().unwrap(),
            tenant: Some(tenant.clone()),
            key: None,
            subject: None,
            action: "test".to_owned(),
            object: object.to_owned(),
            client: None,
            outcome: "ok".to_owned(),
        };
        lose(number);
        tenants.audit(entry("first")).await;
        tenants.audit(entry("second")).await;
        lose(0);
        let rows = tenants.audit_page(AuditQuery { tenant: Some(tenant.clone()), limit: 10, ..AuditQuery::default() }).await;
        let objects: Vec<_> = rows.unwrap().into_iter().map(|row| row.entry.object).collect();
        assert_eq!(objects, ["second", "first"], "answer {number}");
    }
    lose(0);
    control.stop(false).await;
    let contents = store::read(data.path(), Some(&cluster.address())).await.unwrap().tenants.unwrap();
    assert_eq!((contents.tenants.len(), contents.keys.len()), (8, 14));
    assert_eq!(contents.keys.iter().filter(|key| key.revoked_at.is_some()).count(), 7);
}

#[tokio::test]
async fn a_row_is_removed_if_the_answer_of_its_insert_was_lost_and_the_repetition_fails() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (address, loses) = through_a_proxy(&cluster, data.path()).await;
    let store = PostgresStore::open(address, data.path()).await.unwrap();
    cluster
        .run(
            "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF EXISTS (SELECT FROM sandboxes WHERE id = new.id) THEN RAISE EXCEPTION 'full' USING ERRCODE = 'disk_full'; END IF;
                 RETURN new;
             END $$;
             CREATE TRIGGER fill BEFORE INSERT ON sandboxes FOR EACH ROW EXECUTE FUNCTION fill()",
        )
        .await;
    loses.store(1, Ordering::SeqCst);
    let full = store.insert(&sandbox("default", "one")).await;
    assert!(matches!(full, Err(StoreError::Full)), "{full:?}");
    assert!(names(&store).await.is_empty());
    store.insert(&sandbox("default", "one")).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_gone_fails_calls_at_once_and_loses_nothing() {
    let mut cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = open(&cluster, data.path()).await;
    let (gone, mut paused) = (sandbox("default", "gone"), sandbox("default", "paused"));
    store.insert(&gone).await.unwrap();
    store.insert(&paused).await.unwrap();
    cluster.kill();
    let refused = store.insert(&sandbox("default", "new")).await;
    assert!(is_unavailable(&refused), "{refused:?}");
    let begun = Instant::now();
    for n in 0..50 {
        assert!(is_unavailable(&store.insert(&sandbox("default", &format!("n{n}"))).await));
    }
    store.remove(&gone.id).await.unwrap();
    paused.state = SandboxState::Paused;
    assert!(is_unavailable(&store.update(&paused).await));
    assert!(is_unavailable(&store.check().await));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    cluster.resume();
    healed(&store).await;
    let rows = store.load().await.unwrap();
    assert_eq!(rows.iter().map(text).collect::<Vec<_>>(), [text(&paused)]);
    assert!(!data.path().join("control.removals").exists());
    // The name is free again.
    store.insert(&sandbox("default", "gone")).await.unwrap();
}

#[tokio::test]
async fn a_removal_outlives_the_server_that_could_not_write_it() {
    let mut cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = open(&cluster, data.path()).await;
    let (gone, kept) = (sandbox("default", "gone"), sandbox("default", "kept"));
    store.insert(&gone).await.unwrap();
    store.insert(&kept).await.unwrap();
    cluster.kill();
    store.remove(&gone.id).await.unwrap();
    drop(store);
    cluster.resume();
    let address = cluster.address();
    let found = loop {
        // The database may still be starting.
        match store::read(data.path(), Some(&address)).await {
            Ok(contents) => break contents.sandboxes,
            Err(error) => assert!(error.is_unavailable(), "{error}"),
        }
    };
    assert_eq!(found.len(), 1, "a copy has no removed sandbox");
    let store = open(&cluster, data.path()).await;
    store.insert(&sandbox("default", "gone")).await.unwrap();
    let rows = store.load().await.unwrap();
    assert!(rows.len() == 2 && rows.iter().all(|row| row.id != gone.id));
    assert!(!data.path().join("control.removals").exists());
}

#[tokio::test]
async fn a_silent_database_makes_only_the_first_calls_wait() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&cluster, data.path()).await);
    store.insert(&sandbox("default", "before")).await.unwrap();
    cluster.signal(Signal::STOP);
    let begun = Instant::now();
    let calls: Vec<_> = (0..400)
        .map(|n| {
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.insert(&sandbox("default", &format!("n{n}"))).await })
        })
        .collect();
    for call in calls {
        let answer = tokio::time::timeout(Duration::from_secs(30), call).await.expect("a call waits for the database").unwrap();
        assert!(is_unavailable(&answer), "{answer:?}");
    }
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let begun = Instant::now();
    assert!(is_unavailable(&store.insert(&sandbox("default", "during")).await));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    cluster.signal(Signal::CONT);
    healed(&*store).await;
    store.insert(&sandbox("default", "after")).await.unwrap();
    // What was refused does not appear, although the database got some of it before it stopped.
    assert_eq!(names(&*store).await, BTreeSet::from(["after".to_owned(), "before".to_owned()]));
}

#[tokio::test]
async fn a_full_database_refuses_rows_and_still_removes_some() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = open(&cluster, data.path()).await;
    let row = sandbox("default", "one");
    store.insert(&row).await.unwrap();
    cluster
        .run(
            "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$;
             CREATE TRIGGER fill BEFORE INSERT ON sandboxes FOR EACH ROW EXECUTE FUNCTION fill()",
        )
        .await;
    for _ in 0..3 {
        let full = store.insert(&sandbox("default", "two")).await;
        assert!(matches!(full, Err(StoreError::Full)), "{full:?}");
    }
    let (three, four) = (sandbox("default", "three"), sandbox("default", "four"));
    let together = tokio::join!(store.insert(&three), store.insert(&four), store.remove(&row.id));
    assert!(matches!(together, (Err(StoreError::Full), Err(StoreError::Full), Ok(()))), "{together:?}");
    assert!(names(&store).await.is_empty());
    cluster.run("DROP TRIGGER fill ON sandboxes").await;
    store.insert(&sandbox("default", "two")).await.unwrap();
}

#[tokio::test]
async fn what_a_locked_database_owes_is_written_without_another_call() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = open(&cluster, data.path()).await;
    let row = sandbox("default", "one");
    store.insert(&row).await.unwrap();
    let other = cluster.client().await;
    other.batch_execute("BEGIN; LOCK TABLE sandboxes IN SHARE MODE").await.unwrap();
    let begun = Instant::now();
    let locked = store.insert(&sandbox("default", "two")).await;
    assert!(matches!(locked, Err(StoreError::Locked)), "{locked:?}");
    store.remove(&row.id).await.unwrap();
    assert!(begun.elapsed() < Duration::from_millis(1500), "{:?}", begun.elapsed());
    assert!(matches!(store.check().await, Err(StoreError::Locked)));
    other.batch_execute("COMMIT").await.unwrap();
    let rows = || async { other.query_one("SELECT count(*) FROM sandboxes", &[]).await.unwrap().get::<_, i64>(0) };
    while rows().await > 0 {
        assert!(begun.elapsed() < Duration::from_secs(10));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    healed(&store).await;
}

#[tokio::test]
async fn a_slow_database_fails_the_call_and_keeps_the_session() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = open(&cluster, data.path()).await;
    cluster
        .run(
            "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(60); RETURN new; END $$;
             CREATE TRIGGER wait BEFORE INSERT ON sandboxes FOR EACH ROW EXECUTE FUNCTION wait()",
        )
        .await;
    let session = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'arenite pid %'";
    let other = cluster.client().await;
    let before: i32 = other.query_one(session, &[]).await.unwrap().get(0);
    let begun = Instant::now();
    let slow = store.insert(&sandbox("default", "one")).await;
    assert!(is_unavailable(&slow), "{slow:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    cluster.run("DROP TRIGGER wait ON sandboxes").await;
    healed(&store).await;
    assert_eq!(other.query_one(session, &[]).await.unwrap().get::<_, i32>(0), before);
    store.insert(&sandbox("default", "one")).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_not_the_same_any_more_is_not_written() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    for (change, reason) in [("owner = 'x'", "in the meantime"), ("identity = 'x'", "another identity")] {
        let store = open(&cluster, data.path()).await;
        // Two transactions: the store connects again at once, and must find the change.
        cluster.run(&format!("UPDATE arenite_store SET {change}")).await;
        cluster.run(END).await;
        let refused = store.insert(&sandbox("default", "one")).await;
        assert!(matches!(&refused, Err(StoreError::Unavailable(text)) if text.contains(reason)), "{refused:?}");
        store.close().await;
    }
    let store = open(&cluster, data.path()).await;
    assert!(names(&store).await.is_empty());
}

#[tokio::test]
async fn a_database_that_does_not_fit_is_refused_with_the_reason() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    cluster.run("CREATE DATABASE ascii ENCODING 'SQL_ASCII' TEMPLATE template0").await;
    for (database, reason) in [("ascii", "encoding SQL_ASCII"), ("missing", "does not exist")] {
        let address = cluster::url(cluster.dir(), database).parse().unwrap();
        let error = PostgresStore::open(address, data.path()).await.err().unwrap();
        assert!(error.to_string().contains(reason), "{error}");
    }
}

#[tokio::test]
async fn characters_that_postgres_refuses_are_replaced() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let store = open(&cluster, data.path()).await;
    let row = Sandbox { origin: "a\0b".to_owned(), ..sandbox("default", "one") };
    store.insert(&row).await.unwrap();
    store.update(&Sandbox { reason: Some("c\0d".to_owned()), ..row }).await.unwrap();
    let row = &store.load().await.unwrap()[0];
    assert_eq!((row.origin.as_str(), row.reason.as_deref()), ("a\u{fffd}b", Some("c\u{fffd}d")));
}

#[tokio::test]
async fn sandboxes_are_called_and_deleted_while_the_database_is_gone() {
    let mut cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new();
    let control = start_on(config(), &engine, Arc::new(open(&cluster, data.path()).await)).await;
    for each in ["called", "deleted"] {
        control.create(&tenant(), named(each)).await.unwrap();
    }
    cluster.kill();
    drop(control.lease(&tenant(), &name("called")).await.unwrap());
    let error = control.create(&tenant(), named("new")).await.unwrap_err();
    assert!(error.is_unavailable() && error.retry_after().is_some() && error.hint().is_some(), "{error}");
    assert_eq!(control.problems().await.len(), 1);
    control.delete(&tenant(), &name("deleted")).await.unwrap();
    control.pause(&tenant(), &name("called"), PauseKind::Freeze).await.unwrap();
    cluster.resume();
    let begun = Instant::now();
    while let Err(error) = control.create(&tenant(), named("new")).await {
        assert!(error.is_unavailable() && begun.elapsed() < Duration::from_secs(30), "{error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    control.stop(false).await;
    let rows = open(&cluster, data.path()).await.load().await.unwrap();
    let states: Vec<_> = rows.iter().map(|row| (row.name.to_string(), row.state)).collect();
    assert_eq!(states, [("called".to_owned(), SandboxState::Paused), ("new".to_owned(), SandboxState::Running)]);
}
