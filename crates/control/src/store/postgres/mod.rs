//! The store in a Postgres database.

mod address;
mod annotations;
mod nodes;
mod owed;
mod rows;
mod schema;
mod session;
mod tenants;
mod usage;
mod webhooks;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

pub use address::{AddressError, PostgresAddress};

use self::owed::Owed;
use self::session::{OpenError, Session};
use self::writer::{Job, Work, Writer};
use super::database::Database;
use super::{Answer, Contents, Op, StoreError, waits};
use crate::ControlError;
use crate::nodes::{NodeClaim, NodeStore};

/// Queue of changes for the writer; beyond it, callers wait to enqueue.
const QUEUE: usize = 256;
/// How long a start waits for a database that can't be reached yet, as when the host boots.
const WAIT: Duration = Duration::from_secs(10);
/// How long it waits for the session of a server that has just ended.
const WAIT_FOR_LOCK: Duration = Duration::from_secs(3);
const AGAIN: Duration = Duration::from_millis(200);

/// Sandboxes in a Postgres database.
pub struct PostgresStore {
    /// None: it has the database alone.
    node: Option<NodeClaim>,
    jobs: mpsc::Sender<Job>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl PostgresStore {
    /// Connects, makes this server the only one of the database, and migrates its schema.
    ///
    /// # Errors
    /// [`ControlError::StoreInUse`] if another server has it; [`ControlError::NewerStore`] if a newer version made it.
    pub async fn open(address: PostgresAddress, data_dir: &Path) -> Result<Self, ControlError> {
        Self::open_as(address, data_dir, None).await
    }

    /// Connects as a node of a cluster. Migrates the schema if no other node is there.
    ///
    /// # Errors
    /// Those of [`Self::open`].
    pub async fn open_node(address: PostgresAddress, data_dir: &Path, node: NodeClaim) -> Result<Self, ControlError> {
        Self::open_as(address, data_dir, Some(node)).await
    }

    async fn open_as(address: PostgresAddress, data_dir: &Path, node: Option<NodeClaim>) -> Result<Self, ControlError> {
        let owed = read_owed(data_dir).await?;
        let begun = Instant::now();
        let mut waits = false;
        let (session, claim) = loop {
            let error = match Session::open(&address, node.as_ref()).await {
                Ok(opened) => break opened,
                Err(error) => error,
            };
            let limit = match &error {
                OpenError::Store(StoreError::Unavailable(_)) => WAIT,
                OpenError::InUse(_) => WAIT_FOR_LOCK,
                _ => Duration::ZERO,
            };
            let error = refused(&address, "be opened", error);
            if begun.elapsed() > limit {
                return Err(error);
            }
            if !std::mem::replace(&mut waits, true) {
                tracing::warn!(%error, "waiting for the store");
            }
            sleep(AGAIN).await;
        };
        let (jobs, queue) = mpsc::channel(QUEUE);
        let writer = tokio::spawn(Writer::new(address, claim, session, owed).run(queue));
        Ok(Self { node, jobs, writer: Mutex::new(Some(writer)) })
    }

    async fn carry_out(&self, work: Work) -> Answer {
        let since = std::time::Instant::now();
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { work, reply }).await.map_err(|_| StoreError::Closed)?;
        let answer = answer.await.unwrap_or(Err(StoreError::Closed));
        waits::add_since(since);
        answer
    }
}

/// See [`super::read`].
pub(super) async fn read(address: &PostgresAddress, data_dir: &Path) -> Result<Contents, ControlError> {
    let owed = read_owed(data_dir).await?;
    let (found, loaded) = session::within(session::LONG_EXCHANGE, async {
        let (client, _connection) = session::connect(address).await?;
        let found = schema::version(&client).await?.unwrap_or(0);
        // A schema of another version may lack columns.
        let contents = if found == schema::VERSION { load_all(&client).await } else { Ok(Contents::default()) };
        Ok((found, contents))
    })
    .await
    .map_err(|error| refused(address, "be read", error))?;
    super::check_version(&address.to_string(), found, schema::VERSION)?;
    let mut contents = loaded.map_err(|fault| refused(address, "be read", OpenError::Store(fault.into_error())))?;
    contents.sandboxes.retain(|row| !owed.removals().contains(&row.id));
    Ok(contents)
}

/// Reads everything as it was at one moment.
async fn load_all(client: &tokio_postgres::Client) -> Result<Contents, session::Fault> {
    client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
    Ok(Contents {
        sandboxes: rows::load_all(client).await?,
        tenants: Some(tenants::load(client).await?),
        usage: Some(usage::load(client).await?),
        records: Some(rows::all_records(client).await?),
        webhooks: Some(webhooks::load(client).await?),
        annotations: Some(annotations::load(client).await?),
    })
}

async fn read_owed(data_dir: &Path) -> Result<Owed, ControlError> {
    Owed::read(data_dir).await.map_err(|error| ControlError::Store {
        what: "read the removals that are not in it yet",
        source: StoreError::Database(format!("{}: {error}", data_dir.display())),
    })
}

fn refused(address: &PostgresAddress, what: &'static str, error: OpenError) -> ControlError {
    match error {
        OpenError::InUse(holder) => ControlError::StoreInUse { store: format!("{address}: {holder}") },
        OpenError::Newer { found } => ControlError::NewerStore { store: address.to_string(), found, known: schema::VERSION },
        OpenError::Store(StoreError::Unavailable(reason)) => {
            ControlError::Store { what, source: StoreError::Unavailable(format!("{address}: {reason}")) }
        }
        OpenError::Store(StoreError::Database(reason)) => {
            ControlError::Store { what, source: StoreError::Database(format!("{address}: {reason}")) }
        }
        OpenError::Store(source) => ControlError::Store { what, source },
    }
}

impl Database for PostgresStore {
    async fn ask(&self, op: Op) -> Answer {
        self.carry_out(Work::Rows(op)).await
    }

    fn node_store(self: Arc<Self>) -> Option<Arc<dyn NodeStore>> {
        self.node.is_some().then_some(self as Arc<dyn NodeStore>)
    }

    async fn join(&self) {
        let writer = self.writer.lock().await.take();
        if let Some(writer) = writer
            && writer.await.is_err()
        {
            tracing::error!("the store's writer panicked");
        }
    }
}
