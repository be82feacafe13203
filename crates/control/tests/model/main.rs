//! Random operations of five tenants against a model, over crashes and restarts, on both databases.
//!
//! The servers run on one thread, and their time stands still until a step moves it, so the model knows it exactly. A crash drops
//! all of a server's tasks where they are, as a kill does; the engine with its sandboxes and the store stay. Steps are plain data
//! that a seed determines. A failure prints the seed and the fewest steps that still fail.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `ARENITE_MODEL_STEPS` | steps on each database, 4,000 by default |
//! | `ARENITE_MODEL_SEED` | the first seed, or `random`; unset: always the same, so that a run of the tests repeats the one before |
//! | `ARENITE_MODEL_EPISODE` | steps from one empty store, 400 by default; each episode has the next seed |
//! | `ARENITE_MODEL_SHRINK_SECONDS` | the longest search for fewer steps, 60 by default |

#![allow(clippy::unwrap_used, reason = "a helper of a test fails its test")]

mod events;
mod op;
mod perform;
mod server;
mod state;
#[path = "../support/mod.rs"]
mod support;
mod usage;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::time::{Duration, Instant};

use arenite_control::fake_engine::FakeEngine;
use jiff::Timestamp;

use op::{Random, Step};
use server::{Ended, PANICKED, ServerHome, live};
use state::Model;
use support::cluster::Cluster;

/// Steps from one empty store.
const EPISODE: usize = 400;
const STEPS: usize = 4000;
const SEED: u64 = 59_757;

struct Failure {
    /// The step that failed.
    at: usize,
    reason: String,
}

fn setting<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is no number: {text:?}")))
}

/// Stores without data.
struct FreshHomes {
    cluster: Option<Cluster>,
    used: usize,
}

impl FreshHomes {
    fn next(&mut self) -> ServerHome<'_> {
        self.used += 1;
        let database = format!("model{}", self.used);
        let dir = tempfile::tempdir().unwrap();
        let Some(cluster) = &self.cluster else { return ServerHome { dir, cluster: None } };
        let last = format!("model{}", self.used - 1);
        support::runtime().block_on(async {
            cluster.run(&format!("DROP DATABASE IF EXISTS {last} WITH (FORCE)")).await;
            cluster.run(&format!("CREATE DATABASE {database} ENCODING 'UTF8' TEMPLATE template0")).await;
        });
        ServerHome { dir, cluster: Some((cluster, database)) }
    }
}

/// Does the steps on an empty store.
fn run(home: &ServerHome<'_>, steps: &[Step]) -> Result<(), Failure> {
    PANICKED.set(false);
    let mut at = 0;
    let done = catch_unwind(AssertUnwindSafe(|| run_lives(home, steps, &mut at)));
    let reason = match done {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(reason)) => reason,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_else(|| "a panic".to_owned())
        }
    };
    Err(Failure { at, reason })
}

fn run_lives(home: &ServerHome<'_>, steps: &[Step], at: &mut usize) -> Result<(), String> {
    let engine = FakeEngine::new();
    let mut model = Model::new(Timestamp::from_second(Timestamp::now().as_second()).unwrap());
    let (mut sums, mut before) = (BTreeMap::new(), None);
    loop {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        // While a blocking task runs, the paused time does not move by itself.
        let (awake, waits) = std::sync::mpsc::channel::<()>();
        runtime.spawn_blocking(move || waits.recv().is_ok());
        let ended = runtime.block_on(live(home, &engine, &mut model, steps, at, before.take(), &mut sums));
        drop(awake);
        // All tasks end where they are.
        drop(runtime);
        engine.heal();
        match ended? {
            Ended::Finished => return Ok(()),
            Ended::Stopped(stopped) => before = Some(stopped),
        }
    }
}

/// The fewest steps that fail, by leaving out parts of them.
fn shrink(homes: &mut FreshHomes, mut steps: Vec<Step>, mut failure: Failure) -> (Vec<Step>, Failure) {
    let end = Instant::now() + Duration::from_secs(setting("ARENITE_MODEL_SHRINK_SECONDS").unwrap_or(60));
    steps.truncate(failure.at + 1);
    let mut part = steps.len().div_ceil(2);
    while part > 0 {
        let mut from = 0;
        while from < steps.len() {
            if Instant::now() > end {
                return (steps, failure);
            }
            let mut fewer = steps.clone();
            fewer.drain(from..(from + part).min(steps.len()));
            match run(&homes.next(), &fewer) {
                Err(failed) => {
                    fewer.truncate(failed.at + 1);
                    (steps, failure) = (fewer, failed);
                }
                Ok(()) => from += part,
            }
        }
        part = if part == 1 { 0 } else { part.div_ceil(2) };
    }
    (steps, failure)
}

fn agrees_with_the_model(cluster: Option<Cluster>) {
    let what = if cluster.is_some() { "on_postgres" } else { "on_sqlite" };
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        PANICKED.set(true);
        before(panic);
    }));
    let mut homes = FreshHomes { cluster, used: 0 };
    let number: usize = setting("ARENITE_MODEL_STEPS").unwrap_or(STEPS);
    let first = if std::env::var("ARENITE_MODEL_SEED").is_ok_and(|seed| seed == "random") {
        let now = u64::try_from(Timestamp::now().as_nanosecond() & i128::from(u64::MAX)).unwrap();
        Random::new(now).below(1_000_000)
    } else {
        setting("ARENITE_MODEL_SEED").unwrap_or(SEED)
    };
    let episode = setting("ARENITE_MODEL_EPISODE").unwrap_or(EPISODE);
    let (begun, mut done, mut seed) = (Instant::now(), 0, first);
    while done < number {
        let length = episode.min(number - done);
        let steps = op::generate(seed, length);
        if let Err(failure) = run(&homes.next(), &steps) {
            let (at, reason) = (failure.at, failure.reason.clone());
            let (steps, failure) = shrink(&mut homes, steps, failure);
            panic!(
                "{what}: step {at} with the seed {seed} fails: {reason}\n\n{} steps are enough:\n{}\n{}\n\n\
                 again: ARENITE_MODEL_SEED={seed} ARENITE_MODEL_STEPS={length} ARENITE_MODEL_EPISODE={length} cargo test --workspace --profile checked --test model {what}",
                steps.len(),
                steps.iter().map(|step| format!("{step:?}")).collect::<Vec<_>>().join("\n"),
                failure.reason
            );
        }
        done += length;
        seed += 1;
    }
    println!("{what}: {done} steps in {:.1} s, with the seeds {first} to {}", begun.elapsed().as_secs_f64(), seed - 1);
}

#[test]
fn on_sqlite() {
    agrees_with_the_model(None);
}

#[test]
fn on_postgres() {
    agrees_with_the_model(Some(Cluster::start()));
}
