//! `logs`: the output of a sandbox's main command, or its guest's log.

use std::process::ExitCode;

use arenite_model::SandboxName;
use futures_util::StreamExt;

use super::exec::{Command, Input};
use crate::cli::LogsArgs;
use crate::client::{Client, encoded};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output;

pub(crate) async fn logs(args: LogsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let file = if args.guest { "/var/log/arenite/guest.log" } else { "/var/log/arenite/main.log" };
    if args.follow {
        // -F waits for a log that does not exist yet.
        let line = format!("exec tail -n +1 -F {file} 2>/dev/null");
        return Command::new(args.sandbox.as_str(), line).stream(&client, Input::Closed).await;
    }
    let path = format!("/sandbox/{}/v1/file/download?path={}", args.sandbox, encoded(file));
    let mut log = match client.download(&path).await {
        Ok(log) => log,
        Err(failure) if failure.status() == Some(404) && exists(&client, &args.sandbox).await? => {
            let what =
                if args.guest { "its guest has written no log" } else { "it has no main command whose output could be logged" };
            eprintln!("there is nothing to show for {}: {what}", args.sandbox);
            return Ok(ExitCode::SUCCESS);
        }
        Err(failure) => return Err(failure),
    };
    while let Some(piece) = log.next().await {
        output::bytes(&piece.attempt(|| "the log broke off".into())?);
    }
    Ok(ExitCode::SUCCESS)
}

async fn exists(client: &Client, sandbox: &SandboxName) -> Result<bool, Failure> {
    match client.get::<serde_json::Value>(&format!("/api/v2/sandboxes/{sandbox}")).await {
        Ok(_) => Ok(true),
        Err(failure) if failure.status() == Some(404) => Ok(false),
        Err(failure) => Err(failure),
    }
}
