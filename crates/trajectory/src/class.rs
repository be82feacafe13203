//! The side at fault for a failure: the agent's call was wrong, or what should have carried it out failed.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::TrajectoryError;
use crate::record::{Failure, OutcomeKind, StepResult};

/// The side at fault for a failed step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum FailureClass {
    /// The call itself was wrong, such as bad arguments, or a command with an exit code other than 0. The same call fails again.
    Agent,
    /// The server, the sandbox or a service that the call needs failed. The same call may succeed later.
    Infrastructure,
}

impl FailureClass {
    pub const ALL: [Self; 2] = [Self::Agent, Self::Infrastructure];

    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => "agent",
            Self::Infrastructure => "infrastructure",
        }
    }

    /// The class of an answer with this HTTP status, which is 400 or more.
    pub fn of_status(status: u16) -> Self {
        match status {
            // Timeouts of the server, and limits of rate and number.
            408 | 425 | 429 => Self::Infrastructure,
            // What the sandbox or the server does not have, it does not have the next time either.
            400..=499 | 501 | 505 => Self::Agent,
            _ => Self::Infrastructure,
        }
    }

    /// The class of a step from its recorded facts; none if it did not fail, or nobody knows. `named` is the class that the tool
    /// itself names.
    pub(crate) fn derive(
        outcome: OutcomeKind,
        status: Option<u16>,
        result: Option<&StepResult>,
        named: Option<Self>,
    ) -> Option<Self> {
        let failure = match (outcome, result) {
            // The server ended, or lost its record.
            (OutcomeKind::Interrupted | OutcomeKind::Damaged, _) => return Some(Self::Infrastructure),
            // The client left, and how the call would have ended is unknown.
            (OutcomeKind::Aborted, _) | (_, None | Some(StepResult::Succeeded)) => return None,
            (_, Some(StepResult::Failed(failure))) => failure,
        };
        if named.is_some() {
            return named;
        }
        Some(match (failure, outcome) {
            (Failure::ExitCode(_), _) => Self::Agent,
            // No answer, or not all of it.
            (Failure::Error(_), OutcomeKind::Failed) => Self::Infrastructure,
            // The answer of a tool that reports a failure has a status below 400.
            (Failure::Error(_), _) => status.filter(|status| *status >= 400).map_or(Self::Agent, Self::of_status),
        })
    }
}

impl FromStr for FailureClass {
    type Err = TrajectoryError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.into_iter().find(|class| class.name() == text);
        found.ok_or_else(|| TrajectoryError::BadClass { given: text.chars().take(80).collect() })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;

    /// The whole function as a table.
    #[test]
    fn every_combination_of_facts_has_its_class() {
        use OutcomeKind::{Aborted, Damaged, Error, Failed, Interrupted, Ok};
        let results = [
            ("unknown", None),
            ("succeeded", Some(StepResult::Succeeded)),
            ("exit code", Some(StepResult::Failed(Failure::ExitCode(3)))),
            ("error", Some(StepResult::Failed(Failure::Error("no such file".to_owned())))),
        ];
        let mut table = String::new();
        for outcome in [Ok, Error, Aborted, Failed, Interrupted, Damaged] {
            for (result_name, result) in &results {
                for named in [None, Some(FailureClass::Agent), Some(FailureClass::Infrastructure)] {
                    let class =
                        |status| FailureClass::derive(outcome, status, result.as_ref(), named).map_or("-", FailureClass::name);
                    let statuses = [None]
                        .into_iter()
                        .chain([101, 200, 400, 404, 408, 409, 422, 429, 500, 501, 502, 503, 504, 507].map(Some));
                    let mut row: Vec<(&str, String)> = Vec::new();
                    for status in statuses {
                        let text = status.map_or_else(|| "none".to_owned(), |status| status.to_string());
                        let found = class(status);
                        match row.last_mut() {
                            Some((last, all)) if *last == found => {
                                all.push(' ');
                                all.push_str(&text);
                            }
                            _ => row.push((found, text)),
                        }
                    }
                    let named = named.map_or("-", FailureClass::name);
                    for (class, statuses) in row {
                        writeln!(table, "{outcome:?} | {result_name} | named {named} | status {statuses} | {class}").unwrap();
                    }
                }
            }
        }
        let golden = std::path::Path::new(&std::env::var("CARGO_MANIFEST_DIR").unwrap()).join("tests/golden/classes.txt");
        if std::env::var_os("ARENITE_BLESS").is_some() {
            std::fs::write(&golden, &table).unwrap();
        }
        let wanted = std::fs::read_to_string(&golden).unwrap_or_default();
        assert_eq!(table, wanted, "if it is meant, run again with ARENITE_BLESS=1, and change docs/STEPS.md");
    }

    #[test]
    fn classes_are_read_as_they_are_written() {
        for class in FailureClass::ALL {
            assert_eq!(class.name().parse::<FailureClass>().unwrap(), class);
            assert_eq!(serde_json::to_value(class).unwrap(), class.name());
        }
        assert!("Agent".parse::<FailureClass>().is_err());
    }
}
