//! The table of results, and the same as JSON.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use crate::failure::{Attempt, Failure, Outcome};

/// The value below which the fraction `q` of the samples lies.
pub(super) fn quantile(samples: &[Duration], q: f64) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * q).round() as usize).copied().unwrap_or_default()
}

/// One row: the measurement, its floor, and whether it meets its budget.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    name: String,
    value: f64,
    unit: String,
    floor: Option<f64>,
    floor_is: Option<String>,
    /// `value / floor`, or the other way round where more is better.
    ratio: Option<f64>,
    budget: Option<String>,
    ok: Option<bool>,
    /// A design goal without an issue yet: shown, but never a failure.
    goal: bool,
    samples: usize,
}

impl Row {
    fn new(name: &str, value: f64, unit: &str) -> Self {
        let (name, unit) = (name.to_owned(), unit.to_owned());
        Self { name, value, unit, floor: None, floor_is: None, ratio: None, budget: None, ok: None, goal: false, samples: 1 }
    }

    pub(super) fn plain(name: &str, value: f64, unit: &str) -> Self {
        Self::new(name, value, unit)
    }

    pub(super) fn at_most(name: &str, value: f64, unit: &str, most: f64) -> Self {
        Self {
            budget: Some(format!("≤ {most} {unit}").trim_end().to_owned()),
            ok: Some(value <= most),
            ..Self::new(name, value, unit)
        }
    }

    pub(super) fn at_least(name: &str, value: f64, unit: &str, least: f64) -> Self {
        Self { budget: Some(format!("≥ {least} {unit}")), ok: Some(value >= least), ..Self::new(name, value, unit) }
    }

    /// At most `most` times its floor.
    pub(super) fn ratio(name: &str, ours: &[Duration], q: f64, floor: &[Duration], floor_q: f64, most: f64) -> Self {
        let value = quantile(ours, q).as_secs_f64() * 1e3;
        let floor = quantile(floor, floor_q).as_secs_f64() * 1e3;
        let ratio = value / floor;
        Self {
            floor: Some(floor),
            ratio: Some(ratio),
            budget: Some(format!("≤ {most}×")),
            ok: Some(ratio <= most),
            samples: ours.len(),
            ..Self::new(name, value, "ms")
        }
    }

    /// At most `most` milliseconds more than its floor, by their medians.
    pub(super) fn added(name: &str, ours: &[Duration], floor: &[Duration], most: f64) -> Self {
        let value = quantile(ours, 0.5).as_secs_f64() * 1e3;
        let floor = quantile(floor, 0.5).as_secs_f64() * 1e3;
        Self {
            floor: Some(floor),
            ratio: Some(value / floor),
            budget: Some(format!("≤ {most} ms more")),
            ok: Some(value - floor <= most),
            samples: ours.len(),
            ..Self::new(name, value, "ms")
        }
    }

    /// At least `least` times as fast as the other, by their medians.
    pub(super) fn faster(name: &str, ours: &[Duration], other: &[Duration], least: f64) -> Self {
        let value = quantile(ours, 0.5).as_secs_f64() * 1e3;
        let other = quantile(other, 0.5).as_secs_f64() * 1e3;
        let ratio = other / value;
        Self {
            floor: Some(other),
            floor_is: Some("runc run of true".to_owned()),
            ratio: Some(ratio),
            budget: Some(format!("≥ {least}× as fast")),
            ok: Some(ratio >= least),
            samples: ours.len(),
            ..Self::new(name, value, "ms")
        }
    }

    /// At least `least` times the other's throughput.
    pub(super) fn throughput(name: &str, value: f64, floor: f64, unit: &str, least: f64) -> Self {
        let ratio = value / floor;
        Self {
            floor: Some(floor),
            ratio: Some(ratio),
            budget: Some(format!("≥ {least}×")),
            ok: Some(ratio >= least),
            ..Self::new(name, value, unit)
        }
    }

    /// At most `most` times what it was before.
    pub(super) fn growth(name: &str, value: f64, before: f64, unit: &str, most: f64) -> Self {
        let ratio = value / before;
        Self {
            floor: Some(before),
            ratio: Some(ratio),
            budget: Some(format!("≤ {most}×")),
            ok: Some(ratio <= most),
            ..Self::new(name, value, unit)
        }
    }

    /// Shown next to another's number, without a budget.
    pub(super) fn beside(mut self, floor: f64) -> Self {
        (self.floor, self.ratio) = (Some(floor), Some(self.value / floor));
        self
    }

    pub(super) fn against(mut self, floor: &str) -> Self {
        self.floor_is = Some(floor.to_owned());
        self
    }

    pub(super) fn goal_only(mut self) -> Self {
        self.goal = true;
        self
    }

    fn cells(&self) -> Cells {
        let number = |n: f64| if n >= 100.0 { format!("{n:.0}") } else { format!("{n:.2}") };
        let verdict = match (self.ok, self.goal) {
            (None, _) => "",
            (Some(true), _) => "yes",
            (Some(false), true) => "not yet",
            (Some(false), false) => "NO",
        };
        [
            self.name.clone(),
            format!("{} {}", number(self.value), self.unit).trim_end().to_owned(),
            self.floor.map(|n| format!("{} {}", number(n), self.unit)).unwrap_or_default(),
            self.floor_is.clone().unwrap_or_default(),
            self.ratio.map(|n| format!("{n:.2}×")).unwrap_or_default(),
            self.budget.clone().unwrap_or_default(),
            verdict.to_owned(),
        ]
    }
}

/// All measurements of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    kernel: String,
    cores: usize,
    rows: Vec<Row>,
}

/// The cells of a row, under `TITLES`.
type Cells = [String; 7];

const TITLES: [&str; 7] = ["row", "measured", "floor", "the floor is", "ratio", "budget", "kept"];
const BEGIN: &str = "<!-- bench: begin -->";
const END: &str = "<!-- bench: end -->";

impl Report {
    pub(super) fn of_this_host() -> Result<Self, Failure> {
        let kernel =
            std::fs::read_to_string("/proc/sys/kernel/osrelease").attempt(|| "could not read the kernel's version".into())?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self { kernel: kernel.trim().to_owned(), cores, rows: Vec::new() })
    }

    pub(super) fn push(&mut self, row: Row) {
        eprintln!("  {}", row.cells().iter().filter(|cell| !cell.is_empty()).cloned().collect::<Vec<_>>().join(" · "));
        self.rows.push(row);
    }

    /// Writes the table between the two marks of a document. After a partial run, other rows there stay unchanged.
    pub(super) fn update(&self, document: &Path, part: bool) -> Outcome {
        let text = std::fs::read_to_string(document).attempt(|| format!("could not read {}", document.display()))?;
        let updated =
            self.put_into(&text, part).ok_or_else(|| Failure::new(format!("{} has no {BEGIN} … {END}", document.display())))?;
        std::fs::write(document, updated).attempt(|| format!("could not write {}", document.display()))
    }

    fn put_into(&self, text: &str, part: bool) -> Option<String> {
        let (before, rest) = text.split_once(BEGIN)?;
        let (old, after) = rest.split_once(END)?;
        let mut rows = if part { rows_of(old) } else { Vec::new() };
        for row in self.rows.iter().map(Row::cells) {
            match rows.iter_mut().find(|old| old[0] == row[0]) {
                Some(old) => *old = row,
                None => rows.push(row),
            }
        }
        Some(format!("{before}{BEGIN}\n{}{END}{after}", self.table(&rows)))
    }

    fn table(&self, rows: &[Cells]) -> String {
        let widths: [usize; 7] = std::array::from_fn(|i| {
            let longest = rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
            longest.max(TITLES[i].len())
        });
        let titles = [TITLES.map(str::to_owned), widths.map(|width| "-".repeat(width))];
        let lines = titles.iter().chain(rows).map(|cells| {
            let padded = cells.iter().zip(widths).map(|(cell, width)| format!("| {cell:<width$} "));
            padded.chain(["|\n".to_owned()]).collect::<String>()
        });
        format!("Linux {}, {} cores\n\n{}", self.kernel, self.cores, lines.collect::<String>())
    }
}

/// The rows of a table that `Report::table` wrote, without its titles.
fn rows_of(table: &str) -> Vec<Cells> {
    let cells = |line: &str| {
        let inner = line.trim().strip_prefix('|')?.strip_suffix('|')?;
        inner.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>().try_into().ok()
    };
    table.lines().filter_map(cells).skip(2).collect()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.table(&self.rows.iter().map(Row::cells).collect::<Vec<_>>()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn milliseconds(values: &[u64]) -> Vec<Duration> {
        values.iter().copied().map(Duration::from_millis).collect()
    }

    #[test]
    fn quantiles_are_of_the_sorted_samples() {
        let samples = milliseconds(&[5, 1, 4, 2, 3]);
        assert_eq!(quantile(&samples, 0.5), Duration::from_millis(3));
        assert_eq!(quantile(&samples, 0.99), Duration::from_millis(5));
        assert_eq!(quantile(&[], 0.5), Duration::ZERO);
    }

    #[test]
    fn budgets_are_judged_in_the_right_direction() {
        let (slow, fast) = (milliseconds(&[10]), milliseconds(&[2]));
        assert_eq!(Row::ratio("", &slow, 0.5, &fast, 0.5, 4.0).ok, Some(false));
        assert_eq!(Row::ratio("", &fast, 0.5, &slow, 0.5, 4.0).ok, Some(true));
        assert_eq!(Row::added("", &slow, &fast, 8.0).ok, Some(true));
        assert_eq!(Row::added("", &slow, &fast, 7.9).ok, Some(false));
        assert_eq!(Row::faster("", &fast, &slow, 3.0).ok, Some(true));
        assert_eq!(Row::faster("", &slow, &fast, 1.0).ok, Some(false));
        assert_eq!(Row::throughput("", 7.0, 10.0, "", 0.8).ok, Some(false));
        assert_eq!(Row::growth("", 62.2, 46.5, "MiB", 1.05).ok, Some(false));
        assert_eq!(Row::growth("", 60.0, 62.2, "MiB", 1.05).ok, Some(true));
    }

    #[test]
    fn a_part_leaves_the_other_rows_of_the_document() {
        let report = |rows| Report { kernel: "6.1".to_owned(), cores: 2, rows };
        let document = format!("above\n{BEGIN}\n{END}\nbelow\n");
        let both = report(vec![Row::at_most("one", 1.0, "ms", 2.0), Row::plain("two", 2.0, "MiB")]);
        let whole = both.put_into(&document, false).unwrap();
        let part = report(vec![Row::plain("two", 3.0, "MiB"), Row::plain("three", 4.0, "")]);
        let updated = part.put_into(&whole, true).unwrap();
        let names = |text: &str| rows_of(text).into_iter().map(|[name, value, ..]| format!("{name} {value}")).collect::<Vec<_>>();
        assert_eq!(names(&updated), ["one 1.00 ms", "two 3.00 MiB", "three 4.00"]);
        assert!(updated.starts_with("above\n") && updated.ends_with("\nbelow\n"));
        assert_eq!(names(&part.put_into(&whole, false).unwrap()), ["two 3.00 MiB", "three 4.00"]);
        assert_eq!(part.put_into("no marks", true), None);
    }
}
