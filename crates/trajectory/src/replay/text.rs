//! Replaces words of a text that differ from run to run by placeholders.
//!
//! | word | stands for |
//! | --- | --- |
//! | `<uuid>` | 8-4-4-4-12 hexadecimal digits |
//! | `<time>` | a date, a time of day, or both, as in ISO 8601; a month and a day as in `ls` |
//! | `<took>` | a number right before `s`, `ms`, `us`, `ns`, and the output of `time` |
//! | `<tmp>` | what comes after `/tmp/tmp` in a word; `tmp.` and ten letters and digits; 16 digits after `.arenite-`; the generated part of `arenite-cp.…` and `screenshot-….png` |
//! | `<address>` | `0x` and at least six hexadecimal digits |
//! | `<port>` | a port of 32768 and above behind a host or an address |
//! | `<pid>` | the number that a shell prints for a job |

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The text with such words replaced.
pub(super) fn masked(text: &str) -> String {
    read(text, &mut |_| {})
}

/// Names generated for this run alone, in their order: of temporary files, and what looks like a UUID. Later steps may use them.
pub(super) fn made_up(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    read(text, &mut |name| names.push(name));
    names
}

fn read<'a>(text: &'a str, made_up: &mut dyn FnMut(&'a str)) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    // The word before, and whether only spaces are between.
    let mut before = "";
    while !rest.is_empty() {
        let end = rest.find(is_gap).unwrap_or(rest.len());
        if end == 0 {
            let gap = rest.find(|c| !is_gap(c)).unwrap_or(rest.len());
            if rest[..gap].contains('\n') {
                before = "";
            }
            let of_day = MONTHS.contains(&before);
            // `Mar  1` and `Mar 11` have the same width in a listing only with their spaces.
            out.push_str(if of_day { " " } else { &rest[..gap] });
            rest = &rest[gap..];
            continue;
        }
        let word = &rest[..end];
        match of_word(word, before, made_up) {
            Some(mask) => out.push_str(&mask),
            None => out.push_str(word),
        }
        before = word;
        rest = &rest[end..];
    }
    out
}

fn is_gap(c: char) -> bool {
    c.is_whitespace() || "\"'`()<>{},;=|".contains(c)
}

fn of_word<'a>(word: &'a str, before: &str, made_up: &mut dyn FnMut(&'a str)) -> Option<String> {
    let bare = word.trim_end_matches(['.', ':', ']']);
    let tail = &word[bare.len()..];
    let whole = |mask: &str| Some(format!("{mask}{tail}"));
    if is_uuid(bare) {
        made_up(bare);
        return whole("<uuid>");
    }
    if is_time(bare) || (MONTHS.contains(&before) && is_number(bare) && bare.len() <= 2) {
        return whole("<time>");
    }
    if is_took(bare) {
        return whole("<took>");
    }
    if before.len() > 2
        && before.starts_with('[')
        && before.ends_with(']')
        && is_number(&before[1..before.len() - 1])
        && is_number(bare)
    {
        return whole("<pid>");
    }
    if let Some((head, rest)) = bare.split_once(".arenite-")
        && let Some((name, rest)) = rest.split_at_checked(16)
        && name.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Some(format!("{}.arenite-<tmp>{rest}{tail}", of_word(head, "", made_up).unwrap_or_else(|| head.to_owned())));
    }
    if let Some((head, name, rest)) = numbered(bare) {
        made_up(name);
        return Some(format!("{head}<tmp>{rest}{tail}"));
    }
    if let Some((head, _)) = bare.split_once("/tmp/tmp") {
        let rest = &bare[head.len() + "/tmp/tmp".len()..];
        let name = rest.find('/').unwrap_or(rest.len());
        if name == 0 {
            return None;
        }
        let start = head.len() + "/tmp/".len();
        made_up(&bare[start..start + "tmp".len() + name]);
        return Some(format!("{head}/tmp/<tmp>{}{tail}", &rest[name..]));
    }
    // The format of `mktemp`, alone.
    if bare.strip_prefix("tmp.").is_some_and(|name| name.len() == 10 && name.bytes().all(|b| b.is_ascii_alphanumeric())) {
        made_up(bare);
        return Some("<tmp>".to_owned() + tail);
    }
    if let Some((head, digits)) = bare.split_once("0x")
        && digits.len() >= 6
        && digits.bytes().all(|b| b.is_ascii_hexdigit())
    {
        return Some(format!("{head}<address>{tail}"));
    }
    of_port(word)
}

/// Names that this program generates: `arenite-cp.` and eight letters and digits, `screenshot-` and hexadecimal digits before
/// `.png`. Returns the text before, the whole name, and the text after.
fn numbered(word: &str) -> Option<(&str, &str, &str)> {
    const NAMES: [(&str, &str); 2] = [("arenite-cp.", ""), ("screenshot-", ".png")];
    NAMES.into_iter().find_map(|(first, last)| {
        let at = word.find(first)?;
        let made = &word[at + first.len()..];
        let end = made.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(made.len());
        let fits =
            end >= 8 && made[end..].starts_with(last) && (last.is_empty() || made[..end].bytes().all(|b| b.is_ascii_hexdigit()));
        fits.then(|| (&word[..at + first.len()], &word[at..at + first.len() + end], &made[end..]))
    })
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, b)| if matches!(at, 8 | 13 | 18 | 23) { b == b'-' } else { b.is_ascii_hexdigit() })
}

/// `2026-03-01`, `10:00`, `10:00:00.5`, `2026-03-01T10:00:00Z`.
fn is_time(text: &str) -> bool {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { 'd' } else { c }).collect();
    let clock = |shape: &str| {
        let shape = shape.trim_end_matches('Z');
        let shape =
            shape.rsplit_once(['+', '-']).filter(|(_, zone)| matches!(*zone, "dd:dd" | "dddd")).map_or(shape, |(clock, _)| clock);
        let (clock, fraction) = shape.split_once(['.', ',']).unwrap_or((shape, "d"));
        matches!(clock, "dd:dd" | "dd:dd:dd") && !fraction.is_empty() && fraction.chars().all(|c| c == 'd')
    };
    match shape.strip_prefix("dddd-dd-dd") {
        Some("") => true,
        Some(rest) => rest.strip_prefix(['T', '_']).is_some_and(clock),
        None => clock(&shape),
    }
}

/// `0.53s`, `12ms`, `0m0.003s`.
fn is_took(text: &str) -> bool {
    let units = ["ms", "us", "µs", "ns", "s"];
    let Some(number) = units.iter().find_map(|unit| text.strip_suffix(unit)) else { return false };
    let number = number.split_once('m').filter(|(minutes, _)| is_number(minutes)).map_or(number, |(_, seconds)| seconds);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    is_number(whole) && is_number(fraction)
}

/// `127.0.0.1:45123`, `http://localhost:45123/x`.
fn of_port(word: &str) -> Option<String> {
    let (at, _) = word.match_indices(':').find(|(at, _)| {
        let digits = word[at + 1..].bytes().take_while(u8::is_ascii_digit).count();
        let host = word[..*at].rsplit(['/', '@']).next().unwrap_or_default();
        let known = host.contains('.') || host == "localhost" || host.ends_with(']');
        known && digits == 5 && word[at + 1..at + 6].parse::<u32>().is_ok_and(|port| (32768..65536).contains(&port))
    })?;
    Some(format!("{}:<port>{}", &word[..at], &word[at + 6..]))
}

#[cfg(test)]
mod tests {
    use super::{made_up, masked};

    #[test]
    fn names_made_up_for_one_run_are_found_in_their_order() {
        let text = "/tmp/tmp.Ab12Cd34Ef/x and tmp.Gh56Ij78Kl, 3f2b8c1e-0000-4000-8000-00000000abcd at 10:00:00 (/tmp/tmp_1)";
        assert_eq!(made_up(text), ["tmp.Ab12Cd34Ef", "tmp.Gh56Ij78Kl", "3f2b8c1e-0000-4000-8000-00000000abcd", "tmp_1"]);
    }

    #[test]
    fn words_of_their_run_are_masked_and_all_others_stay() {
        for (text, wanted) in [
            ("a.csv  b.csv\n", "a.csv  b.csv\n"),
            ("id=3f2b8c1e-0000-4000-8000-00000000abcd.", "id=<uuid>."),
            ("at 2026-03-01T10:00:00.123Z, 2026-03-01 10:00:00", "at <time>, <time> <time>"),
            ("2026-03-01T10:00:00+02:00", "<time>"),
            ("-rw-r--r-- 1 root root 12 Mar  1 10:00 f", "-rw-r--r-- 1 root root 12 Mar <time> <time> f"),
            ("-rw-r--r-- 1 root root 12 Mar 11 10:00 f", "-rw-r--r-- 1 root root 12 Mar <time> <time> f"),
            ("3 passed in 0.12s, 40 items", "3 passed in <took>, 40 items"),
            ("real\t0m0.003s", "real\t<took>"),
            ("wrote /tmp/tmp.Ab12Cd34Ef/out.txt", "wrote /tmp/<tmp>/out.txt"),
            ("'/tmp/tmpab_12xyz'", "'/tmp/<tmp>'"),
            ("/tmp/tmp.Ab12/.arenite-158ec1e196700d59/new/x:", "/tmp/<tmp>/.arenite-<tmp>/new/x:"),
            ("tmp.Ab12Cd34Ef tmp.txt", "<tmp> tmp.txt"),
            ("/var/tmp/arenite-cp.Ab12Cd34", "/var/tmp/arenite-cp.<tmp>"),
            ("/home/gem/pictures/screenshot-0011aabbccddeeff.png", "/home/gem/pictures/screenshot-<tmp>.png"),
            ("screenshot-final.png screenshot-1.png", "screenshot-final.png screenshot-1.png"),
            ("<Foo object at 0x7f12ab34cd56>", "<Foo object at <address>>"),
            ("http://127.0.0.1:45123/x and localhost:8080", "http://127.0.0.1:<port>/x and localhost:8080"),
            ("[1] 12345\n", "[1] <pid>\n"),
            ("[1, 2] 7 items: 5 files", "[1, 2] 7 items: 5 files"),
            ("ratio 12:30:99999", "ratio 12:30:99999"),
            ("Mar\n12", "Mar\n12"),
            ("ä ö 5 s ß", "ä ö 5 s ß"),
        ] {
            assert_eq!(masked(text), wanted, "{text}");
        }
    }
}
