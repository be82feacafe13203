//! `secret`: values that sandboxes use and never have.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{SecretCommand, SecretLsArgs, SecretReencryptArgs, SecretRmArgs, SecretSetArgs};
use crate::client::{Client, read_answer};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

const SECRETS: &str = "/api/v2/secrets";
/// More than any value.
const MAX_INPUT: u64 = 64 << 10;

pub(crate) async fn run(command: SecretCommand) -> Outcome {
    match command {
        SecretCommand::Set(args) => set(args).await,
        SecretCommand::Ls(args) => list(args).await,
        SecretCommand::Rm(args) => remove(args).await,
        SecretCommand::GenerateKey => {
            output::line(arenite_control::secrets::new_key());
            Ok(ExitCode::SUCCESS)
        }
        SecretCommand::Reencrypt(args) => reencrypt(args).await,
    }
}

async fn set(args: SecretSetArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let value = if args.keep_value { None } else { Some(value(&args)?) };
    let given = |texts: Vec<String>| (!texts.is_empty()).then_some(texts);
    let places = args.place.iter().map(|place| place.as_str().to_owned()).collect();
    let body =
        json!({ "value": value, "hosts": given(args.host.clone()), "places": given(places), "host_keys": host_keys(&args)? });
    let set: Value = client.put(&format!("{SECRETS}/{}", args.name), &body).await?;
    if args.format.json {
        output::json(&set);
    } else {
        output::line(args.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// The lines of a file, without comments.
fn host_keys(args: &SecretSetArgs) -> Result<Option<Vec<String>>, Failure> {
    let Some(path) = &args.host_keys else { return Ok(None) };
    let text = std::fs::read_to_string(path).attempt(|| format!("could not read {}", path.display()))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    Ok(Some(lines.map(str::to_owned).collect()))
}

/// From a variable, a file, or standard input. A line break at the end does not belong to it.
fn value(args: &SecretSetArgs) -> Result<String, Failure> {
    if let Some(variable) = &args.from_env {
        let missing = |_| Failure::new(format!("the variable {variable} is not set, or is not text")).exit_code(2);
        return std::env::var(variable).map_err(missing);
    }
    let text = match &args.from_file {
        Some(path) => std::fs::read_to_string(path).attempt(|| format!("could not read {}", path.display()))?,
        None if std::io::stdin().is_terminal() => {
            let question = console::Term::stderr();
            question.write_str(&format!("value of {}: ", args.name)).attempt(|| "could not ask for the value".into())?;
            question.read_secure_line().attempt(|| "could not read the value".into())?
        }
        None => {
            let mut text = String::new();
            std::io::stdin().take(MAX_INPUT).read_to_string(&mut text).attempt(|| "could not read standard input".into())?;
            text
        }
    };
    Ok(text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line)).to_owned())
}

async fn list(args: SecretLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(SECRETS, "secrets").await;
    args.output.form().show(Entries::named("secrets"), fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Secrets = read_answer(answer)?;
    if list.secrets.is_empty() {
        return Ok(View::empty("there are no secrets; set one with: arenite secret set NAME --host HOST"));
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["name", "hosts", "in", "value set"]).long(&["hosts"]);
    for secret in &list.secrets {
        rows.add_row(vec![
            secret.name.clone(),
            output::harmless(&secret.hosts.join(", ")),
            secret.places.join(", "),
            format!("{} ago", output::distance(secret.rotated_at, now)),
        ]);
    }
    Ok(rows.into())
}

async fn remove(args: SecretRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut code = ExitCode::SUCCESS;
    for name in args.names {
        match client.delete(&format!("{SECRETS}/{name}")).await {
            Ok(()) => output::line(name),
            // Without a server, every other name would fail in the same way.
            Err(failure) if failure.status().is_none() => return Err(failure),
            Err(failure) => code = failure.report(),
        }
    }
    Ok(code)
}

async fn reencrypt(args: SecretReencryptArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let done: Value = client.post(&format!("{SECRETS}/reencrypt"), &json!({})).await?;
    if args.format.json {
        output::json(&done);
    } else {
        output::line(format_args!("encrypted {} secrets with the first key", done["reencrypted"]));
    }
    Ok(ExitCode::SUCCESS)
}
