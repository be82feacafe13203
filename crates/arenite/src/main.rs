//! `arenite`: the binary. Owns the command line, the configuration and the wiring of the other crates. Never holds logic that
//! another crate could hold.

#![forbid(unsafe_code)]

mod cli;
mod client;
mod commands;
mod config;
mod doctor;
mod failure;
mod guest_description;
mod names;
mod output;
mod serve;
mod wire;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use cli::{Cli, Command, ImageCommand};
use failure::{Attempt, Outcome};

fn main() -> ExitCode {
    // In a sandbox, this file also has another name.
    if arenite_guest::aio::is_meant(std::env::args_os().next().as_deref()) {
        return arenite_guest::aio::main();
    }
    // These start once for every sandbox and every server, in processes that must be small and have one thread: they come
    // before the parser, the runtime and everything else.
    match std::env::args_os().nth(1).as_deref().and_then(|arg| arg.to_str()) {
        Some("guest") => return guest(),
        Some("launcher") => arenite_isolation::launcher::main(),
        Some("spawner") => arenite_isolation::spawner::main(),
        Some("egress") => return arenite_engine::egress_main(),
        _ => {}
    }
    commands::shell::complete();
    let matches = Cli::command().get_matches();
    let cli = match Cli::from_arg_matches(&matches) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    match run(cli, &matches) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn guest() -> ExitCode {
    match arenite_guest::main() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: the guest could not run: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli, matches: &clap::ArgMatches) -> Outcome {
    match cli.command {
        Command::Serve(args) => {
            let (_, matches) = matches.subcommand().expect("the parser found a command");
            serve::run(*args, matches)
        }
        Command::Store(command) => on_runtime(commands::store::run(command)),
        Command::RecoverStorage(args) => commands::storage::recover(&args),
        Command::Reset(args) => match &args.sandbox {
            Some(sandbox) => on_runtime(commands::states::reset(sandbox, &args.server)),
            None => commands::reset::reset(&args),
        },
        Command::Service(command) => commands::service::run(&command),
        Command::Completions(args) => commands::shell::completions(&args),
        Command::Man(args) => commands::shell::man(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Image(ImageCommand::Build(args)) => commands::image::build(&args),
        Command::Image(ImageCommand::Ls(args)) => commands::image::ls(&args),
        Command::Image(ImageCommand::Rm(args)) => commands::image::rm(&args),
        Command::Image(ImageCommand::Prune(args)) => commands::image::prune(&args),
        Command::Image(ImageCommand::Inspect(args)) => commands::image::inspect(&args),
        Command::Image(ImageCommand::History(args)) => commands::image::history(&args),
        Command::Image(ImageCommand::Pull(args)) => commands::registry::pull(&args),
        Command::Image(ImageCommand::Push(args)) => commands::registry::push(&args),
        Command::Image(ImageCommand::Save(args)) => commands::image::save(&args),
        Command::Image(ImageCommand::Load(args)) => commands::image::load(&args),
        Command::Vm(command) => commands::vm::run(&command),
        Command::Checkpoint(args) => on_runtime(commands::states::checkpoint(args)),
        Command::History(args) => on_runtime(commands::states::history(args)),
        Command::Rollback(args) => on_runtime(commands::states::rollback(args)),
        Command::Diff(args) => on_runtime(commands::states::diff(args)),
        Command::Fork(args) => on_runtime(commands::states::fork(args)),
        Command::Snapshot(command) => on_runtime(commands::states::snapshot(command)),
        Command::Group(command) => on_runtime(commands::groups::group(command)),
        Command::Create(args) => on_runtime(commands::sandbox::create(*args)),
        Command::Ls(args) => on_runtime(commands::sandbox::ls(args)),
        Command::Inspect(args) => on_runtime(commands::sandbox::inspect(args)),
        Command::Template(command) => on_runtime(commands::templates::run(command)),
        Command::Top(args) => on_runtime(commands::top::top(args)),
        Command::Usage(args) => on_runtime(commands::usage::usage(args)),
        Command::Open(args) => on_runtime(commands::open::open(args)),
        Command::Demo(args) => on_runtime(commands::demo::demo(args)),
        Command::Exec(args) => on_runtime(commands::exec::exec(args)),
        Command::Mcp(args) => on_runtime(commands::mcp::mcp(args)),
        Command::Cp(args) => on_runtime(commands::copy::copy(args)),
        Command::Logs(args) => on_runtime(commands::logs::logs(args)),
        Command::Rm(args) => on_runtime(commands::sandbox::rm(args)),
        Command::Set(args) => on_runtime(commands::sandbox::set(args)),
        Command::Pause(args) => on_runtime(commands::sandbox::pause(args)),
        Command::Resume(args) => on_runtime(commands::sandbox::resume(args)),
        Command::Start(args) => on_runtime(commands::sandbox::start(args)),
        Command::Volume(command) => on_runtime(commands::volumes::run(command)),
        Command::Network(command) => on_runtime(commands::network::run(command)),
        Command::Node(command) => on_runtime(commands::node::run(command)),
        Command::Quarantine(command) => on_runtime(commands::quarantine::run(command)),
        Command::Tenant(command) => on_runtime(commands::tenants::tenant(command)),
        Command::Key(command) => on_runtime(commands::tenants::key(command)),
        Command::Events(args) => on_runtime(commands::events::events(args)),
        Command::Secret(command) => on_runtime(commands::secret::run(command)),
        Command::Webhook(command) => on_runtime(commands::webhook::run(command)),
        Command::Model(command) => on_runtime(commands::model::run(command)),
        Command::Audit(args) => on_runtime(commands::tenants::audit(args)),
        Command::Trajectory(command) => on_runtime(commands::trajectory::run(command)),
        Command::Rag(command) => commands::rag::run(command),
        Command::Explore(args) => on_runtime(commands::explore::explore(*args)),
        Command::Rollout(command) => on_runtime(commands::rollout::rollout(command)),
        Command::Guest | Command::Launcher => unreachable!("dispatched before the parser"),
    }
}

/// Runs a client's command. It waits for one server, so one thread suffices.
fn on_runtime(command: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.attempt(|| "could not start".into())?;
    let outcome = runtime.block_on(command);
    // An abandoned read of stdin must not delay the exit.
    runtime.shutdown_background();
    outcome
}
