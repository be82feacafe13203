//! AIO's `skills` service: directories with instructions for agents, each in a file `SKILL.md`.
//!
//! Owns the list of registered skills, in memory. The skills stay at their paths on disk. Archives and front matter are read in a
//! confined process (see [`crate::confined`]), and installers of dependencies run as the sandbox's user.

mod dependencies;
mod registry;
mod routes;
mod service;
mod upload;

pub use dependencies::DependencyCommandResult;
pub use registry::{SkillMetadata, Skills};
pub use routes::{SkillsApi, router};
pub use service::{SkillError, content, preload};

/// The file that makes a directory a skill.
pub const SKILL_FILE: &str = "SKILL.md";
/// The most registered skills.
pub const MAX_SKILLS: usize = 256;
/// The longest [`SKILL_FILE`], in bytes.
pub const MAX_SKILL_FILE_BYTES: u64 = 1 << 20;
/// The longest front matter of a skill, in bytes of JSON.
pub const MAX_METADATA_BYTES: usize = 16 << 10;

/// Whether a text is a valid skill name: it is used in paths and URLs, and in lists with commas.
pub fn is_skill_name(name: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | ' ');
    !name.is_empty() && name.len() <= 128 && name.chars().all(fits) && !name.starts_with(['.', ' ']) && !name.ends_with(' ')
}
