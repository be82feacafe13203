//! `model`: routes to models.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::cli::{ModelCommand, ModelLsArgs, ModelRmArgs, ModelSetArgs, ModelShowArgs, PriceOf};
use crate::client::{Client, read_answer};
use crate::failure::{Failure, Outcome};
use crate::output::{Entries, Form, View};
use crate::{output, wire};

const MODELS: &str = "/api/v2/models";

pub(crate) async fn run(command: ModelCommand) -> Outcome {
    match command {
        ModelCommand::Set(args) => set(args).await,
        ModelCommand::Ls(args) => list(args).await,
        ModelCommand::Show(args) => show(args).await,
        ModelCommand::Rm(args) => remove(args).await,
    }
}

async fn set(args: ModelSetArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let price =
        |price: &PriceOf| json!({ "models": price.models, "input": price.input, "output": price.output, "cached": price.cached });
    let request = json!({
        "upstream": args.upstream,
        "dialect": args.dialect,
        "secret": args.secret,
        "models": args.models,
        "budget": { "tokens": args.budget_tokens, "cost_usd": args.budget_usd },
        "budget_each": { "tokens": args.each_tokens, "cost_usd": args.each_usd },
        "prices": args.price.iter().map(price).collect::<Vec<_>>(),
        "requests_per_minute": args.rate,
        "timeout_seconds": args.timeout,
    });
    let set: Value = client.put(&format!("{MODELS}/{}", args.name), &request).await?;
    if args.format.json {
        output::json(&set);
        return Ok(ExitCode::SUCCESS);
    }
    output::line(&args.name);
    let base = format!("{}/models/{}", client.server(), args.name);
    let base = if args.dialect == "openai" { format!("{base}/v1") } else { base };
    eprintln!("its clients use the base URL {base}");
    Ok(ExitCode::SUCCESS)
}

async fn list(args: ModelLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(MODELS, "models").await;
    args.output.form().show(Entries::named("models"), fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::ModelRoutes = read_answer(answer)?;
    if list.models.is_empty() {
        return Ok(View::empty("there are no model routes; add one with: arenite model set NAME --upstream URL"));
    }
    let mut rows = output::table(&["name", "dialect", "upstream", "secret", "models"]).long(&["upstream", "models"]);
    for route in list.models {
        let models = if route.models.is_empty() { "all".to_owned() } else { output::harmless(&route.models.join(", ")) };
        let secret = route.secret.unwrap_or_else(|| "none".to_owned());
        rows.add_row(vec![route.name, route.dialect, output::harmless(&route.upstream), secret, models]);
    }
    Ok(rows.into())
}

async fn show(args: ModelShowArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let shown: Value = client.get(&format!("{MODELS}/{}", args.name)).await?;
    let form = args.output.form();
    if form != Form::Table {
        return form.show_objects(vec![shown], "name");
    }
    let route: wire::ModelRoute = read_answer(shown)?;
    output::line(format!("upstream   {} ({})", output::harmless(&route.upstream), route.dialect));
    output::line(format!("budget     {}; for each sandbox or worker {}", limits(&route.budget), limits(&route.budget_each)));
    if let Some(used) = route.usage {
        output::line(format!(
            "used       {} tokens in, {} out, ${:.4}; {} calls, {} of them estimated",
            used.prompt_tokens, used.completion_tokens, used.cost_usd, used.calls, used.estimated_calls
        ));
    }
    Ok(ExitCode::SUCCESS)
}

fn limits(budget: &wire::ModelBudget) -> String {
    let tokens = budget.tokens.map(|tokens| format!("{tokens} tokens"));
    let dollars = budget.cost_usd.map(|dollars| format!("${dollars}"));
    let limits: Vec<String> = tokens.into_iter().chain(dollars).collect();
    if limits.is_empty() { "unlimited".to_owned() } else { limits.join(" and ") }
}

async fn remove(args: ModelRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut code = ExitCode::SUCCESS;
    for name in args.names {
        match client.delete(&format!("{MODELS}/{name}")).await {
            Ok(()) => output::line(name),
            // Without a server, every other name would fail in the same way.
            Err(failure) if failure.status().is_none() => return Err(failure),
            Err(failure) => code = failure.report(),
        }
    }
    Ok(code)
}
