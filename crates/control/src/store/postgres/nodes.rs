//! Nodes in the database.
//!
//! The session of a node has its name and its epoch as settings. Rows that it inserts get the name by default, and triggers refuse
//! its writes once the epoch of its row is another one.

use std::sync::Arc;
use std::time::Duration;

use arenite_model::{Death, DeathReason, IdempotencyKey, NodeName, SandboxId, TenantId};
use async_trait::async_trait;
use jiff::Timestamp;
use tokio_postgres::{Client, Row};

use super::PostgresStore;
use super::rows::{self, Unreadable, read_all, read_optional_time, read_time};
use super::session::{Fault, OpenError};
use crate::Sandbox;
use crate::gone::Removal;
use crate::nodes::{ImageListing, Node, NodeClaim, NodeDrain, NodeFacts, NodeState, NodeStore, RESTART, Renewed, SandboxKey};
use crate::store::{RecordKind, StoreError, to_json};

/// The state of an error by which the triggers refuse a write.
pub(super) const GIVEN_UP: &str = "AR001";

pub(super) const SCHEMA: &str = "
    CREATE TABLE nodes (
        name       TEXT PRIMARY KEY,
        key        TEXT NOT NULL,
        state      TEXT NOT NULL,
        epoch      BIGINT NOT NULL,
        renewals   BIGINT NOT NULL,
        facts      TEXT NOT NULL,  -- JSON
        started_at BIGINT NOT NULL,
        renewed_at BIGINT NOT NULL
    );
    CREATE FUNCTION arenite_node() RETURNS TEXT LANGUAGE SQL STABLE AS $$
        SELECT coalesce(current_setting('arenite.node', true), '')
    $$;
    CREATE FUNCTION arenite_now() RETURNS BIGINT LANGUAGE SQL VOLATILE AS $$
        SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
    $$;
    CREATE FUNCTION arenite_fence() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        IF arenite_node() <> '' THEN
            PERFORM FROM nodes
                WHERE name = arenite_node() AND epoch = current_setting('arenite.epoch')::bigint FOR SHARE;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'the cluster has given this node up' USING ERRCODE = 'AR001';
            END IF;
        END IF;
        RETURN NULL;
    END
    $$;
    -- Counts changes of what all nodes keep in memory.
    ALTER TABLE arenite_store ADD COLUMN shared BIGINT NOT NULL DEFAULT 0;
    CREATE FUNCTION arenite_changed() RETURNS TRIGGER LANGUAGE plpgsql AS $$
    BEGIN
        UPDATE arenite_store SET shared = shared + 1;
        RETURN NULL;
    END
    $$;
    CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE ON tenants EXECUTE FUNCTION arenite_changed();
    CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE ON api_keys EXECUTE FUNCTION arenite_changed();
    CREATE TRIGGER changed AFTER INSERT OR UPDATE OR DELETE ON webhooks EXECUTE FUNCTION arenite_changed();
    -- Empty: of a server without a cluster.
    ALTER TABLE sandboxes ADD COLUMN node TEXT NOT NULL DEFAULT '';
    ALTER TABLE sandboxes ALTER COLUMN node SET DEFAULT arenite_node();
    ALTER TABLE records ADD COLUMN node TEXT NOT NULL DEFAULT '';
    ALTER TABLE records ALTER COLUMN node SET DEFAULT arenite_node();
    ALTER TABLE deliveries ADD COLUMN node TEXT NOT NULL DEFAULT '';
    ALTER TABLE deliveries ALTER COLUMN node SET DEFAULT arenite_node();
    CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON sandboxes EXECUTE FUNCTION arenite_fence();
    CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON records EXECUTE FUNCTION arenite_fence();
    CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON deliveries EXECUTE FUNCTION arenite_fence();
    CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON usage EXECUTE FUNCTION arenite_fence();
    CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON meters EXECUTE FUNCTION arenite_fence();
";

pub(super) const SCHEMA_OF_DRAINS: &str = "
    ALTER TABLE nodes
        ADD COLUMN drained_at BIGINT,  -- it gets no new sandboxes
        ADD COLUMN drain_deadline BIGINT,
        ADD COLUMN images TEXT NOT NULL DEFAULT '',  -- JSON
        ADD COLUMN images_id TEXT NOT NULL DEFAULT '';
";

/// Secrets are among what all nodes keep: the proxies of their sandboxes have the values.
pub(super) const SECRETS: &str = "
    CREATE TRIGGER secret_added AFTER INSERT ON records
        FOR EACH ROW WHEN (NEW.kind = 'secret') EXECUTE FUNCTION arenite_changed();
    CREATE TRIGGER secret_changed AFTER UPDATE ON records
        FOR EACH ROW WHEN (NEW.kind = 'secret') EXECUTE FUNCTION arenite_changed();
    CREATE TRIGGER secret_removed AFTER DELETE ON records
        FOR EACH ROW WHEN (OLD.kind = 'secret') EXECUTE FUNCTION arenite_changed();
";

/// What other nodes have deleted of a node that did not run, and where workers are.
pub(super) const REMOVALS_AND_WORKERS: &str = "
    CREATE TABLE removals (
        node TEXT NOT NULL,
        id   TEXT NOT NULL,
        PRIMARY KEY (node, id)
    );
    -- The node of each worker of AgentFlow, with its sessions.
    CREATE TABLE workers (
        tenant  TEXT NOT NULL,
        worker  TEXT NOT NULL,
        node    TEXT NOT NULL,
        used_at BIGINT NOT NULL,
        PRIMARY KEY (tenant, worker)
    );
";

/// Raises the epoch of a node, or adds it. Another node that runs keeps its name.
const JOIN: &str = "
    INSERT INTO nodes (name, key, state, epoch, renewals, facts, started_at, renewed_at)
    VALUES ($1, $2, 'up', 1, 0, $3, arenite_now(), arenite_now())
    ON CONFLICT (name) DO UPDATE SET state = 'up', epoch = nodes.epoch + 1, facts = excluded.facts, images = '', images_id = '',
        started_at = excluded.started_at, renewed_at = excluded.renewed_at
    WHERE nodes.key = excluded.key
    RETURNING epoch";
const SET: &str = "SELECT set_config('arenite.node', $1, false), set_config('arenite.epoch', $2, false)";
/// Also if its server stopped before.
const RENEW: &str = "
    UPDATE nodes SET state = 'up', renewals = renewals + 1, facts = $1, renewed_at = arenite_now()
    WHERE name = arenite_node() AND epoch = current_setting('arenite.epoch')::bigint";
const LEAVE: &str = "
    UPDATE nodes SET state = 'down' WHERE name = arenite_node() AND epoch = current_setting('arenite.epoch')::bigint";
const NODES: &str = "
    SELECT name, state, epoch, renewals, facts, started_at, renewed_at, key, drained_at, drain_deadline,
        coalesce(drain_deadline <= arenite_now(), false), images_id
    FROM nodes ORDER BY name";
/// `$2`: microseconds until the deadline. A repeated drain keeps its start.
const DRAIN: &str = "
    UPDATE nodes SET drained_at = coalesce(drained_at, arenite_now()), drain_deadline = arenite_now() + $2 WHERE name = $1";
const UNCORDON: &str = "UPDATE nodes SET drained_at = NULL, drain_deadline = NULL WHERE name = $1";
const PUT_IMAGES: &str = "
    UPDATE nodes SET images = $1, images_id = $2
    WHERE name = arenite_node() AND epoch = current_setting('arenite.epoch')::bigint";
const IMAGES: &str = "SELECT DISTINCT ON (images_id) images_id, images FROM nodes WHERE images_id = ANY($1)";
const OWNER_OF_KEY: &str = "
    SELECT node FROM records WHERE kind = $1 AND tenant = $2 AND key = $3 AND node NOT IN ('', arenite_node())";
/// Only a node with a valid epoch gives others up.
const GIVE_UP: &str = "
    UPDATE nodes SET state = 'lost', epoch = epoch + 1
    WHERE name = $1 AND epoch = $2 AND renewals = $3 AND EXISTS (
        SELECT FROM nodes own WHERE own.name = arenite_node() AND own.epoch = current_setting('arenite.epoch')::bigint)";
/// What fails, is lost, or was half made or deleted reserves nothing on a node that is gone.
const LOSE: &str = "
    UPDATE sandboxes SET state = 'lost', reason = $2, died = $3, state_since = arenite_now(), revision = revision + 1,
        cpu_millis = 0, memory_bytes = 0
    WHERE node = $1 AND state IN ('running', 'paused')";

const OWNER_OF_NAME: &str = "
    SELECT node FROM sandboxes WHERE tenant = $1 AND name = $2 AND node NOT IN ('', arenite_node())";
const OWNER_OF_ID: &str = "
    SELECT node FROM sandboxes WHERE tenant = $1 AND id = $2 AND node NOT IN ('', arenite_node())";

/// Until the transaction ends, the node does not join.
const NODE_OF: &str = "
    SELECT nodes.name, nodes.state FROM nodes JOIN sandboxes ON sandboxes.node = nodes.name
    WHERE sandboxes.id = $1 AND nodes.name <> arenite_node() FOR UPDATE OF nodes";
/// None if the transaction is repeated.
const REMOVE_OF_OTHER: &str = "
    WITH gone AS (DELETE FROM sandboxes WHERE id = $1 RETURNING node, id)
    INSERT INTO removals (node, id) SELECT node, id FROM gone";
const REMOVALS_OF_NODE: &str = "SELECT id FROM removals WHERE node = arenite_node()";
/// A worker stays on its node while that runs, or restarts.
const PLACE_WORKER: &str = "
    INSERT INTO workers (tenant, worker, node, used_at) VALUES ($1, $2, $3, arenite_now())
    ON CONFLICT (tenant, worker) DO UPDATE SET used_at = excluded.used_at, node = CASE
        WHEN EXISTS (
            SELECT FROM nodes WHERE nodes.name = workers.node
                AND (nodes.state = 'up' OR nodes.state = 'down' AND nodes.renewed_at > arenite_now() - $4)
        ) THEN workers.node ELSE excluded.node END
    RETURNING node";
/// Workers without a call for this time are forgotten.
pub(super) const FORGET_WORKERS: &str = "DELETE FROM workers WHERE used_at < $1::bigint - 86400000000";
const SETTLE: &str = "DELETE FROM removals WHERE node = arenite_node() AND id = ANY ($1::text[])";

impl NodeClaim {
    /// Makes the session one of the next epoch. The caller holds the lock of a node.
    pub(super) async fn join(&self, client: &Client) -> Result<u64, OpenError> {
        let facts = to_json(&self.facts())?;
        let joined = client.query_opt(JOIN, &[&self.name.as_str(), &self.key, &facts]).await?;
        let Some(row) = joined else {
            return Err(OpenError::InUse(format!("another server is the node {}", self.name)));
        };
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }

    pub(super) async fn set(&self, client: &Client, epoch: u64) -> Result<(), tokio_postgres::Error> {
        client.query_one(SET, &[&self.name.as_str(), &epoch.to_string()]).await.map(drop)
    }
}

fn read_node(row: &Row) -> Result<Node, Unreadable> {
    let state = match row.try_get::<_, &str>(1)? {
        "up" => NodeState::Up,
        "down" => NodeState::Down,
        _ => NodeState::Lost,
    };
    Ok(Node {
        name: row.try_get::<_, &str>(0)?.parse()?,
        key: row.try_get(7)?,
        state,
        epoch: row.try_get::<_, i64>(2)?.unsigned_abs(),
        renewals: row.try_get::<_, i64>(3)?.unsigned_abs(),
        // Another version may say other things.
        facts: serde_json::from_str(row.try_get(4)?).unwrap_or_default(),
        started_at: read_time(row, 5)?,
        renewed_at: read_time(row, 6)?,
        drain: match read_optional_time(row, 8)? {
            Some(since) => Some(NodeDrain { since, deadline: read_optional_time(row, 9)?, is_over: row.try_get(10)? }),
            None => None,
        },
        images: row.try_get(11)?,
    })
}

async fn read_nodes(client: &Client) -> Result<Vec<Node>, Fault> {
    read_all(&client.query(NODES, &[]).await?, read_node)
}

#[async_trait]
impl NodeStore for PostgresStore {
    fn claim(&self) -> &NodeClaim {
        self.node.as_ref().expect("only a node's store is one of nodes")
    }

    async fn renew(&self, facts: &NodeFacts) -> Result<Renewed, StoreError> {
        let facts = Arc::new(to_json(facts)?);
        self.transaction(move |client, _| {
            let facts = Arc::clone(&facts);
            Box::pin(async move {
                if client.execute(RENEW, &[&*facts]).await? == 0 {
                    return Err(Fault::Refused(StoreError::GivenUp));
                }
                let shared: i64 = client.query_one("SELECT shared FROM arenite_store", &[]).await?.get(0);
                Ok(Renewed { nodes: read_nodes(client).await?, shared: shared.unsigned_abs() })
            })
        })
        .await
    }

    async fn nodes(&self) -> Result<Vec<Node>, StoreError> {
        self.transaction(|client, _| Box::pin(read_nodes(client))).await
    }

    async fn give_up(&self, node: &Node) -> Result<Option<u64>, StoreError> {
        let message = format!("its node {} did not renew its lease, and was given up", node.name);
        let death = Death::with_message(DeathReason::NodeLost, message.clone()).noticed_at(Timestamp::now());
        let (node, died) = (Arc::new(node.clone()), Arc::new(to_json(&death)?));
        let message = Arc::new(message);
        self.transaction(move |client, _| {
            let (node, died, message) = (Arc::clone(&node), Arc::clone(&died), Arc::clone(&message));
            Box::pin(async move {
                let [epoch, renewals] = [node.epoch, node.renewals].map(crate::store::number);
                if client.execute(GIVE_UP, &[&node.name.as_str(), &epoch, &renewals]).await? == 0 {
                    return Ok(None);
                }
                Ok(Some(client.execute(LOSE, &[&node.name.as_str(), &*message, &*died]).await?))
            })
        })
        .await
    }

    async fn owner(&self, tenant: &TenantId, sandbox: SandboxKey) -> Result<Option<NodeName>, StoreError> {
        let (tenant, sandbox) = (Arc::new(tenant.clone()), Arc::new(sandbox));
        self.transaction(move |client, _| {
            let (tenant, sandbox) = (Arc::clone(&tenant), Arc::clone(&sandbox));
            Box::pin(async move {
                let found = match &*sandbox {
                    SandboxKey::Name(name) => client.query_opt(OWNER_OF_NAME, &[&tenant.as_str(), &name.as_str()]).await?,
                    SandboxKey::Id(id) => client.query_opt(OWNER_OF_ID, &[&tenant.as_str(), &id.as_str()]).await?,
                };
                // A name that can't be read is no node's.
                Ok(found.and_then(|row| row.get::<_, &str>(0).parse().ok()))
            })
        })
        .await
    }

    async fn sandboxes_of_others(&self, tenant: &TenantId) -> Result<Vec<Sandbox>, StoreError> {
        let tenant = Arc::new(tenant.clone());
        self.transaction(move |client, _| {
            let tenant = Arc::clone(&tenant);
            Box::pin(async move { rows::load_of_others(client, &tenant).await })
        })
        .await
    }

    async fn set_drain(&self, node: &NodeName, drain: Option<Option<Duration>>) -> Result<bool, StoreError> {
        let node = Arc::new(node.clone());
        // No deadline: the sum is none, too.
        let micros = drain.map(|deadline| deadline.map(|time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX / 2)));
        self.transaction(move |client, _| {
            let node = Arc::clone(&node);
            Box::pin(async move {
                let changed = match &micros {
                    Some(micros) => client.execute(DRAIN, &[&node.as_str(), micros]).await?,
                    None => client.execute(UNCORDON, &[&node.as_str()]).await?,
                };
                Ok(changed > 0)
            })
        })
        .await
    }

    async fn put_images(&self, images: &ImageListing) -> Result<(), StoreError> {
        let images = Arc::new(images.clone());
        self.transaction(move |client, _| {
            let images = Arc::clone(&images);
            Box::pin(async move { Ok(client.execute(PUT_IMAGES, &[&images.images, &images.id]).await.map(drop)?) })
        })
        .await
    }

    async fn image_listings(&self, ids: Vec<String>) -> Result<Vec<ImageListing>, StoreError> {
        let ids = Arc::new(ids);
        self.transaction(move |client, _| {
            let ids = Arc::clone(&ids);
            Box::pin(async move {
                let read = |row: &Row| Ok(ImageListing { id: row.try_get(0)?, images: row.try_get(1)? });
                read_all(&client.query(IMAGES, &[&*ids]).await?, read)
            })
        })
        .await
    }

    async fn owner_of_key(&self, tenant: &TenantId, key: &IdempotencyKey) -> Result<Option<NodeName>, StoreError> {
        let (tenant, key) = (Arc::new(tenant.clone()), Arc::new(key.to_string()));
        self.transaction(move |client, _| {
            let (tenant, key) = (Arc::clone(&tenant), Arc::clone(&key));
            Box::pin(async move {
                let kind = RecordKind::Idempotency.as_str();
                let found = client.query_opt(OWNER_OF_KEY, &[&kind, &tenant.as_str(), &*key]).await?;
                Ok(found.and_then(|row| row.get::<_, &str>(0).parse().ok()))
            })
        })
        .await
    }

    async fn sandbox_of_other(&self, tenant: &TenantId, sandbox: SandboxKey) -> Result<Option<Sandbox>, StoreError> {
        let (tenant, sandbox) = (Arc::new(tenant.clone()), Arc::new(sandbox));
        self.transaction(move |client, _| {
            let (tenant, sandbox) = (Arc::clone(&tenant), Arc::clone(&sandbox));
            Box::pin(async move { rows::load_of_other(client, &tenant, &sandbox).await })
        })
        .await
    }

    async fn remove_of_other(&self, id: &SandboxId) -> Result<Removal, StoreError> {
        let id = Arc::new(id.clone());
        self.transaction(move |client, is_repeated| {
            let id = Arc::clone(&id);
            Box::pin(async move {
                let Some(node) = client.query_opt(NODE_OF, &[&id.as_str()]).await? else {
                    return Ok(if is_repeated { Removal::Removed } else { Removal::NotThere });
                };
                if node.get::<_, &str>(1) == NodeState::Up.as_str() {
                    let node = node.get::<_, &str>(0).parse().map_err(|_| StoreError::Closed).map_err(Fault::Refused)?;
                    return Ok(Removal::Runs(node));
                }
                client.execute(REMOVE_OF_OTHER, &[&id.as_str()]).await?;
                Ok(Removal::Removed)
            })
        })
        .await
    }

    async fn removals(&self) -> Result<Vec<SandboxId>, StoreError> {
        self.transaction(|client, _| {
            Box::pin(async move {
                let rows = client.query(REMOVALS_OF_NODE, &[]).await?;
                read_all(&rows, |row| Ok(row.try_get::<_, &str>(0)?.parse()?))
            })
        })
        .await
    }

    async fn settle_removals(&self, ids: Vec<SandboxId>) -> Result<(), StoreError> {
        let ids: Arc<Vec<String>> = Arc::new(ids.iter().map(SandboxId::to_string).collect());
        self.transaction(move |client, _| {
            let ids = Arc::clone(&ids);
            Box::pin(async move { Ok(client.execute(SETTLE, &[&*ids]).await.map(drop)?) })
        })
        .await
    }

    async fn place_worker(&self, tenant: &TenantId, worker: &str, node: &NodeName) -> Result<NodeName, StoreError> {
        let (tenant, worker, node) = (Arc::new(tenant.clone()), Arc::new(worker.to_owned()), Arc::new(node.clone()));
        self.transaction(move |client, _| {
            let (tenant, worker, node) = (Arc::clone(&tenant), Arc::clone(&worker), Arc::clone(&node));
            Box::pin(async move {
                let restart = i64::try_from(RESTART.as_micros()).unwrap_or(i64::MAX);
                let row = client.query_one(PLACE_WORKER, &[&tenant.as_str(), &*worker, &node.as_str(), &restart]).await?;
                // A name that can't be read is no node's.
                Ok(row.get::<_, &str>(0).parse().unwrap_or(NodeName::clone(&node)))
            })
        })
        .await
    }

    async fn leave(&self) -> Result<(), StoreError> {
        self.transaction(|client, _| Box::pin(async move { Ok(client.execute(LEAVE, &[]).await.map(drop)?) })).await
    }
}
