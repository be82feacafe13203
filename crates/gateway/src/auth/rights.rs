//! Whether a caller may use a route. Checked before anything is looked up.

use arenite_control::tenants::{Principal, Role};
use arenite_model::ErrorCode;

use super::Identity;
use crate::refusal::Refusal;
use crate::routes::Route;

/// The right that a route needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    Role(Role),
    /// It acts on what belongs to the server.
    Operator,
}

impl Need {
    fn is_met_by(self, principal: &Principal) -> bool {
        match self {
            Self::Role(role) => principal.may(role),
            Self::Operator => principal.operator,
        }
    }
}

/// Refuses a caller without the right that the route needs for this method.
pub(crate) fn check_rights(principal: &Principal, route: &Route, method: &http::Method) -> Result<(), Refusal> {
    let need = route.need(method);
    if !need.is_met_by(principal) {
        let held = principal.role.map_or("none", Role::as_str);
        return Err(match need {
            Need::Role(role) => forbidden(format!("this needs the role {role}, and the caller has the role {held}"))
                .hint(format!("an admin of the tenant can create a key for it: arenite key create --role {role}")),
            Need::Operator => forbidden(format!("this needs an operator's key, and the caller has the role {held}"))
                .hint("an operator creates such keys with: arenite key create --role admin --operator"),
        });
    }
    // Otherwise it could create a key without bounds, or act in sandboxes that it does not name.
    if principal.is_bound() && route.is_for_whole_tenant(need) {
        return Err(forbidden("this concerns the whole tenant, and the caller's key is bound to sandboxes")
            .hint("use a key without bounds"));
    }
    Ok(())
}

/// Refuses a caller with a ticket, or with a credential that was derived from one, for what would outlive the ticket: tickets are
/// in addresses, which many programs store.
pub(crate) fn refuse_tickets(caller: &Identity) -> Result<(), Refusal> {
    if caller.is_lasting() && !caller.by_ticket {
        return Ok(());
    }
    Err(forbidden("tenants, keys and the audit log need a key, and not a ticket"))
}

fn forbidden(message: impl Into<String>) -> Refusal {
    Refusal::new(ErrorCode::Forbidden, message)
}
