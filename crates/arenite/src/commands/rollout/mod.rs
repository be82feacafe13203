//! `rollout run`: runs an agent over many tasks.

mod progress;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use arenite_rollout::{Formats, Options, RolloutError, Status, Stop, Summary};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{ResultFormat, RolloutCommand, RolloutRunArgs};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;
use progress::Shown;

/// The exit code of a shell for a program that Ctrl-C ended: 128 + SIGINT.
const INTERRUPTED: u8 = 130;

pub(crate) async fn rollout(command: RolloutCommand) -> Outcome {
    match command {
        RolloutCommand::Run(args) => run(*args).await,
    }
}

async fn run(args: RolloutRunArgs) -> Outcome {
    let has = |format| args.format.contains(&format);
    let defaults = Options::new(&args.tasks, &args.agent, &args.out, &args.server.server);
    let options = Options {
        api_key: args.server.api_key.as_ref().map(|key| key.0.clone()),
        ca: args.server.ca.clone(),
        workers: args.workers as usize,
        ramp: !args.no_ramp,
        attempts: args.attempts,
        agent_retries: args.retry_agent,
        timeout: args.timeout.0,
        patience: args.patience.0,
        limit: args.limit.map(|limit| limit as usize),
        fresh: args.fresh,
        formats: Formats { jsonl: has(ResultFormat::Jsonl), parquet: has(ResultFormat::Parquet) },
        ..defaults
    };
    let stop = Stop::default();
    let shown = Arc::new(Shown::new());
    tokio::spawn(heed_signals(stop.clone(), Arc::clone(&shown)).attempt(|| "could not listen to signals".into())?);
    let run = arenite_rollout::run(options, stop, Arc::clone(&shown) as _);
    let outcome = shown.while_it_runs(run).await;
    let summary = outcome.map_err(|error| failure(&error, &shown))?;
    if args.output.json {
        let mut value = serde_json::to_value(&summary).attempt(|| "could not write the summary".into())?;
        value["out"] = json!(args.out);
        output::json(&value);
    } else {
        print(&summary, &args);
    }
    // Tasks without an outcome fail the command, so that a caller that needs all of them notices.
    Ok(if summary.count(Status::Infrastructure) > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The first signal stops the run gracefully, the second at once.
fn heed_signals(stop: Stop, shown: Arc<Shown>) -> std::io::Result<impl Future<Output = ()>> {
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut terminations = signal(SignalKind::terminate())?;
    Ok(async move {
        for token in [&stop.gently, &stop.at_once] {
            tokio::select! {
                _ = interrupts.recv() => {}
                _ = terminations.recv() => {}
            }
            if !stop.gently.is_cancelled() {
                shown.say("stopping: agents are ended, and what they have in sandboxes is removed; Ctrl-C again: at once");
            }
            token.cancel();
        }
    })
}

fn failure(error: &RolloutError, shown: &Shown) -> Failure {
    let code = match error {
        RolloutError::Interrupted => INTERRUPTED,
        RolloutError::BadTasks { .. } | RolloutError::NoTasks { .. } | RolloutError::Connector(_) | RolloutError::BadKey => 2,
        _ => 1,
    };
    let message = match (error, shown.last()) {
        (RolloutError::Interrupted, Some(last)) => format!("stopped; {} of {} tasks are done", last.done, last.total),
        _ => error.to_string(),
    };
    Failure::new(message).maybe_hint(error.hint()).exit_code(code)
}

fn print(summary: &Summary, args: &RolloutRunArgs) {
    let mut table = output::table(&["result", "tasks", "share"]);
    for (status, count) in &summary.by_status {
        let share = *count as f64 * 100.0 / summary.tasks.max(1) as f64;
        table.add_row(vec![output::state(status.name()), count.to_string().into(), format!("{share:.1}%").into()]);
    }
    output::rows(&table);
    output::line("");
    let rate = summary.success_rate.map_or_else(|| "-".to_owned(), |rate| format!("{:.1}%", rate * 100.0));
    let left_out = match summary.count(Status::Infrastructure) {
        0 => String::new(),
        failed => format!("  ({failed} left out that the infrastructure failed; run the same command again for them)"),
    };
    output::line(format_args!("success rate  {rate}{left_out}"));
    if let Some((median, p95)) = summary.median_ms.zip(summary.p95_ms) {
        let [median, p95] = [median, p95].map(|ms| duration(Duration::from_millis(ms)));
        output::line(format_args!("durations     median {median}, p95 {p95}"));
    }
    let lost = if summary.lost > 0 { format!(", and {} cut short", summary.lost) } else { String::new() };
    output::line(format_args!("attempts      {}{lost}", summary.attempts));
    let pace = summary.tasks_per_minute.map(|pace| format!(", {pace:.1} tasks a minute")).unwrap_or_default();
    output::line(format_args!("wall time     {}{pace}", duration(Duration::from_millis(summary.wall_ms))));
    output::line(format_args!("steps         recorded of {} of {} tasks", summary.with_steps, summary.tasks));
    output::line(format_args!("files         {}: {}", args.out.display(), summary.files.join(", ")));
}

/// Formats a duration in at most two units.
fn duration(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..60 => format!("{:.1} s", time.as_secs_f64()),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short_and_exact_enough() {
        let shown = |ms| duration(Duration::from_millis(ms));
        assert_eq!([shown(5), shown(1499), shown(61_000), shown(7_260_000)], ["5 ms", "1.5 s", "1 min 1 s", "2 h 1 min"]);
    }
}
