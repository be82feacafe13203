//! `cargo xtask kubernetes`: a real Kubernetes cluster on this host, and `cargo xtask test-kubernetes`: the tests on it.

mod build;
mod cgroups;
mod cluster;
mod credentials;
mod images;
mod manifests;
mod network;
mod node;
mod process;
mod test;

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::failure::{Attempt, Failure, Outcome};
use crate::{command, host};
use cluster::{Cluster, Size};

pub(crate) use test::{TestKubernetesArgs, run as test};

const ABOUT: &str = "Start, stop, and inspect a Kubernetes cluster on this host";

/// The rest of the help. Lines are wrapped to the terminal's width.
const ABOUT_LONG: &str = "Start, stop, and inspect a Kubernetes cluster on this host

The cluster is real: etcd, the API server, controllers, and the scheduler of Kubernetes, and nodes with containerd, a \
kubelet, and kube-proxy. The controller of kubernetes-sigs/agent-sandbox runs beside them. All programs are built from \
their Go modules. That takes 10 to 18 minutes on two cores, once; the results are kept in target/tools.

Nodes are network and mount namespaces. This host reaches every pod and Service. Claims of volumes get directories of \
their pod's node. The cluster has no DNS, no registry, and no way to the internet, and nothing enforces NetworkPolicies.";

const EXAMPLES: &str = "Examples:
  cargo xtask kubernetes up --nodes 2
  export KUBECONFIG=$PWD/target/kubernetes/kubeconfig PATH=$PWD/target/kubernetes/bin:$PATH
  kubectl get nodes
  kubectl run hello --image localhost/busybox:1 --restart Never -- sleep 1000

  # with a tag other than latest, which would mean to pull:
  docker save app:1 > app.tar && cargo xtask kubernetes load app.tar

  cargo xtask kubernetes stop apiserver && cargo xtask kubernetes start apiserver
  cargo xtask kubernetes down";

#[derive(Debug, Args)]
#[command(about = ABOUT, long_about = ABOUT_LONG, after_help = EXAMPLES)]
pub(crate) struct KubernetesArgs {
    #[command(subcommand)]
    command: KubernetesCommand,
}

#[derive(Debug, Subcommand)]
enum KubernetesCommand {
    /// Start a cluster, in about 15 seconds; the first time, build its programs
    Up(SizeArgs),
    /// End the cluster, and remove everything but its logs from this host
    Down {
        /// Wait until standard input ends
        #[arg(long, hide = true)]
        after_input: bool,
    },
    /// Show the cluster's components and nodes
    Status,
    /// Give each node the images of an archive in the form of `docker save`
    Load {
        #[arg(value_name = "FILE")]
        archive: PathBuf,
    },
    /// Kill a component, for example apiserver or kubelet-1; containers of a node go on
    Stop {
        #[arg(value_name = "COMPONENT")]
        component: String,
    },
    /// Start a component that was stopped
    Start {
        #[arg(value_name = "COMPONENT")]
        component: String,
    },
}

#[derive(Debug, Clone, Copy, Args)]
struct SizeArgs {
    /// Nodes that run pods
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=9))]
    nodes: u8,
    /// Nodes that kwok plays: their pods report to run, and don't. For pods with the node selector type=kwok that tolerate
    /// the taint kwok.x-k8s.io/node
    #[arg(long, default_value_t = 0, value_name = "N")]
    fake_nodes: u16,
}

impl From<SizeArgs> for Size {
    fn from(args: SizeArgs) -> Self {
        Self { nodes: args.nodes.into(), fake_nodes: args.fake_nodes.into() }
    }
}

pub(crate) fn run(args: &KubernetesArgs) -> Outcome {
    host::must_be_root("kubernetes")?;
    match &args.command {
        KubernetesCommand::Up(size) => up(*size),
        KubernetesCommand::Down { after_input } => {
            if *after_input {
                std::io::copy(&mut std::io::stdin(), &mut std::io::sink()).attempt(|| "could not wait for input".into())?;
            }
            down()
        }
        KubernetesCommand::Status => status(),
        KubernetesCommand::Load { archive } => Cluster::must_run()?.import(archive),
        KubernetesCommand::Stop { component } => Cluster::must_run()?.stop_component(component),
        KubernetesCommand::Start { component } => Cluster::must_run()?.restart_component(component),
    }
}

/// Installs and builds what a cluster of this size needs.
fn prepare(size: SizeArgs) -> Outcome {
    host::prepare(&[host::TO_RUN_KUBERNETES])?;
    build::ensure(size.fake_nodes > 0)
}

fn up(size: SizeArgs) -> Outcome {
    prepare(size)?;
    let cluster = Cluster::up(size.into())?;
    let dir = cluster.dir().display();
    println!("\nThe cluster is up.\n");
    println!("  export KUBECONFIG={} PATH={dir}/bin:$PATH", cluster.kubeconfig().display());
    println!("  kubectl get nodes\n");
    println!("  logs           {dir}/logs");
    println!("  stop it with   cargo xtask kubernetes down");
    Ok(())
}

/// Fails if something is left on the host.
fn down() -> Outcome {
    let ran = Cluster::down()?;
    let left = cluster::leftovers()?;
    if !left.is_empty() {
        return Err(Failure::new(format!("these are left of the cluster:\n  {}", left.join("\n  "))));
    }
    println!("{}", if ran { "the cluster is down" } else { "no cluster ran" });
    Ok(())
}

fn status() -> Outcome {
    let cluster = Cluster::must_run()?;
    println!("KUBECONFIG={}\n", cluster.kubeconfig().display());
    for (name, process) in cluster.components() {
        let state = if process.is_alive() { "runs" } else { "ended" };
        println!("{name:<20} {state:<6} {process}, log in {}", cluster.log(name).display());
    }
    println!();
    command::run(cluster.kubectl().args(["get", "nodes", "--output", "wide"]))
}
