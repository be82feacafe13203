//! Secrets: who may have them, what the engine gets, and changes that reach running sandboxes, also on other nodes.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_control::fake_engine::FakeEngine;
use arenite_control::nodes::NodeClaim;
use arenite_control::secrets::{SecretKeySource, SetSecret, new_key};
use arenite_control::store::{MemoryStore, PostgresStore};
use arenite_control::{ChildBudget, Control, ControlConfig, ControlError, CreateRequest, Provenance, Sandbox, SpecOverlay};
use arenite_model::{ErrorCode, NetworkMode, PolicyMode, SecretName};
use support::cluster::Cluster;
use support::{named, start_on, tenant};

fn secret(name: &str) -> SecretName {
    name.parse().unwrap()
}

fn set(value: &str) -> SetSecret {
    SetSecret { value: Some(value.to_owned().into()), hosts: Some(vec!["api.example.com".to_owned()]), places: None }
}

/// A request with a variable for each value.
fn with_env(name: &str, values: &[&str]) -> CreateRequest {
    let env = values.iter().enumerate().map(|(number, value)| (format!("V{number}"), (*value).to_owned()));
    CreateRequest { spec: SpecOverlay { env: Some(env.collect::<BTreeMap<_, _>>()), ..SpecOverlay::default() }, ..named(name) }
}

fn config(dir: &Path) -> ControlConfig {
    ControlConfig::new(dir.to_owned(), "base".parse().unwrap())
}

/// The values that the engine has for a sandbox.
fn values(engine: &FakeEngine, sandbox: &Sandbox) -> Vec<String> {
    engine.secrets(&sandbox.id).iter().map(|bound| bound.value.as_str().to_owned()).collect()
}

#[tokio::test]
async fn a_sandbox_has_placeholders_and_the_engine_has_the_values() {
    let (engine, store, dir) = (FakeEngine::new(), Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
    let control = start_on(config(dir.path()), &engine, Arc::<MemoryStore>::clone(&store)).await;
    control.set_secret(&tenant(), secret("a"), set("value-of-a")).await.unwrap();
    control.set_secret(&tenant(), secret("b"), set("value-of-b")).await.unwrap();
    let made =
        control.create(&tenant(), with_env("one", &["{{secret:a}}", "x{{secret:b}}y{{secret:a}}", "plain"])).await.unwrap();
    let placeholder = |name: &str| &made.spec.secrets.iter().find(|binding| binding.name.as_str() == name).unwrap().placeholder;
    let env: Vec<&String> = made.spec.env.values().collect();
    assert_eq!(env, [placeholder("a"), &format!("x{}y{}", placeholder("b"), placeholder("a")), "plain"]);
    assert_eq!(made.spec.network_policy.as_ref().unwrap().mode, PolicyMode::Observe);
    assert_eq!(values(&engine, &made), ["value-of-a", "value-of-b"]);
    let row = format!("{made:?} {}", serde_json::to_string(&made).unwrap());
    assert!(!row.contains("value-of"), "{row}");

    // Changes, and a restart of the server.
    control.set_secret(&tenant(), secret("a"), set("other-of-a")).await.unwrap();
    control.remove_secret(&tenant(), &secret("b")).await.unwrap();
    assert_eq!(values(&engine, &made), ["other-of-a", ""]);
    assert_eq!(engine.secrets(&made.id)[1].hosts, ["api.example.com"], "its hosts still recognise it");
    control.stop(false).await;
    store.reopen();
    engine.forget_secrets();
    let control = start_on(config(dir.path()), &engine, Arc::<MemoryStore>::clone(&store)).await;
    assert_eq!(values(&engine, &made), ["other-of-a", ""]);
    assert_eq!(control.secret_value(&tenant(), &secret("a")).await.unwrap().as_str(), "other-of-a");

    // Without its key, a value is lost, and says so.
    control.stop(false).await;
    store.reopen();
    std::fs::write(dir.path().join("secrets.key"), new_key()).unwrap();
    let control = start_on(config(dir.path()), &engine, store).await;
    let error = control.secret_value(&tenant(), &secret("a")).await.unwrap_err();
    assert!(matches!(error, ControlError::SecretKeys { .. }), "{error}");
    assert!(control.reencrypt_secrets().await.is_err());
    control.stop(false).await;
}

#[tokio::test]
async fn keys_are_replaced_line_by_line() {
    let (engine, dir) = (FakeEngine::new(), tempfile::tempdir().unwrap());
    let file = dir.path().join("keys");
    let (old, new) = (new_key(), new_key());
    std::fs::write(&file, &old).unwrap();
    let config = ControlConfig { secret_keys: SecretKeySource::File(file.clone()), ..config(dir.path()) };
    let control = start_on(config, &engine, Arc::new(MemoryStore::default())).await;
    control.set_secret(&tenant(), secret("a"), set("value-of-a")).await.unwrap();
    std::fs::write(&file, format!("{new}\n{old}\n")).unwrap();
    assert_eq!(control.reencrypt_secrets().await.unwrap(), 1);
    assert_eq!(control.reencrypt_secrets().await.unwrap(), 0);
    std::fs::write(&file, new).unwrap();
    assert_eq!(control.reencrypt_secrets().await.unwrap(), 0, "it reads the keys again");
    assert_eq!(control.secret_value(&tenant(), &secret("a")).await.unwrap().as_str(), "value-of-a");
    control.stop(false).await;
}

#[tokio::test]
async fn an_agent_passes_on_only_what_its_sandbox_has() {
    let (engine, dir) = (FakeEngine::new(), tempfile::tempdir().unwrap());
    let control = start_on(config(dir.path()), &engine, Arc::new(MemoryStore::default())).await;
    for name in ["a", "b"] {
        control.set_secret(&tenant(), secret(name), set("value-of-it")).await.unwrap();
    }
    let budget = ChildBudget { sandboxes: 5, cpu_millis: 100_000, memory_bytes: 100 << 30, depth: 1, lifetime_seconds: None };
    let provenance = Provenance { child_budget: Some(budget), ..Provenance::default() };
    let parent = control.create(&tenant(), CreateRequest { provenance, ..with_env("parent", &["{{secret:a}}"]) }).await.unwrap();
    let child = |name: &str, value: &str| CreateRequest { parent: Some(parent.id.clone()), ..with_env(name, &[value]) };
    let made = control.create(&tenant(), child("child", "{{secret:a}}")).await.unwrap();
    assert_ne!(made.spec.secrets[0].placeholder, parent.spec.secrets[0].placeholder);
    for hidden in ["{{secret:b}}", "{{secret:none}}"] {
        let error = control.create(&tenant(), child("other", hidden)).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::NotFound, "{error}");
    }
    control.stop(false).await;
}

#[tokio::test]
async fn what_can_not_have_secrets_is_refused() {
    let (engine, dir) = (FakeEngine::new(), tempfile::tempdir().unwrap());
    let control = start_on(config(dir.path()), &engine, Arc::new(MemoryStore::default())).await;
    control.set_secret(&tenant(), secret("a"), set("value-of-a")).await.unwrap();
    for number in 0..5 {
        control.set_secret(&tenant(), secret(&format!("big-{number}")), set(&"x".repeat(8 << 10))).await.unwrap();
    }
    let mut closed = with_env("closed", &["{{secret:a}}"]);
    closed.spec.network = Some(NetworkMode::None);
    let all = with_env("all", &["{{secret:big-0}}{{secret:big-1}}", "{{secret:big-2}}{{secret:big-3}}", "{{secret:big-4}}"]);
    let long = with_env("long", &["{{secret:a}}", &"x".repeat(127 << 10), &"y".repeat(1000)]);
    for request in [closed, all, long, with_env("cut", &["{{secret:a"])] {
        let error = control.create(&tenant(), request).await.unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidRequest, "{error}");
    }
    let unknown = control.create(&tenant(), with_env("unknown", &["{{secret:none}}"])).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::NotFound);
    assert!(engine.ids().is_empty());

    // A value that grows beyond what a sandbox may have.
    control.set_secret(&tenant(), secret("big-3"), set(&"x".repeat(8000))).await.unwrap();
    let most = "{{secret:big-0}}{{secret:big-1}}{{secret:big-2}}{{secret:big-3}}{{secret:a}}";
    control.create(&tenant(), with_env("most", &[most])).await.unwrap();
    let error = control.set_secret(&tenant(), secret("a"), set(&"x".repeat(1000))).await.unwrap_err();
    assert!(matches!(error, ControlError::InvalidSecret { .. }), "{error}");
    control.stop(false).await;
}

#[tokio::test]
async fn a_change_on_one_node_reaches_sandboxes_on_the_others() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let keys = data.path().join("keys");
    std::fs::write(&keys, new_key()).unwrap();
    let (engine_a, engine_b) = (FakeEngine::new(), FakeEngine::new());
    let server = async |name: &str, engine: &Arc<FakeEngine>, source: SecretKeySource| -> Arc<Control> {
        let claim = NodeClaim { name: name.parse().unwrap(), key: name.to_owned(), address: None };
        let store = PostgresStore::open_node(cluster.address(), data.path(), claim).await.unwrap();
        start_on(ControlConfig { secret_keys: source, ..config(data.path()) }, engine, Arc::new(store)).await
    };
    let a = server("a", &engine_a, SecretKeySource::File(keys.clone())).await;
    let b = server("b", &engine_b, SecretKeySource::DataDir).await;
    let error = b.set_secret(&tenant(), secret("s"), set("value-of-s")).await.unwrap_err();
    assert!(error.to_string().contains("--secret-key-file"), "a key of one node is no key of a cluster: {error}");
    b.stop(false).await;
    let b = server("b", &engine_b, SecretKeySource::File(keys)).await;

    a.set_secret(&tenant(), secret("s"), set("value-of-s")).await.unwrap();
    let on_b = b.create(&tenant(), with_env("on-b", &["{{secret:s}}"])).await.unwrap();
    assert_eq!(values(&engine_b, &on_b), ["value-of-s"]);
    let reaches = async |wanted: &str| {
        let begun = Instant::now();
        while values(&engine_b, &on_b) != [wanted] {
            assert!(begun.elapsed() < Duration::from_secs(30), "it did not come in time");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    a.set_secret(&tenant(), secret("s"), set("other-of-s")).await.unwrap();
    reaches("other-of-s").await;
    a.remove_secret(&tenant(), &secret("s")).await.unwrap();
    reaches("").await;
    a.stop(false).await;
    b.stop(false).await;
}
