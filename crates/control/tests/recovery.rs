//! Servers that die at every moment of a create and a delete, and what the next one makes of it.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{FakeEngine, Point};
use arenite_control::store::Store;
use arenite_control::{Control, SpecOverlay};
use arenite_model::SandboxState;
use support::{HaltingStore, Moment, config, name, named, start_on, tenant};
use tokio::runtime::{Builder, Runtime};

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[derive(Debug, Clone, Copy)]
enum Death {
    Engine(Point),
    Store(Moment),
}

const DEATHS: [Death; 12] = [
    Death::Engine(Point::Reserve),
    Death::Engine(Point::BeforeCreate),
    Death::Engine(Point::AfterCreate),
    Death::Engine(Point::BeforeDestroy),
    Death::Engine(Point::AfterDestroy),
    Death::Engine(Point::Pause),
    Death::Store(Moment::BeforeInsert),
    Death::Store(Moment::AfterInsert),
    Death::Store(Moment::BeforeUpdate),
    Death::Store(Moment::AfterUpdate),
    Death::Store(Moment::BeforeRemove),
    Death::Store(Moment::AfterRemove),
];

/// A server that has `kept`, and dies on its way through `work`. True when the moment was on that way.
fn dies(engine: &Arc<FakeEngine>, store: &Arc<HaltingStore>, death: Death, work: impl AsyncFnOnce(Arc<Control>)) -> bool {
    let server = runtime();
    let died = server.block_on(async {
        let control = start_on(config(), engine, Arc::<HaltingStore>::clone(store)).await;
        control.create(&tenant(), named("kept")).await.unwrap();
        control.create(&tenant(), named("demo")).await.unwrap();
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
            () = work(control) => false,
        }
    });
    // All its tasks end where they are, as by a SIGKILL.
    server.shutdown_timeout(Duration::from_secs(10));
    engine.heal();
    store.halt(None);
    died
}

#[test]
fn a_death_at_any_moment_leaks_nothing_and_loses_nothing_acknowledged() {
    let mut reached = 0;
    for death in DEATHS {
        for which in 0..3 {
            let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
            let died = dies(&engine, &store, death, async |control| match which {
                0 => drop(control.create(&tenant(), named("new")).await),
                1 => drop(control.delete(&tenant(), &name("demo")).await),
                _ => drop(control.pause(&tenant(), &name("demo")).await),
            });
            reached += usize::from(died);
            let leaked = engine.leak();

            runtime().block_on(async {
                let what = format!("{death:?} of {which}");
                let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
                let left = control.list(&tenant()).await.unwrap();
                let mut ids: Vec<_> = left.iter().map(|sandbox| sandbox.id.clone()).collect();
                ids.sort();
                assert_eq!(engine.ids(), ids, "{what}");
                assert!(!ids.contains(&leaked), "{what}");
                assert_eq!(store.load().await.unwrap().len(), left.len(), "{what}");
                let names: Vec<&str> = left.iter().map(|s| s.name.as_str()).collect();
                assert!(names.contains(&"kept"), "{what}");
                // Written as running is as good as made, also when nobody heard of it.
                let made = matches!(death, Death::Store(Moment::AfterUpdate)) || !died;
                assert_eq!(names.contains(&"new"), which == 0 && made, "{what}");
                if which != 1 {
                    assert!(names.contains(&"demo"), "{what}");
                }
                for sandbox in &left {
                    let runs = engine.is_running(&sandbox.id);
                    assert_eq!(sandbox.state == SandboxState::Running, runs, "{what}");
                    control.lease(&tenant(), &sandbox.name).await.unwrap();
                    control.delete(&tenant(), &sandbox.name).await.unwrap();
                }
                for text in ["new", "demo"] {
                    control.create(&tenant(), named(text)).await.unwrap();
                }
                assert_eq!(engine.ids().len(), 2, "{what}");
            });
        }
    }
    // Each moment but the pause is on the way of a create or a delete, updates and the engine's answer on several.
    assert!(reached >= 15, "only {reached} deaths happened");
}

#[tokio::test]
async fn a_restart_finds_sandboxes_as_they_are_and_a_reboot_says_they_are_lost() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new();
    let mut config = config();
    config.data_dir = dir.path().to_owned();
    let start = || Control::start(config.clone(), Arc::<FakeEngine>::clone(&engine));
    let control = start().await.unwrap();
    let mut request = named("demo");
    request.spec = SpecOverlay { timeout_seconds: Some(3600), ..SpecOverlay::default() };
    let made = control.create(&tenant(), request).await.unwrap();
    control.lease(&tenant(), &name("default")).await.unwrap();
    control.create(&tenant(), named("frozen")).await.unwrap();
    control.pause(&tenant(), &name("frozen")).await.unwrap();
    control.stop(false).await;

    let control = start().await.unwrap();
    let found = control.get(&tenant(), &name("demo")).await.unwrap();
    assert_eq!(found.state, SandboxState::Running);
    assert_eq!((&found.id, &found.spec), (&made.id, &made.spec));
    let age = |a: jiff::Timestamp, b| a.duration_since(b).as_micros();
    assert_eq!(age(found.created_at, made.created_at), 0);
    assert_eq!(age(found.expires_at.unwrap(), made.expires_at.unwrap()), 0);
    let frozen = control.get(&tenant(), &name("frozen")).await.unwrap();
    assert_eq!(frozen.state, SandboxState::Paused);
    drop(control.lease_by_id(&tenant(), &made.id).await.unwrap());
    control.stop(false).await;

    engine.reboot();
    let control = start().await.unwrap();
    for sandbox in control.list(&tenant()).await.unwrap() {
        assert_eq!(sandbox.state, SandboxState::Lost);
        assert_eq!(sandbox.reason.as_deref(), Some("the host was restarted"));
    }
    assert!(control.lease(&tenant(), &name("demo")).await.is_err());
    assert_eq!(engine.ids().len(), 3, "disks are kept");
    control.lease(&tenant(), &name("default")).await.unwrap();
    control.delete(&tenant(), &name("demo")).await.unwrap();
    control.delete(&tenant(), &name("frozen")).await.unwrap();
    assert_eq!(engine.ids().len(), 1);
}

#[tokio::test]
async fn what_can_not_be_removed_at_start_is_tried_again() {
    let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
    control.create(&tenant(), named("demo")).await.unwrap();
    engine.fail(Point::BeforeDestroy, 1);
    control.delete(&tenant(), &name("demo")).await.unwrap_err();
    control.stop(false).await;

    engine.fail(Point::BeforeDestroy, 1);
    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
    let stuck = control.get(&tenant(), &name("demo")).await.unwrap();
    assert_eq!(stuck.state, SandboxState::Deleting);
    control.delete(&tenant(), &name("demo")).await.unwrap();
    assert!(store.load().await.unwrap().is_empty());
}
