use std::path::PathBuf;

use super::*;
use crate::embed::EmbedderSpec;
use crate::lexical::{Language, LexicalSettings};
use crate::search::{Corpus, Mode, Query};

fn settings(graph_from: u32) -> Settings {
    let dense = DenseSettings { graph_from, ..DenseSettings::new(EmbedderSpec::Hashing { dimension: 64 }, 64) };
    let lexical = LexicalSettings { language: Language::Simple, ..LexicalSettings::default() };
    Settings { lexical: Some(lexical), dense: Some(dense) }
}

fn passage(id: &str, text: &str) -> Passage {
    Passage { id: id.to_owned(), text: text.to_owned(), ..Passage::default() }
}

fn add(dir: &Path, settings: Option<Settings>, passages: &[(String, String)]) -> Report {
    let mut update = Index::update(dir, settings).unwrap();
    for (id, text) in passages {
        update.add(&passage(id, text)).unwrap();
    }
    update.commit().unwrap()
}

fn found(dir: &Path, text: &str, mode: Mode) -> Vec<String> {
    let corpus = Corpus::of_index(Index::open(dir).unwrap()).unwrap();
    let query = Query { text: text.to_owned(), top_k: 3, mode: Some(mode), filter: None };
    corpus.search(query).unwrap().into_iter().map(|found| found.passage.id).collect()
}

fn numbered(range: std::ops::Range<u32>, word: &str) -> Vec<(String, String)> {
    range.map(|n| (format!("p{n}"), format!("{word} number{n} of many"))).collect()
}

fn generations(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("gen-")).collect()
}

#[test]
fn passages_come_change_and_go() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("index");
    assert!(Index::open(&dir).is_err() && Index::update(&dir, None).is_err());
    // A graph links the second addition.
    add(&dir, Some(settings(40)), &numbered(0..30, "first"));
    let old = Index::open(&dir).unwrap();
    assert_eq!(
        add(&dir, None, &numbered(30..80, "second")),
        Report { added: 50, bytes: Index::open(&dir).unwrap().bytes, ..Report::default() }
    );
    assert!(old.is_stale() && old.len() == 30 && old.passage(29).unwrap().id == "p29", "who has it open reads on");
    for mode in Mode::ALL {
        assert_eq!(found(&dir, "second number77", mode)[0], "p77", "{mode:?}");
        assert_eq!(found(&dir, "first number7", mode)[0], "p7", "{mode:?}");
    }
    let mut update = Index::update(&dir, Some(settings(40))).unwrap();
    assert!(Index::update(&dir, None).is_err_and(|error| error.to_string().contains("being changed")));
    update.add(&passage("p7", "changed it is")).unwrap();
    update.add(&passage("p7", "changed again it is")).unwrap();
    assert!(update.remove("p8").unwrap() && !update.remove("p8").unwrap() && !update.remove("nobody").unwrap());
    let report = update.commit().unwrap();
    assert_eq!((report.added, report.replaced, report.removed), (2, 2, 1));
    let index = Index::open(&dir).unwrap();
    assert_eq!((index.len(), index.find("p8").unwrap(), index.stats().dead), (79, None, 3));
    assert_eq!(index.passage(index.find("p7").unwrap().unwrap()).unwrap().text, "changed again it is");
    for mode in [Mode::Bm25, Mode::Dense] {
        assert!(!found(&dir, "first number8", mode).contains(&"p8".to_owned()));
        assert_eq!(found(&dir, "changed again", mode)[0], "p7");
    }
    assert!(Index::update(&dir, Some(settings(41))).is_err(), "other settings");
    assert_eq!(generations(&dir).len(), 1);
}

#[test]
fn what_is_gone_is_written_away() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    add(dir, Some(settings(1000)), &numbered(0..100, "old"));
    let before = found(dir, "old number99", Mode::Dense);
    add(dir, None, &numbered(0..60, "new"));
    let stats = Index::open(dir).unwrap().stats();
    assert_eq!((stats.passages, stats.dead, stats.segments), (100, 0, 1), "all is one again");
    assert_eq!(found(dir, "old number99", Mode::Dense)[0], before[0], "vectors were carried over");
    assert_eq!(found(dir, "new number59", Mode::Bm25)[0], "p59");
    assert_eq!(found(dir, "old number59", Mode::Bm25)[0], "p59", "only its number is left of it");
    for n in 0..10 {
        add(dir, None, &numbered(200 + n..201 + n, "more"));
    }
    let stats = Index::open(dir).unwrap().stats();
    assert!(stats.segments <= 8 && stats.passages == 110, "{stats:?}");
    assert_eq!(generations(dir).len(), 1);
}

#[test]
fn a_change_that_is_dropped_was_never_there() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path();
    add(dir, Some(settings(1000)), &numbered(0..5, "kept"));
    let mut update = Index::update(dir, None).unwrap();
    update.add(&passage("x", "dropped")).unwrap();
    assert!(update.add(&passage("y", " ")).is_err());
    drop(update);
    // The next update removes what a kill left.
    std::fs::create_dir(dir.join("gen-000002.new")).unwrap();
    std::fs::write(dir.join("gen-000002.new/rest"), "x").unwrap();
    assert_eq!(Index::open(dir).unwrap().len(), 5);
    add(dir, None, &numbered(5..6, "kept"));
    assert_eq!((Index::open(dir).unwrap().len(), generations(dir).len()), (6, 1));
    assert!(found(dir, "dropped", Mode::Bm25).is_empty());
}

#[test]
fn an_index_without_words_or_without_vectors_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let words = Settings { dense: None, ..settings(1) };
    let meanings = Settings { lexical: None, ..settings(1000) };
    for (name, settings, mode, other) in [("w", words, Mode::Bm25, Mode::Dense), ("m", meanings, Mode::Dense, Mode::Bm25)] {
        let dir = scratch.path().join(name);
        add(&dir, Some(settings), &numbered(0..5, "word"));
        assert_eq!(found(&dir, "word number3", mode)[0], "p3");
        let corpus = Corpus::of_index(Index::open(&dir).unwrap()).unwrap();
        assert_eq!(corpus.best_mode(), mode);
        let query = Query { text: "word".to_owned(), top_k: 3, mode: Some(other), filter: None };
        assert!(corpus.search(query).unwrap_err().to_string().contains("without"));
    }
}
