//! The pod of a sandbox.

use std::collections::BTreeSet;
use std::path::Path;

use arenite_engine::{EngineError, KubernetesConfig, VolumeAccess};
use arenite_model::protocol::{POD_DIR, POD_ID_ENV, POD_KEYS_ENV, POD_PORT, POD_PROGRAM, POD_TOKEN_DIR, POD_TOKEN_NAME};
use arenite_model::{NetworkMode, Resources, SandboxId, SandboxSpec, Tier, VolumeId, VolumeMount};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::api::{AUDIENCE, at};
use crate::claims::owner_of;
use crate::template::merge;
use crate::volumes::claim_name;
use crate::{INSTALLATION, NETWORK, SANDBOX, object_name};

/// The main container.
pub(crate) const CONTAINER: &str = "sandbox";
/// The program in the guest's image.
const PROGRAM: &str = "/arenite";
/// The share of a sandbox's CPU limit that it requests, in percent. Sandboxes are idle most of the time.
const CPU_REQUEST_PERCENT: u32 = 25;
/// The user of containers, unless the template has another: Kubernetes' level `restricted` refuses root.
const USER: u32 = 1000;
/// Time for a pod to end by itself, in seconds. Its guest ends at once.
pub(crate) const GRACE_SECONDS: u32 = 5;

/// What is particular to one pod.
pub(crate) struct Wanted<'a> {
    pub(crate) config: &'a KubernetesConfig,
    /// The operator's, as a pod template.
    pub(crate) template: &'a Value,
    pub(crate) id: &'a SandboxId,
    pub(crate) spec: &'a SandboxSpec,
    pub(crate) tier: Tier,
    pub(crate) hostname: &'a str,
    /// The uid of the record, which owns the pod.
    pub(crate) owner: &'a str,
    /// The server's public key.
    pub(crate) server_key: &'a str,
}

/// Reads the operator's template; empty without a file.
pub(crate) fn read_template(path: Option<&Path>) -> Result<Value, EngineError> {
    let Some(path) = path else { return Ok(json!({})) };
    let stage = format!("the pod template {}", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| at(&stage, error))?;
    let invalid = |reason: String| at(&stage, std::io::Error::new(std::io::ErrorKind::InvalidData, reason));
    let template: Value = serde_saphyr::from_str(&text).map_err(|error| invalid(error.to_string()))?;
    let is_known = template.as_object().is_some_and(|all| all.keys().all(|key| matches!(key.as_str(), "metadata" | "spec")));
    if !is_known {
        return Err(invalid("it has only metadata and spec, as the template of a Deployment".to_owned()));
    }
    // As a pod, so that a misspelled field is found at the start.
    serde_json::from_value::<Pod>(template.clone()).map_err(|error| invalid(error.to_string()))?;
    Ok(template)
}

/// Refuses what the cluster can't enforce.
pub(crate) fn check(spec: &SandboxSpec, has_network_policies: bool) -> Result<(), EngineError> {
    let refuse = |what: String, reason: &str| Err(EngineError::Unsupported { what, reason: reason.to_owned() });
    let default = Resources::default();
    if spec.resources.pids != default.pids {
        return refuse(
            format!("the limit of {} processes", spec.resources.pids),
            "Kubernetes has no such limit for a pod, only the kubelet's podPidsLimit for all pods of a node",
        );
    }
    match spec.network {
        NetworkMode::Host => return refuse("the host's network".to_owned(), "it is for image builds"),
        NetworkMode::None if !has_network_policies => {
            return refuse(
                "the network none".to_owned(),
                "no network policies are installed for sandboxes: the Helm chart installs them, and sets kubernetes_network_policies",
            );
        }
        NetworkMode::None | NetworkMode::Open => {}
    }
    for VolumeMount { name, path, volume_id, .. } in &spec.volumes {
        if volume_id.is_none() {
            let reason = "the tenant has none of that name, and directories of the server's host are not on the cluster's nodes";
            return refuse(format!("the volume {name:?}"), reason);
        }
        let is_below = |top: &str| path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if path.contains(':') || [POD_DIR, POD_TOKEN_DIR].into_iter().any(is_below) {
            return refuse(
                format!("a volume at {path:?}"),
                "a pod's mounts have no colons, and the guest's directories are its own",
            );
        }
    }
    if spec.image_command {
        return refuse("the image's own command".to_owned(), "the server does not know the images of the cluster; give args");
    }
    Ok(())
}

/// The image's reference for the kubelet.
fn reference<'a>(config: &'a KubernetesConfig, spec: &'a SandboxSpec) -> &'a str {
    let name = spec.image.as_str();
    config.images.get(name).map_or(name, String::as_str)
}

/// The labels of a sandbox's pod.
pub(crate) fn labels(config: &KubernetesConfig, id: &SandboxId, spec: &SandboxSpec) -> Value {
    let network = match spec.network {
        NetworkMode::None => "none",
        NetworkMode::Open | NetworkMode::Host => "open",
    };
    json!({INSTALLATION: config.name, SANDBOX: id.as_str(), NETWORK: network})
}

/// The pod's object.
pub(crate) fn object(wanted: &Wanted<'_>) -> Result<Pod, EngineError> {
    let Wanted { config, spec, id, .. } = wanted;
    let mut object = of_image(config, wanted.template, wanted.server_key, spec, wanted.tier);
    merge(
        &mut object,
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": object_name(id),
                "labels": labels(config, id, spec),
                "ownerReferences": owner_of(id, wanted.owner),
            },
            "spec": {
                "hostname": wanted.hostname,
                "containers": [{"name": CONTAINER, "env": [{"name": POD_ID_ENV, "value": id.as_str()}]}],
            },
        }),
    );
    add_volumes(&mut object, config, &spec.volumes);
    serde_json::from_value(object).map_err(|error| at("the sandbox's pod", error.into()))
}

/// Adds the claims of volumes and their mounts. They are appended, since a template can have mounts of the same names.
fn add_volumes(object: &mut Value, config: &KubernetesConfig, mounts: &[VolumeMount]) {
    let claims: BTreeSet<&VolumeId> = mounts.iter().filter_map(|mount| mount.volume_id.as_ref()).collect();
    let spec = &mut object["spec"];
    for &id in &claims {
        let name = claim_name(id);
        push(&mut spec["volumes"], json!({"name": name, "persistentVolumeClaim": {"claimName": name}}));
        if config.volume_access == VolumeAccess::ReadWriteOnce {
            // Kubernetes would also choose nodes that can't attach it, where the pod would wait for the end of the others.
            let selector = json!({"matchExpressions": [{"key": volume_label(id), "operator": "Exists"}]});
            let term = json!({"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"});
            push(&mut spec["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"], term);
        }
    }
    let containers = spec["containers"].as_array_mut().into_iter().flatten();
    for container in containers.filter(|container| container["name"] == CONTAINER) {
        for mount in mounts {
            let Some(id) = &mount.volume_id else { continue };
            let mut object = json!({"name": claim_name(id), "mountPath": mount.path, "readOnly": mount.read_only});
            if let Some(sub_path) = &mount.sub_path {
                object["subPath"] = json!(sub_path);
            }
            push(&mut container["volumeMounts"], object);
        }
    }
    for id in claims {
        object["metadata"]["labels"][volume_label(id)] = json!("");
    }
}

/// Label of the pods that mount a volume.
fn volume_label(id: &VolumeId) -> String {
    format!("arenite.volume.{id}")
}

/// Appends to a list, which may be missing.
fn push(list: &mut Value, item: Value) {
    match list {
        Value::Array(items) => items.push(item),
        missing => *missing = json!([item]),
    }
}

/// The template of pods without an assignment, for warm pools.
pub(crate) fn template(config: &KubernetesConfig, server_key: &str, spec: &SandboxSpec) -> Result<Value, EngineError> {
    let template = read_template(config.template.as_deref())?;
    let mut object = of_image(config, &template, server_key, spec, spec.tier.unwrap_or(config.default_tier));
    // A pool hands out what is ready.
    let probe = json!({"tcpSocket": {"port": POD_PORT}, "periodSeconds": 1});
    merge(&mut object, json!({"spec": {"containers": [{"name": CONTAINER, "readinessProbe": probe}]}}));
    Ok(object)
}

/// What pods of an image have in common: metadata and spec.
fn of_image(config: &KubernetesConfig, template: &Value, server_key: &str, spec: &SandboxSpec, tier: Tier) -> Value {
    let resources = &spec.resources;
    let cpu = |millis: u32| format!("{}m", millis.max(1));
    let mut object = json!({
        "spec": {
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{
                "name": CONTAINER,
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
            "initContainers": [{
                "name": "guest",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
        },
    });
    // What the operator may change comes before, what the engine relies on after the template.
    merge(&mut object, template.clone());
    let mount = json!({"name": "arenite", "mountPath": POD_DIR});
    merge(
        &mut object,
        json!({
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": GRACE_SECONDS,
                "initContainers": [{
                    "name": "guest",
                    "image": config.guest_image,
                    "command": [PROGRAM, "guest", "install", POD_DIR],
                    "volumeMounts": [mount],
                    "resources": {"limits": {"cpu": "1", "memory": "128Mi"}, "requests": {"cpu": "10m", "memory": "16Mi"}},
                }],
                "containers": [{
                    "name": CONTAINER,
                    "image": reference(config, spec),
                    "command": [format!("{POD_DIR}/{POD_PROGRAM}"), "guest", "pod"],
                    "args": [],
                    "env": [{"name": POD_KEYS_ENV, "value": server_key}],
                    "ports": [{"name": "guest", "containerPort": POD_PORT}],
                    "resources": {
                        "limits": {
                            "cpu": cpu(resources.cpu_millis),
                            "memory": resources.memory_bytes.to_string(),
                            "ephemeral-storage": resources.disk_bytes.to_string(),
                        },
                        "requests": {
                            "cpu": cpu(resources.cpu_millis * CPU_REQUEST_PERCENT / 100),
                            "memory": resources.memory_bytes.to_string(),
                            "ephemeral-storage": "64Mi",
                        },
                    },
                    "volumeMounts": [
                        {"name": "arenite", "mountPath": POD_DIR, "readOnly": true},
                        {"name": "arenite-token", "mountPath": POD_TOKEN_DIR, "readOnly": true},
                        {"name": "arenite-shm", "mountPath": "/dev/shm"},
                    ],
                }],
                "volumes": [
                    {"name": "arenite", "emptyDir": {}},
                    {"name": "arenite-token", "projected": {"sources": [{"serviceAccountToken": {
                        "audience": AUDIENCE, "expirationSeconds": 3600, "path": POD_TOKEN_NAME,
                    }}]}},
                    {"name": "arenite-shm", "emptyDir": {"medium": "Memory", "sizeLimit": resources.shm_bytes.to_string()}},
                ],
            },
        }),
    );
    if let Some(class) = config.runtime_classes.get(&tier) {
        merge(&mut object, json!({"spec": {"runtimeClassName": class}}));
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::config;

    fn made(template: Value, change: impl FnOnce(&mut SandboxSpec)) -> Value {
        let mut config = config();
        config.images.insert("base".to_owned(), "registry.example/base:1".to_owned());
        config.runtime_classes.insert(Tier::Gvisor, "runsc".to_owned());
        let mut spec = SandboxSpec::of_image("base".parse().unwrap());
        change(&mut spec);
        let id = "s0123456789a".parse().unwrap();
        let pod = object(&Wanted {
            config: &config,
            template: &template,
            id: &id,
            spec: &spec,
            tier: spec.tier.unwrap_or_default(),
            hostname: "a",
            owner: "u",
            server_key: "k",
        });
        serde_json::to_value(pod.unwrap()).unwrap()
    }

    #[test]
    fn the_pod_passes_the_level_restricted_and_keeps_the_template() {
        let pod = made(
            json!({
                "metadata": {"labels": {"team": "x", NETWORK: "mine"}},
                "spec": {
                    "priorityClassName": "low",
                    "securityContext": {"runAsUser": 5},
                    "containers": [{"name": CONTAINER, "env": [{"name": "A", "value": "1"}], "command": ["sh"]}],
                    "automountServiceAccountToken": true,
                },
            }),
            |spec| spec.tier = Some(Tier::Gvisor),
        );
        let labels = &pod["metadata"]["labels"];
        assert_eq!((&labels["team"], &labels[NETWORK]), (&json!("x"), &json!("open")));
        let spec = &pod["spec"];
        assert_eq!(spec["priorityClassName"], "low");
        assert_eq!(spec["securityContext"]["runAsUser"], 5);
        assert_eq!(spec["automountServiceAccountToken"], false);
        assert_eq!(spec["runtimeClassName"], "runsc");
        let container = &spec["containers"][0];
        assert_eq!(container["image"], "registry.example/base:1");
        assert_eq!(container["command"][1], "guest");
        assert_eq!(container["env"].as_array().unwrap().len(), 3);
        for one in [container, &spec["initContainers"][0]] {
            assert_eq!(one["securityContext"]["allowPrivilegeEscalation"], false);
            assert_eq!(one["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
        }
        assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    }

    #[test]
    fn what_kubernetes_does_not_enforce_is_refused() {
        let mut spec = SandboxSpec::of_image("base".parse().unwrap());
        check(&spec, false).unwrap();
        spec.network = NetworkMode::None;
        assert!(check(&spec, false).is_err());
        check(&spec, true).unwrap();
        spec.resources.pids = 77;
        assert!(check(&spec, true).unwrap_err().to_string().contains("77 processes"));
    }

    fn mount(id: &str, path: &str) -> VolumeMount {
        let volume_id = Some(id.parse().unwrap());
        VolumeMount { name: "data".to_owned(), path: path.to_owned(), volume_id, ..VolumeMount::default() }
    }

    #[test]
    fn a_volume_is_one_claim_with_a_mount_for_each_path() {
        let template = json!({
            "spec": {
                "affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {}, "topologyKey": "zone"},
                ]}},
                "volumes": [{"name": "cache", "emptyDir": {}}],
                "containers": [{"name": CONTAINER, "volumeMounts": [{"name": "cache", "mountPath": "/cache"}]}],
            },
        });
        let pod = made(template.clone(), |spec| {
            let part = VolumeMount { sub_path: Some("a/b".to_owned()), read_only: true, ..mount("v0123456789a", "/part") };
            spec.volumes = vec![mount("v0123456789a", "/data"), part, mount("v0123456789b", "/more")];
        });
        let named = |list: &Value, prefix: &str| -> Vec<Value> {
            let named = |item: &&Value| item["name"].as_str().unwrap().starts_with(prefix);
            list.as_array().unwrap().iter().filter(named).cloned().collect()
        };
        let spec = &pod["spec"];
        let claim = |name: &str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        assert_eq!(named(&spec["volumes"], "arenite-v"), [claim("arenite-v0123456789a"), claim("arenite-v0123456789b")]);
        let mounts = &spec["containers"][0]["volumeMounts"];
        assert_eq!(
            named(mounts, "arenite-v"),
            [
                json!({"name": "arenite-v0123456789a", "mountPath": "/data", "readOnly": false}),
                json!({"name": "arenite-v0123456789a", "mountPath": "/part", "readOnly": true, "subPath": "a/b"}),
                json!({"name": "arenite-v0123456789b", "mountPath": "/more", "readOnly": false}),
            ]
        );
        // Those of the template and the engine stay.
        assert_eq!(named(mounts, "cache").len() + named(mounts, "arenite").len(), 7);
        let terms = |pod: &Value| {
            let terms = pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"].clone();
            terms.as_array().map_or(0, Vec::len)
        };
        assert_eq!((terms(&pod), &pod["metadata"]["labels"]["arenite.volume.v0123456789b"]), (3, &json!("")));
        let without = made(json!({}), |_| {});
        assert_eq!((terms(&without), &without["spec"]["affinity"]), (0, &Value::Null));
        // All nodes can mount it.
        let mut config = config();
        config.volume_access = VolumeAccess::ReadWriteMany;
        let mut object = json!({"metadata": {"labels": {}}, "spec": {"containers": [{"name": CONTAINER}]}});
        add_volumes(&mut object, &config, &[mount("v0123456789a", "/data")]);
        assert_eq!(terms(&object), 0);
        assert_eq!(object["spec"]["containers"][0]["volumeMounts"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn mounts_that_a_pod_can_not_have_are_refused() {
        let mut spec = SandboxSpec::of_image("base".parse().unwrap());
        spec.volumes = vec![mount("v0123456789a", "/data")];
        check(&spec, false).unwrap();
        for path in ["/.arenite", "/.arenite/x", "/.arenite-token", "/a:b"] {
            spec.volumes[0].path = path.to_owned();
            assert!(check(&spec, false).unwrap_err().to_string().contains(path), "{path}");
        }
        spec.volumes[0] = VolumeMount { volume_id: None, ..mount("v0123456789a", "/data") };
        assert!(check(&spec, false).unwrap_err().to_string().contains("directories of the server's host"));
    }

    #[test]
    fn a_template_is_checked_when_it_is_read() {
        let file = |text: &str| {
            let dir = std::env::temp_dir().join(format!("arenite-template-{}", SandboxId::random()));
            std::fs::write(&dir, text).unwrap();
            let read = read_template(Some(&dir));
            std::fs::remove_file(dir).unwrap();
            read
        };
        assert_eq!(file("spec:\n  nodeSelector: {disk: fast}\n").unwrap()["spec"]["nodeSelector"]["disk"], "fast");
        assert!(file("spec: [").is_err());
        assert!(file("kind: Pod\n").is_err());
        assert!(file("spec: {nodeSelector: [1]}\n").is_err());
        assert_eq!(read_template(None).unwrap(), json!({}));
    }
}
