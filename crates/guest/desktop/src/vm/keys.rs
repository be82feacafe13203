//! Keys of a VM: QEMU names them by their position on a keyboard, so the layout in the VM decides what they type. A US layout is
//! assumed.

use crate::desktop::{ScreenError, character_keysym, keysym};

/// A key by QEMU's name, and whether shift must be held with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stroke {
    pub(super) qcode: &'static str,
    pub(super) shift: bool,
}

/// Letters and digits in order, indexed by character.
const LETTERS: [&str; 26] = [
    "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q", "r", "s", "t", "u", "v", "w", "x", "y",
    "z",
];
const DIGITS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];
const FUNCTIONS: [&str; 12] = ["f1", "f2", "f3", "f4", "f5", "f6", "f7", "f8", "f9", "f10", "f11", "f12"];
const PAD: [&str; 10] = ["kp_0", "kp_1", "kp_2", "kp_3", "kp_4", "kp_5", "kp_6", "kp_7", "kp_8", "kp_9"];
/// The digit keys' characters with shift.
const ABOVE_DIGITS: &str = ")!@#$%^&*(";

/// The other characters: without shift, with shift, and the key's name.
#[rustfmt::skip]
const SIGNS: [(char, char, &str); 12] = [
    (' ', ' ', "spc"), ('-', '_', "minus"), ('=', '+', "equal"), ('[', '{', "bracket_left"), (']', '}', "bracket_right"),
    ('\\', '|', "backslash"), (';', ':', "semicolon"), ('\'', '"', "apostrophe"), ('`', '~', "grave_accent"), (',', '<', "comma"),
    ('.', '>', "dot"), ('/', '?', "slash"),
];

/// Keys without a character, by X11 keysym.
#[rustfmt::skip]
const OTHERS: &[(u32, &str)] = &[
    (0xff08, "backspace"), (0xff09, "tab"), (0xff0d, "ret"), (0xff13, "pause"), (0xff14, "scroll_lock"), (0xff15, "sysrq"),
    (0xff1b, "esc"), (0xff50, "home"), (0xff51, "left"), (0xff52, "up"), (0xff53, "right"), (0xff54, "down"), (0xff55, "pgup"),
    (0xff56, "pgdn"), (0xff57, "end"), (0xff61, "print"), (0xff63, "insert"), (0xff65, "undo"), (0xff67, "compose"),
    (0xff68, "find"), (0xff6a, "help"), (0xff7f, "num_lock"), (0xff8d, "kp_enter"), (0xffaa, "kp_multiply"), (0xffab, "kp_add"),
    (0xffad, "kp_subtract"), (0xffae, "kp_decimal"), (0xffaf, "kp_divide"), (0xffe1, "shift"), (0xffe2, "shift_r"),
    (0xffe3, "ctrl"), (0xffe4, "ctrl_r"), (0xffe5, "caps_lock"), (0xffe9, "alt"), (0xffea, "alt_r"), (0xfe03, "alt_r"),
    (0xffe7, "meta_l"), (0xffe8, "meta_r"), (0xffeb, "meta_l"), (0xffec, "meta_r"), (0xffff, "delete"),
    (0x1008_ff11, "volumedown"), (0x1008_ff12, "audiomute"), (0x1008_ff13, "volumeup"), (0x1008_ff14, "audioplay"),
    (0x1008_ff15, "audiostop"), (0x1008_ff16, "audioprev"), (0x1008_ff17, "audionext"), (0x1008_ff26, "ac_back"),
    (0x1008_ff27, "ac_forward"), (0x1008_ff29, "ac_refresh"),
];

/// Finds a key by its name on the sandbox's own screen.
pub(super) fn named(name: &str) -> Result<Stroke, ScreenError> {
    let unknown = || ScreenError::NoKey(name.chars().take(40).collect());
    of_keysym(keysym(name).ok_or_else(unknown)?).ok_or_else(unknown)
}

/// Finds the key that types a character; `None` if a US keyboard has none.
pub(super) fn of_character(character: char) -> Option<Stroke> {
    of_keysym(character_keysym(character)?)
}

fn of_keysym(keysym: u32) -> Option<Stroke> {
    let plain = |qcode| Some(Stroke { qcode, shift: false });
    if let Some(&(_, qcode)) = OTHERS.iter().find(|(number, _)| *number == keysym) {
        return plain(qcode);
    }
    match keysym {
        0xffbe..=0xffc9 => return plain(FUNCTIONS[(keysym - 0xffbe) as usize]),
        0xffb0..=0xffb9 => return plain(PAD[(keysym - 0xffb0) as usize]),
        _ => {}
    }
    let character = char::from_u32(keysym).filter(|c| c.is_ascii() && !c.is_ascii_control())?;
    let index = |of: char| (character as u8 - of as u8) as usize;
    match character {
        'a'..='z' => plain(LETTERS[index('a')]),
        'A'..='Z' => Some(Stroke { qcode: LETTERS[index('A')], shift: true }),
        '0'..='9' => plain(DIGITS[index('0')]),
        _ => {
            let digit = ABOVE_DIGITS.chars().position(|above| above == character);
            let shifted = digit.map(|digit| Stroke { qcode: DIGITS[digit], shift: true });
            shifted.or_else(|| {
                let (low, _, qcode) = SIGNS.into_iter().find(|(low, high, _)| *low == character || *high == character)?;
                Some(Stroke { qcode, shift: low != character })
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_character_of_ascii_has_a_stroke_of_its_own() {
        let mut seen = BTreeMap::new();
        for character in ' '..='~' {
            let stroke = of_character(character).unwrap_or_else(|| panic!("{character:?}"));
            if let Some(other) = seen.insert((stroke.qcode, stroke.shift), character) {
                panic!("{character:?} and {other:?} are one");
            }
        }
        for (character, qcode, shift) in [
            ('A', "a", true),
            ('z', "z", false),
            ('@', "2", true),
            ('"', "apostrophe", true),
            ('\n', "ret", false),
            ('~', "grave_accent", true),
        ] {
            assert_eq!(of_character(character), Some(Stroke { qcode, shift }), "{character:?}");
        }
        for character in ['é', '世', '\u{1}', '🙂'] {
            assert_eq!(of_character(character), None, "{character:?}");
        }
    }

    #[test]
    fn keys_have_the_names_of_the_other_screen() {
        for (name, qcode) in [
            ("Return", "ret"),
            ("ctrl", "ctrl"),
            ("Page_Down", "pgdn"),
            ("F12", "f12"),
            ("win", "meta_l"),
            ("KP_5", "kp_5"),
            ("Delete", "delete"),
        ] {
            assert_eq!(named(name).unwrap(), Stroke { qcode, shift: false }, "{name}");
        }
        assert!(named("A").unwrap().shift);
        for name in ["nonsense", "é", "f13", ""] {
            assert!(matches!(named(name), Err(ScreenError::NoKey(_))), "{name}");
        }
    }
}
