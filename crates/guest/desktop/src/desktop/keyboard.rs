//! The keyboard: keys by name, and any text.
//!
//! A character that is on no key of the layout is mapped to an unused key. Programs learn of it from the X server before the key
//! is pressed, as with any change of the layout. The key keeps the mapping until others need it.

use std::collections::VecDeque;
use std::time::Duration;

use x11rb::protocol::xproto::{ConnectionExt as _, Keycode, Keysym};
use x11rb::wrapper::ConnectionExt as _;

use super::keys::{self, SHIFT};
use super::screen::{Screen, ScreenError};

/// Maximum characters per batch.
const AT_ONCE: usize = 256;
/// Number of event loop turns that a program gets before a remapped key is pressed, and the duration of each.
const TURNS: usize = 3;
const TURN: Duration = Duration::from_millis(15);

/// The state of the keyboard's mappings.
#[derive(Debug)]
pub struct Keyboard {
    codes: (Keycode, Keycode),
    /// Keys that were remapped here, the oldest first.
    lent: VecDeque<(Keycode, Keysym)>,
}

impl Keyboard {
    pub(super) fn new(first: Keycode, last: Keycode) -> Self {
        Self { codes: (first, last), lent: VecDeque::new() }
    }
}

/// A snapshot of the layout: each key's meaning without and with shift.
struct Layout {
    first: Keycode,
    keys: Vec<[Keysym; 2]>,
}

/// A key, and whether shift must be held with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stroke {
    keycode: Keycode,
    shift: bool,
}

impl Layout {
    fn stroke(&self, keysym: Keysym) -> Option<Stroke> {
        let at = |shift: usize| self.keys.iter().position(|key| key[shift] == keysym);
        let (index, shift) = at(0).map(|i| (i, false)).or_else(|| at(1).map(|i| (i, true)))?;
        Some(Stroke { keycode: self.first + index as u8, shift })
    }

    /// Keys without a meaning.
    fn free(&self) -> impl DoubleEndedIterator<Item = Keycode> + '_ {
        let unused = self.keys.iter().enumerate().filter(|(_, key)| **key == [0, 0]);
        unused.map(|(index, _)| self.first + index as u8)
    }
}

impl Screen {
    fn layout(&self) -> Result<Layout, ScreenError> {
        let (first, last) = self.keyboard.codes;
        let reply = self.connection.get_keyboard_mapping(first, last - first + 1)?.reply()?;
        let width = usize::from(reply.keysyms_per_keycode).max(1);
        let keys = reply.keysyms.chunks(width).map(|key| [key[0], key.get(1).copied().unwrap_or(0)]);
        Ok(Layout { first, keys: keys.collect() })
    }

    /// Finds keys for all of these, and remaps unused keys where there are none. At most as many as there are keys to remap.
    fn strokes(&mut self, wanted: &[Keysym]) -> Result<Vec<Stroke>, ScreenError> {
        let mut layout = self.layout()?;
        let mut free: Vec<Keycode> = layout.free().rev().collect();
        let (mut changed, mut settled) = (false, false);
        for &keysym in wanted {
            if layout.stroke(keysym).is_some() {
                continue;
            }
            // The last keys first: programs know the first ones by their position.
            let code = match free.pop() {
                Some(code) => code,
                None => {
                    // Programs look up a key's meaning when they process it, so they must have processed the last one.
                    if !std::mem::replace(&mut settled, true) {
                        self.caught_up()?;
                    }
                    let position = self.keyboard.lent.iter().position(|(_, old)| !wanted.contains(old));
                    let taken = position.and_then(|position| self.keyboard.lent.remove(position));
                    taken.ok_or_else(|| unknown(keysym))?.0
                }
            };
            self.connection.change_keyboard_mapping(1, code, 2, &[keysym, keysym])?;
            self.keyboard.lent.push_back((code, keysym));
            layout.keys[usize::from(code - layout.first)] = [keysym, keysym];
            changed = true;
        }
        if changed {
            // A key that arrives before the program knows its new meaning has the old one, or none. Toolkits learn of it over
            // separate connections, which they read once the first has nothing more to read.
            self.connection.sync()?;
            self.caught_up()?;
            for _ in 0..TURNS {
                std::thread::sleep(TURN);
                self.caught_up()?;
            }
        }
        wanted.iter().map(|keysym| layout.stroke(*keysym).ok_or_else(|| unknown(*keysym))).collect()
    }

    /// Types a text literally; line ends are the return key.
    pub fn type_text(&mut self, text: &str) -> Result<(), ScreenError> {
        let text = text.replace("\r\n", "\n");
        let mut keysyms = Vec::with_capacity(text.len());
        for character in text.chars() {
            keysyms.push(keys::of_character(character).ok_or(ScreenError::NoCharacter(character))?);
        }
        let shift = self.strokes(&[SHIFT])?[0].keycode;
        for piece in keysyms.chunks(AT_ONCE) {
            let mut rest = piece;
            while !rest.is_empty() {
                let length = self.typable(rest)?;
                let (now, later) = rest.split_at(length);
                let strokes = self.strokes(now)?;
                let mut shifted = false;
                for stroke in strokes {
                    if stroke.shift != shifted {
                        self.key(shift, stroke.shift)?;
                        shifted = stroke.shift;
                    }
                    self.key(stroke.keycode, true)?;
                    self.key(stroke.keycode, false)?;
                }
                if shifted {
                    self.key(shift, false)?;
                }
                self.finish()?;
                rest = later;
            }
        }
        Ok(())
    }

    /// Returns how many of these can be typed before keys must be remapped again.
    fn typable(&self, keysyms: &[Keysym]) -> Result<usize, ScreenError> {
        let layout = self.layout()?;
        let room = layout.free().count() + self.keyboard.lent.len();
        let mut lent: Vec<Keysym> = Vec::new();
        for (at, keysym) in keysyms.iter().enumerate() {
            let own = self.keyboard.lent.iter().any(|(_, old)| old == keysym) || layout.stroke(*keysym).is_none();
            if own && !lent.contains(keysym) {
                if lent.len() == room {
                    return if at == 0 { Err(unknown(*keysym)) } else { Ok(at) };
                }
                lent.push(*keysym);
            }
        }
        Ok(keysyms.len())
    }

    /// Counts the characters of a text that are on no key.
    pub fn foreign(&self, text: &str) -> Result<usize, ScreenError> {
        let layout = self.layout()?;
        let lent = |keysym| self.keyboard.lent.iter().any(|(_, old)| *old == keysym);
        let is_foreign = |c: &char| keys::of_character(*c).is_some_and(|k| lent(k) || layout.stroke(k).is_none());
        Ok(text.chars().filter(is_foreign).count())
    }

    /// Presses or releases a key by its name.
    pub fn key_by_name(&mut self, name: &str, down: bool) -> Result<(), ScreenError> {
        let stroke = self.named(name)?;
        let shift = if stroke.shift { Some(self.strokes(&[SHIFT])?[0].keycode) } else { None };
        let order = if down { [shift, Some(stroke.keycode)] } else { [Some(stroke.keycode), shift] };
        for keycode in order.into_iter().flatten() {
            self.key(keycode, down)?;
        }
        self.finish()
    }

    /// Presses keys in order, and releases them in reverse order.
    pub fn hotkey(&mut self, names: &[String]) -> Result<(), ScreenError> {
        // All names are checked before the first press, so no key stays pressed because of an unknown one.
        for name in names {
            self.named(name)?;
        }
        let mut held: Vec<&String> = Vec::new();
        let mut outcome = Ok(());
        for name in names {
            outcome = self.key_by_name(name, true);
            if outcome.is_err() {
                break;
            }
            held.push(name);
        }
        for name in held.into_iter().rev() {
            self.key_by_name(name, false)?;
        }
        outcome
    }

    fn named(&mut self, name: &str) -> Result<Stroke, ScreenError> {
        let keysym = keys::keysym(name).ok_or_else(|| ScreenError::NoKey(name.chars().take(40).collect()))?;
        Ok(self.strokes(&[keysym])?[0])
    }
}

fn unknown(keysym: Keysym) -> ScreenError {
    ScreenError::NoKey(format!("{keysym:#x}"))
}
