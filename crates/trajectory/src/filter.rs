//! Which steps of a trajectory are wanted.

use crate::{Origin, OutcomeKind, Step, StepResult, TrajectoryError};

/// Steps by who caused them, and by how they went. The default takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// None: all.
    pub origins: Option<Vec<Origin>>,
    /// None: all; else whether the result is a failure.
    pub failed: Option<bool>,
}

impl Filter {
    /// What an agent did: what exports and replays take unless told otherwise.
    pub fn agent() -> Self {
        Self { origins: Some(vec![Origin::Agent]), failed: None }
    }

    /// The origins of a list such as `agent,person`; `all` is all of them.
    ///
    /// # Errors
    /// [`TrajectoryError::BadOrigin`] for any other word.
    pub fn of_origins(text: &str) -> Result<Self, TrajectoryError> {
        if text == "all" {
            return Ok(Self::default());
        }
        let origins = text.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Self { origins: Some(origins), failed: None })
    }

    pub fn takes_all(&self) -> bool {
        *self == Self::default()
    }

    /// A gap is shown to everybody.
    pub fn takes(&self, step: &Step) -> bool {
        if step.outcome == Some(OutcomeKind::Damaged) {
            return true;
        }
        let failed = || matches!(step.result, Some(StepResult::Failed(_)));
        let succeeded = || step.result == Some(StepResult::Succeeded);
        self.origins.as_ref().is_none_or(|origins| origins.contains(&step.origin))
            && self.failed.is_none_or(|wanted| if wanted { failed() } else { succeeded() })
    }
}
