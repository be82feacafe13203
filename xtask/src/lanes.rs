//! The end-to-end tests in lanes. Most tests wait most of their time, so several run at once.
//!
//! Each folder of `tests/pytest.ini` is a run of pytest. A lane takes the next folder when it is free, so no lane waits for another
//! while there is something to do. Each lane has its own data directory, and each run its own server.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::command::{self, repository, target_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::test::Prepared;

pub(crate) const LANES: usize = 3;
/// The folders that take longest, the longest first: what is started last should be short.
const LONGEST: [&str; 4] = ["operation", "aio", "agentflow", "isolation"];
/// What runs after all else: these tests fill the host, or compare how long something takes.
const ALONE: [&str; 4] = ["isolation/hostile", "isolation/test_hogs.py", "isolation/test_kills.py", "isolation/test_many.py"];
/// A test that fails gets a second try, and the summary names it.
const SECOND_TRY: [&str; 2] = ["--reruns", "1"];

/// A run of pytest that has ended.
struct Done<'a> {
    folder: &'a str,
    outcome: Outcome,
    took: Duration,
}

/// Runs all but [`ALONE`].
pub(crate) fn run(prepared: &Prepared) -> Outcome {
    let settings = repository().join("tests/pytest.ini");
    let text = std::fs::read_to_string(&settings).attempt(|| format!("could not read {}", settings.display()))?;
    let queue = Mutex::new(order(&text));
    let data_dirs = (1..=LANES).map(|lane| prepared.data_dir_of_lane(lane)).collect::<Result<Vec<_>, _>>()?;
    let logs = target_dir().join("end-to-end");
    std::fs::create_dir_all(&logs).attempt(|| format!("could not create {}", logs.display()))?;
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for data_dir in &data_dirs {
            scope.spawn(|| {
                while let Some(folder) = next(&queue) {
                    let since = Instant::now();
                    let log = logs.join(format!("{folder}.log"));
                    let outcome = run_folder(prepared, folder, data_dir, &log);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    // While the list is locked, so that outputs are not mixed.
                    println!("\n{}", std::fs::read_to_string(&log).unwrap_or_default());
                    done.push(Done { folder, outcome, took: since.elapsed() });
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let times: Vec<String> = done.iter().map(|one| format!("{} {:.0} s", one.folder, one.took.as_secs_f64())).collect();
    println!("\nend-to-end tests, {LANES} folders at once: {}", times.join(", "));
    let failed: Vec<String> =
        done.iter().filter_map(|one| one.outcome.as_ref().err().map(|failure| format!("{}: {failure}", one.folder))).collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure::new(failed.join("; "))) }
}

/// Runs what needs the host for itself.
pub(crate) fn run_alone(prepared: &Prepared) -> Outcome {
    command::run(&mut prepared.pytest(&[&SECOND_TRY[..], &ALONE].concat()))
}

fn run_folder(prepared: &Prepared, folder: &str, data_dir: &Path, log: &Path) -> Outcome {
    let file = File::create(log).attempt(|| format!("could not create {}", log.display()))?;
    let copy = file.try_clone().attempt(|| "could not share a file".into())?;
    let mut pytest = prepared.pytest(&[&SECOND_TRY[..], &[folder]].concat());
    pytest.args(ALONE.map(|path| format!("--ignore={path}")));
    command::run(pytest.env("ARENITE_TEST_DATA", data_dir).stdout(file).stderr(copy))
}

fn next<'a>(queue: &Mutex<VecDeque<&'a str>>) -> Option<&'a str> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// The folders in the order in which they start.
fn order(settings: &str) -> VecDeque<&str> {
    let listed = settings.lines().find_map(|line| line.strip_prefix("testpaths =")).unwrap_or_default();
    let listed: Vec<&str> = listed.split_whitespace().collect();
    let known: BTreeSet<&str> = listed.iter().copied().collect();
    let longest = LONGEST.into_iter().filter(|folder| known.contains(folder));
    longest.chain(listed.into_iter().filter(|folder| !LONGEST.contains(folder))).collect()
}

/// The data directory of a lane, beside that of the first.
pub(crate) fn beside(data_dir: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}-{suffix}", data_dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_folders_start_first() {
        let settings = "[pytest]\ntestpaths = seeds operation aio vm\naddopts = -ra\n";
        assert_eq!(order(settings), ["operation", "aio", "seeds", "vm"]);
    }

    #[test]
    fn what_is_named_exists() {
        let tests = repository().join("tests");
        let settings = std::fs::read_to_string(tests.join("pytest.ini")).expect("the settings are there");
        assert!(LONGEST.iter().all(|folder| order(&settings).contains(folder)));
        assert!(ALONE.iter().all(|path| tests.join(path).exists()));
    }
}
