use std::collections::HashMap;

use super::*;

const SIMPLE: LexicalSettings = LexicalSettings { language: Language::Simple, fold: false };

fn filled(dir: &Path, settings: LexicalSettings, texts: &[&str]) -> Lexical {
    let lexical = Lexical::create(dir, settings).unwrap();
    write(&lexical, 0, texts, &[]);
    lexical
}

fn write(lexical: &Lexical, from: u32, texts: &[&str], deleted: &[u32]) {
    let mut writer = lexical.writer().unwrap();
    for (ordinal, text) in (from..).zip(texts) {
        writer.add(ordinal, text).unwrap();
    }
    for ordinal in deleted {
        writer.delete(*ordinal).unwrap();
    }
    writer.commit(&mut |_| ()).unwrap();
}

fn found(lexical: &Lexical, query: &str, top_k: usize) -> Vec<u32> {
    lexical.search(query, top_k, None).unwrap().iter().map(|hit| hit.ordinal).collect()
}

/// Words that are rarer the higher their number, the same for every run.
fn passages(count: usize) -> Vec<String> {
    let mut state = 1u64;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    (0..count)
        .map(|_| {
            let words: Vec<_> =
                (0..5 + draw(30)).map(|_| draw(200).min(draw(200)).min(draw(200))).map(|n| format!("w{n}")).collect();
            words.join(" ")
        })
        .collect()
}

/// BM25 by its formula, without optimisation. Lengths are below 40, which tantivy keeps exactly.
fn by_formula(texts: &[String], query: &str, alive: impl Fn(u32) -> bool) -> Vec<Hit> {
    let mut counts: Vec<HashMap<&str, f32>> = vec![HashMap::new(); texts.len()];
    for (text, counts) in texts.iter().zip(&mut counts) {
        text.split(' ').for_each(|word| *counts.entry(word).or_default() += 1.0);
    }
    let length = |counts: &HashMap<&str, f32>| counts.values().sum::<f32>();
    let mean = counts.iter().map(length).sum::<f32>() / texts.len() as f32;
    let mut scores = vec![0f32; texts.len()];
    for word in query.split(' ') {
        let with = counts.iter().filter(|counts| counts.contains_key(word)).count() as f32;
        let idf = (1.0 + (texts.len() as f32 - with + 0.5) / (with + 0.5)).ln();
        for (counts, score) in counts.iter().zip(&mut scores) {
            let times = counts.get(word).copied().unwrap_or_default();
            *score += idf * times * (K1 + 1.0) / (times + K1 * (1.0 - B + B * length(counts) / mean));
        }
    }
    let mut hits: Vec<_> = (0..).zip(scores).map(|(ordinal, score)| Hit { ordinal, score }).collect();
    hits.retain(|hit| hit.score > 0.0 && alive(hit.ordinal));
    hits.sort_by(|one, other| other.score.total_cmp(&one.score).then(one.ordinal.cmp(&other.ordinal)));
    hits
}

fn assert_same(found: &[Hit], expected: &[Hit], top_k: usize) {
    assert_eq!(found.len(), expected.len().min(top_k));
    for (found, expected) in found.iter().zip(expected) {
        assert!((found.score - expected.score).abs() < 1e-4 * expected.score, "{found:?} is not {expected:?}");
    }
    let ordered =
        |pair: &[Hit]| pair[0].score > pair[1].score || (pair[0].score == pair[1].score && pair[0].ordinal < pair[1].ordinal);
    assert!(found.windows(2).all(ordered), "{found:?}");
}

#[test]
fn the_best_are_those_of_the_formula() {
    let dir = tempfile::tempdir().unwrap();
    let texts = passages(3000);
    let lexical = filled(dir.path(), SIMPLE, &texts.iter().map(String::as_str).collect::<Vec<_>>());
    let long = (20..90).map(|n| format!("w{n} ")).collect::<String>() + "w1";
    let (third, handful): (Ordinals, Ordinals) = ((0..3000).step_by(3).collect(), (5..3000).step_by(311).collect());
    for query in ["w0", "w3 w90 w40", "w1 w1 w1 w120", "w199 w0 w2 w5 w60 w61 w62 w63", "w7 nowhere", "w9 w9", &long] {
        for top_k in [1, 10, 100, 5000] {
            let all = lexical.search(query, top_k, None).unwrap();
            assert_same(&all, &by_formula(&texts, query, |_| true), top_k);
            for allowed in [&third, &handful] {
                let some = lexical.search(query, top_k, Some(allowed)).unwrap();
                assert_same(&some, &by_formula(&texts, query, |ordinal| allowed.contains(ordinal)), top_k);
            }
        }
    }
    assert!(lexical.search("w0", 10, Some(&Ordinals::default())).unwrap().is_empty());
    assert!(lexical.search("w0", 0, None).unwrap().is_empty());
}

#[test]
fn ties_go_by_ordinal_across_segments() {
    let dir = tempfile::tempdir().unwrap();
    let lexical = Lexical::create(dir.path(), SIMPLE).unwrap();
    let many = vec!["same words here"; 60_000];
    write(&lexical, 0, &many, &[0, 2]);
    write(&lexical, 100_000, &many[..50], &[]);
    assert_eq!(lexical.view().segments().len(), 2, "a small segment does not make a large one be written again");
    assert_eq!(found(&lexical, "words", 3), [1, 3, 4]);
    assert_eq!(found(&lexical, "words same", 3), [1, 3, 4]);
    let late: Ordinals = [2, 59_999, 100_002, 100_001, 100_050].into_iter().collect();
    let hits = lexical.search("same", 9, Some(&late)).unwrap();
    assert_eq!(hits.iter().map(|hit| hit.ordinal).collect::<Vec<_>>(), [59_999, 100_001, 100_002]);
    assert_eq!(lexical.len(), 60_048);
}

#[test]
fn small_segments_become_one() {
    let dir = tempfile::tempdir().unwrap();
    let lexical = Lexical::create(dir.path(), SIMPLE).unwrap();
    for from in 0..5 {
        write(&lexical, from * 10, &["one", "two"], &[]);
        assert_eq!(lexical.view().segments().len(), 1);
    }
    assert_eq!(found(&lexical, "two", 9), [1, 11, 21, 31, 41]);
    write(&lexical, 50, &[], &(0..50).filter(|one| *one != 21).collect::<Vec<_>>());
    assert_eq!((lexical.len(), found(&lexical, "two one", 9)), (1, vec![21]));
    let files =
        fs::read_dir(dir.path()).unwrap().filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().ends_with(".idx"));
    assert_eq!(files.count(), 1, "what was merged is gone");
}

#[test]
fn a_word_said_twice_counts_twice() {
    let dir = tempfile::tempdir().unwrap();
    let lexical = filled(dir.path(), SIMPLE, &["red apple", "blue apple", "blue pear", "green plum"]);
    assert_eq!(found(&lexical, "red pear", 9), [0, 2]);
    assert_eq!(found(&lexical, "red Pear PEAR", 9), [2, 0]);
    let score = |query| lexical.search(query, 1, None).unwrap()[0].score;
    assert_eq!(score("plum plum"), 2.0 * score("plum"));
}

#[test]
fn hostile_queries_are_bags_of_words() {
    let dir = tempfile::tempdir().unwrap();
    let lexical = filled(dir.path(), SIMPLE, &["red apple", "blue pear"]);
    for nothing in ["", " \n", "?!*:()[]\"'", "\u{0}\u{301}\u{feff}"] {
        assert!(found(&lexical, nothing, 5).is_empty(), "{nothing:?}");
    }
    assert_eq!(found(&lexical, "text:red AND NOT (\"apple\"~2 OR /.*/", 5), [0]);
    let many: String = (0..20_000).map(|n| format!("x{n} ")).collect();
    assert_eq!(found(&lexical, &format!("pear {many} red"), 5), [1], "words after the first {QUERY_TERMS} do not count");
    let same = "pear ".repeat(20_000);
    let score = lexical.search(&same, 1, None).unwrap()[0].score / lexical.search("pear", 1, None).unwrap()[0].score;
    assert!((score - QUERY_TOKENS as f32).abs() < 1.0, "{score}");
    assert!(lexical.search("red", usize::MAX, None).unwrap().len() == 1);
}

#[test]
fn an_index_keeps_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let settings = LexicalSettings { language: Language::French, fold: true };
    let texts = ["Des élèves étudient", "東京都に住む", "rien"];
    assert_eq!(found(&filled(dir.path(), settings, &texts), "ELEVE", 5), [0]);
    let lexical = Lexical::open(dir.path()).unwrap();
    assert_eq!(lexical.settings(), settings);
    assert_eq!(found(&lexical, "élève", 5), [0]);
    assert_eq!(found(&lexical, "京都", 5), [1]);
    assert_eq!(found(&lexical, "大阪", 5), [0; 0]);
    assert_eq!(lexical.tokens("les élèves"), ["elev"]);
    assert!(matches!(Lexical::create(dir.path(), settings), Err(Error::Invalid(_))));
}

#[test]
fn a_writer_keeps_order_and_others_out() {
    let dir = tempfile::tempdir().unwrap();
    let lexical = filled(dir.path(), SIMPLE, &["one", "two"]);
    let mut writer = lexical.writer().unwrap();
    assert!(matches!(lexical.writer(), Err(Error::Invalid(_))));
    assert!(matches!(writer.add(1, "again"), Err(Error::Invalid(_))));
    assert!(matches!(writer.add(2, &"x".repeat(TEXT_BYTES + 1)), Err(Error::Invalid(_))));
    writer.add(2, "two").unwrap();
    writer.delete(1).unwrap();
    writer.delete(7).unwrap();
    drop(writer);
    assert_eq!(found(&lexical, "two", 5), [1], "what was not committed was never there");
    write(&lexical, 1000, &["two"], &[1000, 1]);
    assert_eq!(found(&lexical, "two", 5), [0; 0], "what is added and deleted at once is not there");
}

#[test]
fn long_texts_wait_for_their_turn() {
    let dir = tempfile::tempdir().unwrap();
    let lexical = Lexical::create(dir.path(), SIMPLE).unwrap();
    let mut writer = lexical.writer().unwrap();
    let long = "long text ".repeat(TEXT_BYTES / 10);
    (0..4).for_each(|ordinal| writer.add(ordinal, &long).unwrap());
    writer.commit(&mut |_| ()).unwrap();
    assert_eq!(found(&lexical, "text", 9).len(), 4);
}

#[test]
fn a_linked_copy_is_written_to_without_its_original() {
    let (from, into) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let texts = passages(500);
    let lexical = filled(from.path(), SIMPLE, &texts.iter().map(String::as_str).collect::<Vec<_>>());
    write(&lexical, 500, &["w1 w2"], &[4]);
    let files = |dir: &Path| -> HashMap<_, _> {
        let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| (path.file_name().unwrap().to_owned(), fs::read(&path).unwrap())).collect()
    };
    let (before, hits) = (files(from.path()), lexical.search("w1 w5 w9", 20, None).unwrap());

    let next = into.path().join("next");
    let held = lexical.writer().unwrap();
    copy_links(from.path(), &next).unwrap();
    let copy = Lexical::open(&next).unwrap();
    write(&copy, 501, &["w1 w5 w9", "w1 w5 w9"], &(0..400).collect::<Vec<_>>());
    write(&copy, 503, &["w1 w5 w9"], &[501]);
    drop(held);

    assert_eq!((copy.len(), &found(&copy, "w1 w5 w9", 2)[..]), (103, &[502, 503][..]));
    assert_eq!(files(from.path()), before);
    for original in [lexical, Lexical::open(from.path()).unwrap()] {
        assert_eq!(original.search("w1 w5 w9", 20, None).unwrap(), hits);
    }
    fs::remove_dir_all(from.path()).unwrap();
    assert_eq!(Lexical::open(&next).unwrap().len(), 103);
}

#[test]
fn damage_is_told_and_never_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let texts = passages(300);
    let lexical = filled(dir.path(), SIMPLE, &texts.iter().map(String::as_str).collect::<Vec<_>>());
    write(&lexical, 300, &[], &[7]);
    drop(lexical);
    let whole: Vec<(PathBuf, Vec<u8>)> = fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_none_or(|extension| extension != "lock"))
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    assert!(whole.len() > 7, "{whole:?}");
    let tried = |path: &Path| {
        for open in [Lexical::open, Lexical::open_trusted] {
            let answer = open(dir.path()).and_then(|lexical| lexical.search("w1 w5 w9", 10, None));
            assert!(matches!(answer, Ok(_) | Err(Error::Corrupt { .. })), "{}: {answer:?}", path.display());
        }
        Lexical::open(dir.path()).map(drop)
    };
    for (path, bytes) in &whole {
        let keeps = |bad: &[u8]| {
            fs::write(path, bad).unwrap();
            tried(path).is_ok()
        };
        // It names files that may be removed, and is recreated.
        let managed = path.ends_with(".managed.json");
        assert!(!keeps(&[]) && !keeps(&bytes[..bytes.len() / 2]) && !keeps(&vec![0xA5; bytes.len()]), "{}", path.display());
        assert!(!keeps(&bytes[..bytes.len() - 2]), "{}", path.display());
        if path.extension().is_none_or(|extension| extension != "json") {
            let mut flipped = bytes.clone();
            flipped[bytes.len() / 3] ^= 4;
            assert!(!keeps(&flipped), "{}", path.display());
        }
        fs::remove_file(path).unwrap();
        assert_eq!(tried(path).is_ok(), managed, "{}", path.display());
        fs::write(path, bytes).unwrap();
    }
    assert_eq!(Lexical::open(dir.path()).unwrap().len(), 299);
    assert!(matches!(Lexical::open(&dir.path().join("nowhere")), Err(Error::Corrupt { .. })));
}
