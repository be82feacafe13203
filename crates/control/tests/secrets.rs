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
use arenite_model::{ErrorCode, NetworkMode, PolicyMode, SecretName, SecretPlace};
use support::cluster::Cluster;
use support::{named, start_on, tenant};

fn secret(name: &str) -> SecretName {
    name.parse().unwrap()
}

fn set(value: &str) -> SetSecret {
    SetSecret { value: Some(value.to_owned().into()), hosts: Some(vec!["api.example.com".to_owned()]), ..SetSecret::default() }
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

const SSH_KEY: &str = include_str!("../../ssh/tests/keys/ed25519");
const OTHER_SSH_KEY: &str = include_str!("../../ssh/tests/keys/ecdsab256");

fn set_ssh(value: &str) -> SetSecret {
    SetSecret { places: Some(vec![SecretPlace::Ssh]), ..set(value) }
}

fn with_secret(name: &str, secret: &str) -> CreateRequest {
    let secrets = Some(vec![secret.parse().unwrap()]);
    CreateRequest { spec: SpecOverlay { secrets, ..SpecOverlay::default() }, ..named(name) }
}

#[tokio::test]
async fn an_ssh_key_is_the_agents_alone() {
    let (engine, dir) = (FakeEngine::new(), tempfile::tempdir().unwrap());
    let control = start_on(config(dir.path()), &engine, Arc::new(MemoryStore::default())).await;
    let host_key = include_str!("../../ssh/tests/keys/ecdsab384.pub").trim().to_owned();
    control.set_secret(&tenant(), secret("a"), set("value-of-a")).await.unwrap();
    let host_keys = Some(vec![host_key.clone()]);
    control.set_secret(&tenant(), secret("deploy"), SetSecret { host_keys, ..set_ssh(SSH_KEY) }).await.unwrap();
    assert!(control.secret_value(&tenant(), &secret("deploy")).await.is_err(), "it is never sent");
    let mut request = with_secret("one", "deploy");
    request.spec.env = with_env("one", &["{{secret:a}}"]).spec.env;
    let made = control.create(&tenant(), request).await.unwrap();
    assert_eq!(made.spec.network_policy.as_ref().unwrap().mode, PolicyMode::Observe);
    assert_eq!(values(&engine, &made), ["value-of-a"], "the proxy has the others");
    assert!(!made.spec.env.contains_key("SSH_AUTH_SOCK"));
    assert_eq!(engine.spec(&made.id).unwrap().env["SSH_AUTH_SOCK"], "/run/arenite/ssh-agent");
    let fingerprints = async || {
        let keys = control.ssh_keys(&made.id).await.unwrap();
        keys.iter().map(|key| (key.secret.clone(), key.key.public().fingerprint(), key.host_keys.len())).collect::<Vec<_>>()
    };
    let first = fingerprints().await;
    assert_eq!((first.len(), &*first[0].0, first[0].2), (1, "deploy", 1));

    // Changes count at once.
    control.set_secret(&tenant(), secret("deploy"), SetSecret { hosts: None, places: None, ..set(OTHER_SSH_KEY) }).await.unwrap();
    let second = fingerprints().await;
    assert!(second[0].1 != first[0].1 && second[0].2 == 1);
    for bad in [
        set_ssh("a-password"),
        set("a-password"),
        SetSecret { places: None, hosts: None, ..set("a-password") },
        SetSecret { host_keys: Some(vec![format!("other.example {host_key}")]), ..SetSecret::default() },
        SetSecret { places: Some(vec![SecretPlace::Ssh, SecretPlace::Query]), ..SetSecret::default() },
    ] {
        let error = control.set_secret(&tenant(), secret("deploy"), bad).await.unwrap_err();
        assert!(matches!(error, ControlError::InvalidSecret { .. }), "{error}");
    }
    let to_ssh = SetSecret { places: Some(vec![SecretPlace::Ssh]), ..SetSecret::default() };
    assert!(control.set_secret(&tenant(), secret("a"), to_ssh).await.is_err());
    assert_eq!(fingerprints().await, second);
    let referred = control.create(&tenant(), with_env("two", &["{{secret:deploy}}"])).await.unwrap_err();
    assert_eq!(referred.code(), ErrorCode::InvalidRequest, "{referred}");
    let mut own = with_secret("two", "deploy");
    own.spec.env = Some(BTreeMap::from([("SSH_AUTH_SOCK".to_owned(), "/tmp/mine".to_owned())]));
    assert_eq!(control.create(&tenant(), own).await.unwrap_err().code(), ErrorCode::InvalidRequest);

    // Removed, and another of the same name that is no key.
    control.remove_secret(&tenant(), &secret("deploy")).await.unwrap();
    assert!(fingerprints().await.is_empty());
    control.set_secret(&tenant(), secret("deploy"), set("a-password")).await.unwrap();
    assert!(fingerprints().await.is_empty());
    assert_eq!(values(&engine, &made), ["value-of-a"]);
    // And the other way round: a key does not get into the proxy.
    control.remove_secret(&tenant(), &secret("a")).await.unwrap();
    control.set_secret(&tenant(), secret("a"), set_ssh(SSH_KEY)).await.unwrap();
    assert_eq!(values(&engine, &made), [""]);
    assert!(fingerprints().await.is_empty());
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
