//! Named specs, from files that are read again when they change.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use arenite_model::{ImageName, SandboxSpec};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ControlConfig, ControlError, SpecOverlay};

/// The built-in templates: Agent-Sandbox's default environment, with the image of that name, and the default for requests
/// without a template or image.
const AIO: &str = "aio";
const DEFAULT: &str = "default";
/// Services that a template may require: those that every guest has.
const SERVICES: [&str; 7] = ["sandbox", "shell", "bash", "file", "jupyter", "nodejs", "code"];
/// Maximum number of pooled sandboxes of one template.
pub(crate) const MAX_POOL: usize = 256;
/// Maximum size of one file, in bytes.
const MAX_FILE: u64 = 1 << 20;
/// Maximum number of files that a listing reads.
const MAX_TEMPLATES: usize = 1000;

/// A named spec of sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Template {
    pub name: String,
    pub description: String,
    /// Guest services that it requires. A template that requires a missing one can't be used.
    pub services: Vec<String>,
    /// Number of its sandboxes that are created in advance.
    pub pool: usize,
    pub spec: SandboxSpec,
    /// Whether its file says what its sandboxes may reach, so that the default of a tenant does not.
    #[serde(skip)]
    pub(crate) names_network: bool,
}

/// One entry of Agent-Sandbox's environments file.
#[derive(Debug, Deserialize)]
struct Environment {
    name: String,
    image: String,
    description: String,
}

/// The sources of templates: a file `NAME.toml` of the directory, else the environments file, else the built-in ones.
pub(crate) struct Templates {
    default_image: ImageName,
    dir: Option<PathBuf>,
    environments: Option<PathBuf>,
    read: Mutex<Cache>,
}

/// The files' content when last read.
#[derive(Default)]
struct Cache {
    files: BTreeMap<String, (Stamp, Result<Template, String>)>,
    environments: Option<(Stamp, Environments)>,
}

type Stamp = (SystemTime, u64);
/// Each unusable entry has its reason. An error if the file as a whole can't be read.
type Environments = Result<BTreeMap<String, Result<Template, String>>, String>;

impl Templates {
    pub(crate) fn new(config: &ControlConfig) -> Self {
        Self {
            default_image: config.default_image.clone(),
            dir: config.templates_dir.clone(),
            environments: config.environments_file.clone(),
            read: Mutex::default(),
        }
    }

    /// The template of requests without one: an operator's own `aio`, else the default image.
    pub(crate) fn of_unnamed(&self) -> Result<Template, ControlError> {
        let aio = self.get(AIO)?;
        let is_meant = aio != aio_image() || aio.spec.image == self.default_image;
        if is_meant { Ok(aio) } else { self.get(DEFAULT) }
    }

    /// The template of that name, from the current file.
    pub(crate) fn get(&self, name: &str) -> Result<Template, ControlError> {
        let bad = |reason: String| ControlError::BadTemplate { name: name.to_owned(), reason };
        let mut cache = self.cache();
        if let Some(found) = self.of_dir(&mut cache, name) {
            return found.clone().map_err(bad);
        }
        let environments = self.of_environments(&mut cache);
        if let Some(Ok(all)) = environments
            && let Some(found) = all.get(name)
        {
            return found.clone().map_err(bad);
        }
        if let Some(built_in) = self.built_in().into_iter().find(|template| template.name == name) {
            return Ok(built_in);
        }
        // A name that may be in an unreadable file is not simply unknown.
        if let (Some(Err(reason)), Some(path)) = (environments, &self.environments) {
            return Err(ControlError::BadEnvironments { path: path.clone(), reason: reason.clone() });
        }
        drop(cache);
        Err(ControlError::NoTemplate {
            name: name.chars().take(80).collect(),
            known: self.list().into_iter().map(|t| t.name).collect(),
        })
    }

    /// All usable templates, by name. The others are logged.
    pub(crate) fn list(&self) -> Vec<Template> {
        let mut all: BTreeMap<_, _> = self.built_in().map(|template| (template.name.clone(), template)).into();
        let mut cache = self.cache();
        match self.of_environments(&mut cache) {
            Some(Ok(environments)) => {
                for (name, found) in environments {
                    keep(&mut all, name, found);
                }
            }
            Some(Err(reason)) => tracing::warn!(%reason, "the environments file can't be used"),
            None => {}
        }
        for name in self.names() {
            if let Some(found) = self.of_dir(&mut cache, &name) {
                keep(&mut all, &name, found);
            }
        }
        all.into_values().collect()
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.read.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn built_in(&self) -> [Template; 2] {
        [aio_image(), built_in(DEFAULT, "the server's default image", self.default_image.clone())]
    }

    fn names(&self) -> Vec<String> {
        let entries = self.dir.iter().filter_map(|dir| fs::read_dir(dir).ok());
        entries
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name();
                Some(name.to_str()?.strip_suffix(".toml")?.to_owned())
            })
            .take(MAX_TEMPLATES)
            .collect()
    }

    fn of_dir<'a>(&self, cache: &'a mut Cache, name: &str) -> Option<&'a Result<Template, String>> {
        if !is_name(name) {
            return None;
        }
        let path = self.dir.as_ref()?.join(format!("{name}.toml"));
        let Some(stamp) = stamp(&path) else {
            cache.files.remove(name);
            return None;
        };
        let read = || (stamp, self.read_file(name, &path));
        let entry = cache.files.entry(name.to_owned()).or_insert_with(read);
        if entry.0 != stamp {
            *entry = read();
        }
        Some(&entry.1)
    }

    fn read_file(&self, name: &str, path: &Path) -> Result<Template, String> {
        let text = read_bounded(path)?;
        let mut table: toml::Table = toml::from_str(&text).map_err(|e| e.to_string())?;
        let mut take = |key: &str| table.remove(key);
        let description = match take("description") {
            None => String::new(),
            Some(toml::Value::String(text)) => text,
            Some(_) => return Err("description is not a string".to_owned()),
        };
        match take("name") {
            None => {}
            Some(toml::Value::String(given)) if given == name => {}
            Some(given) => {
                return Err(format!("it is named {given} in the file {name}.toml; a template is called like its file"));
            }
        }
        let services: Vec<String> = match take("services") {
            None => Vec::new(),
            Some(list) => list.try_into().map_err(|e| format!("services: {e}"))?,
        };
        if let Some(unknown) = services.iter().find(|s| !SERVICES.contains(&s.as_str())) {
            return Err(format!("the guest has no service {unknown:?}; it has {}", SERVICES.join(", ")));
        }
        let pool = match take("pool") {
            None => 0,
            Some(toml::Value::Integer(n)) => {
                usize::try_from(n).ok().filter(|n| *n <= MAX_POOL).ok_or(format!("pool is from 0 to {MAX_POOL}"))?
            }
            Some(_) => return Err("pool is not a number".to_owned()),
        };
        let overlay: SpecOverlay = toml::Value::Table(table).try_into().map_err(|e| e.to_string())?;
        let mut spec = SandboxSpec::of_image(self.default_image.clone());
        overlay.lay_over(&mut spec);
        spec.check().map_err(|e| e.to_string())?;
        let names_network = overlay.network.is_some() || overlay.network_policy.is_some();
        Ok(Template { name: name.to_owned(), description, services, pool, spec, names_network })
    }

    fn of_environments<'a>(&self, cache: &'a mut Cache) -> Option<&'a Environments> {
        let path = self.environments.as_ref()?;
        let now = stamp(path).unwrap_or((SystemTime::UNIX_EPOCH, 0));
        if cache.environments.as_ref().is_none_or(|(then, _)| *then != now) {
            cache.environments = Some((now, read_environments(path)));
        }
        cache.environments.as_ref().map(|(_, found)| found)
    }
}

fn aio_image() -> Template {
    built_in(AIO, "browser, editor, notebooks, shell and files", AIO.parse().expect("the image's name is valid"))
}

fn built_in(name: &str, description: &str, image: ImageName) -> Template {
    let (name, description) = (name.to_owned(), description.to_owned());
    Template { name, description, services: Vec::new(), pool: 0, spec: SandboxSpec::of_image(image), names_network: false }
}

fn keep(all: &mut BTreeMap<String, Template>, name: &str, found: &Result<Template, String>) {
    match found {
        Ok(template) => {
            all.insert(name.to_owned(), template.clone());
        }
        Err(reason) => {
            all.remove(name);
            tracing::warn!(template = name, %reason, "a template can't be used");
        }
    }
}

fn read_environments(path: &Path) -> Environments {
    let text = read_bounded(path)?;
    let entries: Vec<Environment> = serde_json::from_str(&text).map_err(|e| e.to_string())?;
    Ok(entries
        .into_iter()
        .map(|entry| {
            let template = entry
                .image
                .parse()
                .map(|image| Template {
                    name: entry.name.clone(),
                    description: entry.description,
                    services: Vec::new(),
                    pool: 0,
                    spec: SandboxSpec::of_image(image),
                    names_network: false,
                })
                .map_err(|e: arenite_model::IdError| e.to_string());
            (entry.name, template)
        })
        .collect())
}

fn read_bounded(path: &Path) -> Result<String, String> {
    use io::Read;
    let mut text = String::new();
    fs::File::open(path).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text)).map_err(|e| e.to_string())?;
    if text.len() as u64 > MAX_FILE {
        return Err(format!("it is larger than {MAX_FILE} bytes"));
    }
    Ok(text)
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some((meta.modified().ok()?, meta.len()))
}

/// Whether the name is valid as a file name here.
fn is_name(name: &str) -> bool {
    (1..=63).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
        && !name.starts_with('.')
}
