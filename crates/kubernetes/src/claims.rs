//! Sandboxes from warm pools of kubernetes-sigs/agent-sandbox: a SandboxClaim takes a pod that its controller keeps ready.
//!
//! ```text
//!  our Secret ◄─owns─ SandboxClaim ◄─owns─ Sandbox ◄─owns─ Pod
//! ```
//!
//! Each link is checked by uid before the pod gets the labels of our sandbox. Its guest proves its identity as any other does.

use std::time::Duration;

use arenite_channel::Identity;
use arenite_engine::{EngineError, KubernetesConfig};
use arenite_model::{ImageName, SandboxId, SandboxSpec};
use futures_util::{StreamExt, pin_mut};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Client;
use kube::api::{Api as KubeApi, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, PropagationPolicy};
use kube::core::{ApiResource, GroupVersionKind};
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::{CallError, call, failed, ignore_missing};
use crate::object_name;

/// Time for the controller to bind a claim. Without a ready pod, it creates one.
const BIND_LIMIT: Duration = Duration::from_secs(600);
const EXTENSIONS: &str = "extensions.agents.x-k8s.io";
const CORE: &str = "agents.x-k8s.io";
const VERSION: &str = "v1beta1";

/// The claims of an installation.
#[derive(Clone)]
pub(crate) struct Claims {
    claims: KubeApi<DynamicObject>,
    sandboxes: KubeApi<DynamicObject>,
    kind: ApiResource,
}

fn resource(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, VERSION, kind), plural)
}

impl Claims {
    pub(crate) fn new(client: Client, namespace: &str) -> Self {
        let kind = resource(EXTENSIONS, "SandboxClaim", "sandboxclaims");
        let sandbox = resource(CORE, "Sandbox", "sandboxes");
        Self {
            claims: KubeApi::namespaced_with(client.clone(), namespace, &kind),
            sandboxes: KubeApi::namespaced_with(client, namespace, &sandbox),
            kind,
        }
    }

    /// Claims a pod of a pool, gives it our labels, and returns it.
    ///
    /// `owner` is the uid of the record, `labels` those of the pod.
    pub(crate) async fn claim(
        &self,
        pods: &KubeApi<Pod>,
        id: &SandboxId,
        pool: &str,
        owner: &str,
        labels: &Value,
    ) -> Result<Pod, EngineError> {
        let stage = "the claim of a pod";
        let name = object_name(id);
        let mut claim = DynamicObject::new(&name, &self.kind).data(json!({
            "spec": {"warmPoolRef": {"name": pool}, "lifecycle": {"shutdownPolicy": "Delete"}},
        }));
        claim.metadata.owner_references = serde_json::from_value(owner_of(id, owner)).ok();
        let params = PostParams::default();
        let created = match call(stage, || self.claims.create(&params, &claim)).await {
            // From an earlier attempt: the owner's uid is checked below.
            Err(CallError::Api(status)) if status.code == 409 => call(stage, || self.claims.get(&name)).await,
            other => other,
        };
        let created = created.map_err(|error| error.at_stage(stage))?;
        let uid = proven(stage, &created.metadata, "Secret", owner)?;
        let bound = timeout(BIND_LIMIT, self.bound(&name, &uid)).await;
        let sandbox = bound.map_err(|_| EngineError::Timeout { what: "the claim of a pod", limit: BIND_LIMIT })??;
        let sandbox = call(stage, || self.sandboxes.get(&sandbox)).await.map_err(|error| error.at_stage(stage))?;
        let sandbox_uid = proven(stage, &sandbox.metadata, "SandboxClaim", &uid)?;
        let pod_name = sandbox.metadata.name.clone().unwrap_or_default();
        let pod = call(stage, || pods.get(&pod_name)).await.map_err(|error| error.at_stage(stage))?;
        let pod_uid = proven(stage, &pod.metadata, "Sandbox", &sandbox_uid)?;
        // The uid is a precondition: another pod of this name does not get the labels.
        let patch = Patch::Merge(json!({"metadata": {"uid": pod_uid, "labels": labels}}));
        let params = PatchParams::default();
        call(stage, || pods.patch(&pod_name, &params, &patch)).await.map_err(|error| error.at_stage(stage))
    }

    /// The name of the Sandbox that a claim got.
    async fn bound(&self, name: &str, uid: &str) -> Result<String, EngineError> {
        let stage = "the claim of a pod";
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let events = watcher(self.claims.clone(), config).default_backoff().applied_objects();
        pin_mut!(events);
        while let Some(event) = events.next().await {
            let Ok(claim) = event else { continue };
            if claim.metadata.uid.as_deref() != Some(uid) {
                continue;
            }
            let status = &claim.data["status"];
            let ready = status["conditions"].as_array().into_iter().flatten().find(|one| one["type"] == "Ready");
            let Some(ready) = ready else { continue };
            if ready["status"] == "True" {
                if let Some(sandbox) = status["sandbox"]["name"].as_str() {
                    return Ok(sandbox.to_owned());
                }
            } else if ready["reason"].as_str().is_some_and(|reason| reason.ends_with("NotFound")) {
                let reason = ready["message"].as_str().unwrap_or("there is no such pool").to_owned();
                return Err(failed(stage, reason, Some("create the SandboxWarmPool that kubernetes_warm_pool names")));
            }
        }
        Err(failed(stage, "the watch of the claim ended", None))
    }

    /// Deletes a claim, and with it its Sandbox and its pod.
    pub(crate) async fn delete(&self, id: &SandboxId) -> Result<(), EngineError> {
        let stage = "deleting the claim of a pod";
        let propagation_policy = Some(PropagationPolicy::Background);
        let (name, params) = (object_name(id), DeleteParams { propagation_policy, ..DeleteParams::default() });
        ignore_missing(call(stage, || self.claims.delete(&name, &params)).await.map(drop)).map_err(|error| error.at_stage(stage))
    }
}

/// The uid of an object that has this owner.
fn proven(stage: &str, metadata: &ObjectMeta, kind: &str, owner: &str) -> Result<String, EngineError> {
    let is_owned = metadata.owner_references.iter().flatten().any(|one| one.kind == kind && one.uid == owner);
    match &metadata.uid {
        Some(uid) if is_owned => Ok(uid.clone()),
        _ => Err(failed(stage, format!("an object of the chain does not belong to our {kind}"), None)),
    }
}

/// The owner reference of a sandbox's objects.
pub(crate) fn owner_of(id: &SandboxId, uid: &str) -> Value {
    json!([{"apiVersion": "v1", "kind": "Secret", "name": object_name(id), "uid": uid}])
}

/// A SandboxTemplate and a SandboxWarmPool with pods like those of the engine, for an image with a pool in the settings. Creates
/// the server's private key if there is none.
///
/// # Errors
/// The image has no pool, the template is not valid, or there is no key.
pub fn warm_pool(config: &KubernetesConfig, image: &ImageName) -> Result<Value, EngineError> {
    let Some(name) = config.warm_pools.get(image.as_str()) else {
        let hint = "name its pool first: kubernetes_warm_pool = [\"IMAGE=POOL\"]";
        return Err(failed("the warm pool", format!("the image {image} has none"), Some(hint)));
    };
    let identity = Identity::open(&config.identity).map_err(|error| failed("the server's identity", error, None))?;
    let spec = SandboxSpec::of_image(image.clone());
    let pod = crate::pod::template(config, &identity.public().to_string(), &spec)?;
    let api = format!("{EXTENSIONS}/{VERSION}");
    let mut metadata = json!({"name": name});
    if let Some(namespace) = &config.namespace {
        metadata["namespace"] = json!(namespace);
    }
    Ok(json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            {
                "apiVersion": api, "kind": "SandboxTemplate", "metadata": metadata,
                // The installation's own policies select the pods once they are claimed.
                "spec": {"podTemplate": pod, "networkPolicyManagement": "Unmanaged"},
            },
            {
                "apiVersion": api, "kind": "SandboxWarmPool", "metadata": metadata,
                "spec": {"replicas": 1, "sandboxTemplateRef": {"name": name}},
            },
        ],
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_object_with_the_owner_is_of_the_chain() {
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "uid": "a", "ownerReferences": [{"apiVersion": "v1", "kind": "Secret", "name": "n", "uid": "s"}],
        }))
        .unwrap();
        assert_eq!(proven("t", &metadata, "Secret", "s").unwrap(), "a");
        assert!(proven("t", &metadata, "Secret", "other").is_err());
        assert!(proven("t", &metadata, "SandboxClaim", "s").is_err());
        assert!(proven("t", &ObjectMeta::default(), "Secret", "s").is_err());
    }
}
