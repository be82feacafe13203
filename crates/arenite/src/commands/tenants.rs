//! `tenant`, `key` and `audit`.

use std::collections::BTreeMap;
use std::process::ExitCode;

use arenite_control::tenants::Quota;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::cli::{
    AuditArgs, KeyCommand, KeyCreateArgs, KeyLsArgs, KeyRevokeArgs, KeyRotateArgs, TenantCommand, TenantCreateArgs, TenantLsArgs,
    TenantRmArgs, TenantSetArgs,
};
use crate::client::{Client, encoded, read_answer};
use crate::config::values::{MinTier, Size};
use crate::failure::{Attempt, Failure, Outcome};
use crate::output::{Entries, View};
use crate::{output, wire};

const TENANTS: &str = "/api/v2/tenants";
const KEYS: &str = "/api/v2/keys";
const AUDIT: &str = "/api/v2/audit";

pub(crate) async fn tenant(command: TenantCommand) -> Outcome {
    match command {
        TenantCommand::Create(args) => create_tenant(args).await,
        TenantCommand::Ls(args) => list_tenants(args).await,
        TenantCommand::Set(args) => set_tenant(args).await,
        TenantCommand::Rm(args) => remove_tenant(args).await,
    }
}

pub(crate) async fn key(command: KeyCommand) -> Outcome {
    match command {
        KeyCommand::Create(args) => create_key(args).await,
        KeyCommand::Ls(args) => list_keys(args).await,
        KeyCommand::Rotate(args) => rotate_key(args).await,
        KeyCommand::Revoke(args) => revoke_keys(args).await,
    }
}

async fn create_tenant(args: TenantCreateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let created: Value = client.post(TENANTS, &json!({ "name": args.name })).await?;
    if args.format.json {
        output::json(&created);
    } else {
        output::line(&args.name);
        eprintln!("it has no key yet: arenite key create --tenant {} --role admin NAME", args.name);
    }
    Ok(ExitCode::SUCCESS)
}

async fn list_tenants(args: TenantLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let fetch = async || client.get_all(TENANTS, "tenants").await;
    args.output.form().show(Entries::named("tenants"), fetch, tenants_view).await
}

fn tenants_view(answer: Value) -> Result<View, Failure> {
    let list: wire::Tenants = read_answer(answer)?;
    let now = Timestamp::now();
    let mut rows = output::table(&["name", "created", "sandboxes", "cpu", "memory", "disk", "keys", "state"]);
    for tenant in &list.tenants {
        rows.add_row(vec![
            tenant.name.clone(),
            format!("{} ago", output::distance(tenant.created_at, now)),
            of_limit(tenant, Quota::Sandboxes, |number| number.to_string()),
            of_limit(tenant, Quota::CpuMillis, |millis| (millis as f64 / 1000.0).to_string()),
            of_limit(tenant, Quota::MemoryBytes, |bytes| Size(bytes).short()),
            of_limit(tenant, Quota::DiskBytes, |bytes| Size(bytes).short()),
            tenant.keys.to_string(),
            if tenant.disabled { "disabled" } else { "enabled" }.to_owned(),
        ]);
    }
    Ok(rows.into())
}

/// What a tenant's sandboxes reserve, and its limit.
fn of_limit(tenant: &wire::Tenant, quota: Quota, text: impl Fn(u64) -> String) -> String {
    let Some(found) = tenant.quotas.iter().find(|found| found.quota == quota) else { return "-".to_owned() };
    let used = text(found.used.unwrap_or_default());
    found.limit.map_or_else(|| used.clone(), |limit| format!("{used} of {}", text(limit)))
}

async fn set_tenant(args: TenantSetArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let limits: BTreeMap<Quota, Option<u64>> = args.limit.into_iter().map(|of| (of.quota, of.limit)).collect();
    let mut change = json!({ "disabled": args.disabled, "limits": limits });
    if let Some(MinTier(minimum)) = args.min_tier {
        change["min_tier"] = json!(minimum);
    }
    for (field, given) in [("network_default", args.network_default), ("network_floor", args.network_floor)] {
        if let Some(text) = given {
            change[field] = network(&text)?;
        }
    }
    let changed: Value = client.patch(&format!("{TENANTS}/{}", args.name), &change).await?;
    if args.format.json {
        output::json(&changed);
    } else {
        output::line(&args.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// The network in an option: a mode, an object, or the name of a file with one after `@`. `default` stands for none.
fn network(text: &str) -> Result<Value, Failure> {
    let content = match text.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path).attempt(|| format!("could not read {path}"))?,
        None => text.to_owned(),
    };
    match content.trim() {
        "default" => Ok(Value::Null),
        object if object.starts_with('{') => serde_json::from_str(object).attempt(|| "the network is not valid JSON".to_owned()),
        mode => Ok(json!(mode)),
    }
}

async fn remove_tenant(args: TenantRmArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let removed: Value = client.delete_with(&format!("{TENANTS}/{}?force={}", args.name, args.force)).await?;
    if args.format.json {
        output::json(&removed);
    } else {
        output::line(&args.name);
    }
    Ok(ExitCode::SUCCESS)
}

async fn create_key(args: KeyCreateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({
        "tenant": args.tenant,
        "name": args.name,
        "role": args.role,
        "expires_in_seconds": args.expires.map(|time| time.0.as_secs()),
        "bound": args.bind,
        "operator": args.operator,
    });
    show_new_key(args.format.json, client.post(KEYS, &request).await?)
}

/// Prints the key alone to stdout, so that KEY=$(arenite key create …) works.
fn show_new_key(as_json: bool, created: Value) -> Outcome {
    if as_json {
        output::json(&created);
        return Ok(ExitCode::SUCCESS);
    }
    let created: wire::NewKey = read_answer(created)?;
    output::line(&created.key);
    let about = &created.about;
    let end = about.expires_at.map_or_else(String::new, |end| format!(", until {end}"));
    eprintln!("key {} of tenant {} with the role {}{end}; it can't be shown again", about.id, about.tenant, about.role);
    Ok(ExitCode::SUCCESS)
}

async fn list_keys(args: KeyLsArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let path = args.tenant.map_or_else(|| KEYS.to_owned(), |tenant| format!("{KEYS}?tenant={tenant}"));
    let fetch = async || client.get_all(&path, "keys").await;
    args.output.form().show(Entries { list: "keys", names: &["id"] }, fetch, keys_view).await
}

fn keys_view(answer: Value) -> Result<View, Failure> {
    let list: wire::Keys = read_answer(answer)?;
    if list.keys.is_empty() {
        return Ok(View::empty("there are no keys"));
    }
    let now = Timestamp::now();
    let mut rows = output::table(&["id", "name", "role", "bound to", "created", "expires", "state"]).long(&["name", "bound to"]);
    for key in &list.keys {
        rows.add_row(vec![
            key.id.clone(),
            output::harmless(&key.name),
            if key.operator { "operator".to_owned() } else { key.role.clone() },
            if key.bound.is_empty() { "-".to_owned() } else { output::harmless(&key.bound.join(", ")) },
            format!("{} ago", output::distance(key.created_at, now)),
            key.expires_at.map_or_else(|| "-".to_owned(), |end| end.to_string()),
            key.state.clone(),
        ]);
    }
    Ok(rows.into())
}

async fn rotate_key(args: KeyRotateArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let request = json!({ "overlap_seconds": args.overlap.0.as_secs() });
    show_new_key(args.format.json, client.post(&format!("{KEYS}/{}/rotate", args.id), &request).await?)
}

async fn revoke_keys(args: KeyRevokeArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut revoked = Vec::new();
    let mut code = ExitCode::SUCCESS;
    for id in args.ids {
        match client.delete(&format!("{KEYS}/{id}")).await {
            Ok(()) if args.format.json => revoked.push(id),
            Ok(()) => output::line(id),
            // Without a server, every other id would fail in the same way.
            Err(failure) if failure.status().is_none() => return Err(failure),
            Err(failure) => code = failure.report(),
        }
    }
    if args.format.json {
        output::json(&json!({ "revoked": revoked }));
    }
    Ok(code)
}

pub(crate) async fn audit(args: AuditArgs) -> Outcome {
    let client = Client::connect_to(&args.server)?;
    let mut path = format!("{AUDIT}?limit={}", args.limit);
    let (since, until) = (args.since.map(|time| time.to_string()), args.until.map(|time| time.to_string()));
    let tenant = args.tenant.map(String::from);
    for (name, value) in [("tenant", tenant), ("since", since), ("until", until), ("cursor", args.cursor)] {
        if let Some(value) = value {
            path += &format!("&{name}={}", encoded(&value));
        }
    }
    args.output.form().show(client.get(&path).await?, Entries { list: "rows", names: &["object", "action"] }, audit_view)
}

fn audit_view(answer: Value) -> Result<View, Failure> {
    let audit: wire::Audit = read_answer(answer)?;
    let header = ["time", "tenant", "key", "action", "object", "client", "outcome"];
    let mut rows = output::table(&header).long(&["object"]).leave_out(&["client", "tenant", "key"]);
    for row in audit.rows {
        let tenant = row.tenant.unwrap_or_else(|| "-".to_owned());
        let texts = [tenant, row.key, row.action, row.object, row.client, row.outcome];
        let cells = std::iter::once(row.time.to_string()).chain(texts.iter().map(|text| output::harmless(text)));
        rows.add_row(cells.collect::<Vec<_>>());
    }
    Ok(rows.into())
}
