//! Splits long texts into pieces that fit a model.

/// How documents are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunking {
    /// Maximum number of words of a piece.
    pub words: usize,
    /// Number of words that a piece repeats from the previous one.
    pub overlap: usize,
}

impl Default for Chunking {
    fn default() -> Self {
        Self { words: 200, overlap: 40 }
    }
}

/// In scripts without spaces between words, this many characters count as one word.
const CHARACTERS: usize = 8;

/// The words of a text with the text between them, as adjacent ranges of bytes. A run without spaces is cut.
fn pieces(text: &str) -> Vec<(usize, usize)> {
    let mut pieces = Vec::new();
    let (mut from, mut length, mut spaced) = (0, 0, false);
    for (at, character) in text.char_indices() {
        let space = character.is_whitespace();
        if (spaced && !space) || length >= CHARACTERS * 4 || (length >= CHARACTERS && !character.is_ascii()) {
            pieces.push((from, at));
            (from, length) = (at, 0);
        }
        spaced = space;
        length += 1;
    }
    if from < text.len() {
        pieces.push((from, text.len()));
    }
    pieces
}

/// Splits text into pieces of at most this number of words. They end at the end of a paragraph or sentence if there is one in
/// their second half.
pub fn chunks(text: &str, chunking: Chunking) -> Vec<&str> {
    let most = chunking.words.max(1);
    let pieces = pieces(text);
    let mut chunks = Vec::new();
    let mut first = 0;
    while first < pieces.len() {
        let mut last = (first + most).min(pieces.len());
        if last < pieces.len() {
            let ends = |at: &usize, paragraph: bool| {
                let word = &text[pieces[*at - 1].0..pieces[*at - 1].1];
                if paragraph { word.contains("\n\n") } else { word.trim_end().ends_with(['.', '!', '?', '。', '！', '？']) }
            };
            let half = first + most.div_ceil(2)..=last;
            let end = half.clone().rev().find(|at| ends(at, true)).or_else(|| half.rev().find(|at| ends(at, false)));
            last = end.unwrap_or(last);
        }
        let chunk = text[pieces[first].0..pieces[last - 1].1].trim();
        if !chunk.is_empty() {
            chunks.push(chunk);
        }
        if last == pieces.len() {
            break;
        }
        first = last.saturating_sub(chunking.overlap.min(most / 2)).max(first + 1);
    }
    chunks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_the_text_and_end_where_sentences_do() {
        let sentence = "One two three four five six seven eight nine ten. ";
        let text = sentence.repeat(20);
        let cut = chunks(&text, Chunking { words: 25, overlap: 5 });
        assert!(cut.iter().all(|chunk| chunk.split_whitespace().count() <= 25));
        assert!(cut.iter().all(|chunk| chunk.ends_with("ten.")), "{cut:?}");
        assert!(cut[1].starts_with("six seven"), "{cut:?}");
        assert_eq!(chunks("short", Chunking::default()), ["short"]);
        assert!(chunks(" \n ", Chunking::default()).is_empty() && chunks("", Chunking::default()).is_empty());
    }

    #[test]
    fn text_without_spaces_is_cut_too() {
        let text = "漢".repeat(10_000);
        let cut = chunks(&text, Chunking { words: 100, overlap: 0 });
        assert!(cut.len() > 10 && cut.concat() == text, "{}", cut.len());
        let cut = chunks("a\n\nb c d e f g h i j k", Chunking { words: 3, overlap: 1 });
        assert!(cut.iter().all(|chunk| chunk.split_whitespace().count() <= 3), "{cut:?}");
        assert!(chunks(&"x".repeat(100_000), Chunking { words: 1, overlap: 9 }).len() > 1000);
    }
}
