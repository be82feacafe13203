//! Changes of labels and times, and why sandboxes ended.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{FakeEngine, Point};
use arenite_control::store::{MemoryStore, Store};
use arenite_control::tenants::{Principal, Quota};
use arenite_control::{
    ChildBudget, Control, ControlError, CreateRequest, EventKind, Provenance, Sandbox, SandboxChange, SpecOverlay, TimeoutChange,
};
use arenite_model::{Death, DeathReason, ErrorCode, IdlePolicy, PauseKind, SandboxState};
use jiff::{SignedDuration, Timestamp};
use support::home::{Home, on_both_stores};
use support::{HaltingStore, Moment, config, name, named, start, start_on, tenant};

on_both_stores! {
    a_change_outlives_the_server_and_a_lost_store,
    the_longest_life_time_of_a_tenant_holds_for_creates_and_changes,
    a_death_outlives_the_server,
}

fn owner() -> Principal {
    Principal::server(tenant())
}

fn labels(pairs: &[(&str, Option<&str>)]) -> SandboxChange {
    let labels = pairs.iter().map(|(key, value)| ((*key).to_owned(), value.map(str::to_owned))).collect();
    SandboxChange { labels, ..SandboxChange::default() }
}

fn timeout(timeout: TimeoutChange) -> SandboxChange {
    SandboxChange { timeout: Some(timeout), ..SandboxChange::default() }
}

async fn change(control: &Control, text: &str, change: SandboxChange) -> Result<Sandbox, ControlError> {
    control.change(&owner(), &name(text), change).await
}

fn limited(text: &str, seconds: u64) -> CreateRequest {
    CreateRequest { spec: SpecOverlay { timeout_seconds: Some(seconds), ..SpecOverlay::default() }, ..named(text) }
}

fn life(sandbox: &Sandbox) -> Option<SignedDuration> {
    sandbox.expires_at.map(|end| end.duration_since(sandbox.created_at))
}

async fn get(control: &Control, text: &str) -> Option<Sandbox> {
    control.get(&tenant(), &name(text)).await.ok()
}

async fn a_change_outlives_the_server_and_a_lost_store(home: Home) {
    let engine = FakeEngine::new();
    let control = home.start_with(home.config(), &engine).await;
    let spec = SpecOverlay {
        labels: Some([("team".to_owned(), "a".to_owned()), ("old".to_owned(), "x".to_owned())].into()),
        ..SpecOverlay::default()
    };
    let created = control.create(&tenant(), CreateRequest { spec, ..named("one") }).await.unwrap();
    assert_eq!(created.revision, 1);
    let changed = SandboxChange {
        timeout: Some(TimeoutChange::Lifetime(3600)),
        idle_timeout_seconds: Some(60),
        idle_policy: Some(IdlePolicy::Pause),
        ..labels(&[("team", Some("b")), ("old", None), ("absent", None)])
    };
    let changed = change(&control, "one", changed).await.unwrap();
    assert_eq!((changed.revision, life(&changed)), (2, Some(SignedDuration::from_hours(1))));
    assert_eq!(changed.spec.labels, [("team".to_owned(), "b".to_owned())].into());
    assert_eq!((changed.spec.timeout_seconds, changed.spec.idle_timeout_seconds), (Some(3600), Some(60)));
    control.stop(false).await;

    let same = |found: &Sandbox| {
        assert_eq!((&found.spec, found.expires_at, found.revision), (&changed.spec, changed.expires_at, 2), "{found:?}");
    };
    let control = home.start_with(home.config(), &engine).await;
    same(&get(&control, "one").await.unwrap());
    control.stop(false).await;
    // Only the engine's records are left.
    let control = start_on(config(), &engine, Arc::new(MemoryStore::default())).await;
    same(&get(&control, "one").await.unwrap());
}

#[tokio::test]
async fn an_unnecessary_change_is_none_and_a_changed_version_is_refused() {
    let control = start(config(), &FakeEngine::new()).await;
    let first = control.create(&tenant(), named("one")).await.unwrap();
    let mut events = control.subscribe();
    let same = change(&control, "one", labels(&[("absent", None)])).await.unwrap();
    assert_eq!((same.revision, same.version()), (1, first.version()));
    let same = change(&control, "one", timeout(TimeoutChange::Extend(60))).await.unwrap();
    assert_eq!((same.revision, same.expires_at), (1, None), "an unlimited lifetime has no end to extend");
    assert!(events.try_recv().is_err());

    let for_version = |version: &str| SandboxChange { versions: Some(vec![version.to_owned()]), ..labels(&[("a", Some("1"))]) };
    let second = change(&control, "one", for_version(&first.version())).await.unwrap();
    assert_eq!(events.try_recv().unwrap().kind, EventKind::Changed);
    let refused = change(&control, "one", for_version(&first.version())).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::PreconditionFailed);
    assert!(refused.to_string().contains(&second.version()), "{refused}");
    // Another sandbox with its name has other versions.
    control.delete(&tenant(), &name("one")).await.unwrap();
    control.create(&tenant(), named("one")).await.unwrap();
    assert!(change(&control, "one", for_version(&first.version())).await.is_err());
}

#[tokio::test]
async fn labels_are_checked_as_at_a_create() {
    let control = start(config(), &FakeEngine::new()).await;
    control.create(&tenant(), named("one")).await.unwrap();
    let many: Vec<String> = (0..65).map(|number| number.to_string()).collect();
    let many: Vec<_> = many.iter().map(|key| (key.as_str(), Some(""))).collect();
    let long = "x".repeat(1025);
    for bad in [labels(&many), labels(&[("", Some("x"))]), labels(&[("k", Some(&long))])] {
        let refused = change(&control, "one", bad).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest, "{refused}");
    }
    change(&control, "one", labels(&many[1..])).await.unwrap();
    let refused = change(&control, "one", labels(&many[..1])).await.unwrap_err();
    assert!(refused.to_string().contains("at most 64"), "{refused}");
    assert_eq!(get(&control, "one").await.unwrap().revision, 2);
}

#[tokio::test(start_paused = true)]
async fn extensions_at_once_all_count() {
    let control = start(config(), &FakeEngine::new()).await;
    control.create(&tenant(), limited("one", 100)).await.unwrap();
    let mut events = control.subscribe();
    let mut extensions = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let control = Arc::clone(&control);
        extensions.spawn(async move { change(&control, "one", timeout(TimeoutChange::Extend(10))).await.unwrap() });
    }
    let mut ends: Vec<_> = extensions.join_all().await.iter().map(|extended| life(extended).unwrap().as_secs()).collect();
    ends.sort_unstable();
    assert_eq!(ends, (1..=20).map(|count| 100 + 10 * count).collect::<Vec<_>>());
    assert_eq!(events.try_recv().unwrap().kind, EventKind::Extended);
    tokio::time::sleep(Duration::from_secs(299)).await;
    assert!(get(&control, "one").await.is_some());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(get(&control, "one").await.is_none());
}

/// Extensions shortly before, at and after the end: each is refused, or the sandbox lives on.
#[tokio::test(start_paused = true)]
async fn an_extension_that_races_the_reaper_is_refused_or_counts() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    let mut tries = tokio::task::JoinSet::new();
    for number in 0..60_u64 {
        let text = format!("s{number}");
        let created = control.create(&tenant(), limited(&text, 10)).await.unwrap();
        // What the reaper has begun takes its time.
        engine.delay(Point::BeforeDestroy, Duration::from_millis(number % 3));
        let control = Arc::clone(&control);
        tries.spawn(async move {
            let left = created.expires_at.unwrap().duration_since(created.created_at).unsigned_abs();
            tokio::time::sleep(left - Duration::from_micros(3000) + Duration::from_micros(100 * number)).await;
            let extended = change(&control, &text, timeout(TimeoutChange::Extend(100))).await;
            tokio::time::sleep(Duration::from_secs(50)).await;
            let found = get(&control, &text).await;
            match extended {
                Ok(extended) => {
                    assert_eq!(found.expect("it was extended").expires_at, extended.expires_at);
                    true
                }
                Err(error) => {
                    assert!(matches!(error.code(), ErrorCode::NotFound | ErrorCode::Conflict), "{error}");
                    assert!(found.is_none(), "{error}");
                    false
                }
            }
        });
    }
    let extended = tries.join_all().await.into_iter().filter(|extended| *extended).count();
    assert!((1..60).contains(&extended), "both happened: {extended}");
}

#[tokio::test(start_paused = true)]
async fn a_paused_or_dead_sandbox_is_changed_and_not_woken() {
    let engine = FakeEngine::new();
    let control = start(config(), &engine).await;
    for text in ["paused", "dead"] {
        control.create(&tenant(), limited(text, 100)).await.unwrap();
    }
    control.pause(&tenant(), &name("paused"), PauseKind::Freeze).await.unwrap();
    let dead = get(&control, "dead").await.unwrap();
    engine.end(&dead.id, "gone");
    tokio::time::sleep(Duration::from_millis(10)).await;
    for (text, state) in [("paused", SandboxState::Paused), ("dead", SandboxState::Failed)] {
        let changed = SandboxChange { timeout: Some(TimeoutChange::Extend(50)), ..labels(&[("k", Some("v"))]) };
        let changed = change(&control, text, changed).await.unwrap();
        assert_eq!((changed.state, life(&changed)), (state, Some(SignedDuration::from_secs(150))));
        assert!(!engine.is_running(&changed.id));
    }
    tokio::time::sleep(Duration::from_secs(130)).await;
    assert_eq!(get(&control, "paused").await.unwrap().state, SandboxState::Paused);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(get(&control, "paused").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn ends_move_both_ways_and_never_into_the_past() {
    let control = start(config(), &FakeEngine::new()).await;
    let created = control.create(&tenant(), limited("one", 100)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(50)).await;
    for past in [TimeoutChange::Lifetime(50), TimeoutChange::FromNow(0), TimeoutChange::Until(Timestamp::UNIX_EPOCH)] {
        let refused = change(&control, "one", timeout(past)).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::InvalidRequest, "{refused}");
    }
    let until = created.created_at + SignedDuration::from_millis(70_500);
    let changed = change(&control, "one", timeout(TimeoutChange::Until(until))).await.unwrap();
    assert_eq!((changed.expires_at, changed.spec.timeout_seconds), (Some(until), Some(71)));
    let changed = change(&control, "one", timeout(TimeoutChange::FromNow(40))).await.unwrap();
    let left = changed.expires_at.unwrap().duration_since(created.created_at);
    assert!((89..=91).contains(&left.as_secs()), "{left}");
    let changed = change(&control, "one", timeout(TimeoutChange::Lifetime(0))).await.unwrap();
    assert_eq!((changed.expires_at, changed.spec.timeout_seconds), (None, None));
    let changed = change(&control, "one", timeout(TimeoutChange::Lifetime(u64::MAX))).await.unwrap();
    assert_eq!(changed.expires_at, Some(Timestamp::MAX));
    change(&control, "one", timeout(TimeoutChange::Lifetime(60))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(get(&control, "one").await.is_none(), "the reaper learned of the earlier end");
}

#[tokio::test(start_paused = true)]
async fn a_change_of_times_starts_the_idle_time_again() {
    let control = start(config(), &FakeEngine::new()).await;
    control.create(&tenant(), named("one")).await.unwrap();
    let idle = |seconds| SandboxChange { idle_timeout_seconds: Some(seconds), ..SandboxChange::default() };
    tokio::time::sleep(Duration::from_secs(100)).await;
    change(&control, "one", idle(60)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(50)).await;
    change(&control, "one", labels(&[("k", Some("v"))])).await.unwrap();
    change(&control, "one", timeout(TimeoutChange::Extend(60))).await.unwrap();
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(get(&control, "one").await.is_some());
    change(&control, "one", labels(&[("k", None)])).await.unwrap();
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert!(get(&control, "one").await.is_none(), "a change of labels is no use");
}

async fn the_longest_life_time_of_a_tenant_holds_for_creates_and_changes(home: Home) {
    let control = home.start_with(home.config(), &FakeEngine::new()).await;
    let acme: arenite_model::TenantId = "acme".parse().unwrap();
    let tenants = control.tenants().unwrap();
    tenants.create(acme.clone()).await.unwrap();
    control.create(&acme, limited("before", 500)).await.unwrap();
    let limit = async |limit| tenants.set_limits(&acme, &[(Quota::MaxTimeoutSeconds, limit)].into()).await.unwrap();
    limit(Some(100)).await;

    let refused = control.create(&acme, limited("one", 101)).await.unwrap_err();
    assert_eq!((refused.code(), refused.retry_after()), (ErrorCode::QuotaExceeded, None));
    assert!(refused.to_string().contains("100") && refused.to_string().contains("101"), "{refused}");
    assert!(!control.has_sandboxes(&acme) || control.list(&acme).await.unwrap().len() == 1, "nothing is left of it");
    for (request, wanted) in
        [(limited("one", 100), 100), (named("two"), 100), (limited("three", 0), 100), (limited("four", 9), 9)]
    {
        let created = control.create(&acme, request).await.unwrap();
        assert_eq!(life(&created), Some(SignedDuration::from_secs(wanted)), "{}", created.name);
    }
    let caller = Principal::server(acme.clone());
    let change = async |text: &str, to| control.change(&caller, &name(text), timeout(to)).await;
    for beyond in [TimeoutChange::Lifetime(101), TimeoutChange::Extend(92), TimeoutChange::Until(Timestamp::MAX)] {
        let refused = change("four", beyond).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::QuotaExceeded, "{beyond:?}: {refused}");
    }
    for (to, wanted) in [(TimeoutChange::Extend(91), 100), (TimeoutChange::Lifetime(50), 50), (TimeoutChange::Lifetime(0), 100)] {
        assert_eq!(life(&change("four", to).await.unwrap()), Some(SignedDuration::from_secs(wanted)), "{to:?}");
    }
    // It keeps what it had, and may get less.
    assert!(change("before", TimeoutChange::Extend(1)).await.is_err());
    assert_eq!(life(&change("before", TimeoutChange::Lifetime(400)).await.unwrap()), Some(SignedDuration::from_secs(400)));
    assert_eq!(life(&change("before", TimeoutChange::Lifetime(0)).await.unwrap()), Some(SignedDuration::from_secs(400)));
    limit(None).await;
    assert_eq!(life(&change("before", TimeoutChange::Lifetime(0)).await.unwrap()), None);
}

#[tokio::test]
async fn a_bound_key_sees_new_labels_and_cannot_leave_its_bounds() {
    let control = start(config(), &FakeEngine::new()).await;
    let spec = SpecOverlay { labels: Some([("team".to_owned(), "a".to_owned())].into()), ..SpecOverlay::default() };
    control.create(&tenant(), CreateRequest { spec, ..named("one") }).await.unwrap();
    control.create(&tenant(), named("two")).await.unwrap();
    let bound = |text: &str| Principal { bound: vec![text.parse().unwrap()], ..owner() };
    let (a, b) = (bound("team=a"), bound("team=b"));
    let by = async |caller: &Principal, text: &str, to| control.change(caller, &name(text), to).await;
    // Not out of its bounds, and nothing into them.
    for to in [labels(&[("team", Some("b"))]), labels(&[("team", None)])] {
        let refused = by(&a, "one", to).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Forbidden, "{refused}");
    }
    for (caller, text) in [(&a, "two"), (&b, "one"), (&bound("other"), "one")] {
        let refused = by(caller, text, labels(&[("team", Some("a"))])).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::NotFound, "{refused}");
    }
    let changed = by(&a, "one", labels(&[("stage", Some("2"))])).await.unwrap();
    assert_eq!(changed.spec.labels.len(), 2);
    // Bound by its name, it keeps its bounds whatever the labels are.
    by(&bound("one"), "one", labels(&[("team", Some("b"))])).await.unwrap();
    assert_eq!(by(&a, "one", labels(&[("stage", None)])).await.unwrap_err().code(), ErrorCode::NotFound);
    by(&b, "one", labels(&[("stage", None)])).await.unwrap();
}

#[tokio::test]
async fn an_agent_inside_gives_its_children_no_more_than_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let config = arenite_control::ControlConfig::new(dir.path().to_owned(), "base".parse().unwrap());
    let control = start(config, &FakeEngine::new()).await;
    let child_budget =
        ChildBudget { sandboxes: 2, cpu_millis: 9000, memory_bytes: 1 << 40, depth: 1, lifetime_seconds: Some(100) };
    let provenance = Provenance { child_budget: Some(child_budget), ..Provenance::default() };
    let parent = control.create(&tenant(), CreateRequest { provenance, ..named("parent") }).await.unwrap();
    let request = CreateRequest { parent: Some(parent.id.clone()), ..limited("child", 50) };
    control.create(&tenant(), request).await.unwrap();
    let agent = Principal { inside: Some(parent.id.clone()), ..owner() };
    let by_agent = async |text: &str, to| control.change(&agent, &name(text), timeout(to)).await;
    for beyond in [TimeoutChange::Extend(51), TimeoutChange::Lifetime(0)] {
        assert_eq!(by_agent("child", beyond).await.unwrap_err().code(), ErrorCode::Forbidden);
    }
    assert_eq!(life(&by_agent("child", TimeoutChange::Extend(50)).await.unwrap()), Some(SignedDuration::from_secs(100)));
    assert_eq!(by_agent("parent", TimeoutChange::Lifetime(9)).await.unwrap_err().code(), ErrorCode::NotFound);
    // The owner of both is not bound by it.
    change(&control, "child", timeout(TimeoutChange::Extend(500))).await.unwrap();

    let mut events = control.subscribe();
    control.delete(&tenant(), &parent.name).await.unwrap();
    let mut reasons = Vec::new();
    while let Ok(event) = events.try_recv() {
        if event.kind == EventKind::Deleted {
            reasons.push((event.name.to_string(), event.died.unwrap().reason));
        }
    }
    let wanted = [("child", DeathReason::ParentEnded), ("parent", DeathReason::Deleted)];
    assert_eq!(reasons, wanted.map(|(text, reason)| (text.to_owned(), reason)));
}

#[tokio::test]
async fn a_change_that_cannot_be_stored_is_none() {
    let (engine, store) = (FakeEngine::new(), Arc::new(MemoryStore::default()));
    let control = start_on(config(), &engine, Arc::<MemoryStore>::clone(&store)).await;
    control.create(&tenant(), limited("one", 100)).await.unwrap();
    store.close().await;
    assert!(change(&control, "one", timeout(TimeoutChange::Extend(50))).await.is_err());
    assert_eq!(life(&get(&control, "one").await.unwrap()), Some(SignedDuration::from_secs(100)));
    store.reopen();
    // The engine's copy is written again by the next start.
    engine.fail(Point::UpdateRow, 1);
    let changed = change(&control, "one", timeout(TimeoutChange::Extend(50))).await.unwrap();
    assert_eq!((changed.revision, life(&changed)), (2, Some(SignedDuration::from_secs(150))));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_killed_between_row_and_record_has_changed_the_sandbox() {
    let (engine, store) = (FakeEngine::new(), Arc::new(HaltingStore::default()));
    let control = start_on(config(), &engine, Arc::<HaltingStore>::clone(&store)).await;
    control.create(&tenant(), named("one")).await.unwrap();
    store.halt(Some(Moment::AfterUpdate));
    let halted = Arc::clone(&control);
    tokio::spawn(async move { change(&halted, "one", labels(&[("k", Some("v"))])).await });
    store.reached.notified().await;
    store.halt(None);
    let control = start_on(config(), &engine, store).await;
    let found = get(&control, "one").await.unwrap();
    assert_eq!((found.revision, found.spec.labels.len()), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn every_end_has_its_reason() {
    let engine = FakeEngine::new();
    let mut settings = config();
    settings.lost_keep = Duration::from_secs(1000);
    let control = start(settings, &engine).await;
    let group: arenite_model::GroupName = "g".parse().unwrap();
    control.create_group(&tenant(), group.clone(), Duration::from_secs(20)).await.unwrap();
    let grouped = CreateRequest { provenance: Provenance { group: Some(group), ..Provenance::default() }, ..named("grouped") };
    let idle = SpecOverlay { idle_timeout_seconds: Some(10), ..SpecOverlay::default() };
    for request in
        [limited("expired", 10), CreateRequest { spec: idle, ..named("idle") }, grouped, named("deleted"), named("oom")]
    {
        control.create(&tenant(), request).await.unwrap();
    }
    let mut events = control.subscribe();
    control.delete(&tenant(), &name("deleted")).await.unwrap();
    let of_memory = get(&control, "oom").await.unwrap();
    engine.end_by(&of_memory.id, Death { signal: Some(9), ..Death::new(DeathReason::Oom) });
    tokio::time::sleep(Duration::from_secs(30)).await;
    let died = get(&control, "oom").await.unwrap().died.unwrap();
    assert_eq!((died.reason, died.signal, died.exit_status), (DeathReason::Oom, Some(9), None));
    control.start_sandbox(&tenant(), &name("oom")).await.unwrap();
    let started = get(&control, "oom").await.unwrap();
    assert_eq!((started.died, started.reason), (None, None));
    // A sandbox that has died keeps its reason.
    engine.end_by(&of_memory.id, Death { exit_status: Some(3), ..Death::new(DeathReason::Exit) });
    tokio::time::sleep(Duration::from_secs(1)).await;
    control.delete(&tenant(), &name("oom")).await.unwrap();
    let mut reasons = Vec::new();
    while let Ok(event) = events.try_recv() {
        match event.kind {
            EventKind::Deleted | EventKind::Died => {
                let died = event.died.expect("each end has a reason");
                assert!(!died.message.is_empty() && died.at <= event.at);
                reasons.push((event.name.to_string(), event.kind, died.reason));
            }
            _ => {}
        }
    }
    for (text, kind, reason) in [
        ("deleted", EventKind::Deleted, DeathReason::Deleted),
        ("expired", EventKind::Deleted, DeathReason::Expired),
        ("idle", EventKind::Deleted, DeathReason::Idle),
        ("grouped", EventKind::Deleted, DeathReason::GroupEnded),
        ("oom", EventKind::Died, DeathReason::Oom),
        ("oom", EventKind::Died, DeathReason::Exit),
        ("oom", EventKind::Deleted, DeathReason::Exit),
    ] {
        assert!(reasons.contains(&(text.to_owned(), kind, reason)), "{text} {reason:?}: {reasons:?}");
    }
    assert_eq!(reasons.len(), 7, "{reasons:?}");
}

async fn a_death_outlives_the_server(home: Home) {
    let engine = FakeEngine::new();
    let control = home.start_with(home.config(), &engine).await;
    for text in ["killed", "running"] {
        control.create(&tenant(), named(text)).await.unwrap();
    }
    let killed = get(&control, "killed").await.unwrap();
    let mut events = control.subscribe();
    engine.end_by(&killed.id, Death { signal: Some(9), ..Death::new(DeathReason::Killed) });
    while events.recv().await.unwrap().kind != EventKind::Died {}
    let died = get(&control, "killed").await.unwrap().died;
    control.stop(false).await;
    engine.reboot();
    let control = home.start_with(home.config(), &engine).await;
    assert_eq!(get(&control, "killed").await.unwrap().died, died);
    let lost = get(&control, "running").await.unwrap();
    assert_eq!((lost.state, lost.died.unwrap().reason), (SandboxState::Lost, DeathReason::HostLost));
}
