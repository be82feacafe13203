//! Kills a server while it records: everything that it acknowledged survives.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use arenite_model::TenantId;
use arenite_trajectory::{Body, Filter, Intent, Limits, Origin, Outcome, OutcomeKind, Recorder, Step};

const DIR: &str = "ARENITE_TEST_CRASH_DIR";
const THREADS: usize = 4;
const ROUNDS: usize = 6;

/// Not a test by itself: the process that is killed. Every line it prints is an acknowledgement.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR) else {
        return;
    };
    let recorder = Recorder::open(PathBuf::from(dir), Limits::default()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let recorder = &recorder;
            scope.spawn(move || {
                loop {
                    let mut step = recorder
                        .begin(Intent {
                            tenant: TenantId::default_tenant(),
                            trajectory: format!("t{}", thread % 2),
                            sandbox_name: "demo".to_owned(),
                            dialect: "aio",
                            action: "x".repeat(300),
                            arguments: None,
                            origin: Origin::Agent,
                            client: None,
                            request_id: String::new(),
                            work: None,
                        })
                        .unwrap();
                    let id = step.id();
                    acknowledge(&format!("begun t{} {id}\n", thread % 2));
                    step.response_tap().feed(&[0xff; 20_000]);
                    let outcome = Outcome { status: Some(200), result: OutcomeKind::Ok, error: None };
                    step.finish(outcome).unwrap();
                    acknowledge(&format!("finished t{} {id}\n", thread % 2));
                }
            });
        }
    });
}

/// Straight to the pipe: one write(2).
fn acknowledge(line: &str) {
    std::io::stdout().lock().write_all(line.as_bytes()).unwrap();
}

#[derive(Default)]
struct Acknowledged {
    begun: [u64; 2],
    finished: [Vec<u64>; 2],
}

impl Acknowledged {
    fn read(&mut self, line: &str) {
        // Other lines are the test runner's.
        let [word, trajectory, step] = line.split(' ').collect::<Vec<_>>()[..] else {
            return;
        };
        let at = usize::from(trajectory == "t1");
        match (word, step.parse::<u64>()) {
            ("begun", Ok(step)) => self.begun[at] = self.begun[at].max(step),
            ("finished", Ok(step)) => self.finished[at].push(step),
            _ => {}
        }
    }
}

#[test]
fn no_acknowledged_step_is_lost_or_doubled_by_sigkill() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = Acknowledged::default();
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(DIR, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        for _ in 0..150 + round * 37 {
            acknowledged.read(&lines.next().unwrap().unwrap());
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // What was still in the pipe was acknowledged too.
        for line in lines.map_while(Result::ok) {
            acknowledged.read(&line);
        }
    }
    let recorder = Recorder::open(dir.path().to_owned(), Limits::default()).unwrap();
    for at in 0..2 {
        let (mut numbers, mut fine, mut interrupted) = (Vec::new(), Vec::new(), 0);
        let mut export = Vec::new();
        let tenant = TenantId::default_tenant();
        recorder.export(&tenant, &format!("t{at}"), (true, &Filter::default()), &mut export).unwrap();
        for line in export.lines() {
            let step: Step = serde_json::from_str(&line.unwrap()).unwrap();
            numbers.push(step.step);
            match step.outcome {
                Some(OutcomeKind::Ok) => {
                    assert!(matches!(step.observation, Some(Body::Base64(_))));
                    fine.push(step.step);
                }
                Some(OutcomeKind::Interrupted) => interrupted += 1,
                other => panic!("step {} is {other:?}", step.step),
            }
        }
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
        assert!(numbers.len() as u64 >= acknowledged.begun[at]);
        assert!(acknowledged.finished[at].len() > 100);
        for step in &acknowledged.finished[at] {
            assert!(fine.contains(step), "t{at}: step {step} was acknowledged");
        }
        // At most one for each thread of each round.
        assert!(interrupted <= ROUNDS * THREADS);
    }
}
