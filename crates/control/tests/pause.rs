//! Pauses to the disk: what they give back, what wakes them once, and what a crash between their steps leaves.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{EngineCall, FakeEngine, Point};
use arenite_control::tenants::{Quota, Reserved, TenantLimits};
use arenite_control::{
    Control, ControlError, CreateRequest, DeadlineAction, DeadlineReason, EventKind, Sandbox, SandboxChange, SpecOverlay,
};
use arenite_engine::{Engine, FoundState, HostCapacity};
use arenite_model::{ErrorCode, IdlePolicy, PauseKind, Resources, SandboxState};
use support::home::{Home, on_both_stores};
use support::{HaltingStore, Moment, config, name, named, runtime, start, start_on, tenant};

on_both_stores! {
    memory_and_processors_are_given_back_and_reserved_again,
}

async fn get(control: &Control, text: &str) -> Sandbox {
    control.get(&tenant(), &name(text)).await.unwrap()
}

async fn pause(control: &Control, text: &str, kind: PauseKind) -> Result<Sandbox, ControlError> {
    control.pause(&tenant(), &name(text), kind).await
}

fn restarts(engine: &FakeEngine) -> usize {
    engine.calls().into_iter().filter(|call| matches!(call, EngineCall::Restart(_))).count()
}

fn with(text: &str, spec: SpecOverlay) -> CreateRequest {
    CreateRequest { spec, ..named(text) }
}

/// What one sandbox reserves while it is paused to its disk.
fn disk() -> Reserved {
    Reserved { sandboxes: 1, disk_bytes: Resources::default().disk_bytes, ..Reserved::default() }
}

async fn memory_and_processors_are_given_back_and_reserved_again(home: Home) {
    let engine = FakeEngine::new();
    let mut config = home.config();
    let memory_bytes = Resources::default().memory_bytes;
    config.tenant_limits = TenantLimits { memory_bytes: Some(memory_bytes), ..TenantLimits::default() };
    let control = home.start_with(config.clone(), &engine).await;
    control.create(&tenant(), named("one")).await.unwrap();
    pause(&control, "one", PauseKind::Freeze).await.unwrap();
    assert!(control.reserved(&tenant()).memory_bytes == memory_bytes, "frozen processes keep their memory");
    pause(&control, "one", PauseKind::Disk).await.unwrap();
    assert_eq!(control.reserved(&tenant()), disk());
    control.create(&tenant(), named("two")).await.unwrap();
    // Each way to wake it is refused, and it stays as it is.
    for _ in 0..2 {
        let refused = control.resume(&tenant(), &name("one")).await.unwrap_err();
        assert!(matches!(refused, ControlError::Quota(exceeded) if exceeded.quota == Quota::MemoryBytes), "{refused}");
        let refused = control.lease(&tenant(), &name("one")).await.err().unwrap();
        assert!(matches!(refused, ControlError::Quota(_)), "{refused}");
    }
    assert_eq!((get(&control, "one").await.pause(), restarts(&engine)), (Some(PauseKind::Disk), 0));
    // The rows of the store count the same.
    control.stop(false).await;
    let control = home.start_with(config, &engine).await;
    assert_eq!(get(&control, "one").await.pause(), Some(PauseKind::Disk));
    control.resume(&tenant(), &name("one")).await.unwrap_err();
    control.delete(&tenant(), &name("two")).await.unwrap();
    // A start that fails gives back what it reserved.
    engine.fail(Point::Restart, 1);
    control.resume(&tenant(), &name("one")).await.unwrap_err();
    assert_eq!(control.reserved(&tenant()), disk());
    let two = control.create(&tenant(), named("two")).await.unwrap();
    control.delete(&tenant(), &two.name).await.unwrap();
    drop(control.lease(&tenant(), &name("one")).await.unwrap());
    assert_eq!(get(&control, "one").await.pause_kind, None);
    assert!(matches!(control.create(&tenant(), named("two")).await, Err(ControlError::Quota(_))));
    // While it is deleted, it reserves no more than before.
    pause(&control, "one", PauseKind::Disk).await.unwrap();
    engine.fail(Point::BeforeDestroy, 1);
    control.delete(&tenant(), &name("one")).await.unwrap_err();
    assert_eq!((get(&control, "one").await.state, control.reserved(&tenant())), (SandboxState::Deleting, disk()));
    control.delete(&tenant(), &name("one")).await.unwrap();
    control.stop(false).await;
}

/// Where a server is killed.
#[derive(Debug, Clone, Copy)]
enum Death {
    Engine(Point),
    Store(Moment),
}

#[test]
fn a_kill_at_any_step_leaves_it_paused_or_running() {
    let deaths = [
        Death::Engine(Point::Stop),
        Death::Engine(Point::AfterStop),
        Death::Engine(Point::Restart),
        Death::Store(Moment::BeforeUpdate),
        Death::Store(Moment::AfterUpdate),
    ];
    let mut reached = 0;
    for death in deaths {
        for wakes in [false, true] {
            let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
            let server = runtime();
            reached += usize::from(server.block_on(async {
                let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
                control.create(&tenant(), named("one")).await.unwrap();
                if wakes {
                    pause(&control, "one", PauseKind::Disk).await.unwrap();
                }
                let halted = match death {
                    Death::Engine(point) => engine.halt(point),
                    Death::Store(moment) => {
                        store.halt(Some(moment));
                        Arc::default()
                    }
                };
                let work = async {
                    match wakes {
                        true => drop(control.lease(&tenant(), &name("one")).await),
                        false => drop(pause(&control, "one", PauseKind::Disk).await),
                    }
                };
                tokio::select! {
                    () = halted.notified() => true,
                    () = store.reached.notified() => true,
                    () = work => false,
                }
            }));
            // All its tasks end where they are, as after a SIGKILL.
            server.shutdown_timeout(Duration::from_secs(10));
            engine.heal();
            store.halt(None);
            let id = engine.ids().remove(0);
            runtime().block_on(async {
                let what = format!("{death:?}, wakes: {wakes}");
                let found = engine.found(&id).unwrap();
                let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
                let now = get(&control, "one").await;
                let expected = match found {
                    FoundState::Stopped => (SandboxState::Paused, Some(PauseKind::Disk)),
                    FoundState::Running => (SandboxState::Running, None),
                    other => panic!("{what}: {other:?}"),
                };
                assert_eq!((now.state, now.pause_kind), expected, "{what}");
                control.start_sandbox(&tenant(), &name("one")).await.unwrap();
                drop(control.lease(&tenant(), &name("one")).await.unwrap());
                assert!(engine.is_running(&id), "{what}");
                // A restart of the host loses what runs, and nothing that was paused to its disk.
                pause(&control, "one", PauseKind::Disk).await.unwrap();
                control.stop(false).await;
                engine.reboot();
                let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
                assert_eq!(get(&control, "one").await.pause(), Some(PauseKind::Disk), "{what}");
                drop(control.lease(&tenant(), &name("one")).await.unwrap());
            });
        }
    }
    assert_eq!(reached, 7, "the steps are of a pause or of a start, and both change the row");
}

#[tokio::test(start_paused = true)]
async fn calls_at_once_start_it_once_and_share_a_failure() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    control.create(&tenant(), named("one")).await.unwrap();
    pause(&control, "one", PauseKind::Disk).await.unwrap();
    engine.delay(Point::Restart, Duration::from_secs(2));
    let call = || {
        let control = Arc::clone(&control);
        tokio::spawn(async move { control.lease(&tenant(), &name("one")).await.map(drop) })
    };
    let calls: Vec<_> = (0..40).map(|_| call()).collect();
    for call in calls {
        call.await.unwrap().unwrap();
    }
    assert_eq!((restarts(&engine), control.counters().woken), (1, 1));
    pause(&control, "one", PauseKind::Disk).await.unwrap();
    engine.fail(Point::Restart, 1);
    let calls: Vec<_> = (0..40).map(|_| call()).collect();
    for call in calls {
        call.await.unwrap().unwrap_err();
    }
    assert_eq!(restarts(&engine), 2, "who waited for a start gets its failure");
    assert_eq!(get(&control, "one").await.pause(), Some(PauseKind::Disk));
    drop(control.lease(&tenant(), &name("one")).await.unwrap());
    assert_eq!(restarts(&engine), 3);
    assert_eq!(control.in_progress().leases, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_fails_changes_nothing_and_the_end_of_its_processes_is_no_death() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let id = control.create(&tenant(), named("one")).await.unwrap().id;
    engine.fail(Point::Stop, 1);
    pause(&control, "one", PauseKind::Disk).await.unwrap_err();
    drop(control.lease(&tenant(), &name("one")).await.unwrap());
    pause(&control, "one", PauseKind::Freeze).await.unwrap();
    engine.fail(Point::Stop, 1);
    pause(&control, "one", PauseKind::Disk).await.unwrap_err();
    assert_eq!((get(&control, "one").await.pause(), engine.found(&id)), (Some(PauseKind::Freeze), Some(FoundState::Paused)));
    let mut events = control.subscribe();
    let since = get(&control, "one").await.state_since;
    tokio::time::advance(Duration::from_secs(5)).await;
    pause(&control, "one", PauseKind::Disk).await.unwrap();
    let event = events.recv().await.unwrap();
    assert_eq!((event.kind, event.pause_kind), (EventKind::Paused, Some(PauseKind::Disk)));
    assert_eq!(get(&control, "one").await.state_since, since, "it has been paused all the time");
    // It is not frozen for being paused again.
    assert_eq!(pause(&control, "one", PauseKind::Freeze).await.unwrap().pause(), Some(PauseKind::Disk));
    assert_eq!(engine.usage(&id).await.unwrap().memory_bytes, 0);
    // The engine tells late that the processes have ended.
    let stopped = engine.found(&id);
    engine.announce_end(&id);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((get(&control, "one").await.pause(), engine.found(&id)), (Some(PauseKind::Disk), stopped));
}

#[tokio::test(start_paused = true)]
async fn idle_and_frozen_sandboxes_are_paused_to_their_disks_in_time() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let idle = |policy, after| SpecOverlay {
        timeout_seconds: Some(500),
        idle_timeout_seconds: Some(60),
        idle_policy: Some(policy),
        disk_after_seconds: Some(after),
        ..SpecOverlay::default()
    };
    for (text, spec) in
        [("disk", idle(IdlePolicy::Disk, 0)), ("later", idle(IdlePolicy::Freeze, 100)), ("never", idle(IdlePolicy::Pause, 0))]
    {
        control.create(&tenant(), with(text, spec)).await.unwrap();
    }
    let sleep = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let at = async |text| get(&control, text).await.pause();
    let deadline = async |text| control.next_deadline(&tenant(), &get(&control, text).await.id).unwrap();
    let next = deadline("disk").await;
    assert_eq!((next.reason, next.action), (DeadlineReason::Idle, DeadlineAction::Disk));
    sleep(61).await;
    assert_eq!(
        (at("disk").await, at("later").await, at("never").await),
        (Some(PauseKind::Disk), Some(PauseKind::Freeze), Some(PauseKind::Freeze))
    );
    let next = deadline("later").await;
    assert_eq!((next.reason, next.action), (DeadlineReason::Paused, DeadlineAction::Disk));
    sleep(98).await; // 159
    assert_eq!(at("later").await, Some(PauseKind::Freeze));
    sleep(3).await;
    assert_eq!((at("later").await, at("never").await), (Some(PauseKind::Disk), Some(PauseKind::Freeze)));
    assert_eq!((control.counters().paused_idle, control.counters().paused_to_disk), (3, 1));
    // A call wakes it, and its idle time restarts.
    drop(control.lease(&tenant(), &name("disk")).await.unwrap());
    sleep(61).await;
    assert_eq!(at("disk").await, Some(PauseKind::Disk));
    // Their life ends all the same.
    sleep(280).await;
    assert!(control.list(&tenant()).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn when_the_host_is_short_of_memory_the_longest_frozen_are_paused_to_their_disks() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    for text in ["first", "second", "running", "refuses"] {
        let allowed = SpecOverlay { disk_under_pressure: Some(text != "refuses"), ..SpecOverlay::default() };
        control.create(&tenant(), with(text, allowed)).await.unwrap();
    }
    let sleep = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    for text in ["refuses", "first", "second"] {
        sleep(1).await;
        pause(&control, text, PauseKind::Freeze).await.unwrap();
    }
    let at = async |text| get(&control, text).await.pause();
    sleep(60).await;
    assert_eq!(at("first").await, Some(PauseKind::Freeze), "there is enough memory");
    let capacity = |available| HostCapacity {
        memory_available_bytes: available,
        memory_total_bytes: 64 << 30,
        disk_available_bytes: 1 << 40,
        disk_total_bytes: 1 << 40,
        ..HostCapacity::default()
    };
    // A try that fails takes no turn of the others, and is repeated.
    engine.fail(Point::Stop, 1);
    engine.set_capacity(capacity(1));
    sleep(10).await;
    assert_eq!((at("first").await, at("second").await), (Some(PauseKind::Disk), Some(PauseKind::Disk)));
    assert_eq!((at("refuses").await, get(&control, "running").await.state), (Some(PauseKind::Freeze), SandboxState::Running));
    assert_eq!(control.counters().paused_to_disk, 2);
}

#[tokio::test]
async fn an_engine_without_this_kind_refuses_it_and_what_leads_to_it() {
    let engine = FakeEngine::new();
    engine.refuse_stops();
    let control = start(config(), &engine).await;
    control.create(&tenant(), named("one")).await.unwrap();
    let refused = pause(&control, "one", PauseKind::Disk).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unsupported);
    assert_eq!(get(&control, "one").await.state, SandboxState::Running);
    let by_policy = SpecOverlay { idle_policy: Some(IdlePolicy::Disk), ..SpecOverlay::default() };
    let by_time = SpecOverlay { disk_after_seconds: Some(60), ..SpecOverlay::default() };
    let by_pressure = SpecOverlay { disk_under_pressure: Some(true), ..SpecOverlay::default() };
    for spec in [by_policy, by_time, by_pressure] {
        let refused = control.create(&tenant(), with("two", spec)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Unsupported, "{refused}");
    }
    let change = SandboxChange { disk_after_seconds: Some(60), ..SandboxChange::default() };
    let caller = arenite_control::tenants::Principal::server(tenant());
    assert_eq!(control.change(&caller, &name("one"), change).await.unwrap_err().code(), ErrorCode::Unsupported);
    pause(&control, "one", PauseKind::Freeze).await.unwrap();
}
