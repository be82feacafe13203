//! Keyboard input in a page.

use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::keys::{ALT, CONTROL, Key, META, SHIFT, chord};
use super::{PageError, PageLocation, Work};

/// Maximum characters that one call types key by key; longer text is inserted at once.
const MAX_TYPED: usize = 2000;
/// Maximum characters of one call.
const MAX_TEXT: usize = 10 << 20;
/// Maximum seconds that one call may spend on its delays.
const MAX_TIME: f64 = 300.0;
const MAX_KEYS: usize = 16;

impl Work {
    /// Types into the focused element, with `delay` milliseconds between keys.
    pub async fn type_text(&self, text: &str, delay: f64) -> Result<PageLocation, PageError> {
        if text.len() > MAX_TEXT {
            return Err(PageError::Bad(format!("a text can have {MAX_TEXT} bytes")));
        }
        let count = text.chars().count();
        if !(delay >= 0.0 && delay * count as f64 <= MAX_TIME * 1000.0) {
            return Err(PageError::Bad(format!("the delays would take longer than {MAX_TIME} seconds")));
        }
        let _hands = self.tab.hands.lock().await;
        if count > MAX_TYPED && delay == 0.0 {
            self.insert(text).await?;
        } else {
            for character in text.chars() {
                match Key::of_character(character) {
                    Some(key) => self.press(&key, shift(&key, 0)).await?,
                    None => self.insert(character.encode_utf8(&mut [0; 4])).await?,
                }
                if delay > 0.0 {
                    sleep(Duration::from_secs_f64(delay / 1000.0)).await;
                }
            }
        }
        self.settled().await
    }

    /// Inserts text at the cursor, and replaces the selection.
    pub(super) async fn insert(&self, text: &str) -> Result<(), PageError> {
        Ok(self.tab.effect("Input.insertText", json!({"text": text})).await?)
    }

    /// Presses one key, or several together such as `Control+A`.
    pub async fn press_key(&self, key: &str) -> Result<PageLocation, PageError> {
        let keys = chord(key).ok_or_else(|| PageError::Bad(format!("there is no key {key:?}")))?;
        self.chord(keys).await
    }

    pub(super) async fn hot_key(&self, keys: &[String]) -> Result<PageLocation, PageError> {
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(PageError::Bad(format!("give 1 to {MAX_KEYS} keys")));
        }
        let key = |name: &String| chord(name).ok_or_else(|| PageError::Bad(format!("there is no key {name:?}")));
        let keys: Vec<Vec<Key>> = keys.iter().map(key).collect::<Result<_, _>>()?;
        self.chord(keys.concat()).await
    }

    /// Presses keys in order, and releases them in reverse order.
    async fn chord(&self, keys: Vec<Key>) -> Result<PageLocation, PageError> {
        let hands = self.tab.hands.lock().await;
        let mut held = 0;
        let mut down: Vec<Key> = Vec::new();
        let mut failed = None;
        for key in &keys {
            held |= key.modifier();
            let key = &if held & SHIFT == 0 { key.clone() } else { key.clone().shifted() };
            if let Err(error) = self.key(key, true, held | shift(key, held)).await {
                failed = Some(error);
                break;
            }
            down.push(key.clone());
        }
        while let Some(key) = down.pop() {
            held &= !key.modifier();
            if let Err(error) = self.key(&key, false, held).await {
                failed.get_or_insert(error);
            }
        }
        drop(hands);
        match failed {
            // A key may close the tab.
            Some(PageError::Closed) | None => self.settled().await,
            Some(error) => Err(error),
        }
    }

    async fn press(&self, key: &Key, held: u8) -> Result<(), PageError> {
        self.key(key, true, held).await?;
        self.key(key, false, held).await
    }

    async fn key(&self, key: &Key, down: bool, held: u8) -> Result<(), PageError> {
        // With Control, Alt, or Meta, a key types nothing.
        let text = key.text.as_ref().filter(|_| down && held & (CONTROL | ALT | META) == 0);
        let kind = match (down, text) {
            (false, _) => "keyUp",
            (true, Some(_)) => "keyDown",
            (true, None) => "rawKeyDown",
        };
        let mut event = json!({
            "type": kind, "key": key.key, "code": key.code, "windowsVirtualKeyCode": key.number,
            "nativeVirtualKeyCode": key.number, "modifiers": held,
        });
        if let Some(text) = text {
            event["text"] = json!(text);
            event["unmodifiedText"] = json!(text);
        }
        Ok(self.tab.effect("Input.dispatchKeyEvent", event).await?)
    }
}

/// Shifted characters include Shift, unless they are a shortcut: `Control+A` is not `Control+Shift+A`.
fn shift(key: &Key, held: u8) -> u8 {
    if key.shift && held & (CONTROL | ALT | META) == 0 { SHIFT } else { 0 }
}
