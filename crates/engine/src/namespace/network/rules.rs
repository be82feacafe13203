//! The nftables table of an installation: what sandboxes may reach, and what may reach them.
//!
//! It is replaced as a whole, in one transaction, so that there is no moment without it. It contains no rules for single
//! sandboxes: a create changes no rule. Interfaces are matched by the installation's tag in their names.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use ipnet::{IpNet, Ipv4Net};

use super::egress::{DNS_PORT, TCP_PORT, UDP_PORT};
use super::udp_route::MARK;
use super::{NetworkConfig, NetworkError, Result, gateway_name, gateway_of, interface_prefix};

const PROGRAM: &str = "nft";
const SEARCH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub(super) fn table(tag: &str) -> String {
    format!("arenite_{tag}")
}

/// Maximum number of concurrent connections of a sandbox that the host tracks (some minutes beyond their end). The whole host
/// shares the tracking table.
const MAX_CONNECTIONS: u32 = 4096;

/// The input of the rules.
pub(super) struct Rules<'a> {
    pub(super) tag: &'a str,
    pub(super) subnet: Ipv4Net,
    pub(super) config: &'a NetworkConfig,
    /// The sandboxes with a policy.
    pub(super) policed: &'a [Ipv4Addr],
}

/// What rules need that not every kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Features {
    /// Limits a sandbox's connections.
    pub(super) counted: bool,
    /// Redirects UDP to the egress proxy.
    pub(super) udp: bool,
}

impl Features {
    /// Those to try, the best first.
    const ALL: [Self; 4] = [
        Self { counted: true, udp: true },
        Self { counted: false, udp: true },
        Self { counted: true, udp: false },
        Self { counted: false, udp: false },
    ];
}

/// Replaces the table's content with the rules. Returns what this kernel can do.
pub(super) fn install(rules: &Rules<'_>) -> Result<Features> {
    let mut refused = None;
    for features in Features::ALL {
        match apply(&text(rules, features)) {
            Ok(()) => return Ok(features),
            Err(NetworkError::Rules { message }) => {
                tracing::debug!(message, ?features, "the kernel can't do all that the rules need");
                refused = Some(message);
            }
            Err(other) => return Err(other),
        }
    }
    Err(NetworkError::Rules { message: refused.unwrap_or_default() })
}

/// The rules in the syntax of `nft -f`.
fn text(rules: &Rules<'_>, features: Features) -> String {
    let Rules { tag, subnet, config, policed } = *rules;
    let table = table(tag);
    let sandboxes = format!("\"{}*\"", interface_prefix(tag));
    let bridge = format!("\"{}\"", gateway_name(tag));
    let gateway = gateway_of(subnet);
    let udp = if features.udp {
        let redirect = format!("tproxy ip to {gateway}:{UDP_PORT} meta mark set {MARK:#x} accept");
        format!(
            "iifname {sandboxes} ip saddr @policed udp dport != 53 {redirect}\n    \
             iifname {sandboxes} ip saddr @other_dns ip daddr != {gateway} udp dport 53 {redirect}"
        )
    } else {
        String::new()
    };
    let limit = if features.counted {
        format!("ct state new add @connections {{ ip saddr ct count over {MAX_CONNECTIONS} }} goto refuse")
    } else {
        String::new()
    };
    let ports: Vec<String> = config.host_ports.iter().map(u16::to_string).collect();
    let (to_host, from_host) = if ports.is_empty() {
        (String::new(), String::new())
    } else {
        let ports = ports.join(", ");
        (
            format!("iifname {sandboxes} ip daddr {gateway} tcp dport {{ {ports} }} dnat ip to 127.0.0.1"),
            format!("ip daddr 127.0.0.1 tcp dport {{ {ports} }} ct status dnat accept"),
        )
    };
    let mut out = String::new();
    // `table` before `delete` creates it, so that the delete never fails.
    let _ = writeln!(out, "table inet {table}\ndelete table inet {table}\ntable inet {table} {{");
    for (name, list) in [("denied", &config.denied), ("allowed", &config.allowed)] {
        let nets: Vec<String> = list
            .iter()
            .filter_map(|n| match n {
                IpNet::V4(v4) => Some(v4.trunc().to_string()),
                // No IPv6 leaves a sandbox at all.
                IpNet::V6(_) => None,
            })
            .collect();
        let elements = if nets.is_empty() { String::new() } else { format!(" elements = {{ {} }};", nets.join(", ")) };
        let _ = writeln!(out, "  set {name} {{ type ipv4_addr; flags interval; auto-merge;{elements} }}");
    }
    let _ = writeln!(out, "  set policed {{ type ipv4_addr;{} }}", elements(policed));
    let _ = writeln!(out, "  set other_dns {{ type ipv4_addr; }}");
    let _ = write!(
        out,
        r#"  set connections {{ type ipv4_addr; flags dynamic; size 65535; }}

  chain refuse {{
    # The kernel limits how many ICMP errors it sends; resets it does not.
    meta l4proto tcp reject with tcp reset
    reject with icmpx admin-prohibited
  }}

  chain limited {{
    {limit}
  }}

  chain source {{
    # Before connection tracking: what lies about its sender leaves no trace.
    type filter hook prerouting priority raw; policy accept;
    iifname {sandboxes} meta nfproto != ipv4 drop
    iifname {sandboxes} fib saddr . iif oif missing drop
    # The links of sandboxes lead to the host's loopback where ports of it are open, and then only by translation.
    iifname {sandboxes} ip daddr 127.0.0.0/8 drop
  }}

  chain redirected_udp {{
    # UDP of sandboxes with a policy reaches the egress proxy, with the address that it was sent to. Without the proxy, the
    # redirect does nothing, and it is refused below.
    type filter hook prerouting priority mangle; policy accept;
    iifname {sandboxes} meta mark {MARK:#x} meta mark set 0
    {udp}
  }}

  chain host_ports {{
    type nat hook prerouting priority dstnat - 10; policy accept;
    # Sandboxes with a policy reach the egress proxy, and nothing else.
    iifname {sandboxes} meta mark {MARK:#x} return
    iifname {sandboxes} ip saddr @policed meta l4proto {{ tcp, udp }} th dport 53 dnat ip to {gateway}:{DNS_PORT}
    iifname {sandboxes} ip saddr @policed meta l4proto tcp dnat ip to {gateway}:{TCP_PORT}
    {to_host}
  }}

  chain from_sandbox {{
    type filter hook forward priority filter - 10; policy accept;
    iifname != {sandboxes} accept
    oifname {sandboxes} goto refuse
    ip saddr @policed goto refuse
    # A port that the host publishes and forwards to a service behind it.
    ct status dnat goto refuse
    ip daddr @allowed goto limited
    ip daddr @denied goto refuse
    goto limited
  }}

  chain to_sandbox {{
    # After every installation's refusals, which are answered.
    type filter hook forward priority filter - 9; policy accept;
    oifname {sandboxes} ct state != {{ established, related }} drop
  }}

  chain input {{
    type filter hook input priority filter - 10; policy accept;
    iifname {sandboxes} goto from_sandbox_to_host
    # The forwarder of names serves sandboxes, not the host's neighbours.
    ip daddr {gateway} iifname != {{ "lo", {bridge} }} drop
  }}

  chain from_sandbox_to_host {{
    {limit}
    ip saddr @policed ip daddr {gateway} tcp dport {{ {TCP_PORT}, {DNS_PORT} }} accept
    ip saddr @policed ip daddr {gateway} udp dport {DNS_PORT} accept
    ip saddr @policed meta l4proto udp meta mark {MARK:#x} accept
    ip saddr @policed goto refuse
    ip daddr {gateway} udp dport 53 accept
    ip daddr {gateway} tcp dport 53 accept
    {from_host}
    ct state established,related accept
    goto refuse
  }}

  chain postrouting {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr {subnet} oifname != {sandboxes} masquerade
  }}
}}
"#
    );
    out
}

/// The elements of a set, in its definition.
fn elements(addresses: &[Ipv4Addr]) -> String {
    if addresses.is_empty() {
        return String::new();
    }
    let list: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
    format!(" elements = {{ {} }};", list.join(", "))
}

/// The sandboxes with a policy, from a table that an earlier server left.
pub(super) fn policed(tag: &str) -> Vec<Ipv4Addr> {
    let output = command(&["-j", "list", "set", "inet", &table(tag), "policed"]).output();
    // There is no table yet.
    let Some(output) = output.ok().filter(|output| output.status.success()) else { return Vec::new() };
    parse_policed(&output.stdout)
}

fn parse_policed(json: &[u8]) -> Vec<Ipv4Addr> {
    let parsed: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let sets = parsed["nftables"].as_array().into_iter().flatten().filter_map(|entry| entry["set"]["elem"].as_array());
    sets.flatten().filter_map(|address| address.as_str()?.parse().ok()).collect()
}

/// Redirects what a sandbox sends to the egress proxy. With `other_dns`, queries to other resolvers are not answered by its own, but
/// decided on as other UDP.
pub(super) fn police(tag: &str, address: Ipv4Addr, other_dns: bool) -> Result<()> {
    let table = table(tag);
    let mut text =
        format!("add element inet {table} policed {{ {address} }}\nadd element inet {table} other_dns {{ {address} }}\n");
    if !other_dns {
        // It was added first, so that the removal does not fail.
        let _ = writeln!(text, "delete element inet {table} other_dns {{ {address} }}");
    }
    apply(&text)
}

/// Ends the redirect.
pub(super) fn unpolice(tag: &str, address: Ipv4Addr) -> Result<()> {
    let table = table(tag);
    // `add` first, so that the removal does not fail.
    let change = |verb: &str, set: &str| format!("{verb} element inet {table} {set} {{ {address} }}\n");
    let text: String = ["policed", "other_dns"].iter().map(|set| change("add", set) + &change("delete", set)).collect();
    apply(&text)
}

/// Redirects what these sandboxes send, and no others.
pub(super) fn replace_policed(tag: &str, addresses: &[Ipv4Addr], other_dns: &[Ipv4Addr]) -> Result<()> {
    let table = table(tag);
    let mut text = format!("flush set inet {table} policed\nflush set inet {table} other_dns\n");
    for (set, addresses) in [("policed", addresses), ("other_dns", other_dns)] {
        if !addresses.is_empty() {
            let list: Vec<String> = addresses.iter().map(Ipv4Addr::to_string).collect();
            let _ = writeln!(text, "add element inet {table} {set} {{ {} }}", list.join(", "));
        }
    }
    apply(&text)
}

fn apply(text: &str) -> Result<()> {
    let mut child = command(&["-f", "-"]).stdin(Stdio::piped()).spawn().map_err(could_not_run)?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().map_err(could_not_run)?;
    check(output)?;
    written.map_err(could_not_run)
}

/// Removes the table, if it exists.
pub(super) fn remove(tag: &str) -> Result<()> {
    let table = table(tag);
    apply(&format!("table inet {table}\ndelete table inet {table}\n"))
}

/// What keeps sandboxes from the network although our rules allow it: as text for the operator.
pub(super) fn obstacles(tag: &str) -> Vec<String> {
    let mut found = Vec::new();
    match list_chains() {
        Ok(chains) => {
            if !chains.iter().any(|c| c.table == table(tag)) {
                found.push(format!(
                    "the nftables table {} is gone: somebody flushed the rules, and sandboxes are not kept from private addresses; restart the server to put it back",
                    table(tag)
                ));
            }
            found.extend(
                chains
                    .iter()
                    .filter(|c| c.drops_forwards(tag))
                    .map(|c| forward_dropped(&format!("nftables chain {} {} {}", c.family, c.table, c.name))),
            );
        }
        Err(error) => found.push(format!("the firewall's rules could not be listed: {error}")),
    }
    if legacy_iptables_drops() {
        found.push(forward_dropped("iptables chain FORWARD"));
    }
    found
}

fn forward_dropped(what: &str) -> String {
    format!(
        "{what} drops forwarded packets by policy, so sandboxes may not reach the network; accept what comes from or goes to interfaces named ar*-* there (with docker: iptables -I DOCKER-USER -i ar+ -j ACCEPT; iptables -I DOCKER-USER -o ar+ -j ACCEPT)"
    )
}

#[derive(Debug, PartialEq, Eq)]
struct Chain {
    family: String,
    table: String,
    name: String,
    hook: String,
    policy: String,
}

impl Chain {
    fn drops_forwards(&self, tag: &str) -> bool {
        self.hook == "forward"
            && self.policy == "drop"
            && self.table != table(tag)
            && matches!(self.family.as_str(), "ip" | "inet")
    }
}

fn list_chains() -> Result<Vec<Chain>> {
    let output = command(&["-j", "list", "chains"]).output().map_err(could_not_run)?;
    Ok(parse_chains(&check(output)?.stdout))
}

fn parse_chains(json: &[u8]) -> Vec<Chain> {
    let parsed: serde_json::Value = serde_json::from_slice(json).unwrap_or_default();
    let list = parsed["nftables"].as_array();
    list.into_iter()
        .flatten()
        .filter_map(|entry| entry.get("chain"))
        .map(|chain| {
            let text = |key: &str| chain[key].as_str().unwrap_or_default().to_owned();
            Chain { family: text("family"), table: text("table"), name: text("name"), hook: text("hook"), policy: text("policy") }
        })
        .collect()
}

/// The older iptables keeps its rules where nft does not see them.
fn legacy_iptables_drops() -> bool {
    let in_use = std::fs::read_to_string("/proc/net/ip_tables_names").is_ok_and(|tables| tables.lines().any(|t| t == "filter"));
    in_use
        && Command::new("iptables-legacy")
            .args(["-S", "FORWARD"])
            .env("PATH", SEARCH)
            .stdin(Stdio::null())
            .output()
            .is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("-P FORWARD DROP"))
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command
        .args(arguments)
        .env("PATH", SEARCH)
        .current_dir(Path::new("/"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn could_not_run(source: io::Error) -> NetworkError {
    NetworkError::Program { program: PROGRAM, source }
}

fn check(output: Output) -> Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let text = String::from_utf8_lossy(&output.stderr);
    Err(NetworkError::Rules { message: text.lines().next().unwrap_or("no message").to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandboxes_with_a_policy_are_read_back() {
        let json = br#"{"nftables": [{"metainfo": {"version": "1"}}, {"set": {"family": "inet", "name": "policed", "table": "arenite_abcd",
            "type": "ipv4_addr", "handle": 3, "elem": ["10.209.0.7", "10.209.1.1"]}}]}"#;
        assert_eq!(parse_policed(json), [Ipv4Addr::new(10, 209, 0, 7), Ipv4Addr::new(10, 209, 1, 1)]);
        assert!(parse_policed(br#"{"nftables": [{"set": {"name": "policed"}}]}"#).is_empty());
        assert!(parse_policed(b"not json").is_empty());
    }

    #[test]
    fn a_policy_that_drops_forwards_is_found() {
        let json = br#"{"nftables": [{"metainfo": {"version": "1"}},
            {"chain": {"family": "ip", "table": "filter", "name": "FORWARD", "handle": 1, "type": "filter", "hook": "forward", "prio": 0, "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "INPUT", "handle": 2, "hook": "input", "policy": "drop"}},
            {"chain": {"family": "inet", "table": "arenite_abcd", "name": "forward", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip6", "table": "filter", "name": "FORWARD", "hook": "forward", "policy": "drop"}},
            {"chain": {"family": "ip", "table": "filter", "name": "DOCKER"}}]}"#;
        let dropping: Vec<_> = parse_chains(json).into_iter().filter(|c| c.drops_forwards("abcd")).collect();
        assert_eq!(dropping.len(), 1);
        assert_eq!((dropping[0].table.as_str(), dropping[0].name.as_str()), ("filter", "FORWARD"));
        assert!(parse_chains(b"not json").is_empty());
    }
}
