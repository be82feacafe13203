use std::path::Path;

use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

use super::Reasoned;

/// Number of a text's characters per kept token that are tokenized. More than any token has, so the limit on tokens would cut
/// off the rest as well.
const CHARACTERS: usize = 256;
/// The minimum limit: shorter ones are useless, and the tokens that a model adds need room.
const FEWEST: usize = 8;

/// Converts texts to token ids, by a `tokenizer.json`.
pub(super) struct Tokens {
    tokenizer: Tokenizer,
    /// With `[CLS]` and similar tokens, for sentence encoders.
    special: bool,
    limit: usize,
}

impl Tokens {
    /// Opens a tokenizer. A text gets at most `limit` tokens.
    pub(super) fn open(folder: &Path, special: bool, limit: usize) -> Reasoned<Self> {
        let bytes = std::fs::read(folder.join("tokenizer.json")).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                "there is no tokenizer.json in the folder; save the model's fast tokenizer there".to_owned()
            }
            _ => format!("could not read tokenizer.json: {error}"),
        })?;
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| format!("tokenizer.json can't be used: {error}"))?;
        let limit = limit.max(FEWEST);
        let added = tokenizer.get_post_processor().map_or(0, |processor| processor.added_tokens(false));
        if added >= limit {
            return Err(format!("tokenizer.json adds {added} tokens to each text, and a text may have {limit}"));
        }
        // The padding and limits in the file are from when it was saved, not those of the model's use.
        tokenizer.with_padding(None);
        tokenizer
            .with_truncation(Some(TruncationParams { max_length: limit, ..TruncationParams::default() }))
            .map_err(|error| format!("tokenizer.json can't be used: {error}"))?;
        Ok(Self { tokenizer, special, limit })
    }

    pub(super) fn encode(&self, text: &str) -> Reasoned<Vec<u32>> {
        let end = text.char_indices().nth(self.limit * CHARACTERS).map_or(text.len(), |(at, _)| at);
        let encoding =
            self.tokenizer.encode_fast(&text[..end], self.special).map_err(|error| format!("a text has no tokens: {error}"))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The token for unknown text, if there is one.
    pub(super) fn unknown(&self) -> Option<u32> {
        let model = serde_json::to_value(self.tokenizer.get_model()).ok()?;
        match (&model["unk_id"], &model["unk_token"]) {
            (serde_json::Value::Number(id), _) => id.as_u64().and_then(|id| u32::try_from(id).ok()),
            (_, serde_json::Value::String(token)) => self.tokenizer.token_to_id(token),
            _ => None,
        }
    }
}
