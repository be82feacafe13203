//! Sandboxes that agents create from inside others: tokens, budgets, and the end of a tree.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use arenite_control::fake_engine::{FakeEngine, Point};
use arenite_control::store::MemoryStore;
use arenite_control::{ChildBudget, Control, ControlConfig, ControlError, CreateRequest, Provenance, Sandbox, SpecOverlay};
use arenite_model::protocol::AGENT_KEY_ENV;
use arenite_model::{ErrorCode, NetworkMode, SandboxId};
use support::{named, start_on, tenant};

const CPU: u64 = 2000;
const MEMORY: u64 = 2 << 30;

fn budget(sandboxes: u32, depth: u32) -> ChildBudget {
    ChildBudget { sandboxes, cpu_millis: CPU * 10, memory_bytes: MEMORY * 10, depth, lifetime_seconds: None }
}

fn request(name: &str, parent: Option<&Sandbox>, child_budget: Option<ChildBudget>) -> CreateRequest {
    let provenance = Provenance { child_budget, ..Provenance::default() };
    CreateRequest { parent: parent.map(|parent| parent.id.clone()), provenance, ..named(name) }
}

fn config(dir: &Path) -> ControlConfig {
    ControlConfig::new(dir.to_owned(), "base".parse().unwrap())
}

struct Fixture {
    control: Arc<Control>,
    engine: Arc<FakeEngine>,
    store: Arc<MemoryStore>,
    dir: tempfile::TempDir,
}

impl Fixture {
    async fn new() -> Self {
        let (engine, store, dir) = (FakeEngine::new(), Arc::new(MemoryStore::default()), tempfile::tempdir().unwrap());
        let control = start_on(config(dir.path()), &engine, Arc::<MemoryStore>::clone(&store)).await;
        Self { control, engine, store, dir }
    }

    async fn restart(&mut self) {
        self.control.stop(false).await;
        self.store.reopen();
        self.control = start_on(config(self.dir.path()), &self.engine, Arc::<MemoryStore>::clone(&self.store)).await;
    }

    async fn create(&self, name: &str, parent: Option<&Sandbox>, budget: Option<ChildBudget>) -> Result<Sandbox, ControlError> {
        self.control.create(&tenant(), request(name, parent, budget)).await
    }

    async fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.control.list(&tenant()).await.unwrap().into_iter().map(|sandbox| sandbox.name.to_string()).collect();
        names.sort();
        names
    }

    fn env(&self, id: &SandboxId) -> BTreeMap<String, String> {
        self.engine.spec(id).unwrap().env
    }

    fn token(&self, id: &SandboxId) -> String {
        self.env(id)[AGENT_KEY_ENV].clone()
    }
}

#[tokio::test]
async fn a_token_is_of_one_sandbox_and_is_stored_nowhere() {
    let mut server = Fixture::new().await;
    let plain = server.create("plain", None, None).await.unwrap();
    assert!(!server.env(&plain.id).contains_key(AGENT_KEY_ENV));
    let a = server.create("a", None, Some(budget(2, 1))).await.unwrap();
    let b = server.create("b", None, Some(budget(2, 1))).await.unwrap();
    let (token, other) = (server.token(&a.id), server.token(&b.id));
    assert_ne!(token, other);
    assert!(!a.spec.env.contains_key(AGENT_KEY_ENV) && !serde_json::to_string(&a).unwrap().contains(&token));
    let principal = server.control.authenticate_agent(&a.id, &token).unwrap();
    assert_eq!((principal.inside.as_ref(), principal.key.as_ref().unwrap().as_str()), (Some(&a.id), a.id.as_str()));
    assert!(!principal.operator && principal.is_bound() && !principal.sees(&a) && !principal.sees(&b));
    for (id, given) in
        [(&a.id, &other), (&b.id, &token), (&plain.id, &token), (&a.id, &String::new()), (&a.id, &token[..54].to_owned())]
    {
        assert!(server.control.authenticate_agent(id, given).is_none(), "{id} {given}");
    }
    server.restart().await;
    assert!(server.control.authenticate_agent(&a.id, &token).is_some());
    server.engine.end(&a.id, "killed");
    while server.control.get(&tenant(), &a.name).await.unwrap().state.as_str() == "running" {
        tokio::task::yield_now().await;
    }
    assert!(server.control.authenticate_agent(&a.id, &token).is_none());
    server.control.start_sandbox(&tenant(), &a.name).await.unwrap();
    assert!(server.control.authenticate_agent(&a.id, &token).is_some());
    server.control.delete(&tenant(), &a.name).await.unwrap();
    assert!(server.control.authenticate_agent(&a.id, &token).is_none());
}

#[tokio::test]
async fn budgets_count_the_whole_tree() {
    let server = Fixture::new().await;
    let code = |result: Result<Sandbox, ControlError>| {
        result.map_err(|error| error.code()).map(|sandbox| sandbox.provenance.ancestors.len())
    };
    let root = server.create("root", None, Some(budget(3, 2))).await.unwrap();
    let plain = server.create("plain", None, None).await.unwrap();
    assert_eq!(code(server.create("x", Some(&plain), None).await), Err(ErrorCode::Forbidden));
    let child = server.create("child", Some(&root), Some(budget(5, 1))).await.unwrap();
    assert_eq!(child.provenance.ancestors, std::slice::from_ref(&root.id));
    let grandchild = server.create("grandchild", Some(&child), None).await.unwrap();
    assert_eq!(grandchild.provenance.ancestors, [root.id.clone(), child.id.clone()]);
    // Deeper than the topmost budget allows.
    assert_eq!(code(server.create("x", Some(&child), Some(budget(1, 1))).await), Err(ErrorCode::Forbidden));
    assert_eq!(code(server.create("x", Some(&grandchild), None).await), Err(ErrorCode::Forbidden));
    assert_eq!(code(server.create("third", Some(&root), None).await), Ok(1));
    for parent in [&root, &child] {
        assert_eq!(code(server.create("x", Some(parent), None).await), Err(ErrorCode::Exhausted));
    }
    // What is deleted is free again.
    server.control.delete(&tenant(), &grandchild.name).await.unwrap();
    assert_eq!(code(server.create("again", Some(&child), None).await), Ok(2));

    let small = ChildBudget { cpu_millis: CPU + CPU / 2, ..budget(10, 1) };
    let small = server.create("small", None, Some(small)).await.unwrap();
    assert_eq!(code(server.create("s1", Some(&small), None).await), Ok(1));
    assert_eq!(code(server.create("s2", Some(&small), None).await), Err(ErrorCode::Exhausted));
    let mut large = request("s2", Some(&small), None);
    large.spec.resources.cpu_millis = Some(8000);
    assert_eq!(code(server.control.create(&tenant(), large).await), Err(ErrorCode::Forbidden));
    // Only calls of models are left to it.
    let none = server.create("none", None, Some(budget(0, 1))).await.unwrap();
    assert_eq!(code(server.create("n1", Some(&none), None).await), Err(ErrorCode::Forbidden));
    for bad in [budget(1001, 1), budget(1, 0), budget(1, 9)] {
        assert_eq!(code(server.create("bad", None, Some(bad)).await), Err(ErrorCode::InvalidRequest));
    }
}

#[tokio::test]
async fn creates_at_once_don_t_exceed_a_budget() {
    let server = Fixture::new().await;
    let root = server.create("root", None, Some(budget(3, 1))).await.unwrap();
    server.engine.delay(Point::BeforeCreate, Duration::from_millis(20));
    let creates: Vec<_> = (0..10)
        .map(|n| {
            let (control, request) = (Arc::clone(&server.control), request(&format!("c{n}"), Some(&root), None));
            tokio::spawn(async move { control.create(&tenant(), request).await })
        })
        .collect();
    let mut created = 0;
    for create in creates {
        created += usize::from(create.await.unwrap().is_ok());
    }
    assert_eq!((created, server.names().await.len()), (3, 4));
}

#[tokio::test]
async fn a_child_has_no_more_than_its_parent() {
    let server = Fixture::new().await;
    let mut closed = request("closed", None, Some(ChildBudget { lifetime_seconds: Some(60), ..budget(9, 1) }));
    closed.spec.network = Some(NetworkMode::None);
    let closed = server.control.create(&tenant(), closed).await.unwrap();
    let child = server.create("child", Some(&closed), None).await.unwrap();
    assert_eq!((child.spec.network, child.spec.timeout_seconds), (NetworkMode::None, Some(60)));
    let with = |spec| CreateRequest { spec, ..request("x", Some(&closed), None) };
    for spec in [
        SpecOverlay { network: Some(NetworkMode::Open), ..SpecOverlay::default() },
        SpecOverlay { timeout_seconds: Some(61), ..SpecOverlay::default() },
        SpecOverlay { timeout_seconds: Some(0), ..SpecOverlay::default() },
    ] {
        let refused = server.control.create(&tenant(), with(spec.clone())).await.unwrap_err();
        assert_eq!(refused.code(), ErrorCode::Forbidden, "{spec:?}");
    }
    let other = CreateRequest { parent: Some(closed.id.clone()), ..named("x") };
    let refused = server.control.create(&"other".parse().unwrap(), other).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::NotFound);
}

#[tokio::test]
async fn the_end_of_a_sandbox_ends_those_below() {
    for death in ["deleted", "died"] {
        let server = Fixture::new().await;
        let root = server.create("root", None, Some(budget(9, 3))).await.unwrap();
        let child = server.create("child", Some(&root), Some(budget(9, 2))).await.unwrap();
        server.create("grandchild", Some(&child), None).await.unwrap();
        server.create("sibling", Some(&root), None).await.unwrap();
        let other = server.create("other", None, Some(budget(9, 3))).await.unwrap();
        server.create("others", Some(&other), None).await.unwrap();
        server.control.delete(&tenant(), &child.name).await.unwrap();
        assert_eq!(server.names().await, ["other", "others", "root", "sibling"]);
        let left: &[&str] = match death {
            "deleted" => {
                server.control.delete(&tenant(), &root.name).await.unwrap();
                &["other", "others"]
            }
            _ => {
                server.engine.end(&root.id, "killed");
                &["other", "others", "root"]
            }
        };
        let deadline = std::time::Instant::now() + Duration::from_secs(10);
        while server.names().await != left {
            assert!(std::time::Instant::now() < deadline, "{death}: {:?}", server.names().await);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_life_time_ends_those_below() {
    let server = Fixture::new().await;
    let mut root = request("root", None, Some(budget(9, 1)));
    root.spec.timeout_seconds = Some(60);
    let root = server.control.create(&tenant(), root).await.unwrap();
    server.create("child", Some(&root), None).await.unwrap();
    tokio::time::sleep(Duration::from_secs(62)).await;
    assert!(server.names().await.is_empty());
}

#[tokio::test]
async fn a_create_that_races_with_the_end_of_its_parent_leaves_none() {
    for delay in [Point::Reserve, Point::BeforeCreate, Point::AfterCreate] {
        let server = Fixture::new().await;
        let root = server.create("root", None, Some(budget(9, 1))).await.unwrap();
        server.engine.delay(delay, Duration::from_millis(50));
        let end = async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            server.control.delete(&tenant(), &root.name).await.unwrap();
        };
        let _ = tokio::join!(server.create("child", Some(&root), None), end);
        assert!(server.names().await.is_empty(), "{delay:?}");
        assert!(server.engine.ids().is_empty(), "{delay:?}");
    }
}

#[tokio::test]
async fn a_start_ends_those_that_lost_their_parent() {
    let mut server = Fixture::new().await;
    let root = server.create("root", None, Some(budget(9, 1))).await.unwrap();
    server.create("child", Some(&root), None).await.unwrap();
    server.control.stop(false).await;
    server.store.reopen();
    // The server died while it deleted the parent: its row is the last to go.
    let rows = arenite_control::store::Store::load(&*server.store).await.unwrap();
    let row = rows.into_iter().find(|row| row.id == root.id).unwrap();
    let deleting = Sandbox { state: arenite_model::SandboxState::Deleting, ..row };
    arenite_control::store::Store::update(&*server.store, &deleting).await.unwrap();
    server.restart().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !server.names().await.is_empty() {
        assert!(std::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
