//! Complete runs: real shells as agents, real process groups and files, and a fake server.

#![allow(clippy::unwrap_used, reason = "a test ends at the first thing that is not as expected")]

mod fake_server;
mod killed;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use arenite_rollout::{Observer, Options, Progress, RolloutError, Status, Stop, Summary, run};
use fake_server::FakeServer;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::RowAccessor;
use serde_json::{Value, json};

#[derive(Default)]
struct Watcher {
    notes: Mutex<Vec<String>>,
    most_running: Mutex<usize>,
    limits: Mutex<Vec<usize>>,
}

impl Observer for Watcher {
    fn changed(&self, progress: &Progress) {
        let mut most = self.most_running.lock().unwrap();
        *most = (*most).max(progress.running);
        self.limits.lock().unwrap().push(progress.limit);
    }

    fn note(&self, text: &str) {
        self.notes.lock().unwrap().push(text.to_owned());
    }
}

/// A directory with a tasks file and the directory of a run.
struct RunDir(tempfile::TempDir);

impl RunDir {
    fn new(tasks: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let lines = (0..tasks).map(|n| format!("{{\"id\": \"task-{n}\", \"question\": \"q{n}\", \"n\": {n}}}\n"));
        std::fs::write(dir.path().join("tasks.jsonl"), lines.collect::<String>()).unwrap();
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn out(&self) -> PathBuf {
        self.path("out")
    }

    fn options(&self, server: &FakeServer, agent: &str) -> Options {
        let mut options = Options::new(self.path("tasks.jsonl"), agent, self.out(), server.url());
        options.backoff = Duration::from_millis(20);
        options.grace = Duration::from_millis(500);
        options
    }
}

async fn ran(options: Options) -> Result<Summary, RolloutError> {
    run(options, Stop::default(), Arc::new(Watcher::default())).await
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn results(out: &Path) -> Vec<Value> {
    lines(&out.join("results.jsonl"))
}

async fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what} did not come to be");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether a process is alive; a zombie is not.
fn lives(id: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
    !status.is_empty() && !status.contains(") Z")
}

/// A result that depends only on the task, after a time that doesn't.
const DETERMINISTIC: &str = r#"
    sleep 0.0$(( $$ % 7 ))
    case $ARENITE_TASK_ID in
        *3) echo trouble >&2; exit 3;;
        *5) echo '{"success": false, "error": "not solved"}';;
        *7) echo "just $ARENITE_TASK_ID"; echo text;;
        *8) cat > "$ARENITE_RESULT"; echo '{"not": "this"}';;
        *9) if [ -e "$ARENITE_START_DIR/$MARKS/$ARENITE_TASK_ID" ]; then echo 9; else : > "$MARKS/$ARENITE_TASK_ID"; exit 75; fi;;
        *) echo "{\"answer\": \"$ARENITE_TASK_ID\"}";;
    esac
"#;

#[tokio::test]
async fn one_worker_and_thirty_two_come_to_the_same_results() {
    let server = FakeServer::start().await;
    let mut found = Vec::new();
    for workers in [1, 32] {
        let run_dir = RunDir::new(40);
        std::fs::create_dir(run_dir.path("marks")).unwrap();
        let agent = DETERMINISTIC.replace("$ARENITE_START_DIR/$MARKS", "$MARKS");
        let agent = agent.replace("$MARKS", run_dir.path("marks").to_str().unwrap());
        let mut options = run_dir.options(&server, &agent);
        options.workers = workers;
        let watcher = Arc::new(Watcher::default());
        let summary = run(options, Stop::default(), watcher.clone()).await.unwrap();
        assert_eq!((summary.tasks, summary.attempts), (40, 44), "{summary:?}");
        assert_eq!((summary.count(Status::Success), summary.count(Status::Agent)), (32, 8));
        assert_eq!(summary.success_rate, Some(0.8));
        assert!(*watcher.most_running.lock().unwrap() <= workers);
        let mut rows = results(&run_dir.out());
        let ids: Vec<_> = rows.iter().map(|row| row["task_id"].as_str().unwrap().to_owned()).collect();
        assert_eq!(ids, (0..40).map(|n| format!("task-{n}")).collect::<Vec<_>>());
        for row in &mut rows {
            let worker = row["worker_id"].as_str().unwrap();
            assert!(worker.len() <= 32 && worker.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{worker}");
            for volatile in ["worker_id", "worker_ids", "started_at", "ended_at", "duration_ms"] {
                assert!(!row[volatile].take().is_null(), "{volatile}");
            }
        }
        let mut trajectories = lines(&run_dir.out().join("trajectories.jsonl"));
        for line in &mut trajectories {
            let trajectory = &mut line["trajectory"];
            let command = trajectory["tool_calls"][0]["parameters"]["command"].take();
            assert!(command.as_str().unwrap().starts_with("of-r"), "{command}");
            for volatile in ["start_time", "end_time", "execution_time_ms"] {
                trajectory[volatile].take();
            }
        }
        found.push((rows, trajectories));
    }
    assert_eq!(found[0], found[1]);
    let rows = &found[0].0;
    assert_eq!(rows[0]["result"], json!({"answer": "task-0"}));
    assert_eq!((&rows[3]["status"], &rows[3]["exit_code"], &rows[3]["error_kind"]), (&json!("agent"), &json!(3), &json!("exit")));
    assert_eq!((&rows[5]["status"], &rows[5]["error_message"]), (&json!("agent"), &json!("not solved")));
    assert_eq!(rows[7]["result"], json!({"output": "just task-7\ntext"}));
    assert_eq!(rows[8]["result"], json!({"id": "task-8", "question": "q8", "n": 8}));
    assert_eq!((&rows[9]["status"], &rows[9]["attempts"]), (&json!("success"), &json!(2)));
    assert_eq!(found[0].1[0]["trajectory"]["final_answer"], json!("task-0"));
    let roles = |n: usize| {
        found[0].1[n]["trajectory"]["messages"].as_array().unwrap().iter().map(|m| m["role"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(roles(0), [json!("user"), json!("assistant"), json!("tool"), json!("assistant")]);
}

#[tokio::test]
async fn every_worker_is_disconnected_and_told_all_it_needs() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(2);
    let agent = r#"printf '{"e": ["%s", "%s", "%s", "%s", "%s"], "stdin": %s}' "$ARENITE_SERVER" "$ARENITE_API_KEY" "$ARENITE_WORKER_ID" \
        "$(cat "$ARENITE_TASK")" "$PWD" "$(cat)" | tr -d '\n' | sed 's/{\("id[^}]*\)}"/{\1}"/' >/dev/null
        printf '["%s", "%s", "%s", "%s"]' "$ARENITE_SERVER" "$ARENITE_API_KEY" "$ARENITE_WORKER_ID" "$PWD""#;
    let mut options = run_dir.options(&server, agent);
    options.api_key = Some("secret".into());
    ran(options).await.unwrap();
    let rows = results(&run_dir.out());
    for row in &rows {
        let worker = row["worker_id"].as_str().unwrap();
        let work = std::path::absolute(run_dir.out()).unwrap().join("work").join(worker);
        assert_eq!(row["result"], json!([server.url(), "secret", worker, work.canonicalize().unwrap().to_str().unwrap()]));
        assert!(work.join("task.json").is_file());
    }
    let mut workers: Vec<_> = rows.iter().map(|row| row["worker_id"].as_str().unwrap().to_owned()).collect();
    let mut disconnected = server.disconnected();
    workers.sort();
    disconnected.sort();
    assert_eq!(workers, disconnected);
}

#[tokio::test]
async fn the_infrastructures_failures_are_retried_and_the_agents_are_not() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(3);
    let count = r#"echo x >> "$(dirname "$PWD")/$ARENITE_TASK_ID.count";"#;
    let agent = format!("{count} case $ARENITE_TASK_ID in *0) exit 75;; *1) exit 1;; *) exit 127;; esac");
    let summary = ran(run_dir.options(&server, &agent)).await.unwrap();
    assert_eq!((summary.count(Status::Infrastructure), summary.count(Status::Agent)), (1, 2));
    assert_eq!(summary.success_rate, Some(0.0));
    let counts = |n: usize| std::fs::read_to_string(run_dir.out().join(format!("work/task-{n}.count"))).unwrap().lines().count();
    assert_eq!((counts(0), counts(1), counts(2)), (3, 1, 1));
    let rows = results(&run_dir.out());
    assert_eq!((&rows[0]["attempts"], &rows[0]["error_kind"]), (&json!(3), &json!("temporary")));
    assert_eq!(rows[0]["worker_ids"].as_array().unwrap().len(), 3);
    assert!(rows[2]["error_message"].as_str().unwrap().contains("absolute paths"));

    // Infrastructure failures say nothing about the agent: the next runner retries those tasks, and nothing else.
    ran(run_dir.options(&server, &agent)).await.unwrap();
    assert_eq!((counts(0), counts(1), counts(2)), (6, 1, 1));

    let run_dir = RunDir::new(1);
    let mut options = run_dir.options(&server, "exit 1");
    options.agent_retries = 2;
    ran(options).await.unwrap();
    assert_eq!(results(&run_dir.out())[0]["attempts"], json!(3));
}

#[tokio::test]
async fn a_timeout_ends_the_whole_process_group_and_who_left_it() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(1);
    // One in the group that ignores SIGTERM, one in another session, and both keep the output open.
    let agent = "(trap '' TERM; echo $$ >> ../ids; while :; do sleep 1; done) & setsid sh -c 'echo $$ >> ../ids; exec sleep 600' & \
                 echo $! >> ../ids; wait";
    let mut options = run_dir.options(&server, agent);
    options.timeout = Duration::from_millis(700);
    let began = Instant::now();
    let summary = ran(options).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
    assert_eq!(summary.count(Status::Timeout), 1);
    let row = &results(&run_dir.out())[0];
    assert_eq!((&row["error_kind"], &row["exit_code"]), (&json!("timeout"), &Value::Null));
    let ids = std::fs::read_to_string(run_dir.out().join("work/ids")).unwrap();
    assert!(ids.lines().count() >= 3, "{ids}");
    wait_for("the end of all processes", || !ids.lines().any(lives)).await;
}

#[tokio::test]
async fn what_an_agent_leaves_in_the_background_ends_with_it() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(1);
    let summary = ran(run_dir.options(&server, "sleep 600 & echo $! > ../ids; echo 1")).await.unwrap();
    assert_eq!(summary.count(Status::Success), 1);
    let ids = std::fs::read_to_string(run_dir.out().join("work/ids")).unwrap();
    wait_for("its end", || !lives(&ids)).await;
}

#[tokio::test]
async fn a_server_that_is_away_for_a_while_costs_no_task() {
    let mut server = FakeServer::start().await;
    let run_dir = RunDir::new(6);
    // Agents fail as soon as the server is away, like those that would call it.
    let port = server.address.port();
    let agent = format!(
        r#"for n in 1 2 3 4 5 6 7 8 9 10; do sleep 0.1; (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null || exit 1; done; echo 1"#
    );
    let agent = format!("exec bash -c '{agent}'");
    let mut options = run_dir.options(&server, &agent);
    options.workers = 2;
    let watcher = Arc::new(Watcher::default());
    let running = tokio::spawn(run(options, Stop::default(), watcher.clone()));
    tokio::time::sleep(Duration::from_millis(600)).await;
    server.die().await;
    tokio::time::sleep(Duration::from_millis(2500)).await;
    server.come_back().await;
    let summary = running.await.unwrap().unwrap();
    assert_eq!(summary.count(Status::Success), 6, "{summary:?}");
    // Each one in progress failed once; nothing was started while the server was away.
    assert!(summary.attempts <= 8, "{summary:?}");
    let notes = watcher.notes.lock().unwrap().join("\n");
    assert!(notes.contains("nothing is started until it is back") && notes.contains("is there again"), "{notes}");
    // Workers that failed while the server was away are reported later.
    let mut all: Vec<String> = results(&run_dir.out())
        .iter()
        .flat_map(|r| r["worker_ids"].as_array().unwrap().clone())
        .map(|w| w.as_str().unwrap().to_owned())
        .collect();
    let mut told = server.disconnected();
    all.sort();
    told.sort();
    told.dedup();
    assert_eq!(all, told);
}

#[tokio::test]
async fn a_server_that_does_not_come_back_ends_the_run_and_the_run_goes_on_later() {
    let mut server = FakeServer::start().await;
    let run_dir = RunDir::new(2);
    let mut options = run_dir.options(&server, "sleep 2; echo 1");
    options.workers = 1;
    options.patience = Duration::from_millis(500);
    let running = tokio::spawn(run(options.clone(), Stop::default(), Arc::new(Watcher::default())));
    wait_for("the first agent", || run_dir.out().join("work").exists()).await;
    server.die().await;
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, RolloutError::ServerGone { .. }), "{error}");
    let error = ran(options.clone()).await.unwrap_err();
    assert!(matches!(error, RolloutError::ServerGone { .. }), "{error}");
    server.come_back().await;
    assert_eq!(ran(options).await.unwrap().count(Status::Success), 2);
}

#[tokio::test]
async fn too_much_for_the_server_halves_the_agents_and_good_ends_raise_them() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(60);
    let mut options = run_dir.options(&server, "sleep 0.05; echo 1");
    options.workers = 16;
    let watcher = Arc::new(Watcher::default());
    let running = tokio::spawn(run(options, Stop::default(), watcher.clone()));
    wait_for("all workers", || watcher.limits.lock().unwrap().last() == Some(&16)).await;
    server.seen.lock().unwrap().busy = 1;
    assert_eq!(running.await.unwrap().unwrap().count(Status::Success), 60);
    let limits = watcher.limits.lock().unwrap();
    assert_eq!(limits[0], 4);
    assert!(limits.windows(2).any(|pair| pair == [16, 8]), "{limits:?}");
}

#[tokio::test]
async fn a_stopped_run_ends_its_agents_and_goes_on_where_it_stopped() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(6);
    let agent = r#"echo $$ >> ../ids; case $ARENITE_TASK_ID in *0|*1) ;; *) [ -e ../go ] || sleep 600;; esac; echo 1"#;
    let mut options = run_dir.options(&server, agent);
    options.workers = 2;
    let stop = Stop::default();
    let running = tokio::spawn(run(options.clone(), stop.clone(), Arc::new(Watcher::default())));
    let ids = run_dir.out().join("work/ids");
    wait_for("four agents", || std::fs::read_to_string(&ids).is_ok_and(|ids| ids.lines().count() == 4)).await;
    stop.gently.cancel();
    let error = running.await.unwrap().unwrap_err();
    assert!(matches!(error, RolloutError::Interrupted), "{error}");
    assert!(!std::fs::read_to_string(&ids).unwrap().lines().any(lives));
    assert_eq!(server.disconnected().len(), 4);
    std::fs::write(run_dir.out().join("work/go"), "").unwrap();
    let summary = ran(options).await.unwrap();
    assert_eq!((summary.count(Status::Success), summary.attempts, summary.lost), (6, 6, 2));
    let rows = results(&run_dir.out());
    assert_eq!((rows[0]["worker_ids"].as_array().unwrap().len(), rows[2]["worker_ids"].as_array().unwrap().len()), (1, 2));
    assert_eq!(rows[2]["attempts"], json!(1));
}

#[tokio::test]
async fn a_second_runner_in_a_directory_is_refused() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(1);
    let options = run_dir.options(&server, "sleep 600");
    let stop = Stop::default();
    let first = tokio::spawn(run(options.clone(), stop.clone(), Arc::new(Watcher::default())));
    wait_for("the first runner", || run_dir.out().join("work").exists()).await;
    for fresh in [false, true] {
        let error = ran(Options { fresh, ..options.clone() }).await.unwrap_err();
        assert!(matches!(error, RolloutError::InUse { .. }), "{error}");
    }
    stop.gently.cancel();
    assert!(matches!(first.await.unwrap(), Err(RolloutError::Interrupted)));
}

#[tokio::test]
async fn other_tasks_and_other_agents_are_another_run() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(3);
    let mut options = run_dir.options(&server, "echo 1");
    options.limit = Some(2);
    assert_eq!(ran(options.clone()).await.unwrap().tasks, 2);
    // More of the same tasks are the same run.
    options.limit = None;
    assert_eq!(ran(options.clone()).await.unwrap().tasks, 3);
    let other = Options { agent: "echo 2".into(), ..options.clone() };
    let error = ran(other.clone()).await.unwrap_err();
    assert!(matches!(error, RolloutError::OtherRun { .. }), "{error}");
    assert_eq!(results(&run_dir.out())[0]["result"], json!(1));
    std::fs::write(&options.tasks, "{\"id\": 1}\n").unwrap();
    let error = ran(options).await.unwrap_err();
    assert!(error.hint().unwrap().contains("--fresh"), "{error}");
    let summary = ran(Options { fresh: true, ..other }).await.unwrap();
    assert_eq!((summary.tasks, &results(&run_dir.out())[0]["result"]), (1, &json!(2)));
}

#[tokio::test]
async fn nothing_is_run_of_a_file_with_faults() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(1);
    let mut options = run_dir.options(&server, "echo 1");
    std::fs::write(&options.tasks, "{\"id\": 1}\n{\"id\": 1}\nnope\n").unwrap();
    let error = ran(options.clone()).await.unwrap_err().to_string();
    assert!(error.contains("line 2: the id \"1\" is that of line 1 too") && error.contains("line 3: it is not JSON"), "{error}");
    assert!(!run_dir.out().exists());
    options.tasks = run_dir.path("none.jsonl");
    let error = ran(options).await.unwrap_err().to_string();
    assert!(error.contains("none.jsonl"), "{error}");
}

#[tokio::test]
async fn the_table_is_read_back_as_it_was_written() {
    let server = FakeServer::start().await;
    let run_dir = RunDir::new(20);
    let agent = r#"case $ARENITE_TASK_ID in *3) exit 4;; *) printf '{"text": "ä\\n%s"}' $ARENITE_TASK_ID;; esac"#;
    ran(run_dir.options(&server, agent)).await.unwrap();
    let table = SerializedFileReader::new(std::fs::File::open(run_dir.out().join("results.parquet")).unwrap()).unwrap();
    let rows: Vec<_> = table.get_row_iter(None).unwrap().map(Result::unwrap).collect();
    let expected = results(&run_dir.out());
    assert_eq!(rows.len(), 20);
    for (row, line) in rows.iter().zip(&expected) {
        let json = |column: usize| serde_json::from_str::<Value>(row.get_string(column).unwrap()).unwrap();
        assert_eq!(row.get_string(0).unwrap(), line["task_id"].as_str().unwrap());
        assert_eq!(json(1), line["task"]);
        assert_eq!(row.get_string(2).unwrap(), line["status"].as_str().unwrap());
        assert_eq!(row.get_bool(3).unwrap(), line["success"].as_bool().unwrap());
        match line["result"].is_null() {
            true => assert!(row.get_string(4).is_err()),
            false => assert_eq!(json(4), line["result"]),
        }
        assert_eq!(row.get_int(5).unwrap(), 1);
        assert_eq!(row.get_string(8).unwrap(), line["worker_id"].as_str().unwrap());
        assert_eq!(row.get_long(12).unwrap(), line["duration_ms"].as_i64().unwrap());
        assert_eq!(i64::from(row.get_int(13).unwrap()), line["exit_code"].as_i64().unwrap());
        assert_eq!(json(14)["tool_calls"][0]["tool_name"], json!("bash:run"));
    }
}

#[tokio::test]
async fn a_server_without_records_is_said_once_and_results_are_whole() {
    let server = FakeServer::start().await;
    server.seen.lock().unwrap().has_records = false;
    let run_dir = RunDir::new(5);
    let watcher = Arc::new(Watcher::default());
    let summary =
        run(run_dir.options(&server, "echo '{\"final_answer\": \"42\"}'"), Stop::default(), watcher.clone()).await.unwrap();
    assert_eq!((summary.with_steps, summary.count(Status::Success)), (0, 5));
    assert_eq!(watcher.notes.lock().unwrap().len(), 1, "{:?}", watcher.notes);
    let line = &lines(&run_dir.out().join("trajectories.jsonl"))[4];
    assert_eq!((&line["trajectory"]["tool_calls"], &line["trajectory"]["final_answer"]), (&json!([]), &json!("42")));
    let partial =
        std::fs::read_dir(run_dir.out()).unwrap().any(|file| file.unwrap().file_name().to_string_lossy().contains("partial"));
    assert!(!partial);
}
