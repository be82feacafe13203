//! Checks that several routes share.

use http::Method;
use http::request::Parts;

use crate::refusal::Refusal;

/// Refuses a method that the route does not have.
pub(crate) fn require(parts: &Parts, methods: &[Method]) -> Result<(), Refusal> {
    if methods.contains(&parts.method) {
        return Ok(());
    }
    Err(Refusal::method_not_allowed(methods))
}
