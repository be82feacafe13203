//! `cargo xtask test`: everything that can fail, with one closing line.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::binary::{self, Profile};
use crate::command::{self, cargo, program, repository, target_dir};
use crate::decoy::Decoy;
use crate::failure::{Attempt, Failure, Outcome};
use crate::lanes::{self, beside};
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
const LINT: &str = "lint";
const CRATES: &str = "crates";
const END_TO_END: &str = "end-to-end";
/// The folder that needs a cluster, which takes minutes to build. No lane has it.
const LEFT_OUT: &str = "LEFT OUT: tests/kubernetes needs a Kubernetes cluster; run it with: cargo xtask test-kubernetes";
/// Second tries that all of them may need: more mean a defect, not a busy host.
const MOST_SECOND_TRIES: usize = 6;

type Part = (&'static str, fn() -> Outcome);

/// The name, outcome and duration of a part.
type Done = (&'static str, Outcome, Duration);

pub(crate) fn run(args: &TestArgs) -> Outcome {
    host::must_be_root("test")?;
    host::prepare(&[host::TO_BUILD, host::TO_RUN, host::TO_TEST])?;
    let begun = Instant::now();
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    // Clippy and rustdoc take the time that tests wait.
    let in_lanes = wanted(END_TO_END) && args.pytest.is_empty();
    let lint_beside = wanted(LINT) && in_lanes && !args.fail_fast;
    let parts: [Part; 3] =
        [(LINT, if lint_beside { lint::sources } else { lint::run }), (CRATES, crates), ("package", clients::test)];
    let mut results: Vec<Done> = Vec::new();
    let (mut prepared, mut lint_of_code) = (None, None);
    // The list of the last run, which may not exist.
    let _ = std::fs::remove_file(second_tries());
    web::build()?;
    std::thread::scope(|scope| {
        // The program is compiled first in any case, and its images are built while other parts run.
        let preparing = wanted(END_TO_END).then(|| {
            scope.spawn(|| {
                let prepared = Prepared::make(Profile::Checked)?;
                if in_lanes {
                    (1..=lanes::LANES).try_for_each(|lane| prepared.data_dir_of_lane(lane).map(drop))?;
                }
                Ok(prepared)
            })
        });
        let mut linting = None;
        let start_lint = || scope.spawn(|| step("lint of the code", lint::code_in_idle_time));
        for (name, part) in parts.into_iter().filter(|(name, _)| wanted(name)) {
            if name == CRATES && lint_beside {
                // While compilers have work, it would only wait for them. Errors are the part's to report.
                let _ = compile_crates();
                linting = Some(start_lint());
            }
            results.push(step(name, part));
            if args.fail_fast && results.iter().any(|(_, outcome, _)| outcome.is_err()) {
                return;
            }
        }
        if lint_beside && linting.is_none() {
            linting = Some(start_lint());
        }
        let Some(preparing) = preparing else { return };
        results.push(step("preparation", || {
            prepared = Some(preparing.join().unwrap_or_else(|_| Err(Failure::new("it panicked")))?);
            Ok(())
        }));
        if let Some(prepared) = &prepared {
            results.push(step(END_TO_END, || {
                let decoy = Decoy::start(&prepared.arenite, &prepared.data_dir, &beside(&prepared.data_dir, "decoy"))?;
                let tests = if in_lanes {
                    lanes::run(prepared).and(lanes::run_alone(prepared))
                } else {
                    command::run(&mut prepared.pytest(&args.pytest))
                };
                // Also after failed tests: that they reached it may be the reason.
                let untouched = decoy.map_or(Ok(()), Decoy::check);
                tests.and(untouched)
            }));
        }
        lint_of_code =
            linting.map(|done| done.join().unwrap_or_else(|_| step("lint of the code", || Err(Failure::new("it panicked")))));
    });
    results.extend(lint_of_code);
    if results.is_empty() {
        let only = args.only.as_deref().unwrap_or_default();
        return Err(Failure::new(format!("there is no part {only:?}: the parts are lint, crates, package and end-to-end")));
    }
    summarise(&results, begun.elapsed())
}

fn step(name: &'static str, part: impl FnOnce() -> Outcome) -> Done {
    eprintln!("\n== {name}");
    let begun = Instant::now();
    let outcome = part();
    (name, outcome, begun.elapsed())
}

fn summarise(results: &[Done], took: Duration) -> Outcome {
    println!();
    for (name, outcome, took) in results {
        match outcome {
            Ok(()) => println!("{name:<12} passed in {:.0} s", took.as_secs_f64()),
            Err(failure) => println!("{name:<12} FAILED in {:.0} s: {failure}", took.as_secs_f64()),
        }
    }
    let again = std::fs::read_to_string(second_tries()).unwrap_or_default();
    let tries = again.lines().count();
    println!("second tries: {tries}");
    again.lines().for_each(|name| println!("  {name}"));
    if tries > MOST_SECOND_TRIES {
        println!("FAILED: at most {MOST_SECOND_TRIES} may need a second try");
        return Err(Failure::new("too many tests needed a second try"));
    }
    if results.iter().any(|(name, ..)| *name == END_TO_END) {
        println!("{LEFT_OUT}");
    }
    let failed = results.iter().filter(|(_, outcome, _)| outcome.is_err()).count();
    let seconds = took.as_secs_f64();
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

/// Without doc tests: no crate has one, and looking for them takes a minute.
fn cargo_test() -> Command {
    let mut cargo = cargo();
    cargo.args(["test", "--workspace", "--profile", "checked", "--quiet", "--lib", "--bins", "--tests"]);
    cargo
}

fn compile_crates() -> Outcome {
    command::run(cargo_test().arg("--no-run"))
}

/// Runs the crates' own tests. A failed run gets one second try, since other work on the host can disturb timing; a test that
/// needs it still has a defect.
fn crates() -> Outcome {
    let tests = || command::run(cargo_test().arg("--no-fail-fast"));
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
    versitygw: PathBuf,
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
        let (runsc, versitygw) = (go::RUNSC.ensure()?, go::VERSITYGW.ensure()?);
        Ok(Self { arenite, runsc, versitygw, python: python::environment()?, data_dir })
    }

    /// Tests in `tests/`, against real sandboxes.
    pub(crate) fn pytest(&self, args: &[impl AsRef<OsStr>]) -> Command {
        let mut pytest = program(&self.python);
        pytest.current_dir(repository().join("tests")).args(["-m", "pytest"]).args(args);
        pytest.env("ARENITE_BIN", &self.arenite).env("ARENITE_TEST_DATA", &self.data_dir);
        pytest.env("ARENITE_TEST_RUNSC", &self.runsc).env("ARENITE_TEST_VERSITYGW", &self.versitygw);
        pytest.env("ARENITE_SECOND_TRIES", second_tries());
        // Modules are compiled once, and not into the tree. What tests install is mostly never imported.
        pytest.env_remove("PYTHONDONTWRITEBYTECODE").env("PYTHONPYCACHEPREFIX", target_dir().join("pycache"));
        pytest.env("PIP_NO_COMPILE", "1");
        if let Some((_, file)) = host::extra_ca() {
            pytest.env("ARENITE_TEST_EXTRA_CA", file);
        }
        pytest
    }

    /// The data directory of a lane, from 1, with the same images.
    pub(crate) fn data_dir_of_lane(&self, lane: usize) -> Result<PathBuf, Failure> {
        if lane == 1 {
            return Ok(self.data_dir.clone());
        }
        let twin = beside(&self.data_dir, &lane.to_string());
        image::copy(&self.arenite, &IMAGES, &self.data_dir, &twin)?;
        Ok(twin)
    }
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
