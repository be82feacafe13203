//! Live steps, for followers such as viewers.
//!
//! The writer sends only the numbers of changed steps; followers read the steps from the log. So a slow follower holds numbers
//! and no bodies, and one that missed too many is notified.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast::{self, Receiver, Sender, error::RecvError, error::TryRecvError};

use crate::{Step, StepLog, TrajectoryError, TrajectoryKey};

/// Changes that wait for one follower; beyond this, it is behind.
const WAITING: usize = 1024;
/// The most steps of each kind, new and ended, that one read returns.
const PAGE: usize = 64;

/// What the writer sends.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// The step started or ended.
    Step(u64),
    /// The trajectory's sandbox was deleted.
    End,
}

/// Followers by trajectory.
#[derive(Default)]
pub(crate) struct Followers {
    feeds: Mutex<HashMap<TrajectoryKey, Sender<Change>>>,
}

impl Followers {
    fn feeds(&self) -> MutexGuard<'_, HashMap<TrajectoryKey, Sender<Change>>> {
        self.feeds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Call it after the record is written: a follower that joins later reads the record.
    pub(crate) fn tell(&self, key: &TrajectoryKey, change: Change) {
        if let Some(feed) = self.feeds().get(key) {
            // There may be no follower left.
            let _ = feed.send(change);
        }
    }

    fn join(&self, key: &TrajectoryKey, most: usize) -> Result<Receiver<Change>, TrajectoryError> {
        let mut feeds = self.feeds();
        let feed = feeds.entry(key.clone()).or_insert_with(|| broadcast::channel(WAITING).0);
        if feed.receiver_count() >= most {
            return Err(TrajectoryError::TooManyFollowers { trajectory: key.trajectory().to_owned(), most });
        }
        Ok(feed.subscribe())
    }

    /// The follower that leaves is still counted.
    fn leave(&self, key: &TrajectoryKey) {
        let mut feeds = self.feeds();
        if feeds.get(key).is_some_and(|feed| feed.receiver_count() <= 1) {
            feeds.remove(key);
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.feeds().len()
    }
}

/// What a follower can do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Something to [`Follow::read`].
    Steps,
    /// The sandbox was deleted, and all its steps were read with their outcomes. Nothing comes after it.
    End,
    /// More changed than was read. To continue, start over from [`Follow::complete`].
    Behind,
}

/// A follower of one trajectory: call `news`, then `read`, and repeat.
pub struct Follow {
    key: TrajectoryKey,
    log: Arc<dyn StepLog>,
    followers: Arc<Followers>,
    changes: Receiver<Change>,
    /// The last step that was read.
    last: u64,
    /// Steps that were open when they were read.
    open: BTreeSet<u64>,
    /// The steps of `open` that have changed since.
    ended: BTreeSet<u64>,
    /// Steps exist after `last`.
    more: bool,
    /// The trajectory's sandbox was deleted.
    over: bool,
}

impl Follow {
    /// Follows the steps after `after`, with at most `tail` past steps.
    pub(crate) fn begin(
        key: TrajectoryKey,
        log: Arc<dyn StepLog>,
        followers: Arc<Followers>,
        most: usize,
        (after, tail): (u64, Option<u64>),
    ) -> Result<Self, TrajectoryError> {
        // Joins before it reads the log, so that it hears of steps recorded in between.
        let changes = followers.join(&key, most)?;
        let mut follow = Self {
            key,
            log,
            followers,
            changes,
            last: 0,
            open: BTreeSet::new(),
            ended: BTreeSet::new(),
            more: true,
            over: false,
        };
        let (last, over) = follow.log.stand(&follow.key)?;
        let oldest = tail.map_or(0, |tail| last.saturating_sub(tail));
        (follow.last, follow.over) = (after.clamp(oldest, last), over);
        Ok(follow)
    }

    /// The number up to which all steps were read with their outcomes.
    pub fn complete(&self) -> u64 {
        self.open.first().map_or(self.last, |first| first - 1)
    }

    /// Waits for something to read. Cancellation loses nothing.
    pub async fn news(&mut self) -> News {
        loop {
            if self.more || !self.ended.is_empty() {
                return News::Steps;
            }
            if self.over && self.open.is_empty() {
                return News::End;
            }
            match self.changes.recv().await {
                Ok(change) => self.note(change),
                Err(RecvError::Lagged(_)) => return News::Behind,
                Err(RecvError::Closed) => return News::End,
            }
            // Everything else that has arrived is read together.
            loop {
                match self.changes.try_recv() {
                    Ok(change) => self.note(change),
                    Err(TryRecvError::Lagged(_)) => return News::Behind,
                    Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                }
            }
        }
    }

    fn note(&mut self, change: Change) {
        match change {
            Change::Step(step) if step > self.last => self.more = true,
            Change::Step(step) if self.open.contains(&step) => {
                self.ended.insert(step);
            }
            Change::Step(_) => {}
            Change::End => self.over = true,
        }
    }

    /// Reads the changes from the log: steps that ended, then new ones. A new step may still be open; it then comes again. Reads
    /// files, so don't call it on a thread that serves requests.
    pub fn read(&mut self) -> Result<Vec<Step>, TrajectoryError> {
        let mut steps = Vec::new();
        while steps.len() < PAGE
            && let Some(number) = self.ended.pop_first()
        {
            let step = self.log.steps(&self.key, number - 1, 1)?.pop();
            if let Some(step) = step.filter(|step| step.step == number && step.outcome.is_some()) {
                self.open.remove(&number);
                steps.push(step);
            }
        }
        let new = match self.log.steps(&self.key, self.last, PAGE) {
            // A sandbox that was not called yet.
            Err(TrajectoryError::NoTrajectory { .. }) => Vec::new(),
            other => other?,
        };
        self.more = new.len() == PAGE;
        for step in new {
            self.last = step.step;
            if step.outcome.is_none() {
                self.open.insert(step.step);
            }
            steps.push(step);
        }
        Ok(steps)
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.followers.leave(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Intent, Limits, OpenStep, Origin, Outcome, OutcomeKind, Recorder};
    use arenite_model::TenantId;

    fn recorder(dir: &tempfile::TempDir, followers: usize) -> Recorder {
        Recorder::open(dir.path().to_owned(), Limits { followers, ..Limits::default() }).unwrap()
    }

    fn begin(recorder: &Recorder, trajectory: &str) -> OpenStep {
        let intent = Intent {
            tenant: TenantId::default_tenant(),
            trajectory: trajectory.to_owned(),
            sandbox_name: String::new(),
            dialect: "aio",
            action: "GET /v1/sandbox".to_owned(),
            arguments: None,
            origin: Origin::Agent,
            client: None,
            request_id: String::new(),
            work: None,
        };
        recorder.begin(intent).unwrap()
    }

    fn finish(step: OpenStep) {
        step.finish(Outcome { status: Some(200), result: OutcomeKind::Ok, error: None }).unwrap();
    }

    fn follow(recorder: &Recorder, after: u64, tail: Option<u64>) -> Follow {
        recorder.follow(&TenantId::default_tenant(), "one", after, tail).unwrap()
    }

    /// Numbers, and whether the step has ended.
    async fn next(follow: &mut Follow) -> Vec<(u64, bool)> {
        let news = tokio::time::timeout(std::time::Duration::from_secs(60), follow.news()).await;
        assert_eq!(news.expect("nobody told of a step"), News::Steps);
        follow.read().unwrap().iter().map(|step| (step.step, step.outcome.is_some())).collect()
    }

    #[tokio::test]
    async fn a_step_comes_when_it_begins_and_when_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = recorder(&dir, 4);
        let mut follow = follow(&recorder, 0, None);
        // Nothing exists yet, not even a log.
        assert_eq!(next(&mut follow).await, []);
        let (one, two) = (begin(&recorder, "one"), begin(&recorder, "one"));
        finish(begin(&recorder, "other"));
        assert_eq!(next(&mut follow).await, [(1, false), (2, false)]);
        assert_eq!(follow.complete(), 0);
        finish(two);
        assert_eq!(next(&mut follow).await, [(2, true)]);
        // A follower that continues from here must receive the end of the first.
        assert_eq!(follow.complete(), 0);
        finish(one);
        assert_eq!(next(&mut follow).await, [(1, true)]);
        assert_eq!(follow.complete(), 2);
        // Started and ended in between: read once, with its outcome.
        finish(begin(&recorder, "one"));
        assert_eq!(next(&mut follow).await, [(3, true)]);
        recorder.close_trajectory(&TenantId::default_tenant(), "one");
        assert_eq!(follow.news().await, News::End);
    }

    #[tokio::test]
    async fn the_end_waits_for_what_is_under_way() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = recorder(&dir, 4);
        let mut follow = follow(&recorder, 0, None);
        let last = begin(&recorder, "one");
        recorder.close_trajectory(&TenantId::default_tenant(), "one");
        assert_eq!(next(&mut follow).await, [(1, false)]);
        finish(last);
        assert_eq!(next(&mut follow).await, [(1, true)]);
        assert_eq!(follow.news().await, News::End);
    }

    #[tokio::test]
    async fn the_past_comes_in_pages_and_as_much_as_is_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = recorder(&dir, 4);
        for _ in 0..150 {
            finish(begin(&recorder, "one"));
        }
        for (after, tail, wanted) in
            [(0, None, 1..=150), (147, None, 148..=150), (0, Some(2), 149..=150), (149, Some(100), 150..=150)]
        {
            let mut follow = follow(&recorder, after, tail);
            let mut got = Vec::new();
            while got.last() != Some(&150) {
                let page = next(&mut follow).await;
                assert!(page.len() <= PAGE);
                got.extend(page.into_iter().map(|(step, _)| step));
            }
            assert_eq!(got, wanted.collect::<Vec<_>>());
        }
        // A number that doesn't exist yet: only future steps.
        let mut late = follow(&recorder, 1000, None);
        assert_eq!(next(&mut late).await, []);
        finish(begin(&recorder, "one"));
        assert_eq!(next(&mut late).await, [(151, true)]);
    }

    #[tokio::test]
    async fn who_does_not_read_is_told_that_he_is_behind() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = recorder(&dir, 4);
        let (mut slow, mut quick) = (follow(&recorder, 0, None), follow(&recorder, 0, None));
        next(&mut slow).await;
        for _ in 0..=WAITING / 2 {
            finish(begin(&recorder, "one"));
            while quick.complete() < quick.log.stand(&quick.key).unwrap().0 {
                next(&mut quick).await;
            }
        }
        assert_eq!(slow.news().await, News::Behind);
        assert_eq!(slow.complete(), 0);
    }

    #[tokio::test]
    async fn followers_are_counted_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = recorder(&dir, 2);
        let both = (follow(&recorder, 0, None), follow(&recorder, 0, None));
        let refused = recorder.follow(&TenantId::default_tenant(), "one", 0, None);
        assert!(matches!(refused.err(), Some(TrajectoryError::TooManyFollowers { most: 2, .. })));
        assert!(recorder.follow(&TenantId::default_tenant(), "other", 0, None).is_ok());
        let followers = Arc::clone(&both.0.followers);
        drop(both.0);
        assert_eq!(followers.len(), 1);
        let again = follow(&recorder, 0, None);
        drop((both.1, again));
        assert_eq!(followers.len(), 0);
    }
}
