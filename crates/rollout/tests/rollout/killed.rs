//! Runners that are killed, as separate processes.

use std::path::Path;
use std::process::Stdio;

use arenite_rollout::{Options, Status};
use serde_json::{Value, json};
use tokio::process::{Child, Command};

use crate::fake_server::FakeServer;
use crate::{RunDir, lines, lives, ran, results, wait_for};

/// This test program again, as the runner that gets killed.
fn start(options: &Options) -> Child {
    let arguments = json!([options.tasks, options.agent, options.out, options.server]).to_string();
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::runner_that_gets_killed"])
        .env("KILLED_RUNNER", arguments)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Not a test by itself: the runner that another test kills.
#[tokio::test]
async fn runner_that_gets_killed() {
    let Ok(arguments) = std::env::var("KILLED_RUNNER") else { return };
    let [tasks, agent, out, server]: [String; 4] = serde_json::from_str(&arguments).unwrap();
    let mut options = Options::new(tasks, agent, out, server);
    options.workers = 4;
    ran(options).await.unwrap();
}

#[tokio::test]
async fn killed_runners_lose_nothing_but_what_was_under_way() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(24);
    let agent = r#"echo $ARENITE_TASK_ID $$ >> ../begun; sleep 0.3; echo $ARENITE_TASK_ID >> ../ended; echo 1"#;
    let options = run_dir.options(&server, agent);
    let begun = || std::fs::read_to_string(run_dir.out().join("work/begun")).unwrap_or_default();
    for kill in 1..=3 {
        let mut child = start(&options);
        wait_for("a few agents", || begun().lines().count() >= 5 * kill).await;
        child.kill().await.unwrap();
    }
    // An incomplete line of the killed runner.
    let journal = run_dir.out().join("journal.jsonl");
    let mut torn = std::fs::read(&journal).unwrap();
    torn.extend(b"{\"end\":{\"task\":1,\"att");
    std::fs::write(&journal, torn).unwrap();
    let finished = lines_but_the_torn(&journal).iter().filter(|line| line["end"]["final"] == json!(true)).count();
    assert!(finished > 0);

    let mut options = options;
    options.workers = 4;
    let summary = ran(options.clone()).await.unwrap();
    assert_eq!((summary.count(Status::Success), summary.tasks), (24, 24));
    assert!((3..=12).contains(&summary.lost), "{summary:?}");
    // A runner may die between an attempt's line in the journal and its agent's start.
    assert!((24..=24 + summary.lost).contains(&begun().lines().count()), "{summary:?}");
    // Nothing that was finished ran again.
    let entries = lines(&journal);
    let mut done = std::collections::HashSet::new();
    for entry in &entries {
        if let Some(task) = entry["start"]["task"].as_u64() {
            assert!(!done.contains(&task), "task {task} ran again");
        }
        if entry["end"]["final"] == json!(true) {
            done.insert(entry["end"]["task"].as_u64().unwrap());
        }
    }
    // Every worker was reported, also those with a dead runner.
    let told = server.disconnected();
    for entry in entries.iter().filter_map(|entry| entry["start"]["worker_id"].as_str()) {
        assert!(told.iter().any(|worker| worker == entry), "{entry}");
    }
    assert!(!begun().lines().any(|line| lives(line.split(' ').next_back().unwrap())));

    // A finished run is not repeated, and needs no server for its files.
    std::fs::remove_file(run_dir.out().join("results.jsonl")).unwrap();
    let mut server = server;
    server.die().await;
    let again = ran(options).await.unwrap();
    assert_eq!((again.attempts, again.with_steps), (summary.attempts, 24));
    assert_eq!(results(&run_dir.out()).len(), 24);
}

fn lines_but_the_torn(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[tokio::test]
async fn agents_that_outlived_their_runner_are_ended_by_the_next() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(2);
    let options = run_dir.options(&server, "echo $$ >> ../ids; [ -e ../go ] || exec sleep 600; echo 1");
    let mut child = start(&options);
    let ids = || std::fs::read_to_string(run_dir.out().join("work/ids")).unwrap_or_default();
    wait_for("both agents", || ids().lines().count() == 2).await;
    child.kill().await.unwrap();
    let orphans = ids();
    assert!(orphans.lines().all(lives));
    assert_eq!(server.disconnected(), Vec::<String>::new());
    std::fs::write(run_dir.out().join("work/go"), "").unwrap();
    let summary = ran(options).await.unwrap();
    assert_eq!((summary.count(Status::Success), summary.lost), (2, 2));
    wait_for("the end of the orphans", || !orphans.lines().any(lives)).await;
    assert_eq!(server.disconnected().len(), 4);
}
