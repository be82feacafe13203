//! One connection to the database, with the lock that makes its server the only one.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{Client, NoTls};

use super::address::PostgresAddress;
use super::nodes;
use super::rows::Statements;
use super::schema::{self, Claim, Lock};
use crate::nodes::NodeClaim;
use crate::store::StoreError;

/// Maximum time of one exchange with the database.
pub(super) const EXCHANGE: Duration = Duration::from_secs(5);
/// The same for reads of all rows and for migrations.
pub(super) const LONG_EXCHANGE: Duration = Duration::from_secs(60);

/// Settings of a session. A write fails if another session holds a lock for longer than SQLite waits, and before the exchange
/// ends. The last three free the lock of a server that is gone with its host.
const SETTINGS: &str = "
    SET lock_timeout = '700ms';
    SET statement_timeout = '3s';
    SET idle_in_transaction_session_timeout = '10s';
    SET tcp_keepalives_idle = 10;
    SET tcp_keepalives_interval = 5;
    SET tcp_keepalives_count = 3;
";

/// Why an exchange failed.
pub(super) enum Fault {
    /// The database refused it; the session continues.
    Refused(StoreError),
    /// The session is gone, and it is unknown whether the database did it.
    Lost(String),
    /// The same, but the database did not answer in time.
    Silent,
}

impl Fault {
    pub(super) fn into_error(self) -> StoreError {
        match self {
            Self::Refused(error) => error,
            Self::Lost(reason) => StoreError::Unavailable(format!("the connection to the database was lost: {reason}")),
            Self::Silent => silent(EXCHANGE),
        }
    }
}

fn silent(limit: Duration) -> StoreError {
    StoreError::Unavailable(format!("the database did not answer within {limit:?}"))
}

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(answer) = error.as_db_error() else {
            return Self::Lost(describe(&error));
        };
        if !matches!(answer.parsed_severity(), Some(Severity::Error)) {
            return Self::Lost(describe(&error));
        }
        let code = answer.code();
        Self::Refused(if *code == SqlState::DISK_FULL {
            StoreError::Full
        } else if [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code) {
            StoreError::Locked
        } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
            StoreError::ReadOnly
        } else if *code == SqlState::QUERY_CANCELED {
            StoreError::Unavailable("the database took too long".to_owned())
        } else if is_its_state(code) {
            StoreError::Unavailable(describe(&error))
        } else if code.code() == nodes::GIVEN_UP {
            StoreError::GivenUp
        } else {
            StoreError::Database(describe(&error))
        })
    }
}

/// Whether the cause is the state of the database server, as opposed to the statement: resources, an operator, or its files.
fn is_its_state(code: &SqlState) -> bool {
    ["53", "57", "58", "08"].iter().any(|class| code.code().starts_with(class))
}

/// The answer of the database, or the cause of a failed connection.
fn describe(error: &tokio_postgres::Error) -> String {
    if let Some(answer) = error.as_db_error() {
        return format!("{} ({})", answer.message(), answer.code().code());
    }
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

/// Why a session could not be opened.
pub(super) enum OpenError {
    Store(StoreError),
    /// Another server has the database; the text describes it.
    InUse(String),
    Newer {
        found: i64,
    },
}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<tokio_postgres::Error> for OpenError {
    fn from(error: tokio_postgres::Error) -> Self {
        Self::Store(match Fault::from(error) {
            Fault::Lost(reason) => StoreError::Unavailable(format!("the database can't be reached: {reason}")),
            other => other.into_error(),
        })
    }
}

/// A session. Dropping it closes the connection.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) statements: Statements,
    /// The database's process for it.
    pub(super) pid: i32,
    connection: Connection,
}

impl Session {
    /// Connects, takes the lock, and migrates the schema.
    pub(super) async fn open(address: &PostgresAddress, node: Option<&NodeClaim>) -> Result<(Self, Claim), OpenError> {
        let lock = if node.is_some() { Lock::Shared } else { Lock::Alone };
        let (client, connection) = within(EXCHANGE, connect_locked(address, lock, None)).await?;
        within(LONG_EXCHANGE, async {
            match lock {
                Lock::Alone => schema::migrate(&client).await?,
                Lock::Shared => schema::migrate_shared(&client).await?,
            }
            let claim = Claim::take(&client, node).await?;
            Ok((Self::with(client, connection, &claim).await?, claim))
        })
        .await
    }

    /// Connects again for the server that has the claim, and ends its `previous` session.
    pub(super) async fn reopen(address: &PostgresAddress, claim: &Claim, previous: i32) -> Result<Self, OpenError> {
        within(EXCHANGE, async {
            let (client, connection) = connect_locked(address, claim.lock(), Some(previous)).await?;
            claim.verify(&client).await?;
            Self::with(client, connection, claim).await
        })
        .await
    }

    async fn with(client: Client, connection: Connection, claim: &Claim) -> Result<Self, OpenError> {
        client.batch_execute(SETTINGS).await?;
        claim.set(&client).await?;
        let statements = Statements::prepare(&client).await?;
        let pid = client.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        Ok(Self { client, statements, pid, connection })
    }

    /// Waits until the connection ends.
    pub(super) async fn ended(&mut self) {
        // A panic of the task ends the connection too.
        let _ = (&mut self.connection.0).await;
    }

    /// Frees the lock, and closes the connection.
    pub(super) async fn close(self) {
        // If the database does not answer, it frees the lock when it sees the end of the connection.
        let _ = timeout(EXCHANGE, self.client.batch_execute("SELECT pg_advisory_unlock_all()")).await;
    }
}

/// The task of a connection, which ends with this.
pub(super) struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Connects as the only server, or as a node.
async fn connect_locked(address: &PostgresAddress, lock: Lock, previous: Option<i32>) -> Result<(Client, Connection), OpenError> {
    let (client, connection) = connect(address).await?;
    schema::lock(&client, lock, previous).await?;
    Ok((client, connection))
}

/// Connects to a database that fits.
pub(super) async fn connect(address: &PostgresAddress) -> Result<(Client, Connection), OpenError> {
    let (client, connection) = address.config().connect(NoTls).await?;
    let connection = Connection(tokio::spawn(async move {
        // The client's calls fail with it.
        let _ = connection.await;
    }));
    schema::check_server(&client).await?;
    Ok((client, connection))
}

pub(super) async fn within<T>(limit: Duration, work: impl Future<Output = Result<T, OpenError>>) -> Result<T, OpenError> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(silent(limit).into()))
}

/// Runs one exchange of a session with a time limit.
pub(super) async fn exchange<T, E>(limit: Duration, work: impl Future<Output = Result<T, E>>) -> Result<T, Fault>
where
    Fault: From<E>,
{
    Ok(timeout(limit, work).await.map_err(|_| Fault::Silent)??)
}

/// Runs work in a transaction, and undoes all of it if the work fails.
pub(super) async fn transact<T>(client: &Client, work: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
    exchange(EXCHANGE, client.batch_execute("BEGIN")).await?;
    let done = match work.await {
        Err(Fault::Refused(error)) => {
            exchange(EXCHANGE, client.batch_execute("ROLLBACK")).await?;
            return Err(Fault::Refused(error));
        }
        other => other?,
    };
    exchange(EXCHANGE, client.batch_execute("COMMIT")).await?;
    Ok(done)
}

/// Sends all requests in order before it waits for the first answer.
pub(super) async fn pipeline<T>(requests: Vec<impl Future<Output = T>>) -> Vec<T> {
    let mut requests: Vec<_> = requests.into_iter().map(|request| (Box::pin(request), None)).collect();
    poll_fn(|context| {
        let mut is_done = true;
        for (request, answer) in requests.iter_mut().filter(|(_, answer)| answer.is_none()) {
            match request.as_mut().poll(context) {
                Poll::Ready(result) => *answer = Some(result),
                Poll::Pending => is_done = false,
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    requests.into_iter().filter_map(|(_, answer)| answer).collect()
}
