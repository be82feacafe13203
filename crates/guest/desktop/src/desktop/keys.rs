//! Names of keys, with the numbers of X11's `keysymdef.h`.

use x11rb::protocol::xproto::Keysym;

pub(super) const SHIFT: Keysym = 0xffe1;
/// Added to the Unicode number of a character beyond Latin-1.
const UNICODE: Keysym = 0x0100_0000;

/// Names in lower case and without `_`, `-`, and spaces: those of X11, of browsers (`ArrowLeft`), and short ones.
#[rustfmt::skip]
const NAMES: &[(&str, Keysym)] = &[
    ("backspace", 0xff08), ("tab", 0xff09), ("linefeed", 0xff0a), ("clear", 0xff0b), ("return", 0xff0d), ("enter", 0xff0d),
    ("pause", 0xff13), ("break", 0xff6b), ("scrolllock", 0xff14), ("sysreq", 0xff15), ("escape", 0xff1b), ("esc", 0xff1b),
    ("home", 0xff50), ("left", 0xff51), ("arrowleft", 0xff51), ("up", 0xff52), ("arrowup", 0xff52), ("right", 0xff53),
    ("arrowright", 0xff53), ("down", 0xff54), ("arrowdown", 0xff54), ("prior", 0xff55), ("pageup", 0xff55), ("pgup", 0xff55),
    ("next", 0xff56), ("pagedown", 0xff56), ("pgdn", 0xff56), ("pgdown", 0xff56), ("end", 0xff57), ("begin", 0xff58),
    ("select", 0xff60), ("print", 0xff61), ("printscreen", 0xff61), ("prtsc", 0xff61), ("prtscr", 0xff61), ("prntscrn", 0xff61),
    ("execute", 0xff62), ("insert", 0xff63), ("ins", 0xff63), ("undo", 0xff65), ("redo", 0xff66), ("menu", 0xff67),
    ("apps", 0xff67), ("contextmenu", 0xff67), ("find", 0xff68), ("cancel", 0xff69), ("help", 0xff6a), ("modeswitch", 0xff7e),
    ("numlock", 0xff7f), ("kpenter", 0xff8d), ("numpadenter", 0xff8d), ("kpmultiply", 0xffaa), ("multiply", 0xffaa),
    ("numpadmultiply", 0xffaa), ("kpadd", 0xffab), ("add", 0xffab), ("numpadadd", 0xffab), ("kpsubtract", 0xffad),
    ("subtract", 0xffad), ("numpadsubtract", 0xffad), ("kpdecimal", 0xffae), ("decimal", 0xffae), ("numpaddecimal", 0xffae),
    ("kpdivide", 0xffaf), ("divide", 0xffaf), ("numpaddivide", 0xffaf), ("shift", SHIFT), ("shiftl", SHIFT), ("shiftleft", SHIFT),
    ("shiftr", 0xffe2), ("shiftright", 0xffe2), ("control", 0xffe3), ("ctrl", 0xffe3), ("controll", 0xffe3),
    ("ctrlleft", 0xffe3), ("ctrll", 0xffe3), ("controlleft", 0xffe3), ("controlr", 0xffe4), ("ctrlright", 0xffe4),
    ("ctrlr", 0xffe4), ("controlright", 0xffe4), ("controlormeta", 0xffe3), ("capslock", 0xffe5), ("caps", 0xffe5),
    ("metal", 0xffe7), ("metar", 0xffe8), ("alt", 0xffe9), ("altl", 0xffe9), ("altleft", 0xffe9), ("option", 0xffe9),
    ("optionleft", 0xffe9), ("altr", 0xffea), ("altright", 0xffea), ("optionright", 0xffea), ("altgr", 0xfe03),
    ("altgraph", 0xfe03), ("isolevel3shift", 0xfe03), ("super", 0xffeb), ("superl", 0xffeb), ("win", 0xffeb),
    ("winleft", 0xffeb), ("windows", 0xffeb), ("meta", 0xffeb), ("metaleft", 0xffeb), ("cmd", 0xffeb), ("command", 0xffeb),
    ("os", 0xffeb), ("superr", 0xffec), ("winright", 0xffec), ("metaright", 0xffec), ("hyper", 0xffed), ("delete", 0xffff),
    ("del", 0xffff), ("space", 0x20), ("spacebar", 0x20), ("exclam", 0x21), ("quotedbl", 0x22), ("numbersign", 0x23),
    ("dollar", 0x24), ("percent", 0x25), ("ampersand", 0x26), ("apostrophe", 0x27), ("quote", 0x27), ("parenleft", 0x28),
    ("parenright", 0x29), ("asterisk", 0x2a), ("plus", 0x2b), ("comma", 0x2c), ("minus", 0x2d), ("period", 0x2e), ("dot", 0x2e),
    ("slash", 0x2f), ("colon", 0x3a), ("semicolon", 0x3b), ("less", 0x3c), ("equal", 0x3d), ("equals", 0x3d), ("greater", 0x3e),
    ("question", 0x3f), ("at", 0x40), ("bracketleft", 0x5b), ("backslash", 0x5c), ("bracketright", 0x5d), ("asciicircum", 0x5e),
    ("underscore", 0x5f), ("grave", 0x60), ("backquote", 0x60), ("braceleft", 0x7b), ("bar", 0x7c), ("braceright", 0x7d),
    ("asciitilde", 0x7e), ("tilde", 0x7e), ("volumedown", 0x1008_ff11), ("volumemute", 0x1008_ff12), ("volumeup", 0x1008_ff13),
    ("playpause", 0x1008_ff14), ("stop", 0x1008_ff15), ("prevtrack", 0x1008_ff16), ("nexttrack", 0x1008_ff17),
    ("browserback", 0x1008_ff26), ("browserforward", 0x1008_ff27), ("browserrefresh", 0x1008_ff29),
];

/// The keysym of a key by its name, or by its one character. A single letter is itself, in its case.
pub fn keysym(name: &str) -> Option<Keysym> {
    let mut characters = name.chars();
    if let (Some(one), None) = (characters.next(), characters.next()) {
        return of_character(one);
    }
    let plain: String = name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect();
    if let Some((_, keysym)) = NAMES.iter().find(|(known, _)| *known == plain) {
        return Some(*keysym);
    }
    let number = |digits: &str| digits.parse::<u32>().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    if let Some(n) = plain.strip_prefix('f').and_then(number).filter(|n| (1..=35).contains(n)) {
        return Some(0xffbd + n);
    }
    for pad in ["kp", "num", "numpad"] {
        if let Some(n) = plain.strip_prefix(pad).and_then(number).filter(|n| *n <= 9) {
            return Some(0xffb0 + n);
        }
    }
    for (place, length) in [("key", 1), ("digit", 1)] {
        if let Some(rest) = plain.strip_prefix(place).filter(|rest| rest.len() == length) {
            return rest.chars().next().filter(char::is_ascii_alphanumeric).and_then(of_character);
        }
    }
    None
}

/// The keysym that types a character; `None` if nothing does, as with control characters.
pub fn of_character(character: char) -> Option<Keysym> {
    Some(match character {
        '\n' | '\r' => 0xff0d,
        '\t' => 0xff09,
        '\u{8}' => 0xff08,
        '\u{1b}' => 0xff1b,
        '\u{7f}' => 0xffff,
        ' '..='~' | '\u{a0}'..='\u{ff}' => character as u32,
        character if character.is_control() => return None,
        character => UNICODE + character as u32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_names_that_clients_use() {
        for (names, wanted) in [
            (&["Return", "enter", "ENTER", "\n"][..], 0xff0d),
            (&["BackSpace", "backspace"], 0xff08),
            (&["Control_L", "ctrl", "Control", "ctrlleft", "ControlLeft"], 0xffe3),
            (&["Page_Down", "pagedown", "PageDown", "pgdn", "Next"], 0xff56),
            (&["ArrowUp", "up", "Up"], 0xff52),
            (&["space", " ", "Space"], 0x20),
            (&["F1", "f1"], 0xffbe),
            (&["f12"], 0xffc9),
            (&["KP_5", "num5", "Numpad5"], 0xffb5),
            (&["a", "KeyA"], 0x61),
            (&["A"], 0x41),
            (&["Digit7", "7"], 0x37),
            (&["win", "Super_L", "cmd", "Meta"], 0xffeb),
            (&["é"], 0xe9),
            (&["世"], 0x0100_4e16),
        ] {
            for name in names {
                assert_eq!(keysym(name), Some(wanted), "{name}");
            }
        }
        for name in ["", "nonsense", "f0", "f99", "num12", "f+1", "\u{1}"] {
            assert_eq!(keysym(name), None, "{name}");
        }
    }
}
