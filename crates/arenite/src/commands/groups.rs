//! `group create`, `ls`, `renew` and `rm`.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::sandbox::each;
use crate::cli::{GroupCommand, GroupCreateArgs, GroupLsArgs, GroupRenewArgs, GroupRmArgs};
use crate::client::{Client, read_answer};
use crate::failure::{Failure, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

const GROUPS: &str = "/api/v2/groups";

pub(crate) async fn group(command: GroupCommand) -> Outcome {
    match command {
        GroupCommand::Create(args) => create(args).await,
        GroupCommand::Ls(args) => ls(args).await,
        GroupCommand::Renew(args) => renew(args).await,
        GroupCommand::Rm(args) => rm(args).await,
    }
}

async fn create(args: GroupCreateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({ "name": args.name, "ttl_seconds": args.ttl.0.as_secs() });
    show(args.format.json, client.post(GROUPS, &request).await?)
}

async fn renew(args: GroupRenewArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({ "ttl_seconds": args.ttl.map(|ttl| ttl.0.as_secs()) });
    show(args.format.json, client.post(&format!("{GROUPS}/{}/renew", args.name), &request).await?)
}

/// Prints the name to stdout, and the end of its lease for people.
fn show(as_json: bool, group: Value) -> Outcome {
    if as_json {
        output::json(&group);
        return Ok(ExitCode::SUCCESS);
    }
    let group: wire::Group = read_answer(group)?;
    output::line(&group.name);
    eprintln!("its lease ends in {}", output::distance(Timestamp::now(), group.expires_at));
    Ok(ExitCode::SUCCESS)
}

async fn ls(args: GroupLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(GROUPS, "groups").await;
    args.output.form().show(Entries::named("groups"), fetch, view).await
}

fn view(answer: Value) -> Result<View, Failure> {
    let list: wire::Groups = read_answer(answer)?;
    if list.groups.is_empty() {
        return Ok(View::empty("there are no groups; create one with: arenite group create NAME"));
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["name", "state", "sandboxes", "lease", "ends in", "created"]);
    for group in &list.groups {
        rows.add_row(vec![
            group.name.clone(),
            if group.ending { "ending" } else { "open" }.to_owned(),
            group.sandboxes.to_string(),
            format!("{}s", group.ttl_seconds),
            output::distance(now, group.expires_at),
            format!("{} ago", output::distance(group.created_at, now)),
        ]);
    }
    Ok(rows.into())
}

async fn rm(args: GroupRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let names = args.names.into_iter().map(String::from).collect();
    each(names, async |name| client.delete(&format!("{GROUPS}/{name}")).await).await
}
