//! Placeholders for values in what programs and people get to see: answers, and paths in events.

use std::borrow::Cow;

use http::{HeaderValue, response};

use super::replace::Replacer;
use super::{SandboxSecrets, Values};

impl SandboxSecrets {
    /// Masks values in the headers of an answer.
    pub(crate) fn mask_head(&self, parts: &mut response::Parts) {
        // The server's words for its status.
        parts.extensions.remove::<hyper::ext::ReasonPhrase>();
        let Some(values) = &self.values else { return };
        for value in parts.headers.values_mut().filter(|value| values.patterns.is_in(value.as_bytes())) {
            // Placeholders are visible ASCII, so only a header that was none before can fail.
            *value = HeaderValue::from_bytes(&values.mask(value.as_bytes())).unwrap_or(HeaderValue::from_static("***"));
        }
    }

    /// What masks values in a body. None if no value is recognised.
    pub(crate) fn answer_replacer(&self) -> Option<Replacer> {
        let values = self.values.as_ref()?;
        Some(Replacer::new(values.patterns.clone(), values.masks.clone()))
    }

    /// Masks values in a message. None if it has none.
    pub(crate) fn mask_bytes(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let values = self.values.as_ref()?;
        values.patterns.is_in(bytes).then(|| values.mask(bytes))
    }

    /// The text as events may have it.
    pub(crate) fn show<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match &self.values {
            Some(values) if values.patterns.is_in(text.as_bytes()) => {
                Cow::Owned(String::from_utf8_lossy(&values.mask(text.as_bytes())).into_owned())
            }
            _ => Cow::Borrowed(text),
        }
    }
}

impl Values {
    fn mask(&self, text: &[u8]) -> Vec<u8> {
        let mut replacer = Replacer::new(self.patterns.clone(), self.masks.clone());
        let (Ok(start), Ok(end)) = (replacer.push(text.to_vec().into()), replacer.finish()) else {
            return b"***".to_vec();
        };
        [start, end].concat()
    }
}
