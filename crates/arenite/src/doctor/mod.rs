//! `doctor`: checks what this host supports and lacks, with hints.

mod checks;
mod host;

use std::process::ExitCode;

use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::failure::{Attempt, Outcome};
use crate::output::{self, Cell, Entries, Form, View};

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    /// Sandboxes can be created, but lack what the detail says.
    Degraded,
    /// Sandboxes can't be created.
    Missing,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        }
    }
}

/// One checked item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    /// What was found, and its consequence if it isn't ok.
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn new(name: &'static str, status: Status, detail: impl Into<String>) -> Self {
        Self { name, status, detail: detail.into(), fix: None }
    }

    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Status::Ok, detail)
    }

    fn degraded(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Status::Degraded, detail)
    }

    fn missing(name: &'static str, detail: impl Into<String>) -> Self {
        Self::new(name, Status::Missing, detail)
    }

    fn fix(mut self, how: impl Into<String>) -> Self {
        self.fix = Some(how.into());
        self
    }
}

#[derive(Debug, Serialize)]
struct Report {
    /// Whether sandboxes can be created.
    ok: bool,
    checks: Vec<Check>,
}

pub(crate) fn run(args: &DoctorArgs) -> Outcome {
    let checks = checks::all(&host::Host::here(&args.data_dir.data_dir));
    let report = Report { ok: checks.iter().all(|c| c.status != Status::Missing), checks };
    let form = args.output.form();
    if form == Form::Table {
        print(&report);
    } else {
        let value = serde_json::to_value(&report).attempt(|| "could not write the report".into())?;
        form.show(value, Entries::named("checks"), |_| Ok(View::default()))?;
    }
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(report: &Report) {
    let mut rows = output::table(&["check", "", "found"]).whole();
    for check in &report.checks {
        rows.add_row::<Cell>([check.name.into(), output::state(check.status.word()), check.detail.clone().into()]);
        if let Some(fix) = &check.fix {
            rows.add_row::<Cell>(["".into(), "".into(), format!("to fix: {fix}").into()]);
        }
    }
    output::rows(&rows);
    let count = |status| report.checks.iter().filter(|c| c.status == status).count();
    output::line("");
    output::line(match (count(Status::Missing), count(Status::Degraded)) {
        (0, 0) => "this host can run sandboxes".to_owned(),
        (0, n) => format!("this host can run sandboxes; {n} of the checks found something lesser"),
        (n, _) => format!("this host can't run sandboxes yet: {n} of the checks found something missing"),
    });
}
