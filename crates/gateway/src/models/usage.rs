//! Counts of tokens in answers, in the fields of all dialects.

use serde::Deserialize;

/// Bytes of a token, where the upstream gives no counts.
const BYTES_PER_TOKEN: u64 = 4;

/// The tokens of this number of bytes, roughly.
pub(super) fn estimate(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The field `usage` of an answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(super) struct UsageFields {
    prompt_tokens: Option<u64>,
    completion_tokens: Option<u64>,
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    cache_read_input_tokens: Option<u64>,
    cache_creation_input_tokens: Option<u64>,
    prompt_tokens_details: Option<PromptDetails>,
    input_tokens_details: Option<PromptDetails>,
    completion_tokens_details: Option<CompletionDetails>,
    output_tokens_details: Option<CompletionDetails>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct PromptDetails {
    cached_tokens: Option<u64>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
struct CompletionDetails {
    reasoning_tokens: Option<u64>,
}

impl UsageFields {
    /// The fields of a later event of the same answer replace those of an earlier one.
    pub(super) fn update(&mut self, later: Self) {
        macro_rules! replace {
            ($($field:ident)*) => { $( self.$field = later.$field.or(self.$field); )* };
        }
        replace!(prompt_tokens completion_tokens input_tokens output_tokens cache_read_input_tokens
            cache_creation_input_tokens prompt_tokens_details input_tokens_details completion_tokens_details
            output_tokens_details);
    }

    /// All tokens of the request, also those of the cache. None: it has no counts.
    pub(super) fn prompt(&self) -> Option<u64> {
        let beside = self.cache_read_input_tokens.unwrap_or(0).saturating_add(self.cache_creation_input_tokens.unwrap_or(0));
        self.prompt_tokens.or_else(|| Some(self.input_tokens?.saturating_add(beside)))
    }

    pub(super) fn completion(&self) -> Option<u64> {
        self.completion_tokens.or(self.output_tokens)
    }

    pub(super) fn cached(&self) -> Option<u64> {
        let details = self.prompt_tokens_details.or(self.input_tokens_details);
        details.and_then(|details| details.cached_tokens).or(self.cache_read_input_tokens)
    }

    pub(super) fn reasoning(&self) -> Option<u64> {
        self.completion_tokens_details.or(self.output_tokens_details)?.reasoning_tokens
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_dialects_are_read() {
        let read = |text: &str| {
            let usage: UsageFields = serde_json::from_str(text).unwrap();
            (usage.prompt(), usage.completion(), usage.cached(), usage.reasoning())
        };
        let openai = r#"{"prompt_tokens":9,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":5},
            "completion_tokens_details":{"reasoning_tokens":2},"total_tokens":13}"#;
        assert_eq!(read(openai), (Some(9), Some(4), Some(5), Some(2)));
        let responses = r#"{"input_tokens":9,"output_tokens":4,"input_tokens_details":{"cached_tokens":0}}"#;
        assert_eq!(read(responses), (Some(9), Some(4), Some(0), None));
        let anthropic = r#"{"input_tokens":3,"output_tokens":4,"cache_read_input_tokens":5,"cache_creation_input_tokens":1}"#;
        assert_eq!(read(anthropic), (Some(9), Some(4), Some(5), None));
        assert_eq!(read(r#"{"prompt_tokens":1,"completion_tokens":null}"#), (Some(1), None, None, None));
        assert_eq!(read("{}"), (None, None, None, None));
    }

    #[test]
    fn a_later_event_adds_its_counts() {
        let mut usage: UsageFields = serde_json::from_str(r#"{"input_tokens":7,"output_tokens":1}"#).unwrap();
        usage.update(serde_json::from_str(r#"{"output_tokens":20}"#).unwrap());
        assert_eq!((usage.prompt(), usage.completion()), (Some(7), Some(20)));
    }
}
