//! `/api/v2/volumes`: storage of a tenant that outlives sandboxes.

mod files;

use std::collections::BTreeMap;
use std::sync::Arc;

use arenite_control::{ControlError, NewVolume, Volume, VolumeChange, VolumeFacts};
use arenite_model::{ErrorCode, NodeName, SandboxName, VolumeId, VolumeName};
use http::StatusCode;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

use crate::audit;
use crate::exchange::{Answered, Exchange};
use crate::idempotency::{self, Begun};
use crate::lists::PageQuery;
use crate::query::Query;
use crate::refusal::{Refusal, json_response};

pub(crate) use files::{
    CONTENT, DELETE_QUERY, FILES_QUERY, GET_QUERY, PUT_QUERY, RemovedFile, delete_content, get_content, list_files, put_content,
};

/// What the routes of one volume have in common.
pub(crate) const PATTERN: &str = "/api/v2/volumes/{name}";
pub(crate) const REMOVE_QUERY: &[Query] = &[(
    "force",
    "boolean",
    "Takes it from sandboxes that have ended, too; they can't be started again then. Objects stay in a bucket that can't be reached",
)];

/// A request for a volume.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CreateVolume {
    #[schema(required)]
    name: Option<VolumeName>,
    /// What it may hold, in bytes, from 16 MiB; 10 GiB by default. In a bucket, it bounds what waits for its upload.
    size_bytes: Option<u64>,
    /// Keeps its files in this bucket, which the operator declared.
    bucket: Option<String>,
    labels: BTreeMap<String, String>,
}

/// A request for a copy of a volume.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CopyVolume {
    /// The name of the copy.
    #[schema(required)]
    name: Option<VolumeName>,
    /// What it may hold, in bytes; by default as much as the other one.
    size_bytes: Option<u64>,
    labels: BTreeMap<String, String>,
}

/// Changes of a volume. Absent fields stay as they are.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ChangeVolume {
    /// What it may hold, in bytes. Below what it holds, all further writes fail. A volume of a cluster can only grow.
    size_bytes: Option<u64>,
    /// Labels to set. A null removes one, and absent ones stay.
    labels: BTreeMap<String, Option<String>>,
}

/// Whether a volume can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum VolumeState {
    Ready,
    /// Its removal has begun. A repeat completes it.
    Removing,
    /// Its files are gone, or on another storage than the server's.
    Missing,
    /// Its bucket can't be reached now, or its claim has lost its storage. Lists don't ask buckets, and show it as it was last.
    Unreachable,
}

/// A volume.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VolumeInfo {
    name: VolumeName,
    id: VolumeId,
    state: VolumeState,
    /// What it may hold.
    size_bytes: u64,
    /// Whether writes beyond its size fail. Without a storage pool they don't, and in a cluster its storage decides.
    size_enforced: bool,
    /// What it holds; null: the storage can't tell, or another node has it.
    used_bytes: Option<u64>,
    /// The bucket that has its files; null: the server's storage has them.
    bucket: Option<String>,
    /// Why its bucket or its claim can't be used.
    problem: Option<String>,
    /// Files that are not in the bucket yet; null: none has to be, or it is not known.
    waiting_uploads: Option<u64>,
    labels: BTreeMap<String, String>,
    /// The node that has it; null without nodes.
    node: Option<NodeName>,
    created_at: Timestamp,
    /// The sandboxes that have it, in any state; of another node's volume, only that node lists them.
    sandboxes: Vec<SandboxName>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VolumeList {
    volumes: Vec<VolumeInfo>,
    /// `cursor` of the next page; null at the end.
    next_cursor: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RemovedVolume {
    name: VolumeName,
    id: VolumeId,
    removed: bool,
}

impl VolumeInfo {
    fn new(volume: Volume, facts: VolumeFacts) -> Self {
        let state = match (volume.is_removing, facts.is_missing, &facts.problem) {
            (true, _, _) => VolumeState::Removing,
            (false, true, _) => VolumeState::Missing,
            (false, false, Some(_)) => VolumeState::Unreachable,
            (false, false, None) => VolumeState::Ready,
        };
        let Volume { name, id, size_bytes, bucket, labels, created_at, node, .. } = volume;
        let VolumeFacts { used_bytes, size_enforced, problem, waiting_uploads, sandboxes, .. } = facts;
        Self {
            name,
            id,
            state,
            size_bytes,
            size_enforced,
            used_bytes,
            bucket,
            problem,
            waiting_uploads,
            labels,
            node,
            created_at,
            sandboxes,
        }
    }
}

/// The volume in the path.
fn named(exchange: &Exchange) -> Result<VolumeName, Refusal> {
    Ok(exchange.param("name").parse()?)
}

async fn described(exchange: &Exchange, volumes: Vec<Volume>, look: bool) -> Result<Vec<VolumeInfo>, Refusal> {
    let facts = exchange.gateway.control.volume_facts(&volumes, look).await?;
    Ok(volumes.into_iter().zip(facts).map(|(volume, facts)| VolumeInfo::new(volume, facts)).collect())
}

async fn described_one(exchange: &Exchange, volume: Volume) -> Result<VolumeInfo, Refusal> {
    let described = described(exchange, vec![volume], true).await?.pop();
    described.ok_or_else(|| Refusal::new(ErrorCode::Internal, "the volume could not be described"))
}

pub(crate) async fn list(exchange: &mut Exchange) -> Answered {
    let all = exchange.gateway.control.volumes(exchange.context.tenant()).await?;
    let (page, next_cursor) = PageQuery::read(exchange)?.take(all, |volume| volume.name.to_string())?;
    let volumes = described(exchange, page, false).await?;
    Ok(json_response(StatusCode::OK, &VolumeList { volumes, next_cursor }))
}

pub(crate) async fn get(exchange: &mut Exchange) -> Answered {
    let volume = exchange.gateway.control.volume(exchange.context.tenant(), &named(exchange)?).await?;
    Ok(json_response(StatusCode::OK, &described_one(exchange, volume).await?))
}

pub(crate) async fn create(exchange: &mut Exchange) -> Answered {
    let (CreateVolume { name, size_bytes, bucket, labels }, arguments) = exchange.json().await?;
    let name = name.ok_or_else(|| Refusal::bad_request("name is missing"))?;
    add(exchange, &arguments, NewVolume { name, size_bytes, bucket, labels }, None).await
}

pub(crate) async fn copy(exchange: &mut Exchange) -> Answered {
    let source = named(exchange)?;
    // One that is not there is not found, whatever the request is.
    exchange.gateway.control.volume(exchange.context.tenant(), &source).await?;
    let (CopyVolume { name, size_bytes, labels }, arguments) = exchange.json().await?;
    let name = name.ok_or_else(|| Refusal::bad_request("name is missing: that of the copy"))?;
    add(exchange, &arguments, NewVolume { name, size_bytes, bucket: None, labels }, Some(source)).await
}

async fn add(exchange: &Exchange, arguments: &Value, new: NewVolume, source: Option<VolumeName>) -> Answered {
    let key = match idempotency::begin(exchange, arguments, 1).await? {
        Begun::Create(key) => key,
        Begun::Replay(answer) => return Ok(idempotency::replay(answer)),
    };
    let since = idempotency::note(key.as_ref()).await?;
    let added = match add_or_find(exchange, new, source, since).await {
        Ok(volume) => described_one(exchange, volume).await.map(|volume| (StatusCode::CREATED, json!(volume))),
        Err(refusal) => Err(refusal),
    };
    let (status, body) = idempotency::settle(key, added).await?;
    Ok(json_response(status, &body))
}

/// Adds a volume, or takes the one that an earlier create with the same key left.
async fn add_or_find(
    exchange: &Exchange,
    new: NewVolume,
    source: Option<VolumeName>,
    since: Option<Timestamp>,
) -> Result<Volume, Refusal> {
    let (control, tenant) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone());
    if let Some(since) = since
        && let Ok(left) = control.volume(&tenant, &new.name).await
        && left.created_at >= since
    {
        return Ok(left);
    }
    let (action, object) = (if source.is_some() { "volume.copy" } else { "volume.create" }, new.name.to_string());
    let added = Box::pin(async move {
        let added = match source {
            Some(source) => control.copy_volume(&tenant, &source, new).await,
            None => control.create_volume(&tenant, new).await,
        };
        added.map_err(Refusal::from)
    });
    audit::change_with(exchange, action, object, added).await
}

pub(crate) async fn change(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    let (ChangeVolume { size_bytes, labels }, _) = exchange.json().await?;
    let (control, tenant) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone());
    let (object, change) = (name.to_string(), VolumeChange { size_bytes, labels });
    let changed = Box::pin(async move { Ok(control.change_volume(&tenant, &name, change).await?) });
    let volume = audit::change_with(exchange, "volume.change", object, changed).await?;
    Ok(json_response(StatusCode::OK, &described_one(exchange, volume).await?))
}

pub(crate) async fn remove(exchange: &mut Exchange) -> Answered {
    let name = named(exchange)?;
    let force = exchange.query("force").is_some_and(|given| given == "true");
    let (control, tenant) = (Arc::clone(&exchange.gateway.control), exchange.context.tenant().clone());
    let object = name.to_string();
    let removed = Box::pin(async move { Ok(control.remove_volume(&tenant, &name, force).await?) });
    let Volume { name, id, .. } = audit::change_with(exchange, "volume.remove", object, removed).await?;
    Ok(json_response(StatusCode::OK, &RemovedVolume { name, id, removed: true }))
}

/// The other node that has the volume in the path of a request. None: it is here, or nowhere.
pub(crate) async fn other_node(exchange: &Exchange) -> Result<Option<NodeName>, ControlError> {
    if !exchange.route.pattern.starts_with(PATTERN) {
        return Ok(None);
    }
    // A text that is no valid name is refused here.
    let Ok(name) = exchange.param("name").parse() else { return Ok(None) };
    exchange.gateway.control.node_of_volume(exchange.context.tenant(), &name).await
}

#[cfg(test)]
mod tests {
    use arenite_control::fake_cluster::FakeCluster;

    use super::*;
    use crate::harness::Harness;

    async fn server(set: impl FnOnce(&mut arenite_control::ControlConfig)) -> Harness {
        let server = Harness::with(|control, _| set(control)).await;
        server.keep_volumes();
        server
    }

    #[tokio::test]
    async fn a_volumes_life_over_the_api() {
        let server = server(|_| {}).await;
        let body = json!({ "name": "data", "size_bytes": 64 << 20, "labels": { "team": "a" } });
        let made = server.call("POST", "/api/v2/volumes", body.clone()).await;
        assert_eq!(made.status, 201, "{}", made.text);
        assert_eq!((&made.json["state"], &made.json["size_enforced"]), (&json!("ready"), &json!(false)));
        let again = server.call("POST", "/api/v2/volumes", body).await;
        assert_eq!((again.status, &again.json["code"]), (409, &json!("already_exists")));
        let got = server.call("GET", "/api/v2/volumes/data", Value::Null).await;
        assert_eq!(got.json, made.json);
        let list = server.call("GET", "/api/v2/volumes", Value::Null).await.json;
        assert_eq!(list, json!({ "volumes": [made.json], "next_cursor": null }));
        let change = json!({ "size_bytes": 128 << 20, "labels": { "team": null, "x": "y" } });
        let changed = server.call("PATCH", "/api/v2/volumes/data", change).await.json;
        assert_eq!((&changed["size_bytes"], &changed["labels"]), (&json!(128 << 20), &json!({ "x": "y" })));
        // Plain directories have no copies on write.
        let copy = server.call("POST", "/api/v2/volumes/data/copy", json!({ "name": "other" })).await;
        assert_eq!((copy.status, &copy.json["code"]), (501, &json!("unsupported")), "{}", copy.text);

        let mount = json!({ "name": "s", "volumes": [{ "name": "data", "path": "/data" }] });
        assert_eq!(server.call("POST", "/api/v2/sandboxes", mount).await.status, 201);
        for query in ["", "?force=true"] {
            let used = server.call("DELETE", &format!("/api/v2/volumes/data{query}"), Value::Null).await;
            assert!(used.status == 409 && used.text.contains("in use by sandbox s"), "{}", used.text);
        }
        assert_eq!(server.call("DELETE", "/api/v2/sandboxes/s", Value::Null).await.status, 200);
        let removed = server.call("DELETE", "/api/v2/volumes/data", Value::Null).await;
        assert_eq!((removed.status, &removed.json["removed"]), (200, &json!(true)), "{}", removed.text);
        for (method, path) in [("GET", ""), ("PATCH", ""), ("DELETE", ""), ("GET", "/files"), ("GET", "/content?path=a")] {
            let gone = server.call(method, &format!("/api/v2/volumes/data{path}"), Value::Null).await;
            assert_eq!((gone.status, &gone.json["code"]), (404, &json!("not_found")), "{method} {path}");
        }
    }

    #[tokio::test]
    async fn a_cluster_keeps_files_and_copies_to_itself() {
        let server = Harness::with(|_, _| ()).await;
        server.engine.keep_cluster_volumes(Arc::new(FakeCluster::default()));
        let made = server.call("POST", "/api/v2/volumes", json!({ "name": "v", "size_bytes": 64 << 20 })).await;
        assert_eq!(made.status, 201, "{}", made.text);
        let facts = (&made.json["state"], &made.json["size_enforced"], &made.json["used_bytes"], &made.json["node"]);
        assert_eq!(facts, (&json!("ready"), &json!(false), &Value::Null, &Value::Null));
        for (method, path, body) in [
            ("POST", "/copy", json!({ "name": "w" })),
            ("PATCH", "", json!({ "size_bytes": 32 << 20 })),
            ("GET", "/files", Value::Null),
            ("GET", "/content?path=a", Value::Null),
            ("PUT", "/content?path=a", Value::Null),
            ("DELETE", "/content?path=a", Value::Null),
        ] {
            let refused = server.call(method, &format!("/api/v2/volumes/v{path}"), body).await;
            assert_eq!((refused.status, &refused.json["code"]), (501, &json!("unsupported")), "{method} {path}");
            assert!(refused.json["hint"].is_string(), "{}", refused.text);
        }
        let grown = server.call("PATCH", "/api/v2/volumes/v", json!({ "size_bytes": 128 << 20 })).await;
        assert_eq!((grown.status, &grown.json["size_bytes"]), (200, &json!(128 << 20)), "{}", grown.text);
        let removed = server.call("DELETE", "/api/v2/volumes/v", Value::Null).await;
        assert_eq!(removed.status, 200, "{}", removed.text);
    }

    #[tokio::test]
    async fn an_ended_sandbox_loses_its_volume_by_force() {
        let server = server(|_| {}).await;
        server.call("POST", "/api/v2/volumes", json!({ "name": "v" })).await;
        let mount = json!({ "name": "s", "volumes": [{ "name": "v", "path": "/data" }] });
        let made = server.call("POST", "/api/v2/sandboxes", mount).await.json;
        assert_eq!(made["spec"]["volumes"][0]["name"], "v", "{made}");
        server.engine.end(&made["id"].as_str().unwrap().parse().unwrap(), "it crashed");
        let mut changes = server.gateway.control.read_events(None);
        while server.call("GET", "/api/v2/sandboxes/s", Value::Null).await.json["state"] != "failed" {
            changes.recv().await.unwrap();
        }
        let refused = server.call("DELETE", "/api/v2/volumes/v", Value::Null).await;
        assert!(refused.status == 409 && refused.text.contains("--force"), "{}", refused.text);
        let removed = server.call("DELETE", "/api/v2/volumes/v?force=true", Value::Null).await;
        assert_eq!(removed.status, 200, "{}", removed.text);
    }

    #[tokio::test]
    async fn quotas_count_volumes_and_their_sizes() {
        let server = server(|control| {
            control.tenant_limits.volumes = Some(2);
            control.tenant_limits.volume_bytes = Some(100 << 20);
        })
        .await;
        let create = async |name: &str, mib: u64| {
            server.call("POST", "/api/v2/volumes", json!({ "name": name, "size_bytes": mib << 20 })).await
        };
        assert_eq!(create("a", 60).await.status, 201);
        let full = create("b", 41).await;
        let quota = json!({ "quota": "volume_bytes", "limit": 100 << 20, "used": 60 << 20, "requested": 41 << 20 });
        assert_eq!((full.status, &full.json["code"], &full.json["quota"]), (403, &json!("quota_exceeded"), &quota));
        assert_eq!(create("b", 40).await.status, 201);
        let many = create("c", 16).await;
        assert_eq!((many.status, &many.json["quota"]["quota"]), (403, &json!("volumes")), "{}", many.text);
        let grow = server.call("PATCH", "/api/v2/volumes/b", json!({ "size_bytes": 41 << 20 })).await;
        assert_eq!(grow.status, 403, "{}", grow.text);
        let shrink = server.call("PATCH", "/api/v2/volumes/b", json!({ "size_bytes": 16 << 20 })).await;
        assert_eq!(shrink.status, 200, "{}", shrink.text);
        let me = server.call("GET", "/api/v2/me", Value::Null).await.json;
        let used: Vec<&Value> = me["quotas"].as_array().unwrap().iter().map(|quota| &quota["used"]).collect();
        assert_eq!(used[9..], [&json!(2), &json!(76 << 20)]);
    }

    #[tokio::test]
    async fn what_is_no_volume_is_refused() {
        let server = server(|_| {}).await;
        for bad in [
            json!({}),
            json!({ "name": "A" }),
            json!({ "name": "a/b" }),
            json!({ "name": "..", "size_bytes": 1 << 30 }),
            json!({ "name": "a", "size_bytes": 1 }),
            json!({ "name": "a", "size_bytes": u64::MAX }),
            json!({ "name": "a", "size": 1 }),
            json!({ "name": "a", "labels": { "": "x" } }),
        ] {
            let refused = server.call("POST", "/api/v2/volumes", bad.clone()).await;
            assert_eq!(refused.status, 400, "{bad}: {}", refused.text);
        }
        server.call("POST", "/api/v2/volumes", json!({ "name": "a" })).await;
        for mount in [
            json!({ "name": "missing", "path": "/a" }),
            json!({ "name": "a", "path": "/a", "sub_path": "../b" }),
            json!({ "name": "a", "path": "/a", "volume_id": "v12345678901" }),
        ] {
            let refused = server.call("POST", "/api/v2/sandboxes", json!({ "volumes": [mount] })).await;
            let expected = if mount["name"] == "missing" { 201 } else { 400 };
            // The engine of these tests mounts nothing.
            assert_eq!(refused.status, expected, "{mount}: {}", refused.text);
        }
    }
}
