use std::path::Path;

use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

use super::Reasoned;

/// Characters of a text that are looked at, for each token that is kept. More than any token has, so that what is cut off beyond it
/// is what the limit on tokens cuts off too.
const CHARACTERS: usize = 256;
/// No model has use for a shorter limit, and the tokens that a model adds need room.
const FEWEST: usize = 8;

/// Turns texts into the numbers of their tokens, by a `tokenizer.json`.
pub(super) struct Tokens {
    tokenizer: Tokenizer,
    /// With `[CLS]` and the like, as sentence encoders want them.
    special: bool,
    limit: usize,
}

impl Tokens {
    /// A text gets at most `limit` tokens.
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
        // What the file says of padding and limits is from when it was saved; it is not what the model is used with.
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

    /// What stands for what the tokenizer does not know, if there is such a token.
    pub(super) fn unknown(&self) -> Option<u32> {
        let model = serde_json::to_value(self.tokenizer.get_model()).ok()?;
        match (&model["unk_id"], &model["unk_token"]) {
            (serde_json::Value::Number(id), _) => id.as_u64().and_then(|id| u32::try_from(id).ok()),
            (_, serde_json::Value::String(token)) => self.tokenizer.token_to_id(token),
            _ => None,
        }
    }
}
