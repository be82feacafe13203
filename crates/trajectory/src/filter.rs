//! Filters for the steps of a trajectory.

use crate::{FailureClass, Origin, OutcomeKind, Step, StepResult, TrajectoryError};

/// Selects steps by their origin, result and class. The default takes all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// None: all.
    pub origins: Option<Vec<Origin>>,
    /// None: all; otherwise whether the result is a failure.
    pub failed: Option<bool>,
    /// None: all; otherwise steps that failed with this class.
    pub class: Option<FailureClass>,
    /// With the network records between the steps, in the format `jsonl`.
    pub network: bool,
}

impl Filter {
    /// The steps of agents: the default for exports and replays.
    pub fn agent() -> Self {
        Self { origins: Some(vec![Origin::Agent]), ..Self::default() }
    }

    /// Parses a list of origins such as `agent,person`; `all` stands for every origin.
    ///
    /// # Errors
    /// [`TrajectoryError::BadOrigin`] for any other text.
    pub fn of_origins(text: &str) -> Result<Self, TrajectoryError> {
        if text == "all" {
            return Ok(Self::default());
        }
        let origins = text.split(',').map(|word| word.trim().parse()).collect::<Result<_, _>>()?;
        Ok(Self { origins: Some(origins), ..Self::default() })
    }

    pub fn takes_all(&self) -> bool {
        *self == Self::default()
    }

    /// Gaps pass every filter.
    pub fn takes(&self, step: &Step) -> bool {
        if step.outcome == Some(OutcomeKind::Damaged) {
            return true;
        }
        let failed = || matches!(step.result, Some(StepResult::Failed(_)));
        let succeeded = || step.result == Some(StepResult::Succeeded);
        self.origins.as_ref().is_none_or(|origins| origins.contains(&step.origin))
            && self.failed.is_none_or(|wanted| if wanted { failed() } else { succeeded() })
            && self.class.is_none_or(|wanted| step.class == Some(wanted))
    }
}
