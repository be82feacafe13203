//! The state machine and its surroundings, on an engine without a kernel.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{EngineCall, FakeEngine, Point};
use arenite_control::{Control, ControlError, CreateRequest, Limits, SpecOverlay};
use arenite_engine::HostCapacity;
use arenite_model::{ErrorCode, IdlePolicy, PauseKind, SandboxState};
use support::{config, name, named, start, tenant};

fn creates(engine: &FakeEngine) -> usize {
    let calls = engine.calls();
    calls.iter().filter(|call| matches!(call, EngineCall::Create(_))).count()
}

async fn state(control: &Control, text: &str) -> Option<SandboxState> {
    let found = control.get(&tenant(), &name(text)).await;
    found.ok().map(|sandbox| sandbox.state)
}

fn with(text: &str, spec: SpecOverlay) -> CreateRequest {
    CreateRequest { spec, ..named(text) }
}

#[tokio::test]
async fn a_sandbox_is_made_paused_woken_and_deleted_and_its_name_is_free_again() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let mut changes = control.subscribe();
    let made = control.create(&tenant(), named("demo")).await.unwrap();
    assert_eq!(made.state, SandboxState::Running);
    assert_eq!(made.template.as_deref(), Some("default"));
    assert_eq!(made.spec.image.as_str(), "base");
    assert!(made.stages.iter().any(|(stage, _)| stage == "fake"));
    let taken = control.create(&tenant(), named("demo")).await.unwrap_err();
    assert_eq!(taken.code(), ErrorCode::AlreadyExists);
    // Another tenant has its own names.
    let other = "other".parse().unwrap();
    control.create(&other, named("demo")).await.unwrap();
    assert_eq!(control.list(&tenant()).await.unwrap().len(), 1);

    for _ in 0..2 {
        let paused = control.pause(&tenant(), &name("demo"), PauseKind::Freeze).await.unwrap();
        assert_eq!(paused.state, SandboxState::Paused);
    }
    assert!(!engine.is_running(&made.id));
    let lease = control.lease(&tenant(), &name("demo")).await.unwrap();
    assert_eq!(lease.sandbox.state, SandboxState::Running);
    assert!(engine.is_running(&made.id));
    assert_eq!(control.counters().woken, 1);
    control.resume(&tenant(), &name("demo")).await.unwrap();

    control.delete(&tenant(), &name("demo")).await.unwrap();
    let gone = control.delete(&tenant(), &name("demo")).await.unwrap_err();
    assert_eq!(gone.code(), ErrorCode::NotFound);
    let gone = control.lease(&tenant(), &name("demo")).await.err().unwrap();
    assert!(gone.hint().unwrap().contains("arenite create demo"));
    assert!(control.lease_by_id(&tenant(), &made.id).await.is_err());
    control.create(&tenant(), named("demo")).await.unwrap();

    let mut states = Vec::new();
    while let Ok(change) = changes.try_recv() {
        if change.id == made.id {
            states.push(change.state);
        }
    }
    use SandboxState::*;
    let wanted = [Creating, Running, Paused, Running, Deleting].map(Some);
    assert_eq!(states, [&wanted[..], &[None]].concat());
}

#[tokio::test]
async fn anothers_sandbox_is_not_woken_by_its_id() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let made = control.create(&tenant(), named("demo")).await.unwrap();
    let paused = control.pause(&tenant(), &name("demo"), PauseKind::Freeze).await.unwrap();
    let other = "other".parse().unwrap();
    let refused = control.lease_by_id(&other, &made.id).await.err().unwrap();
    assert_eq!(refused.code(), ErrorCode::NotFound);
    assert_eq!(control.get_by_id(&other, &made.id).await.unwrap_err().code(), ErrorCode::NotFound);
    assert_eq!(control.next_deadline(&other, &made.id), None);
    assert_eq!(control.get_by_id(&tenant(), &made.id).await.unwrap().name, name("demo"));
    let now = control.get(&tenant(), &name("demo")).await.unwrap();
    assert_eq!((now.state, now.last_used_at), (SandboxState::Paused, paused.last_used_at));
    assert!(!engine.is_running(&made.id));
    assert_eq!(control.counters().woken, 0);
    control.lease_by_id(&tenant(), &made.id).await.unwrap();
    assert!(engine.is_running(&made.id));
}

#[tokio::test]
async fn leases_are_counted_while_they_are_held() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    for text in ["one", "two"] {
        control.create(&tenant(), named(text)).await.unwrap();
        for _ in 0..3 {
            control.lease(&tenant(), &name(text)).await.unwrap();
        }
    }
    let held = control.lease(&tenant(), &name("one")).await.unwrap();
    assert_eq!(control.counters().leases, 1);
    drop(held);
    assert_eq!(control.counters().leases, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_default_sandbox_is_made_once_for_all_who_call() {
    let engine = FakeEngine::new();
    engine.delay(Point::BeforeCreate, Duration::from_millis(20));
    let control = start(config(), &engine).await;
    let callers: Vec<_> = (0..100)
        .map(|_| {
            let control = Arc::clone(&control);
            tokio::spawn(async move {
                let lease = control.lease(&tenant(), &name("default")).await.unwrap();
                lease.sandbox.id.clone()
            })
        })
        .collect();
    let mut ids = std::collections::BTreeSet::new();
    for caller in callers {
        ids.insert(caller.await.unwrap());
    }
    assert_eq!((ids.len(), creates(&engine)), (1, 1));
    let spec = engine.spec(ids.first().unwrap()).unwrap();
    assert_eq!((spec.timeout_seconds, spec.idle_timeout_seconds), (None, None));

    // A failure applies to all callers; they don't retry one by one.
    control.delete(&tenant(), &name("default")).await.unwrap();
    engine.fail(Point::BeforeCreate, 1000);
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let control = Arc::clone(&control);
            tokio::spawn(async move { control.lease(&tenant(), &name("default")).await.map(drop) })
        })
        .collect();
    for caller in callers {
        assert_eq!(caller.await.unwrap().unwrap_err().code(), ErrorCode::SandboxFailed);
    }
    // One for all callers that waited when it failed; a machine that is slow to start tasks may need a few.
    assert!(creates(&engine) < 20, "{} creates", creates(&engine));
    engine.heal();
    control.lease(&tenant(), &name("default")).await.unwrap();
    assert_eq!(engine.ids().len(), 1);
}

#[tokio::test]
async fn a_lost_default_is_recreated_and_others_say_why_they_are_gone() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let mut changes = control.subscribe();
    let first = control.lease(&tenant(), &name("default")).await.unwrap();
    let demo = control.create(&tenant(), named("demo")).await.unwrap();
    for id in [&first.sandbox.id, &demo.id] {
        engine.end(id, "its guest was killed");
        while changes.recv().await.unwrap().state != Some(SandboxState::Failed) {}
    }
    let again = control.lease(&tenant(), &name("default")).await.unwrap();
    assert_ne!(again.sandbox.id, first.sandbox.id);
    let gone = control.lease(&tenant(), &name("demo")).await.err().unwrap();
    assert_eq!(gone.code(), ErrorCode::SandboxFailed);
    assert!(gone.to_string().contains("its guest was killed"));
    // Its disk stays until it is deleted.
    assert!(engine.ids().contains(&demo.id));
    control.delete(&tenant(), &name("demo")).await.unwrap();
    assert_eq!(engine.ids(), std::slice::from_ref(&again.sandbox.id));
    assert_eq!(control.counters().ended, 2);
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_former_guest_changes_nothing() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let demo = control.create(&tenant(), named("demo")).await.unwrap();
    // A rollback has replaced it since.
    engine.announce_end(&demo.id);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(control.get(&tenant(), &demo.name).await.unwrap().state, SandboxState::Running);
}

#[tokio::test]
async fn what_failed_is_started_again_or_stays_with_its_disk() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let mut changes = control.subscribe();
    let demo = control.create(&tenant(), named("demo")).await.unwrap();
    assert_eq!(control.start_sandbox(&tenant(), &demo.name).await.unwrap().state, SandboxState::Running);
    engine.end(&demo.id, "its guest was killed");
    while changes.recv().await.unwrap().state != Some(SandboxState::Failed) {}
    let gone = control.lease(&tenant(), &demo.name).await.err().unwrap();
    assert!(gone.hint().unwrap().contains("arenite start demo"));

    engine.fail(Point::Restart, 1);
    control.start_sandbox(&tenant(), &demo.name).await.unwrap_err();
    let failed = control.get(&tenant(), &demo.name).await.unwrap();
    assert_eq!((failed.state, engine.ids()), (SandboxState::Failed, vec![demo.id.clone()]));
    assert!(failed.reason.unwrap().starts_with("it could not be started again: "));

    let tenant_id = tenant();
    let (one, two) = tokio::join!(control.start_sandbox(&tenant_id, &demo.name), control.start_sandbox(&tenant_id, &demo.name));
    for started in [one.unwrap(), two.unwrap()] {
        assert_eq!((started.state, started.id, started.reason), (SandboxState::Running, demo.id.clone(), None));
    }
    let starts = engine.calls().into_iter().filter(|call| matches!(call, EngineCall::Restart(_))).count();
    assert_eq!(starts, 2, "the failed one and one for both");
    drop(control.lease(&tenant(), &demo.name).await.unwrap());

    control.pause(&tenant(), &demo.name, PauseKind::Freeze).await.unwrap();
    assert_eq!(control.start_sandbox(&tenant(), &demo.name).await.unwrap().state, SandboxState::Running);
    control.delete(&tenant(), &demo.name).await.unwrap();
    assert_eq!(control.start_sandbox(&tenant(), &demo.name).await.unwrap_err().code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn a_delete_cancels_a_create_and_leaves_nothing() {
    let engine = FakeEngine::new();
    engine.delay(Point::AfterCreate, Duration::from_millis(50));
    let control = start(config(), &engine).await;
    let mut changes = control.subscribe();
    let creator = {
        let control = Arc::clone(&control);
        tokio::spawn(async move { control.create(&tenant(), named("demo")).await })
    };
    changes.recv().await.unwrap();
    control.delete(&tenant(), &name("demo")).await.unwrap();
    let error = creator.await.unwrap().unwrap_err();
    assert!(matches!(error, ControlError::Cancelled { .. }), "{error}");
    assert!(engine.ids().is_empty());
    assert_eq!(state(&control, "demo").await, None);
    engine.heal();
    control.create(&tenant(), named("demo")).await.unwrap();
}

#[tokio::test]
async fn a_deleted_sandbox_runs_its_hooks_and_a_stuck_one_is_not_waited_for() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    for paused in [false, true] {
        control.create(&tenant(), named("demo")).await.unwrap();
        engine.serve(|_, mut stream| async move {
            let mut request = [0; 1024];
            let read = stream.read(&mut request).await.unwrap();
            assert!(request[..read].starts_with(b"POST /internal/shutdown HTTP/1.1\r\n"));
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
        });
        if paused {
            control.pause(&tenant(), &name("demo"), PauseKind::Freeze).await.unwrap();
        }
        let begun = std::time::Instant::now();
        control.delete(&tenant(), &name("demo")).await.unwrap();
        assert!(begun.elapsed() >= Duration::from_millis(300), "the hooks were not waited for");
    }
    control.create(&tenant(), named("demo")).await.unwrap();
    engine.serve(|_, stream| async move {
        tokio::time::sleep(Duration::from_secs(60)).await;
        drop(stream);
    });
    let begun = std::time::Instant::now();
    control.delete(&tenant(), &name("demo")).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert!(engine.ids().is_empty());
}

#[tokio::test]
async fn a_client_that_leaves_does_not_leave_a_create_half_done() {
    let engine = FakeEngine::new();
    engine.delay(Point::BeforeCreate, Duration::from_millis(20));
    let control = start(config(), &engine).await;
    let owner = tenant();
    for wanted in [name("demo"), name("default")] {
        let mut changes = control.subscribe();
        let create = async {
            match wanted.is_default() {
                true => control.lease(&owner, &wanted).await.map(drop),
                false => control.create(&owner, named(wanted.as_str())).await.map(drop),
            }
        };
        tokio::select! {
            _ = create => panic!("it was to be left"),
            _ = changes.recv() => {}
        }
        let lease = control.lease(&owner, &wanted).await.unwrap();
        assert!(engine.is_running(&lease.sandbox.id));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_that_race_leave_engine_and_names_in_agreement() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let mut tasks = Vec::new();
    for task in 0..16 {
        let control = Arc::clone(&control);
        tasks.push(tokio::spawn(async move {
            for round in 0..40 {
                let (tenant, name) = (tenant(), name(["a", "b"][round % 2]));
                // Refusals are fine here; they don't decide whether the end state is correct.
                match (task + round) % 5 {
                    0 => drop(control.create(&tenant, named(name.as_str())).await),
                    1 => drop(control.delete(&tenant, &name).await),
                    2 => drop(control.pause(&tenant, &name, PauseKind::Freeze).await),
                    3 => drop(control.resume(&tenant, &name).await),
                    _ => drop(control.lease(&tenant, &name).await),
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let left = control.list(&tenant()).await.unwrap();
    let mut ids: Vec<_> = left.iter().map(|sandbox| sandbox.id.clone()).collect();
    ids.sort();
    assert_eq!(engine.ids(), ids);
    for sandbox in left {
        let runs = sandbox.state == SandboxState::Running;
        assert_eq!(engine.is_running(&sandbox.id), runs);
        assert!(runs || sandbox.state == SandboxState::Paused);
        control.delete(&tenant(), &sandbox.name).await.unwrap();
    }
    assert!(engine.ids().is_empty());
}

#[tokio::test]
async fn a_failed_create_leaves_nothing_and_a_failed_delete_is_repeated() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    for point in [Point::Reserve, Point::BeforeCreate, Point::AfterCreate] {
        engine.fail(point, 1);
        let error = control.create(&tenant(), named("demo")).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::SandboxFailed);
        assert_eq!(state(&control, "demo").await, None);
        assert!(engine.ids().is_empty());
    }
    control.create(&tenant(), named("demo")).await.unwrap();
    engine.fail(Point::BeforeDestroy, 1);
    control.delete(&tenant(), &name("demo")).await.unwrap_err();
    assert_eq!(state(&control, "demo").await, Some(SandboxState::Deleting));
    let busy = control.lease(&tenant(), &name("demo")).await.err().unwrap();
    assert_eq!(busy.code(), ErrorCode::Conflict);
    control.delete(&tenant(), &name("demo")).await.unwrap();
    assert!(engine.ids().is_empty());
    assert_eq!(control.counters().creates_failed, 3);
}

#[tokio::test(start_paused = true)]
async fn a_create_or_delete_that_hangs_is_given_up_in_time() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    engine.halt(Point::AfterCreate);
    let error = control.create(&tenant(), named("demo")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Timeout);
    assert!(engine.ids().is_empty(), "what was made is taken back");
    engine.heal();
    control.create(&tenant(), named("demo")).await.unwrap();
    engine.halt(Point::BeforeDestroy);
    let error = control.delete(&tenant(), &name("demo")).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Timeout);
    engine.heal();
    // The reaper completes it.
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(state(&control, "demo").await, None);
    assert!(engine.ids().is_empty());
}

#[tokio::test(start_paused = true)]
async fn admission_refuses_beyond_each_bound_with_a_time_to_retry() {
    let engine = FakeEngine::new();
    engine.delay(Point::BeforeCreate, Duration::from_secs(1));
    let mut config = config();
    config.limits = Limits { max_concurrent_creates: 2, create_queue: 3, max_sandboxes: 7, ..Limits::default() };
    config.tenant_limits.sandboxes = Some(6);
    let control = start(config, &engine).await;
    let mut creators = Vec::new();
    for _ in 0..7 {
        let control = Arc::clone(&control);
        creators.push(tokio::spawn(async move { control.create(&tenant(), CreateRequest::default()).await }));
    }
    let mut refused = Vec::new();
    for creator in creators {
        refused.extend(creator.await.unwrap().err());
    }
    // Two concurrent creates, three in the queue, one too many for it, one too many for the tenant.
    assert_eq!(refused.len(), 2);
    for error in &refused {
        assert_eq!(error.code(), ErrorCode::Exhausted);
        assert!(error.retry_after().is_some());
    }
    assert_eq!(engine.most_creating(), 2);
    assert_eq!(control.counters().creates_refused, 2);

    let ample = HostCapacity {
        memory_available_bytes: 1 << 40,
        memory_total_bytes: 1 << 40,
        disk_available_bytes: 1 << 40,
        disk_total_bytes: 1 << 40,
        descriptors_available: 1000,
        descriptors_total: 1024,
    };
    for (what, capacity) in [
        ("memory", HostCapacity { memory_available_bytes: 513 << 20, ..ample }),
        ("disk", HostCapacity { disk_available_bytes: 1 << 30, ..ample }),
        ("descriptors", HostCapacity { descriptors_available: 150, ..ample }),
    ] {
        // A reading of the host is used for a moment.
        tokio::time::sleep(Duration::from_secs(1)).await;
        engine.set_capacity(capacity);
        let error = control.create(&tenant(), named("more")).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::Exhausted);
        assert!(error.to_string().contains(what), "{error}");
    }
    engine.set_capacity(ample);
    tokio::time::sleep(Duration::from_secs(1)).await;
    control.create(&tenant(), named("sixth")).await.unwrap();
    let error = control.create(&tenant(), named("more")).await.unwrap_err();
    assert!(error.to_string().contains("of this tenant"), "{error}");
    let other = "other".parse().unwrap();
    control.create(&other, named("seventh")).await.unwrap();
    let error = control.create(&other, named("more")).await.unwrap_err();
    assert!(error.to_string().contains("in all"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_caller_that_leaves_the_queue_takes_no_turn_and_frees_its_name() {
    let engine = FakeEngine::new();
    engine.delay(Point::BeforeCreate, Duration::from_secs(5));
    let mut config = config();
    config.limits.max_concurrent_creates = 1;
    let control = start(config, &engine).await;
    let mut changes = control.subscribe();
    let first = {
        let control = Arc::clone(&control);
        tokio::spawn(async move { control.create(&tenant(), named("first")).await })
    };
    changes.recv().await.unwrap();
    let wait = Duration::from_secs(1);
    let left = tokio::time::timeout(wait, control.create(&tenant(), named("second"))).await;
    assert!(left.is_err());
    assert_eq!(control.counters().queued, 0);
    // A delete cancels a queued one at once.
    let (deleted, created) = tokio::join!(
        async {
            tokio::time::sleep(wait).await;
            control.delete(&tenant(), &name("second")).await
        },
        async { control.create(&tenant(), named("second")).await },
    );
    deleted.unwrap();
    assert!(matches!(created, Err(ControlError::Cancelled { .. })));
    assert!(!first.is_finished());
    first.await.unwrap().unwrap();
    assert_eq!(creates(&engine), 1);
}

#[tokio::test(start_paused = true)]
async fn sandboxes_are_reaped_by_life_time_and_by_idleness_and_not_before() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let spec = |timeout, idle, policy| SpecOverlay {
        timeout_seconds: Some(timeout),
        idle_timeout_seconds: Some(idle),
        idle_policy: Some(policy),
        ..SpecOverlay::default()
    };
    use IdlePolicy::{Delete, Pause};
    for (text, spec) in [
        ("short", spec(100, 0, Delete)),
        ("idle", spec(0, 60, Delete)),
        ("sleepy", spec(1000, 60, Pause)),
        ("used", spec(0, 60, Delete)),
        ("default", spec(0, 60, Delete)),
        ("eternal", spec(u64::MAX, u64::MAX, Delete)),
    ] {
        control.create(&tenant(), with(text, spec)).await.unwrap();
    }
    let lease = control.lease(&tenant(), &name("used")).await.unwrap();
    let sleep = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    let at = |text: &'static str| state(&control, text);
    use SandboxState::{Paused, Running};
    sleep(59).await;
    for text in ["short", "idle", "sleepy", "used"] {
        assert_eq!(at(text).await, Some(Running), "{text}");
    }
    sleep(2).await; // 61
    assert_eq!(at("idle").await, None);
    assert_eq!(at("sleepy").await, Some(Paused));
    sleep(38).await; // 99
    assert_eq!(at("short").await, Some(Running));
    sleep(2).await; // 101
    assert_eq!(at("short").await, None);
    // A call wakes it, and its idle time restarts.
    drop(control.lease(&tenant(), &name("sleepy")).await.unwrap());
    sleep(59).await; // 160
    assert_eq!(at("sleepy").await, Some(Running));
    sleep(2).await;
    assert_eq!(at("sleepy").await, Some(Paused));
    assert_eq!(at("used").await, Some(Running), "it has a lease");
    drop(lease);
    sleep(59).await;
    assert_eq!(at("used").await, Some(Running));
    sleep(2).await;
    assert_eq!(at("used").await, None);
    // Lifetime continues while it is paused.
    sleep(1000).await;
    assert_eq!(at("sleepy").await, None);
    assert_eq!(at("default").await, Some(Running));
    assert_eq!(at("eternal").await, Some(Running));
    let counters = control.counters();
    assert_eq!((counters.reaped_timeout, counters.reaped_idle, counters.paused_idle), (2, 2, 2));
    assert_eq!(engine.ids().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn work_that_goes_on_without_a_call_holds_off_the_end_of_an_idle_sandbox() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    for (text, idle_policy) in [("deleted", IdlePolicy::Delete), ("paused", IdlePolicy::Pause), ("silent", IdlePolicy::Delete)] {
        let spec = SpecOverlay { idle_timeout_seconds: Some(60), idle_policy: Some(idle_policy), ..SpecOverlay::default() };
        let id = control.create(&tenant(), with(text, spec)).await.unwrap().id;
        engine.work(&id, Some("a command"));
    }
    let sleep = |seconds| tokio::time::sleep(Duration::from_secs(seconds));
    sleep(300).await;
    for text in ["deleted", "paused"] {
        assert_eq!(state(&control, text).await, Some(SandboxState::Running), "{text}");
        // A call may come at any time.
        drop(control.lease(&tenant(), &name(text)).await.unwrap());
        engine.work(&control.get(&tenant(), &name(text)).await.unwrap().id, None);
    }
    // A guest that can't report its activity doesn't keep its sandbox.
    engine.fail(Point::Activity, 1000);
    sleep(62).await;
    assert_eq!(state(&control, "deleted").await, None);
    assert_eq!(state(&control, "paused").await, Some(SandboxState::Paused));
    assert_eq!(state(&control, "silent").await, None);
}

#[tokio::test(start_paused = true)]
async fn what_failed_is_kept_for_its_time() {
    let engine = FakeEngine::new();
    let mut config = config();
    config.lost_keep = Duration::from_secs(3600);
    let control = start(config, &engine).await;
    let made = control.create(&tenant(), named("demo")).await.unwrap();
    engine.end(&made.id, "gone");
    tokio::time::sleep(Duration::from_secs(3590)).await;
    assert_eq!(state(&control, "demo").await, Some(SandboxState::Failed));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(state(&control, "demo").await, None);
    assert!(engine.ids().is_empty());
    assert_eq!(control.counters().reaped_lost, 1);
}

#[tokio::test]
async fn a_stop_ends_creates_keeps_or_removes_sandboxes_and_closes_the_engine() {
    for remove in [false, true] {
        let engine = FakeEngine::new();
        let control = start(config(), &engine).await;
        control.create(&tenant(), named("kept")).await.unwrap();
        engine.delay(Point::AfterCreate, Duration::from_millis(30));
        let mut changes = control.subscribe();
        let creator = {
            let control = Arc::clone(&control);
            tokio::spawn(async move { control.create(&tenant(), CreateRequest::default()).await })
        };
        changes.recv().await.unwrap();
        control.stop(remove).await;
        let error = creator.await.unwrap().unwrap_err();
        assert!(matches!(error, ControlError::Cancelled { .. }), "{error}");
        assert_eq!(engine.ids().len(), usize::from(!remove));
        assert_eq!(engine.calls().last(), Some(&EngineCall::Close));
        let late = control.create(&tenant(), named("late")).await.unwrap_err();
        assert!(late.retry_after().is_some());
        control.stop(remove).await;
    }
}

#[tokio::test]
async fn a_thousand_are_made_and_deleted_without_a_trace() {
    let dir = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new();
    let mut config = config();
    config.data_dir = dir.path().to_owned();
    let control = Control::start(config.clone(), Arc::<FakeEngine>::clone(&engine)).await.unwrap();
    let mut tasks = Vec::new();
    for task in 0..10 {
        let control = Arc::clone(&control);
        tasks.push(tokio::spawn(async move {
            for round in 0..100 {
                let name = name(&format!("t{task}-{round}"));
                let request = named(name.as_str());
                control.create(&tenant(), request).await.unwrap();
                drop(control.lease(&tenant(), &name).await.unwrap());
                control.delete(&tenant(), &name).await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert!(engine.ids().is_empty());
    assert!(control.list(&tenant()).await.unwrap().is_empty());
    let counters = control.counters();
    assert_eq!((counters.creates_ok, counters.deleted), (1000, 1000));
    assert!(counters.sandboxes.iter().all(|(_, number)| *number == 0));
    control.stop(false).await;
    let again = Control::start(config, Arc::<FakeEngine>::clone(&engine)).await.unwrap();
    assert!(again.list(&tenant()).await.unwrap().is_empty());
}
