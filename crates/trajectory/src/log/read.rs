//! Reads logs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::line::{Lines, LinesBack};
use crate::record::{Head, SessionRecord};
use crate::seal::{self, Line, NO_SUM};
use crate::{BlobRef, Body, IntentRecord, Kind, OutcomeRecord, SessionEvent, Step, Summary, TrajectoryError, Verification};

/// Logs below this size, in bytes, are read completely instead of searched.
const SEARCH_ABOVE: u64 = 128 << 10;

/// Up to `limit` steps after the given one. `open` are the open ones; others without an outcome were interrupted, or their
/// outcome is damaged. Numbers have no gaps, so an unreadable step is returned as damaged.
pub(crate) fn steps(file: File, len: u64, open: &BTreeSet<u64>, after: u64, limit: usize) -> io::Result<Vec<Step>> {
    let start = search(&file, len, after)?;
    let mut lines = Lines::new(file, start, len)?;
    let mut found = Found { steps: BTreeMap::new(), next: after + 1, limit };
    // Steps found with an outcome still to come.
    let mut waiting: usize = 0;
    let (mut damaged, mut last) = (0, 0);
    while let Some((_, line)) = lines.next_line()? {
        let Some(head) = Head::parse(line) else {
            damaged += 1;
            continue;
        };
        last = last.max(head.last);
        match head.kind {
            Kind::Intent if head.step > after && !found.is_full() => {
                if let Some(intent) = IntentRecord::parse(line) {
                    let step = Step::of_intent(intent);
                    found.fill(step.step, Some(&step));
                    waiting += usize::from(!found.is_full() && !open.contains(&step.step));
                    found.put(step, damaged);
                }
            }
            Kind::Outcome => {
                if let Some((step, _)) = found.steps.get_mut(&head.step)
                    && step.outcome.is_none()
                    && let Ok(outcome) = serde_json::from_slice::<OutcomeRecord>(line)
                {
                    waiting = waiting.saturating_sub(1);
                    step.conclude(outcome);
                }
            }
            _ => {}
        }
        if found.is_full() && waiting == 0 {
            break;
        }
    }
    found.fill(last + 1, None);
    let mut steps = Vec::with_capacity(found.steps.len());
    for (mut step, before) in found.steps.into_values() {
        if step.outcome.is_none() && !open.contains(&step.step) {
            step.conclude(match damaged > before {
                true => OutcomeRecord::damaged(step.step),
                false => OutcomeRecord::interrupted(step.step),
            });
        }
        steps.push(step);
    }
    Ok(steps)
}

/// Steps found so far, each with the number of damaged lines before it.
struct Found {
    steps: BTreeMap<u64, (Step, usize)>,
    /// The number of the next one.
    next: u64,
    limit: usize,
}

impl Found {
    fn is_full(&self) -> bool {
        self.steps.len() >= self.limit
    }

    fn put(&mut self, step: Step, damaged: usize) {
        if !self.is_full() && step.step >= self.next {
            self.next = step.step + 1;
            self.steps.insert(step.step, (step, damaged));
        }
    }

    /// Fills in steps before `until` that are missing.
    fn fill(&mut self, until: u64, like: Option<&Step>) {
        while self.next < until && !self.is_full() {
            let before = self.steps.last_key_value().map(|(_, (step, _))| step);
            let lost = Step::lost(self.next, like.or(before));
            self.put(lost, 0);
        }
    }
}

/// Starts and ends of sessions, in order.
pub(crate) fn sessions(file: File, len: u64) -> io::Result<Vec<SessionEvent>> {
    const MOST: usize = 10_000;
    let mut lines = Lines::new(file, 0, len)?;
    let mut events = Vec::new();
    while let Some((_, line)) = lines.next_line()? {
        if events.len() < MOST
            && Head::parse(line).is_some_and(|head| head.kind == Kind::Session)
            && let Ok(record) = serde_json::from_slice::<SessionRecord>(line)
        {
            events.push(SessionEvent { after: record.last, ..record.session });
        }
    }
    Ok(events)
}

/// Checks each line, that each follows the one before it, and that no step is missing. Calls `see` with each kept body.
pub(crate) fn verify(file: File, len: u64, found: &mut Verification, see: &mut dyn FnMut(u64, BlobRef)) -> io::Result<()> {
    let mut lines = Lines::new(file, 0, len)?;
    let mut prev = NO_SUM;
    let mut next = 1;
    // An incomplete write acknowledged nothing, and the line after it follows the one before it.
    let mut torn = None;
    while let Some((_, line)) = lines.next_line()? {
        found.lines += 1;
        let number = Some(found.lines);
        let head = match seal::check(line) {
            Line::Torn => {
                torn = number;
                continue;
            }
            Line::Damaged => {
                found.note(number, None, "the line is not as it was written");
                continue;
            }
            Line::Unsealed => {
                found.unchecked += 1;
                prev = NO_SUM;
                Head::parse(line)
            }
            Line::Sealed { sum, prev: said } => {
                if said != prev {
                    found.note(number, None, "the line before it is changed or missing");
                }
                (prev, torn) = (sum, None);
                Head::parse(line)
            }
        };
        let Some(head) = head else {
            found.note(number, None, "the line is no record");
            continue;
        };
        if head.kind == Kind::Intent {
            while next < head.step {
                found.note(number, Some(next), "the step is missing");
                next += 1;
            }
            next = next.max(head.step + 1);
        }
        match blobs(head.kind, line) {
            Some(blobs) => blobs.into_iter().filter(|blob| blob.kept).for_each(|blob| see(head.step, blob)),
            None => found.note(number, Some(head.step), "the line is no record"),
        }
    }
    if torn.is_some() {
        found.note(torn, None, "the line is not as it was written");
    }
    found.steps = next - 1;
    Ok(())
}

/// The references to bodies in a line. None: it is no record of this kind.
fn blobs(kind: Kind, line: &[u8]) -> Option<Vec<BlobRef>> {
    let bodies = match kind {
        Kind::Intent => vec![IntentRecord::parse(line)?.arguments],
        Kind::Outcome => {
            let record: OutcomeRecord = serde_json::from_slice(line).ok()?;
            let parts = record.calls.into_iter().flat_map(|part| [part.arguments, part.observation]);
            [record.arguments, record.observation].into_iter().chain(parts).collect()
        }
        Kind::End | Kind::Session | Kind::Network => Vec::new(),
    };
    let blob = |body| if let Body::Blob(blob) = body { Some(blob) } else { None };
    Some(bodies.into_iter().flatten().filter_map(blob).collect())
}

/// Whether a step refers to a body. A digest in the text of a body is no reference.
pub(crate) fn refers(file: File, len: u64, digest: &str) -> io::Result<bool> {
    let mut lines = Lines::new(file, 0, len)?;
    while let Some((_, line)) = lines.next_line()? {
        if std::str::from_utf8(line).is_ok_and(|text| text.contains(digest))
            && let Some(head) = Head::parse(line)
            && blobs(head.kind, line).is_some_and(|blobs| blobs.iter().any(|blob| blob.blake3 == digest))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The start of a line that comes after no intent of a step beyond `after`. Intents are in the order of their numbers, so
/// bisection finds it.
fn search(file: &File, len: u64, after: u64) -> io::Result<u64> {
    let (mut low, mut high) = (0, len);
    while after > 0 && high - low > SEARCH_ABOVE {
        let middle = low + (high - low) / 2;
        let mut lines = Lines::new(file.try_clone()?, middle, high)?;
        // Most likely it starts within a line.
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

/// Summaries of all trajectories. Reads twice for each: its first line and its last.
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

pub(crate) fn summary(path: &Path, name: &str) -> io::Result<Option<Summary>> {
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
        // An outcome of `interrupted` has no time.
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
        failures: last.failures,
        bytes,
        ended: last.ended,
        archived: super::receipt::receipt(path, bytes).is_some(),
        annotations: None,
    }))
}

/// The last step's number, and whether the end was recorded, from the last line.
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

/// Finds what looks like a digest of a body in any line. A body's own text may look like one too. Then a blob is kept
/// unnecessarily, but none is removed wrongly.
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
