//! Metering on the real stores: what is counted, once, over restarts, crashes and failures of the store.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::models::{ModelCall, ModelPrice, ModelRoute, ModelRouteSpec, ModelUse};
use arenite_control::store::UsageStore;
use arenite_control::usage::{Meter, UsageGroup, UsageQuery, UsageRow, UsageSample, UsedAmounts};
use arenite_control::{Control, ControlConfig};
use arenite_engine::Usage;
use arenite_model::{PauseKind, SandboxId, TenantId};
use jiff::Timestamp;
use support::home::{Home, on_both_stores};
use support::{name, named, tenant};

on_both_stores! {
    samples_become_hours_and_sums_of_them,
    what_was_used_is_counted_once_over_kills_and_restarts,
    nothing_is_counted_before_a_claim_and_after_a_delete,
    calls_of_models_count_for_their_sandbox_or_the_tenant,
}

const GIB: u64 = 1 << 30;

fn query(group: UsageGroup) -> UsageQuery {
    UsageQuery { group, limit: 1000, ..UsageQuery::default() }
}

fn sample(of: &str, sandbox: &SandboxId, at: Timestamp, core_seconds: f64) -> UsageSample {
    let used = UsedAmounts { core_seconds, egress_bytes: 10, tool_calls: 1, ..UsedAmounts::default() };
    UsageSample {
        tenant: of.parse().unwrap(),
        name: "one".parse().unwrap(),
        template: if of == "acme" { "aio".to_owned() } else { String::new() },
        used,
        meter: Meter { subject: sandbox.clone().into(), at, cpu_nanoseconds: 7, sent_bytes: 8, received_bytes: 9 },
    }
}

async fn samples_become_hours_and_sums_of_them(home: Home) {
    let open = home.open().await;
    let store: Arc<dyn UsageStore> = Arc::clone(&open).usage_store().unwrap();
    let at = |text: &str| text.parse::<Timestamp>().unwrap();
    let (one, two) = (SandboxId::random(), SandboxId::random());
    let samples = vec![
        sample("acme", &one, at("2026-01-31T10:00:00Z"), 1.0),
        sample("acme", &one, at("2026-01-31T10:59:59Z"), 2.0),
        sample("acme", &one, at("2026-01-31T11:00:00Z"), 4.0),
        sample("acme", &two, at("2026-01-31T11:00:00Z"), 8.0),
        sample("other", &one, at("2026-01-31T12:00:00Z"), 16.0),
    ];
    store.append_usage(samples.clone()).await.unwrap();
    // As after a lost answer.
    store.append_usage(samples).await.unwrap();
    assert_eq!(store.meters().await.unwrap().len(), 2);

    let sums = async |query: UsageQuery| {
        let rows = store.usage(query).await.unwrap();
        rows.into_iter().map(|row| (row.tenant.to_string(), row.used.core_seconds)).collect::<Vec<_>>()
    };
    let row = |tenant: &str, seconds| (tenant.to_owned(), seconds);
    let acme = Some("acme".parse().unwrap());
    // Before and after the samples are merged, and for old hours also after all of a template are.
    let now = [None, Some("2026-01-31T13:00:00Z"), Some("2026-01-31T13:10:00Z"), Some("2026-03-15T00:00:00Z")];
    for (turn, now) in now.into_iter().enumerate() {
        if let Some(now) = now {
            store.roll_up(at(now)).await.unwrap();
        }
        assert_eq!(sums(query(UsageGroup::Tenant)).await, [row("acme", 15.0), row("other", 16.0)], "{now:?}");
        assert_eq!(
            sums(UsageQuery { tenant: acme.clone(), ..query(UsageGroup::Hour) }).await,
            [row("acme", 3.0), row("acme", 12.0)]
        );
        let since = Some(at("2026-01-31T11:30:00Z"));
        assert_eq!(sums(UsageQuery { since, ..query(UsageGroup::Tenant) }).await, [row("acme", 12.0), row("other", 16.0)]);
        let until = Some(at("2026-01-31T10:30:00Z"));
        assert_eq!(sums(UsageQuery { until, ..query(UsageGroup::Tenant) }).await, [row("acme", 3.0)]);
        let until = Some(at("2026-01-31T11:00:00Z"));
        assert_eq!(sums(UsageQuery { until, ..query(UsageGroup::Tenant) }).await, [row("acme", 3.0)]);
        assert_eq!(sums(UsageQuery { limit: 1, ..query(UsageGroup::Tenant) }).await.len(), 1);
        let templates = store.usage(query(UsageGroup::Template)).await.unwrap();
        let templates: Vec<_> = templates.iter().map(|row| row.template.as_deref().unwrap()).collect();
        assert_eq!(templates, ["aio", ""]);
        let sandboxes = store.usage(UsageQuery { tenant: acme.clone(), ..query(UsageGroup::Sandbox) }).await.unwrap();
        let total: f64 = sandboxes.iter().map(|row| row.used.core_seconds).sum();
        let mut ids: Vec<_> = sandboxes.iter().filter_map(|row| row.sandbox.clone()).collect();
        ids.sort();
        let mut wanted = if turn == 3 { Vec::new() } else { vec![one.clone(), two.clone()] };
        wanted.sort();
        assert_eq!((ids, total), (wanted, 15.0));
        assert!(sandboxes.iter().all(|row| row.used.egress_bytes == 10 * row.used.tool_calls && row.hour.is_none()));
    }
    assert!(store.meters().await.unwrap().is_empty(), "their sandboxes are gone");
    store.roll_up(at("2027-03-10T00:00:00Z")).await.unwrap();
    assert!(store.usage(query(UsageGroup::Tenant)).await.unwrap().is_empty(), "hours are kept for a bounded time");
    open.close().await;
}

fn config(home: &Home) -> ControlConfig {
    let mut config = home.config();
    config.meter_every = Duration::from_millis(50);
    config
}

fn reading(cpu_seconds: u64, network: u64) -> Usage {
    Usage {
        cpu_nanoseconds: cpu_seconds * 1_000_000_000,
        network_sent_bytes: Some(network),
        network_received_bytes: Some(2 * network),
        memory_bytes: GIB,
        disk_bytes: Some(2 * GIB),
        ..Usage::default()
    }
}

async fn of_tenant(control: &Control, tenant: &TenantId) -> Option<UsageRow> {
    let query = UsageQuery { tenant: Some(tenant.clone()), ..query(UsageGroup::Tenant) };
    // The database may be away.
    control.usage_rows(query).await.ok()?.into_iter().next()
}

/// Waits until this is what a tenant used, and checks that it stays.
async fn settles(control: &Control, core_seconds: f64, egress_bytes: u64, tool_calls: u64) -> UsedAmounts {
    let mut used = UsedAmounts::default();
    for _ in 0..1000 {
        used = of_tenant(control, &tenant()).await.map_or_else(UsedAmounts::default, |row| row.used);
        if (used.core_seconds, used.egress_bytes, used.tool_calls) == (core_seconds, egress_bytes, tool_calls) {
            tokio::time::sleep(Duration::from_millis(150)).await;
            let later = of_tenant(control, &tenant()).await.unwrap().used;
            assert_eq!((later.core_seconds, later.egress_bytes, later.tool_calls), (core_seconds, egress_bytes, tool_calls));
            return later;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{core_seconds} s, {egress_bytes} bytes, {tool_calls} calls, but it used {used:?}");
}

async fn what_was_used_is_counted_once_over_kills_and_restarts(home: Home) {
    let engine = FakeEngine::new();
    let control = home.start_with(config(&home), &engine).await;
    let id = control.create(&tenant(), named("a")).await.unwrap().id;
    engine.set_usage(&id, reading(5, 100));
    for _ in 0..3 {
        control.lease(&tenant(), &name("a")).await.unwrap().count_call();
    }
    let used = settles(&control, 5.0, 100, 3).await;
    assert!(used.ingress_bytes == 200 && used.memory_gib_seconds > 0.0 && used.disk_gib_hours > 0.0, "{used:?}");
    control.pause(&tenant(), &name("a"), PauseKind::Freeze).await.unwrap();
    engine.set_usage(&id, reading(6, 100));
    settles(&control, 6.0, 100, 3).await;
    control.resume(&tenant(), &name("a")).await.unwrap();
    control.stop(false).await;
    // It worked on without a server.
    engine.set_usage(&id, reading(9, 150));
    let control = home.start_with(config(&home), &engine).await;
    settles(&control, 9.0, 150, 3).await;

    // Its processes end, and their counters start again.
    let mut changes = control.subscribe();
    engine.end(&id, "it was killed");
    changes.recv().await.unwrap();
    engine.set_usage(&id, Usage::default());
    control.start_sandbox(&tenant(), &name("a")).await.unwrap();
    engine.set_usage(&id, reading(20, 10));
    settles(&control, 29.0, 160, 3).await;
    control.stop(false).await;
    engine.reboot();
    let control = home.start_with(config(&home), &engine).await;
    settles(&control, 29.0, 160, 3).await;
    engine.set_usage(&id, Usage::default());
    control.start_sandbox(&tenant(), &name("a")).await.unwrap();
    engine.set_usage(&id, reading(1, 10));
    settles(&control, 30.0, 170, 3).await;
    control.stop(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_used_while_the_database_was_away_is_counted_once() {
    let mut home = Home::postgres();
    let engine = FakeEngine::new();
    let control = home.start_with(config(&home), &engine).await;
    let [kept, gone] = ["kept", "gone"];
    for (each, cpu) in [(kept, 5), (gone, 7)] {
        let made = control.create(&tenant(), named(each)).await.unwrap();
        engine.set_usage(&made.id, reading(cpu, 0));
    }
    settles(&control, 12.0, 0, 0).await;
    home.cluster.as_mut().unwrap().kill();
    for (each, cpu) in [(kept, 6), (gone, 9)] {
        let found = control.get(&tenant(), &name(each)).await.unwrap();
        engine.set_usage(&found.id, reading(cpu, 0));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    control.delete(&tenant(), &name(gone)).await.unwrap();
    home.cluster.as_mut().unwrap().resume();
    settles(&control, 15.0, 0, 0).await;
    control.stop(true).await;
}

async fn nothing_is_counted_before_a_claim_and_after_a_delete(home: Home) {
    let engine = FakeEngine::new();
    let mut config = config(&home);
    config.pools = vec![("base".to_owned(), 1)];
    let control = home.start_with(config, &engine).await;
    while control.counters().pooled < 1 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let pooled = engine.ids().remove(0);
    engine.set_usage(&pooled, reading(40, 1000));
    let made = control.create(&tenant(), named("a")).await.unwrap();
    assert_eq!(made.id, pooled);
    engine.set_usage(&pooled, reading(42, 1005));
    settles(&control, 2.0, 5, 0).await;
    engine.set_usage(&pooled, reading(43, 1005));
    control.delete(&tenant(), &name("a")).await.unwrap();
    settles(&control, 3.0, 5, 0).await;
    let query = query(UsageGroup::Sandbox);
    let rows = control.usage_rows(query).await.unwrap();
    assert_eq!((rows.len(), rows[0].name.clone(), rows[0].sandbox.clone()), (1, Some("a".to_owned()), Some(pooled)));
    control.stop(true).await;
}

async fn calls_of_models_count_for_their_sandbox_or_the_tenant(home: Home) {
    let engine = FakeEngine::new();
    let control = home.start_with(config(&home), &engine).await;
    let id = control.create(&tenant(), named("a")).await.unwrap().id;
    let price = ModelPrice { models: "*".to_owned(), input: 2.0, output: 10.0, cached: None };
    let spec =
        ModelRouteSpec { upstream: "https://models.example/v1".to_owned(), prices: vec![price], ..ModelRouteSpec::default() };
    let route = control.set_model_route(&tenant(), "main".parse().unwrap(), spec).await.unwrap();
    let used = ModelUse { calls: 1, prompt_tokens: 100, completion_tokens: 10, cost_usd: 0.5, ..ModelUse::default() };
    let call = async |control: &Control, sandbox: Option<&SandboxId>, route: &ModelRoute| {
        let call = ModelCall { route, model: "m", subject: None, sandbox, expected: used };
        control.admit_model_call(call).await.unwrap()
    };
    let gone = SandboxId::random();
    for sandbox in [Some(&id), Some(&id), None, Some(&gone)] {
        call(&control, sandbox, &route).await.settle(&used);
    }
    // One that was admitted and not made uses nothing.
    call(&control, Some(&id), &route).await.settle(&ModelUse::default());
    let settles = async |control: &Control, calls: u64| {
        let mut found = UsedAmounts::default();
        for _ in 0..1000 {
            found = of_tenant(control, &tenant()).await.map_or_else(UsedAmounts::default, |row| row.used);
            if found.model_calls == calls {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("{calls} calls, but it used {found:?}");
    };
    let sum = settles(&control, 4).await;
    assert_eq!((sum.model_input_tokens, sum.model_output_tokens, sum.model_cost_usd, sum.tool_calls), (400, 40, 2.0, 0));
    control.stop(false).await;
    let control = home.start_with(config(&home), &engine).await;
    call(&control, None, &route).await.settle(&used);
    assert_eq!(settles(&control, 5).await.model_cost_usd, 2.5);
    let rows = control.usage_rows(query(UsageGroup::Sandbox)).await.unwrap();
    let calls: Vec<_> =
        rows.iter().map(|row| (row.sandbox.clone(), row.used.model_calls)).filter(|(_, calls)| *calls > 0).collect();
    assert_eq!(calls, [(None, 3), (Some(id.clone()), 2)]);
    let hours: u64 = control.usage_rows(query(UsageGroup::Hour)).await.unwrap().iter().map(|row| row.used.model_calls).sum();
    assert_eq!(hours, 5);
    // What was not sampled yet is in the last samples.
    call(&control, Some(&id), &route).await.settle(&used);
    call(&control, None, &route).await.settle(&used);
    control.stop(true).await;
    let control = home.start_with(config(&home), &engine).await;
    assert_eq!(of_tenant(&control, &tenant()).await.unwrap().used.model_calls, 7);
    control.stop(false).await;
}
