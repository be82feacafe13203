//! `/v1/openapi.json`: the descriptions of the guest's services, in one document. Built at the first request.

use std::sync::{Arc, OnceLock};

use arenite_guest::api;
use axum::body::Body;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use serde_json::{Value, json};
use utoipa::OpenApi;

use crate::auth::AuthApi;
use crate::gateway::{Context, Gateway};
use crate::refusal::{Refusal, json_response};
use crate::request::require;

static DOCUMENT: OnceLock<Value> = OnceLock::new();

pub(crate) async fn serve(
    _gateway: &Arc<Gateway>,
    context: &Context,
    _path: &str,
    parts: &Parts,
    _body: Body,
) -> Result<Response<Body>, Refusal> {
    require(parts, &[Method::GET, Method::HEAD])?;
    let mut document = DOCUMENT.get_or_init(document).clone();
    let base = format!("{}{}", context.base_url, prefix(parts.uri.path()));
    document["servers"] = json!([{ "url": base }]);
    Ok(json_response(StatusCode::OK, &document))
}

/// `/sandbox/{name}` of a path that starts with it: the document then describes that sandbox.
fn prefix(path: &str) -> &str {
    let Some(rest) = path.strip_prefix("/sandbox/") else { return "" };
    match rest.find('/') {
        Some(end) => &path[..path.len() - rest.len() + end],
        None => path,
    }
}

fn document() -> Value {
    let mut whole = api::description();
    whole.merge(AuthApi::openapi());
    // Structs with text keys: always JSON.
    let mut document = serde_json::to_value(whole).unwrap_or_default();
    document["info"] = json!({
        "title": "Arenite",
        "description": "What runs in a sandbox, in AIO's wire format. Below /sandbox/{name} for one sandbox; without that for the sandbox called default, which is made by its first call.",
        "version": env!("CARGO_PKG_VERSION"),
        "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
    });
    tag(&mut document);
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
    }
}

/// Every operation's tag is listed, in the order of its first operation.
fn tag(document: &mut Value) {
    let described = |name: &str| if name == "auth" { "Who may call" } else { api::purpose(name) };
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
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_document_is_whole() {
        let document = document();
        for path in [
            "/v1/shell/exec",
            "/v1/bash/exec",
            "/v1/file/read",
            "/v1/sandbox",
            "/v1/jupyter/execute",
            "/v1/nodejs/sessions",
            "/v1/code/info",
        ] {
            assert!(document["paths"][path].is_object(), "{path}");
        }
        let mut ids = BTreeSet::new();
        for operation in operations(&document) {
            assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{operation}");
            let tags = operation["tags"].as_array().unwrap();
            assert!(
                !tags.is_empty() && tags.iter().all(|t| document["tags"].as_array().unwrap().iter().any(|d| d["name"] == *t))
            );
        }
        assert!(ids.len() > 20, "{ids:?}");
        let exec = &document["components"]["schemas"]["BashExecRequest"];
        assert_eq!(
            (&exec["required"], &exec["properties"]["max_output_length"]["default"]),
            (&json!(["command"]), &json!(50000))
        );
        // Every reference resolves.
        let text = document.to_string();
        for reference in text.split("\"$ref\":\"#").skip(1) {
            let pointer = reference.split('"').next().unwrap();
            assert!(document.pointer(pointer).is_some(), "{pointer}");
        }
    }

    /// A change of the document, from which clients are generated, must be intended: ARENITE_BLESS=1 rewrites it.
    #[test]
    fn golden_document() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/openapi.json");
        let ours = serde_json::to_string_pretty(&document()).unwrap() + "\n";
        if std::env::var_os("ARENITE_BLESS").is_some() {
            std::fs::write(path, &ours).unwrap();
        }
        let golden = std::fs::read_to_string(path).unwrap_or_default();
        let differ = ours.lines().zip(golden.lines()).enumerate().find(|(_, (a, b))| a != b);
        assert!(ours == golden, "{path} differs, first at {differ:?}; if that is meant: cargo xtask openapi --bless");
    }

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
