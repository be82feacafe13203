//! `network`: what a sandbox may reach.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{Network, NetworkCommand, NetworkSetArgs, NetworkShowArgs, NetworkSuggestArgs};
use crate::client::Client;
use crate::failure::{Failure, Outcome};
use crate::output;
use crate::output::Form;

const SANDBOXES: &str = "/api/v2/sandboxes";

pub(crate) async fn run(command: NetworkCommand) -> Outcome {
    match command {
        NetworkCommand::Show(args) => show(args).await,
        NetworkCommand::Set(args) => set(args).await,
        NetworkCommand::Suggest(args) => suggest(args).await,
    }
}

/// The network in a request, from the options of a command. None: the options name none.
pub(super) fn request(mode: Option<Network>, allow: &[String], deny: &[String]) -> Result<Option<Value>, Failure> {
    let name = match mode {
        Some(Network::None) => "none",
        Some(Network::Open) => "open",
        Some(Network::Observe) => "observe",
        Some(Network::Allowlist) => "allowlist",
        None if allow.is_empty() && deny.is_empty() => return Ok(None),
        None => "allowlist",
    };
    if allow.is_empty() && deny.is_empty() {
        return Ok(Some(json!(name)));
    }
    if matches!(mode, Some(Network::None | Network::Open)) {
        return Err(Failure::new(format!("the network {name} has no rules")).hint("leave it out, for an allowlist").exit_code(2));
    }
    Ok(Some(json!({ "mode": name, "allow": allow, "deny": deny })))
}

async fn show(args: NetworkShowArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let answer: Value = client.get(&format!("{SANDBOXES}/{}/network", args.sandbox)).await?;
    let form = args.output.form();
    if form != Form::Table {
        return form.show_objects(vec![answer], "mode");
    }
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    output::line(format!("mode: {}", text(&answer["mode"])));
    let floor = &answer["floor"];
    if let Some(mode) = floor["mode"].as_str() {
        output::line(format!("floor of the tenant: {mode}"));
    }
    for (what, rules) in
        [("allow", &answer["allow"]), ("deny", &answer["deny"]), ("floor allow", &floor["allow"]), ("floor deny", &floor["deny"])]
    {
        for rule in rules.as_array().into_iter().flatten() {
            output::line(format!("{what}: {}", output::harmless(&text(rule))));
        }
    }
    let now = Timestamp::now();
    let columns = ["when", "", "protocol", "name", "address", "count", "why", "process"];
    let mut rows = output::table(&columns).leave_out(&["protocol", "process"]);
    let events = answer["events"].as_array().into_iter().flatten();
    for event in events.filter(|event| event["kind"] == "decision" && !(args.refused && event["allowed"] == true)) {
        let when = event["time"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
        let address = event["address"].as_str().unwrap_or("-");
        rows.add_row(vec![
            when.map_or_else(|| "-".to_owned(), |when| format!("{} ago", output::distance(when, now))),
            if event["allowed"] == true { "allowed" } else { "refused" }.to_owned(),
            text(&event["protocol"]),
            output::harmless(event["name"].as_str().unwrap_or("-")),
            // A login by SSH may have neither.
            if event["port"] == 0 { address.to_owned() } else { format!("{address}:{}", event["port"]) },
            event["count"].to_string(),
            output::harmless(&why(event)),
            process(&event["process"]),
        ]);
    }
    output::rows(&rows);
    eprintln!("{} allowed and {} refused since the server started", answer["allowed"], answer["refused"]);
    Ok(ExitCode::SUCCESS)
}

/// The rule or the reason, and for SSH who logs in with which secret.
fn why(event: &Value) -> String {
    let why = event["rule"].as_str().or(event["reason"].as_str()).unwrap_or_default();
    match (event["ssh"]["user"].as_str(), event["ssh"]["secret"].as_str()) {
        (Some(user), Some(secret)) => format!("{why}: {user} with {secret}"),
        (None, Some(secret)) => format!("{why}: {secret}"),
        _ => why.to_owned(),
    }
}

fn process(process: &Value) -> String {
    match (process["name"].as_str(), process["pid"].as_u64()) {
        (Some(name), Some(pid)) => output::harmless(&format!("{name} ({pid})")),
        _ => "-".to_owned(),
    }
}

async fn set(args: NetworkSetArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let network = request(args.mode, &args.allow, &args.deny)?;
    let change = json!({ "network": network, "close_open": args.close_open });
    let answer: Value = client.patch(&format!("{SANDBOXES}/{}", args.sandbox), &change).await?;
    match args.format.json {
        true => output::json(&answer),
        false => output::line(&args.sandbox),
    }
    Ok(ExitCode::SUCCESS)
}

async fn suggest(args: NetworkSuggestArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let answer: Value = client.get(&format!("{SANDBOXES}/{}/network", args.sandbox)).await?;
    if args.format.json {
        output::json(&answer["suggested"]);
        return Ok(ExitCode::SUCCESS);
    }
    let rules: Vec<&str> = answer["suggested"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for rule in &rules {
        output::line(output::harmless(rule));
    }
    if rules.is_empty() {
        eprintln!("nothing was reached yet; let it work with: arenite network set {} --mode observe", args.sandbox);
    } else {
        let options: Vec<String> = rules.iter().map(|rule| format!("--allow {}", super::quoted(rule))).collect();
        eprintln!("set it with: arenite network set {} {}", args.sandbox, output::harmless(&options.join(" ")));
    }
    Ok(ExitCode::SUCCESS)
}
