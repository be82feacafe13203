//! Compares a step's recorded answer with the answer of the same step when it runs again.
//!
//! Pure: takes bodies and returns a difference. Another crate runs the steps. [`rules`] is the only table of what is not
//! compared, [`text`] defines which words in a text are ignored, [`ids`] translates the first run's names of sessions, commands
//! and sandboxes.

mod compare;
mod ids;
mod picture;
mod rules;
mod text;

pub use compare::{Divergence, compare};
pub use ids::Ids;
pub use rules::{Near, RULES, Rule, Treat, VOLATILE, rule};

use crate::{MODEL_DIALECT, OutcomeKind, Step};

/// Why a step can't run again; none if it can.
pub fn skipped(step: &Step) -> Option<&'static str> {
    match step.outcome {
        None => return Some("it was still under way"),
        Some(OutcomeKind::Interrupted) => return Some("the server ended during it, so its answer is not known"),
        Some(OutcomeKind::Aborted) => return Some("its client left before the answer's end"),
        Some(OutcomeKind::Failed) => return Some("it never reached the sandbox, or its answer broke off"),
        Some(OutcomeKind::Damaged) => return Some("its record is damaged"),
        Some(OutcomeKind::Ok | OutcomeKind::Error) => {}
    }
    if step.dialect == "inside" {
        return Some("a process in the sandbox made it, and makes it again");
    }
    if step.dialect == MODEL_DIALECT {
        return Some("it is a call of a model");
    }
    if step.status == Some(101) {
        return Some("it is a WebSocket");
    }
    match rule(&step.action).treat {
        Treat::Skip(why) => Some(why),
        Treat::Compare | Treat::Status => None,
    }
}
