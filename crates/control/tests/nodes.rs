//! Nodes of a cluster over one Postgres database: their own rows, leases, and fences.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_control::fake_engine::FakeEngine;
use arenite_control::nodes::{ImageListing, NodeClaim, NodeFacts, NodeState, NodeStore, PlacementWish};
use arenite_control::store::{PostgresStore, Store, StoreError, read};
use arenite_control::tenants::TenantLimits;
use arenite_control::{Control, ControlConfig, ControlError, Sandbox};
use arenite_model::{DeathReason, ErrorCode, SandboxState};
use support::cluster::Cluster;
use support::{config, name, named, sandbox, start_on, tenant};

fn claim(name: &str, key: &str) -> NodeClaim {
    NodeClaim { name: name.parse().unwrap(), key: key.to_owned(), address: None }
}

async fn open(cluster: &Cluster, data: &Path, name: &str) -> Arc<PostgresStore> {
    Arc::new(PostgresStore::open_node(cluster.address(), data, claim(name, name)).await.unwrap())
}

fn leases(store: &Arc<PostgresStore>) -> Arc<dyn NodeStore> {
    Store::node_store(Arc::clone(store)).unwrap()
}

fn running(name: &str) -> Sandbox {
    Sandbox { state: SandboxState::Running, ..sandbox("default", name) }
}

async fn until(mut done: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !done().await {
        assert!(begun.elapsed() < Duration::from_secs(30), "it did not happen in time");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn nodes_share_the_database_and_a_server_without_a_cluster_does_not() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (a, b) = (open(&cluster, data.path(), "a").await, open(&cluster, data.path(), "b").await);
    let alone = PostgresStore::open(cluster.address(), data.path()).await.err().unwrap();
    assert!(matches!(alone, ControlError::StoreInUse { .. }), "{alone}");
    a.insert(&running("of-a")).await.unwrap();
    b.insert(&running("of-b")).await.unwrap();
    assert!(matches!(b.insert(&running("of-a")).await, Err(StoreError::Taken)), "a name is unique in the cluster");
    for (store, own) in [(&a, "of-a"), (&b, "of-b")] {
        let rows = store.load().await.unwrap();
        assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), [own]);
    }
    assert_eq!(read(data.path(), Some(&cluster.address())).await.unwrap().sandboxes.len(), 2, "an export has all");
    // The same name with another key is another server.
    let other = PostgresStore::open_node(cluster.address(), data.path(), claim("a", "stranger")).await.err().unwrap();
    assert!(other.to_string().contains("another server is the node a"), "{other}");
    let facts = NodeFacts { sandboxes: 1, ..NodeFacts::default() };
    let renewed = leases(&a).renew(&facts).await.unwrap();
    assert_eq!(
        renewed.nodes.iter().map(|node| (node.name.as_str(), node.state)).collect::<Vec<_>>(),
        [("a", NodeState::Up), ("b", NodeState::Up)]
    );
    assert_eq!(renewed.nodes[0].facts, facts);
    leases(&b).leave().await.unwrap();
    assert_eq!(leases(&a).nodes().await.unwrap()[1].state, NodeState::Down);
    a.close().await;
    b.close().await;
    let alone = PostgresStore::open(cluster.address(), data.path()).await.unwrap();
    assert!(alone.load().await.unwrap().is_empty(), "the nodes' rows are not its own");
    alone.close().await;
}

#[tokio::test]
async fn a_node_that_was_given_up_writes_nothing_more() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (a, b) = (open(&cluster, data.path(), "a").await, open(&cluster, data.path(), "b").await);
    let mut row = running("one");
    b.insert(&row).await.unwrap();
    let node = leases(&a).nodes().await.unwrap().pop().unwrap();
    leases(&b).renew(&NodeFacts::default()).await.unwrap();
    assert_eq!(leases(&a).give_up(&node).await.unwrap(), None, "it has renewed its lease since");
    let node = leases(&a).nodes().await.unwrap().pop().unwrap();
    assert_eq!(leases(&a).give_up(&node).await.unwrap(), Some(1));
    assert_eq!(leases(&a).give_up(&node).await.unwrap(), None, "once");

    assert!(matches!(leases(&b).renew(&NodeFacts::default()).await, Err(StoreError::GivenUp)));
    row.reason = Some("too late".to_owned());
    assert!(matches!(b.update(&row).await, Err(StoreError::GivenUp)));
    assert!(matches!(b.insert(&running("two")).await, Err(StoreError::GivenUp)));
    let other = leases(&a).nodes().await.unwrap().remove(0);
    assert!(matches!(leases(&b).give_up(&other).await, Err(StoreError::GivenUp)), "it gives nobody up");
    drop(b);
    a.insert(&running("two")).await.unwrap();

    // Its next start is a new epoch, and sees what became of its rows.
    let b = open(&cluster, data.path(), "b").await;
    let [found] = <[Sandbox; 1]>::try_from(b.load().await.unwrap()).unwrap();
    assert_eq!((found.state, found.revision), (SandboxState::Lost, row.revision + 1));
    assert_eq!(found.died.unwrap().reason, DeathReason::NodeLost);
    assert!(found.reason.unwrap().contains("node b"));
    row.reason = None;
    b.update(&row).await.unwrap();
    leases(&b).renew(&NodeFacts::default()).await.unwrap();
    assert_eq!(leases(&a).nodes().await.unwrap()[1].epoch, node.epoch + 2);
}

async fn server(cluster: &Cluster, data: &Path, node: &str, engine: &Arc<FakeEngine>) -> Arc<Control> {
    let config = ControlConfig { tenants: true, ..config() };
    start_on(config, engine, open(cluster, data, node).await).await
}

#[tokio::test]
async fn a_node_that_was_given_up_ends_and_takes_over_what_lives_when_it_is_back() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (engine_a, engine_b) = (FakeEngine::new(), FakeEngine::new());
    let a = server(&cluster, data.path(), "a", &engine_a).await;
    let b = server(&cluster, data.path(), "b", &engine_b).await;
    a.create(&tenant(), named("on-a")).await.unwrap();
    b.create(&tenant(), named("on-b")).await.unwrap();

    // A tenant of one node is known to the other.
    a.tenants().unwrap().create("acme".parse().unwrap()).await.unwrap();
    until(async || b.tenants().unwrap().get(&"acme".parse().unwrap()).is_ok()).await;

    cluster.run("UPDATE nodes SET epoch = epoch + 1, state = 'lost' WHERE name = 'b'").await;
    tokio::time::timeout(Duration::from_secs(10), b.given_up()).await.unwrap();
    assert!(b.create(&tenant(), named("too-late")).await.is_err());
    b.stop(false).await;
    assert_eq!(engine_b.ids().len(), 1, "what runs goes on");

    let b = server(&cluster, data.path(), "b", &engine_b).await;
    assert_eq!(b.get(&tenant(), &name("on-b")).await.unwrap().state, SandboxState::Running);
    assert_eq!(a.get(&tenant(), &name("on-a")).await.unwrap().state, SandboxState::Running);
    assert!(a.nodes().await.unwrap().iter().all(|node| node.state == NodeState::Up));
    a.stop(false).await;
    b.stop(false).await;
}

#[tokio::test]
async fn drains_and_lists_of_images_are_in_the_database() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (a, b) = (open(&cluster, data.path(), "a").await, open(&cluster, data.path(), "b").await);
    let (leases_a, leases_b) = (leases(&a), leases(&b));
    assert!(!leases_a.set_drain(&"c".parse().unwrap(), Some(None)).await.unwrap(), "there is no such node");
    assert!(leases_a.set_drain(&"b".parse().unwrap(), Some(None)).await.unwrap());
    let drain = leases_b.nodes().await.unwrap()[1].drain.clone().unwrap();
    assert_eq!((drain.deadline, drain.is_over), (None, false));
    leases_a.set_drain(&"b".parse().unwrap(), Some(Some(Duration::from_millis(1)))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(5)).await;
    let later = leases_a.nodes().await.unwrap()[1].drain.clone().unwrap();
    assert_eq!((later.since, later.is_over), (drain.since, true));
    assert!(later.deadline.unwrap() > drain.since);

    let listing = ImageListing { id: "one".to_owned(), images: "[]".to_owned() };
    leases_b.put_images(&listing).await.unwrap();
    assert_eq!(leases_a.nodes().await.unwrap()[1].images, "one");
    let ids = vec!["one".to_owned(), "two".to_owned()];
    assert_eq!(leases_a.image_listings(ids).await.unwrap(), [listing]);

    // The next start keeps the drain, and says itself which images it has.
    b.close().await;
    let b = open(&cluster, data.path(), "b").await;
    let node = leases(&b).nodes().await.unwrap().pop().unwrap();
    assert_eq!((node.drain.unwrap().since, node.images.as_str()), (drain.since, ""));
    assert!(leases_a.set_drain(&"b".parse().unwrap(), None).await.unwrap());
    assert_eq!(leases_a.nodes().await.unwrap()[1].drain, None);
    a.close().await;
    b.close().await;
}

#[tokio::test]
async fn a_node_with_a_newer_schema_joins_nodes_that_run() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let a = open(&cluster, data.path(), "a").await;
    let earlier =
        "ALTER TABLE nodes DROP COLUMN drained_at, DROP COLUMN drain_deadline, DROP COLUMN images, DROP COLUMN images_id;
        ALTER TABLE sandboxes DROP COLUMN pause_kind;
        ALTER TABLE usage DROP COLUMN model_calls;
        ALTER TABLE usage DROP COLUMN model_input_tokens;
        ALTER TABLE usage DROP COLUMN model_output_tokens;
        ALTER TABLE usage DROP COLUMN model_cost_usd;
        ALTER TABLE usage_hours DROP COLUMN model_calls;
        ALTER TABLE usage_hours DROP COLUMN model_input_tokens;
        ALTER TABLE usage_hours DROP COLUMN model_output_tokens;
        ALTER TABLE usage_hours DROP COLUMN model_cost_usd;
        DROP TABLE removals, workers, annotations;
        DROP TRIGGER secret_added ON records;
        DROP TRIGGER secret_changed ON records;
        DROP TRIGGER secret_removed ON records;
        UPDATE arenite_store SET version = 9";
    cluster.run(earlier).await;
    let (b, c) = tokio::join!(open(&cluster, data.path(), "b"), open(&cluster, data.path(), "c"));
    assert_eq!(leases(&a).nodes().await.unwrap().len(), 3);
    a.insert(&running("of-a")).await.unwrap();
    for store in [a, b, c] {
        store.close().await;
    }
}

#[tokio::test]
async fn a_node_that_drains_hands_back_its_pool_and_deletes_what_is_left_at_the_deadline() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (engine_a, engine_b) = (FakeEngine::new(), FakeEngine::new());
    let a = server(&cluster, data.path(), "a", &engine_a).await;
    let pools = vec![("base".to_owned(), 2)];
    let config_b = ControlConfig { tenants: true, pools: pools.clone(), ..config() };
    let b = start_on(config_b.clone(), &engine_b, open(&cluster, data.path(), "b").await).await;
    b.create(&tenant(), named("on-b")).await.unwrap();
    until(async || engine_b.ids().len() == 3).await;
    assert!(engine_b.prepares());

    let node = a.drain_node(&"b".parse().unwrap(), None).await.unwrap();
    assert_eq!((node.name.as_str(), node.drain.unwrap().deadline), ("b", None));
    until(async || engine_b.ids().len() == 1).await;
    assert!(b.is_draining() && !engine_b.prepares());
    let refused = b.create(&tenant(), named("late")).await.unwrap_err();
    assert_eq!((refused.code(), refused.is_unavailable()), (ErrorCode::Exhausted, true));
    let wish = PlacementWish::default();
    for _ in 0..20 {
        assert_eq!(a.place(&wish, &[]).unwrap(), None, "the only node left");
        assert_eq!(b.place(&wish, &[]).unwrap(), Some("a".parse().unwrap()));
    }
    assert_eq!(b.get(&tenant(), &name("on-b")).await.unwrap().state, SandboxState::Running);

    // Also after a restart, before anything is made ahead.
    b.stop(false).await;
    let b = start_on(config_b, &engine_b, open(&cluster, data.path(), "b").await).await;
    assert!(b.is_draining() && !engine_b.prepares());
    assert_eq!(engine_b.ids().len(), 1);
    b.uncordon_node(&"b".parse().unwrap()).await.unwrap();
    assert!(!b.is_draining() && engine_b.prepares());
    until(async || engine_b.ids().len() == 3).await;

    let mut events = b.subscribe();
    a.drain_node(&"b".parse().unwrap(), Some(Duration::ZERO)).await.unwrap();
    until(async || engine_b.ids().is_empty()).await;
    until(async || b.get(&tenant(), &name("on-b")).await.is_err()).await;
    let deleted = events.recv().await.unwrap();
    assert_eq!(deleted.died.as_ref().map(|died| died.reason), Some(DeathReason::NodeDrained), "{deleted:?}");
    let unknown = a.drain_node(&"c".parse().unwrap(), None).await.unwrap_err();
    assert_eq!(unknown.code(), ErrorCode::NotFound);
    a.stop(false).await;
    b.stop(false).await;
}

#[tokio::test]
async fn a_node_that_leaves_is_down_at_once_and_stays_so() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let engine = FakeEngine::new();
    let a = server(&cluster, data.path(), "a", &FakeEngine::new()).await;
    let b = server(&cluster, data.path(), "b", &engine).await;
    b.leave_cluster().await;
    let epoch = a.nodes().await.unwrap()[1].epoch;
    // Longer than two renewals.
    for _ in 0..10 {
        assert_eq!(a.nodes().await.unwrap()[1].state, NodeState::Down);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(b.place(&PlacementWish::default(), &[]).unwrap(), Some("a".parse().unwrap()));
    // What is under way is still written.
    b.create(&tenant(), named("under-way")).await.unwrap();
    b.stop(false).await;
    assert_eq!(a.nodes().await.unwrap()[1].epoch, epoch);
    a.stop(false).await;
}

#[tokio::test]
async fn two_nodes_that_race_for_the_last_place_of_a_quota() {
    let cluster = Cluster::start();
    let data = tempfile::tempdir().unwrap();
    let (a, b) = (open(&cluster, data.path(), "a").await, open(&cluster, data.path(), "b").await);
    let limits = TenantLimits { sandboxes: Some(1), ..TenantLimits::default() };
    for round in 0..100 {
        let rows = [running(&format!("of-a-{round}")), running(&format!("of-b-{round}"))];
        let (one, two) = tokio::join!(a.insert_within(&rows[0], &limits), b.insert_within(&rows[1], &limits));
        assert!(one.is_ok() != two.is_ok(), "{round}: {one:?}, {two:?}");
        let refused = if one.is_ok() { two } else { one };
        assert!(matches!(refused, Err(StoreError::Quota(_))), "{refused:?}");
        a.remove(&rows[0].id).await.unwrap();
        b.remove(&rows[1].id).await.unwrap();
    }
}
