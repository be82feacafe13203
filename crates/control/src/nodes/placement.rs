//! Placement: the node on which a sandbox is created.
//!
//! Of the nodes that are up and don't drain, it is one that fits, as far as nodes say what they have: the tier, the image, and
//! room by their own limits. Where none fits, the chosen node refuses the create with its own reason. Of the nodes that fit, it is
//! the one with fewer sandboxes of two random ones.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use arenite_image::NamedImage;
use arenite_model::{IdempotencyKey, ImageName, NodeName, SandboxSpec, SpecError, TenantId, Tier};
use sha2::{Digest, Sha256};

use super::{Cluster, Node, NodeState, NodeStore};
use crate::images::owner_of;
use crate::store::to_json;
use crate::{Control, ControlError, CreateRequest, Snapshot};

/// A node with more images does not say which.
const MAX_IMAGES: usize = 500;

/// A node pulls an image, or copies a snapshot, that others have when they have this many more sandboxes.
const PULL_WORTH: u64 = 16;

/// Maximum age of what a renewal says when another node reads it: both happen every two seconds.
const RENEWAL_AGE: Duration = Duration::from_secs(4);

/// A create that has no sandbox after this time is taken to have failed.
const PLACED_AGE: Duration = Duration::from_secs(30);

/// The images of a node, by owner and name.
type ImageNames = HashSet<(Option<TenantId>, ImageName)>;

/// The images of nodes, by the ids of their lists.
pub(super) type KnownImages = HashMap<String, Arc<ImageNames>>;

/// The images of a node as it tells the others.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageListing {
    /// Identifies the list; empty: the node does not say what it has.
    pub id: String,
    /// JSON.
    pub images: String,
}

impl ImageListing {
    fn new(mut images: Vec<NamedImage>) -> Self {
        if images.len() > MAX_IMAGES {
            return Self::default();
        }
        images.sort();
        let Ok(images) = to_json(&images) else { return Self::default() };
        Self { id: format!("{:x}", Sha256::digest(&images)), images }
    }

    fn read(&self) -> ImageNames {
        // Another version may say other things.
        let images: Vec<NamedImage> = serde_json::from_str(&self.images).unwrap_or_default();
        images.into_iter().map(|image| (image.owner, image.name)).collect()
    }
}

/// What a create needs of its node.
#[derive(Debug, Clone, Default)]
pub struct PlacementWish {
    tenant: Option<TenantId>,
    /// None: unknown.
    image: Option<ImageName>,
    /// Whether a node may pull the image.
    may_pull: bool,
    /// Instead of the image: the nodes that have the snapshot's disk. Others can copy it.
    holders: Option<Vec<NodeName>>,
    tier: Option<Tier>,
    /// Labels that the node must have.
    pub selector: BTreeMap<String, String>,
    /// Creates with the same key go to the same node while the same nodes fit.
    pub key: Option<String>,
}

impl Control {
    /// What a create needs. An invalid request needs nothing: any node refuses it.
    pub fn placement_wish(&self, tenant: &TenantId, request: &CreateRequest) -> PlacementWish {
        let resolved =
            self.resolve(tenant, request).and_then(|(_, mut spec)| self.limit_tier(tenant, None, &mut spec).map(|()| spec));
        let Ok(spec) = resolved else { return PlacementWish::default() };
        let may_pull = self.images.as_ref().is_some_and(|images| images.may_pull(tenant, &spec.image));
        PlacementWish {
            tenant: Some(tenant.clone()),
            image: Some(spec.image),
            may_pull,
            tier: spec.tier,
            ..PlacementWish::default()
        }
    }

    /// What a create from a snapshot needs, which these nodes have.
    pub fn snapshot_wish(&self, tenant: &TenantId, snapshot: &Snapshot, holders: Vec<NodeName>) -> PlacementWish {
        PlacementWish {
            tenant: Some(tenant.clone()),
            may_pull: true,
            holders: Some(holders),
            tier: Some(snapshot.tier),
            ..PlacementWish::default()
        }
    }

    /// What a fork on another node than its parent's needs.
    pub fn fork_wish(&self, tenant: &TenantId, spec: &SandboxSpec) -> PlacementWish {
        PlacementWish { tenant: Some(tenant.clone()), tier: spec.tier, ..PlacementWish::default() }
    }

    /// The other node that shall create a sandbox, except some. None: this one.
    ///
    /// # Errors
    /// [`ControlError::NoNodeFits`] if no node takes it.
    pub fn place(&self, wish: &PlacementWish, except: &[NodeName]) -> Result<Option<NodeName>, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(None) };
        self.cluster.place(&store.claim().name, || self.own_sandboxes(), wish, except)
    }

    /// The number of sandboxes on this node, for [`Self::count_sandboxes`] of others.
    pub fn own_sandboxes(&self) -> u64 {
        self.registry().len() as u64
    }

    /// Notes how many sandboxes another node has by its answer. Creates that follow each other faster than renewals are then spread
    /// evenly, too.
    pub fn count_sandboxes(&self, node: &NodeName, sandboxes: u64) {
        self.cluster.count(node, sandboxes);
    }

    /// The other node that has begun a create with an idempotency key.
    pub async fn owner_of_key(&self, tenant: &TenantId, key: &IdempotencyKey) -> Result<Option<NodeName>, ControlError> {
        let Some(store) = self.nodes_store() else { return Ok(None) };
        store.owner_of_key(tenant, key).await.map_err(ControlError::store("find the node of an idempotency key"))
    }

    /// Refuses a create here that selects nodes by labels which this one lacks.
    ///
    /// # Errors
    /// [`ControlError::NoNodeFits`]; a spec error on a server without a cluster, because no other node can come.
    pub fn check_selector(&self, selector: &BTreeMap<String, String>) -> Result<(), ControlError> {
        match has_labels(&self.config.node_labels, selector) {
            true => Ok(()),
            false if self.nodes_store().is_none() => Err(ControlError::Spec(SpecError::Invalid {
                field: "node_selector",
                reason: format!("this server is in no cluster, and does not have the labels {}", shown(selector)),
            })),
            false => Err(ControlError::NoNodeFits { reason: format!("no node has the labels {}", shown(selector)) }),
        }
    }

    /// The tiers of sandboxes that this node can create. An image can lack one.
    pub(super) async fn tiers(&self) -> Vec<Tier> {
        let mut tiers = Vec::new();
        // Nothing is said of an image that is nowhere.
        let Ok(image) = "none.invalid/none".parse::<ImageName>() else { return tiers };
        for tier in Tier::ALL {
            let spec = SandboxSpec { tier: Some(tier), ..SandboxSpec::of_image(image.clone()) };
            if self.engine.tier(&spec).await.is_ok() {
                tiers.push(tier);
            }
        }
        tiers
    }

    /// The images of this node.
    pub(super) async fn image_listing(&self) -> ImageListing {
        let Some(images) = &self.images else { return ImageListing::default() };
        let store = images.store().clone();
        match tokio::task::spawn_blocking(move || store.names()).await {
            Ok(Ok(names)) => ImageListing::new(names),
            Ok(Err(error)) => {
                tracing::warn!(%error, "the images of this node could not be listed for the other nodes");
                ImageListing::default()
            }
            Err(_) => ImageListing::default(),
        }
    }

    /// Takes over what the database says of the nodes.
    pub(crate) async fn learn(&self, store: &dyn NodeStore, nodes: Vec<Node>) {
        let known = self.cluster.images();
        let mut images: KnownImages = HashMap::new();
        let mut unknown = Vec::new();
        for id in nodes.iter().map(|node| &node.images).filter(|id| !id.is_empty()) {
            match known.get(id) {
                Some(names) => drop(images.insert(id.clone(), Arc::clone(names))),
                None => unknown.push(id.clone()),
            }
        }
        if !unknown.is_empty() {
            match store.image_listings(unknown).await {
                Ok(found) => images.extend(found.into_iter().map(|listing| (listing.id.clone(), Arc::new(listing.read())))),
                Err(error) => tracing::debug!(%error, "the images of other nodes could not be read"),
            }
        }
        *self.cluster.images.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(images);
        let own = nodes.iter().find(|node| node.name == store.claim().name).cloned();
        self.cluster.learn(nodes);
        if let Some(own) = own {
            self.follow_drain(&own);
        }
    }
}

/// How full a node is, where more is known than its last renewal says.
#[derive(Debug)]
pub(super) struct Fill {
    /// Its sandboxes when they were last counted.
    sandboxes: u64,
    counted_at: Instant,
    /// When creates were placed there that have no sandbox yet, as far as that is known. The oldest is the first.
    placed: VecDeque<Instant>,
}

impl Fill {
    fn new(sandboxes: u64) -> Self {
        Self { sandboxes, counted_at: Instant::now(), placed: VecDeque::new() }
    }

    /// Sandboxes that have been added were placed before.
    fn count(&mut self, sandboxes: u64) {
        let added = usize::try_from(sandboxes.saturating_sub(self.sandboxes)).unwrap_or(usize::MAX);
        self.placed.drain(..added.min(self.placed.len()));
        (self.sandboxes, self.counted_at) = (sandboxes, Instant::now());
    }

    /// With those that are on their way.
    fn total(&self) -> u64 {
        self.sandboxes + self.placed.len() as u64
    }

    /// Takes over what a renewal says if that is newer. Returns whether more is known than the renewal says.
    pub(super) fn renew(&mut self, sandboxes: Option<u64>) -> bool {
        while self.placed.front().is_some_and(|at| at.elapsed() >= PLACED_AGE) {
            self.placed.pop_front();
        }
        if self.counted_at.elapsed() < RENEWAL_AGE {
            return true;
        }
        if let Some(sandboxes) = sandboxes {
            self.count(sandboxes);
        }
        !self.placed.is_empty()
    }
}

impl Cluster {
    fn count(&self, node: &NodeName, sandboxes: u64) {
        let mut fill = self.fill.lock().unwrap_or_else(PoisonError::into_inner);
        fill.entry(node.clone()).or_insert_with(|| Fill::new(sandboxes)).count(sandboxes);
    }

    fn images(&self) -> Arc<KnownImages> {
        Arc::clone(&self.images.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// See [`Control::place`]. `own` sandboxes are on this node, `name`.
    pub(super) fn place(
        &self,
        name: &NodeName,
        own: impl FnOnce() -> u64,
        wish: &PlacementWish,
        except: &[NodeName],
    ) -> Result<Option<NodeName>, ControlError> {
        let nodes = self.nodes();
        let takes_creates = |node: &&Node| {
            let is_up = match node.name == *name {
                true => !self.leave.has_begun(),
                false => node.state == NodeState::Up,
            };
            is_up && node.drain.is_none() && !except.contains(&node.name)
        };
        let mut fit: Vec<&Node> = nodes.iter().filter(takes_creates).collect();
        if fit.is_empty() {
            // Before the first renewal.
            if nodes.is_empty() {
                return Ok(None);
            }
            return Err(ControlError::NoNodeFits { reason: "all nodes are draining, down or unreachable".to_owned() });
        }
        fit.retain(|node| has_labels(&node.facts.labels, &wish.selector));
        if fit.is_empty() {
            let reason = format!("no node that takes sandboxes has the labels {}", shown(&wish.selector));
            return Err(ControlError::NoNodeFits { reason });
        }
        let images = self.images();
        let mut fill = self.fill.lock().unwrap_or_else(PoisonError::into_inner);
        // Under the lock: an earlier number would seem to be a deletion.
        let own = own();
        fill.entry(name.clone()).or_insert_with(|| Fill::new(own)).count(own);
        let count = |node: &Node| fill.get(&node.name).map_or(node.facts.sandboxes, Fill::total);
        let since = |node: &Node| count(node).saturating_sub(node.facts.sandboxes);
        let has_tier = |node: &Node| match (wish.tier, &node.facts.tiers) {
            (Some(tier), Some(tiers)) => tiers.contains(&tier),
            _ => true,
        };
        let has_image = |node: &Node| {
            if let Some(holders) = &wish.holders {
                return holders.contains(&node.name);
            }
            let (Some(tenant), Some(image)) = (&wish.tenant, &wish.image) else { return true };
            let Some(names) = images.get(&node.images) else { return true };
            names.contains(&(None, image.clone())) || names.contains(&(owner_of(tenant), image.clone()))
        };
        let has_room = |node: &Node| node.facts.room.is_none_or(|room| since(node) < room);
        narrow(&mut fit, has_tier);
        let chosen = if wish.may_pull {
            narrow(&mut fit, has_room);
            let (with, without): (Vec<&Node>, Vec<&Node>) = fit.iter().partition(|node| has_image(node));
            match (&wish.key, better_of_two(&with, count), better_of_two(&without, count)) {
                // Where all creates went, all that follow would go.
                (None, Some(with), Some(without)) if count(without) + PULL_WORTH < count(with) => Some(without),
                (None, with, without) => with.or(without),
                (Some(key), ..) => of_key(key, if with.is_empty() { &without } else { &with }),
            }
        } else {
            // A node without the image is no place for it.
            narrow(&mut fit, has_image);
            narrow(&mut fit, has_room);
            match &wish.key {
                Some(key) => of_key(key, &fit),
                None => better_of_two(&fit, count),
            }
        };
        let Some(chosen) = chosen else { return Ok(None) };
        let there = fill.entry(chosen.name.clone()).or_insert_with(|| Fill::new(chosen.facts.sandboxes));
        there.placed.push_back(Instant::now());
        Ok((chosen.name != *name).then(|| chosen.name.clone()))
    }
}

/// The node of two random ones that has fewer sandboxes.
fn better_of_two<'a>(nodes: &[&'a Node], count: impl Fn(&Node) -> u64) -> Option<&'a Node> {
    if nodes.len() < 2 {
        return nodes.first().copied();
    }
    let (first, step) = (super::random(nodes.len()), 1 + super::random(nodes.len() - 1));
    let (a, b) = (nodes[first], nodes[(first + step) % nodes.len()]);
    Some(if count(a) <= count(b) { a } else { b })
}

/// The node of a key. Another node that comes or goes moves only its own share of the keys.
fn of_key<'a>(key: &str, nodes: &[&'a Node]) -> Option<&'a Node> {
    nodes.iter().max_by_key(|node| weight(key, &node.name)).copied()
}

/// Keeps the nodes that fit, if there are some.
fn narrow(nodes: &mut Vec<&Node>, fits: impl Fn(&Node) -> bool) {
    if nodes.iter().any(|node| fits(node)) {
        nodes.retain(|node| fits(node));
    }
}

fn has_labels(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

fn shown(selector: &BTreeMap<String, String>) -> String {
    selector.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(", ")
}

fn weight(key: &str, node: &NodeName) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, node.as_str()).hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::tests::node;
    use super::*;

    fn name(name: &str) -> NodeName {
        name.parse().unwrap()
    }

    /// A cluster that is seen from node `a`.
    fn cluster(nodes: Vec<Node>) -> Cluster {
        let cluster = Cluster::default();
        cluster.learn(nodes);
        cluster
    }

    fn up(names: &[&str]) -> Vec<Node> {
        names.iter().map(|name| node(name, NodeState::Up, 1, 0)).collect()
    }

    /// Where 30 creates are placed, in order of the names.
    fn places(cluster: &Cluster, wish: &PlacementWish) -> Vec<String> {
        let mut found: Vec<String> = (0..30)
            .map(|_| cluster.place(&name("a"), || 0, wish, &[]).unwrap().map_or("a".to_owned(), |node| node.to_string()))
            .collect();
        found.sort();
        found.dedup();
        found
    }

    #[test]
    fn a_burst_is_spread_before_this_node_has_a_sandbox_of_it() {
        let cluster = cluster(up(&["a", "b", "c"]));
        let mut others: HashMap<NodeName, u64> = HashMap::new();
        for number in 0..60 {
            if let Some(node) = cluster.place(&name("a"), || 0, &PlacementWish::default(), &[]).unwrap() {
                let there = others.entry(node.clone()).or_default();
                *there += 1;
                cluster.count(&node, *there);
            }
            if number % 10 == 0 {
                cluster.learn(up(&["a", "b", "c"]));
            }
        }
        let here = 60 - others.values().sum::<u64>();
        assert!((15..=25).contains(&here), "{here}");
    }

    #[test]
    fn creates_are_spread_evenly() {
        let wish = PlacementWish::default();
        let cluster = cluster(Vec::new());
        assert_eq!(cluster.place(&name("a"), || 0, &wish, &[]).unwrap(), None, "it knows no nodes yet");
        cluster.learn(up(&["a", "b", "c"]));
        let mut counts: HashMap<Option<NodeName>, u64> = HashMap::new();
        for _ in 0..600 {
            let here = counts.get(&None).copied().unwrap_or(0);
            *counts.entry(cluster.place(&name("a"), || here, &wish, &[]).unwrap()).or_default() += 1;
        }
        assert!(counts.len() == 3 && counts.values().all(|count| (180..=220).contains(count)), "{counts:?}");
        cluster.learn(vec![node("a", NodeState::Up, 1, 0), node("b", NodeState::Lost, 1, 0)]);
        assert_eq!(cluster.place(&name("a"), || 0, &wish, &[]).unwrap(), None);
    }

    #[test]
    fn a_renewal_from_before_a_burst_does_not_hide_it() {
        let wish = PlacementWish::default();
        let cluster = cluster(up(&["a", "b", "c"]));
        let mut counts: HashMap<NodeName, u64> = HashMap::new();
        for number in 0..150 {
            let here = counts.get(&name("a")).copied().unwrap_or(0);
            let node = cluster.place(&name("a"), || here, &wish, &[]).unwrap().unwrap_or(name("a"));
            let count = counts.entry(node.clone()).or_default();
            *count += 1;
            cluster.count(&node, *count);
            if number % 30 == 0 {
                cluster.learn(up(&["a", "b", "c"]));
            }
        }
        assert!(counts.values().all(|count| (44..=56).contains(count)), "{counts:?}");
    }

    #[test]
    fn creates_with_a_key_move_only_from_a_node_that_is_gone() {
        let cluster = cluster(up(&["a", "b", "c"]));
        let keyed = |key: u32| PlacementWish { key: Some(format!("key-{key}")), ..PlacementWish::default() };
        let all = || (0..60).map(|key| cluster.place(&name("a"), || 0, &keyed(key), &[]).unwrap()).collect::<Vec<_>>();
        let before = all();
        assert_eq!(before, all());
        assert!([None, Some(name("b")), Some(name("c"))].iter().all(|node| before.contains(node)), "{before:?}");
        cluster.learn(up(&["a", "b"]));
        for (before, after) in before.iter().zip(all()) {
            assert!(*before == after || *before == Some(name("c")), "{before:?} {after:?}");
        }
    }

    fn drained(mut node: Node) -> Node {
        node.drain = Some(super::super::NodeDrain { since: jiff::Timestamp::UNIX_EPOCH, deadline: None, is_over: false });
        node
    }

    #[test]
    fn nodes_that_drain_or_leave_or_refused_get_no_creates() {
        let wish = PlacementWish::default();
        let [a, b, c] = <[Node; 3]>::try_from(up(&["a", "b", "c"])).unwrap();
        let cluster = cluster(vec![a.clone(), drained(b.clone()), c.clone()]);
        assert_eq!(places(&cluster, &wish), ["a", "c"]);
        assert_eq!(cluster.place(&name("a"), || 0, &wish, &[name("c")]).unwrap(), None);
        cluster.learn(vec![drained(a.clone()), drained(b.clone()), c.clone()]);
        assert_eq!(places(&cluster, &wish), ["c"]);
        let error = cluster.place(&name("a"), || 0, &wish, &[name("c")]).unwrap_err();
        assert!(error.is_unavailable() && error.hint().unwrap().contains("uncordon"), "{error}");
        cluster.learn(vec![drained(a.clone())]);
        assert!(cluster.place(&name("a"), || 0, &wish, &[]).is_err(), "the only node drains");

        // This node stops: others get its creates.
        cluster.learn(vec![a, b, drained(c)]);
        cluster.leave.begin();
        assert_eq!(places(&cluster, &wish), ["b"]);
    }

    #[test]
    fn a_create_goes_to_nodes_with_its_image_tier_labels_and_room() {
        let [a, mut b, mut c] = <[Node; 3]>::try_from(up(&["a", "b", "c"])).unwrap();
        // `a` has an earlier version, which says nothing of these.
        b.facts.tiers = Some(vec![Tier::Namespace]);
        b.facts.labels = BTreeMap::from([("zone".to_owned(), "east".to_owned())]);
        c.facts.tiers = Some(vec![Tier::Namespace, Tier::Gvisor]);
        c.facts.room = Some(0);
        (b.images, c.images) = ("of-b".to_owned(), "of-c".to_owned());
        let cluster = cluster(vec![a.clone(), b.clone(), c.clone()]);
        let tenant: TenantId = "acme".parse().unwrap();
        let [everywhere, of_b, of_acme] = ["base", "team/b", "team/own"].map(|name| name.parse::<ImageName>().unwrap());
        *cluster.images.write().unwrap() = Arc::new(HashMap::from([
            ("of-b".to_owned(), Arc::new(HashSet::from([(None, everywhere.clone()), (None, of_b.clone())]))),
            ("of-c".to_owned(), Arc::new(HashSet::from([(None, everywhere.clone()), (Some(tenant.clone()), of_acme.clone())]))),
        ]));
        let image = |image: &ImageName| PlacementWish {
            tenant: Some(tenant.clone()),
            image: Some(image.clone()),
            ..PlacementWish::default()
        };
        assert_eq!(places(&cluster, &image(&everywhere)), ["a", "b"], "c has no room");
        cluster.learn(vec![a.clone(), b.clone(), c.clone()]);
        assert_eq!(places(&cluster, &image(&of_b)), ["a", "b"]);
        assert_eq!(places(&cluster, &PlacementWish { tier: Some(Tier::Gvisor), ..image(&everywhere) }), ["a"]);
        cluster.learn(vec![drained(a.clone()), b.clone(), c.clone()]);
        assert_eq!(places(&cluster, &image(&of_b)), ["b"]);
        assert_eq!(places(&cluster, &image(&of_acme)), ["c"], "what can't be pulled is created where it is, room or not");
        assert_eq!(places(&cluster, &PlacementWish { may_pull: true, ..image(&of_acme) }), ["b"]);
        let nowhere = "team/nowhere".parse().unwrap();
        assert_eq!(places(&cluster, &image(&nowhere)), ["b"], "of the others, one with room says why not");
        let of_stranger = PlacementWish { tenant: Some("other".parse().unwrap()), ..image(&of_acme) };
        assert_eq!(places(&cluster, &of_stranger), ["b"], "it is nowhere for another tenant");

        let mut selecting = image(&everywhere);
        selecting.selector = b.facts.labels.clone();
        assert_eq!(places(&cluster, &selecting), ["b"]);
        selecting.selector = BTreeMap::from([("zone".to_owned(), "west".to_owned())]);
        let error = cluster.place(&name("a"), || 0, &selecting, &[]).unwrap_err();
        assert!(error.to_string().contains("zone=west"), "{error}");
    }

    #[test]
    fn an_image_is_pulled_again_when_the_nodes_that_have_it_are_fuller() {
        let [mut a, mut b] = <[Node; 2]>::try_from(up(&["a", "b"])).unwrap();
        (a.images, b.images) = ("of-a".to_owned(), "of-b".to_owned());
        let cluster = cluster(vec![a, b]);
        let image: ImageName = "team/a".parse().unwrap();
        *cluster.images.write().unwrap() = Arc::new(HashMap::from([
            ("of-a".to_owned(), Arc::new(HashSet::from([(None, image.clone())]))),
            ("of-b".to_owned(), Arc::default()),
        ]));
        let tenant = Some("acme".parse().unwrap());
        let wish = PlacementWish { tenant, image: Some(image), may_pull: true, ..PlacementWish::default() };
        assert_eq!(cluster.place(&name("a"), || PULL_WORTH, &wish, &[]).unwrap(), None);
        assert_eq!(cluster.place(&name("a"), || PULL_WORTH + 1, &wish, &[]).unwrap(), Some(name("b")));
    }

    #[test]
    fn a_create_from_a_snapshot_goes_where_its_disk_is() {
        let wish = |holders: &[&str]| PlacementWish {
            may_pull: true,
            holders: Some(holders.iter().map(|one| name(one)).collect()),
            ..PlacementWish::default()
        };
        // Each time the first create: many at a place of the disk would be worth a copy.
        let first = |nodes: [&Node; 3], wish: &PlacementWish| {
            let one = || cluster(nodes.map(Node::clone).to_vec()).place(&name("a"), || 0, wish, &[]).unwrap();
            let found: BTreeSet<String> = (0..30).map(|_| one().map_or("a".to_owned(), |node| node.to_string())).collect();
            found.into_iter().collect::<Vec<_>>()
        };
        let [a, mut b, c] = <[Node; 3]>::try_from(up(&["a", "b", "c"])).unwrap();
        assert_eq!(first([&a, &b, &c], &wish(&["b"])), ["b"]);
        assert_eq!(first([&a, &b, &c], &wish(&["a", "c"])), ["a", "c"]);
        // Where there is no room for it, it is copied.
        b.facts.room = Some(0);
        assert_eq!(first([&a, &b, &c], &wish(&["b"])), ["a", "c"]);
        b.facts.labels = BTreeMap::from([("zone".to_owned(), "east".to_owned())]);
        let selected = PlacementWish { selector: b.facts.labels.clone(), ..wish(&["a"]) };
        assert_eq!(first([&a, &b, &c], &selected), ["b"]);
    }

    #[test]
    fn a_node_gets_no_more_creates_than_it_has_room_for() {
        let [a, mut b] = <[Node; 2]>::try_from(up(&["a", "b"])).unwrap();
        (b.facts.sandboxes, b.facts.room) = (7, Some(5));
        let cluster = cluster(vec![a, b]);
        // By number, it would be `b` each time.
        let on_b = (0..20).filter_map(|_| cluster.place(&name("a"), || 100, &PlacementWish::default(), &[]).unwrap()).count();
        assert_eq!(on_b, 5);
    }

    #[test]
    fn a_listing_is_the_same_in_any_order_and_has_a_bound() {
        let image = |number: usize| NamedImage {
            name: format!("team/image-{number}").parse().unwrap(),
            owner: number.is_multiple_of(2).then(|| "acme".parse().unwrap()),
            digest: "a".repeat(64),
        };
        let listing = ImageListing::new((0..MAX_IMAGES).map(image).collect());
        assert_eq!(listing, ImageListing::new((0..MAX_IMAGES).rev().map(image).collect()));
        assert!(listing.images.len() < 80 << 10, "{}", listing.images.len());
        assert_eq!(listing.read().len(), MAX_IMAGES);
        assert_ne!(listing.id, ImageListing::new((1..MAX_IMAGES).map(image).collect()).id);
        assert_eq!(ImageListing::new((0..=MAX_IMAGES).map(image).collect()), ImageListing::default());
    }
}
