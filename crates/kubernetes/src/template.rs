//! The operator's pod template, under what the engine sets.

use serde_json::{Map, Value};

/// Merges `over` into `base`. Objects are merged by key, and lists of named objects by name. Anything else is replaced, so an empty
/// list empties one.
pub(crate) fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => merge_objects(base, over),
        (Value::Array(base), Value::Array(over)) if !over.is_empty() && over.iter().all(|item| name_of(item).is_some()) => {
            for item in over {
                match base.iter_mut().find(|one| name_of(one) == name_of(&item)) {
                    Some(one) => merge(one, item),
                    None => base.push(item),
                }
            }
        }
        (base, over) => *base = over,
    }
}

fn merge_objects(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match base.get_mut(&key) {
            Some(one) => merge(one, value),
            None => {
                base.insert(key, value);
            }
        }
    }
}

fn name_of(item: &Value) -> Option<&str> {
    item.get("name").and_then(Value::as_str)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn named_items_are_merged_and_others_replaced() {
        let mut base = json!({
            "nodeSelector": {"disk": "fast"},
            "tolerations": [{"key": "a"}],
            "containers": [{"name": "sandbox", "env": [{"name": "A", "value": "1"}], "args": ["x"]}, {"name": "other"}],
        });
        merge(
            &mut base,
            json!({
                "nodeSelector": {"arch": "arm64"},
                "tolerations": [{"key": "b"}],
                "containers": [{"name": "sandbox", "env": [{"name": "B", "value": "2"}], "args": ["y"]}],
                "restartPolicy": "Never",
            }),
        );
        let expected = json!({
            "nodeSelector": {"disk": "fast", "arch": "arm64"},
            "tolerations": [{"key": "b"}],
            "containers": [
                {"name": "sandbox", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}], "args": ["y"]},
                {"name": "other"},
            ],
            "restartPolicy": "Never",
        });
        assert_eq!(base, expected);
        let mut base = json!({"capabilities": {"drop": ["ALL"]}});
        merge(&mut base, json!({"capabilities": {"drop": []}}));
        assert_eq!(base, json!({"capabilities": {"drop": []}}));
    }
}
