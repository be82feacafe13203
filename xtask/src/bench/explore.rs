//! A search by `arenite explore`, with a snapshot for each node, next to the same search with replays from the start.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::report::{Report, Row};
use crate::failure::{Attempt, Failure, Outcome};

/// The search: four actions at each node, four levels. Setup and actions take as long as small steps of a build.
const PLAN: &str = r#"
setup = ["for d in $(seq 50); do mkdir d$d; for f in $(seq 10); do echo $d $f >d$d/$f; done; done; head -c 60000000 /dev/zero | sha256sum >zero; echo 0 >sum"]
actions = [
  "head -c 20000000 /dev/zero | sha256sum >zero; echo $(($(cat sum) + 1)) >sum",
  "head -c 20000000 /dev/zero | sha256sum >zero; echo $(($(cat sum) + 2)) >sum",
  "head -c 20000000 /dev/zero | sha256sum >zero; echo $(($(cat sum) * 3)) >sum",
  "head -c 20000000 /dev/zero | sha256sum >zero; echo $(($(cat sum) * 2 - 1)) >sum",
]
score = "s=$(cat sum); echo $((s > 36 ? 36 - s : s - 36))"
goal = 0.0
[sandbox]
image = "base"
"#;

pub(super) fn measure(arenite: &Path, work: &Path, port: u16, report: &mut Report) -> Outcome {
    let plan = work.join("plan.toml");
    std::fs::write(&plan, PLAN).attempt(|| format!("could not write {}", plan.display()))?;
    let (mut branches, mut replays) = (Vec::new(), Vec::new());
    // Alternating, so that other load affects both alike.
    for _ in 0..2 {
        let (took, tree) = search(arenite, &plan, port, &[])?;
        branches.push(took);
        let (took, replayed) = search(arenite, &plan, port, &["--replay"])?;
        replays.push(took);
        if tree != replayed || tree["solved"] != true {
            return Err(Failure::new(format!("the trees differ, or are not solved: {tree} {replayed}")));
        }
    }
    let row = Row::ratio("explore, depth 4 and breadth 4, 341 nodes", &branches, 0.5, &replays, 0.5, 0.5);
    report.push(row.against("replays from the start"));
    Ok(())
}

/// The time of a search, and its tree without what differs each time.
fn search(arenite: &Path, plan: &Path, port: u16, more: &[&str]) -> Result<(Duration, Value), Failure> {
    let begun = Instant::now();
    let output = Command::new(arenite)
        .args(["explore", "--depth", "4", "--breadth", "4", "--json", "--server", &format!("http://127.0.0.1:{port}")])
        .args(more)
        .arg(plan)
        .output()
        .attempt(|| "could not start arenite explore".into())?;
    let took = begun.elapsed();
    let mut tree: Value = serde_json::from_slice(&output.stdout)
        .attempt(|| format!("arenite explore printed no tree: {}", String::from_utf8_lossy(&output.stderr).trim()))?;
    for node in tree["nodes"].as_array_mut().into_iter().flatten() {
        node["sandbox"] = Value::Null;
    }
    Ok((took, tree))
}
