//! Keys as pages know them: `key`, `code`, and key code, on a US keyboard.

/// One key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) key: String,
    pub(super) code: String,
    /// The Windows virtual key code.
    pub(super) number: u32,
    /// The text that it types.
    pub(super) text: Option<String>,
    /// Whether it is typed with Shift.
    pub(super) shift: bool,
}

pub(super) const ALT: u8 = 1;
pub(super) const CONTROL: u8 = 2;
pub(super) const META: u8 = 4;
pub(super) const SHIFT: u8 = 8;

/// `key`, `code`, key code, and other names, in lower case and without `_`, `-`, and spaces.
#[rustfmt::skip]
const NAMED: &[(&str, &str, u32, &[&str])] = &[
    ("Backspace", "Backspace", 8, &[]), ("Tab", "Tab", 9, &[]), ("Enter", "Enter", 13, &["return", "kpenter", "numpadenter"]),
    ("Shift", "ShiftLeft", 16, &["shiftl", "shiftr", "shiftright"]),
    ("Control", "ControlLeft", 17, &["ctrl", "controll", "controlr", "controlright", "controlormeta"]),
    ("Alt", "AltLeft", 18, &["altl", "altr", "altright", "option"]), ("Pause", "Pause", 19, &[]), ("CapsLock", "CapsLock", 20, &[]),
    ("Escape", "Escape", 27, &["esc"]), ("PageUp", "PageUp", 33, &["prior", "pgup"]), ("PageDown", "PageDown", 34, &["next", "pgdn", "pgdown"]),
    ("End", "End", 35, &[]), ("Home", "Home", 36, &[]), ("ArrowLeft", "ArrowLeft", 37, &["left"]), ("ArrowUp", "ArrowUp", 38, &["up"]),
    ("ArrowRight", "ArrowRight", 39, &["right"]), ("ArrowDown", "ArrowDown", 40, &["down"]),
    ("PrintScreen", "PrintScreen", 44, &["print"]), ("Insert", "Insert", 45, &["ins"]), ("Delete", "Delete", 46, &["del"]),
    ("Meta", "MetaLeft", 91, &["super", "superl", "superr", "win", "windows", "cmd", "command", "metal", "metar", "metaright"]),
    ("ContextMenu", "ContextMenu", 93, &["menu", "apps"]), ("NumLock", "NumLock", 144, &[]), ("ScrollLock", "ScrollLock", 145, &[]),
];

/// The keys of signs: the character alone, with Shift, code, key code.
#[rustfmt::skip]
const SIGNS: &[(char, char, &str, u32)] = &[
    ('`', '~', "Backquote", 192), ('-', '_', "Minus", 189), ('=', '+', "Equal", 187), ('[', '{', "BracketLeft", 219),
    (']', '}', "BracketRight", 221), ('\\', '|', "Backslash", 220), (';', ':', "Semicolon", 186), ('\'', '"', "Quote", 222),
    (',', '<', "Comma", 188), ('.', '>', "Period", 190), ('/', '?', "Slash", 191), (' ', ' ', "Space", 32),
];
const DIGITS: &str = ")!@#$%^&*(";

/// Other names of signs.
#[rustfmt::skip]
const SIGN_NAMES: &[(&str, char)] = &[
    ("space", ' '), ("spacebar", ' '), ("minus", '-'), ("plus", '+'), ("equal", '='), ("equals", '='), ("comma", ','), ("period", '.'),
    ("dot", '.'), ("slash", '/'), ("backslash", '\\'), ("semicolon", ';'), ("quote", '\''), ("apostrophe", '\''), ("backquote", '`'),
    ("grave", '`'), ("bracketleft", '['), ("bracketright", ']'), ("asterisk", '*'), ("question", '?'), ("exclam", '!'), ("at", '@'),
    ("numbersign", '#'), ("dollar", '$'), ("percent", '%'), ("ampersand", '&'), ("parenleft", '('), ("parenright", ')'),
    ("underscore", '_'), ("colon", ':'), ("less", '<'), ("greater", '>'), ("bar", '|'), ("braceleft", '{'), ("braceright", '}'),
    ("asciitilde", '~'), ("tilde", '~'), ("quotedbl", '"'), ("asciicircum", '^'),
];

impl Key {
    fn typing(character: char, code: String, number: u32, shift: bool) -> Self {
        Self { key: character.into(), code, number, text: Some(character.into()), shift }
    }

    /// The key that types a character; `None` if a US keyboard has no such key.
    pub(super) fn of_character(character: char) -> Option<Self> {
        if matches!(character, '\n' | '\r') {
            return Self::named("Enter");
        }
        if character == '\t' {
            return Self::named("Tab");
        }
        if character.is_ascii_alphabetic() {
            let upper = character.to_ascii_uppercase();
            return Some(Self::typing(character, format!("Key{upper}"), upper.into(), character.is_ascii_uppercase()));
        }
        let digit = character.to_digit(10).or_else(|| DIGITS.find(character).and_then(|at| u32::try_from(at).ok()));
        if let Some(digit) = digit {
            return Some(Self::typing(character, format!("Digit{digit}"), 48 + digit, !character.is_ascii_digit()));
        }
        let (alone, _, code, number) = SIGNS.iter().find(|(alone, shifted, ..)| [*alone, *shifted].contains(&character))?;
        Some(Self::typing(character, (*code).to_owned(), *number, character != *alone))
    }

    /// A key by its name in pages, its X11 name, a short name, or the character that it types.
    pub(super) fn named(name: &str) -> Option<Self> {
        let mut characters = name.chars();
        if let (Some(one), None) = (characters.next(), characters.next()) {
            return Self::of_character(one);
        }
        let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect();
        let known = NAMED.iter().find(|(key, code, _, others)| {
            key.to_lowercase() == plain || code.to_lowercase() == plain || others.contains(&plain.as_str())
        });
        if let Some((key, code, number, _)) = known {
            let text = (*key == "Enter").then(|| "\r".to_owned());
            return Some(Self { key: (*key).to_owned(), code: (*code).to_owned(), number: *number, text, shift: false });
        }
        if let Some((_, sign)) = SIGN_NAMES.iter().find(|(known, _)| *known == plain) {
            return Self::of_character(*sign);
        }
        if let Some(n) = plain.strip_prefix('f').and_then(|n| n.parse::<u32>().ok()).filter(|n| (1..=24).contains(n)) {
            return Some(Self { key: format!("F{n}"), code: format!("F{n}"), number: 111 + n, text: None, shift: false });
        }
        // A physical key, such as `KeyA` or `Digit1`.
        let place = plain.strip_prefix("key").or_else(|| plain.strip_prefix("digit")).filter(|place| place.len() == 1)?;
        Self::of_character(place.chars().next()?)
    }

    /// The same key while Shift is held.
    pub(super) fn shifted(self) -> Self {
        let one = self.text.as_deref().and_then(|text| text.chars().next());
        let other = match one {
            Some(letter) if letter.is_ascii_lowercase() => Some(letter.to_ascii_uppercase()),
            Some(digit) if digit.is_ascii_digit() => digit.to_digit(10).and_then(|at| DIGITS.chars().nth(at as usize)),
            Some(sign) => SIGNS.iter().find(|(alone, ..)| *alone == sign).map(|(_, shifted, ..)| *shifted),
            None => None,
        };
        other.and_then(Self::of_character).unwrap_or(self)
    }

    /// Its bit in a set of held modifiers.
    pub(super) fn modifier(&self) -> u8 {
        match self.key.as_str() {
            "Alt" => ALT,
            "Control" => CONTROL,
            "Meta" => META,
            "Shift" => SHIFT,
            _ => 0,
        }
    }
}

/// Parses keys that are written together, such as `Control+Shift+A`.
pub(super) fn chord(text: &str) -> Option<Vec<Key>> {
    if let Some(one) = Key::named(text) {
        return Some(vec![one]);
    }
    // The last of `Control++` is a plus.
    let (text, last) = match text.strip_suffix("++") {
        Some(rest) => (rest, Some('+')),
        None => (text, None),
    };
    text.split('+').map(|name| Key::named(name.trim())).chain(last.map(Key::of_character)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_many_names() {
        for name in ["Enter", "enter", "Return", "KP_Enter", "\n"] {
            assert_eq!(Key::named(name).unwrap().code, "Enter", "{name}");
        }
        for name in ["ctrl", "Control", "Control_L", "ControlLeft"] {
            assert_eq!(Key::named(name).unwrap().modifier(), CONTROL, "{name}");
        }
        assert_eq!(Key::named("F12").unwrap().number, 123);
        assert_eq!(Key::named("space").unwrap().text.unwrap(), " ");
        assert_eq!(Key::named("KeyA").unwrap().key, "a");
        for nonsense in ["", "F0", "F25", "nonsense", "é", "keyab", "Ctrl+"] {
            assert_eq!(Key::named(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn signs_are_on_their_keys() {
        assert_eq!(Key::named("b").unwrap().shifted().key, "B");
        assert_eq!(Key::named("1").unwrap().shifted().key, "!");
        assert_eq!(Key::named("/").unwrap().shifted().key, "?");
        assert_eq!(Key::named("End").unwrap().shifted().key, "End");
        for (character, code, shift) in [
            ('a', "KeyA", false),
            ('A', "KeyA", true),
            ('1', "Digit1", false),
            ('!', "Digit1", true),
            (')', "Digit0", true),
            ('"', "Quote", true),
            ('\\', "Backslash", false),
            (' ', "Space", false),
        ] {
            let key = Key::of_character(character).unwrap();
            assert_eq!((key.code.as_str(), key.shift), (code, shift), "{character}");
        }
    }

    #[test]
    fn chords_are_taken_apart() {
        let keys = |text| chord(text).map(|keys| keys.into_iter().map(|key| key.key).collect::<Vec<_>>());
        assert_eq!(keys("Control+Shift+A").unwrap(), ["Control", "Shift", "A"]);
        assert_eq!(keys("ctrl + a").unwrap(), ["Control", "a"]);
        assert_eq!(keys("Control++").unwrap(), ["Control", "+"]);
        assert_eq!(keys("+").unwrap(), ["+"]);
        for nonsense in ["Control+", "+a", "Hyper+a", "++"] {
            assert_eq!(keys(nonsense), None, "{nonsense}");
        }
    }
}
