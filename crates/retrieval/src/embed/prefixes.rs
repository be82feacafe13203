use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Role;

/// Text that is put before a text, by its role. Models that were trained with such prefixes find less without them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Prefixes {
    pub query: String,
    pub passage: String,
}

impl Prefixes {
    /// The prefixes of the E5 family.
    pub fn e5() -> Self {
        Self { query: "query: ".to_owned(), passage: "passage: ".to_owned() }
    }

    /// The prefixes of a model name. E5 models with instructions get none: the user chooses the instruction.
    pub(super) fn of_name(name: &str) -> Self {
        let lower = name.to_lowercase();
        let has = |word: &str| lower.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word);
        if has("e5") && !has("instruct") { Self::e5() } else { Self::default() }
    }

    /// The `prompts` of `config_sentence_transformers.json`, if one is set.
    pub(super) fn of_prompts(config: &Value) -> Option<Self> {
        let prompt = |names: &[&str]| {
            names.iter().find_map(|name| config["prompts"][name].as_str()).filter(|prompt| !prompt.is_empty()).map(str::to_owned)
        };
        let (query, passage) = (prompt(&["query", "s2p_query"]), prompt(&["document", "passage", "corpus"]));
        (query.is_some() || passage.is_some())
            .then(|| Self { query: query.unwrap_or_default(), passage: passage.unwrap_or_default() })
    }

    pub(super) fn are_empty(&self) -> bool {
        self.query.is_empty() && self.passage.is_empty()
    }

    pub(super) fn before(&self, text: &str, role: Role) -> String {
        let prefix = match role {
            Role::Query => &self.query,
            Role::Passage => &self.passage,
        };
        format!("{prefix}{text}")
    }
}

/// The name of the model in a folder: the folder's name, or the one under which a cache of the hub stores it. The hash in such
/// a cache has no meaning, and could contain "e5" by chance.
pub(super) fn name_of_folder(folder: &Path) -> String {
    let own = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let parent = folder.parent().unwrap_or(folder);
    match parent.parent() {
        Some(above) if own(parent) == "snapshots" => own(above).trim_start_matches("models--").replace("--", "/"),
        _ => own(folder),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn models_of_the_e5_family_get_their_words() {
        for name in ["intfloat/e5-base-v2", "multilingual-e5-small", "E5_large"] {
            assert_eq!(Prefixes::of_name(name), Prefixes::e5(), "{name}");
        }
        for name in ["all-MiniLM-L6-v2", "c9745ed1d9f207416be6d2e6f8de32d1f16199be5", "multilingual-e5-large-instruct", "fe5-b"] {
            assert!(Prefixes::of_name(name).are_empty(), "{name}");
        }
        assert_eq!(Prefixes::e5().before("a", Role::Query), "query: a");
        assert_eq!(Prefixes::e5().before("a", Role::Passage), "passage: a");
    }

    #[test]
    fn a_cached_model_goes_by_its_name_on_the_hub() {
        let cached = Path::new("hub/models--intfloat--e5-base-v2/snapshots/c97e5");
        assert_eq!(name_of_folder(cached), "intfloat/e5-base-v2");
        assert_eq!(name_of_folder(Path::new("models/mine")), "mine");
    }

    #[test]
    fn prompts_of_the_model_count() {
        let prompts = json!({"prompts": {"query": "find: ", "document": ""}, "default_prompt_name": null});
        assert_eq!(Prefixes::of_prompts(&prompts), Some(Prefixes { query: "find: ".to_owned(), passage: String::new() }));
        assert_eq!(Prefixes::of_prompts(&json!({"prompts": {"query": "", "document": ""}})), None);
        assert_eq!(Prefixes::of_prompts(&json!({})), None);
    }
}
