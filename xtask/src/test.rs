//! `cargo xtask test`: everything that can fail, with one closing line.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;

use crate::command::{self, cargo, program, repository, target_dir};
use crate::failure::{Failure, Outcome};
use crate::{binary, host, image, lint, python, up, web};

#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Stop at the first part that fails
    #[arg(long)]
    fail_fast: bool,
    /// Only parts with this in their name: lint, crates, package, end-to-end
    #[arg(long, value_name = "PART")]
    only: Option<String>,
    /// What follows goes to pytest
    #[arg(last = true)]
    pytest: Vec<String>,
}

/// Sockets' paths have at most 107 bytes, and the server keeps some in its data directory.
const LONGEST_DATA_DIR: usize = 60;

const END_TO_END: &str = "end-to-end";

type Part<'a> = (&'static str, Box<dyn Fn() -> Outcome + 'a>);

pub(crate) fn run(args: &TestArgs) -> Outcome {
    host::must_be_root("test")?;
    host::prepare(&[host::TO_RUN, host::TO_TEST])?;
    let parts: [Part<'_>; 4] = [
        ("lint", Box::new(lint::run)),
        ("crates", Box::new(crates)),
        ("package", Box::new(package)),
        // One that fails gets a second try, and the summary names it.
        (END_TO_END, Box::new(|| end_to_end(&[&["--reruns".to_owned(), "1".to_owned()], &args.pytest[..]].concat()))),
    ];
    let only = args.only.as_deref().unwrap_or_default();
    let mut results: Vec<(&str, Outcome, Duration)> = Vec::new();
    web::build()?;
    std::thread::scope(|scope| {
        // Every build ends with one large crate on one core: two at a time have both cores at work. What it comes to is asked
        // for again when it is needed.
        if parts.iter().any(|(name, _)| *name == END_TO_END && name.contains(only)) {
            scope.spawn(binary::build);
        }
        for (name, part) in parts.iter().filter(|(name, _)| name.contains(only)) {
            eprintln!("\n== {name}");
            let begun = Instant::now();
            let outcome = part();
            let failed = outcome.is_err();
            results.push((name, outcome, begun.elapsed()));
            if failed && args.fail_fast {
                break;
            }
        }
    });
    if results.is_empty() {
        return Err(Failure::new(format!("there is no part {only:?}: the parts are lint, crates, package and end-to-end")));
    }
    summarise(&results)
}

fn summarise(results: &[(&str, Outcome, Duration)]) -> Outcome {
    println!();
    for (name, outcome, took) in results {
        match outcome {
            Ok(()) => println!("{name:<12} passed in {:.0} s", took.as_secs_f64()),
            Err(failure) => println!("{name:<12} FAILED in {:.0} s: {failure}", took.as_secs_f64()),
        }
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

/// The crates' own tests. Those of a run that failed get a second try, since they race with everything that the machine does
/// besides; what needs it is a defect all the same.
fn crates() -> Outcome {
    let tests = || command::run(cargo().args(["test", "--workspace", "--profile", "bench", "--quiet", "--no-fail-fast"]));
    tests().or_else(|failure| {
        eprintln!("\n{failure}\nA SECOND TRY: what passes now failed above, and is to be mended");
        tests()
    })
}

/// The Python package's own tests, in a folder for their files that no other run looks into.
fn package() -> Outcome {
    let python = python::environment()?;
    let scratch = target_dir().join("package-tests");
    let mut pytest = program(python);
    pytest.current_dir(repository().join("clients/python")).args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp"]);
    command::run(pytest.arg(scratch))
}

/// The tests in `tests/`, against the release build and real sandboxes.
pub(crate) fn end_to_end(extra: &[String]) -> Outcome {
    let arenite = binary::build()?;
    let data_dir = data_dir();
    up::doctor(&arenite, &data_dir)?;
    for name in ["base", "code", "browser", "aio"] {
        image::ensure(&arenite, name, &data_dir)?;
    }
    web::install(&repository().join("tests/clients"))?;
    let python = python::environment()?;
    let mut pytest = program(python);
    pytest.current_dir(repository().join("tests")).args(["-m", "pytest"]).args(extra);
    pytest.env("ARENITE_BIN", &arenite).env("ARENITE_TEST_DATA", &data_dir);
    if let Some((_, file)) = host::extra_ca() {
        pytest.env("ARENITE_TEST_EXTRA_CA", file);
    }
    command::run(&mut pytest)
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
