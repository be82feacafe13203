use std::str::CharIndices;

use serde::{Deserialize, Serialize};
use tantivy::tokenizer::{AsciiFoldingFilter, Language as Stemmed, Stemmer, StopWordFilter};
use tantivy::tokenizer::{TextAnalyzer, Token, TokenStream, Tokenizer};

/// Longer tokens are truncated to this number of bytes. No word is as long, but a line of base64 is, and every distinct token
/// costs an entry in the dictionary.
pub const TOKEN_BYTES: usize = 128;

/// How text is split into words. All but `simple` and `cjk` drop the language's most common words, if there is a list of them,
/// and stem the others. All but `simple` make overlapping pairs of the characters of Chinese, Japanese and Korean, which have
/// no spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// Runs of letters and digits in lower case, and nothing else: for comparison with a reference.
    Simple,
    #[serde(alias = "chinese", alias = "japanese", alias = "korean")]
    Cjk,
    Arabic,
    Danish,
    Dutch,
    #[default]
    English,
    Finnish,
    French,
    German,
    Greek,
    Hungarian,
    Italian,
    Norwegian,
    Portuguese,
    Romanian,
    Russian,
    Spanish,
    Swedish,
    Tamil,
    Turkish,
}

impl Language {
    fn stemmed(self) -> Option<Stemmed> {
        Some(match self {
            Self::Simple | Self::Cjk => return None,
            Self::Arabic => Stemmed::Arabic,
            Self::Danish => Stemmed::Danish,
            Self::Dutch => Stemmed::Dutch,
            Self::English => Stemmed::English,
            Self::Finnish => Stemmed::Finnish,
            Self::French => Stemmed::French,
            Self::German => Stemmed::German,
            Self::Greek => Stemmed::Greek,
            Self::Hungarian => Stemmed::Hungarian,
            Self::Italian => Stemmed::Italian,
            Self::Norwegian => Stemmed::Norwegian,
            Self::Portuguese => Stemmed::Portuguese,
            Self::Romanian => Stemmed::Romanian,
            Self::Russian => Stemmed::Russian,
            Self::Spanish => Stemmed::Spanish,
            Self::Swedish => Stemmed::Swedish,
            Self::Tamil => Stemmed::Tamil,
            Self::Turkish => Stemmed::Turkish,
        })
    }
}

/// Folding comes last, since stemmers depend on accents.
pub(super) fn analyzer(language: Language, fold: bool) -> TextAnalyzer {
    let mut chain = TextAnalyzer::builder(Words { plain: language == Language::Simple }).dynamic();
    if let Some(stemmed) = language.stemmed() {
        if let Some(stop) = StopWordFilter::new(stemmed) {
            chain = chain.filter_dynamic(stop);
        }
        chain = chain.filter_dynamic(Stemmer::new(stemmed));
    }
    if fold {
        chain = chain.filter_dynamic(AsciiFoldingFilter);
    }
    chain.build()
}

/// Splits text into words in lower case.
#[derive(Debug, Clone)]
struct Words {
    /// Only letters and digits make words, and no script is special.
    plain: bool,
}

impl Tokenizer for Words {
    type TokenStream<'a> = WordStream<'a>;

    fn token_stream<'a>(&'a mut self, text: &'a str) -> WordStream<'a> {
        let mut rest = text.char_indices();
        let next = rest.next();
        WordStream { plain: self.plain, text, rest, next, before: None, token: Token::default() }
    }
}

struct WordStream<'a> {
    plain: bool,
    text: &'a str,
    rest: CharIndices<'a>,
    /// The next character to process.
    next: Option<(usize, char)>,
    /// The start of the CJK character right before `next`: the first half of a pair.
    before: Option<usize>,
    token: Token,
}

#[derive(PartialEq, Clone, Copy)]
enum Kind {
    Word,
    Pair,
    Gap,
}

impl WordStream<'_> {
    fn kind(&self, c: char) -> Kind {
        match c {
            _ if c.is_ascii() => {
                if c.is_ascii_alphanumeric() {
                    Kind::Word
                } else {
                    Kind::Gap
                }
            }
            _ if self.plain => {
                if c.is_alphanumeric() {
                    Kind::Word
                } else {
                    Kind::Gap
                }
            }
            _ if is_cjk(c) => Kind::Pair,
            _ if c.is_alphanumeric() || is_mark(c) => Kind::Word,
            _ => Kind::Gap,
        }
    }

    fn step(&mut self) {
        self.next = self.rest.next();
    }

    /// The position of `next`.
    fn at(&self) -> usize {
        self.next.map_or(self.text.len(), |(at, _)| at)
    }

    fn put(&mut self, from: usize) -> bool {
        self.token.offset_from = from;
        self.token.offset_to = self.at();
        self.token.position = self.token.position.wrapping_add(1);
        true
    }

    fn word(&mut self, from: usize) -> bool {
        while let Some((_, c)) = self.next.filter(|(_, c)| self.kind(*c) == Kind::Word) {
            if self.token.text.len() < TOKEN_BYTES {
                for lower in c.to_lowercase() {
                    self.token.text.push(lower);
                }
            }
            self.step();
        }
        let end = self.token.text.floor_char_boundary(TOKEN_BYTES);
        self.token.text.truncate(end);
        self.put(from)
    }
}

impl TokenStream for WordStream<'_> {
    fn advance(&mut self) -> bool {
        self.token.text.clear();
        while let Some((at, c)) = self.next {
            match (self.kind(c), self.before.take()) {
                (Kind::Word, _) => return self.word(at),
                (Kind::Gap, _) => self.step(),
                (Kind::Pair, before) => {
                    self.step();
                    self.before = Some(at);
                    let goes_on = self.next.is_some_and(|(_, c)| self.kind(c) == Kind::Pair);
                    let Some(from) = before.or((!goes_on).then_some(at)) else { continue };
                    let end = self.at();
                    self.token.text.push_str(&self.text[from..end]);
                    return self.put(from);
                }
            }
        }
        false
    }

    fn token(&self) -> &Token {
        &self.token
    }

    fn token_mut(&mut self) -> &mut Token {
        &mut self.token
    }
}

/// Ideographs, kana and hangul, with the marks that lengthen or repeat them.
fn is_cjk(c: char) -> bool {
    matches!(c,
        '\u{1100}'..='\u{11FF}' | '\u{2E80}'..='\u{2FDF}' | '\u{3005}'..='\u{3007}' | '\u{3041}'..='\u{3096}'
        | '\u{309D}'..='\u{309F}' | '\u{30A1}'..='\u{30FA}' | '\u{30FC}'..='\u{31BF}' | '\u{31F0}'..='\u{31FF}'
        | '\u{3400}'..='\u{4DBF}' | '\u{4E00}'..='\u{9FFF}' | '\u{A960}'..='\u{A97F}' | '\u{AC00}'..='\u{D7FF}'
        | '\u{F900}'..='\u{FAFF}' | '\u{FF66}'..='\u{FF9F}' | '\u{20000}'..='\u{3FFFF}')
}

/// Marks inside a word that are no letters: combining accents, and the signs by which Indic scripts drop a vowel.
fn is_mark(c: char) -> bool {
    matches!(c,
        '\u{0300}'..='\u{036F}' | '\u{093C}' | '\u{094D}' | '\u{09BC}' | '\u{09CD}' | '\u{0A3C}' | '\u{0A4D}' | '\u{0ABC}' | '\u{0ACD}'
        | '\u{0B3C}' | '\u{0B4D}' | '\u{0BCD}' | '\u{0C4D}' | '\u{0CBC}' | '\u{0CCD}' | '\u{0D4D}' | '\u{0DCA}' | '\u{0E47}'..='\u{0E4E}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(language: Language, fold: bool, text: &str) -> Vec<String> {
        let mut analyzer = analyzer(language, fold);
        let mut stream = analyzer.token_stream(text);
        let mut words = Vec::new();
        while stream.advance() {
            let token = stream.token();
            assert!(text.get(token.offset_from..token.offset_to).is_some(), "a token lies on characters");
            words.push(token.text.clone());
        }
        words
    }

    #[test]
    fn simple_splits_and_lowers_alone() {
        let text = "The Cats' CAFÉ_no-7, 東京タワー!";
        assert_eq!(words(Language::Simple, false, text), ["the", "cats", "café", "no", "7", "東京タワー"]);
        assert!(words(Language::Simple, false, " .,;\u{0}\u{301}—\n").is_empty());
    }

    #[test]
    fn languages_stem_and_drop_what_is_common() {
        assert_eq!(words(Language::English, false, "The running cats are running to it"), ["run", "cat", "run"]);
        assert_eq!(words(Language::German, false, "Die Häuser und das Haus"), ["haus", "haus"]);
        assert_eq!(words(Language::French, true, "Les élèves"), ["elev"]);
        assert_eq!(words(Language::Tamil, false, "பட்டம்").len(), 1);
    }

    #[test]
    fn cjk_becomes_overlapping_pairs() {
        let text = "我喜欢Rust語. 猫 カタカナ と한국어 2024年";
        let expected = ["我喜", "喜欢", "rust", "語", "猫", "カタ", "タカ", "カナ", "と한", "한국", "국어", "2024", "年"];
        assert_eq!(words(Language::Cjk, false, text), expected);
        assert_eq!(words(Language::English, false, text), expected);
    }

    #[test]
    fn long_tokens_keep_their_beginning() {
        let text = format!("{} end {}", "x".repeat(1_000_000), "é".repeat(500));
        let found = words(Language::Simple, false, &text);
        assert_eq!(found, ["x".repeat(TOKEN_BYTES), "end".into(), "é".repeat(TOKEN_BYTES / 2)]);
        let odd = format!("a{}", "é".repeat(500));
        assert_eq!(words(Language::Simple, false, &odd)[0].len(), TOKEN_BYTES - 1);
    }

    #[test]
    fn the_languages_have_plain_names() {
        let read = |name: &str| serde_json::from_str::<Language>(&format!("\"{name}\""));
        assert_eq!(read("german").unwrap(), Language::German);
        assert_eq!(read("japanese").unwrap(), Language::Cjk);
        assert!(read("klingon").is_err());
    }
}
