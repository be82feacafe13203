//! The thread that owns the connection. It writes all waiting changes in one transaction.
//!
//! A failing store is not given up. A row that can't be removed is *owed*: its sandbox is already gone, so the removal is
//! written as soon as possible, before any other row. A read-only connection is replaced.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use arenite_model::SandboxId;
use rusqlite::{Connection, ErrorCode, MAIN_DB, TransactionBehavior};

use super::reserve::Reserve;
use super::sqlite::{Job, Transaction, Work, apply, connect};
use super::{Answer, Op, Rows, StoreError};

/// Maximum number of changes in one transaction.
const BATCH: usize = 64;
/// Interval between attempts to write owed removals, or to replace a connection.
const AGAIN: Duration = Duration::from_secs(1);

pub(super) struct Writer {
    db: Connection,
    path: PathBuf,
    reserve: Reserve,
    /// Rows that could not be removed yet.
    owed: BTreeSet<SandboxId>,
    /// Why the last write failed, and when.
    trouble: Option<(StoreError, Instant)>,
    reopened: Option<Instant>,
}

impl Writer {
    pub(super) fn new(db: Connection, path: PathBuf) -> Self {
        let reserve = Reserve::open(path.with_extension("reserve"));
        let reads_only = db.is_readonly(MAIN_DB).unwrap_or(false);
        if reads_only {
            tracing::error!(path = %path.display(), "the store can only be read: no sandbox can be created");
        }
        let trouble = reads_only.then(|| (StoreError::ReadOnly, Instant::now()));
        Self { db, path, reserve, owed: BTreeSet::new(), trouble, reopened: None }
    }

    pub(super) fn run(mut self, queue: &Receiver<Job>) {
        let mut batch = Vec::new();
        loop {
            match self.next(queue) {
                Ok(job) => batch.push(job),
                Err(RecvTimeoutError::Timeout) => {
                    // The error is recorded in `trouble`.
                    let _ = self.check();
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while batch.len() < BATCH
                && let Ok(job) = queue.try_recv()
            {
                batch.push(job);
            }
            let closes = batch.iter().any(|job| matches!(job.work, Work::Rows(Op::Close)));
            self.serve(&mut batch);
            if closes {
                break;
            }
        }
        if let Err((_, error)) = self.db.close() {
            tracing::warn!(%error, "the store did not close cleanly");
        }
    }

    fn next(&self, queue: &Receiver<Job>) -> Result<Job, RecvTimeoutError> {
        match self.trouble {
            Some(_) => queue.recv_timeout(AGAIN),
            None => queue.recv().map_err(|_| RecvTimeoutError::Disconnected),
        }
    }

    fn serve(&mut self, batch: &mut Vec<Job>) {
        if self.trouble.is_none()
            && batch.len() > 1
            && let Some(answers) = self.write_together(batch)
        {
            for (job, answer) in batch.drain(..).zip(answers) {
                // The caller may be gone.
                let _ = job.reply.send(answer);
            }
            return;
        }
        for job in batch.drain(..) {
            let answer = match &job.work {
                Work::Rows(op) => self.write(op),
                Work::Transaction(work) => self.transact(work),
            };
            let _ = job.reply.send(answer);
        }
    }

    /// Writes all jobs in one transaction. `None` if one failed and nothing was written. For some errors of one statement,
    /// SQLite rolls the transaction back, for others not, so the batch is then written one by one.
    fn write_together<'a>(&mut self, batch: &'a [Job]) -> Option<Vec<Answer>> {
        // Imports and other transactions are undone alone if they fail.
        let op = |job: &'a Job| match &job.work {
            Work::Rows(Op::Import { .. }) | Work::Transaction(_) => None,
            Work::Rows(op) => Some(op),
        };
        let ops: Vec<&Op> = batch.iter().map(op).collect::<Option<_>>()?;
        let is_new = |op: &&Op| match op {
            Op::Insert(..) | Op::PutRecord(_) => true,
            Op::PutVolume(row) => row.before.is_none(),
            _ => false,
        };
        if ops.iter().any(is_new) && !self.reserve.take() {
            return None;
        }
        let change = self.db.transaction_with_behavior(TransactionBehavior::Immediate).ok()?;
        let mut answers = Vec::with_capacity(ops.len());
        for op in ops {
            let answer = match op {
                Op::Check => Ok(Rows::default()),
                _ => apply(&change, op),
            };
            if matches!(&answer, Err(error) if !error.is_refusal()) {
                return None;
            }
            answers.push(answer);
        }
        change.commit().ok()?;
        Some(answers)
    }

    fn write(&mut self, op: &Op) -> Answer {
        match op {
            Op::Close => Ok(Rows::default()),
            Op::Check => self.check().map(|()| Rows::default()),
            _ if op.is_read() => apply(&self.db, op),
            // The change of a row may be the start of a removal, which also a full disk must not prevent.
            Op::PutVolume(row) if row.before.is_some() => {
                self.passable()?;
                self.write_with_reserve(op)
            }
            Op::Insert(..) | Op::Reserve(..) | Op::PutRecord(_) | Op::PutVolume(_) => {
                if self.trouble.is_some() || !self.reserve.is_held() {
                    self.check()?;
                }
                let written = apply_alone(&mut self.db, op);
                self.note(written)
            }
            Op::Import { .. } => {
                self.check()?;
                let imported = apply_alone(&mut self.db, op);
                self.note(imported)
            }
            Op::Remove(id) => {
                let removed = self.passable().and_then(|()| self.write_with_reserve(op).map(drop));
                if let Err(error) = removed {
                    tracing::warn!(%id, %error, "the row of a removed sandbox stays until the store can be written to");
                    self.owed.insert(id.clone());
                }
                Ok(Rows::default())
            }
            _ => {
                self.passable()?;
                self.write_with_reserve(op)
            }
        }
    }

    fn transact(&mut self, work: &Transaction) -> Answer {
        self.passable()?;
        self.reopen_if_needed();
        let done = transact(&mut self.db, work);
        self.note(done)
    }

    /// Fails right after another process's lock made an attempt fail, since each attempt waits for the lock.
    fn passable(&self) -> Result<(), StoreError> {
        match &self.trouble {
            Some((StoreError::Locked, at)) if at.elapsed() < AGAIN => Err(StoreError::Locked),
            _ => Ok(()),
        }
    }

    fn write_with_reserve(&mut self, op: &Op) -> Answer {
        self.reopen_if_needed();
        let mut written = apply(&self.db, op);
        if matches!(written, Err(StoreError::Full)) && self.reserve.release() {
            written = apply(&self.db, op);
        }
        self.note(written)
    }

    /// Writes owed removals, and checks whether a new row could be written.
    fn check(&mut self) -> Result<(), StoreError> {
        self.passable()?;
        self.reopen_if_needed();
        let written = self.write_owed();
        let checked = match written {
            Ok(()) if self.reserve.take() => Ok(Rows::default()),
            Ok(()) => Err(StoreError::Full),
            Err(error) => Err(error),
        };
        self.note(checked).map(drop)
    }

    /// Writes even if nothing is owed: the same version again.
    fn write_owed(&mut self) -> Result<(), StoreError> {
        let mut written = try_owed(&mut self.db, &self.owed);
        if matches!(written, Err(StoreError::Full)) && !self.owed.is_empty() && self.reserve.release() {
            written = try_owed(&mut self.db, &self.owed);
        }
        if written.is_ok() && !self.owed.is_empty() {
            tracing::info!(rows = self.owed.len(), "removed the rows of sandboxes that were removed before");
            self.owed.clear();
        }
        written
    }

    /// Records whether the store is writable.
    fn note(&mut self, answer: Answer) -> Answer {
        match &answer {
            Ok(_) if self.owed.is_empty() && self.reserve.is_held() => {
                if self.trouble.take().is_some() {
                    tracing::info!("the store can be written to again");
                }
            }
            Ok(_) => {}
            Err(error) if error.is_refusal() => {}
            Err(error) => {
                if self.trouble.as_ref().is_none_or(|(before, _)| before.to_string() != error.to_string()) {
                    tracing::error!(%error, "the store can't be written to");
                }
                self.trouble = Some((error.clone(), Instant::now()));
            }
        }
        answer
    }

    /// A connection to a file that was not writable when it was opened stays read-only.
    fn reopen_if_needed(&mut self) {
        let failed = matches!(self.trouble, Some((StoreError::ReadOnly | StoreError::Database(_), _)));
        let reads_only = self.db.is_readonly(MAIN_DB).unwrap_or(true);
        if !(failed || reads_only) || self.reopened.is_some_and(|at| at.elapsed() < AGAIN) {
            return;
        }
        self.reopened = Some(Instant::now());
        match connect(&self.path, false) {
            Ok(db) => {
                let before = std::mem::replace(&mut self.db, db);
                if let Err((_, error)) = before.close() {
                    tracing::warn!(%error, "the store's connection that failed did not close cleanly");
                }
            }
            Err(error) => tracing::warn!(%error, "the store could not be opened again"),
        }
    }
}

fn apply_alone(db: &mut Connection, op: &Op) -> Answer {
    let change = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let answer = apply(&change, op)?;
    change.commit()?;
    Ok(answer)
}

/// A store that can only be read still answers transactions that only read.
fn transact(db: &mut Connection, work: &Transaction) -> Answer {
    let change = db.transaction_with_behavior(TransactionBehavior::Deferred)?;
    work(&change)?;
    change.commit()?;
    Ok(Rows::default())
}

fn try_owed(db: &mut Connection, owed: &BTreeSet<SandboxId>) -> Result<(), StoreError> {
    let change = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let version: i64 = change.pragma_query_value(None, "user_version", |row| row.get(0))?;
    change.pragma_update(None, "user_version", version)?;
    for id in owed {
        apply(&change, &Op::Remove(id.clone()))?;
    }
    change.commit()?;
    Ok(())
}

impl From<rusqlite::Error> for StoreError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation) => Self::Taken,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Locked,
            Some(ErrorCode::ReadOnly) => Self::ReadOnly,
            Some(ErrorCode::DiskFull) => Self::Full,
            _ => Self::Database(error.to_string()),
        }
    }
}
