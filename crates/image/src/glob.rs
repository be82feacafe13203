//! Patterns of file names: `*`, `?`, `[a-z]`, and `\` before a character that stands for itself.

/// Whether a pattern is not a plain name.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '[', '\\'])
}

/// A pattern for one component of a path, as Go's `filepath.Match` reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Glob {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    /// `*`: any characters, also none.
    Any,
    /// `?`: one character.
    One,
    Literal(char),
    Class {
        negated: bool,
        ranges: Vec<(char, char)>,
    },
}

impl Glob {
    /// Parses a pattern without `/`. None if a class or an escape does not end.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut tokens = Vec::new();
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            tokens.push(match c {
                '*' => Token::Any,
                '?' => Token::One,
                '\\' => Token::Literal(chars.next()?),
                '[' => {
                    let negated = chars.next_if(|c| matches!(c, '^' | '!')).is_some();
                    let mut ranges = Vec::new();
                    loop {
                        let low = match chars.next()? {
                            ']' if !ranges.is_empty() => break,
                            '\\' => chars.next()?,
                            c => c,
                        };
                        let is_range = chars.peek() == Some(&'-') && chars.clone().nth(1).is_some_and(|c| c != ']');
                        let high = if is_range {
                            chars.next();
                            match chars.next()? {
                                '\\' => chars.next()?,
                                c => c,
                            }
                        } else {
                            low
                        };
                        ranges.push((low, high));
                    }
                    Token::Class { negated, ranges }
                }
                c => Token::Literal(c),
            });
        }
        // Several in a row match the same, and would cost a return each.
        tokens.dedup_by(|a, b| *a == Token::Any && *b == Token::Any);
        Some(Self { tokens })
    }

    /// Whether the pattern matches a whole name. The time is at most the product of both lengths.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        let (mut token, mut at) = (0, 0);
        let mut last_any: Option<(usize, usize)> = None;
        loop {
            let fits = match self.tokens.get(token) {
                Some(Token::Any) => {
                    last_any = Some((token, at));
                    token += 1;
                    continue;
                }
                Some(wanted) => name.get(at).is_some_and(|c| wanted.fits(*c)),
                None if at == name.len() => return true,
                None => false,
            };
            if fits {
                token += 1;
                at += 1;
                continue;
            }
            // Only the last `*` needs to take another character: what earlier ones take does not help.
            match last_any {
                Some((any, from)) if from < name.len() => {
                    last_any = Some((any, from + 1));
                    token = any + 1;
                    at = from + 1;
                }
                _ => return false,
            }
        }
    }
}

impl Token {
    fn fits(&self, c: char) -> bool {
        match self {
            Self::Any => false,
            Self::One => true,
            Self::Literal(wanted) => c == *wanted,
            Self::Class { negated, ranges } => ranges.iter().any(|(low, high)| (*low..=*high).contains(&c)) != *negated,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_go() {
        for (pattern, name, expected) in [
            ("*", "", true),
            ("*.py", "a.py", true),
            ("*.py", "a.pyc", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("?", "é", true),
            ("?", "", false),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[!a-c]x", "dx", true),
            ("[]a]", "]", true),
            ("[a-]", "-", true),
            ("[\\]]", "]", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("arr[[]0].txt", "arr[0].txt", true),
            ("", "", true),
            ("", "a", false),
            ("***", "abc", true),
        ] {
            assert_eq!(Glob::parse(pattern).unwrap().matches(name), expected, "{pattern:?} on {name:?}");
        }
        for bad in ["[", "[a", "[a-", "a\\", "[]", "[^]"] {
            assert_eq!(Glob::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn a_hostile_pattern_takes_no_longer_than_both_lengths_allow() {
        let pattern = "*a".repeat(2000);
        let started = std::time::Instant::now();
        assert!(!Glob::parse(&pattern).unwrap().matches(&"a".repeat(1999)));
        assert!(started.elapsed() < std::time::Duration::from_secs(5));
    }
}
