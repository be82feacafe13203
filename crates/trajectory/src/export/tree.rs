use jiff::Timestamp;

use super::source::Source;
use super::{MAX_BRANCHES, call};
use crate::{OutcomeKind, Step, TrajectoryError};

/// Which step goes on from which, and what is said of the whole. Read once, before anything is written; steps that begin
/// later are not in the export.
pub(super) struct Tree {
    /// By step, from 1: the step before it, 0 for none; and how many are on the way to it, itself included.
    nodes: Vec<(u64, u32)>,
    /// Pairs of a step and one that goes on from it, in order.
    children: Vec<(u64, u64)>,
    pub(super) about: About,
}

/// What is known of the whole without any body.
#[derive(Default)]
pub(super) struct About {
    pub(super) sandbox: String,
    pub(super) worker: Option<String>,
    pub(super) task: Option<String>,
    pub(super) first_at: Option<Timestamp>,
    pub(super) last_at: Option<Timestamp>,
}

impl Tree {
    pub(super) fn read(source: &mut Source<'_>) -> Result<Self, TrajectoryError> {
        let mut tree = Self { nodes: Vec::new(), children: Vec::new(), about: About::default() };
        loop {
            let steps = source.after(tree.steps())?;
            if steps.is_empty() {
                break;
            }
            for step in steps {
                tree.add(step);
            }
        }
        tree.children = (1..).zip(&tree.nodes).map(|(step, (parent, _))| (*parent, step)).collect();
        tree.children.sort_unstable();
        Ok(tree)
    }

    fn add(&mut self, step: &Step) {
        // Numbers have no gaps, unless a line was lost; then what is missing is passed over.
        while self.steps() + 1 < step.step {
            let before = self.steps();
            self.nodes.push((before, self.depth(before) + 1));
        }
        let before = self.steps();
        let parent = step.work.as_ref().and_then(|work| work.parent);
        // One that was not before it can't be gone on from: what a client says may be wrong.
        let parent = parent.filter(|parent| *parent <= before).unwrap_or(before);
        self.nodes.push((parent, self.depth(parent) + 1));
        let about = &mut self.about;
        if about.first_at.is_none() {
            about.sandbox.clone_from(&step.sandbox_name);
            about.first_at = Some(step.started_at);
        }
        if let Some(work) = &step.work {
            about.worker.get_or_insert_with(|| work.worker.clone());
            if about.task.is_none() {
                about.task.clone_from(&work.task);
            }
        }
        about.last_at = about.last_at.max(Some(step.ended_at.unwrap_or(step.started_at)));
    }

    pub(super) fn steps(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// The step before it; 0 for none.
    pub(super) fn parent(&self, step: u64) -> u64 {
        self.nodes.get(step.wrapping_sub(1) as usize).map_or(0, |node| node.0)
    }

    /// 1 for a first step.
    pub(super) fn depth(&self, step: u64) -> u32 {
        self.nodes.get(step.wrapping_sub(1) as usize).map_or(0, |node| node.1)
    }

    pub(super) fn children(&self, step: u64) -> impl Iterator<Item = u64> {
        let start = self.children.partition_point(|(parent, _)| *parent < step);
        self.children[start..].iter().take_while(move |(parent, _)| *parent == step).map(|(_, child)| *child)
    }

    /// Whether any step goes on from another than the one before it.
    pub(super) fn branches(&self) -> bool {
        (1..).zip(&self.nodes).any(|(step, (parent, _))| *parent + 1 != step)
    }

    /// Last steps of branches, in order.
    pub(super) fn leaves(&self, trajectory: &str) -> Result<Vec<u64>, TrajectoryError> {
        let leaves: Vec<u64> = (1..=self.steps()).filter(|step| self.children(*step).next().is_none()).collect();
        if leaves.len() > MAX_BRANCHES {
            return Err(TrajectoryError::TooManyBranches { trajectory: trajectory.to_owned(), branches: leaves.len() });
        }
        Ok(leaves)
    }

    /// The steps that lead to one, itself the last.
    pub(super) fn path(&self, leaf: u64) -> Vec<u64> {
        let mut path: Vec<u64> =
            std::iter::successors(Some(leaf), |step| Some(self.parent(*step))).take_while(|s| *s > 0).collect();
        path.reverse();
        path
    }
}

impl About {
    /// What the work was, by the best name there is.
    pub(super) fn task<'a>(&'a self, trajectory: &'a str) -> &'a str {
        self.task.as_deref().unwrap_or(trajectory)
    }
}

/// What became of the calls on a way, as far as calls tell.
#[derive(Default)]
pub(super) struct Fate {
    unknown: bool,
    /// What the first call that never reached its tool said.
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

    /// Whether every call was answered, were it with a tool's error. None: of some it isn't known.
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
