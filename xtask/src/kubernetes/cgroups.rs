//! The control groups of a cluster: one for each node, in each hierarchy of the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::process::PAUSE;
use crate::failure::{Attempt, Failure, Outcome};

/// The group of all nodes, below the root of each hierarchy.
const GROUP: &str = "arenite-kubernetes";
/// A killed process leaves its group a moment later.
const REMOVAL_LIMIT: Duration = Duration::from_secs(10);

/// The path of a node's group in each hierarchy.
pub(super) fn path(node: usize) -> String {
    format!("/{GROUP}/node{node}")
}

/// Makes the groups of this number of nodes. The kubelet makes the groups of pods below them.
pub(super) fn create(nodes: usize) -> Outcome {
    for root in hierarchies()? {
        let group = root.join(GROUP);
        make(&root, &group)?;
        (1..=nodes).try_for_each(|node| make(&group, &group.join(format!("node{node}"))))?;
    }
    Ok(())
}

fn make(parent: &Path, group: &Path) -> Outcome {
    fs::create_dir_all(group).attempt(|| format!("could not make the control group {}", group.display()))?;
    // Version 1: a new group has no processors, and takes no process until it has.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if group.join("cgroup.clone_children").exists() && group.join(file).exists() {
            copy(&parent.join(file), &group.join(file), |text| text.to_owned())?;
        }
    }
    // Version 2: the parent decides which controllers its groups have.
    if parent.join("cgroup.subtree_control").exists() {
        let add = |text: &str| text.split_whitespace().map(|controller| format!("+{controller} ")).collect();
        copy(&parent.join("cgroup.controllers"), &parent.join("cgroup.subtree_control"), add)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, change: impl Fn(&str) -> String) -> Outcome {
    let text = fs::read_to_string(from).attempt(|| format!("could not read {}", from.display()))?;
    fs::write(to, change(&text)).attempt(|| format!("could not write to {}", to.display()))
}

/// Removes the groups, in which no process may be.
pub(super) fn remove() -> Outcome {
    let begun = Instant::now();
    for group in existing()? {
        while let Err(failure) = remove_below(&group) {
            if begun.elapsed() > REMOVAL_LIMIT {
                return Err(failure);
            }
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

fn remove_below(group: &Path) -> Outcome {
    let failed = || format!("could not remove the control group {}", group.display());
    for entry in fs::read_dir(group).attempt(failed)? {
        let entry = entry.attempt(failed)?;
        if entry.file_type().attempt(failed)?.is_dir() {
            remove_below(&entry.path())?;
        }
    }
    fs::remove_dir(group).attempt(failed)
}

/// The groups of a cluster that are on the host.
pub(super) fn leftovers() -> Result<Vec<String>, Failure> {
    Ok(existing()?.iter().map(|group| format!("the control group {}", group.display())).collect())
}

fn existing() -> Result<Vec<PathBuf>, Failure> {
    Ok(hierarchies()?.into_iter().map(|root| root.join(GROUP)).filter(|group| group.exists()).collect())
}

/// The mount points of all hierarchies of version 1, and that of version 2.
fn hierarchies() -> Result<Vec<PathBuf>, Failure> {
    let mounts = fs::read_to_string("/proc/self/mounts").attempt(|| "could not list mounts".into())?;
    Ok(parse(&mounts))
}

fn parse(mounts: &str) -> Vec<PathBuf> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let found = fields.filter(|fields| matches!(fields.get(2), Some(&("cgroup" | "cgroup2"))));
    found.map(|fields| PathBuf::from(fields[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_have_hierarchies() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(parse(mounts), [Path::new("/sys/fs/cgroup/cpu"), Path::new("/sys/fs/cgroup/unified")]);
    }
}
