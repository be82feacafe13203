//! `/v1/openapi.json`: the descriptions of the guest's services, in one document; and the documents of the other interfaces.

use http::StatusCode;
use serde_json::{Value, json};
use utoipa::OpenApi;

use crate::GuestDescription;
use crate::auth::AuthApi;
use crate::exchange::{Answered, Exchange};
use crate::refusal::json_response;
use crate::{operation, routes};

/// All documents, by the names of their golden files.
pub fn documents(guest: &GuestDescription) -> Vec<(&'static str, Value)> {
    vec![("openapi", document(guest)), ("server-openapi", of_control()), ("agentflow-openapi", agentflow_document())]
}

/// `/v1/openapi.json`, made at the first request.
pub(crate) async fn of_sandbox(exchange: &mut Exchange) -> Answered {
    let gateway = &exchange.gateway;
    let mut document = gateway.document.get_or_init(|| document(&gateway.config.guest)).clone();
    let base = format!("{}{}", exchange.context.base_url(), prefix(exchange.parts.uri.path()));
    document["servers"] = json!([{ "url": base }]);
    Ok(json_response(StatusCode::OK, &document))
}

/// `/api/v2/openapi.json`.
pub(crate) async fn of_server(exchange: &mut Exchange) -> Answered {
    let mut document = of_control();
    document["servers"] = json!([{ "url": exchange.context.base_url() }]);
    Ok(json_response(StatusCode::OK, &document))
}

/// The server's own interfaces.
fn of_control() -> Value {
    let info = json!({
        "title": "Arenite",
        "description": "Sandboxes and their trajectories. What runs in a sandbox is at /v1/docs, and AgentFlow's interface at /docs.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    let tags = [
        ("server", "The server and its templates"),
        ("sign-in", "Signing in with a browser; programs send a key with each request"),
        ("secrets", "Values that sandboxes use and never have"),
        ("models", "Routes to models: calls with the server's keys, as steps, within budgets"),
        ("images", "Images of sandboxes, and pulls from registries"),
        ("sandboxes", "Sandboxes, from their creation to their deletion"),
        ("events", "What happens to sandboxes"),
        ("webhooks", "Addresses that get a tenant's events, signed as https://www.standardwebhooks.com specifies"),
        ("states", "Checkpoints, rollbacks, forks and snapshots of sandboxes' disks"),
        ("groups", "Sandboxes that end together, with a lease"),
        ("volumes", "Storage that outlives sandboxes, and that several of them mount"),
        ("nodes", "Servers of a cluster"),
        ("quarantine", "Sandboxes that the server could not explain when it started"),
        ("tenants", "Tenants: users who don't see each other; with `arenite serve --tenants`"),
        ("keys", "API keys of a tenant"),
        ("audit", "Who changed what, and which requests were refused"),
        ("usage", "What sandboxes used"),
        ("corpora", "Corpora for retrieval"),
        ("trajectories", "Recorded steps"),
        ("agent-sandbox", "Agent-Sandbox's interface; failures are `{code, error}`"),
    ];
    let mut document = operation::document(info, &tags, routes::described(false));
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.values_mut().for_each(ease);
    }
    document
}

/// `/openapi.json`, as AgentFlow's server has it.
pub(crate) async fn of_agentflow(_: &mut Exchange) -> Answered {
    Ok(json_response(StatusCode::OK, &agentflow_document()))
}

/// AgentFlow's interface, with the title of AgentFlow's document.
pub(crate) fn agentflow_document() -> Value {
    let info = json!({
        "title": "Sandbox HTTP Service",
        "version": env!("CARGO_PKG_VERSION"),
        "description": "AgentFlow's interface: workers, their sessions and tools. Sandboxes themselves are at /v1/docs.",
    });
    let tags = [
        ("Health", "Whether the server answers"),
        ("Execute", "Calls of tools"),
        ("Sessions", "A worker's sessions, from their creation to their end"),
        ("Tools", "The tools and their parameters"),
        ("Server", "The server and its backends"),
    ];
    operation::document(info, &tags, routes::described(true))
}

/// `/sandbox/{name}` of a path that starts with it: the document then describes that sandbox.
fn prefix(path: &str) -> &str {
    let Some(rest) = path.strip_prefix("/sandbox/") else { return "" };
    match rest.find('/') {
        Some(end) => &path[..path.len() - rest.len() + end],
        None => path,
    }
}

/// The document without its servers.
fn document(guest: &GuestDescription) -> Value {
    let mut whole = (guest.api)();
    whole.merge(AuthApi::openapi());
    // Structs with text keys: always JSON.
    let mut document = serde_json::to_value(whole).unwrap_or_default();
    let own = operation::document(Value::Null, &[], routes::described_of_sandbox());
    for part in ["/paths", "/components/schemas"] {
        if let (Some(Value::Object(all)), Some(Value::Object(own))) = (document.pointer_mut(part), own.pointer(part)) {
            // A schema that the guest has, too, is the same type.
            own.iter().for_each(|(name, value)| _ = all.entry(name).or_insert_with(|| value.clone()));
        }
    }
    document["info"] = json!({
        "title": "Arenite",
        "description": "What runs in a sandbox, in AIO's wire format. Below /sandbox/{name} for one sandbox; without that for the sandbox called default, which is made by its first call.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    tag(&mut document, guest);
    refusals(&mut document);
    if let Some(schemas) = document.pointer_mut("/components/schemas").and_then(Value::as_object_mut) {
        schemas.values_mut().for_each(ease);
        schemas.iter_mut().filter(|(name, _)| name.starts_with("Envelope_Outcome_")).for_each(|(_, schema)| loosen(schema));
    }
    document
}

/// A field with a default may be left out, whatever the derived schema says.
fn ease(schema: &mut Value) {
    let Some(schema) = schema.as_object_mut() else { return };
    let defaulted: Vec<String> = schema
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter(|(_, property)| property.get("default").is_some())
        .map(|(name, _)| name.clone())
        .collect();
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| !defaulted.iter().any(|d| name == d));
        if required.is_empty() {
            schema.remove("required");
        }
    }
    for inner in ["oneOf", "anyOf", "allOf"] {
        schema.get_mut(inner).and_then(Value::as_array_mut).into_iter().flatten().for_each(ease);
    }
}

/// The body of a failed file call is the error and also has the result's fields, for clients that know only those. So it matches
/// either schema or both, and not exactly one.
fn loosen(schema: &mut Value) {
    if let Some(data) = schema.pointer_mut("/properties/data").and_then(Value::as_object_mut)
        && let Some(either) = data.remove("oneOf")
    {
        data.insert("anyOf".to_owned(), either);
    }
}

/// One extractor refuses malformed input, so its answer is described once for all operations with input.
fn refusals(document: &mut Value) {
    document["components"]["schemas"]["HTTPValidationError"] = json!({
        "type": "object",
        "description": "The request is malformed: AIO's envelope, and FastAPI's `detail`.",
        "properties": {
            "success": { "type": "boolean" },
            "message": { "type": ["string", "null"] },
            "data": { "type": "null" },
            "detail": { "type": "array", "items": { "$ref": "#/components/schemas/ValidationError" } },
            "errors": { "type": "array", "items": { "type": "object" } },
        },
        "required": ["success", "message", "data", "detail"],
    });
    document["components"]["schemas"]["ValidationError"] = json!({
        "type": "object",
        "properties": {
            "loc": { "type": "array", "items": { "type": ["string", "integer"] } },
            "msg": { "type": "string" },
            "type": { "type": "string" },
        },
        "required": ["loc", "msg", "type"],
    });
    let refused = json!({
        "description": "The request is malformed",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/HTTPValidationError" } } },
    });
    let items = document["paths"].as_object_mut().into_iter().flat_map(|paths| paths.values_mut());
    for operation in items.filter_map(Value::as_object_mut).flat_map(|item| item.values_mut()) {
        if operation.get("requestBody").or(operation.get("parameters")).is_some() {
            operation["responses"]["422"] = refused.clone();
        }
        for response in operation["responses"].as_object_mut().into_iter().flat_map(|responses| responses.values_mut()) {
            if response.get("description").is_none() {
                response["description"] = "Done".into();
            }
        }
    }
}

/// Every operation's tag is listed, in the order of its first operation.
fn tag(document: &mut Value, guest: &GuestDescription) {
    let described = |name: &str| match name {
        "auth" => "Who may call",
        "steps" => "What was done in it, as recorded",
        _ => (guest.purpose)(name),
    };
    let mut names: Vec<String> = Vec::new();
    for operation in operations(document) {
        for name in operation["tags"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !names.iter().any(|n| n == name) {
                names.push(name.to_owned());
            }
        }
    }
    document["tags"] = names.iter().map(|name| json!({ "name": name, "description": described(name) })).collect();
}

fn operations(document: &Value) -> impl Iterator<Item = &Value> {
    let paths = document["paths"].as_object().into_iter().flat_map(|paths| paths.values());
    paths.filter_map(Value::as_object).flat_map(|item| item.values()).filter(|o| o.get("responses").is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sandboxs_document_names_its_own_address() {
        for (path, expected) in [
            ("/v1/openapi.json", ""),
            ("/sandbox/demo/v1/openapi.json", "/sandbox/demo"),
            ("/sandbox/demo", "/sandbox/demo"),
            ("/sandboxes/x", ""),
        ] {
            assert_eq!(prefix(path), expected);
        }
    }
}
