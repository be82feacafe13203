//! Checks descriptors for all sandboxes before any is changed.

use rustix::process::{Resource, getrlimit};

use crate::EngineError;
use crate::descriptors::{DescriptorCount, ran_out};

/// Descriptors that a server opens at start besides sandboxes: sockets, the store, locks, the launcher.
pub(crate) const OWN: u64 = 32;

/// Checks that this number can be opened, with a reserve for the server's work.
pub(crate) fn check(more: u64, sandboxes: usize) -> Result<(), EngineError> {
    let Some(count) = DescriptorCount::now() else { return Ok(()) };
    let needed = count.open.saturating_add(more).saturating_add(count.reserve());
    if needed > count.limit { Err(EngineError::Descriptors { sandboxes, needed, limit: count.limit }) } else { Ok(()) }
}

/// Adds the number of needed descriptors to an error caused by a lack of them.
pub(super) fn explain(error: EngineError, sandboxes: usize) -> EngineError {
    let limit = getrlimit(Resource::Nofile).current;
    match (&error, limit) {
        (EngineError::Look { source, .. }, Some(limit)) if ran_out(source) => {
            EngineError::Descriptors { sandboxes, needed: limit + sandboxes as u64, limit }
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_limit_is_refused_with_the_limit() {
        check(0, 1).unwrap();
        let error = check(u64::from(u32::MAX), 3).unwrap_err();
        assert!(matches!(error, EngineError::Descriptors { sandboxes: 3, .. }), "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("LimitNOFILE")));
        let full = EngineError::Look { what: "x".to_owned(), source: rustix::io::Errno::MFILE.into() };
        assert!(matches!(explain(full, 3), EngineError::Descriptors { .. }));
        let broken = EngineError::Look { what: "x".to_owned(), source: rustix::io::Errno::IO.into() };
        assert!(matches!(explain(broken, 3), EngineError::Look { .. }));
    }
}
