//! Nodes of a cluster that are killed and cut off from the database at random, against a model: what was acknowledged stays, what
//! was deleted stays away, and nothing runs on two nodes.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod support;

use std::collections::BTreeMap;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_control::fake_engine::FakeEngine;
use arenite_control::nodes::{LeaseTimes, NodeClaim, NodeState, SandboxKey};
use arenite_control::store::PostgresStore;
use arenite_control::{Control, ControlConfig, ControlError};
use arenite_model::{NodeName, SandboxId};
use support::cluster::{Cluster, url};
use support::{config, name, named, runtime, start_on, tenant};
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

/// Kills and partitions of one test. `ARENITE_TEST_EVENTS` is another number.
const EVENTS: usize = 40;
/// After this number of them, everything runs again, and is compared.
const COMPARE_EVERY: usize = 20;
const TIMES: LeaseTimes = LeaseTimes { renew: Duration::from_millis(40), give_up: Duration::from_millis(300) };
/// A call without an answer for this time may or may not have been carried out.
const PATIENCE: Duration = Duration::from_millis(800);
const NAMES: usize = 12;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Network {
    Up,
    /// Connections are refused and closed.
    Cut,
    /// Nothing arrives, and nothing says so.
    Silent,
}

/// The way from a node to the database.
struct Link {
    dir: tempfile::TempDir,
    network: watch::Sender<Network>,
}

impl Link {
    fn new(runtime: &Runtime, cluster: &Cluster) -> Self {
        let dir = tempfile::Builder::new().prefix("link").tempdir_in("/tmp").unwrap();
        let (network, seen) = watch::channel(Network::Up);
        let (own, real) = (dir.path().join(".s.PGSQL.5432"), cluster.dir().join(".s.PGSQL.5432"));
        let _guard = runtime.enter();
        let listener = UnixListener::bind(own).unwrap();
        runtime.spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                drop(tokio::spawn(carry(near, real.clone(), seen.clone())));
            }
        });
        Self { dir, network }
    }

    fn set(&self, network: Network) {
        self.network.send_replace(network);
    }
}

async fn carry(mut near: UnixStream, real: std::path::PathBuf, mut network: watch::Receiver<Network>) {
    if *network.borrow() == Network::Up {
        // The test may be over.
        let Ok(mut far) = UnixStream::connect(real).await else { return };
        tokio::select! {
            _ = copy_bidirectional(&mut near, &mut far) => {}
            _ = network.wait_for(|network| *network != Network::Up) => {}
        }
    }
    // A silent connection ends when the network is back.
    let _ = network.wait_for(|network| *network != Network::Silent).await;
}

struct Node {
    name: NodeName,
    data: tempfile::TempDir,
    engine: Arc<FakeEngine>,
    link: Link,
    life: Option<(Runtime, Arc<Control>)>,
}

impl Node {
    /// False: the database can't be reached, or it still has the last life's session.
    fn start(&mut self) -> bool {
        let runtime = runtime();
        let claim = NodeClaim { name: self.name.clone(), key: self.name.to_string(), address: None };
        let (address, data) = (url(self.link.dir.path(), "postgres").parse().unwrap(), self.data.path());
        let store =
            runtime.block_on(async { tokio::time::timeout(PATIENCE, PostgresStore::open_node(address, data, claim)).await });
        let Ok(Ok(store)) = store else {
            runtime.shutdown_background();
            return false;
        };
        let config = ControlConfig { lease: TIMES, ..config() };
        let control = runtime.block_on(start_on(config, &self.engine, Arc::new(store)));
        self.life = Some((runtime, control));
        true
    }

    fn kill(&mut self) {
        if let Some((runtime, control)) = self.life.take() {
            runtime.shutdown_background();
            drop(control);
        }
    }

    /// Ends as a server does when the cluster has given it up.
    fn end_if_given_up(&mut self) {
        let Some((runtime, control)) = &self.life else { return };
        let is_given_up = async { tokio::time::timeout(Duration::from_millis(1), control.given_up()).await.is_ok() };
        if runtime.block_on(is_given_up) {
            let _ = runtime.block_on(async { tokio::time::timeout(PATIENCE, control.stop(false)).await });
            self.kill();
        }
    }

    /// None: no answer.
    fn call<T>(&self, work: impl AsyncFnOnce(&Arc<Control>) -> Result<T, ControlError>) -> Option<Result<T, ControlError>> {
        let (runtime, control) = self.life.as_ref()?;
        runtime.block_on(async { tokio::time::timeout(PATIENCE, work(control)).await.ok() })
    }
}

/// What clients know of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Known {
    There(SandboxId),
    Gone,
    /// Deleted. Its name may be taken until its node can write that down.
    Deleted,
    /// A call about it had no clear answer, and may still be carried out. Until everything runs again, nothing is known of it.
    Unclear,
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

struct World {
    cluster: Cluster,
    observer: Runtime,
    nodes: Vec<Node>,
    model: BTreeMap<String, Known>,
    /// Ids that were deleted.
    deleted: Vec<SandboxId>,
    random: Random,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        let (cluster, observer) = (Cluster::start(), runtime());
        let node = |name: &str| Node {
            name: name.parse().unwrap(),
            data: tempfile::tempdir().unwrap(),
            engine: FakeEngine::new(),
            link: Link::new(&observer, &cluster),
            life: None,
        };
        let nodes = ["a", "b", "c"].map(node).into();
        let random = Random(seed);
        let mut world = Self { cluster, observer, nodes, model: BTreeMap::new(), deleted: Vec::new(), random, log: Vec::new() };
        for number in 0..world.nodes.len() {
            assert!(world.nodes[number].start());
        }
        world
    }

    fn any(&mut self, most: usize) -> usize {
        (self.random.next() % most as u64) as usize
    }

    fn create(&mut self) {
        let (node, text) = (self.any(self.nodes.len()), format!("box-{}", self.any(NAMES)));
        let node = &self.nodes[node];
        let Some(answered) = node.call(async |control| control.create(&tenant(), named(&text)).await) else {
            if node.life.is_some() {
                self.note(format!("create {text} on {}: no answer", node.name));
                self.model.insert(text, Known::Unclear);
            }
            return;
        };
        let made = answered.map(|made| made.id);
        self.log.push(format!("create {text} on {}: {made:?}", node.name));
        let before = self.model.get(&text).cloned().unwrap_or(Known::Gone);
        match (made, before) {
            (_, Known::Unclear) => {}
            (Ok(id), Known::Gone | Known::Deleted) => drop(self.model.insert(text, Known::There(id))),
            (Ok(_), Known::There(_)) => panic!("{text} was there already: {}", self.story()),
            (Err(ControlError::AlreadyExists { .. }), Known::Gone) => panic!("{text} was not there: {}", self.story()),
            (Err(_), Known::Gone) => drop(self.model.insert(text, Known::Unclear)),
            (Err(ControlError::AlreadyExists { .. }), Known::Deleted) => {}
            (Err(_), Known::Deleted) => drop(self.model.insert(text, Known::Unclear)),
            (Err(_), Known::There(_)) => {}
        }
    }

    fn note(&mut self, line: String) {
        self.log.push(line);
    }

    /// Deletes a sandbox through a node, as its server passes it on.
    fn delete(&mut self) {
        let (via, text) = (self.any(self.nodes.len()), format!("box-{}", self.any(NAMES)));
        let key = SandboxKey::Name(name(&text));
        let owner = self.nodes[via].call(async |control| control.owner(&tenant(), key.clone()).await);
        let Some(Ok(owner)) = owner else { return };
        let passes = owner.filter(|owner| {
            let may_answer = self.nodes[via].call(async |control| Ok(control.may_answer(owner)));
            matches!(may_answer, Some(Ok(true)))
        });
        let at = passes.and_then(|owner| self.nodes.iter().position(|node| node.name == owner)).unwrap_or(via);
        let answered = self.nodes[at].call(async |control| control.delete(&tenant(), &name(&text)).await);
        self.log.push(format!("delete {text} through {via} on {at}: {answered:?}"));
        let before = self.model.get(&text).cloned().unwrap_or(Known::Gone);
        match (answered, before) {
            (_, Known::Unclear) => {}
            (Some(Ok(())), Known::There(id)) => {
                self.deleted.push(id);
                self.model.insert(text, Known::Deleted);
            }
            (Some(Ok(())), Known::Gone) => panic!("{text} was not there: {}", self.story()),
            // A cached owner may be another one by now.
            (Some(Err(ControlError::NotFound { .. })), Known::There(_)) if at == via => {
                panic!("{text} is lost: {}", self.story())
            }
            (_, Known::There(_)) => drop(self.model.insert(text, Known::Unclear)),
            (_, Known::Gone | Known::Deleted) => {}
        }
    }

    /// A kill, a partition, or the end of one. True: it counts.
    fn disturb(&mut self) -> bool {
        let at = self.any(self.nodes.len());
        let (dice, wait) = (self.any(10), self.any(TIMES.give_up.as_millis() as usize * 3 / 2) as u64);
        let node = &mut self.nodes[at];
        node.end_if_given_up();
        let counts = match dice {
            0..3 if node.life.is_some() => {
                self.log.push(format!("kill {}", node.name));
                node.kill();
                true
            }
            3..6 => {
                let network = if dice == 3 { Network::Silent } else { Network::Cut };
                self.log.push(format!("{network:?} {}", node.name));
                node.link.set(network);
                true
            }
            _ => {
                self.log.push(format!("repair {}", node.name));
                node.link.set(Network::Up);
                if node.life.is_none() {
                    node.start();
                }
                false
            }
        };
        std::thread::sleep(Duration::from_millis(wait));
        counts
    }

    /// Repairs everything, and waits until all nodes run.
    fn settle(&mut self) {
        let begun = Instant::now();
        for node in &self.nodes {
            node.link.set(Network::Up);
        }
        loop {
            for node in &mut self.nodes {
                node.end_if_given_up();
                if node.life.is_none() {
                    node.start();
                }
            }
            let all_up = self.nodes.iter().all(|node| {
                let nodes = node.call(async |control| control.nodes().await);
                matches!(nodes, Some(Ok(nodes)) if nodes.len() == 3 && nodes.iter().all(|node| node.state == NodeState::Up))
            });
            if all_up {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "the nodes don't run again: {}", self.story());
            std::thread::sleep(TIMES.renew);
        }
        // What a killed server left half done is removed by the next one's reaper, at the latest.
        std::thread::sleep(TIMES.renew * 4);
    }

    fn compare(&mut self) {
        let rows = self.observer.block_on(async {
            let client = self.cluster.client().await;
            assert_eq!(client.query("SELECT FROM removals", &[]).await.unwrap().len(), 0, "removals are made at the start");
            client.query("SELECT id, name, node, state FROM sandboxes", &[]).await.unwrap()
        });
        let mut found: BTreeMap<String, SandboxId> = BTreeMap::new();
        let mut ids: Vec<(SandboxId, NodeName)> = Vec::new();
        for row in &rows {
            let (id, node): (SandboxId, NodeName) =
                (row.get::<_, &str>(0).parse().unwrap(), row.get::<_, &str>(2).parse().unwrap());
            assert_eq!(row.get::<_, &str>(3), "running", "{row:?}: {}", self.story());
            found.insert(row.get(1), id.clone());
            ids.push((id, node));
        }
        let mut live: Vec<(SandboxId, NodeName)> = Vec::new();
        for node in &self.nodes {
            live.extend(node.engine.ids().into_iter().map(|id| (id, node.name.clone())));
        }
        ids.sort();
        live.sort();
        assert_eq!(live, ids, "what runs is not what the database has: {}", self.story());
        for id in &self.deleted {
            assert!(!live.iter().any(|(there, _)| there == id), "{id} was deleted: {}", self.story());
        }
        for (name, known) in &self.model {
            let there = found.get(name);
            match known {
                Known::There(id) => assert_eq!(there, Some(id), "{name}: {}", self.story()),
                Known::Gone | Known::Deleted => assert_eq!(there, None, "{name}: {}", self.story()),
                Known::Unclear => {}
            }
        }
        let names: Vec<String> = self.model.keys().cloned().collect();
        for name in names {
            let known = found.get(&name).cloned().map_or(Known::Gone, Known::There);
            self.model.insert(name, known);
        }
        self.log.clear();
    }

    fn story(&self) -> String {
        self.log.join("\n")
    }
}

#[test]
fn nothing_is_lost_or_there_twice() {
    let seed = std::env::var("ARENITE_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("ARENITE_TEST_SEED={seed}");
    let mut world = World::new(seed);
    let most = std::env::var("ARENITE_TEST_EVENTS").ok().and_then(|most| most.parse().ok()).unwrap_or(EVENTS);
    let mut events = 0;
    while events < most {
        for _ in 0..world.any(6) {
            if world.any(3) < 2 { world.create() } else { world.delete() }
        }
        events += usize::from(world.disturb());
        if events % COMPARE_EVERY == COMPARE_EVERY - 1 {
            world.settle();
            world.compare();
            events += 1;
        }
    }
    world.settle();
    world.compare();
}
