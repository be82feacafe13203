//! The task that owns the session. It writes all waiting changes in one transaction.
//!
//! ```text
//!            the session ends, or no answer in time
//!        up ─────────────────────────────────────► down: a task connects again, every 0.2 to 5 s
//!         ▲                                          │
//!         └──────────────────────────────────────────┘ connected, with the lock, to the same store
//! ```
//!
//! Callers wait for the first attempt to connect again, and what they asked for is repeated then: a restart of the database
//! that takes no time fails no call. After that, calls fail at once until the database is back. Changes that must not be lost are
//! owed (`owed`).

use std::collections::{BTreeSet, VecDeque};
use std::pin::Pin;
use std::time::Duration;

use arenite_model::SandboxId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_postgres::Client;

use super::address::PostgresAddress;
use super::owed::Owed;
use super::schema::{Claim, Lock};
use super::session::{EXCHANGE, Fault, LONG_EXCHANGE, OpenError, Session, exchange, pipeline, transact};
use super::{annotations, rows, tenants, usage, webhooks};
use crate::Sandbox;
use crate::store::{Answer, Contents, Op, Rows, StoreError};
use crate::tenants::TenantLimits;

/// Maximum number of changes in one transaction.
const BATCH: usize = 64;
/// Maximum number of rows of an import that are sent together.
const IMPORTED: usize = 256;
/// The pause before the second attempt to connect, doubled after each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Interval between attempts to write owed changes. A successful write is valid for a check for this time.
const AGAIN: Duration = Duration::from_secs(1);

/// A transaction that keeps its own result. The flag says that an earlier attempt may have been written.
pub(super) type Transaction =
    Box<dyn for<'a> Fn(&'a Client, bool) -> Pin<Box<dyn Future<Output = Result<(), Fault>> + Send + 'a>> + Send + Sync>;

pub(super) enum Work {
    Rows(Op),
    Transaction(Transaction),
}

pub(super) struct Job {
    pub(super) work: Work,
    pub(super) reply: oneshot::Sender<Answer>,
}

pub(super) struct Writer {
    address: PostgresAddress,
    claim: Claim,
    /// The database's process for the last session.
    pid: i32,
    link: Link,
    owed: Owed,
    /// Why the last write failed, and when.
    trouble: Option<(StoreError, Instant)>,
    written: Option<Instant>,
}

enum Link {
    Up(Session),
    /// No error: the first attempt is in progress.
    Down {
        attempt: Attempt,
        pause: Duration,
        error: Option<StoreError>,
    },
}

/// Until the transaction ends, no other node changes what these tenants have.
const LOCK_TENANTS: &str = "SELECT pg_advisory_xact_lock(hashtextextended(tenant, 0)) FROM unnest($1::text[]) AS tenant";

async fn lock(client: &Client, tenants: &[&str]) -> Result<(), Fault> {
    if tenants.is_empty() {
        return Ok(());
    }
    exchange(EXCHANGE, async { Ok::<_, Fault>(client.execute(LOCK_TENANTS, &[&tenants]).await.map(drop)?) }).await
}

/// A task that connects. It ends with this.
struct Attempt(JoinHandle<Result<Session, OpenError>>);

impl Drop for Attempt {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum Event {
    Job(Option<Job>),
    /// The session ended by itself.
    Ended,
    /// An attempt to connect ended.
    Tried(Result<Result<Session, OpenError>, JoinError>),
    /// It is time to write owed changes.
    Due,
}

impl Writer {
    pub(super) fn new(address: PostgresAddress, claim: Claim, session: Session, owed: Owed) -> Self {
        Self { address, claim, pid: session.pid, link: Link::Up(session), owed, trouble: None, written: None }
    }

    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Job>) {
        loop {
            match self.next(&mut queue).await {
                Event::Job(Some(job)) => {
                    let mut jobs = VecDeque::from([job]);
                    while jobs.len() < BATCH
                        && let Ok(job) = queue.try_recv()
                    {
                        jobs.push_back(job);
                    }
                    let closes = jobs.iter().any(|job| matches!(job.work, Work::Rows(Op::Close)));
                    self.serve(jobs).await;
                    if closes {
                        break;
                    }
                }
                Event::Job(None) => break,
                Event::Ended => drop(self.lose(Fault::Lost("the database closed it".to_owned()))),
                Event::Tried(tried) => {
                    self.tried(tried);
                    self.write_owed().await;
                }
                Event::Due => self.write_owed().await,
            }
        }
        if let Link::Up(session) = self.link {
            session.close().await;
        }
    }

    async fn next(&mut self, queue: &mut mpsc::Receiver<Job>) -> Event {
        let due = self.trouble.as_ref().map_or_else(Instant::now, |(_, at)| *at + AGAIN);
        match &mut self.link {
            Link::Up(session) => tokio::select! {
                () = session.ended() => Event::Ended,
                job = queue.recv() => Event::Job(job),
                () = sleep_until(due), if !self.owed.is_empty() => Event::Due,
            },
            Link::Down { attempt, .. } => tokio::select! {
                tried = &mut attempt.0 => Event::Tried(tried),
                job = queue.recv() => Event::Job(job),
            },
        }
    }

    /// Starts to connect again, and returns why.
    fn lose(&mut self, fault: Fault) -> StoreError {
        let is_silent = matches!(fault, Fault::Silent);
        let reason = fault.into_error();
        tracing::warn!(%reason, "connecting to the store again");
        // A database that did not answer would only make callers wait longer.
        let (pause, error) = if is_silent { (FIRST_PAUSE, Some(reason.clone())) } else { (Duration::ZERO, None) };
        // The previous session closes its connection here, so that the database frees the lock.
        self.link = Link::Down { attempt: self.attempt(pause), pause: FIRST_PAUSE, error };
        reason
    }

    fn attempt(&self, pause: Duration) -> Attempt {
        let (address, claim, previous) = (self.address.clone(), self.claim.clone(), self.pid);
        Attempt(tokio::spawn(async move {
            sleep(pause).await;
            Session::reopen(&address, &claim, previous).await
        }))
    }

    fn tried(&mut self, tried: Result<Result<Session, OpenError>, JoinError>) {
        let reason = match tried {
            Ok(Ok(session)) => {
                tracing::info!("connected to the store again");
                self.pid = session.pid;
                self.link = Link::Up(session);
                return;
            }
            Ok(Err(OpenError::Store(error))) => error.to_string(),
            Ok(Err(OpenError::InUse(holder))) => format!("another server uses the database: {holder}"),
            Ok(Err(OpenError::Newer { found })) => format!("the database has schema version {found}, made by a newer arenite"),
            Err(error) => error.to_string(),
        };
        let (pause, before) = match &self.link {
            Link::Down { pause, error, .. } => (*pause, error.as_ref().map(StoreError::to_string)),
            Link::Up(_) => (FIRST_PAUSE, None),
        };
        if before.as_ref() != Some(&reason) {
            tracing::error!(error = reason, "the store can't be reached; running sandboxes are not affected");
        }
        let error = Some(StoreError::Unavailable(reason));
        self.link = Link::Down { attempt: self.attempt(pause), pause: (pause * 2).min(LONGEST_PAUSE), error };
    }

    /// Waits for the first attempt after a loss, if it is in progress.
    async fn ready(&mut self) -> Result<(), StoreError> {
        loop {
            match &mut self.link {
                Link::Up(_) => return Ok(()),
                Link::Down { error: Some(error), .. } => return Err(error.clone()),
                Link::Down { attempt, .. } => {
                    let tried = (&mut attempt.0).await;
                    self.tried(tried);
                }
            }
        }
    }

    async fn serve(&mut self, mut jobs: VecDeque<Job>) {
        let mut is_repeated = false;
        loop {
            if let Err(error) = self.ready().await {
                return self.refuse(jobs, &error, is_repeated).await;
            }
            let Err(fault) = self.write_all(&mut jobs, is_repeated).await else {
                return;
            };
            let may_repeat = matches!(fault, Fault::Lost(_)) && !is_repeated;
            is_repeated = true;
            let error = self.lose(fault);
            // If its commit was lost, a second import would find its own rows.
            let (kept, refused) =
                jobs.into_iter().partition(|job| may_repeat && !matches!(job.work, Work::Rows(Op::Import { .. })));
            self.refuse(refused, &error, true).await;
            jobs = kept;
            if jobs.is_empty() {
                return;
            }
        }
    }

    async fn refuse(&mut self, jobs: VecDeque<Job>, error: &StoreError, is_repeated: bool) {
        for job in jobs {
            self.answer(job, Err(error.clone()), is_repeated).await;
        }
    }

    /// Answers a job, and keeps a failed change that must not be lost. `is_repeated` says that an earlier attempt may have
    /// written it.
    async fn answer(&mut self, job: Job, answer: Answer, is_repeated: bool) {
        let answer = match (answer, job.work) {
            (Err(error), Work::Rows(Op::Remove(id))) => {
                tracing::warn!(%id, %error, "the row of a removed sandbox stays until the store can be written to");
                self.owed.remove(id).await;
                Ok(Rows::default())
            }
            (Err(error), Work::Rows(Op::Update(row))) => {
                self.owed.update(*row);
                Err(error)
            }
            (Err(error), Work::Rows(Op::Insert(row, _))) if is_repeated && !error.is_refusal() => {
                // Its caller undoes what it began, so the row must not appear later.
                self.owed.remove(row.id).await;
                Err(error)
            }
            (_, Work::Rows(Op::Close)) => Ok(Rows::default()),
            (answer, _) => answer,
        };
        // The caller may be gone.
        let _ = job.reply.send(answer);
    }

    /// Takes out the jobs that are done.
    async fn write_all(&mut self, jobs: &mut VecDeque<Job>, is_repeated: bool) -> Result<(), Fault> {
        if let Err(fault) = self.settle().await {
            let Fault::Refused(error) = fault else { return Err(fault) };
            self.refuse(std::mem::take(jobs), &error, is_repeated).await;
            return Ok(());
        }
        if jobs.len() > 1
            && let Some(answers) = self.write_together(jobs, is_repeated).await?
        {
            for (job, answer) in std::mem::take(jobs).into_iter().zip(answers) {
                self.answer(job, answer, is_repeated).await;
            }
            return Ok(());
        }
        while let Some(job) = jobs.front() {
            let written = match &job.work {
                Work::Rows(op) => self.write(op, is_repeated).await,
                Work::Transaction(work) => self.run_transaction(work, is_repeated).await,
            };
            let answer = match written {
                Err(Fault::Refused(error)) => Err(error),
                other => Ok(other?),
            };
            if let Some(job) = jobs.pop_front() {
                self.answer(job, answer, is_repeated).await;
            }
        }
        Ok(())
    }

    async fn run_transaction(&mut self, work: &Transaction, is_repeated: bool) -> Result<Rows, Fault> {
        self.passable().map_err(Fault::Refused)?;
        let client = &self.session()?.client;
        let done = transact(client, async { exchange(EXCHANGE, work(client, is_repeated)).await }).await;
        self.note_result(&done);
        done.map(|()| Rows::default())
    }

    /// Writes all jobs in one transaction. `None` if one needs its own, or if the database refused one and nothing was written;
    /// they are then written one by one.
    async fn write_together(&mut self, jobs: &VecDeque<Job>, is_repeated: bool) -> Result<Option<Vec<Answer>>, Fault> {
        let Some(ops) = jobs.iter().map(op_of_batch).collect::<Option<Vec<&Op>>>().filter(|_| self.passable().is_ok()) else {
            return Ok(None);
        };
        let session = self.session()?;
        let tenants = self.tenants_to_lock(&ops);
        let written = transact(&session.client, async {
            lock(&session.client, &tenants).await?;
            let mut answers = Vec::with_capacity(ops.len());
            let requests = ops.into_iter().map(|op| apply(session, op, is_repeated)).collect();
            for result in exchange(EXCHANGE, async { Ok::<_, Fault>(pipeline(requests).await) }).await? {
                answers.push(match result {
                    // It is no error of the transaction.
                    Err(Fault::Refused(error)) if error.is_refusal() => Err(error),
                    other => Ok(other?),
                });
            }
            Ok(answers)
        })
        .await;
        match written {
            Ok(answers) => {
                self.note(None);
                Ok(Some(answers))
            }
            Err(Fault::Refused(_)) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn write(&mut self, op: &Op, is_repeated: bool) -> Result<Rows, Fault> {
        match op {
            Op::Close => return Ok(Rows::default()),
            Op::Check if self.written.is_some_and(|at| at.elapsed() < AGAIN) && self.trouble.is_none() => {
                return Ok(Rows::default());
            }
            _ => self.passable().map_err(Fault::Refused)?,
        }
        let session = self.session()?;
        let written = match op {
            Op::Load => {
                return transact(&session.client, async {
                    exchange(EXCHANGE, session.client.batch_execute("SET LOCAL statement_timeout = '55s'")).await?;
                    let sandboxes = exchange(LONG_EXCHANGE, rows::load(&session.client)).await?;
                    Ok(Rows { sandboxes, ..Rows::default() })
                })
                .await;
            }
            Op::Import { contents, replace } => {
                transact(&session.client, import(session, contents, *replace)).await.map(|()| Rows::default())
            }
            op => match self.tenants_to_lock(&[op]) {
                tenants if tenants.is_empty() => exchange(EXCHANGE, apply(session, op, is_repeated)).await,
                tenants => {
                    transact(&session.client, async {
                        lock(&session.client, &tenants).await?;
                        exchange(EXCHANGE, apply(session, op, is_repeated)).await
                    })
                    .await
                }
            },
        };
        if !op.is_read() || written.is_err() {
            self.note_result(&written);
        }
        written
    }

    /// The tenants with quotas that changes may reach while other nodes create sandboxes, in one order for all nodes.
    fn tenants_to_lock<'a>(&self, ops: &[&'a Op]) -> Vec<&'a str> {
        if matches!(self.claim.lock(), Lock::Alone) {
            return Vec::new();
        }
        let tenants: BTreeSet<&str> = ops
            .iter()
            .filter_map(|op| match op {
                Op::Insert(row, limits) | Op::Reserve(row, limits) if limits.apply_to_sandboxes() => Some(row.tenant.as_str()),
                Op::PutVolume(row) if row.limits.apply_to_volumes() => Some(row.record.id.tenant.as_str()),
                _ => None,
            })
            .collect();
        tenants.into_iter().collect()
    }

    fn note_result<T>(&mut self, result: &Result<T, Fault>) {
        match result {
            Ok(_) => self.note(None),
            Err(Fault::Refused(error)) => self.note(Some(error)),
            Err(_) => {}
        }
    }

    fn session(&self) -> Result<&Session, Fault> {
        match &self.link {
            Link::Up(session) => Ok(session),
            Link::Down { .. } => Err(Fault::Silent),
        }
    }

    /// Fails right after an attempt that had to wait.
    fn passable(&self) -> Result<(), StoreError> {
        match &self.trouble {
            Some((error @ (StoreError::Locked | StoreError::Unavailable(_)), at)) if at.elapsed() < AGAIN => Err(error.clone()),
            _ => Ok(()),
        }
    }

    async fn write_owed(&mut self) {
        match self.settle().await {
            // The error is recorded in `trouble`, and the next attempt is due later.
            Ok(()) | Err(Fault::Refused(_)) => {}
            Err(fault) => drop(self.lose(fault)),
        }
    }

    /// Writes owed changes, if the database can be reached.
    async fn settle(&mut self) -> Result<(), Fault> {
        let Link::Up(session) = &self.link else { return Ok(()) };
        if self.owed.is_empty() {
            return Ok(());
        }
        self.passable().map_err(Fault::Refused)?;
        let ids: Vec<&str> = self.owed.removals().iter().map(SandboxId::as_str).collect();
        let written = transact(&session.client, async {
            exchange(EXCHANGE, session.statements.remove(&session.client, &ids)).await?;
            let updates: Vec<&Sandbox> = self.owed.updates().collect();
            for updates in updates.chunks(BATCH) {
                let requests = updates.iter().map(|row| session.statements.update(&session.client, row)).collect();
                for result in exchange(EXCHANGE, async { Ok::<_, Fault>(pipeline(requests).await) }).await? {
                    result?;
                }
            }
            Ok(())
        })
        .await;
        match written {
            Ok(()) => {
                tracing::info!(removals = ids.len(), "wrote the changes that the store had missed");
                self.owed.settle().await;
                self.note(None);
                Ok(())
            }
            Err(Fault::Refused(error)) => {
                self.note(Some(&error));
                Err(Fault::Refused(error))
            }
            Err(fault) => Err(fault),
        }
    }

    /// Records whether the store can be written.
    fn note(&mut self, error: Option<&StoreError>) {
        match error {
            None => {
                self.written = Some(Instant::now());
                if self.trouble.take().is_some() {
                    tracing::info!("the store can be written to again");
                }
            }
            Some(error) if error.is_refusal() => {}
            Some(error) => {
                if self.trouble.as_ref().is_none_or(|(before, _)| before.to_string() != error.to_string()) {
                    tracing::error!(%error, "the store can't be written to");
                }
                self.trouble = Some((error.clone(), Instant::now()));
            }
        }
    }
}

/// None: it needs its own transaction.
fn op_of_batch(job: &Job) -> Option<&Op> {
    match &job.work {
        Work::Rows(Op::Load | Op::Import { .. }) | Work::Transaction(_) => None,
        Work::Rows(op) => Some(op),
    }
}

/// Sends one change.
async fn apply(session: &Session, op: &Op, is_repeated: bool) -> Result<Rows, Fault> {
    let Session { client, statements, .. } = session;
    match op {
        Op::Insert(row, limits) => statements.insert(client, row, limits, is_repeated).await?,
        Op::Reserve(row, limits) => statements.reserve(client, row, limits).await?,
        Op::Update(row) => statements.update(client, row).await?,
        Op::PutVolume(row) => rows::put_volume(client, row, is_repeated).await?,
        Op::Touch(used) => statements.touch(client, used).await?,
        Op::Remove(id) => statements.remove(client, &[id.as_str()]).await?,
        Op::Check => client.batch_execute("UPDATE arenite_store SET version = version").await?,
        _ => return rows::apply_record(client, op).await,
    }
    Ok(Rows::default())
}

async fn import(session: &Session, contents: &Contents, replace: bool) -> Result<(), Fault> {
    let Session { client, statements, .. } = session;
    exchange(EXCHANGE, client.batch_execute("SET LOCAL statement_timeout = '55s'")).await?;
    let found: i64 = exchange(LONG_EXCHANGE, client.query_one("SELECT count(*) FROM sandboxes", &[])).await?.get(0);
    if found > 0 && !replace {
        return Err(Fault::Refused(StoreError::NotEmpty { rows: usize::try_from(found).unwrap_or(usize::MAX) }));
    }
    exchange(LONG_EXCHANGE, client.batch_execute("DELETE FROM sandboxes")).await?;
    let unlimited = TenantLimits::default();
    for rows in contents.sandboxes.chunks(IMPORTED) {
        let requests = rows.iter().map(|row| statements.insert(client, row, &unlimited, false)).collect();
        for result in exchange(LONG_EXCHANGE, async { Ok::<_, Fault>(pipeline(requests).await) }).await? {
            result?;
        }
    }
    if let Some(contents) = &contents.tenants {
        exchange(LONG_EXCHANGE, tenants::import(client, contents, replace)).await?;
    }
    if let Some(contents) = &contents.usage {
        exchange(LONG_EXCHANGE, usage::import(client, contents)).await?;
    }
    if let Some(records) = &contents.records {
        exchange(LONG_EXCHANGE, rows::import_records(client, records, replace)).await?;
    }
    if let Some(hooks) = &contents.webhooks {
        exchange(LONG_EXCHANGE, webhooks::import(client, hooks, replace)).await?;
    }
    if let Some(rows) = &contents.annotations {
        exchange(LONG_EXCHANGE, annotations::import(client, rows)).await?;
    }
    Ok(())
}
