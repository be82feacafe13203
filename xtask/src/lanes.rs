//! The end-to-end tests in lanes. Most tests wait most of their time, so several run at once.
//!
//! Each folder of `tests/pytest.ini` is a run of pytest, and some are several. A lane takes the next run when it is free, so no lane
//! waits for another while there is something to do. Each lane has its own data directory, and each run its own server.

use std::collections::VecDeque;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::command::{self, repository, target_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::test::Prepared;

/// Each has a copy of the images, some 4 GB. Two of them leave two fifths of two processors unused.
pub(crate) const LANES: usize = 3;
/// The runs that take longest, the longest first: what is started last should be short.
const LONGEST: [&str; 9] =
    ["aio", "operation", "operation-nodes", "state", "engines", "isolation", "tenants", "agentflow", "operation-images"];
/// Parts of folders that are runs apart: the folder, the name, and how the files' names start.
const PARTS: [(&str, &str, &[&str]); 2] = [
    ("operation", "operation-nodes", &["test_node"]),
    ("operation", "operation-images", &["test_any_image", "test_base_on_image", "test_dockerfiles", "test_image"]),
];
/// Files that run with another folder, because they use its network namespace.
const WITH_OTHERS: [(&str, &str); 1] = [("tenants/test_network_floor.py", "isolation")];
/// What runs after all else: these tests fill the host, or compare how long something takes, or how nodes share a burst.
const ALONE: [&str; 5] = [
    "isolation/hostile",
    "isolation/test_hogs.py",
    "isolation/test_kills.py",
    "isolation/test_many.py",
    "operation/test_node_networks.py",
];
/// A test that fails gets a second try, and the summary names it.
const SECOND_TRY: [&str; 2] = ["--reruns", "1"];

/// A run of pytest.
#[derive(Debug, PartialEq, Eq)]
struct Run {
    name: String,
    /// Paths, and what of them is left out.
    args: Vec<String>,
}

/// A run that has ended.
struct Done {
    name: String,
    outcome: Outcome,
    took: Duration,
}

/// Runs all but [`ALONE`].
pub(crate) fn run(prepared: &Prepared) -> Outcome {
    let tests = repository().join("tests");
    let settings = tests.join("pytest.ini");
    let text = std::fs::read_to_string(&settings).attempt(|| format!("could not read {}", settings.display()))?;
    let queue = Mutex::new(VecDeque::from(runs(&text, &tests)?));
    let data_dirs = (1..=LANES).map(|lane| prepared.data_dir_of_lane(lane)).collect::<Result<Vec<_>, _>>()?;
    let logs = target_dir().join("end-to-end");
    std::fs::create_dir_all(&logs).attempt(|| format!("could not create {}", logs.display()))?;
    let done = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for data_dir in &data_dirs {
            scope.spawn(|| {
                while let Some(run) = next(&queue) {
                    let since = Instant::now();
                    let log = logs.join(format!("{}.log", run.name));
                    let outcome = run_pytest(prepared, &run, data_dir, &log);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    // While the list is locked, so that outputs are not mixed.
                    println!("\n{}", std::fs::read_to_string(&log).unwrap_or_default());
                    done.push(Done { name: run.name, outcome, took: since.elapsed() });
                }
            });
        }
    });
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let times: Vec<String> = done.iter().map(|one| format!("{} {:.0} s", one.name, one.took.as_secs_f64())).collect();
    println!("\nend-to-end tests, {LANES} at once: {}", times.join(", "));
    let failed: Vec<String> =
        done.iter().filter_map(|one| one.outcome.as_ref().err().map(|failure| format!("{}: {failure}", one.name))).collect();
    if failed.is_empty() { Ok(()) } else { Err(Failure::new(failed.join("; "))) }
}

/// Runs what needs the host for itself.
pub(crate) fn run_alone(prepared: &Prepared) -> Outcome {
    command::run(&mut prepared.pytest(&[&SECOND_TRY[..], &ALONE].concat()))
}

fn run_pytest(prepared: &Prepared, run: &Run, data_dir: &Path, log: &Path) -> Outcome {
    let file = File::create(log).attempt(|| format!("could not create {}", log.display()))?;
    let copy = file.try_clone().attempt(|| "could not share a file".into())?;
    let mut pytest = prepared.pytest(&SECOND_TRY);
    command::run(pytest.args(&run.args).env("ARENITE_TEST_DATA", data_dir).stdout(file).stderr(copy))
}

fn next(queue: &Mutex<VecDeque<Run>>) -> Option<Run> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

/// The runs in the order in which they start.
fn runs(settings: &str, tests: &Path) -> Result<Vec<Run>, Failure> {
    let listed = settings.lines().find_map(|line| line.strip_prefix("testpaths =")).unwrap_or_default();
    let mut runs = Vec::new();
    for folder in listed.split_whitespace() {
        let mut apart: Vec<String> = ALONE.into_iter().chain(WITH_OTHERS.map(|(file, _)| file)).map(str::to_owned).collect();
        for (_, name, starts) in PARTS.iter().filter(|(of, ..)| *of == folder) {
            let paths = files(&tests.join(folder), starts)?.into_iter().map(|file| format!("{folder}/{file}"));
            let args: Vec<String> = paths.filter(|path| !ALONE.contains(&path.as_str())).collect();
            apart.extend(args.clone());
            runs.push(Run { name: (*name).to_owned(), args });
        }
        let ignored = apart.iter().filter(|path| path.starts_with(&format!("{folder}/")));
        let guests = WITH_OTHERS.into_iter().filter(|(_, of)| *of == folder).map(|(file, _)| file.to_owned());
        let args = std::iter::once(folder.to_owned()).chain(ignored.map(|path| format!("--ignore={path}"))).chain(guests);
        runs.push(Run { name: folder.to_owned(), args: args.collect() });
    }
    // The others keep the order of the settings.
    runs.sort_by_key(|run| LONGEST.iter().position(|name| *name == run.name).unwrap_or(LONGEST.len()));
    Ok(runs)
}

/// The files of a folder with names that start with one of these.
fn files(folder: &Path, starts: &[&str]) -> Result<Vec<String>, Failure> {
    let entries = std::fs::read_dir(folder).attempt(|| format!("could not read {}", folder.display()))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut files: Vec<String> = names.filter(|name| starts.iter().any(|start| name.starts_with(start))).collect();
    files.sort_unstable();
    Ok(files)
}

/// The data directory of a lane, beside that of the first.
pub(crate) fn beside(data_dir: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}-{suffix}", data_dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real() -> (PathBuf, Vec<Run>) {
        let tests = repository().join("tests");
        let settings = std::fs::read_to_string(tests.join("pytest.ini")).expect("the settings are there");
        let runs = runs(&settings, &tests).expect("its folders are there");
        (tests, runs)
    }

    #[test]
    fn the_longest_start_first_and_parts_are_run_once() {
        let (_, runs) = real();
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names[..LONGEST.len()], LONGEST);
        for (folder, name, _) in PARTS {
            let args = |name: &str| &runs.iter().find(|run| run.name == name).expect("it is a run").args;
            assert!(!args(name).is_empty());
            let ignored = |path: &String| args(folder).contains(&format!("--ignore={path}"));
            assert!(args(name).iter().all(ignored), "{name}");
        }
    }

    #[test]
    fn what_runs_with_another_folder_runs_once() {
        let (tests, runs) = real();
        for (file, folder) in WITH_OTHERS {
            assert!(tests.join(file).exists(), "{file}");
            let with: Vec<&str> =
                runs.iter().filter(|run| run.args.contains(&file.to_owned())).map(|run| run.name.as_str()).collect();
            assert_eq!(with, [folder]);
            let home = runs.iter().find(|run| file.starts_with(&format!("{}/", run.name))).expect("its folder is a run");
            assert!(home.args.contains(&format!("--ignore={file}")), "{file}");
        }
    }

    #[test]
    fn what_runs_alone_is_in_no_lane() {
        let (tests, runs) = real();
        for path in ALONE {
            assert!(tests.join(path).exists(), "{path}");
            let folder = path.split('/').next().expect("it is in a folder");
            let run = runs.iter().find(|run| run.name == folder).expect("it is a run");
            assert!(run.args.contains(&format!("--ignore={path}")), "{path}");
            assert!(runs.iter().all(|run| !run.args.contains(&path.to_owned())), "{path}");
        }
    }
}
