//! Servers that die at every moment of a create and a delete, and the recovery of the next one.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{FakeEngine, Point};
use arenite_control::store::Store;
use arenite_control::{Control, ControlError, Sandbox, SpecOverlay};
use arenite_model::{PauseKind, SandboxId, SandboxState};
use support::{HaltingStore, Moment, config, name, named, runtime, start, start_on, tenant};

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

/// A server that has `kept`, and dies during `work`. True if `work` reached that moment.
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
    // All its tasks end where they are, as after a SIGKILL.
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
                _ => drop(control.pause(&tenant(), &name("demo"), PauseKind::Freeze).await),
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
                // A row written as running counts as created, even without an answer to the client.
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
    // Each moment but the pause is part of a create or a delete, updates and the engine's answer of several.
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
    control.pause(&tenant(), &name("frozen"), PauseKind::Freeze).await.unwrap();
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

#[tokio::test]
async fn rows_that_the_store_lost_are_made_again() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let mut request = named("demo");
    request.spec = SpecOverlay { timeout_seconds: Some(3600), ..SpecOverlay::default() };
    let made = control.create(&tenant(), request).await.unwrap();
    control.create(&tenant(), named("frozen")).await.unwrap();
    control.pause(&tenant(), &name("frozen"), PauseKind::Freeze).await.unwrap();
    let other: arenite_model::TenantId = "other".parse().unwrap();
    control.create(&other, named("demo")).await.unwrap();
    control.stop(false).await;
    engine.leak();

    let store = Arc::new(HaltingStore::default());
    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
    assert_eq!(engine.ids().len(), 3, "what was prepared is removed, and nothing else");
    assert_eq!(store.load().await.unwrap().len(), 3);
    let found = control.get(&tenant(), &name("demo")).await.unwrap();
    assert_eq!((found.state, &found.id, &found.spec), (SandboxState::Running, &made.id, &made.spec));
    assert_eq!((&found.origin, found.created_at, found.expires_at), (&made.origin, made.created_at, made.expires_at));
    assert_eq!(found.isolation, made.isolation);
    assert_eq!(control.get(&tenant(), &name("frozen")).await.unwrap().state, SandboxState::Paused);
    assert_eq!(control.list(&other).await.unwrap().len(), 1);
    drop(control.lease(&tenant(), &name("demo")).await.unwrap());
    assert!(control.quarantine().await.is_empty() && control.warnings().is_empty());
}

#[tokio::test]
async fn what_nothing_explains_is_kept_until_it_is_adopted_or_removed() {
    let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
    let [unread, clashing] = ["unread", "clashing"].map(named);
    let unread = control.create(&tenant(), unread).await.unwrap();
    let clashing = control.create(&tenant(), clashing).await.unwrap();
    control.stop(false).await;
    engine.lose_record(&unread.id);
    let strange = engine.put_strange();
    // An older store, in which another has the name.
    store.remove(&clashing.id).await.unwrap();
    let older = Sandbox { id: SandboxId::random(), ..clashing.clone() };
    store.insert(&older).await.unwrap();

    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
    assert_eq!(engine.ids().len(), 3);
    let names: Vec<_> = control.list(&tenant()).await.unwrap().into_iter().map(|s| (s.id, s.state)).collect();
    assert_eq!(names, [(older.id, SandboxState::Lost)]);
    let mut quarantine = control.quarantine().await;
    quarantine.sort_by_key(|item| item.id != unread.id);
    assert_eq!(quarantine.len(), 3);
    assert_eq!((&quarantine[0].name, quarantine[0].remains.has_record), (&Some(name("unread")), false));
    assert!(control.warnings()[0].contains("3 sandboxes"));
    for refused in [
        control.create(&tenant(), named("unread")).await.unwrap_err(),
        control.delete(&tenant(), &name("unread")).await.unwrap_err(),
        control.lease(&tenant(), &name("unread")).await.err().unwrap(),
    ] {
        assert!(matches!(refused, ControlError::Quarantined { .. }), "{refused}");
    }

    let taken = control.adopt_quarantined(&tenant(), &clashing.id, None).await.unwrap_err();
    assert!(matches!(taken, ControlError::AlreadyExists { .. }), "{taken}");
    let adopted = control.adopt_quarantined(&tenant(), &clashing.id, Some(name("rescued"))).await.unwrap();
    assert_eq!((adopted.state, &adopted.spec), (SandboxState::Running, &clashing.spec));
    drop(control.lease(&tenant(), &name("rescued")).await.unwrap());
    let lost = control.adopt_quarantined(&tenant(), &unread.id, None).await.unwrap();
    assert_eq!((lost.state, &lost.name), (SandboxState::Lost, &name("unread")));
    engine.fail(Point::BeforeDestroy, 1);
    control.remove_quarantined(&strange).await.unwrap_err();
    assert_eq!(control.quarantine().await.len(), 1, "it is tried again");
    control.remove_quarantined(&strange).await.unwrap();
    assert!(!engine.ids().contains(&strange) && control.quarantine().await.is_empty());
    assert!(matches!(control.remove_quarantined(&strange).await, Err(ControlError::NotQuarantined { .. })));
    assert_eq!(store.load().await.unwrap().len(), 3);
    control.stop(false).await;

    let control = start_on(config(), &engine, Arc::new(HaltingStore::default())).await;
    assert!(control.get(&tenant(), &name("rescued")).await.is_ok(), "its record has its new name");
}

#[tokio::test]
async fn an_engine_that_can_not_look_changes_nothing() {
    let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
    let made = control.create(&tenant(), named("demo")).await.unwrap();
    control.stop(false).await;
    engine.fail(Point::Recover, 1);
    let failed = Control::start_with(config(), Arc::<FakeEngine>::clone(&engine), Arc::<HaltingStore>::clone(&store)).await;
    assert!(failed.is_err());
    assert!(engine.is_running(&made.id));
    assert_eq!(store.load().await.unwrap()[0].state, SandboxState::Running);
}
