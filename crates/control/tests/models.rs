//! Routes to models: their budgets under races, on both databases, after restarts, and in a cluster.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::FakeEngine;
use arenite_control::models::{ModelBudget, ModelCall, ModelPrice, ModelRoute, ModelRouteSpec, ModelSubject, ModelUse};
use arenite_control::nodes::NodeClaim;
use arenite_control::store::{MemoryStore, PostgresStore, SqliteStore, Store};
use arenite_control::{Control, ControlError};
use arenite_model::{ErrorCode, ModelRouteName, TenantId};
use support::cluster::Cluster;
use support::{config, start_on, tenant};

fn name() -> ModelRouteName {
    "main".parse().unwrap()
}

fn spec() -> ModelRouteSpec {
    ModelRouteSpec { upstream: "https://models.example/v1".to_owned(), ..ModelRouteSpec::default() }
}

fn tokens(tokens: u64) -> ModelBudget {
    ModelBudget { tokens: Some(tokens), cost_usd: None }
}

fn used(prompt_tokens: u64, completion_tokens: u64) -> ModelUse {
    ModelUse { calls: 1, prompt_tokens, completion_tokens, ..ModelUse::default() }
}

fn call<'a>(route: &'a ModelRoute, subject: Option<&'a str>) -> ModelCall<'a> {
    let subject = subject.map(|key| ModelSubject { key, label: key });
    ModelCall { route, model: "m", subject, sandbox: None, expected: used(10, 50) }
}

async fn start(store: Arc<dyn Store>) -> Arc<Control> {
    start_on(config(), &FakeEngine::new(), store).await
}

/// Waits until the last call is written.
async fn stop(control: &Control) {
    control.stop(false).await;
}

#[tokio::test]
async fn racing_calls_exceed_a_budget_by_one_at_most() {
    let control = start(Arc::new(MemoryStore::default())).await;
    let route = control.set_model_route(&tenant(), name(), ModelRouteSpec { budget: tokens(100), ..spec() }).await.unwrap();
    // Each reserves 60 tokens, so two are admitted, whatever the order.
    let racing = (0..20).map(|_| {
        let (control, route) = (Arc::clone(&control), route.clone());
        tokio::spawn(async move { control.admit_model_call(call(&route, None)).await })
    });
    let mut permits = Vec::new();
    for admitted in racing.collect::<Vec<_>>() {
        match admitted.await.unwrap() {
            Ok(permit) => permits.push(permit),
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::QuotaExceeded);
                assert!(error.to_string().contains("0 of 100 tokens are used, with what calls in progress may use"), "{error}");
            }
        }
    }
    assert_eq!(permits.len(), 2);
    // They used less than they had reserved.
    permits.into_iter().for_each(|permit| permit.settle(&used(10, 5)));
    let permit = control.admit_model_call(call(&route, None)).await.unwrap();
    permit.settle(&used(60, 40));
    let error = control.admit_model_call(call(&route, None)).await.err().unwrap();
    assert_eq!(error.to_string(), "the budget of the model route main is used up: 130 of 100 tokens are used");
    assert_eq!(control.model_use(&route).await.unwrap(), ModelUse { calls: 3, ..used(80, 50) });
    // A permit that is dropped without an end counts what was expected.
    let route = control.set_model_route(&tenant(), name(), spec()).await.unwrap();
    drop(control.admit_model_call(call(&route, None)).await.unwrap());
    assert_eq!(control.model_use(&route).await.unwrap().tokens(), 190);
}

#[tokio::test]
async fn each_sandbox_and_worker_has_its_own_budget() {
    let control = start(Arc::new(MemoryStore::default())).await;
    let route = control.set_model_route(&tenant(), name(), ModelRouteSpec { budget_each: tokens(20), ..spec() }).await.unwrap();
    for subject in [Some("a"), Some("b"), None, None] {
        control.admit_model_call(call(&route, subject)).await.unwrap().settle(&used(10, 10));
    }
    for (subject, is_refused) in [(Some("a"), true), (Some("b"), true), (Some("c"), false), (None, false)] {
        assert_eq!(control.admit_model_call(call(&route, subject)).await.is_err(), is_refused, "{subject:?}");
    }
}

#[tokio::test]
async fn money_is_counted_by_the_prices() {
    let control = start(Arc::new(MemoryStore::default())).await;
    let price = ModelPrice { models: "m".to_owned(), input: 1e6, output: 2e6, cached: None };
    let budget = ModelBudget { cost_usd: Some(100.0), tokens: None };
    let priced = ModelRouteSpec { budget, prices: vec![price], ..spec() };
    let route = control.set_model_route(&tenant(), name(), priced).await.unwrap();
    // It reserves 10 + 50 * 2 dollars.
    let permit = control.admit_model_call(call(&route, None)).await.unwrap();
    assert!(matches!(
        control.admit_model_call(call(&route, None)).await,
        Err(ControlError::ModelBudget { is_reserved: true, .. })
    ));
    let cost = ModelUse { cost_usd: 99.0, ..used(1, 49) };
    permit.settle(&cost);
    control.admit_model_call(call(&route, None)).await.unwrap().settle(&cost);
    let error = control.admit_model_call(call(&route, None)).await.err().unwrap();
    assert!(error.to_string().contains("$198.000000 of $100 are used"), "{error}");
    let other = ModelCall { model: "other", ..call(&route, None) };
    assert!(matches!(control.admit_model_call(other).await, Err(ControlError::NoModelPrice { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_a_bucket_of_a_minute() {
    let control = start(Arc::new(MemoryStore::default())).await;
    let limited = ModelRouteSpec { requests_per_minute: Some(60), ..spec() };
    let route = control.set_model_route(&tenant(), name(), limited).await.unwrap();
    for _ in 0..60 {
        control.admit_model_call(call(&route, None)).await.unwrap();
    }
    let error = control.admit_model_call(call(&route, None)).await.err().unwrap();
    assert_eq!((error.code(), error.retry_after()), (ErrorCode::Exhausted, Some(Duration::from_secs(1))));
    tokio::time::advance(Duration::from_secs(1)).await;
    control.admit_model_call(call(&route, None)).await.unwrap();
    assert!(control.admit_model_call(call(&route, None)).await.is_err());
}

async fn survives_restarts(open: impl AsyncFn() -> Arc<dyn Store>) {
    let control = start(open().await).await;
    let limited = ModelRouteSpec { budget: tokens(100), budget_each: tokens(30), ..spec() };
    let route = control.set_model_route(&tenant(), name(), limited.clone()).await.unwrap();
    control.admit_model_call(call(&route, Some("a"))).await.unwrap().settle(&used(20, 10));
    stop(&control).await;

    let control = start(open().await).await;
    let found = control.model_route(&tenant(), &name()).await.unwrap();
    assert_eq!(found, route);
    assert!(control.admit_model_call(call(&found, Some("a"))).await.is_err(), "its budget is used up");
    control.admit_model_call(call(&found, Some("b"))).await.unwrap().settle(&used(60, 10));
    assert!(control.admit_model_call(call(&found, Some("c"))).await.is_err(), "the budget of the route is used up");
    let other: TenantId = "other".parse().unwrap();
    assert!(matches!(control.model_route(&other, &name()).await, Err(ControlError::NoModelRoute { .. })));
    assert!(matches!(control.remove_model_route(&other, &name()).await, Err(ControlError::NoModelRoute { .. })));
    // A route of the same name starts at zero.
    control.remove_model_route(&tenant(), &name()).await.unwrap();
    assert!(control.model_routes(&tenant()).await.unwrap().is_empty());
    tokio::time::sleep(Duration::from_millis(2)).await;
    let again = control.set_model_route(&tenant(), name(), limited).await.unwrap();
    assert_eq!(control.model_use(&again).await.unwrap(), ModelUse::default());
    control.admit_model_call(call(&again, Some("a"))).await.unwrap();
    stop(&control).await;
}

#[tokio::test]
async fn what_was_used_survives_restarts_on_sqlite() {
    let data = tempfile::tempdir().unwrap();
    let path = data.path().join("control.sqlite");
    survives_restarts(async || Arc::new(SqliteStore::open(path.clone()).unwrap()) as _).await;
}

#[tokio::test]
async fn what_was_used_survives_restarts_on_postgres() {
    let (cluster, data) = (Cluster::start(), tempfile::tempdir().unwrap());
    survives_restarts(async || Arc::new(PostgresStore::open(cluster.address(), data.path()).await.unwrap()) as _).await;
}

#[tokio::test]
async fn a_route_is_one_for_all_nodes() {
    let (cluster, data) = (Cluster::start(), tempfile::tempdir().unwrap());
    let node = async |node: &str, data: &Path| -> Arc<Control> {
        let claim = NodeClaim { name: node.parse().unwrap(), key: node.to_owned(), address: None };
        start(Arc::new(PostgresStore::open_node(cluster.address(), data, claim).await.unwrap())).await
    };
    let (a, b) = (node("a", data.path()).await, node("b", data.path()).await);
    a.set_model_route(&tenant(), name(), ModelRouteSpec { budget: tokens(100), ..spec() }).await.unwrap();
    let route = b.model_route(&tenant(), &name()).await.unwrap();
    a.admit_model_call(call(&route, None)).await.unwrap().settle(&used(50, 10));
    b.admit_model_call(call(&route, None)).await.unwrap().settle(&used(30, 20));
    for control in [&a, &b] {
        // The other's use is there once it is written.
        let both = ModelUse { calls: 2, ..used(80, 30) };
        while control.model_use(&route).await.unwrap() != both {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(control.admit_model_call(call(&route, None)).await.is_err());
    }
    stop(&b).await;
    stop(&a).await;
}

#[tokio::test]
async fn a_tenant_has_a_bounded_number_of_routes() {
    let control = start(Arc::new(MemoryStore::default())).await;
    for number in 0..64 {
        control.set_model_route(&tenant(), format!("m{number}").parse().unwrap(), spec()).await.unwrap();
    }
    let error = control.set_model_route(&tenant(), name(), spec()).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Exhausted);
    control.set_model_route(&tenant(), "m0".parse().unwrap(), spec()).await.unwrap();
    control.remove_model_routes_of(&tenant()).await.unwrap();
    control.set_model_route(&tenant(), name(), spec()).await.unwrap();
}
