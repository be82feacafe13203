//! Settings of the engine in the crate `kubernetes`. They are here for builds without that crate, which read the same settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use arenite_model::Tier;

/// Settings of the Kubernetes engine.
#[derive(Debug, Clone)]
pub struct KubernetesConfig {
    /// The kubeconfig; none: the service account of the pod that the server runs in, else `$KUBECONFIG` or `~/.kube/config`.
    pub kubeconfig: Option<PathBuf>,
    /// Namespace of the sandboxes' pods; none: that of the kubeconfig or of the service account.
    pub namespace: Option<String>,
    /// Value of the label `arenite.installation` of all objects. One server has one name.
    pub name: String,
    /// Image with this program at `/arenite`.
    pub guest_image: String,
    /// References of images by the names that sandboxes use. Other names are references themselves.
    pub images: BTreeMap<String, String>,
    /// Warm pools of kubernetes-sigs/agent-sandbox (SandboxWarmPool) by the names of the images that their pods have.
    pub warm_pools: BTreeMap<String, String>,
    /// YAML file of a pod template, under what the engine sets.
    pub template: Option<PathBuf>,
    /// File of the server's private key; created if there is none.
    pub identity: PathBuf,
    /// Runtime classes of tiers. Without one, only `namespace` is available, as the cluster's default runtime.
    pub runtime_classes: BTreeMap<Tier, String>,
    /// The tier of sandboxes that request none.
    pub default_tier: Tier,
    /// Network policies select pods by the label `arenite.network`.
    pub has_network_policies: bool,
    /// Time for a pod to be scheduled, for clusters that add nodes on demand.
    pub schedule_wait: Duration,
    /// Storage class of volumes' claims; none: the cluster's default.
    pub volume_class: Option<String>,
    pub volume_access: VolumeAccess,
}

/// Which nodes can mount a volume at the same time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum VolumeAccess {
    /// One node, so all sandboxes of a volume run on one node.
    #[default]
    ReadWriteOnce,
    /// All nodes.
    ReadWriteMany,
}

impl VolumeAccess {
    /// The access mode of Kubernetes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadWriteMany => "ReadWriteMany",
        }
    }
}
