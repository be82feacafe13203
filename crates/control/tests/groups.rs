//! Groups: they end with their lease, also after a restart, and race with creates.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{FakeEngine, Point};
use arenite_control::store::MemoryStore;
use arenite_control::{Control, ControlError, CreateRequest, Provenance};
use arenite_model::{ErrorCode, GroupName, PauseKind};
use support::{config, named, start, start_on, tenant};

fn group() -> GroupName {
    "g".parse().unwrap()
}

fn in_group(name: &str) -> CreateRequest {
    CreateRequest { provenance: Provenance { group: Some(group()), ..Provenance::default() }, ..named(name) }
}

async fn names(control: &Control) -> Vec<String> {
    control.list(&tenant()).await.unwrap().into_iter().map(|sandbox| sandbox.name.to_string()).collect()
}

const TTL: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_group_ends_when_nobody_renews_its_lease() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    assert_eq!(control.create(&tenant(), in_group("a")).await.unwrap_err().code(), ErrorCode::NotFound);
    control.create_group(&tenant(), group(), TTL).await.unwrap();
    control.create_group(&"other".parse().unwrap(), group(), TTL * 100).await.unwrap();
    control.create(&"other".parse().unwrap(), in_group("a")).await.unwrap();
    control.create(&tenant(), named("alone")).await.unwrap();
    for name in ["a", "b"] {
        control.create(&tenant(), in_group(name)).await.unwrap();
    }
    control.pause(&tenant(), &"b".parse().unwrap(), PauseKind::Freeze).await.unwrap();
    for _ in 0..5 {
        tokio::time::sleep(TTL / 2).await;
        control.renew_group(&tenant(), &group(), None).await.unwrap();
    }
    assert_eq!(names(&control).await.len(), 3);
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    assert_eq!(names(&control).await, ["alone"]);
    assert!(matches!(control.group(&tenant(), &group()), Err(ControlError::NoGroup { .. })));
    assert_eq!(control.list(&"other".parse().unwrap()).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_group_of_a_dead_owner_ends_after_a_restart_too() {
    let (engine, store) = (FakeEngine::new(), Arc::new(MemoryStore::default()));
    let before = start_on(config(), &engine, Arc::<MemoryStore>::clone(&store)).await;
    before.create_group(&tenant(), group(), TTL).await.unwrap();
    before.create(&tenant(), in_group("a")).await.unwrap();
    tokio::time::sleep(TTL / 2).await;
    before.stop(false).await;
    store.reopen();
    let control = start_on(config(), &engine, Arc::<MemoryStore>::clone(&store)).await;
    // Its owner could not renew it in the meantime, so it has its whole lease.
    tokio::time::sleep(TTL * 3 / 4).await;
    assert_eq!(names(&control).await, ["a"]);
    tokio::time::sleep(TTL).await;
    assert!(names(&control).await.is_empty() && control.groups(&tenant()).is_empty());
    assert!(engine.ids().is_empty());
    control.stop(false).await;
    store.reopen();
    let control = start_on(config(), &engine, store).await;
    assert!(control.groups(&tenant()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_group_that_was_ending_ends_after_a_restart() {
    let (engine, store) = (FakeEngine::new(), Arc::new(MemoryStore::default()));
    let before = start_on(config(), &engine, Arc::<MemoryStore>::clone(&store)).await;
    before.create_group(&tenant(), group(), TTL * 1000).await.unwrap();
    before.create(&tenant(), in_group("a")).await.unwrap();
    before.close_group(&tenant(), &group()).await.unwrap();
    let refused = before.create(&tenant(), in_group("b")).await.unwrap_err();
    assert!(matches!(refused, ControlError::GroupEnding { .. }));
    assert!(matches!(before.renew_group(&tenant(), &group(), None).await, Err(ControlError::GroupEnding { .. })));
    before.stop(false).await;
    store.reopen();
    let control = start_on(config(), &engine, store).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(names(&control).await.is_empty() && control.groups(&tenant()).is_empty());
}

#[tokio::test]
async fn a_create_that_races_with_the_end_leaves_no_sandbox() {
    for delay in [Point::Reserve, Point::BeforeCreate, Point::AfterCreate] {
        let engine = FakeEngine::new();
        let control = start(config(), &engine).await;
        control.create_group(&tenant(), group(), TTL).await.unwrap();
        engine.delay(delay, Duration::from_millis(50));
        let tenant = tenant();
        let creates = async { tokio::join!(control.create(&tenant, in_group("a")), control.create(&tenant, in_group("b"))) };
        let end = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            control.close_group(&tenant, &group()).await.unwrap();
            control.end_group(&tenant, &group()).await.unwrap();
        };
        // They are created and deleted, or refused.
        let _ = tokio::join!(creates, end);
        assert!(names(&control).await.is_empty(), "{delay:?}");
        assert!(engine.ids().is_empty(), "{delay:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sandbox_that_can_t_be_deleted_keeps_its_group_until_it_can() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    control.create_group(&tenant(), group(), TTL).await.unwrap();
    control.create(&tenant(), in_group("a")).await.unwrap();
    engine.fail(Point::BeforeDestroy, 1);
    tokio::time::sleep(TTL + Duration::from_secs(1)).await;
    assert!(control.group(&tenant(), &group()).unwrap().is_ending);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(names(&control).await.is_empty() && control.groups(&tenant()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_end_that_failed_is_tried_again_soon() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    control.create_group(&tenant(), group(), TTL * 1000).await.unwrap();
    control.create(&tenant(), in_group("a")).await.unwrap();
    engine.fail(Point::BeforeDestroy, 1);
    control.close_group(&tenant(), &group()).await.unwrap();
    control.end_group(&tenant(), &group()).await.unwrap_err();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(control.groups(&tenant()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_end_of_a_lease_is_stored_before_the_first_sandbox_goes() {
    let (engine, store) = (FakeEngine::new(), Arc::new(MemoryStore::default()));
    let before = start_on(config(), &engine, Arc::<MemoryStore>::clone(&store)).await;
    before.create_group(&tenant(), group(), TTL).await.unwrap();
    before.create(&tenant(), in_group("a")).await.unwrap();
    // The server dies while it deletes.
    engine.halt(Point::BeforeDestroy).notified().await;
    engine.heal();
    let control = start_on(config(), &engine, store).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(names(&control).await.is_empty() && control.groups(&tenant()).is_empty());
}
