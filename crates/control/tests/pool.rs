//! Pooled sandboxes: which creates get them, which don't, and how they end.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{EngineCall, FakeEngine, Point};
use arenite_control::store::Store;
use arenite_control::{Control, CreateRequest, ResourcesOverlay, SpecOverlay};
use arenite_engine::HostCapacity;
use arenite_model::{SandboxId, SandboxState};
use support::{HaltingStore, Moment, config, name, named, runtime, start, start_on, tenant};

async fn with_pool(engine: &Arc<FakeEngine>, number: usize) -> Arc<Control> {
    with_pool_on(engine, number, Arc::new(HaltingStore::default())).await
}

async fn with_pool_on(engine: &Arc<FakeEngine>, number: usize, store: Arc<dyn Store>) -> Arc<Control> {
    let mut config = config();
    config.pools = vec![("base".to_owned(), number)];
    let control = start_on(config, engine, store).await;
    filled(&control, number).await;
    control
}

async fn filled(control: &Control, number: usize) {
    for _ in 0..500 {
        if control.counters().pooled == number as u64 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the pool has {}, not {number}", control.counters().pooled);
}

fn prepared(engine: &FakeEngine) -> Vec<SandboxId> {
    engine.calls().into_iter().filter_map(|call| if let EngineCall::Prepare(id) = call { Some(id) } else { None }).collect()
}

#[tokio::test]
async fn a_create_takes_a_sandbox_that_is_there_and_another_follows() {
    let engine = FakeEngine::new();
    let control = with_pool(&engine, 2).await;
    let ready = prepared(&engine);
    let spec = SpecOverlay {
        env: Some(BTreeMap::from([("KEY".to_owned(), "value".to_owned())])),
        hostname: Some("box".to_owned()),
        args: Some(vec!["serve".to_owned()]),
        timeout_seconds: Some(600),
        ..Default::default()
    };
    let made = control.create(&tenant(), CreateRequest { spec, ..named("mine") }).await.unwrap();
    assert_eq!(made.id, ready[0], "the one that waited longest");
    let told = engine.spec(&made.id).unwrap();
    assert_eq!((told.env["KEY"].as_str(), told.hostname.as_deref(), told.args.len()), ("value", Some("box"), 1));
    assert!(made.expires_at.is_some() && made.stages.iter().any(|(stage, _)| stage == "adopt"));
    assert_eq!(control.counters().creates_from_pool, 1);
    filled(&control, 2).await;
    control.delete(&tenant(), &name("mine")).await.unwrap();
    assert!(!engine.ids().contains(&made.id));
}

#[tokio::test]
async fn other_resources_or_images_get_a_sandbox_of_their_own() {
    let engine = FakeEngine::new();
    let control = with_pool(&engine, 1).await;
    let small = ResourcesOverlay { memory_bytes: Some(256 << 20), ..Default::default() };
    for (text, spec) in [
        ("small", SpecOverlay { resources: small, ..Default::default() }),
        ("other", SpecOverlay { image: Some("other".parse().unwrap()), ..Default::default() }),
        ("closed", SpecOverlay { network: Some(arenite_model::NetworkMode::None), ..Default::default() }),
    ] {
        let made = control.create(&tenant(), CreateRequest { spec, ..named(text) }).await.unwrap();
        assert!(!prepared(&engine).contains(&made.id), "{text}");
    }
    assert_eq!((control.counters().creates_from_pool, control.counters().pooled), (0, 1));
}

#[tokio::test]
async fn one_that_has_ended_or_fails_costs_nobody_a_create() {
    let engine = FakeEngine::new();
    let control = with_pool(&engine, 1).await;
    let dead = prepared(&engine)[0].clone();
    engine.end(&dead, "test");
    for _ in 0..500 {
        if !engine.ids().contains(&dead) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    filled(&control, 1).await;
    engine.fail(Point::Adopt, 1);
    let made = control.create(&tenant(), named("mine")).await.unwrap();
    assert!(engine.is_running(&made.id) && engine.calls().contains(&EngineCall::Create(made.id.clone())));
    assert_eq!(control.counters().creates_from_pool, 0);
}

/// Creates in quick succession are counted against one reading of the host.
#[tokio::test]
async fn creates_are_refused_only_by_a_new_reading_of_the_host() {
    let engine = FakeEngine::new();
    let config = config();
    let memory_available_bytes = config.limits.memory_reserve_bytes + 2 * config.limits.memory_estimate_bytes;
    let disk = HostCapacity { disk_available_bytes: 1 << 40, disk_total_bytes: 1 << 40, ..HostCapacity::default() };
    engine.set_capacity(HostCapacity { memory_available_bytes, memory_total_bytes: 1 << 40, ..disk });
    let control = start(config, &engine).await;
    for number in 0..10 {
        control.create(&tenant(), named(&format!("quick-{number}"))).await.unwrap();
    }
}

#[test]
fn pools_end_with_the_server_and_do_not_outlive_a_crash() {
    let engine = FakeEngine::new();
    let crashed = runtime();
    crashed.block_on(async {
        with_pool(&engine, 2).await.stop(false).await;
        assert!(engine.ids().is_empty(), "nobody has used them");
        with_pool(&engine, 2).await;
    });
    // Nothing of the old control runs any more.
    crashed.shutdown_timeout(Duration::from_secs(10));
    runtime().block_on(start(config(), &engine));
    assert!(engine.ids().is_empty(), "in no row, so they are leftovers");
}

/// A claim's row is written once, before the engine assigns the sandbox, and says that it runs.
#[test]
fn a_death_in_a_claim_leaves_nothing_and_an_answered_claim_survives() {
    for halted in [Some(Moment::BeforeInsert), Some(Moment::AfterInsert), None] {
        let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
        let crashed = runtime();
        let answered = crashed.block_on(async {
            let control = with_pool_on(&engine, 2, Arc::<HaltingStore>::clone(&store)).await;
            let answered = control.create(&tenant(), named("answered")).await.unwrap();
            let in_engine = halted.is_none().then(|| engine.halt(Point::Adopt));
            store.halt(halted);
            let reached = async {
                match &in_engine {
                    Some(point) => point.notified().await,
                    None => store.reached.notified().await,
                }
            };
            let tenant = tenant();
            tokio::select! {
                () = reached => {}
                made = control.create(&tenant, named("unanswered")) => panic!("{halted:?}: {made:?}"),
            }
            let row = store.load().await.unwrap().into_iter().find(|row| row.name == name("unanswered"));
            assert_eq!(row.map(|row| row.state), (halted != Some(Moment::BeforeInsert)).then_some(SandboxState::Running));
            answered
        });
        crashed.shutdown_timeout(Duration::from_secs(10));
        engine.heal();
        store.halt(None);
        runtime().block_on(async {
            let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
            let left = control.list(&tenant()).await.unwrap();
            assert_eq!(left.len(), 1, "{halted:?}: {left:?}");
            assert_eq!((&left[0].id, left[0].state), (&answered.id, SandboxState::Running));
            assert_eq!(left[0].isolation, answered.isolation);
            assert_eq!(engine.ids(), std::slice::from_ref(&answered.id), "{halted:?}");
            assert_eq!(store.load().await.unwrap().len(), 1);
        });
    }
}

#[tokio::test]
async fn the_row_of_a_claim_that_fails_says_again_that_it_is_being_created() {
    let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
    let control = with_pool_on(&engine, 1, Arc::<HaltingStore>::clone(&store)).await;
    engine.fail(Point::Adopt, 1);
    let created = engine.halt(Point::AfterCreate);
    let tenant = tenant();
    tokio::select! {
        () = created.notified() => {}
        made = control.create(&tenant, named("mine")) => panic!("{made:?}"),
    }
    assert_eq!(store.load().await.unwrap()[0].state, SandboxState::Creating);
}
