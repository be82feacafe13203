//! Reading what can't be trusted, in a process that may die of it.
//!
//! ```text
//!  guest ──job (environment), input (descriptor 0)──► this program again, as the sandbox's user, in the workload's cgroup:
//!        ◄──────────── answer (JSON on 1) ─────────── limits of memory, time and files; the first choice of the OOM killer
//! ```
//!
//! A document may make its reader panic, loop or eat memory. Here that ends one call with an error, and the guest lives on.
//! Owns how many such processes there are. Never gives one more rights than the user's commands have.

mod address;
mod child;
mod fetch;
mod job;
mod run;
mod unpack;

pub(crate) use child::main;
pub(crate) use job::{Answer, Fault, FoundSkill, Job};
pub use run::Confined;
pub(crate) use run::{ConfinedError, Input, run};

/// The argument, after `guest`, that makes a process one of these.
pub(crate) const ARGUMENT: &str = "confined";
/// The variable that holds the job.
const JOB: &str = "ARENITE_JOB";
