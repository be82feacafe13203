//! Objects that a cluster has from the start.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::node::{self, VOLUMES};
use crate::failure::{Attempt, Failure};

/// Selects the fake nodes.
pub(super) const FAKE_LABEL: &str = "type=kwok";
/// Marks the nodes that kwok plays.
pub(super) const FAKE_ANNOTATION: &str = "kwok.x-k8s.io/node=fake";
/// The directory of the definitions in agent-sandbox's module, and its files with rights.
const DEFINITIONS: &str = "crds";
const RIGHTS: [&str; 2] = ["rbac.generated.yaml", "extensions-rbac.generated.yaml"];
/// Files that also contain the controller's Deployment, which is left out.
const DEPLOYMENTS: [&str; 2] = ["controller.yaml", "extensions.yaml"];

/// Nodes that kwok plays. Only pods that tolerate it get there.
pub(super) fn fake_nodes(count: usize) -> Value {
    let node = |number: usize| {
        let name = format!("fake{number}");
        json!({
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": name,
                "annotations": {"kwok.x-k8s.io/node": "fake"},
                "labels": {"type": "kwok", "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
            },
            "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
            "status": {"allocatable": {"cpu": "1000", "memory": "4Ti", "ephemeral-storage": "1Pi", "pods": "6000"}},
        })
    };
    list((1..=count).map(node).collect())
}

/// The default storage class, and volumes for it: a claim gets one on the node of its first pod. There is no provisioner, so a
/// claim may request more space, and its volume does not grow.
pub(super) fn storage(cluster: &Path, nodes: usize) -> Value {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowVolumeExpansion": true,
    });
    let volume = |node: usize, number: usize| {
        let expression = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [format!("node{node}")]});
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": format!("node{node}-{number}")},
            "spec": {
                "storageClassName": "local",
                "capacity": {"storage": "100Gi"},
                "accessModes": ["ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "local": {"path": node::dir(cluster, node).join("volumes").join(number.to_string())},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
            },
        })
    };
    let volumes = (1..=nodes).flat_map(|node| (1..=VOLUMES).map(move |number| volume(node, number)));
    list(std::iter::once(class).chain(volumes).collect())
}

/// What the API server logs of calls: each write with its caller, without its content.
pub(super) fn audit_policy() -> Value {
    let writes = json!({"level": "Metadata", "verbs": ["create", "update", "patch", "delete", "deletecollection"]});
    json!({
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [writes, {"level": "None"}],
    })
}

fn list(items: Vec<Value>) -> Value {
    json!({"apiVersion": "v1", "kind": "List", "items": items})
}

/// The definitions of agent-sandbox, and the rights of its controller, from its module's directory.
pub(super) fn agent_sandbox(dir: &Path) -> Result<String, Failure> {
    let read = |file: &Path| fs::read_to_string(file).attempt(|| format!("could not read {}", file.display()));
    let definitions = dir.join(DEFINITIONS);
    let failed = || format!("could not list {}", definitions.display());
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "agent-sandbox-system"}});
    let mut texts = vec![namespace.to_string()];
    for entry in fs::read_dir(&definitions).attempt(failed)? {
        texts.push(read(&entry.attempt(failed)?.path())?);
    }
    for file in RIGHTS {
        texts.push(read(&dir.join(file))?);
    }
    for file in DEPLOYMENTS {
        texts.extend(documents(&read(&dir.join(file))?, &["ServiceAccount", "ClusterRoleBinding"]));
    }
    Ok(texts.join("\n---\n"))
}

/// The documents of these kinds.
fn documents(text: &str, kinds: &[&str]) -> Vec<String> {
    let is_wanted = |document: &&str| {
        let kind = document.lines().find_map(|line| line.strip_prefix("kind:"));
        kind.is_some_and(|kind| kinds.contains(&kind.trim()))
    };
    let text = format!("\n{text}");
    text.split("\n---").filter(is_wanted).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_selected_by_kind() {
        let text =
            "---\nkind: Namespace\n---\nkind: ServiceAccount\nmetadata:\n  kind: x\n---\napiVersion: v1\nkind: Deployment\n";
        assert_eq!(documents(text, &["ServiceAccount"]), ["\nkind: ServiceAccount\nmetadata:\n  kind: x"]);
        assert_eq!(documents(text, &["Deployment", "Namespace"]).len(), 2);
    }

    #[test]
    fn each_node_has_its_volumes() {
        let storage = storage(Path::new("/c"), 2);
        let items = storage["items"].as_array().expect("it is a list");
        assert_eq!(items.len(), 1 + 2 * VOLUMES);
        assert_eq!(items[1 + VOLUMES]["spec"]["local"]["path"], "/c/node2/volumes/1");
    }
}
