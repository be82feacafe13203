//! `cargo xtask bench`: the rows of the budget table, each next to its floor from the same run.
//!
//! Floor and subject alternate, so that other load on the machine affects both alike: only their ratio counts.

mod agentflow;
mod browser;
mod code;
mod egress;
mod explore;
mod floor;
mod http;
mod images;
mod kept;
mod mcp;
mod memory;
mod nodes;
mod pages;
mod postgres;
mod report;
mod retrieval;
mod search;
mod states;
mod stream;
mod tenants;
mod termination;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use clap::Args;

use crate::binary::Profile;
use crate::command::{self, program, target_dir};
use crate::failure::{Attempt, Failure, Outcome};
use crate::{binary, go, host, image, server};

use http::Connection;
use report::{Report, Row};

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// File for the numbers, as JSON [default: target/bench.json]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Rounds of the rows that are measured in milliseconds
    #[arg(long, default_value_t = 200, value_name = "N")]
    rounds: usize,
    /// The server's data directory [default: target/bench-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Port of the measured server
    #[arg(long, default_value_t = 18090)]
    port: u16,
    /// Measure this existing build instead of building one
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Only these groups of rows, separated by commas
    #[arg(long, value_name = "GROUP", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(GROUPS))]
    only: Vec<String>,
    /// Also create, use and delete 1,000 sandboxes in turn
    #[arg(long)]
    soak: bool,
    /// Write the table into docs/SPECIFICATION.md, between its two marks; with --only, its other rows stay
    #[arg(long)]
    update_specification: bool,
}

/// Accepted values of `--only`, in the order of measurement.
const GROUPS: [&str; 24] = [
    "create",
    "exec",
    "claim",
    "code",
    "browser",
    "mcp",
    "agentflow",
    "retrieval-peers",
    "retrieval-api",
    "many",
    "stream",
    "grep",
    "tenants",
    "auth",
    "nodes",
    "state",
    "kept",
    "reset",
    "explore",
    "egress",
    "pages",
    "image-create",
    "image-load",
    "image-share",
];
/// Warm-up rounds: pools fill, files get into the cache.
const WARM_UP: usize = 10;
/// Number of sandboxes in the rows about many.
const MANY: usize = 50;
/// Number of sandboxes of `--soak`.
const SOAK: usize = 1000;
/// Time until a system counts as idle: remaining work of calls ends, and a guest waits ten seconds for another.
const SETTLE: Duration = Duration::from_secs(13);
/// Pause between a delete and the next round, so that its end is not measured as the next one's start.
const PAUSE: Duration = Duration::from_millis(20);

pub(crate) fn run(args: &BenchArgs) -> Outcome {
    host::must_be_root("bench")?;
    host::prepare(&[host::TO_BUILD, host::TO_RUN, host::TO_BENCH])?;
    let arenite = match &args.binary {
        Some(path) => path.clone(),
        None => binary::build(Profile::Dist)?,
    };
    let work = target_dir().join("bench");
    std::fs::create_dir_all(&work).attempt(|| format!("could not make {}", work.display()))?;
    let floors = floor::compile(&work)?;
    let data_dir = args.data_dir.clone().unwrap_or_else(|| target_dir().join("bench-data"));
    for name in ["base", "code"].into_iter().chain(wanted(args, "browser").then_some("browser")) {
        image::ensure(&arenite, name, &data_dir)?;
    }
    let mut arguments = vec!["--listen".to_owned(), format!("127.0.0.1:{}", args.port)];
    arguments.extend([
        "--agentflow-listen".to_owned(),
        "off".to_owned(),
        "--data-dir".to_owned(),
        data_dir.display().to_string(),
    ]);
    if wanted(args, "code") || wanted(args, "claim") {
        arguments.extend(["--pool".to_owned(), code::POOL.to_owned()]);
    }
    if wanted(args, "agentflow") {
        arguments.extend(["--agentflow-config".to_owned(), agentflow::configuration(&work)?.display().to_string()]);
    }
    if wanted(args, "kept") {
        arguments.extend(["--runsc".to_owned(), go::RUNSC.ensure()?.display().to_string()]);
    }
    server::start(&arenite, args.port, &arguments, &work.join("server.log"))?;
    let mut report = Report::of_this_host()?;
    let measured = measure(args, &arenite, &data_dir, &work, &floors, &mut report);
    let stopped = server::Started::find(args.port).map_or(Ok(()), |started| started.stop());
    let measured = measured.and_then(|()| {
        if wanted(args, "egress") {
            let arguments = [arguments.as_slice(), &termination::prepare(&work)?].concat();
            server::start(&arenite, args.port, &arguments, &work.join("server.log"))?;
            let ended = Connection::open(args.port).and_then(|mut api| termination::measure(&mut api, &work, &mut report));
            server::Started::find(args.port).map_or(Ok(()), |started| started.stop()).and(ended)?;
        }
        if !wanted(args, "claim") {
            return Ok(());
        }
        arguments.extend(["--prepared-slots".to_owned(), "0".to_owned()]);
        server::start(&arenite, args.port, &arguments, &work.join("server.log"))?;
        let compared = Connection::open(args.port)
            .and_then(|mut api| code::claims(args.rounds, code::Ready::Nothing, &mut api, &mut report));
        server::Started::find(args.port).map_or(Ok(()), |started| started.stop()).and(compared)
    });
    print!("{report}");
    let output = args.output.clone().unwrap_or_else(|| target_dir().join("bench.json"));
    let text = serde_json::to_vec_pretty(&report).attempt(|| "could not write the numbers as JSON".into())?;
    std::fs::write(&output, text).attempt(|| format!("could not write {}", output.display()))?;
    println!("\nwritten to {}", output.display());
    if args.update_specification {
        let part = !args.only.is_empty() || measured.is_err();
        report.update(&command::repository().join("docs/SPECIFICATION.md"), part)?;
    }
    measured.and(stopped)
}

/// Measures into the report, which keeps its rows after a failure.
fn measure(
    args: &BenchArgs,
    arenite: &Path,
    data_dir: &Path,
    work: &Path,
    floors: &floor::Programs,
    report: &mut Report,
) -> Outcome {
    let mut api = Connection::open(args.port)?;
    for name in api.sandboxes()? {
        api.delete(&name)?;
    }
    let rootfs = floor::root_file_system(&mut api, work)?;
    let wanted = |name: &str| wanted(args, name);
    if wanted("create") {
        create(args, &mut api, floors, &rootfs, work, report)?;
    }
    if wanted("exec") {
        exec(args, &mut api, floors, report)?;
    }
    // These measure the server's memory, to which the groups below add.
    if wanted("stream") {
        stream::measure(args.port, &mut api, work, report)?;
        api = Connection::open(args.port)?;
    }
    if wanted("many") {
        many(args, &mut api, report)?;
    }
    if wanted("grep") {
        report.push(search::measure(&mut api)?);
    }
    if wanted("claim") {
        code::claims(args.rounds, code::Ready::Slot, &mut api, report)?;
    }
    if wanted("code") {
        code::measure(args.rounds, &mut api, report)?;
    }
    if wanted("browser") {
        browser::measure(args, &mut api, work, report)?;
        // The server closed the idle connection.
        api = Connection::open(args.port)?;
    }
    if wanted("mcp") {
        mcp::measure(args, &mut api, report)?;
    }
    if wanted("agentflow") {
        agentflow::measure(args, &mut api, work, report)?;
    }
    if wanted("retrieval-peers") {
        retrieval::beside_peers(work, report)?;
    }
    if wanted("retrieval-api") {
        retrieval::served(args, arenite, data_dir, work, report)?;
    }
    let setting = tenants::Setting { arenite, images: data_dir, work, port: args.port, rounds: args.rounds };
    if wanted("tenants") {
        tenants::beside_many(&setting, report)?;
    }
    if wanted("auth") {
        api = Connection::open(args.port)?;
        tenants::authentication(&setting, &mut api, report)?;
    }
    if wanted("nodes") {
        let setting = nodes::Setting { arenite, images: data_dir, work, port: args.port, rounds: args.rounds };
        nodes::measure(&setting, report)?;
    }
    if wanted("state") {
        api = Connection::open(args.port)?;
        // Each round of 10 GB takes seconds in all.
        states::measure(args.rounds.min(40), data_dir, &mut api, report)?;
    }
    if wanted("kept") {
        api = Connection::open(args.port)?;
        kept::measure(args.rounds, &mut api, report)?;
    }
    if wanted("reset") {
        states::resets(args.port, report)?;
    }
    if wanted("explore") {
        explore::measure(arenite, work, args.port, report)?;
    }
    if wanted("egress") {
        api = Connection::open(args.port)?;
        egress::measure(args.port, &mut api, report)?;
    }
    if wanted("pages") {
        pages::measure(args, report)?;
    }
    let setting = images::Setting { arenite, data_dir, work, port: args.port, rounds: args.rounds };
    if wanted("image-create") {
        images::creates(&setting, report)?;
    }
    if wanted("image-load") {
        images::loads(&setting, report)?;
    }
    // After the others: it empties the page cache.
    if wanted("image-share") {
        images::shared(&setting, report)?;
    }
    if args.soak {
        api = Connection::open(args.port)?;
        soak(&mut api, report)?;
    }
    Ok(())
}

fn wanted(args: &BenchArgs, name: &str) -> bool {
    debug_assert!(GROUPS.contains(&name), "{name} is no group");
    args.only.is_empty() || args.only.iter().any(|only| only == name)
}

/// Create → first output, against the namespace floor and `runc run`.
fn create(
    args: &BenchArgs,
    api: &mut Connection,
    floors: &floor::Programs,
    rootfs: &Path,
    work: &Path,
    report: &mut Report,
) -> Outcome {
    let mut namespace = floors.namespace(rootfs, work)?;
    let runc = floor::Runc::prepare(rootfs, work)?;
    let (mut ours, mut theirs, mut containers) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..WARM_UP + args.rounds {
        let name = format!("bench-{round}");
        let begun = Instant::now();
        api.create(&name)?;
        let output = api.bash(&name, "echo hi")?;
        let took = begun.elapsed();
        if output != "hi\n" {
            return Err(Failure::new(format!("the first command of {name} answered {output:?}")));
        }
        api.delete(&name)?;
        std::thread::sleep(PAUSE);
        let floor = namespace.once()?;
        if round < WARM_UP {
            continue;
        }
        ours.push(took);
        theirs.push(floor);
        if round % 5 == 0 {
            containers.push(runc.once()?);
        }
    }
    report.push(
        Row::ratio("create → first output, p50", &ours, 0.50, &theirs, 0.50, 4.0).against("clone3 + overlay + pivot_root + exec"),
    );
    report.push(Row::ratio("create → first output, p99", &ours, 0.99, &theirs, 0.99, 8.0).against("the same").goal_only());
    report.push(Row::faster("create → first output vs runc run", &ours, &containers, 1.0));
    Ok(())
}

/// `bash/exec` of `true` in a live sandbox, against fork and exec of `bash -c true`.
fn exec(args: &BenchArgs, api: &mut Connection, floors: &floor::Programs, report: &mut Report) -> Outcome {
    let mut spawn = floors.spawn()?;
    api.create("bench-exec")?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..WARM_UP + args.rounds {
        let begun = Instant::now();
        api.bash("bench-exec", "true")?;
        let took = begun.elapsed();
        let floor = spawn.once()?;
        if round >= WARM_UP {
            ours.push(took);
            theirs.push(floor);
        }
    }
    api.delete("bench-exec")?;
    report.push(Row::ratio("bash/exec of true, p50", &ours, 0.50, &theirs, 0.50, 2.0).against("fork + exec of bash -c true"));
    report.push(Row::ratio("bash/exec of true, p99", &ours, 0.99, &theirs, 0.99, 4.0).against("the same").goal_only());
    Ok(())
}

/// Fifty at once, and the host memory of idle ones.
fn many(args: &BenchArgs, api: &mut Connection, report: &mut Report) -> Outcome {
    let begun = Instant::now();
    let made: Vec<Result<Duration, Failure>> = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..MANY)
            .map(|i| {
                scope.spawn(move || {
                    let mut api = Connection::open(args.port)?;
                    let begun = Instant::now();
                    api.create(&format!("bench-many-{i}"))?;
                    api.bash(&format!("bench-many-{i}"), "echo hi")?;
                    Ok(begun.elapsed())
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap_or_else(|_| Err(Failure::new("a worker panicked")))).collect()
    });
    let all = begun.elapsed();
    let made = made.into_iter().collect::<Result<Vec<_>, _>>()?;
    report.push(Row::plain("fifty at once: the last has its first output", all.as_secs_f64() * 1e3, "ms"));
    report.push(Row::plain("fifty at once: p50 of one", report::quantile(&made, 0.50).as_secs_f64() * 1e3, "ms"));
    let each = idle(api, (0..MANY).map(|i| format!("bench-many-{i}")))?;
    // The server closed the idle connection.
    *api = Connection::open(args.port)?;
    report.push(Row::plain("idle sandbox, PSS of all its processes: each of fifty", each, "MiB"));
    for i in 0..MANY {
        api.delete(&format!("bench-many-{i}"))?;
    }
    // A single sandbox bears the shared pages alone; so this is the number with the budget.
    api.create("bench-alone")?;
    let alone = idle(api, ["bench-alone".to_owned()].into_iter())?;
    *api = Connection::open(args.port)?;
    report.push(Row::at_most("idle sandbox, PSS of all its processes: the only one", alone, "MiB", 6.0));
    api.delete("bench-alone")
}

/// The host memory of each idle sandbox, in MiB.
fn idle(api: &mut Connection, names: impl Iterator<Item = String>) -> Result<f64, Failure> {
    let owners = names.map(|name| memory::first_id(api, &name)).collect::<Result<Vec<_>, _>>()?;
    std::thread::sleep(SETTLE);
    let mut total = 0;
    for first in &owners {
        total += memory::of_owners(*first)?;
    }
    Ok(total as f64 / owners.len() as f64 / f64::from(1 << 20))
}

fn soak(api: &mut Connection, report: &mut Report) -> Outcome {
    let begun = Instant::now();
    let mut failures = 0;
    for i in 0..SOAK {
        let name = format!("bench-soak-{i}");
        let used = api.create(&name).and_then(|()| api.bash(&name, "echo hi")).is_ok_and(|output| output == "hi\n");
        let deleted = api.delete(&name).is_ok();
        failures += usize::from(!(used && deleted));
    }
    report.push(Row::at_most("1,000 made, used and deleted in turn: failures", failures as f64, "", 0.0));
    report.push(Row::plain("1,000 in turn: each", begun.elapsed().as_secs_f64() * 1e3 / SOAK as f64, "ms"));
    Ok(())
}

/// Runs a helper program; its output is only shown on failure.
fn quietly(name: &str, args: &[&str], dir: &Path) -> Outcome {
    let output =
        program(name).args(args).current_dir(dir).stdin(Stdio::null()).output().attempt(|| format!("could not start {name}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(Failure::new(format!("{name} {} failed ({}): {said}", args.join(" "), output.status)))
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;

    fn only(words: &[&str]) -> Result<Vec<String>, String> {
        let command = BenchArgs::augment_args(Command::new("bench"));
        let matches = command.try_get_matches_from([&["bench"], words].concat()).map_err(|error| error.to_string())?;
        Ok(BenchArgs::from_arg_matches(&matches).map_err(|error| error.to_string())?.only)
    }

    #[test]
    fn groups_are_named_exactly() {
        assert_eq!(only(&["--only", "create,exec"]).unwrap(), ["create", "exec"]);
        assert!(only(&[]).unwrap().is_empty());
        for wrong in ["creat", "create exec", "create,", ""] {
            let message = only(&["--only", wrong]).unwrap_err();
            assert!(GROUPS.iter().all(|group| message.contains(group)), "{wrong:?}: {message}");
        }
    }
}
