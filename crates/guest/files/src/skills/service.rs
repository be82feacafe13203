//! Registers, lists and reads skills, in plain Rust.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use thiserror::Error;

use super::dependencies;
use super::registry::SkillMetadata;
use super::upload::{Archive, Upload};
use super::{MAX_SKILL_FILE_BYTES, MAX_SKILLS, SKILL_FILE, is_skill_name};
use crate::confined::{ConfinedError, FoundSkill, Input, Job, JobOutput};
use crate::files::Failure;
use crate::skills::Skills;
use arenite_guest_runtime::workers::Kind;

/// The variable with a directory of skills that are registered before the first call.
const PRELOAD: &str = "AIO_SKILLS_PATH";
/// Where archives are unpacked if neither the call nor [`PRELOAD`] names a directory, relative to the default directory.
const DEFAULT_DIRECTORY: &str = "skills";

/// Why a call failed.
#[derive(Debug, Error)]
pub enum SkillError {
    #[error("{0}")]
    Invalid(String),
    #[error("there is no skill {0:?}")]
    Unknown(String),
    #[error("there would be more than {MAX_SKILLS} skills: delete some first")]
    TooMany,
    #[error("the skills were not registered: {0}")]
    Unreadable(#[from] ConfinedError),
    #[error("the skill's file can't be read: {0}")]
    Content(Failure),
}

impl SkillError {
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unreadable(error) => error.hint(),
            Self::Unknown(_) => Some("list them with /v1/skills/metadatas".to_owned()),
            Self::Content(_) => Some("register it again, or delete it".to_owned()),
            Self::Invalid(_) | Self::TooMany => None,
        }
    }
}

async fn run(service: &Arc<Skills>, job: &Job, input: Input) -> Result<Vec<FoundSkill>, SkillError> {
    match service.confined.run(job, input).await? {
        JobOutput::Skills(found) => Ok(found),
        JobOutput::Content(_) => Err(SkillError::Invalid("the reader answered something else".to_owned())),
    }
}

/// The directory that [`PRELOAD`] names.
fn preload_path(service: &Arc<Skills>) -> Option<PathBuf> {
    let config = service.runtime.config();
    let value = config.env.get(PRELOAD)?.trim();
    (!value.is_empty()).then(|| service.runtime.absolute(value))
}

/// Registers the skills of [`PRELOAD`], once. Logs errors, since the call itself is about something else.
pub async fn preload(service: &Arc<Skills>) {
    let load = async || {
        let Some(directory) = preload_path(service) else { return };
        let found = run(service, &Job::FindSkills { directory: directory.clone() }, Input::Nothing).await;
        match found {
            Ok(found) => {
                // Their dependencies must be in the image.
                let skills: Vec<_> = found.into_iter().map(|skill| registered(skill, None, Vec::new())).collect();
                if !service.register(&skills) {
                    tracing::error!(path = %directory.display(), "too many skills: none of them is registered");
                }
            }
            Err(error) => tracing::error!(path = %directory.display(), %error, "the skills of {PRELOAD} are not registered"),
        }
    };
    service.preloaded.get_or_init(load).await;
}

fn registered(
    skill: FoundSkill,
    name: Option<&str>,
    dependency_commands: Vec<dependencies::DependencyCommandResult>,
) -> SkillMetadata {
    SkillMetadata {
        name: name.map_or(skill.name, str::to_owned),
        path: skill.directory.display().to_string(),
        metadata: skill.metadata,
        dependency_commands,
    }
}

/// Registers the skills of a directory, or of an archive, which is unpacked into one.
pub(super) async fn register(service: &Arc<Skills>, upload: Upload) -> Result<Vec<SkillMetadata>, SkillError> {
    let Upload { archive, path, name } = upload;
    if let Some(name) = name.as_deref().filter(|n| !is_skill_name(n)) {
        return Err(SkillError::Invalid(format!(
            "{name:?} is no name for a skill: it has letters, digits, dots, hyphens and underscores"
        )));
    }
    let path = path.map(|p| clean(&service.runtime.absolute(&p)));
    if path.as_ref().is_some_and(|p| p.as_os_str().as_encoded_bytes().contains(&0)) {
        return Err(SkillError::Invalid("a path can't hold a NUL byte".to_owned()));
    }
    let found = match (archive, path) {
        (Some(archive), path) => unpack(service, archive, path, name.clone()).await?,
        (None, Some(directory)) => {
            let shown = directory.display().to_string();
            let found = run(service, &Job::FindSkills { directory }, Input::Nothing).await?;
            if found.is_empty() {
                return Err(SkillError::Invalid(format!("{shown} holds no {SKILL_FILE}")));
            }
            found
        }
        (None, None) => return Err(SkillError::Invalid("give the part file, path, or both".to_owned())),
    };
    let name = match (found.len(), name) {
        (1, name) => name,
        // The archive's own directory then has the name, and its skills keep theirs.
        (_, _) => None,
    };
    let mut skills = Vec::with_capacity(found.len());
    for skill in found {
        let commands = dependencies::install(&service.runtime, &skill.metadata).await;
        skills.push(registered(skill, name.as_deref(), commands));
    }
    if service.register(&skills) { Ok(skills) } else { Err(SkillError::TooMany) }
}

/// A path without `.` and double slashes.
fn clean(path: &Path) -> PathBuf {
    path.components().collect()
}

async fn unpack(
    service: &Arc<Skills>,
    archive: Archive,
    path: Option<PathBuf>,
    name: Option<String>,
) -> Result<Vec<FoundSkill>, SkillError> {
    let directory =
        path.or_else(|| preload_path(service)).unwrap_or_else(|| service.runtime.default_dir().join(DEFAULT_DIRECTORY));
    let number = getrandom::u64().map_err(|e| SkillError::Invalid(format!("there are no random numbers: {e}")))?;
    let scratch = directory.join(format!(".arenite-{number:016x}"));
    let fallback = if is_skill_name(&archive.stem) { archive.stem } else { "skill".to_owned() };
    let job = Job::UnpackSkills { directory, scratch: scratch.clone(), name, fallback };
    let unpacked = run(service, &job, Input::File(archive.file)).await;
    if matches!(unpacked, Err(SkillError::Unreadable(ConfinedError::TimedOut(_) | ConfinedError::Crashed(_)))) {
        // The process removes it, unless it was killed.
        let remove = move |_: &_| std::fs::remove_dir_all(&scratch).map_err(|e| Failure::io(e, &scratch.to_string_lossy()));
        drop(service.runtime.workers.run(Kind::Brief, &service.runtime.user, remove).await);
    }
    unpacked
}

/// The text of a skill's file below its front matter.
pub async fn content(service: &Arc<Skills>, name: &str) -> Result<(SkillMetadata, String), SkillError> {
    let skill = service.get(name).ok_or_else(|| SkillError::Unknown(name.to_owned()))?;
    let path = skill.file();
    let read = move |_: &_| {
        let shown = path.display().to_string();
        let mut text = String::new();
        let file = File::open(&path).map_err(|e| Failure::io(e, &shown))?;
        if !file.metadata().is_ok_and(|m| m.is_file()) {
            return Err(Failure::invalid(format!("{shown} is no regular file")));
        }
        let read = file.take(MAX_SKILL_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| Failure::io(e, &shown))?;
        if read as u64 > MAX_SKILL_FILE_BYTES {
            return Err(Failure::invalid(format!("{shown} is larger than {} MiB", MAX_SKILL_FILE_BYTES >> 20)));
        }
        Ok(text)
    };
    let text = service.runtime.workers.run(Kind::Brief, &service.runtime.user, read).await.map_err(SkillError::Content)?;
    let body = body(&text).to_owned();
    Ok((skill, body))
}

/// The text below the front matter.
fn body(text: &str) -> &str {
    let text = text.trim_start_matches('\u{feff}');
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let is_rule = line.trim_end() == "---";
        if number == 0 && !is_rule {
            return text;
        }
        at += line.len();
        if number > 0 && is_rule {
            return text[at..].trim_start_matches(['\r', '\n']);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::body;

    #[test]
    fn front_matter_is_no_content() {
        for (text, expected) in [
            ("---\nname: a\n---\n\n# T\n---\nx", "# T\n---\nx"),
            ("---\r\nname: a\r\n---\r\nx", "x"),
            ("# T\n---\nx\n---\n", "# T\n---\nx\n---\n"),
            ("---\nnever closed", "---\nnever closed"),
            ("", ""),
        ] {
            assert_eq!(body(text), expected);
        }
    }
}
