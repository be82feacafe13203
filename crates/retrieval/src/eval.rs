//! Evaluates rankings against relevance judgements.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::Error;

/// The grade by query and passage. 0 is judged as not relevant.
pub type Judgements = HashMap<String, HashMap<String, u32>>;

/// A query with its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub id: String,
    pub text: String,
}

/// Means over all queries with a relevant passage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    pub queries: usize,
    pub ndcg_at_10: f64,
    pub recall_at_100: f64,
    pub mrr_at_10: f64,
}

/// Accumulates rankings of queries.
#[derive(Debug, Default)]
pub struct Evaluation {
    sums: Scores,
}

impl Evaluation {
    /// Adds a ranking of ids, best first. The first 100 count.
    pub fn add(&mut self, ranked: &[String], relevant: &HashMap<String, u32>) {
        let gain = |grade: u32| f64::from(grade);
        let discount = |place: usize| 1.0 / (place as f64 + 2.0).log2();
        let mut ideal: Vec<u32> = relevant.values().copied().filter(|grade| *grade > 0).collect();
        if ideal.is_empty() {
            return;
        }
        ideal.sort_unstable_by(|a, b| b.cmp(a));
        let best: f64 = ideal.iter().take(10).enumerate().map(|(place, grade)| gain(*grade) * discount(place)).sum();
        let grades: Vec<u32> = ranked.iter().take(100).map(|id| relevant.get(id).copied().unwrap_or(0)).collect();
        let found: f64 = grades.iter().take(10).enumerate().map(|(place, grade)| gain(*grade) * discount(place)).sum();
        self.sums.queries += 1;
        self.sums.ndcg_at_10 += found / best;
        self.sums.recall_at_100 += grades.iter().filter(|grade| **grade > 0).count() as f64 / ideal.len() as f64;
        let first = grades.iter().take(10).position(|grade| *grade > 0);
        self.sums.mrr_at_10 += first.map_or(0.0, |place| 1.0 / (place as f64 + 1.0));
    }

    pub fn scores(&self) -> Scores {
        let count = self.sums.queries.max(1) as f64;
        Scores {
            queries: self.sums.queries,
            ndcg_at_10: self.sums.ndcg_at_10 / count,
            recall_at_100: self.sums.recall_at_100 / count,
            mrr_at_10: self.sums.mrr_at_10 / count,
        }
    }
}

/// The numbered lines of a file.
fn lines(path: &Path) -> crate::Result<impl Iterator<Item = crate::Result<(usize, String)>>> {
    let owned = path.to_owned();
    let file = File::open(path).map_err(Error::io("open", path))?;
    Ok(BufReader::new(file)
        .lines()
        .enumerate()
        .map(move |(at, line)| line.map(|line| (at + 1, line)).map_err(Error::io("read", &owned))))
}

/// Judgements in the formats of TREC and BEIR: `query 0 passage grade`, or `query passage grade`, which may have a header line.
///
/// # Errors
/// [`Error::Corrupt`] names the first invalid line.
pub fn judgements(path: &Path) -> crate::Result<Judgements> {
    let mut judgements = Judgements::new();
    for line in lines(path)? {
        let (number, line) = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let (query, passage, grade) = match words[..] {
            [] => continue,
            [query, _, passage, grade] | [query, passage, grade] => (query, passage, grade),
            _ => return Err(Error::corrupt(path, format!("line {number} is no judgement"))),
        };
        match grade.parse::<i64>() {
            Ok(grade) => {
                let grade = u32::try_from(grade.max(0)).unwrap_or(u32::MAX);
                judgements.entry(query.to_owned()).or_default().insert(passage.to_owned(), grade);
            }
            Err(_) if number == 1 => {}
            Err(_) => return Err(Error::corrupt(path, format!("line {number} has a grade that is no number: {grade}"))),
        }
    }
    Ok(judgements)
}

/// Queries, one JSON object per line with `id` (or `_id`) and `text` (or `query`).
///
/// # Errors
/// [`Error::Corrupt`] names the first invalid line.
pub fn questions(path: &Path) -> crate::Result<Vec<Question>> {
    let mut questions = BTreeMap::new();
    for line in lines(path)? {
        let (number, line) = line?;
        if line.trim().is_empty() {
            continue;
        }
        let question: Value = serde_json::from_str(&line).unwrap_or_default();
        let field = |names: [&str; 2]| {
            names.iter().find_map(|name| match &question[*name] {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            })
        };
        let (Some(id), Some(text)) = (field(["id", "_id"]), field(["text", "query"])) else {
            return Err(Error::corrupt(path, format!("line {number} is no JSON object with an id and a text")));
        };
        questions.insert(number, Question { id, text });
    }
    Ok(questions.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rankings_are_scored() {
        let relevant = HashMap::from([("a".to_owned(), 2), ("b".to_owned(), 1), ("c".to_owned(), 0)]);
        let ranked = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        let mut perfect = Evaluation::default();
        perfect.add(&ranked(&["a", "b"]), &relevant);
        assert_eq!(perfect.scores(), Scores { queries: 1, ndcg_at_10: 1.0, recall_at_100: 1.0, mrr_at_10: 1.0 });
        let mut half = Evaluation::default();
        half.add(&ranked(&["c", "x", "b"]), &relevant);
        half.add(&ranked(&["x"]), &HashMap::from([("c".to_owned(), 0)]));
        let (scores, wanted) = (half.scores(), 0.5 / (2.0 + 1.0 / 3f64.log2()));
        assert!((scores.ndcg_at_10 - wanted).abs() < 1e-9 && scores.queries == 1, "{scores:?}");
        assert!((scores.recall_at_100 - 0.5).abs() < 1e-9 && (scores.mrr_at_10 - 1.0 / 3.0).abs() < 1e-9);
        assert_eq!(Evaluation::default().scores(), Scores::default());
    }

    #[test]
    fn files_of_trec_and_beir_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            std::fs::write(dir.path().join(name), text).unwrap();
            dir.path().join(name)
        };
        let trec = judgements(&file("trec", "q1 0 d1 2\n\nq1 0 d2 -1\n")).unwrap();
        assert_eq!(trec["q1"], HashMap::from([("d1".to_owned(), 2), ("d2".to_owned(), 0)]));
        assert_eq!(judgements(&file("beir", "query-id\tcorpus-id\tscore\nq1\td1\t1\n")).unwrap()["q1"]["d1"], 1);
        assert!(judgements(&file("bad", "q1 0 d1 1\nq1 d1 x\n")).unwrap_err().to_string().contains("line 2"));
        let read = questions(&file("q", "{\"_id\": 3, \"text\": \"a\"}\n\n{\"id\": \"q\", \"query\": \"b\"}\n")).unwrap();
        assert_eq!(read[0], Question { id: "3".to_owned(), text: "a".to_owned() });
        assert_eq!(read.len(), 2);
        assert!(questions(&file("q", "[1]\n")).unwrap_err().to_string().contains("line 1"));
    }
}
