//! Searches a tree of actions: each node is a state of a sandbox, and each branch an action that leads to the next.
//!
//! ```text
//!  root ──propose──► actions ──each, in a sandbox that starts as its parent──► children ──the best of a level──► their actions …
//! ```
//!
//! A level is expanded as a whole before the next begins. So the tree does not depend on which child was quicker.

use std::fmt::Display;
use std::future::Future;

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::Serialize;

/// How far a search goes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Actions from the root to a leaf.
    pub depth: usize,
    /// Actions that are tried at each node.
    pub breadth: usize,
    /// Nodes of a level that are continued, the best first; none: all.
    pub beam: Option<usize>,
    /// Children that are expanded at once.
    pub parallel: usize,
    /// The search ends with the level on which a node has this score.
    pub goal: Option<f64>,
}

/// One state, and the action that led to it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Node {
    /// Positions on the way from the root, such as `0-2-1`; the root is `root`.
    pub id: String,
    pub parent: Option<String>,
    pub depth: usize,
    /// None: the root.
    pub action: Option<String>,
    /// None: it could not be run.
    pub exit_code: Option<i64>,
    /// The end of the action's output.
    pub output: String,
    /// The higher, the better. None: there is no score, or it could not be computed.
    pub score: Option<f64>,
    /// Why its action or its score failed.
    pub error: Option<String>,
    /// The id of its sandbox, which is also that of its trajectory.
    pub sandbox: Option<String>,
}

/// The result of an action.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ActionResult {
    pub exit_code: Option<i64>,
    pub output: String,
    pub score: Option<f64>,
    pub error: Option<String>,
    pub sandbox: Option<String>,
}

/// What carries out a search.
pub trait Branches: Sync {
    /// The state of a node, from which its children start.
    type State: Send + Sync;
    type Error: Display + Send;

    /// The root.
    fn root(&self) -> impl Future<Output = Result<(ActionResult, Self::State), Self::Error>> + Send;

    /// Actions to try at the last node of a path.
    fn propose(&self, path: &[&Node], most: usize) -> impl Future<Output = Result<Vec<String>, Self::Error>> + Send;

    /// Runs the last action of `path` in a sandbox that starts as `parent`. The state is kept if `keep` is set.
    fn expand(
        &self,
        parent: &Self::State,
        id: &str,
        path: &[&str],
        keep: bool,
    ) -> impl Future<Output = Result<(ActionResult, Option<Self::State>), Self::Error>> + Send;

    /// Releases a state that no further child starts from.
    fn release(&self, state: Self::State) -> impl Future<Output = ()> + Send;

    /// Reports a level that was expanded.
    fn progress(&self, _depth: usize, _nodes: usize, _best: Option<f64>) {}
}

/// The nodes of a search, level by level, and the best of them.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tree {
    pub nodes: Vec<Node>,
    /// The id of the node with the best score; the first of several.
    pub best: Option<String>,
    /// Whether a node has the wanted score.
    pub solved: bool,
}

impl Tree {
    fn node(&self, id: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.id == id)
    }

    /// The nodes from the root to the one with this id.
    pub fn path(&self, id: &str) -> Vec<&Node> {
        let up = std::iter::successors(self.node(id), |node| self.node(node.parent.as_deref()?));
        let mut path: Vec<&Node> = up.collect();
        path.reverse();
        path
    }
}

/// Searches a tree.
///
/// # Errors
/// If the root, or a proposal, fails. A child that fails is a node with an error.
pub async fn explore<B: Branches>(branches: &B, bounds: Bounds) -> Result<Tree, B::Error> {
    let (result, state) = branches.root().await?;
    let mut tree = Tree { nodes: vec![node("root".to_owned(), None, 0, None, result)], best: None, solved: false };
    let mut level = vec![("root".to_owned(), state)];
    for depth in 1..=bounds.depth {
        rate(&mut tree, bounds.goal);
        if tree.solved || level.is_empty() {
            break;
        }
        let expanded = expand_level(branches, bounds, &tree, &level, depth).await;
        let released = stream::iter(level).for_each_concurrent(bounds.parallel, |(_, state)| branches.release(state));
        released.await;
        let mut expanded = expanded?;
        // A beam takes the best; of equal ones, the first.
        let mut order: Vec<usize> = (0..expanded.len()).collect();
        order.sort_by(|a, b| compare(expanded[*b].0.score, expanded[*a].0.score).then(a.cmp(b)));
        let kept = bounds.beam.unwrap_or(usize::MAX);
        let mut next = Vec::new();
        for (place, index) in order.into_iter().enumerate() {
            let (node, state) = &mut expanded[index];
            match state.take() {
                Some(state) if place < kept => next.push((index, node.id.clone(), state)),
                Some(state) => branches.release(state).await,
                None => {}
            }
        }
        next.sort_by_key(|(index, ..)| *index);
        level = next.into_iter().map(|(_, id, state)| (id, state)).collect();
        let best = expanded.iter().filter_map(|(node, _)| node.score).max_by(f64::total_cmp);
        branches.progress(depth, expanded.len(), best);
        tree.nodes.extend(expanded.into_iter().map(|(node, _)| node));
    }
    for (_, state) in level {
        branches.release(state).await;
    }
    rate(&mut tree, bounds.goal);
    Ok(tree)
}

async fn expand_level<B: Branches>(
    branches: &B,
    bounds: Bounds,
    tree: &Tree,
    level: &[(String, B::State)],
    depth: usize,
) -> Result<Vec<(Node, Option<B::State>)>, B::Error> {
    let proposals = stream::iter(level).map(|(id, state)| async move {
        let path = tree.path(id);
        let mut actions = branches.propose(&path, bounds.breadth).await?;
        actions.truncate(bounds.breadth);
        Ok((id, state, path, actions))
    });
    let proposals: Vec<_> = proposals.buffered(bounds.parallel).try_collect().await?;
    let children = proposals.iter().flat_map(|(parent, state, path, actions)| {
        actions.iter().enumerate().map(move |(index, action)| {
            let id = if parent.as_str() == "root" { index.to_string() } else { format!("{parent}-{index}") };
            async move {
                let taken = path.iter().filter_map(|node| node.action.as_deref());
                let path: Vec<&str> = taken.chain([action.as_str()]).collect();
                let keep = depth < bounds.depth;
                let (result, state) = match branches.expand(state, &id, &path, keep).await {
                    Ok(expanded) => expanded,
                    Err(error) => (ActionResult { error: Some(error.to_string()), ..ActionResult::default() }, None),
                };
                (node(id, Some((*parent).clone()), depth, Some(action.clone()), result), state)
            }
        })
    });
    Ok(stream::iter(children).buffered(bounds.parallel).collect().await)
}

fn node(id: String, parent: Option<String>, depth: usize, action: Option<String>, result: ActionResult) -> Node {
    let ActionResult { exit_code, output, score, error, sandbox } = result;
    Node { id, parent, depth, action, exit_code, output, score, error, sandbox }
}

/// The order of scores: none is the worst.
fn compare(a: Option<f64>, b: Option<f64>) -> std::cmp::Ordering {
    a.unwrap_or(f64::NEG_INFINITY).total_cmp(&b.unwrap_or(f64::NEG_INFINITY))
}

fn rate(tree: &mut Tree, goal: Option<f64>) {
    let mut best: Option<&Node> = None;
    for node in tree.nodes.iter().filter(|node| node.score.is_some()) {
        if best.is_none_or(|best| compare(node.score, best.score).is_gt()) {
            best = Some(node);
        }
    }
    tree.solved = goal.is_some_and(|goal| best.and_then(|best| best.score).is_some_and(|score| score >= goal));
    tree.best = best.map(|best| best.id.clone());
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::Mutex;

    use super::*;

    /// States are texts, and actions append a letter. `b` fails, and counts of `c` are scores.
    #[derive(Default)]
    struct Letters {
        held: Mutex<HashSet<String>>,
    }

    impl Letters {
        fn hold(&self, text: &str) -> String {
            assert!(self.held.lock().unwrap().insert(text.to_owned()));
            text.to_owned()
        }
    }

    impl Branches for Letters {
        type State = String;
        type Error = String;

        async fn root(&self) -> Result<(ActionResult, String), String> {
            Ok((ActionResult { score: Some(0.0), ..ActionResult::default() }, self.hold("")))
        }

        async fn propose(&self, path: &[&Node], most: usize) -> Result<Vec<String>, String> {
            assert!(path.first().is_some_and(|root| root.id == "root"));
            Ok(["a", "b", "c", "d"].into_iter().take(most + 1).map(str::to_owned).collect())
        }

        async fn expand(
            &self,
            parent: &String,
            _id: &str,
            path: &[&str],
            keep: bool,
        ) -> Result<(ActionResult, Option<String>), String> {
            let action = path.last().unwrap();
            // Others are quicker.
            for _ in 0..path.concat().bytes().map(usize::from).sum::<usize>() % 7 {
                tokio::task::yield_now().await;
            }
            let text = format!("{parent}{action}");
            assert_eq!(text, path.concat());
            if *action == "b" {
                return Err("b fails".to_owned());
            }
            let score = Some(text.matches('c').count() as f64);
            Ok((ActionResult { score, ..ActionResult::default() }, keep.then(|| self.hold(&text))))
        }

        async fn release(&self, state: String) {
            assert!(self.held.lock().unwrap().remove(&state));
        }
    }

    async fn search(bounds: Bounds) -> Tree {
        let letters = Letters::default();
        let tree = explore(&letters, bounds).await.unwrap();
        assert!(letters.held.lock().unwrap().is_empty(), "all states are released");
        tree
    }

    #[tokio::test]
    async fn a_tree_does_not_depend_on_what_is_quicker() {
        let all = Bounds { depth: 3, breadth: 3, beam: None, parallel: 1, goal: None };
        let tree = search(all).await;
        // The children of failed nodes are missing.
        assert_eq!(tree.nodes.len(), 1 + 3 + 2 * 3 + 4 * 3);
        assert_eq!((tree.best.as_deref(), tree.solved), (Some("2-2-2"), false));
        assert_eq!(tree.path("2-0-1").iter().filter_map(|node| node.action.as_deref()).collect::<String>(), "cab");
        assert_eq!(tree.node("1").unwrap().error.as_deref(), Some("b fails"));
        assert_eq!(search(Bounds { parallel: 8, ..all }).await, tree);
    }

    #[tokio::test]
    async fn a_beam_and_a_goal_end_it_sooner() {
        let bounds = Bounds { depth: 9, breadth: 4, beam: Some(2), parallel: 3, goal: Some(3.0) };
        let tree = search(bounds).await;
        assert!(tree.solved);
        assert_eq!(tree.best.as_deref(), Some("2-2-2"));
        assert_eq!(tree.nodes.len(), 1 + 4 + 2 * 4 + 2 * 4);
        let none = search(Bounds { depth: 1, goal: Some(2.0), ..bounds }).await;
        assert!(!none.solved && none.nodes.len() == 5);
    }
}
