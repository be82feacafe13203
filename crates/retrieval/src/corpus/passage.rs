use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Maximum size of a passage, in bytes of its title and text.
pub const MAX_PASSAGE_BYTES: usize = 1 << 20;
/// Maximum size of a passage's metadata, in bytes of JSON.
const MAX_METADATA_BYTES: usize = 64 << 10;
/// Maximum length of an id, in bytes.
const MAX_ID_BYTES: usize = 1024;

/// Fields with the searched text, in order of preference.
const TEXTS: [&str; 3] = ["contents", "text", "content"];
const IDS: [&str; 4] = ["id", "_id", "docid", "doc_id"];

/// A piece of text that can be found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// Unique in a corpus: a passage replaces one with the same id.
    pub id: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub title: String,
    pub text: String,
    /// The values for filters.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
}

impl Passage {
    /// Parses a record with `contents`, `text` or `content`, and optionally `title`, `id` (`_id`, `docid`) and `metadata`.
    /// Other fields become metadata too. `number` replaces a missing id. Without a number, a hash of the text does, so that
    /// files without ids can be combined.
    ///
    /// # Errors
    /// Why the record is not a valid passage.
    pub fn from_record(record: Value, number: Option<u64>) -> Result<Self, String> {
        let Value::Object(mut fields) = record else {
            return Err("it is no JSON object".to_owned());
        };
        let found = TEXTS.iter().find_map(|name| fields.remove(*name).map(|value| (*name, value)));
        let text = match found {
            None => return Err(format!("it has none of the fields {}", TEXTS.join(", "))),
            Some((_, Value::String(text))) => text,
            Some((name, _)) => return Err(format!("its {name} is no string")),
        };
        let id = match IDS.iter().find_map(|name| fields.remove(*name)) {
            None | Some(Value::Null) => number.map(|number| number.to_string()).unwrap_or_default(),
            Some(Value::String(id)) if !id.is_empty() => id,
            Some(Value::Number(id)) => id.to_string(),
            Some(_) => return Err("its id is neither a string nor a number".to_owned()),
        };
        let title = match fields.remove("title") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(title)) => title,
            Some(_) => return Err("its title is no string".to_owned()),
        };
        let mut metadata = match fields.remove("metadata") {
            None | Some(Value::Null) => Map::new(),
            Some(Value::Object(metadata)) => metadata,
            Some(_) => return Err("its metadata is no object".to_owned()),
        };
        for (name, value) in fields {
            metadata.entry(name).or_insert(value);
        }
        let mut passage = Self { id, title, text, metadata };
        if passage.id.is_empty() {
            passage.id = blake3::hash(passage.searched().as_bytes()).to_hex()[..32].to_owned();
        }
        passage.check().map(|()| passage)
    }

    /// Checks that it can be indexed.
    ///
    /// # Errors
    /// Why it can't be indexed.
    pub fn check(&self) -> Result<(), String> {
        if self.text.trim().is_empty() {
            return Err("its text is empty".to_owned());
        }
        if self.title.len() + self.text.len() > MAX_PASSAGE_BYTES {
            return Err(format!("it is larger than {} KiB; cut it into passages", MAX_PASSAGE_BYTES >> 10));
        }
        if self.id.is_empty() || self.id.len() > MAX_ID_BYTES {
            return Err(format!("its id has to have 1 to {MAX_ID_BYTES} bytes"));
        }
        if !self.metadata.is_empty() && serde_json::to_vec(&self.metadata).map_or(0, |json| json.len()) > MAX_METADATA_BYTES {
            return Err(format!("its metadata is larger than {} KiB", MAX_METADATA_BYTES >> 10));
        }
        Ok(())
    }

    /// The text that is searched and embedded.
    pub fn searched(&self) -> String {
        if self.title.is_empty() { self.text.clone() } else { format!("{}\n{}", self.title, self.text) }
    }

    /// The text that AgentFlow shows to a model.
    pub fn shown(&self) -> String {
        if self.title.is_empty() { self.text.clone() } else { format!("[{}]\n{}", self.title, self.text) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn records_become_passages() {
        let of = |record| Passage::from_record(record, Some(7)).unwrap();
        let plain = of(json!({"contents": "a b", "title": null, "year": 1999, "metadata": {"lang": "en"}}));
        assert_eq!((plain.id.as_str(), plain.shown()), ("7", "a b".to_owned()));
        assert_eq!(Value::Object(plain.metadata), json!({"lang": "en", "year": 1999}));
        let titled = of(json!({"text": "t", "title": "T", "_id": 12}));
        assert_eq!((titled.id.as_str(), titled.shown(), titled.searched()), ("12", "[T]\nt".to_owned(), "T\nt".to_owned()));
    }

    #[test]
    fn records_that_are_none_are_refused() {
        let large = "x".repeat(MAX_PASSAGE_BYTES + 1);
        for (record, said) in [
            (json!([1]), "no JSON object"),
            (json!({"title": "x"}), "none of the fields"),
            (json!({"text": 1}), "text is no string"),
            (json!({"text": "  "}), "empty"),
            (json!({"text": "x", "id": []}), "neither"),
            (json!({"text": "x", "metadata": 1}), "no object"),
            (json!({"text": large}), "larger"),
            (json!({"text": "x", "more": large}), "metadata is larger"),
        ] {
            let error = Passage::from_record(record, None).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
