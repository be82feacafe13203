//! Logs read back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::line::{Lines, LinesBack};
use crate::record::Head;
use crate::{IntentRecord, Kind, OutcomeRecord, Step, Summary, TrajectoryError};

/// Below this many bytes a log is read through rather than searched.
const SEARCH_ABOVE: u64 = 128 << 10;

/// Up to `limit` steps after the given one. `open` are those under way; others without an outcome were interrupted.
pub(super) fn steps(file: File, len: u64, open: &BTreeSet<u64>, after: u64, limit: usize) -> io::Result<Vec<Step>> {
    let start = search(&file, len, after)?;
    let mut lines = Lines::new(file, start, len)?;
    let mut found: BTreeMap<u64, Step> = BTreeMap::new();
    // Steps found whose outcome is still to come, and will.
    let mut waiting: usize = 0;
    while let Some((_, line)) = lines.next_line()? {
        let Some(head) = Head::parse(line) else {
            continue;
        };
        match head.kind {
            Kind::Intent if head.step > after && found.len() < limit => {
                if let Ok(intent) = serde_json::from_slice::<IntentRecord>(line) {
                    waiting += usize::from(!open.contains(&intent.step));
                    found.insert(intent.step, Step::of_intent(intent));
                }
            }
            Kind::Outcome => {
                if let Some(step) = found.get_mut(&head.step)
                    && step.outcome.is_none()
                    && let Ok(outcome) = serde_json::from_slice::<OutcomeRecord>(line)
                {
                    waiting = waiting.saturating_sub(1);
                    step.conclude(outcome);
                }
            }
            _ => {}
        }
        if found.len() >= limit && waiting == 0 {
            break;
        }
    }
    let mut steps: Vec<Step> = found.into_values().collect();
    for step in &mut steps {
        if step.outcome.is_none() && !open.contains(&step.step) {
            step.conclude(OutcomeRecord::interrupted(step.step));
        }
    }
    Ok(steps)
}

/// The start of a line that no intent of a step after `after` stands before. Intents stand in the order of their numbers,
/// so it is found by bisection.
fn search(file: &File, len: u64, after: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, len);
    while after > 0 && high - low > SEARCH_ABOVE {
        let middle = low + (high - low) / 2;
        let mut lines = Lines::new(file.try_clone()?, middle, high)?;
        // Most likely it begins within a line.
        lines.next_line()?;
        let mut next = None;
        while let Some((at, line)) = lines.next_line()? {
            if let Some(head) = Head::parse(line)
                && head.kind == Kind::Intent
            {
                next = Some((at, head.step));
                break;
            }
        }
        match next {
            Some((at, step)) if step <= after => low = at,
            _ => high = middle,
        }
    }
    Ok(low)
}

/// All log files of all tenants.
pub(super) fn all_logs(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let tenants = fs::read_dir(dir).into_iter().flatten().flatten();
    tenants.flat_map(|tenant| {
        let logs = fs::read_dir(tenant.path()).into_iter().flatten().flatten();
        logs.map(|log| log.path()).filter(|path| path.extension().is_some_and(|ext| ext == "jsonl"))
    })
}

/// Two reads for each trajectory: its first line and its last.
pub(super) fn list(dir: &Path) -> Result<Vec<Summary>, TrajectoryError> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(TrajectoryError::io("list", dir, error)),
    };
    let mut all = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_suffix(".jsonl")) else {
            continue;
        };
        match summary(&path, name) {
            Ok(Some(summary)) => all.push(summary),
            Ok(None) => {}
            // Removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(TrajectoryError::io("read", &path, error)),
        }
    }
    all.sort_by(|a, b| b.last_at.cmp(&a.last_at).then_with(|| a.trajectory.cmp(&b.trajectory)));
    Ok(all)
}

fn summary(path: &Path, name: &str) -> io::Result<Option<Summary>> {
    let file = File::open(path)?;
    let bytes = file.metadata()?.len();
    let mut last = None;
    let mut last_at = None;
    let mut back = LinesBack::new(&file, bytes);
    while let Some(line) = back.next_line()? {
        let Some(head) = Head::parse(&line) else {
            continue;
        };
        last_at = head.time();
        last.get_or_insert(head);
        // An outcome of `interrupted` has no time of its own.
        if last_at.is_some() {
            break;
        }
    }
    let mut lines = Lines::new(file, 0, bytes)?;
    let mut first = None;
    while let Some((_, line)) = lines.next_line()? {
        if let Some(head) = Head::parse(line)
            && head.kind == Kind::Intent
        {
            first = Some(head);
            break;
        }
    }
    let (Some(first), Some(last)) = (first, last) else {
        return Ok(None);
    };
    let Some(first_at) = first.time() else {
        return Ok(None);
    };
    let (worker, task) = first.work.map(|work| (work.worker, work.task)).unzip();
    Ok(Some(Summary {
        trajectory: name.to_owned(),
        sandbox_name: first.sandbox_name.unwrap_or_default(),
        worker,
        task: task.flatten(),
        first_at,
        last_at: last_at.unwrap_or(first_at),
        steps: last.last,
        bytes,
        ended: last.ended,
    }))
}

/// What the last line says: the last step's number, and whether the end was noted.
pub(super) fn stand(path: &Path) -> io::Result<(u64, bool)> {
    let file = File::open(path)?;
    let mut back = LinesBack::new(&file, file.metadata()?.len());
    while let Some(line) = back.next_line()? {
        if let Some(head) = Head::parse(&line) {
            return Ok((head.last, head.ended));
        }
    }
    Ok((0, false))
}

/// Finds what looks like a digest of a body in any line. A body's own text may look like one too, and then a blob is
/// kept that need not be; never the other way round.
pub(super) fn digests(dir: &Path, see: &mut dyn FnMut(&str)) -> Result<(), TrajectoryError> {
    const MARK: &str = "\"blake3\":\"";
    for path in all_logs(dir) {
        let failed = |e| TrajectoryError::io("read", &path, e);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(failed(error)),
        };
        let len = file.metadata().map_err(failed)?.len();
        let mut lines = Lines::new(file, 0, len).map_err(failed)?;
        while let Some((_, line)) = lines.next_line().map_err(failed)? {
            let Ok(text) = std::str::from_utf8(line) else {
                continue;
            };
            for (at, _) in text.match_indices(MARK) {
                let start = at + MARK.len();
                if let Some(digest) = text.get(start..start + 64)
                    && crate::blob::is_digest(digest)
                {
                    see(digest);
                }
            }
        }
    }
    Ok(())
}
