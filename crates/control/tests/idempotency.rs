//! Creates with an idempotency key: repeated, at once, and after a server that died at any moment.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{FakeEngine, Point};
use arenite_control::store::{PostgresStore, SqliteStore, Store};
use arenite_control::{Answered, Control, ControlError, CreateRequest, KeyHold, Provenance};
use arenite_model::{ErrorCode, SandboxState};
use serde_json::json;
use support::cluster::Cluster;
use support::{HaltingStore, Moment, config, named, runtime, start, start_on, tenant};

/// Creates a sandbox as the gateway does.
async fn create(control: &Control, fingerprint: &str) -> Result<Answered, ControlError> {
    let held = match control.hold_key(&tenant(), "k".parse().unwrap(), fingerprint.to_owned()).await? {
        KeyHold::Answered(answer) => return Ok(answer),
        KeyHold::Held(held) => held,
    };
    let created = match held.left().await?.pop() {
        Some(sandbox) => Ok(sandbox),
        None => {
            let provenance = Provenance { keyed: Some(held.keyed(0)), ..Provenance::default() };
            control.create(&tenant(), CreateRequest { provenance, ..named("keyed") }).await
        }
    };
    match created {
        Ok(sandbox) => {
            let body = json!({ "id": sandbox.id, "number": 0.115763 });
            held.finish(201, &body).await;
            Ok(Answered { status: 201, body: body.to_string() })
        }
        Err(error) => {
            held.free().await;
            Err(error)
        }
    }
}

#[tokio::test]
async fn repeats_get_the_answer_of_the_first_also_at_once() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    engine.delay(Point::BeforeCreate, Duration::from_millis(50));
    let (first, second) = tokio::join!(create(&control, "a"), create(&control, "a"));
    let first = first.unwrap();
    assert_eq!(second.unwrap(), first);
    let reused = create(&control, "b").await.unwrap_err();
    assert_eq!((reused.code(), reused.code().http_status()), (ErrorCode::IdempotencyKeyReused, 422));
    assert_eq!(control.list(&tenant()).await.unwrap().len(), 1);
    // Another tenant has its own keys.
    let other = control.hold_key(&"other".parse().unwrap(), "k".parse().unwrap(), "b".to_owned()).await.unwrap();
    assert!(matches!(other, KeyHold::Held(held) if held.resumes().is_none()));
    // The answer outlives the sandbox.
    control.delete(&tenant(), &"keyed".parse().unwrap()).await.unwrap();
    assert_eq!(create(&control, "a").await.unwrap(), first);
    assert!(control.list(&tenant()).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_failed_create_frees_its_key() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    engine.fail(Point::BeforeCreate, 1);
    create(&control, "a").await.unwrap_err();
    create(&control, "b").await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_key_is_kept_for_a_day() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let first = create(&control, "a").await.unwrap();
    control.delete(&tenant(), &"keyed".parse().unwrap()).await.unwrap();
    tokio::time::sleep(Duration::from_secs(23 * 3600)).await;
    assert_eq!(create(&control, "a").await.unwrap(), first);
    tokio::time::sleep(Duration::from_secs(2 * 3600)).await;
    assert_ne!(create(&control, "b").await.unwrap(), first);
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_blocks_no_other() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    engine.delay(Point::BeforeCreate, Duration::from_millis(100));
    let (first, ()) = tokio::join!(create(&control, "a"), async {
        let waits = create(&control, "a");
        assert!(tokio::time::timeout(Duration::from_millis(10), waits).await.is_err());
    });
    assert_eq!(create(&control, "a").await.unwrap(), first.unwrap());
}

#[derive(Debug, Clone, Copy)]
enum Death {
    Engine(Point),
    Store(Moment),
}

/// A server that dies during a create. True if the create reached that moment.
fn dies(engine: &Arc<FakeEngine>, store: &Arc<HaltingStore>, death: Death) -> bool {
    let server = runtime();
    let died = server.block_on(async {
        let control = start_on(config(), engine, Arc::<HaltingStore>::clone(store)).await;
        let halted = match death {
            Death::Engine(point) => Some(engine.halt(point)),
            Death::Store(moment) => {
                store.halt(Some(moment));
                None
            }
        };
        let reached = async {
            match &halted {
                Some(halted) => halted.notified().await,
                None => store.reached.notified().await,
            }
        };
        tokio::select! {
            () = reached => true,
            _ = create(&control, "a") => false,
        }
    });
    // All its tasks end where they are, as after a SIGKILL.
    server.shutdown_timeout(Duration::from_secs(10));
    engine.heal();
    store.halt(None);
    died
}

/// Repeats the create twice on a new server: there is one sandbox, and one answer.
async fn is_found(control: &Control, what: &str) -> Answered {
    let (first, second) = tokio::join!(create(control, "a"), create(control, "a"));
    let first = first.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(second.unwrap(), first, "{what}");
    let all = control.list(&tenant()).await.unwrap();
    assert_eq!(all.len(), 1, "{what}");
    assert_eq!(all[0].state, SandboxState::Running, "{what}");
    assert!(first.body.contains(all[0].id.as_str()), "{what}");
    first
}

#[test]
fn a_death_at_any_moment_of_a_create_leaves_one_sandbox_after_a_repeat() {
    for death in [
        Death::Engine(Point::Reserve),
        Death::Store(Moment::BeforeInsert),
        Death::Store(Moment::AfterInsert),
        Death::Engine(Point::BeforeCreate),
        Death::Engine(Point::AfterCreate),
        Death::Store(Moment::BeforeUpdate),
        Death::Store(Moment::AfterUpdate),
        Death::Store(Moment::BeforeRecord),
        Death::Store(Moment::AfterRecord),
    ] {
        let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
        assert!(dies(&engine, &store, death), "{death:?} was not reached");
        let answers: Vec<Answered> = (0..2)
            .map(|_| {
                let server = runtime();
                let answer = server.block_on(async {
                    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
                    is_found(&control, &format!("{death:?}")).await
                });
                server.shutdown_timeout(Duration::from_secs(10));
                answer
            })
            .collect();
        assert_eq!(answers[0], answers[1], "{death:?}");
        assert_eq!(engine.ids().len(), 1, "{death:?}");
    }
}

/// Opens a store that an earlier server may just be closing.
async fn open(path: &Path, cluster: Option<&Cluster>) -> Arc<dyn Store> {
    loop {
        let opened = match cluster {
            Some(cluster) => PostgresStore::open(cluster.address(), path).await.map(|store| Arc::new(store) as Arc<dyn Store>),
            None => SqliteStore::open(path.join("control.sqlite")).map(|store| Arc::new(store) as Arc<dyn Store>),
        };
        match opened {
            Err(ControlError::StoreInUse { .. }) => tokio::task::yield_now().await,
            other => return other.unwrap(),
        }
    }
}

#[test]
fn a_death_on_a_real_store_leaves_one_sandbox_after_a_repeat() {
    let cluster = Cluster::start();
    for cluster in [None, Some(&cluster)] {
        for point in [Point::Reserve, Point::BeforeCreate, Point::AfterCreate] {
            let dir = tempfile::tempdir().unwrap();
            let engine = FakeEngine::new();
            let server = runtime();
            server.block_on(async {
                let control = start_on(config(), &engine, open(dir.path(), cluster).await).await;
                let halted = engine.halt(point);
                tokio::select! {
                    () = halted.notified() => {}
                    _ = create(&control, "a") => panic!("{point:?} was not reached"),
                }
            });
            server.shutdown_timeout(Duration::from_secs(10));
            engine.heal();
            let server = runtime();
            server.block_on(async {
                let control = start_on(config(), &engine, open(dir.path(), cluster).await).await;
                is_found(&control, &format!("{point:?}")).await;
                // For the next store of the cluster.
                control.stop(true).await;
                assert_eq!(create_after_removal(dir.path(), cluster, &engine).await, 0);
            });
        }
    }
}

/// A repeat after the sandbox is gone gets the stored answer. Returns the number of sandboxes, and clears the keys.
async fn create_after_removal(path: &Path, cluster: Option<&Cluster>, engine: &Arc<FakeEngine>) -> usize {
    let control = start_on(config(), engine, open(path, cluster).await).await;
    create(&control, "a").await.unwrap();
    let sandboxes = control.list(&tenant()).await.unwrap().len();
    control.stop(false).await;
    let store = open(path, cluster).await;
    let end = jiff::Timestamp::MAX;
    store.remove_expired(end).await.unwrap();
    store.close().await;
    sandboxes
}
