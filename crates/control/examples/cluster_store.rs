//! What the nodes of a cluster cost their database, by the store's own code: the inputs of docs/SCALING.md, which `cargo xtask
//! bench --only nodes` prints.
//!
//! `cluster_store URL`: an empty database of a Postgres server on this host, such as
//! `postgres:///cluster?host=/run/postgresql`. Prints a line of JSON for each number. Times of the database are those of the CPU,
//! of all its processes, so that other load on this host does not count.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arenite_control::nodes::{Node, NodeClaim, NodeFacts, NodeStore, SandboxKey};
use arenite_control::store::{PostgresAddress, PostgresStore, Store, UsageStore};
use arenite_control::tenants::TenantLimits;
use arenite_control::usage::{Meter, UsageSample, UsedAmounts};
use arenite_control::{Provenance, Sandbox};
use arenite_model::{SandboxId, SandboxSpec, SandboxState, TenantId};
use jiff::Timestamp;
use serde_json::json;
use tokio_postgres::{Client, NoTls};

type Anything<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Nodes that write at the same time. Debian's Postgres allows 100 connections.
const WRITERS: usize = 16;
/// Time of each measurement.
const TIME: Duration = Duration::from_secs(3);
/// Ticks of the CPU a second, as Linux shows them to programs.
const TICKS: f64 = 100.0;
/// Samples of usage in a write, as a node writes them.
const SAMPLES: usize = 500;
/// Writes of samples between two merges.
const MERGE: usize = 6;

/// Adds copies of a node, by its name and their number.
const SOME_NODES: &str = "
    INSERT INTO nodes SELECT (jsonb_populate_record(nodes, jsonb_build_object('name', 'node-b' || lpad(i::text, 5, '0'),
        'key', lpad(i::text, 60, '0')))).*
    FROM nodes, generate_series(1, $2::bigint) AS i WHERE name = $1";
/// Columns with their lengths, and the head of a row.
const BYTES: &str = "
    SELECT avg(octet_length(name) + octet_length(key) + octet_length(state) + octet_length(facts) + 4 * 8 + 8 * 4 + 7)::float8
    FROM nodes";
/// Copies a sandbox under the given ids.
const SOME_IDS: &str = "
    INSERT INTO sandboxes SELECT (jsonb_populate_record(sandboxes, jsonb_build_object('name', copy, 'id', copy))).*
    FROM sandboxes, unnest($1::text[]) AS copy WHERE name = 'first'";
/// Copies a sandbox with numbers from one to another.
const SOME_SANDBOXES: &str = "
    INSERT INTO sandboxes SELECT (jsonb_populate_record(sandboxes, jsonb_build_object(
        'name', 'box-' || i, 'id', 's' || lpad(i::text, 11, 'a'), 'created_at', created_at + i))).*
    FROM sandboxes, generate_series($1::bigint, $2::bigint) AS i WHERE name = 'first'";

#[tokio::main]
async fn main() -> Anything<()> {
    let url = std::env::args().nth(1).ok_or("say the URL of an empty database")?;
    let data = std::env::temp_dir().join(format!("cluster-store-{}", std::process::id()));
    fs::create_dir(&data)?;
    let measured = measure(&url, &data).await;
    fs::remove_dir_all(&data)?;
    measured
}

async fn measure(url: &str, data: &Path) -> Anything<()> {
    let (observer, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let mut stores = Vec::with_capacity(WRITERS);
    for number in 0..WRITERS {
        let claim = NodeClaim {
            name: format!("node-a{number:05}").parse()?,
            key: format!("{number:060}"),
            address: Some("10.128.17.201:8902".to_owned()),
        };
        stores.push(Arc::new(PostgresStore::open_node(url.parse::<PostgresAddress>()?, data, claim).await?));
    }
    let database = Database::find(&observer).await?;
    renewals(&observer, &database, &stores).await?;
    lives(&observer, &database, &stores).await?;
    usage(&observer, &database, &stores).await?;
    lists(&observer, &database, &stores).await?;
    let memory = database.memory_of_sessions(&observer).await?;
    print("a node's session: PSS of the database's process", memory / 1024.0, "KiB");
    for store in stores {
        store.close().await;
    }
    Ok(())
}

/// Renewals among more and more nodes, which don't renew their own leases.
async fn renewals(observer: &Client, database: &Database, stores: &[Arc<PostgresStore>]) -> Anything<()> {
    let leases = leases(&stores[0])?;
    let facts = NodeFacts {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        address: leases.claim().address.clone(),
        sandboxes: 50,
        memory_total_bytes: 269_805_072_384,
        memory_available_bytes: 187_904_819_200,
        disk_total_bytes: 1_919_850_381_312,
        disk_available_bytes: 1_319_413_953_331,
        ..NodeFacts::default()
    };
    leases.renew(&facts).await?;
    let mut nodes = Vec::new();
    for all in [WRITERS, 100, 1_000, 10_000] {
        observer.batch_execute("DELETE FROM nodes WHERE name > 'node-b'").await?;
        observer.execute(SOME_NODES, &[&leases.claim().name.as_str(), &((all - WRITERS) as i64)]).await?;
        observer.batch_execute("VACUUM ANALYZE nodes").await?;
        let cost = repeat(database, async || {
            nodes = leases.renew(&facts).await?.nodes;
            Ok(())
        })
        .await?;
        if nodes.len() != all {
            return Err(format!("a renewal read {} of {all} nodes", nodes.len()).into());
        }
        print(&format!("a renewal among {all} nodes: CPU of the database"), cost.database, "ms");
        print(&format!("a renewal among {all} nodes: CPU of the node"), cost.own, "ms");
    }
    print("a node's row in a renewal", observer.query_one(BYTES, &[]).await?.get(0), "bytes");
    let before = resident()?;
    let held: Vec<Vec<Node>> = (0..10).map(|_| nodes.clone()).collect();
    let each = resident()?.saturating_sub(before) as f64 / (held.len() * nodes.len()) as f64;
    print("a node's row in the memory of another node", each, "bytes");
    observer.batch_execute("DELETE FROM nodes WHERE name > 'node-b'").await?;
    Ok(())
}

/// The rows of creates and deletes, by all nodes at the same time.
async fn lives(observer: &Client, database: &Database, stores: &[Arc<PostgresStore>]) -> Anything<()> {
    let log = log_bytes(observer).await?;
    let before = Before::now(database)?;
    let writers = stores.iter().map(|store| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let mut lives = 0;
            while before.at.elapsed() < TIME {
                let creating = sandbox(&format!("box-{lives}-{}", store.claim().name))?;
                let running = Sandbox { state: SandboxState::Running, ..creating.clone() };
                store.insert(&creating).await?;
                store.update(&running).await?;
                store.update(&Sandbox { state: SandboxState::Deleting, ..running }).await?;
                store.remove(&creating.id).await?;
                lives += 1;
            }
            Anything::Ok(lives)
        })
    });
    let mut lives = 0;
    for writer in writers.collect::<Vec<_>>() {
        lives += writer.await??;
    }
    let lives = f64::from(lives);
    let took = before.at.elapsed().as_secs_f64();
    let cost = before.cost(database, lives)?;
    let bytes = (log_bytes(observer).await? - log) / lives;
    print("the rows of a create and its delete: CPU of the database", cost.database, "ms");
    print("the rows of a create and its delete: the database's log", bytes / 1024.0, "KiB");
    print(
        &format!("the rows of creates and deletes by {WRITERS} nodes, with the database on this host"),
        lives / took,
        "a second",
    );
    Ok(())
}

/// Samples of usage and their merges.
async fn usage(observer: &Client, database: &Database, stores: &[Arc<PostgresStore>]) -> Anything<()> {
    let store = &stores[0];
    let ids: Vec<SandboxId> = (0..SAMPLES).map(|_| SandboxId::random()).collect();
    // A merge removes meters of sandboxes without a row.
    store.insert(&sandbox("first")?).await?;
    observer.execute(SOME_IDS, &[&ids.iter().map(SandboxId::as_str).collect::<Vec<_>>()]).await?;
    let log = log_bytes(observer).await?;
    let before = Before::now(database)?;
    let mut samples = 0.0;
    let mut now = Timestamp::now();
    while before.at.elapsed() < TIME {
        for _ in 0..MERGE {
            now += Duration::from_secs(10);
            store.append_usage(ids.iter().map(|id| sample(id, now)).collect::<Anything<_>>()?).await?;
            samples += ids.len() as f64;
        }
        store.roll_up(now).await?;
    }
    let cost = before.cost(database, samples)?;
    let bytes = (log_bytes(observer).await? - log) / samples;
    print("a sample of usage with its part of a merge: CPU of the database", cost.database * 1e3, "µs");
    print("a sample of usage with its part of a merge: the database's log", bytes, "bytes");
    observer.batch_execute("DELETE FROM sandboxes; DELETE FROM usage; DELETE FROM meters; DELETE FROM usage_hours").await?;
    Ok(())
}

/// Reads of a tenant's sandboxes that other nodes have, and creates within its quotas.
async fn lists(observer: &Client, database: &Database, stores: &[Arc<PostgresStore>]) -> Anything<()> {
    let (here, there) = (&stores[0], &stores[1]);
    let leases = leases(here)?;
    let tenant = TenantId::default_tenant();
    there.insert(&Sandbox { state: SandboxState::Running, ..sandbox("first")? }).await?;
    let mut has = 1;
    for all in [1_000, 10_000, 100_000_i64] {
        observer.execute(SOME_SANDBOXES, &[&(has + 1), &all]).await?;
        has = all;
        observer.batch_execute("VACUUM ANALYZE sandboxes").await?;
        let mut read = 0;
        let cost = repeat(database, async || {
            read = leases.sandboxes_of_others(&tenant).await?.len();
            Ok(())
        })
        .await?;
        if read as i64 != all {
            return Err(format!("a list of {all} sandboxes has {read}").into());
        }
        print(&format!("a list with {all} sandboxes of other nodes: CPU of the database"), cost.database, "ms");
        print(&format!("a list with {all} sandboxes of other nodes: CPU of the node"), cost.own, "ms");
        let limits = TenantLimits { sandboxes: Some(1_000_000), ..TenantLimits::default() };
        let mut number = 0;
        let cost = repeat(database, async || {
            number += 1;
            let row = sandbox(&format!("limited-{number}"))?;
            here.insert_within(&row, &limits).await?;
            Ok(here.remove(&row.id).await?)
        })
        .await?;
        print(
            &format!("the row of a create within the quotas of a tenant with {all} sandboxes: CPU of the database"),
            cost.database,
            "ms",
        );
    }
    let key = SandboxKey::Name("first".parse()?);
    let cost = repeat(database, async || {
        let owner = leases.owner(&tenant, key.clone()).await?;
        owner.map(drop).ok_or_else(|| "the sandbox has no owner".into())
    })
    .await?;
    print("a look-up of a sandbox's node: CPU of the database", cost.database, "ms");
    Ok(())
}

fn leases(store: &Arc<PostgresStore>) -> Anything<Arc<dyn NodeStore>> {
    Store::node_store(Arc::clone(store)).ok_or_else(|| "its server is no node".into())
}

/// The costs of work that is repeated for some time.
async fn repeat(database: &Database, mut work: impl AsyncFnMut() -> Anything<()>) -> Anything<Cost> {
    let before = Before::now(database)?;
    let mut rounds = 0.0;
    while before.at.elapsed() < TIME {
        work().await?;
        rounds += 1.0;
    }
    before.cost(database, rounds)
}

fn sandbox(name: &str) -> Anything<Sandbox> {
    let now = Timestamp::now();
    let mut spec = SandboxSpec::of_image("base".parse()?);
    spec.env.insert("TASK".to_owned(), "a value of usual length".to_owned());
    Ok(Sandbox {
        id: SandboxId::random(),
        tenant: TenantId::default_tenant(),
        name: name.parse()?,
        state: SandboxState::Creating,
        spec,
        template: None,
        reason: None,
        died: None,
        revision: 1,
        isolation: Vec::new(),
        origin: "measurement".to_owned(),
        created_at: now,
        last_used_at: now,
        pause_kind: None,
        state_since: now,
        expires_at: None,
        provenance: Provenance::default(),
        stages: Vec::new(),
        node: None,
    })
}

fn sample(id: &SandboxId, at: Timestamp) -> Anything<UsageSample> {
    Ok(UsageSample {
        tenant: TenantId::default_tenant(),
        name: "metered".to_owned(),
        template: String::new(),
        used: UsedAmounts { core_seconds: 0.5, memory_gib_seconds: 1.25, ..UsedAmounts::default() },
        meter: Meter {
            subject: id.clone().into(),
            at,
            cpu_nanoseconds: 17_000_000_000,
            sent_bytes: 123_456,
            received_bytes: 987_654,
        },
    })
}

async fn log_bytes(observer: &Client) -> Anything<f64> {
    Ok(observer.query_one("SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8", &[]).await?.get(0))
}

/// The first process of the database server.
struct Database(u32);

impl Database {
    async fn find(observer: &Client) -> Anything<Self> {
        let session: i32 = observer.query_one("SELECT pg_backend_pid()", &[]).await?.get(0);
        let parent = stat(&session.to_string())?.get(1).and_then(|parent| parent.parse().ok());
        Ok(Self(parent.ok_or("the session has no parent")?))
    }

    /// CPU time of all its processes in seconds.
    fn cpu(&self) -> Anything<f64> {
        let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.0))?;
        // One that has ended counts no more.
        Ok(children.split_whitespace().filter_map(|process| cpu(process).ok()).sum())
    }

    /// Memory of a node's session in bytes.
    async fn memory_of_sessions(&self, observer: &Client) -> Anything<f64> {
        let sessions = "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'arenite pid%'";
        let mut all = Vec::new();
        for row in observer.query(sessions, &[]).await? {
            let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", row.get::<_, i32>(0)))?;
            let pss = text.lines().find_map(|line| line.strip_prefix("Pss:")?.split_whitespace().next()?.parse::<f64>().ok());
            all.push(pss.ok_or("a process has no PSS")? * 1024.0);
        }
        Ok(all.iter().sum::<f64>() / all.len() as f64)
    }
}

/// CPU time of one operation in milliseconds.
struct Cost {
    database: f64,
    own: f64,
}

#[derive(Clone, Copy)]
struct Before {
    database: f64,
    own: f64,
    at: Instant,
}

impl Before {
    fn now(database: &Database) -> Anything<Self> {
        Ok(Self { database: database.cpu()?, own: cpu("self")?, at: Instant::now() })
    }

    fn cost(&self, database: &Database, rounds: f64) -> Anything<Cost> {
        let each = |seconds: f64| seconds * 1e3 / rounds;
        Ok(Cost { database: each(database.cpu()? - self.database), own: each(cpu("self")? - self.own) })
    }
}

/// What the kernel says of a process, after its name.
fn stat(process: &str) -> Anything<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, rest) = text.rsplit_once(')').ok_or("a process has no name")?;
    Ok(rest.split_whitespace().map(str::to_owned).collect())
}

/// CPU time of a process in seconds.
fn cpu(process: &str) -> Anything<f64> {
    let stat = stat(process)?;
    let ticks = |at: usize| stat.get(at).and_then(|ticks| ticks.parse::<f64>().ok()).unwrap_or_default();
    Ok((ticks(11) + ticks(12)) / TICKS)
}

/// Memory of this process in bytes.
fn resident() -> Anything<u64> {
    let text = fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("it has no memory")?;
    Ok(line.split_whitespace().next().ok_or("it has no memory")?.parse::<u64>()? * 1024)
}

fn print(name: &str, value: f64, unit: &str) {
    println!("{}", json!({ "name": name, "value": value, "unit": unit }));
}
