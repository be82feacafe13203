//! Volumes of tenants: a PersistentVolumeClaim each, which the pods of sandboxes mount.
//!
//! Claims have no owner, so they outlive all sandboxes. The installation's label is compared before a claim changes: another
//! server of the namespace keeps its own.

use std::sync::Arc;

use arenite_engine::{ClusterVolume, ClusterVolumes, EngineError, KubernetesConfig};
use arenite_model::VolumeId;
use async_trait::async_trait;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::{Value, json};

use crate::INSTALLATION;
use crate::api::{CallError, call, ignore_missing, list};
use crate::engine::Shared;

/// Label of claims, with the volume's id.
const VOLUME: &str = "arenite.volume";
/// Annotation of claims, with the memo of control's row.
const MEMO: &str = "arenite.memo";
/// The phase of a claim that has lost its PersistentVolume.
const LOST: &str = "Lost";

/// What helps if a claim is refused a larger size.
const GROWTH: &str = "a claim grows once a sandbox has mounted it, if its StorageClass has allowVolumeExpansion; otherwise, create a larger volume, and copy the files in a sandbox that mounts both";

/// The volumes of an installation.
pub(crate) struct Volumes(pub(crate) Arc<Shared>);

/// The name of a volume's claim.
pub(crate) fn claim_name(id: &VolumeId) -> String {
    format!("arenite-{id}")
}

/// The claim of a new volume.
fn claim(config: &KubernetesConfig, id: &VolumeId, size_bytes: u64) -> Result<PersistentVolumeClaim, EngineError> {
    let mut claim = json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim_name(id), "labels": {INSTALLATION: config.name, VOLUME: id.as_str()}},
        "spec": {"accessModes": [config.volume_access.as_str()], "resources": storage(size_bytes)},
    });
    if let Some(class) = &config.volume_class {
        claim["spec"]["storageClassName"] = json!(class);
    }
    serde_json::from_value(claim).map_err(|error| unusable("describe the claim of a volume", error))
}

fn storage(size_bytes: u64) -> Value {
    json!({"requests": {"storage": size_bytes.to_string()}})
}

fn unusable(what: &str, reason: impl std::fmt::Display) -> EngineError {
    EngineError::Storage { reason: format!("could not {what}: {reason}"), hint: None }
}

fn refused(what: &str, error: &CallError) -> EngineError {
    error.busy().unwrap_or_else(|| EngineError::Storage {
        reason: format!("could not {what}: {error}"),
        hint: error.hint().map(str::to_owned),
    })
}

/// Whether a claim is that of a volume of this installation.
fn is_own(config: &KubernetesConfig, id: &VolumeId, claim: &PersistentVolumeClaim) -> bool {
    let has = |label: &str, value: &str| {
        claim.metadata.labels.as_ref().and_then(|labels| labels.get(label)).is_some_and(|one| one == value)
    };
    has(INSTALLATION, &config.name) && has(VOLUME, id.as_str())
}

/// None: the claim is being removed, or is no volume's.
fn volume_of(claim: PersistentVolumeClaim) -> Option<ClusterVolume> {
    let metadata = claim.metadata;
    let id: VolumeId = metadata.labels?.get(VOLUME)?.parse().ok()?;
    let is_named = metadata.name.is_some_and(|name| name == claim_name(&id));
    if metadata.deletion_timestamp.is_some() || !is_named {
        return None;
    }
    let is_lost = claim.status.and_then(|status| status.phase).is_some_and(|phase| phase == LOST);
    Some(ClusterVolume {
        id,
        memo: metadata.annotations.and_then(|mut annotations| annotations.remove(MEMO)),
        problem: is_lost.then(|| "the PersistentVolume of its claim is gone from the cluster".to_owned()),
    })
}

impl Volumes {
    /// The uid of a volume's claim. None: there is none, or it is another server's.
    async fn uid_of(&self, id: &VolumeId, what: &str) -> Result<Option<String>, EngineError> {
        let (shared, name) = (&self.0, claim_name(id));
        let found = call(what, || shared.api.volumes.get_opt(&name)).await.map_err(|error| refused(what, &error))?;
        Ok(found.filter(|claim| is_own(&shared.config, id, claim)).and_then(|claim| claim.metadata.uid))
    }

    /// Merges into the claim with this uid. Another claim of the same name stays as it is.
    async fn patch(&self, id: &VolumeId, what: &str, uid: &str, mut change: Value) -> Result<(), CallError> {
        change["metadata"]["uid"] = json!(uid);
        let (name, params, patch) = (claim_name(id), PatchParams::default(), Patch::Merge(change));
        call(what, || self.0.api.volumes.patch(&name, &params, &patch)).await.map(drop)
    }
}

#[async_trait]
impl ClusterVolumes for Volumes {
    async fn list(&self) -> Result<Vec<ClusterVolume>, EngineError> {
        let what = "list the claims of volumes";
        let selector = format!("{},{VOLUME}", self.0.api.selector());
        let claims = list(what, &self.0.api.volumes, &selector).await.map_err(|error| refused(what, &error))?;
        Ok(claims.into_iter().filter_map(volume_of).collect())
    }

    async fn create(&self, id: &VolumeId, size_bytes: u64) -> Result<(), EngineError> {
        let what = "create the claim of a volume";
        let claim = claim(&self.0.config, id, size_bytes)?;
        let params = PostParams::default();
        match call(what, || self.0.api.volumes.create(&params, &claim)).await {
            // An earlier attempt may have created it, and lost its answer.
            Err(CallError::Api(status)) if status.code == 409 && self.uid_of(id, what).await?.is_some() => Ok(()),
            other => other.map(drop).map_err(|error| refused(what, &error)),
        }
    }

    async fn grow(&self, id: &VolumeId, size_bytes: u64) -> Result<(), EngineError> {
        let what = "grow the claim of a volume";
        let Some(uid) = self.uid_of(id, what).await? else {
            let reason = format!("its claim {} is gone from the cluster", claim_name(id));
            return Err(EngineError::NoGrowth { reason, hint: "remove it, and create another: arenite volume rm NAME" });
        };
        let patched = self.patch(id, what, &uid, json!({"spec": {"resources": storage(size_bytes)}})).await;
        patched.map_err(|error| match &error {
            // The server may patch claims, and the cluster refuses this one.
            CallError::Api(status)
                if matches!(status.code, 403 | 422) && error.busy().is_none() && !status.message.contains("cannot patch") =>
            {
                EngineError::NoGrowth { reason: status.message.clone(), hint: GROWTH }
            }
            _ => refused(what, &error),
        })
    }

    async fn write_memo(&self, id: &VolumeId, memo: &str) -> Result<(), EngineError> {
        let what = "write the memo of a volume";
        let uid = self.uid_of(id, what).await?.ok_or_else(|| unusable(what, "its claim is gone from the cluster"))?;
        let patched = self.patch(id, what, &uid, json!({"metadata": {"annotations": {MEMO: memo}}})).await;
        patched.map_err(|error| refused(what, &error))
    }

    async fn remove(&self, id: &VolumeId) -> Result<(), EngineError> {
        let what = "delete the claim of a volume";
        let Some(uid) = self.uid_of(id, what).await? else { return Ok(()) };
        let preconditions = Some(Preconditions { uid: Some(uid), resource_version: None });
        let (name, params) = (claim_name(id), DeleteParams { preconditions, ..DeleteParams::default() });
        let deleted = call(what, || self.0.api.volumes.delete(&name, &params)).await.map(drop);
        ignore_missing(deleted).map_err(|error| refused(what, &error))
    }
}

#[cfg(test)]
mod tests {
    use arenite_engine::VolumeAccess;

    use super::*;
    use crate::tests::config;

    #[test]
    fn a_claim_requests_bytes_and_has_no_owner() {
        let mut config = config();
        let id: VolumeId = "v0123456789a".parse().unwrap();
        let object = serde_json::to_value(claim(&config, &id, 5 << 30).unwrap()).unwrap();
        assert_eq!(object["metadata"]["name"], "arenite-v0123456789a");
        assert_eq!(object["metadata"]["labels"], json!({INSTALLATION: "test", VOLUME: "v0123456789a"}));
        assert_eq!(object["metadata"]["ownerReferences"], Value::Null);
        let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "5368709120"}}});
        assert_eq!(object["spec"], spec);
        config.volume_class = Some("shared".to_owned());
        config.volume_access = VolumeAccess::ReadWriteMany;
        let object = serde_json::to_value(claim(&config, &id, 1).unwrap()).unwrap();
        assert_eq!(
            (&object["spec"]["accessModes"], &object["spec"]["storageClassName"]),
            (&json!(["ReadWriteMany"]), &json!("shared"))
        );
    }

    #[test]
    fn claims_of_others_and_those_that_end_are_no_volumes() {
        let config = config();
        let id: VolumeId = "v0123456789a".parse().unwrap();
        let mut found = claim(&config, &id, 1).unwrap();
        assert!(is_own(&config, &id, &found));
        assert!(!is_own(&config, &VolumeId::random(), &found));
        let other = KubernetesConfig { name: "other".to_owned(), ..config };
        assert!(!is_own(&other, &id, &found));
        let volume = volume_of(found.clone()).unwrap();
        assert_eq!(volume, ClusterVolume { id: id.clone(), memo: None, problem: None });
        found.metadata.annotations = Some([(MEMO.to_owned(), "m".to_owned())].into());
        found.status = serde_json::from_value(json!({"phase": LOST})).unwrap();
        let volume = volume_of(found.clone()).unwrap();
        assert_eq!(volume.memo.as_deref(), Some("m"));
        assert!(volume.problem.unwrap().contains("PersistentVolume"));
        let mut other = found.clone();
        other.metadata.name = Some("mine".to_owned());
        assert_eq!(volume_of(other), None);
        found.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        assert_eq!(volume_of(found), None);
    }
}
