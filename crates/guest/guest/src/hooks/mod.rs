//! Commands that run when the sandbox starts or ends.
//!
//! | event | when | comes from |
//! | --- | --- | --- |
//! | `init`, then `pre_services` | before the guest takes its first call | `RUN_HOOK_INIT`, `RUN_HOOK_PRE_SERVICES` |
//! | `post_ready` | beside the first calls | `RUN_HOOK_POST_READY` |
//! | `shutdown` | before the sandbox is deleted | `RUN_HOOK_SHUTDOWN`, and the API |
//!
//! They run as the sandbox's user, each with a timeout, and write to a file beside the guest's log. No hook can keep a sandbox
//! from starting or ending.

mod routes;
mod run;
mod service;

pub use routes::{HooksApi, router};
pub(crate) use run::{before_services, shutdown, when_ready};
pub use service::{Hooks, SandboxHook};
