//! `cargo xtask lint`: rustfmt, the types of the pages and the clients, words, arrows between crates, the Helm chart's
//! renderings, clippy, rustdoc, cargo-deny. The crates' own tests compare golden files.

use std::path::PathBuf;
use std::process::Command;

use crate::command::{self, cargo, program, tools_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::{arrows, chart, clients, fmt, web, words};

/// The version of cargo-deny, pinned: its rules change between versions.
const CARGO_DENY: &str = "0.20.2";
const DENY_WARNINGS: [&str; 2] = ["--deny", "warnings"];

pub(crate) fn run() -> Outcome {
    sources()?;
    code(cargo)
}

/// What needs no compiler for Rust.
pub(crate) fn sources() -> Outcome {
    fmt::check()?;
    web::check()?;
    clients::check()?;
    words::check()?;
    arrows::check()?;
    chart::check()
}

/// Clippy, rustdoc, and cargo-deny, with the time of the processors that nothing else needs.
pub(crate) fn code_in_idle_time() -> Outcome {
    code(|| {
        let mut nice = program("nice");
        nice.args(["-n", "19"]).arg(cargo().get_program());
        nice
    })
}

fn code(cargo: impl Fn() -> Command + Sync) -> Outcome {
    std::thread::scope(|scope| {
        // It has a separate build folder.
        let deny = scope.spawn(|| cargo_deny(&cargo));
        // The profile of the tests: their C code and macros are compiled once, then.
        let clippy = |features: &[&str]| {
            let all = ["clippy", "--workspace", "--all-targets", "--profile", "checked", "--quiet"];
            command::run(cargo().args(all).args(features).arg("--").args(DENY_WARNINGS))
        };
        clippy(&[])?;
        // `cargo xtask up` leaves features out.
        clippy(&["--no-default-features"])?;
        // Refuses broken links. Links to private items help readers of the code; bare URLs are in texts that clap prints.
        let mut rustdoc = cargo();
        rustdoc.args(["doc", "--workspace", "--no-deps", "--document-private-items", "--profile", "checked", "--quiet"]);
        // As clippy was called, so that what it has checked is not checked again.
        let arguments: String = DENY_WARNINGS.map(|argument| format!("{argument}__CLIPPY_HACKERY__")).concat();
        rustdoc.env("RUSTC_WORKSPACE_WRAPPER", clippy_driver()).env("CLIPPY_ARGS", arguments);
        command::run(
            rustdoc.env("RUSTDOCFLAGS", "--deny warnings --allow rustdoc::private-intra-doc-links --allow rustdoc::bare-urls"),
        )?;
        let deny = deny.join().unwrap_or_else(|_| Err(Failure::new("installing cargo-deny panicked")))?;
        // Not advisories: they change from day to day, and a lint must give the same answer tomorrow.
        command::run(program(deny).args(["--log-level", "error", "check", "bans", "licenses", "sources"]))
    })
}

/// The compiler that `cargo clippy` calls, which is beside cargo.
fn clippy_driver() -> PathBuf {
    PathBuf::from(command::cargo().get_program()).with_file_name("clippy-driver")
}

/// The path of cargo-deny; installed from source if it is missing.
fn cargo_deny(cargo: &impl Fn() -> Command) -> Result<PathBuf, Failure> {
    let tools = tools_dir();
    let root = tools.join(format!("cargo-deny-{CARGO_DENY}"));
    let tool = root.join("bin/cargo-deny");
    if tool.is_file() {
        return Ok(tool);
    }
    eprintln!("cargo-deny {CARGO_DENY} is not there yet; building it takes a minute or two, once");
    std::fs::create_dir_all(&root).attempt(|| format!("could not make {}", root.display()))?;
    // Without optimisation it builds in a fraction of the time, and its checks still take a second.
    let mut install = cargo();
    install.args([
        "install",
        "cargo-deny",
        "--locked",
        "--version",
        CARGO_DENY,
        "--no-default-features",
        "--profile",
        "dev",
        "--quiet",
    ]);
    // Outside this workspace: its flags for static programs are not meant for tools.
    install
        .current_dir("/")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .arg("--root")
        .arg(&root)
        .arg("--target-dir")
        .arg(tools.join("build"));
    command::run(&mut install)?;
    // Most of a gigabyte of intermediate files that are not needed again; leftovers do no harm.
    let _ = std::fs::remove_dir_all(tools.join("build"));
    Ok(tool)
}
