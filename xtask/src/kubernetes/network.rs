//! The network of a cluster: a namespace for each node, and a link from the host.
//!
//! ```text
//!  host 10.77.0.1  arenite-kube ── host ─┐ bridge `nodes` in node 1 (10.77.0.11), where the control plane is
//!                                        ├── node2 ── eth0 in node 2 (10.77.0.12)
//!  pods of node N: 10.78.N.0/24          └── node3 ── eth0 in node 3 (10.77.0.13)
//! ```
//!
//! Nothing listens on the host. It routes to the pods and Services, so a server on the host reaches every pod.

use std::fs;
use std::path::{Path, PathBuf};

use crate::command::{output, program, succeeds};
use crate::failure::{Attempt, Failure, Outcome};

/// The host's address for the cluster.
const HOST: &str = "10.77.0.1";
/// All pods.
pub(super) const PODS: &str = "10.78.0.0/16";
/// All Services. The first is the API server's.
pub(super) const SERVICES: &str = "10.79.0.0/16";
pub(super) const API_SERVICE: &str = "10.79.0.1";
/// The host's end of the link.
const LINK: &str = "arenite-kube";
/// Where `ip netns` keeps network namespaces.
const NAMESPACES: &str = "/run/netns";

/// The address of a node. The first node's is the API server's.
pub(super) fn node_address(node: usize) -> String {
    format!("10.77.0.{}", 10 + node)
}

pub(super) fn pod_subnet(node: usize) -> String {
    format!("10.78.{node}.0/24")
}

fn namespace(node: usize) -> String {
    format!("{LINK}-{node}")
}

/// The path of a node's network namespace.
pub(super) fn path(node: usize) -> String {
    format!("{NAMESPACES}/{}", namespace(node))
}

fn ip(words: &str) -> Outcome {
    output(program("ip").args(words.split(' '))).map(drop)
}

/// Makes the namespaces and links of this number of nodes.
pub(super) fn create(nodes: usize) -> Outcome {
    for node in 1..=nodes {
        let name = namespace(node);
        ip(&format!("netns add {name}"))?;
        ip(&format!("-n {name} link set lo up"))?;
        set(node, "net/ipv4/ip_forward", "1")?;
    }
    let first = namespace(1);
    // Only if the kernel's module is loaded: frames that cross the bridge must not also pass the packet filter.
    let _ = set(1, "net/bridge/bridge-nf-call-iptables", "0");
    ip(&format!("-n {first} link add nodes type bridge"))?;
    ip(&format!("-n {first} address add {}/24 dev nodes", node_address(1)))?;
    ip(&format!("-n {first} link set nodes up"))?;
    ip(&format!("link add {LINK} type veth peer name host netns {first}"))?;
    ip(&format!("-n {first} link set host master nodes up"))?;
    ip(&format!("address add {HOST}/24 dev {LINK}"))?;
    ip(&format!("link set {LINK} up"))?;
    ip(&format!("route add {SERVICES} via {}", node_address(1)))?;
    for node in 1..=nodes {
        let route = format!("route add {} via {}", pod_subnet(node), node_address(node));
        ip(&route)?;
        // Those before it are connected by now.
        (1..node).try_for_each(|other| ip(&format!("-n {} {route}", namespace(other))))?;
        if node > 1 {
            attach(node)?;
        }
    }
    Ok(())
}

/// Connects a node to the bridge, and routes to the pods of those before it.
fn attach(node: usize) -> Outcome {
    let (first, name) = (namespace(1), namespace(node));
    ip(&format!("-n {first} link add node{node} type veth peer name eth0 netns {name}"))?;
    ip(&format!("-n {first} link set node{node} master nodes up"))?;
    ip(&format!("-n {name} address add {}/24 dev eth0", node_address(node)))?;
    ip(&format!("-n {name} link set eth0 up"))?;
    (1..node).try_for_each(|other| ip(&format!("-n {name} route add {} via {}", pod_subnet(other), node_address(other))))
}

/// Sets a kernel parameter of a node's network.
fn set(node: usize, parameter: &str, value: &str) -> Outcome {
    let script = format!("echo {value} >/proc/sys/{parameter}");
    output(program("nsenter").arg(format!("--net={}", path(node))).args(["sh", "-c", &script])).map(drop)
}

/// Removes all of it, also what a cluster with more nodes left.
pub(super) fn remove() -> Outcome {
    for name in namespaces() {
        ip(&format!("netns delete {name}"))?;
    }
    // It goes with the namespace of its other end, but only after a while.
    if Path::new("/sys/class/net").join(LINK).exists() {
        succeeds(program("ip").args(["link", "delete", LINK]));
    }
    Ok(())
}

/// Names of network namespaces of a cluster.
fn namespaces() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NAMESPACES) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(&format!("{LINK}-"))).collect()
}

/// What is on the host of a cluster's network.
pub(super) fn leftovers() -> Vec<String> {
    let link = PathBuf::from("/sys/class/net").join(LINK);
    let mut found: Vec<String> = namespaces().iter().map(|name| format!("the network namespace {name}")).collect();
    if link.exists() {
        found.push(format!("the link {LINK}"));
    }
    found
}

/// Fails if the host uses the cluster's addresses for something else.
pub(super) fn check() -> Outcome {
    let routes =
        output(program("ip").args(["-4", "route", "show", "table", "all"])).attempt(|| "could not list routes".into())?;
    let is_ours = |word: &str| ["10.77.", "10.78.", "10.79."].iter().any(|start| word.starts_with(start));
    match routes.lines().find(|line| line.split_whitespace().any(is_ours)) {
        Some(line) => {
            Err(Failure::new(format!("the cluster uses 10.77.0.0 to 10.79.255.255, and this host has the route: {line}")))
        }
        None => Ok(()),
    }
}
