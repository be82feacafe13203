//! `trajectory replay`: runs recorded steps again in a new sandbox, and reports where their answers first differ.

mod command;
mod start;
mod steps;
mod target;

use std::process::ExitCode;

use arenite_trajectory::replay::{Divergence, Ids, compare, rule, skipped};
use arenite_trajectory::{Body, tool};
use bytes::Bytes;
use serde_json::{Value, json};

use super::trajectory::find;
use crate::cli::TrajectoryReplayArgs;
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::output;
use start::StartPoint;
use steps::Steps;
use target::ReplayTarget;

/// The exit code of a replay that failed: 1 means that something differs.
const NOT_REPLAYED: u8 = 2;

pub(super) async fn replay(args: TrajectoryReplayArgs) -> Outcome {
    run(args).await.map_err(|failure| failure.exit_code(NOT_REPLAYED))
}

async fn run(args: TrajectoryReplayArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let trajectory = find(&client, &args.trajectory).await?;
    let asked = args.from_step.or(args.until).filter(|_| !args.from_start && args.on.is_none());
    let start = match asked {
        Some(asked) => start::nearest(&client, &trajectory, asked, args.until).await?,
        None => None,
    };
    let (after, origin) = (start.as_ref().map_or(0, |point| point.after), args.chosen.origin.as_deref().unwrap_or("agent"));
    let mut steps = Steps::fetch(&client, &trajectory, after, args.until, origin).await?;
    let mut ids = Ids::default();
    let image = args.on.as_ref().map(|image| image.as_str());
    let mut target = ReplayTarget::make(&client, &mut steps, start.as_ref(), image, &mut ids).await?;
    if !args.format.json {
        match (&start, asked) {
            (Some(point), _) => eprintln!("replaying {trajectory} in {target}, from {point}"),
            (None, Some(asked)) => {
                eprintln!("replaying {trajectory} in {target}, from its beginning: no state before step {asked} can be used");
            }
            (None, None) => eprintln!("replaying {trajectory} in {target}"),
        }
    }
    // An interrupted replay leaves no sandbox behind.
    let done = tokio::select! {
        done = all(&client, &mut steps, &mut target, &mut ids, &args) => done,
        _ = tokio::signal::ctrl_c() => Err(Failure::new("the replay was ended from the keyboard")),
    };
    let removed = match args.keep {
        true => Ok(()),
        false => target.remove(&client).await,
    };
    let report = done?;
    if let Err(failure) = removed {
        eprintln!("warning: {target} could not be removed: {failure}");
    }
    report.tell(&trajectory, &target, start.as_ref(), &args);
    Ok(if !report.divergences.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

#[derive(Default)]
struct Report {
    replayed: u64,
    skipped: Vec<Value>,
    /// The step, its tool, and where it differs. More than one only if the replay continues after differences.
    divergences: Vec<(u64, String, Divergence)>,
}

async fn all(
    client: &Client,
    steps: &mut Steps<'_>,
    target: &mut ReplayTarget,
    ids: &mut Ids,
    args: &TrajectoryReplayArgs,
) -> Result<Report, Failure> {
    let (quiet, keep_going) = (args.format.json, args.keep_going);
    let mut report = Report::default();
    while let Some(step) = steps.next().await? {
        let why = match skipped(&step) {
            Some(why) => Some(why),
            None if !kept(step.arguments.as_ref()) || step.calls.iter().any(|call| !kept(call.arguments.as_ref())) => {
                Some("its arguments were too large to be kept")
            }
            None => None,
        };
        if let Some(why) = why {
            if !quiet {
                eprintln!("step {} ({}) is left out: {why}", step.step, output::harmless(&tool(&step.action)));
            }
            report.skipped.push(json!({ "step": step.step, "action": step.action, "why": why }));
            continue;
        }
        if step.dialect == "cli" {
            if let Some(sandbox) = target.sandbox()
                && let Some(found) = command::again(client, steps, sandbox, &step, ids).await?
            {
                report.divergences.push((step.step, tool(&step.action), found));
                if !keep_going {
                    report.replayed += 1;
                    break;
                }
            }
            report.replayed += 1;
            continue;
        }
        let answered = kept(step.observation.as_ref());
        let recorded = match answered {
            true => steps.body(step.step, "observation", step.observation.as_ref()).await?,
            false => Bytes::new(),
        };
        let arguments = steps.body(step.step, "arguments", step.arguments.as_ref()).await?;
        target.prepare(client, &step, &arguments, &recorded).await?;
        let (status, now) = target.call(client, &step, arguments, ids).await?;
        report.replayed += 1;
        if let (Ok(recorded), Ok(now)) = (serde_json::from_slice(&recorded), serde_json::from_slice(&now)) {
            ids.learn_from(&recorded, &now);
        }
        // Only the status is known of an answer that was not stored.
        let now: &[u8] = if answered { &now } else { b"" };
        let found = compare(rule(&step.action), ids, (step.status, &recorded), (Some(status), now));
        if let Some(divergence) = found {
            report.divergences.push((step.step, tool(&step.action), divergence));
            if !keep_going {
                break;
            }
        }
    }
    Ok(report)
}

fn kept(body: Option<&Body>) -> bool {
    !matches!(body, Some(Body::Blob(blob)) if !blob.kept)
}

impl Report {
    fn tell(&self, trajectory: &str, target: &ReplayTarget, start: Option<&StartPoint>, args: &TrajectoryReplayArgs) {
        if args.format.json {
            let told = |(step, action, found): &(u64, String, Divergence)| json!({ "step": step, "tool": action, "field": found.field, "recorded": found.recorded, "now": found.now });
            let divergences: Vec<Value> = self.divergences.iter().map(told).collect();
            let (kind, name) = target.name();
            return output::json(&json!({
                "trajectory": trajectory, kind: name, "from": start.map(StartPoint::json), "replayed": self.replayed, "skipped": self.skipped,
                "divergence": divergences.first(), "divergences": divergences,
            }));
        }
        for (step, action, found) in &self.divergences {
            output::line(format_args!(
                "step {step} ({}) differs at {}",
                output::harmless(action),
                output::harmless(&found.field)
            ));
            output::line(format_args!("  recorded: {}", output::harmless(&found.recorded)));
            output::line(format_args!("  now:      {}", output::harmless(&found.now)));
        }
        let end = match self.divergences.len() {
            0 => "without a difference".to_owned(),
            _ if !args.keep_going => "up to there".to_owned(),
            1 => "with one difference".to_owned(),
            several => format!("with {several} differences"),
        };
        output::line(format_args!("{} steps were run again {end}, {} left out", self.replayed, self.skipped.len()));
    }
}
