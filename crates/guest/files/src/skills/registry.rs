//! The registered skills.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;
use serde_json::{Map, Value};
use tokio::sync::OnceCell;
use utoipa::ToSchema;

use super::dependencies::DependencyCommandResult;
use super::{MAX_SKILLS, SKILL_FILE};
use crate::confined::Confined;
use arenite_guest_runtime::Runtime;

/// A registered skill.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SkillMetadata {
    /// The skill's name.
    pub name: String,
    /// Its directory.
    pub path: String,
    /// The front matter of its SKILL.md.
    #[schema(required = false, value_type = std::collections::HashMap<String, Value>)]
    pub metadata: Map<String, Value>,
    /// The commands that installed its dependencies.
    #[schema(required = false)]
    pub dependency_commands: Vec<DependencyCommandResult>,
}

/// The state of the service.
#[derive(Debug)]
pub struct Skills {
    pub(super) runtime: Arc<Runtime>,
    pub(super) confined: Arc<Confined>,
    registered: Mutex<BTreeMap<String, SkillMetadata>>,
    /// Set once the directory in `AIO_SKILLS_PATH` is registered, which the first call of the service does.
    pub(super) preloaded: OnceCell<()>,
}

impl Skills {
    pub fn new(runtime: Arc<Runtime>, confined: Arc<Confined>) -> Self {
        Self { runtime, confined, registered: Mutex::default(), preloaded: OnceCell::new() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SkillMetadata>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers skills and replaces those with the same names. Registers none if there would be too many.
    pub(super) fn register(&self, skills: &[SkillMetadata]) -> bool {
        let mut registered = self.lock();
        let new = skills.iter().filter(|s| !registered.contains_key(&s.name)).count();
        if registered.len() + new > MAX_SKILLS {
            return false;
        }
        registered.extend(skills.iter().map(|s| (s.name.clone(), s.clone())));
        true
    }

    /// The skills with the given names, or all.
    pub fn list(&self, names: Option<&[&str]>) -> Vec<SkillMetadata> {
        let registered = self.lock();
        registered.values().filter(|s| names.is_none_or(|names| names.contains(&s.name.as_str()))).cloned().collect()
    }

    pub(super) fn get(&self, name: &str) -> Option<SkillMetadata> {
        self.lock().get(name).cloned()
    }

    pub(super) fn remove(&self, name: &str) -> Option<SkillMetadata> {
        self.lock().remove(name)
    }

    /// Removes all skills and returns their names.
    pub(super) fn clear(&self) -> Vec<String> {
        std::mem::take(&mut *self.lock()).into_keys().collect()
    }
}

impl SkillMetadata {
    pub(super) fn file(&self) -> PathBuf {
        PathBuf::from(&self.path).join(SKILL_FILE)
    }
}
