//! `cargo xtask test`: everything that can fail, with one closing line.

use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::binary::{self, Profile};
use crate::command::{self, cargo, program, repository, target_dir};
use crate::decoy::Decoy;
use crate::failure::{Attempt, Failure, Outcome};
use crate::{clients, go, host, image, lint, python, up, web};

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Stop at the first part that fails
    #[arg(long)]
    fail_fast: bool,
    /// Only parts with this in their name: lint, crates, package, end-to-end
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// Arguments for pytest, which then runs one test after another
    #[arg(last = true)]
    pytest: Vec<String>,
}

/// Sockets' paths have at most 107 bytes, and the server keeps some in its data directory.
const LONGEST_DATA_DIR: usize = 58;

/// The images of the end-to-end tests.
const IMAGES: [&str; 4] = ["base", "code", "browser", "aio"];
const END_TO_END: &str = "end-to-end";
/// The folders of the end-to-end tests that run beside the others, since most tests wait most of their time. Each of the two
/// lanes has its own server and data directory, and takes about as long as the other. Playwright leaves an event loop running, so
/// tests that start one come before `aio`.
const FIRST_LANE: [&str; 4] = ["agentflow", "retrieval", "hub", "aio"];
/// The folder that runs after the others: its tests fill the host, and inspect its state.
const ALONE: &str = "isolation";
/// The folder that needs a cluster, which takes minutes to build. No lane has it.
const LEFT_OUT: &str = "LEFT OUT: tests/kubernetes needs a Kubernetes cluster; run it with: cargo xtask test-kubernetes";
/// A test that fails gets a second try, and the summary names it.
const SECOND_TRY: [&str; 2] = ["--reruns", "1"];

type Part = (&'static str, fn() -> Outcome);

/// The name, outcome and duration of a part.
type Done = (&'static str, Outcome, Duration);

pub(crate) fn run(args: &TestArgs) -> Outcome {
    host::must_be_root("test")?;
    host::prepare(&[host::TO_BUILD, host::TO_RUN, host::TO_TEST])?;
    let parts: [Part; 3] = [("lint", lint::run), ("crates", crates), ("package", clients::test)];
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    let mut results: Vec<Done> = Vec::new();
    // The list of the last run, which may not exist.
    let _ = std::fs::remove_file(second_tries());
    web::build()?;
    std::thread::scope(|scope| {
        // The program is compiled first in any case, and its images are built while other parts run.
        let preparing = wanted(END_TO_END).then(|| scope.spawn(|| Prepared::make(Profile::Checked)));
        for (name, part) in parts.into_iter().filter(|(name, _)| wanted(name)) {
            results.push(step(name, part));
            if args.fail_fast && results.iter().any(|(_, outcome, _)| outcome.is_err()) {
                return;
            }
        }
        let Some(preparing) = preparing else { return };
        results.push(step(END_TO_END, || {
            let prepared = preparing.join().unwrap_or_else(|_| Err(Failure::new("its preparation panicked")))?;
            let decoy = Decoy::start(&prepared.arenite, &prepared.data_dir, &beside(&prepared.data_dir, "decoy"))?;
            let tests =
                if args.pytest.is_empty() { prepared.in_lanes() } else { command::run(&mut prepared.pytest(&args.pytest)) };
            // Also after failed tests: that they reached it may be the reason.
            let untouched = decoy.map_or(Ok(()), Decoy::check);
            tests.and(untouched)
        }));
    });
    if results.is_empty() {
        let only = args.only.as_deref().unwrap_or_default();
        return Err(Failure::new(format!("there is no part {only:?}: the parts are lint, crates, package and end-to-end")));
    }
    summarise(&results)
}

fn step(name: &'static str, part: impl FnOnce() -> Outcome) -> Done {
    eprintln!("\n== {name}");
    let begun = Instant::now();
    let outcome = part();
    (name, outcome, begun.elapsed())
}

fn summarise(results: &[Done]) -> Outcome {
    println!();
    for (name, outcome, took) in results {
        match outcome {
            Ok(()) => println!("{name:<12} passed in {:.0} s", took.as_secs_f64()),
            Err(failure) => println!("{name:<12} FAILED in {:.0} s: {failure}", took.as_secs_f64()),
        }
    }
    let again = std::fs::read_to_string(second_tries()).unwrap_or_default();
    println!("second tries: {}", again.lines().count());
    again.lines().for_each(|name| println!("  {name}"));
    if results.iter().any(|(name, ..)| *name == END_TO_END) {
        println!("{LEFT_OUT}");
    }
    let failed = results.iter().filter(|(_, outcome, _)| outcome.is_err()).count();
    let seconds: f64 = results.iter().map(|(.., took)| took.as_secs_f64()).sum();
    if failed == 0 {
        println!("test result: ok. {} parts passed in {seconds:.0} s", results.len());
        return Ok(());
    }
    println!("test result: FAILED. {failed} of {} parts failed in {seconds:.0} s", results.len());
    Err(Failure::new("not everything passed"))
}

/// The file with the names of tests that needed a second try in this run.
fn second_tries() -> PathBuf {
    target_dir().join("second-tries.txt")
}

/// Runs the crates' own tests. A failed run gets one second try, since other work on the host can disturb timing; a test that
/// needs it still has a defect.
fn crates() -> Outcome {
    let tests = || command::run(cargo().args(["test", "--workspace", "--profile", "checked", "--quiet", "--no-fail-fast"]));
    tests().or_else(|failure| {
        eprintln!("\n{failure}\nA SECOND TRY: what passes now failed above, and is to be mended");
        let log = second_tries();
        std::fs::write(&log, "the crates' own tests\n").attempt(|| format!("could not write {}", log.display()))?;
        tests()
    })
}

/// The prerequisites of the end-to-end tests.
pub(crate) struct Prepared {
    arenite: PathBuf,
    runsc: PathBuf,
    python: PathBuf,
    data_dir: PathBuf,
}

impl Prepared {
    pub(crate) fn make(profile: Profile) -> Result<Self, Failure> {
        let arenite = binary::build(profile)?;
        let data_dir = data_dir();
        up::doctor(&arenite, &data_dir)?;
        for name in IMAGES {
            image::ensure(&arenite, name, &data_dir)?;
        }
        web::install(&repository().join("tests/clients"))?;
        let runsc = go::RUNSC.ensure()?;
        Ok(Self { arenite, runsc, python: python::environment()?, data_dir })
    }

    /// Tests in `tests/`, against real sandboxes.
    pub(crate) fn pytest(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut pytest = program(&self.python);
        pytest.current_dir(repository().join("tests")).args(["-m", "pytest"]).args(args);
        pytest.env("ARENITE_BIN", &self.arenite).env("ARENITE_TEST_DATA", &self.data_dir);
        pytest.env("ARENITE_TEST_RUNSC", &self.runsc);
        pytest.env("ARENITE_SECOND_TRIES", second_tries());
        if let Some((_, file)) = host::extra_ca() {
            pytest.env("ARENITE_TEST_EXTRA_CA", file);
        }
        pytest
    }

    /// Runs all of them. The output of the second lane is shown when the first has ended.
    fn in_lanes(&self) -> Outcome {
        let settings = repository().join("tests/pytest.ini");
        let text = std::fs::read_to_string(&settings).attempt(|| format!("could not read {}", settings.display()))?;
        let folders = text.lines().find_map(|line| line.strip_prefix("testpaths =")).unwrap_or_default().split_whitespace();
        let others: Vec<&str> = folders.filter(|folder| *folder != ALONE && !FIRST_LANE.contains(folder)).collect();
        let second = self.twin()?;
        let log = target_dir().join("end-to-end.log");
        let file = File::create(&log).attempt(|| format!("could not make {}", log.display()))?;
        let copy = file.try_clone().attempt(|| "could not share a file".into())?;
        let mut beside = self.pytest(&[&SECOND_TRY, &others[..]].concat());
        beside.env("ARENITE_TEST_DATA", &second).stdout(file).stderr(copy);
        eprintln!("$ {} (beside it, into {})", command::shown(&beside), log.display());
        let mut running = beside.spawn().attempt(|| "could not start pytest".into())?;
        let first = command::run(&mut self.pytest(&[SECOND_TRY.as_slice(), &FIRST_LANE].concat()));
        let status = running.wait().attempt(|| "could not wait for pytest".into())?;
        println!("\n{}", std::fs::read_to_string(&log).unwrap_or_default());
        let last = command::run(&mut self.pytest(&[&SECOND_TRY[..], &[ALONE]].concat()));
        first.and(last)?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("{} failed ({status})", command::shown(&beside)))) }
    }

    /// A second data directory with the same images.
    fn twin(&self) -> Result<PathBuf, Failure> {
        let twin = beside(&self.data_dir, "2");
        image::copy(&self.arenite, &IMAGES, &self.data_dir, &twin)?;
        Ok(twin)
    }
}

/// The directory beside this one that has the suffix.
fn beside(data_dir: &Path, suffix: &str) -> PathBuf {
    PathBuf::from(format!("{}-{suffix}", data_dir.display()))
}

/// Kept between runs, so that the images are built once.
fn data_dir() -> PathBuf {
    let inside = target_dir().join("test-data");
    if inside.as_os_str().len() <= LONGEST_DATA_DIR {
        return inside;
    }
    let clone = repository().display().to_string().bytes().fold(5381u32, |n, b| n.wrapping_mul(33) ^ u32::from(b));
    PathBuf::from(format!("/var/tmp/arenite-test-{clone:08x}"))
}
