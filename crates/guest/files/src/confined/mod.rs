//! Reads untrusted input in a separate process, which may crash.
//!
//! ```text
//!  guest ──job (environment), input (descriptor 0)──► this program again, as the sandbox's user, in the workload's cgroup:
//!        ◄──────────── answer (JSON on 1) ─────────── limits of memory, time and files; the first choice of the OOM killer
//! ```
//!
//! A document may make its reader panic, loop or exhaust memory. Here that ends one call with an error, and the guest survives.
//! Owns the limit on the number of such processes. Never gives one more rights than the user's commands have.

mod child;
mod fetch;
mod job;
mod run;
mod unpack;

pub use child::main;
pub use job::{Fault, FoundSkill, Job, JobOutput};
pub use run::Confined;
pub use run::{ConfinedError, Input};

use std::process::Command;

/// The longest answer, in bytes: the longest Markdown with every character escaped, plus the other fields.
pub const MAX_ANSWER_BYTES: u64 = 8 << 20;

/// Returns a command that reads the document at descriptor 0 and writes it as Markdown to descriptor 1. It is for indexing the
/// host's documents outside a sandbox. Its environment holds only the job, and it has the limits of a confined process.
///
/// # Errors
/// The job can't be serialized.
pub fn reader(name: &str) -> std::io::Result<Command> {
    let job = serde_json::to_string(&Job::Markdown { name: name.to_owned() })?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["guest", ARGUMENT]).env_clear().env(JOB, job);
    Ok(command)
}

/// Parses the answer of [`reader`]. `None`: it is not a valid answer.
pub fn markdown_of(answer: &[u8]) -> Option<Result<String, String>> {
    match serde_json::from_slice::<Result<JobOutput, Fault>>(answer).ok()? {
        Ok(JobOutput::Content(content)) => Some(Ok(content.text)),
        Ok(JobOutput::Skills(_)) => None,
        Err(fault) => Some(Err(fault.to_string())),
    }
}

/// The argument after `guest` that starts a confined process.
pub const ARGUMENT: &str = "confined";
/// The variable that holds the job.
const JOB: &str = "ARENITE_JOB";
