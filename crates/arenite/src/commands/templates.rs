//! `template ls` and `inspect`: what sandboxes are created from.

use serde_json::Value;

use crate::cli::{TemplateCommand, TemplateInspectArgs, TemplateLsArgs};
use crate::client::{Client, encoded, read_answer};
use crate::config::values::Size;
use crate::failure::{Failure, Outcome};
use crate::output::{Entries, Form, View};
use crate::{output, wire};

const TEMPLATES: &str = "/api/v2/templates";

pub(crate) async fn run(command: TemplateCommand) -> Outcome {
    match command {
        TemplateCommand::Ls(args) => ls(args).await,
        TemplateCommand::Inspect(args) => inspect(args).await,
    }
}

async fn ls(args: TemplateLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(TEMPLATES, "templates").await;
    args.output.form().show(Entries::named("templates"), fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Templates = read_answer(answer)?;
    let mut rows =
        output::table(&["name", "image", "cpu", "memory", "description"]).long(&["description"]).right(&["cpu", "memory"]);
    for template in list.templates {
        let resources = template.spec.resources;
        rows.add_row([
            template.name,
            template.spec.image,
            resources.cpu_millis.map_or("-".to_owned(), |millis| (f64::from(millis) / 1000.0).to_string()),
            resources.memory_bytes.map_or("-".to_owned(), |bytes| Size(bytes).short()),
            template.description,
        ]);
    }
    Ok(rows.into())
}

async fn inspect(args: TemplateInspectArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut found = Vec::with_capacity(args.names.len());
    for name in &args.names {
        found.push(client.get::<Value>(&format!("{TEMPLATES}/{}", encoded(name))).await?);
    }
    args.output.selected().unwrap_or(Form::Json).show_objects(found, "name")
}
