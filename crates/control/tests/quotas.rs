//! Quotas of tenants: who gets the last place, what each limit refuses, and what gives back.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{EngineCall, FakeEngine, Point};
use arenite_control::store::Store;
use arenite_control::tenants::{Quota, QuotaExceeded, Reserved, TenantLimits};
use arenite_control::{Control, ControlError, CreateRequest, ResourcesOverlay, SpecOverlay};
use arenite_model::{ErrorCode, Resources, SandboxState, TenantId};
use support::home::{Home, on_both_stores};
use support::{name, named};

on_both_stores! {
    a_hundred_creates_race_for_the_last_place,
    each_quota_refuses_and_gives_back,
    a_sandbox_that_died_needs_room_to_start_again,
    a_dead_sandbox_reserves_no_more_while_it_is_deleted,
    a_claim_from_a_pool_reserves_and_a_refused_one_stays_there,
    limits_hold_over_a_restart_of_the_server,
}

fn acme() -> TenantId {
    "acme".parse().unwrap()
}

fn exceeded(error: &ControlError) -> QuotaExceeded {
    let ControlError::Quota(exceeded) = error else { panic!("{error}") };
    *exceeded
}

/// A server with the tenant acme.
async fn with_tenant(home: &Home, engine: &Arc<FakeEngine>) -> Arc<Control> {
    let mut config = home.config();
    config.limits.max_concurrent_creates = 64;
    let control = home.start_with(config, engine).await;
    control.tenants().unwrap().create(acme()).await.unwrap();
    control
}

async fn limit(control: &Control, quota: Quota, limit: Option<u64>) {
    control.tenants().unwrap().set_limits(&acme(), &[(quota, limit)].into()).await.unwrap();
}

/// What one sandbox reserves unless its request says something else.
fn one() -> Reserved {
    let Resources { cpu_millis, memory_bytes, disk_bytes, .. } = Resources::default();
    Reserved { sandboxes: 1, cpu_millis: cpu_millis.into(), memory_bytes, disk_bytes, ..Reserved::default() }
}

fn larger(quota: Quota, factor: u64) -> CreateRequest {
    let default = Resources::default();
    let mut resources = ResourcesOverlay::default();
    match quota {
        Quota::CpuMillis => resources.cpu_millis = Some(default.cpu_millis * factor as u32),
        Quota::MemoryBytes => resources.memory_bytes = Some(default.memory_bytes * factor),
        Quota::DiskBytes => resources.disk_bytes = Some(default.disk_bytes * factor),
        _ => {}
    }
    CreateRequest { spec: SpecOverlay { resources, ..SpecOverlay::default() }, ..CreateRequest::default() }
}

async fn a_hundred_creates_race_for_the_last_place(home: Home) {
    let engine = FakeEngine::new();
    let control = with_tenant(&home, &engine).await;
    engine.delay(Point::BeforeCreate, Duration::from_millis(50));
    for (quota, limit_of_one, fit) in
        [(Quota::Sandboxes, 1, 1), (Quota::MemoryBytes, one().memory_bytes, 3), (Quota::DiskBytes, one().disk_bytes, 2)]
    {
        limit(&control, quota, Some(fit * limit_of_one)).await;
        let creates: Vec<_> = (0..100)
            .map(|n| {
                let control = Arc::clone(&control);
                tokio::spawn(async move { control.create(&acme(), named(&format!("n{n}"))).await })
            })
            .collect();
        let mut made = Vec::new();
        for create in creates {
            match create.await.unwrap() {
                Ok(sandbox) => made.push(sandbox),
                Err(error) => {
                    assert_eq!((exceeded(&error).quota, error.code()), (quota, ErrorCode::Exhausted));
                    assert!(error.retry_after().is_some());
                }
            }
        }
        assert_eq!((made.len() as u64, control.reserved(&acme()).get(quota)), (fit, Some(fit * limit_of_one)));
        assert_eq!(engine.ids().len(), made.len(), "nothing is left of refused creates");
        for sandbox in made {
            control.delete(&acme(), &sandbox.name).await.unwrap();
        }
        limit(&control, quota, None).await;
    }
    assert_eq!(control.creates_of(&acme()), 0);
    control.stop(false).await;
}

async fn each_quota_refuses_and_gives_back(home: Home) {
    let engine = FakeEngine::new();
    let control = with_tenant(&home, &engine).await;
    for quota in Quota::ALL {
        // Sandboxes take nothing of the others.
        let Some(of_one) = one().get(quota).filter(|of_one| *of_one > 0) else { continue };
        limit(&control, quota, Some(2 * of_one)).await;
        for each in ["a", "b"] {
            control.create(&acme(), named(each)).await.unwrap();
        }
        let refused = control.create(&acme(), named("c")).await.unwrap_err();
        let details = QuotaExceeded { quota, limit: 2 * of_one, used: 2 * of_one, requested: of_one };
        assert_eq!((exceeded(&refused), refused.code()), (details, ErrorCode::Exhausted));
        assert!(refused.retry_after().is_some() && refused.hint().is_some());
        // Another tenant, also one with the same limit, has its own.
        control.create(&TenantId::default_tenant(), named("c")).await.unwrap();
        control.delete(&TenantId::default_tenant(), &name("c")).await.unwrap();

        control.delete(&acme(), &name("a")).await.unwrap();
        engine.fail(Point::BeforeCreate, 1);
        let failed = control.create(&acme(), named("c")).await.unwrap_err();
        assert!(!matches!(failed, ControlError::Quota(_)), "{failed}");
        control.create(&acme(), named("c")).await.unwrap();
        assert!(matches!(control.create(&acme(), named("d")).await, Err(ControlError::Quota(_))));
        for each in ["b", "c"] {
            control.delete(&acme(), &name(each)).await.unwrap();
        }

        let alone = if quota == Quota::Sandboxes { 0 } else { 2 * of_one };
        limit(&control, quota, Some(alone)).await;
        let never = control.create(&acme(), larger(quota, 3)).await.unwrap_err();
        assert!(exceeded(&never).is_permanent(), "{never}");
        assert_eq!((never.code(), never.code().http_status(), never.retry_after()), (ErrorCode::QuotaExceeded, 403, None));
        limit(&control, quota, None).await;
        assert_eq!(control.reserved(&acme()), Reserved::default());
    }

    limit(&control, Quota::ConcurrentCreates, Some(2)).await;
    let halted = engine.halt(Point::BeforeCreate);
    let creates: Vec<_> = ["a", "b"]
        .map(|each| {
            let control = Arc::clone(&control);
            tokio::spawn(async move { control.create(&acme(), named(each)).await })
        })
        .into();
    while control.creates_of(&acme()) < 2 {
        halted.notified().await;
    }
    let refused = control.create(&acme(), named("c")).await.unwrap_err();
    let details = QuotaExceeded { quota: Quota::ConcurrentCreates, limit: 2, used: 2, requested: 1 };
    assert_eq!((exceeded(&refused), refused.code()), (details, ErrorCode::Exhausted));
    drop(creates);
    limit(&control, Quota::ConcurrentCreates, None).await;

    limit(&control, Quota::RequestsPerSecond, Some(3)).await;
    let admitted = || (0..10).filter(|_| control.admit_request(&acme()).is_ok()).count();
    assert_eq!(admitted(), 3);
    let refused = control.admit_request(&acme()).unwrap_err();
    assert_eq!((exceeded(&refused).quota, refused.retry_after()), (Quota::RequestsPerSecond, Some(Duration::from_secs(1))));
    assert!(control.admit_request(&TenantId::default_tenant()).is_ok());
    tokio::time::sleep(Duration::from_millis(700)).await;
    assert_eq!(admitted(), 2);
}

async fn a_sandbox_that_died_needs_room_to_start_again(home: Home) {
    let engine = FakeEngine::new();
    let control = with_tenant(&home, &engine).await;
    limit(&control, Quota::MemoryBytes, Some(one().memory_bytes)).await;
    let dead = control.create(&acme(), named("dead")).await.unwrap();
    let mut changes = control.subscribe();
    engine.end(&dead.id, "it was killed");
    changes.recv().await.unwrap();
    let reserved = control.reserved(&acme());
    assert_eq!(reserved, Reserved { cpu_millis: 0, memory_bytes: 0, ..one() });
    // The state is stored after it is announced.
    let other = loop {
        match control.create(&acme(), named("other")).await {
            Err(ControlError::Quota(_)) => tokio::time::sleep(Duration::from_millis(10)).await,
            other => break other.unwrap(),
        }
    };
    let refused = control.start_sandbox(&acme(), &dead.name).await.unwrap_err();
    assert_eq!(exceeded(&refused).quota, Quota::MemoryBytes);
    assert_eq!(control.get(&acme(), &dead.name).await.unwrap().reason.as_deref(), Some("it was killed"));
    control.delete(&acme(), &other.name).await.unwrap();
    engine.fail(Point::Restart, 1);
    control.start_sandbox(&acme(), &dead.name).await.unwrap_err();
    control.create(&acme(), named("other")).await.unwrap();
    control.delete(&acme(), &other.name).await.unwrap();
    control.start_sandbox(&acme(), &dead.name).await.unwrap();
    assert!(matches!(control.create(&acme(), named("other")).await, Err(ControlError::Quota(_))));
    control.stop(false).await;
}

async fn a_dead_sandbox_reserves_no_more_while_it_is_deleted(home: Home) {
    let engine = FakeEngine::new();
    let control = with_tenant(&home, &engine).await;
    limit(&control, Quota::MemoryBytes, Some(one().memory_bytes)).await;
    let dead = control.create(&acme(), named("dead")).await.unwrap();
    engine.end(&dead.id, "it was killed");
    while control.get(&acme(), &dead.name).await.unwrap().state != SandboxState::Failed {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    engine.fail(Point::BeforeDestroy, 1);
    control.delete(&acme(), &dead.name).await.unwrap_err();
    assert_eq!(control.get(&acme(), &dead.name).await.unwrap().state, SandboxState::Deleting);
    assert_eq!(control.reserved(&acme()), Reserved { cpu_millis: 0, memory_bytes: 0, ..one() });
    let other = control.create(&acme(), named("other")).await.unwrap();

    // One that lives reserves all until it is gone.
    engine.fail(Point::BeforeDestroy, 1);
    control.delete(&acme(), &other.name).await.unwrap_err();
    assert!(matches!(control.create(&acme(), named("third")).await, Err(ControlError::Quota(_))));
    control.delete(&acme(), &other.name).await.unwrap();
    control.create(&acme(), named("third")).await.unwrap();
    control.stop(true).await;
}

async fn a_claim_from_a_pool_reserves_and_a_refused_one_stays_there(home: Home) {
    let engine = FakeEngine::new();
    let mut config = home.config();
    config.pools = vec![("base".to_owned(), 2)];
    config.tenant_limits = TenantLimits { sandboxes: Some(1), ..TenantLimits::default() };
    let control = home.start_with(config, &engine).await;
    let filled = async || {
        while control.counters().pooled < 2 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    filled().await;
    assert_eq!(control.reserved(&TenantId::default_tenant()), Reserved::default(), "a pooled sandbox belongs to no tenant");
    control.create(&TenantId::default_tenant(), named("a")).await.unwrap();
    filled().await;
    for number in 0..20 {
        let refused = control.create(&TenantId::default_tenant(), named(&format!("n{number}"))).await.unwrap_err();
        assert_eq!(exceeded(&refused).quota, Quota::Sandboxes);
    }
    assert_eq!(control.counters().pooled, 2);
    let destroyed = engine.calls().into_iter().filter(|call| matches!(call, EngineCall::Destroy(_))).count();
    assert_eq!((destroyed, control.counters().creates_from_pool), (0, 1));
    control.stop(true).await;
}

async fn limits_hold_over_a_restart_of_the_server(home: Home) {
    let engine = FakeEngine::new();
    let control = with_tenant(&home, &engine).await;
    limit(&control, Quota::Sandboxes, Some(2)).await;
    for each in ["a", "b"] {
        control.create(&acme(), named(each)).await.unwrap();
    }
    control.stop(false).await;
    engine.reboot();
    let control = home.start_with(home.config(), &engine).await;
    assert_eq!(control.reserved(&acme()), Reserved { sandboxes: 2, disk_bytes: 2 * one().disk_bytes, ..Reserved::default() });
    assert!(matches!(control.create(&acme(), named("c")).await, Err(ControlError::Quota(_))));
    control.delete(&acme(), &name("a")).await.unwrap();
    control.create(&acme(), named("c")).await.unwrap();
    control.stop(false).await;
    // The rows are those that count.
    let store: Arc<dyn Store> = home.open().await;
    assert_eq!(store.load().await.unwrap().len(), 2);
    store.close().await;
}
