//! `cargo xtask fuzz`: libFuzzer on what reads images from elsewhere. Works with stable Rust: LLVM's pass is asked for by flags.

use std::path::Path;
use std::process::Command;

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::command::{self, cargo, program, repository, target_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::host;

/// The targets, which are files of `fuzz/targets`.
const TARGETS: [&str; 4] = ["layer", "manifest", "dockerfile", "reference"];
/// The target that writes its seeds itself: they are not text.
const LAYER: &str = "layer";
/// What `-Z sanitizer` sets on nightly, without a sanitizer. Flags of the environment replace those of .cargo/config.toml: these
/// programs are not static.
const FLAGS: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Maximum time of one input, in seconds.
const INPUT_LIMIT: &str = "-timeout=20";
/// Maximum memory of a target, in MiB.
const MEMORY_LIMIT: &str = "-rss_limit_mb=2048";

#[derive(Debug, Args)]
pub(crate) struct FuzzArgs {
    /// What to fuzz [default: all, one after the other]
    #[arg(value_name = "TARGET", value_parser = PossibleValuesParser::new(TARGETS))]
    targets: Vec<String>,
    /// Time for each target
    #[arg(long, default_value_t = 600, value_name = "N")]
    seconds: u32,
}

pub(crate) fn run(args: &FuzzArgs) -> Outcome {
    // Layers have owners, which only root can give to files.
    host::must_be_root("fuzz")?;
    host::prepare(&[host::TO_FUZZ])?;
    let chosen: Vec<&str> = match &args.targets[..] {
        [] => TARGETS.to_vec(),
        given => given.iter().map(String::as_str).collect(),
    };
    let build = target_dir().join("fuzz-build");
    let triple = "x86_64-unknown-linux-gnu".replace("x86_64", std::env::consts::ARCH);
    let mut compile = cargo();
    compile.args(["build", "--release", "--target", &triple]).arg("--manifest-path");
    compile.arg(repository().join("fuzz/Cargo.toml")).arg("--target-dir").arg(&build);
    command::run(compile.env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}")))?;
    let programs = build.join(&triple).join("release");
    let failed: Vec<&str> = chosen.into_iter().filter(|target| !passes(&programs, target, args.seconds)).collect();
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("findings of {}: their inputs are in {}", failed.join(", "), target_dir().join("fuzz").display())))
}

fn passes(programs: &Path, target: &str, seconds: u32) -> bool {
    let fuzzed = prepare(programs, target).and_then(|mut command| {
        command.arg(format!("-max_total_time={seconds}"));
        command::run(&mut command)
    });
    fuzzed.inspect_err(|failure| eprintln!("{failure}")).is_ok()
}

/// The command of a target. Its corpus grows with each run.
fn prepare(programs: &Path, target: &str) -> Result<Command, Failure> {
    let dir = target_dir().join("fuzz").join(target);
    let (corpus, findings) = (dir.join("corpus"), dir.join("findings"));
    let seeds = if target == LAYER { dir.join("seeds") } else { repository().join("fuzz/seeds").join(target) };
    for dir in [&corpus, &findings, &seeds] {
        std::fs::create_dir_all(dir).attempt(|| format!("could not make {}", dir.display()))?;
    }
    let mut command = program(programs.join(target));
    command.arg(&corpus).arg(&seeds).arg(format!("-artifact_prefix={}/", findings.display()));
    if target == LAYER {
        command.env("ARENITE_FUZZ_SEEDS", &seeds);
    }
    let dictionary = repository().join("fuzz/dictionaries").join(format!("{target}.txt"));
    if dictionary.is_file() {
        command.arg(format!("-dict={}", dictionary.display()));
    }
    command.args([INPUT_LIMIT, MEMORY_LIMIT, "-max_len=16384", "-print_final_stats=1"]);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_target_has_a_file_and_seeds() {
        for target in TARGETS {
            assert!(repository().join("fuzz/targets").join(format!("{target}.rs")).is_file(), "{target}");
            assert!(target == LAYER || repository().join("fuzz/seeds").join(target).is_dir(), "{target}");
        }
    }
}
