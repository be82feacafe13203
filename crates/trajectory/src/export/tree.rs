use jiff::Timestamp;

use super::source::Source;
use super::{MAX_BRANCHES, call};
use crate::{Filter, MODEL_DIALECT, OutcomeKind, Step, TrajectoryError};

/// Which step continues which, and facts about the whole. Read once, before anything is written; steps that start later are not
/// in the export.
///
/// Steps are identified here by their places in the export, from 1; [`Tree::number`] returns a step's own number.
pub(super) struct Tree {
    nodes: Vec<Node>,
    /// The numbers of calls of models, which are in no branch.
    models: Vec<u64>,
    /// Pairs of a place and one that continues it, in order.
    children: Vec<(u64, u64)>,
    pub(super) about: About,
}

struct Node {
    number: u64,
    /// The place of the step before it; 0 for none.
    parent: u64,
    /// The number of steps on the way to it, including itself.
    depth: u32,
}

/// What is known of the whole without reading a body.
#[derive(Default)]
pub(super) struct About {
    pub(super) sandbox: String,
    pub(super) worker: Option<String>,
    pub(super) task: Option<String>,
    pub(super) first_at: Option<Timestamp>,
    pub(super) last_at: Option<Timestamp>,
}

impl Tree {
    pub(super) fn read(source: &mut Source<'_>, filter: &Filter) -> Result<Self, TrajectoryError> {
        let mut tree = Self { nodes: Vec::new(), models: Vec::new(), children: Vec::new(), about: About::default() };
        let mut after = 0;
        loop {
            let steps = source.after(after)?;
            let Some(last) = steps.last() else { break };
            after = last.step;
            steps.iter().filter(|step| filter.takes(step)).for_each(|step| tree.add(step));
        }
        tree.children = (1..).zip(&tree.nodes).map(|(place, node)| (node.parent, place)).collect();
        tree.children.sort_unstable();
        Ok(tree)
    }

    fn add(&mut self, step: &Step) {
        self.about.add(step);
        if step.dialect == MODEL_DIALECT {
            self.models.push(step.step);
            return;
        }
        let before = self.steps();
        let parent = step.work.as_ref().and_then(|work| work.parent);
        // A step can only continue an earlier one: what a client says may be wrong. If the parent is left out of the export, the
        // last earlier step that is in it replaces it.
        let parent = parent.filter(|parent| *parent < step.step);
        let parent = parent.map_or(before, |number| self.nodes.partition_point(|node| node.number <= number) as u64);
        self.nodes.push(Node { number: step.step, parent, depth: self.depth(parent) + 1 });
    }

    pub(super) fn has_models(&self) -> bool {
        !self.models.is_empty()
    }

    /// The numbers of all steps, also of calls of models, in order.
    pub(super) fn all_numbers(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.nodes.iter().map(|node| node.number).chain(self.models.iter().copied()).collect();
        all.sort_unstable();
        all
    }

    pub(super) fn steps(&self) -> u64 {
        self.nodes.len() as u64
    }

    fn node(&self, place: u64) -> Option<&Node> {
        self.nodes.get(usize::try_from(place.checked_sub(1)?).ok()?)
    }

    /// The number under which the step was recorded; 0 for the state before the first.
    pub(super) fn number(&self, place: u64) -> u64 {
        self.node(place).map_or(0, |node| node.number)
    }

    /// Places and numbers, in order.
    pub(super) fn numbers(&self) -> impl Iterator<Item = (u64, u64)> {
        (1..).zip(self.nodes.iter().map(|node| node.number))
    }

    /// Whether a step of this number is in the export.
    pub(super) fn has(&self, number: u64) -> bool {
        self.nodes.binary_search_by_key(&number, |node| node.number).is_ok()
    }

    /// The step before it; 0 for none.
    pub(super) fn parent(&self, place: u64) -> u64 {
        self.node(place).map_or(0, |node| node.parent)
    }

    /// The depth; 1 for a first step.
    pub(super) fn depth(&self, place: u64) -> u32 {
        self.node(place).map_or(0, |node| node.depth)
    }

    pub(super) fn children(&self, place: u64) -> impl Iterator<Item = u64> {
        let start = self.children.partition_point(|(parent, _)| *parent < place);
        self.children[start..].iter().take_while(move |(parent, _)| *parent == place).map(|(_, child)| *child)
    }

    /// Whether any step continues another than the one before it.
    pub(super) fn branches(&self) -> bool {
        (1..).zip(&self.nodes).any(|(place, node)| node.parent + 1 != place)
    }

    /// Last steps of branches, in order.
    pub(super) fn leaves(&self, trajectory: &str) -> Result<Vec<u64>, TrajectoryError> {
        let leaves: Vec<u64> = (1..=self.steps()).filter(|place| self.children(*place).next().is_none()).collect();
        if leaves.len() > MAX_BRANCHES {
            return Err(TrajectoryError::TooManyBranches { trajectory: trajectory.to_owned(), branches: leaves.len() });
        }
        Ok(leaves)
    }

    /// The numbers of the steps that lead to a leaf, including it.
    pub(super) fn path(&self, leaf: u64) -> Vec<u64> {
        let search_dirs = std::iter::successors(Some(leaf), |place| Some(self.parent(*place))).take_while(|place| *place > 0);
        let mut path: Vec<u64> = search_dirs.map(|place| self.number(place)).collect();
        path.reverse();
        path
    }
}

impl About {
    fn add(&mut self, step: &Step) {
        if self.first_at.is_none() {
            self.sandbox.clone_from(&step.sandbox_name);
            self.first_at = Some(step.started_at);
        }
        if let Some(work) = &step.work {
            self.worker.get_or_insert_with(|| work.worker.clone());
            if self.task.is_none() {
                self.task.clone_from(&work.task);
            }
        }
        self.last_at = self.last_at.max(Some(step.ended_at.unwrap_or(step.started_at)));
    }

    /// The task, by the best name available.
    pub(super) fn task<'a>(&'a self, trajectory: &'a str) -> &'a str {
        self.task.as_deref().unwrap_or(trajectory)
    }
}

/// The results of the calls on a path, as far as they are known.
#[derive(Default)]
pub(super) struct Fate {
    unknown: bool,
    /// The error of the first call that never reached its tool.
    pub(super) error: Option<String>,
    pub(super) first_at: Option<Timestamp>,
    pub(super) last_at: Option<Timestamp>,
}

impl Fate {
    pub(super) fn add(&mut self, step: &Step) {
        self.unknown |= call::unknown(step).is_some();
        if step.outcome == Some(OutcomeKind::Failed) && self.error.is_none() {
            self.error = Some(step.error.clone().unwrap_or_else(|| "the call failed".to_owned()));
        }
        self.first_at.get_or_insert(step.started_at);
        self.last_at = self.last_at.max(Some(step.ended_at.unwrap_or(step.started_at)));
    }

    /// Whether every call was answered, even with a tool's error. None: unknown for some.
    pub(super) fn success(&self) -> Option<bool> {
        match (&self.error, self.unknown) {
            (Some(_), _) => Some(false),
            (None, true) => None,
            (None, false) => Some(true),
        }
    }

    pub(super) fn milliseconds(&self) -> Option<f64> {
        let (first, last) = self.first_at.zip(self.last_at)?;
        Some(last.duration_since(first).as_millis_f64())
    }
}
