//! A node: a network namespace, a mount namespace, and in them containerd, the kubelet, and kube-proxy.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::build::{self, KUBERNETES};
use super::cluster::Cluster;
use super::credentials::Credentials;
use super::process::{Process, direct};
use super::{cgroups, images, network};
use crate::command;
use crate::failure::{Attempt, Failure, Outcome};

/// containerd's socket, in the node's own `/run`.
const SOCKET: &str = "/run/containerd/containerd.sock";
/// The host's directories of these programs, which each node has for itself; `/run` too.
const OWN_DIRS: [&str; 3] = ["/var/lib/kubelet", "/var/lib/cni", "/var/log"];
/// Of these, the directories that a host without Kubernetes lacks: mounts need them.
pub(super) const MADE_DIRS: [&str; 2] = ["/var/lib/kubelet", "/var/lib/cni"];
/// The node's first process: mounts what the node has for itself. Mounts of pods reach each other, and not the host.
const HOLD: &str = r#"
set -e
mount --make-rshared /
mount -t tmpfs tmpfs /run
for dir; do mount --bind "$0/${dir##*/}" "$dir"; done
: >"$0/mounted"
exec sleep infinity
"#;
/// Volumes that a node has for claims of the class `local`. One that was used is not used again.
pub(super) const VOLUMES: usize = 24;
const MAX_PODS: u32 = 250;

/// A node that is being set up.
pub(super) struct Node<'a> {
    number: usize,
    dir: PathBuf,
    credentials: &'a Credentials,
}

/// The directory of a node in that of the cluster.
pub(super) fn dir(cluster: &Path, number: usize) -> PathBuf {
    cluster.join(format!("node{number}"))
}

impl<'a> Node<'a> {
    pub(super) fn new(number: usize, cluster: &Path, credentials: &'a Credentials) -> Self {
        Self { number, dir: dir(cluster, number), credentials }
    }

    fn write(&self, name: &str, text: &str) -> Result<String, Failure> {
        let file = self.dir.join(name);
        fs::write(&file, text).attempt(|| format!("could not write {}", file.display()))?;
        Ok(file.display().to_string())
    }

    /// Starts the node's first process, and returns when its mounts are done.
    pub(super) fn hold(&self, cluster: &mut Cluster) -> Result<Process, Failure> {
        let volumes = (1..=VOLUMES).map(|volume| format!("volumes/{volume}"));
        let dirs = ["kubelet", "cni", "log", "cni-config", "plugins"].map(str::to_owned).into_iter().chain(volumes);
        for dir in dirs.map(|name| self.dir.join(name)).chain(MADE_DIRS.map(PathBuf::from)) {
            fs::create_dir_all(&dir).attempt(|| format!("could not make {}", dir.display()))?;
        }
        let mut args = vec!["-c".to_owned(), HOLD.to_owned(), self.dir.display().to_string()];
        args.extend(OWN_DIRS.map(str::to_owned));
        let words = cluster.init().entering(&network::path(self.number), &["--mount"], "sh", &args);
        let process = Process::start(direct(&words[0]).args(&words[1..]), &cluster.log(&format!("node-{}", self.number)))?;
        let mounted = self.dir.join("mounted");
        cluster.wait_for(&format!("the namespaces of node {}", self.number), || {
            if process.is_alive() { Ok(mounted.exists()) } else { Err(Failure::new("its first process ended")) }
        })?;
        Ok(process)
    }

    /// Starts containerd, and gives it the images that each node has.
    pub(super) fn start_containerd(&self, cluster: &mut Cluster, holder: Process) -> Outcome {
        let config = self.write("containerd.toml", &self.containerd_config())?;
        self.write("cni-config/10-arenite.conflist", &self.cni_config().to_string())?;
        self.start(cluster, holder, "containerd", Path::new("containerd"), &["--config", &config])
    }

    pub(super) fn start_kubelet(&self, cluster: &mut Cluster, holder: Process) -> Outcome {
        // The host's file may name a server that pods can't reach.
        let resolver = self.write("resolv.conf", "nameserver 127.0.0.1\n")?;
        let config = self.write("kubelet.json", &self.kubelet_config(&resolver).to_string())?;
        let kubeconfig = self.credentials.kubeconfig(&self.name());
        let address = network::node_address(self.number);
        let args = ["--config", &config, "--kubeconfig", &kubeconfig, "--hostname-override", &self.name(), "--node-ip", &address];
        self.start(cluster, holder, "kubelet", &build::path(KUBERNETES, "kubelet"), &args)?;
        let config = self.write("proxy.json", &self.proxy_config().to_string())?;
        self.start(cluster, holder, "proxy", &build::path(KUBERNETES, "kube-proxy"), &["--config", &config])
    }

    fn start(&self, cluster: &mut Cluster, holder: Process, name: &str, program: &Path, args: &[&str]) -> Outcome {
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let words = holder.entering(&holder.network(), &[], &program.display().to_string(), &args);
        cluster.start_component(&format!("{name}-{}", self.number), words, BTreeMap::new())
    }

    fn name(&self) -> String {
        format!("node{}", self.number)
    }

    fn containerd_config(&self) -> String {
        let dir = self.dir.display();
        let snapshotter = snapshotter(&self.dir);
        let image = images::PAUSE;
        format!(
            r#"version = 2
root = "{dir}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
                    "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
path = "{dir}/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
disable_apparmor = true
enable_unprivileged_ports = true
netns_mounts_under_state_dir = true
# Hosts in containers can't lower the score of a process, which pods ask for.
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "{snapshotter}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{dir}/cni-config"
"#
        )
    }

    /// `ptp` routes between pods. `bridge` would switch, and depend on the host's packet filter.
    fn cni_config(&self) -> serde_json::Value {
        let addresses = json!({
            "type": "host-local",
            "dataDir": "/run/cni-addresses",
            "ranges": [[{"subnet": network::pod_subnet(self.number)}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        });
        json!({"cniVersion": "1.0.0", "name": "arenite", "plugins": [{"type": "ptp", "mtu": 1500, "ipam": addresses}]})
    }

    fn kubelet_config(&self, resolver: &str) -> serde_json::Value {
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": format!("unix://{SOCKET}"),
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": self.credentials.path("ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            // There is no systemd, and everything in one group is easy to remove.
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroups::path(self.number),
            // Version 1 works, but has to be allowed since 1.35.
            "failCgroupV1": false,
            "failSwapOn": false,
            // Hosts in containers can't lower the score of a process.
            "oomScoreAdj": 0,
            "maxPods": MAX_PODS,
            "volumePluginDir": self.dir.join("plugins"),
            // The cluster has no DNS: look-ups fail at once.
            "resolvConf": resolver,
            "clusterDomain": "cluster.local",
            "clusterDNS": ["127.0.0.1"],
            // Images can't be pulled again, and a full disk is the host's: nothing is collected or evicted for it.
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
                "imagefs.inodesFree": "0%",
            },
        })
    }

    fn proxy_config(&self) -> serde_json::Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "clientConnection": {"kubeconfig": self.credentials.kubeconfig("proxy")},
            "hostnameOverride": self.name(),
            "clusterCIDR": network::PODS,
            // These limits can be changed only in the host's network namespace; 0 leaves them alone.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        })
    }
}

/// overlayfs can't be stacked on itself.
fn snapshotter(dir: &Path) -> &'static str {
    let kind = command::output(command::program("stat").args(["-f", "-c", "%T"]).arg(dir));
    if kind.is_ok_and(|kind| kind.trim() == "overlayfs") { "native" } else { "overlayfs" }
}

/// containerd's client on a node.
pub(super) fn ctr(holder: Process) -> Command {
    let mut ctr = holder.inside(&holder.network(), "ctr");
    ctr.args(["--address", SOCKET, "--namespace", "k8s.io"]);
    ctr
}

/// Gives a node an image archive.
pub(super) fn import(holder: Process, archive: &Path, dir: &Path) -> Outcome {
    let mut import = ctr(holder);
    import.args(["images", "import", "--snapshotter", snapshotter(dir)]).arg(archive);
    command::output(&mut import).map(drop)
}
