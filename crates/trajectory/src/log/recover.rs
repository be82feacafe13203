//! Recovers a log's state from its last lines after a restart.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;

use crate::Kind;
use crate::line::LinesBack;
use crate::record::{Failures, Head};
use crate::seal::{self, Line, NO_SUM, Sum};

pub(super) struct Past {
    pub(super) last: u64,
    /// None: its lines don't have it.
    pub(super) failures: Option<Failures>,
    pub(super) ended: bool,
    /// The file doesn't end with a line break.
    pub(super) torn: bool,
    /// Steps with an intent and no outcome.
    pub(super) interrupted: Vec<u64>,
    /// Of the last line that has a sum.
    pub(super) sum: Sum,
}

/// Reads one line from the end if no step was open, otherwise back to the intent of the oldest open one.
pub(super) fn past(file: &File, len: u64) -> io::Result<Past> {
    let mut lines = LinesBack::new(file, len);
    let torn = lines.next_line()?.is_some_and(|rest| !rest.is_empty());
    let mut past =
        Past { last: 0, failures: (len == 0).then(Failures::default), ended: false, torn, interrupted: Vec::new(), sum: NO_SUM };
    // Each damaged line at the end may have been an intent with a number that must not be used again.
    let mut damaged = 0;
    let mut oldest = None;
    let mut concluded = BTreeSet::new();
    while let Some(line) = lines.next_line()? {
        let Some(head) = Head::parse(&line) else {
            damaged += u64::from(seal::check(&line) == Line::Damaged);
            continue;
        };
        let oldest = match oldest {
            Some(oldest) => oldest,
            None => {
                past.last = head.last + damaged;
                if let Line::Sealed { sum, .. } = seal::check(&line) {
                    past.sum = sum;
                }
                past.failures = head.failures;
                past.ended = head.ended;
                let Some(open) = head.open else { break };
                *oldest.insert(open)
            }
        };
        match head.kind {
            Kind::Outcome => {
                concluded.insert(head.step);
            }
            Kind::Intent => {
                if head.step >= oldest && !concluded.contains(&head.step) {
                    past.interrupted.push(head.step);
                }
                if head.step <= oldest {
                    break;
                }
            }
            Kind::End | Kind::Session | Kind::Network => {}
        }
    }
    Ok(past)
}
