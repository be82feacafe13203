//! A search through many files, next to ripgrep's command line on the same files, in the same sandbox.

use std::time::{Duration, Instant};

use serde_json::json;

use super::http::Connection;
use super::report::Row;
use crate::command::{find, program};
use crate::failure::{Attempt, Failure};

const NAME: &str = "bench-search";
const FILES: usize = 200_000;
const FILE_BYTES: usize = 5_200;
const DIRECTORIES: usize = 2_000;
/// One in this number of files has a match.
const EVERY: usize = 500;
const ROUNDS: usize = 7;
/// Memory for the tree and the kernel's data about it in the cache.
const MEMORY_BYTES: u64 = 8 << 30;

pub(super) fn measure(api: &mut Connection) -> Result<Row, Failure> {
    let Some(rg) = find("rg") else {
        return Ok(Row::plain("grep of 200,000 files (not measured: rg is not there)", 0.0, "ms"));
    };
    let _ = api.delete(NAME);
    api.post("/api/v2/sandboxes", &json!({ "name": NAME, "resources": { "memory_bytes": MEMORY_BYTES } }))?;
    let encoded = program("base64").arg("-w0").arg(&rg).output().attempt(|| format!("could not read {}", rg.display()))?;
    let content = String::from_utf8_lossy(&encoded.stdout).into_owned();
    let base = format!("/sandbox/{NAME}/v1/file");
    api.post(&format!("{base}/write"), &json!({ "file": "/home/gem/rg", "content": content, "encoding": "base64" }))?;
    api.bash(NAME, "chmod +x ~/rg")?;
    // In pieces, each well within a call's time limit.
    let piece = FILES / 8;
    for from in (0..FILES).step_by(piece) {
        api.bash(NAME, &tree(from, from + piece))?;
    }
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let expected = FILES / EVERY;
    for round in 0..=ROUNDS {
        let begun = Instant::now();
        let found = api.post(&format!("{base}/grep"), &json!({ "path": "/home/gem/tree", "pattern": "needle [0-9]+ found" }))?;
        let one = begun.elapsed();
        let (count, searched) = (found["data"]["match_count"].as_u64(), found["data"]["files_searched"].as_u64());
        if (count, searched) != (Some(expected as u64), Some(FILES as u64)) {
            return Err(Failure::new(format!("grep found {count:?} matches in {searched:?} files")));
        }
        let begun = Instant::now();
        let lines = api.bash(NAME, "~/rg -n 'needle [0-9]+ found' ~/tree | wc -l")?;
        let other: Duration = begun.elapsed();
        if lines.trim() != expected.to_string() {
            return Err(Failure::new(format!("rg found {lines:?}")));
        }
        if round > 0 {
            ours.push(one);
            theirs.push(other);
        }
    }
    api.delete(NAME)?;
    Ok(Row::ratio("grep of 200,000 files, 1 GB, p50", &ours, 0.5, &theirs, 0.5, 1.3).against("rg in the same sandbox"))
}

/// A command that creates files of many lines, some of them with a match.
fn tree(from: usize, to: usize) -> String {
    format!(
        "mkdir -p ~/tree && cd ~/tree && for d in $(seq 0 {last}); do echo d$((d % 40))/d$d; done | xargs mkdir -p && \
         awk 'BEGIN {{ line = \"some words of an ordinary line, with names_like_this(and, numbers: 12345);\"; \
         for (i = {from}; i < {to}; i++) {{ d = i % {DIRECTORIES}; f = \"d\" d % 40 \"/d\" d \"/file\" i \".txt\"; n = 0; \
         while (n < {FILE_BYTES}) {{ print line, i, n > f; n += length(line) + 12 }} \
         if (i % {EVERY} == 0) print \"a needle\", i, \"found\" > f; close(f) }} }}'",
        last = DIRECTORIES - 1,
    )
}
