//! Compares `/v1/openapi.json` with AIO Sandbox's own document of 1.9.4: what a client generated from that one relies on must
//! hold here.
//!
//! Both documents are flattened into facts, one a line, such as `POST /v1/shell/exec: body.timeout type number|null`. A fact of
//! AIO's document that is missing here is a difference. Every difference must be in `contract/differences.txt` with its reason.
//! Any other fails, and so does a line there that matches no difference.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

/// Deeper schemas repeat themselves.
const DEPTH: usize = 8;

fn read(path: &str) -> String {
    let path = format!("{}/{path}", std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

#[test]
fn every_difference_from_aio_has_its_reason() {
    let facts = |path| Document(serde_json::from_str(&read(path)).unwrap()).facts();
    let (theirs, ours) = (facts("tests/contract/aio-openapi-1.9.4.json"), facts("golden/openapi.json"));
    let mut reasons = reasons(&read("tests/contract/differences.txt"));
    let mut unexplained = Vec::new();
    for (fact, value) in &theirs {
        let found = ours.get(fact);
        if found == Some(value) || accepted(fact, value, found) {
            continue;
        }
        // A missing operation is one difference and not a hundred.
        let operation = fact.split(": ").next().unwrap_or(fact);
        if !ours.contains_key(operation) && fact != operation {
            continue;
        }
        match reasons.iter_mut().find(|(pattern, _)| matches(pattern, fact)) {
            Some((_, used)) => *used = true,
            None => unexplained.push(format!("{fact} {value}; here: {}", found.map_or("absent", String::as_str))),
        }
    }
    // Fields that a client does not send must not be required here.
    for (fact, value) in ours.iter().filter(|(fact, value)| fact.ends_with(" required") && *value == "true") {
        let operation = fact.split(": ").next().unwrap_or(fact);
        let asked = !fact.contains(": response") && theirs.contains_key(operation);
        if asked && theirs.get(fact) != Some(value) && !reasons.keys().any(|pattern| matches(pattern, fact)) {
            unexplained.push(format!("{fact} here only"));
        }
    }
    let unused: Vec<&String> = reasons.iter().filter(|(_, used)| !**used).map(|(pattern, _)| pattern).collect();
    assert!(unexplained.is_empty(), "differences without a reason:\n{}", unexplained.join("\n"));
    assert!(unused.is_empty(), "reasons without a difference: {unused:#?}");
}

/// Facts are AIO's, descriptions are Arenite's.
#[test]
fn descriptions_are_our_own() {
    fn descriptions<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(object) => {
                let words = ["description", "summary"].iter().filter_map(|key| object.get(*key)?.as_str());
                found.extend(words.map(|text| text.trim_end_matches('.')).filter(|text| text.split(' ').count() > 2));
                object.values().for_each(|inner| descriptions(inner, found));
            }
            Value::Array(list) => list.iter().for_each(|inner| descriptions(inner, found)),
            _ => {}
        }
    }
    let (ours, theirs): (Value, Value) = (
        serde_json::from_str(&read("golden/openapi.json")).unwrap(),
        serde_json::from_str(&read("tests/contract/aio-openapi-1.9.4.json")).unwrap(),
    );
    let [mut here, mut there] = [BTreeSet::new(), BTreeSet::new()];
    descriptions(&ours, &mut here);
    descriptions(&theirs, &mut there);
    let same: Vec<_> = here.intersection(&there).collect();
    assert!(same.is_empty(), "{same:#?}");
}

/// Wider input or narrower output breaks no client.
fn accepted(fact: &str, theirs: &str, ours: Option<&String>) -> bool {
    if fact.ends_with(" required") && !fact.contains(": response") {
        return true;
    }
    let Some(ours) = ours else { return false };
    let (theirs, ours): (BTreeSet<&str>, BTreeSet<&str>) = (theirs.split('|').collect(), ours.split('|').collect());
    if !fact.ends_with(" type") {
        return false;
    }
    let integers = |set: &BTreeSet<&str>| set.contains("number");
    match fact.contains(": response") {
        true => ours.iter().all(|t| theirs.contains(t) || *t == "integer" && integers(&theirs)) || theirs.contains("any"),
        false => theirs.iter().all(|t| ours.contains(t) || *t == "integer" && integers(&ours)) || ours.contains("any"),
    }
}

/// Patterns of `differences.txt`: lines below a `# reason`; `*` stands for any text.
fn reasons(text: &str) -> BTreeMap<String, bool> {
    let mut reason = "";
    let mut patterns = BTreeMap::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix('#') {
            Some(given) => reason = given.trim(),
            None => {
                assert!(!reason.is_empty(), "{line} has no reason above it");
                patterns.insert(line.to_owned(), false);
            }
        }
    }
    patterns
}

fn matches(pattern: &str, text: &str) -> bool {
    let mut rest = text;
    let mut parts = pattern.split('*').peekable();
    let Some(after) = parts.next().and_then(|first| rest.strip_prefix(first)) else { return false };
    rest = after;
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.is_empty()
}

struct Document(Value);

type Facts = BTreeMap<String, String>;

impl Document {
    fn facts(&self) -> Facts {
        let mut facts = Facts::new();
        for (path, item) in self.0["paths"].as_object().into_iter().flatten() {
            for method in ["get", "put", "post", "delete", "patch"] {
                let Some(operation) = item.get(method) else { continue };
                let name = format!("{} {path}", method.to_uppercase());
                facts.insert(name.clone(), "is there".to_owned());
                facts.insert(format!("{name}: operationId"), text(&operation["operationId"]));
                self.operation(&name, operation, &mut facts);
            }
        }
        facts
    }

    fn operation(&self, name: &str, operation: &Value, facts: &mut Facts) {
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let parameter = self.resolve(parameter);
            let place = format!("{name}: {}.{}", text(&parameter["in"]), text(&parameter["name"]));
            facts.insert(format!("{place} required"), parameter["required"].as_bool().unwrap_or_default().to_string());
            self.schema(&place, &parameter["schema"], 0, facts);
        }
        let body = self.resolve(&operation["requestBody"]);
        for (kind, content) in body["content"].as_object().into_iter().flatten() {
            facts.insert(format!("{name}: body {kind}"), "is taken".to_owned());
            self.schema(&format!("{name}: body"), &content["schema"], 0, facts);
        }
        for (status, response) in operation["responses"].as_object().into_iter().flatten() {
            let response = self.resolve(response);
            let place = format!("{name}: response {status}");
            facts.insert(place.clone(), "is documented".to_owned());
            for (kind, content) in response["content"].as_object().into_iter().flatten() {
                facts.insert(format!("{place} {kind}"), "is answered".to_owned());
                self.schema(&place, &content["schema"], 0, facts);
            }
        }
    }

    fn resolve<'a>(&'a self, value: &'a Value) -> &'a Value {
        match value["$ref"].as_str().and_then(|r| self.0.pointer(r.trim_start_matches('#'))) {
            Some(target) => self.resolve(target),
            None => value,
        }
    }

    /// The alternatives of a schema, each resolved, including null ones.
    fn alternatives<'a>(&'a self, schema: &'a Value) -> Vec<&'a Value> {
        let schema = self.resolve(schema);
        for several in ["anyOf", "oneOf"] {
            if let Some(list) = schema[several].as_array() {
                return list.iter().flat_map(|inner| self.alternatives(inner)).collect();
            }
        }
        match schema["allOf"].as_array() {
            Some(list) if list.len() == 1 => self.alternatives(&list[0]),
            _ => vec![schema],
        }
    }

    fn schema(&self, place: &str, schema: &Value, depth: usize, facts: &mut Facts) {
        if depth > DEPTH {
            return;
        }
        let default = [schema, self.resolve(schema)].into_iter().find_map(|s| s.get("default"));
        // In an answer, clients rely on required fields and on types.
        let answer = place.contains(": response");
        if let Some(default) = default.filter(|d| !answer && !d.is_null()) {
            facts.insert(format!("{place} default"), canonical(default));
        }
        let alternatives = self.alternatives(schema);
        let mut types = BTreeSet::new();
        let mut words = BTreeSet::new();
        for alternative in &alternatives {
            match &alternative["type"] {
                Value::String(one) => types.extend([one.clone()]),
                Value::Array(several) => types.extend(several.iter().map(text)),
                _ if alternative["properties"].is_object() => types.extend(["object".to_owned()]),
                _ if alternative["enum"].is_array() || alternative["const"].is_string() => types.extend(["string".to_owned()]),
                _ => types.extend(["any".to_owned()]),
            }
            words.extend(alternative["enum"].as_array().into_iter().flatten().chain(alternative.get("const")).map(text));
            for bound in ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "pattern"] {
                if let Some(value) = alternative.get(bound).filter(|_| !answer) {
                    facts.insert(format!("{place} {bound}"), canonical(value));
                }
            }
            let required: BTreeSet<&str> =
                alternative["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (name, property) in alternative["properties"].as_object().into_iter().flatten() {
                let place = format!("{place}.{name}");
                if required.contains(name.as_str()) {
                    facts.insert(format!("{place} required"), "true".to_owned());
                }
                self.schema(&place, property, depth + 1, facts);
            }
            if let Some(items) = alternative.get("items") {
                self.schema(&format!("{place}[]"), items, depth + 1, facts);
            }
            if let Some(values) = alternative.get("additionalProperties").filter(|v| v.is_object()) {
                self.schema(&format!("{place}{{}}"), values, depth + 1, facts);
            }
        }
        if place.contains(": query.") {
            // An address can't contain null: a missing value is absent.
            types.remove("null");
        }
        facts.insert(format!("{place} type"), types.into_iter().collect::<Vec<_>>().join("|"));
        if !words.is_empty() {
            facts.insert(format!("{place} enum"), words.into_iter().collect::<Vec<_>>().join("|"));
        }
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// 30 and 30.0 are one number.
fn canonical(value: &Value) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |n| n.to_string())
}
