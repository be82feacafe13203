//! Docker's firewall drops forwarded packets that are not its own networks'. Its chain for other rules lets sandboxes' packets
//! through; the policy of the sandboxes' network still applies to them.

use std::io;
use std::process::{Command, Stdio};

use crate::EngineError;

const CHAIN: &str = "DOCKER-USER";

/// Lets forwarded packets of an installation's links through Docker's firewall. Fine if Docker has none.
pub(super) fn allow(tag: &str) -> Result<(), EngineError> {
    if !run(&["-n", "-L", CHAIN]).unwrap_or(false) {
        return Ok(());
    }
    for rule in rules(tag) {
        let rule: Vec<&str> = rule.iter().map(String::as_str).collect();
        let has = run(&[&["-C", CHAIN], &rule[..]].concat());
        let added = has.and_then(|has| if has { Ok(true) } else { run(&[&["-I", CHAIN], &rule[..]].concat()) });
        if !matches!(added, Ok(true)) {
            return Err(EngineError::Stage {
                stage: format!("the firewall's chain {CHAIN}"),
                source: added.err().unwrap_or_else(|| io::Error::other("iptables refused the rule")),
                hint: Some("Docker drops the packets of this sandbox; create it with the network none, or start dockerd with --iptables=false".to_owned()),
            });
        }
    }
    Ok(())
}

/// Removes the rules. What can't be removed does nothing without the links.
pub(super) fn remove(tag: &str) {
    for rule in rules(tag) {
        let rule: Vec<&str> = rule.iter().map(String::as_str).collect();
        while run(&[&["-D", CHAIN], &rule[..]].concat()).unwrap_or(false) {}
    }
}

fn rules(tag: &str) -> [[String; 4]; 2] {
    ["-i", "-o"].map(|side| [side.to_owned(), format!("ar{tag}-+"), "-j".to_owned(), "ACCEPT".to_owned()])
}

/// Whether iptables succeeds.
fn run(arguments: &[&str]) -> io::Result<bool> {
    let mut command = Command::new("iptables");
    command.arg("--wait=5").args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.status()?.success())
}

#[cfg(test)]
mod tests {
    use arenite_isolation::netns;

    use super::*;

    /// In a network namespace of the test. Needs root and iptables.
    #[test]
    fn dockers_chain_gets_each_rule_once_and_loses_it() {
        let tested = netns::create(|_| -> Result<(), io::Error> {
            let ok = |arguments: &[&str]| run(arguments).unwrap();
            allow("abcde").unwrap();
            assert!(!ok(&["-n", "-L", CHAIN]), "a host without Docker's chain gets none");
            assert!(ok(&["-N", CHAIN]));
            for _ in 0..2 {
                allow("abcde").unwrap();
            }
            for rule in rules("abcde") {
                let rule: Vec<&str> = rule.iter().map(String::as_str).collect();
                assert!(ok(&[&["-D", CHAIN], &rule[..]].concat()), "it is there");
                assert!(!ok(&[&["-D", CHAIN], &rule[..]].concat()), "and only once");
            }
            allow("abcde").unwrap();
            remove("abcde");
            assert!(ok(&["-X", CHAIN]), "a chain with rules can't be removed");
            Ok(())
        });
        tested.unwrap();
    }
}
