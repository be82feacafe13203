//! Describes the guest to the gateway, which depends on neither its code nor its size.

use arenite_gateway::GuestDescription;

/// The API and the tools of this program's guest.
pub(crate) fn guest_description() -> GuestDescription {
    GuestDescription {
        api: arenite_guest::api::description,
        purpose: arenite_guest::api::purpose,
        tools: arenite_guest::tool_descriptions,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use arenite_gateway::documents;
    use serde_json::{Value, json};

    use super::guest_description;

    /// The operations of a document, without the other keys of its paths.
    fn operations(document: &Value) -> impl Iterator<Item = &Value> {
        let paths = document["paths"].as_object().into_iter().flat_map(|paths| paths.values());
        paths.filter_map(Value::as_object).flat_map(|item| item.values()).filter(|o| o.get("responses").is_some())
    }

    #[test]
    fn the_documents_are_complete() {
        for (name, document) in documents(&guest_description()) {
            let tags: BTreeSet<&str> =
                document["tags"].as_array().into_iter().flatten().filter_map(|tag| tag["name"].as_str()).collect();
            let mut ids = BTreeSet::new();
            for operation in operations(&document) {
                assert!(ids.insert(operation["operationId"].as_str().unwrap()), "{name}: {operation}");
                let own = operation["tags"].as_array().unwrap();
                assert!(!own.is_empty() && own.iter().all(|tag| tags.contains(tag.as_str().unwrap())), "{name}: {operation}");
            }
            assert!(ids.len() > 3, "{name}: {ids:?}");
            // Every reference resolves.
            let text = document.to_string();
            for reference in text.split("\"$ref\":\"#").skip(1) {
                let pointer = reference.split('"').next().unwrap();
                assert!(document.pointer(pointer).is_some(), "{name}: {pointer}");
            }
        }
    }

    #[test]
    fn the_document_of_sandboxes_has_all_services_and_their_defaults() {
        let (_, document) = documents(&guest_description()).into_iter().find(|(name, _)| *name == "openapi").unwrap();
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
        let exec = &document["components"]["schemas"]["BashExecRequest"];
        assert_eq!(
            (&exec["required"], &exec["properties"]["max_output_length"]["default"]),
            (&json!(["command"]), &json!(50000))
        );
    }

    /// A change of a document, from which clients are generated, must be intended: ARENITE_BLESS=1 rewrites them.
    #[test]
    fn golden_documents() {
        for (name, document) in documents(&guest_description()) {
            let path = format!("{}/../gateway/golden/{name}.json", std::env::var("CARGO_MANIFEST_DIR").unwrap());
            let ours = serde_json::to_string_pretty(&document).unwrap() + "\n";
            if std::env::var_os("ARENITE_BLESS").is_some() {
                std::fs::write(&path, &ours).unwrap();
            }
            let golden = std::fs::read_to_string(&path).unwrap_or_default();
            let differ = ours.lines().zip(golden.lines()).enumerate().find(|(_, (a, b))| a != b);
            assert!(ours == golden, "{path} differs, first at {differ:?}; if that is meant: cargo xtask openapi --bless");
        }
    }
}
