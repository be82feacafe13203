//! The API's operations as commands.

use serde_json::Value;

use crate::api;

/// An operation of the API.
#[derive(Debug)]
pub(super) struct ApiCall {
    pub(super) group: String,
    pub(super) method: String,
    /// Its name in the document, without the route. AIO's SDK names its methods like this.
    id: String,
    /// The HTTP method.
    pub(super) verb: String,
    pub(super) path: String,
    pub(super) about: String,
    pub(super) fields: Vec<Field>,
    pub(super) body: Body,
}

/// The body of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Body {
    Nothing,
    Json,
    /// JSON with unknown fields: the arguments of MCP tools.
    AnyJson,
    Form,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FieldLocation {
    Path,
    Query,
    Body,
}

/// The form of a field on a command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Integer,
    Number,
    /// `--name` and `--no-name`.
    Switch,
    /// One argument for each item.
    List,
    /// `KEY=VALUE`, one argument for each entry.
    Map,
    /// The name of a file. Its content is sent.
    File,
}

#[derive(Debug)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) location: FieldLocation,
    pub(super) kind: Kind,
    /// The items of a list are whole numbers.
    pub(super) integers: bool,
    pub(super) required: bool,
    pub(super) about: String,
    pub(super) default: Option<Value>,
    pub(super) choices: Vec<String>,
}

impl ApiCall {
    /// Whether `word` names the call. Hyphens and underscores are equal, and the SDK's name also matches.
    pub(super) fn is_named(&self, word: &str) -> bool {
        let word = word.replace('-', "_");
        word == self.method.replace('-', "_") || word == self.id
    }

    pub(super) fn required(&self) -> impl Iterator<Item = &Field> {
        self.fields.iter().filter(|field| field.required)
    }
}

/// Methods with other names in AIO's guide: its group and method, then the group and method here.
const GUIDES: [(&str, &str, &str, &str); 7] = [
    ("browser", "screenshot", "browser", "page-screenshot"),
    ("gui", "screenshot", "browser", "take-screenshot"),
    ("gui", "action", "browser", "execute-action"),
    ("mcp", "list", "mcp", "list-servers"),
    ("mcp", "tools", "mcp", "list-tools"),
    ("skills", "list", "skills", "list-metadata"),
    ("sandbox", "info", "sandbox", "get-context"),
];

/// The group with a word's calls: `gui` is AIO's name for screen operations.
pub(super) fn group_of(word: &str) -> &str {
    if word == "gui" { "browser" } else { word }
}

/// Finds a call by its group and method, or by the names in AIO's guide.
pub(super) fn find<'a>(calls: &'a [ApiCall], group: &str, method: &str) -> Option<&'a ApiCall> {
    let guides = GUIDES.iter().find(|(of, name, ..)| *of == group && *name == method);
    let (group, method) = guides.map_or((group_of(group), method), |(_, _, group, method)| (*group, *method));
    calls.iter().find(|call| call.group == group && call.is_named(method))
}

pub(super) fn groups(calls: &[ApiCall]) -> Vec<&str> {
    let mut groups: Vec<&str> = calls.iter().map(|call| call.group.as_str()).collect();
    groups.dedup();
    groups
}

/// All operations, by group and name.
pub(super) fn all() -> Vec<ApiCall> {
    // Structs with text keys: always valid JSON.
    let document = serde_json::to_value(api::description()).unwrap_or_default();
    let mut calls = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (verb, operation) in item.as_object().into_iter().flatten() {
            calls.push(call(&document, path, verb, operation));
        }
    }
    calls.sort_by(|a, b| (&a.group, &a.method).cmp(&(&b.group, &b.method)));
    calls
}

fn call(document: &Value, path: &str, verb: &str, operation: &Value) -> ApiCall {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let group = text(&operation["tags"][0]);
    let id = operation["operationId"].as_str().unwrap_or_default();
    let id = id.split("_v1_").next().unwrap_or_default().to_owned();
    let mut fields: Vec<Field> = Vec::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let location = if parameter["in"] == "path" { FieldLocation::Path } else { FieldLocation::Query };
        let mut field = field(document, &text(&parameter["name"]), &parameter["schema"], location);
        field.required = parameter["required"] == true;
        field.about = text(&parameter["description"]);
        fields.push(field);
    }
    let content = operation["requestBody"]["content"].as_object().and_then(|content| content.iter().next());
    let body = content.map_or(Body::Nothing, |(media_type, content)| {
        let schema = resolve(document, &content["schema"]);
        let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let Some(properties) = schema["properties"].as_object() else { return Body::AnyJson };
        let mut of_body: Vec<Field> =
            properties.iter().map(|(n, schema)| field(document, n, schema, FieldLocation::Body)).collect();
        for field in &mut of_body {
            field.required = field.default.is_none() && required.contains(&field.name.as_str());
        }
        // The required fields are in the order of the document's list, which is the service's order.
        of_body
            .sort_by_key(|field| required.iter().position(|name| *name == field.name).filter(|_| field.required).unwrap_or(99));
        fields.extend(of_body);
        if media_type.starts_with("multipart/") { Body::Form } else { Body::Json }
    });
    let about = [&operation["summary"], &operation["description"]].map(text);
    let about = about.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\n\n");
    ApiCall { method: method(&group, &id), group, id, verb: verb.to_uppercase(), path: path.to_owned(), about, fields, body }
}

fn field(document: &Value, name: &str, schema: &Value, location: FieldLocation) -> Field {
    let resolved = resolve(document, schema);
    let types: Vec<&str> = match &resolved["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let is = |name: &str| types.contains(&name);
    let kind = if resolved["format"] == "binary" {
        Kind::File
    } else if is("boolean") {
        Kind::Switch
    } else if is("integer") {
        Kind::Integer
    } else if is("number") {
        Kind::Number
    } else if is("array") {
        Kind::List
    } else if is("object") {
        Kind::Map
    } else {
        Kind::Text
    };
    let choices = |schema: &Value| -> Vec<String> {
        schema["enum"].as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let items = resolve(document, &resolved["items"]);
    let about = [schema, resolved].into_iter().find_map(|schema| schema["description"].as_str());
    Field {
        name: name.to_owned(),
        location,
        kind,
        integers: items["type"] == "integer",
        required: false,
        about: about.unwrap_or_default().to_owned(),
        default: schema.get("default").filter(|default| !default.is_null()).cloned(),
        choices: if kind == Kind::List { choices(items) } else { choices(resolved) },
    }
}

/// Follows a schema's reference. Of a schema that also allows null, returns the other alternative.
fn resolve<'a>(document: &'a Value, schema: &'a Value) -> &'a Value {
    if let Some(reference) = schema["$ref"].as_str() {
        return document.pointer(reference.trim_start_matches('#')).map_or(schema, |found| resolve(document, found));
    }
    let either = schema["oneOf"].as_array().into_iter().flatten().find(|one| one["type"] != "null");
    either.map_or(schema, |one| resolve(document, one))
}

/// An operation's name without the parts that its group already says: `list_shell_sessions` of `shell` is `list-sessions`.
fn method(group: &str, id: &str) -> String {
    let said = |word: &str| {
        let is = |part: &str| word == part || [Some("s"), Some("es")].contains(&word.strip_prefix(part));
        group.split('-').any(|part| is(part) || is(part.trim_end_matches('s')))
    };
    let mut words: Vec<&str> = id.split('_').filter(|word| !said(word)).collect();
    while words.last().is_some_and(|word| matches!(*word, "in" | "for" | "of")) {
        words.pop();
    }
    words.join("-")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_operation_has_a_name_of_its_own_and_says_what_it_does() {
        let calls = all();
        assert!(calls.len() > 80, "{}", calls.len());
        let mut names = BTreeSet::new();
        for call in &calls {
            assert!(!call.method.is_empty() && names.insert((&call.group, &call.method)), "{call:?}");
            assert!(!call.about.is_empty(), "{} {} says nothing of itself", call.verb, call.path);
            assert!(!api::purpose(&call.group).is_empty(), "{}", call.group);
            for part in call.path.split('/').filter_map(|part| part.strip_prefix('{')) {
                let name = part.trim_end_matches('}');
                assert!(call.fields.iter().any(|field| field.name == name && field.location == FieldLocation::Path), "{call:?}");
            }
        }
    }

    #[test]
    fn names_leave_out_what_the_group_says() {
        for (group, id, expected) in [
            ("shell", "list_shell_sessions", "list-sessions"),
            ("file", "read_file", "read"),
            ("file", "search_in_file", "search"),
            ("file", "find_files", "find"),
            ("file-watch", "list_watches", "list"),
            ("file-watch", "wait_for_file", "wait"),
            ("skills", "get_skill_content", "get-content"),
            ("bash", "sessions", "sessions"),
        ] {
            assert_eq!(method(group, id), expected);
        }
    }

    #[test]
    fn the_guides_names_are_calls() {
        let calls = all();
        for (group, method, ..) in GUIDES {
            assert!(find(&calls, group, method).is_some(), "{group} {method}");
        }
    }

    #[test]
    fn fields_are_as_the_document_says() {
        let calls = all();
        let find = |group: &str, name: &str| calls.iter().find(|call| call.group == group && call.is_named(name)).unwrap();
        let exec = find("bash", "exec");
        assert_eq!(exec.required().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["command"]);
        let kind = |call: &ApiCall, name: &str| call.fields.iter().find(|f| f.name == name).unwrap().kind;
        assert_eq!((kind(exec, "env"), kind(exec, "timeout"), kind(exec, "async_mode")), (Kind::Map, Kind::Number, Kind::Switch));
        let code = find("code", "execute_code");
        assert_eq!(code.required().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["language", "code"]);
        assert_eq!(code.fields[0].choices, ["python", "javascript"]);
        assert_eq!(kind(find("file", "upload_file"), "file"), Kind::File);
        assert_eq!(find("mcp", "execute-tool").body, Body::AnyJson);
        let write = find("file", "write");
        assert_eq!(write.required().map(|f| f.name.as_str()).collect::<Vec<_>>(), ["file", "content"]);
    }
}
