//! What a build takes beside its file and context.

use std::collections::BTreeMap;

use super::Building;
use crate::error::ImageError;
use crate::ignore::IgnoreFile;
use crate::imagefile::Instruction;

/// Maximum number of build arguments, of labels and of secrets.
const MAX_OPTIONS: usize = 500;
/// Maximum size of the build arguments, or of the labels, in bytes.
const MAX_OPTION_BYTES: usize = 128 << 10;
/// Maximum size of a secret, in bytes. Docker's is the same.
const MAX_SECRET_BYTES: usize = 500 << 10;
/// Build arguments that need no ARG. They are not part of a layer's digest.
const PROXY_ARGUMENTS: [&str; 5] = ["http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"];

/// From where ADD may download.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Downloads {
    Refused,
    /// From the public internet.
    #[default]
    Public,
    /// Also from the host's networks. Redirects to other servers must still be public.
    Any,
}

/// Options of a build.
#[derive(Clone, Default)]
pub struct BuildOptions {
    /// Values of ARGs.
    pub build_args: BTreeMap<String, String>,
    /// The stage to build, by name or index; the last one if it is missing.
    pub target: Option<String>,
    /// Labels of the image, after those of the file.
    pub labels: BTreeMap<String, String>,
    /// By their id. They are visible to RUN steps that mount them, and are not part of any layer or digest.
    pub secrets: BTreeMap<String, Vec<u8>>,
    pub downloads: Downloads,
    /// What the build does not see of the context.
    pub ignore: IgnoreFile,
}

impl std::fmt::Debug for BuildOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuildOptions")
            .field("build_args", &self.build_args.keys())
            .field("target", &self.target)
            .field("secrets", &self.secrets.keys())
            .finish_non_exhaustive()
    }
}

impl BuildOptions {
    pub(super) fn check(&self) -> Result<(), ImageError> {
        for (what, map) in [("build arguments", &self.build_args), ("labels", &self.labels)] {
            let bytes: usize = map.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
            let has_nul = map.iter().any(|(name, value)| name.contains('\0') || value.contains('\0'));
            if bytes > MAX_OPTION_BYTES || map.len() > MAX_OPTIONS || has_nul {
                let reason =
                    format!("the {what} are more than {MAX_OPTIONS}, have more than {MAX_OPTION_BYTES} bytes, or a NUL byte");
                return Err(ImageError::Option { reason, hint: None });
            }
        }
        if self.secrets.len() > MAX_OPTIONS {
            return Err(ImageError::Option { reason: format!("there are more than {MAX_OPTIONS} secrets"), hint: None });
        }
        match self.secrets.iter().find(|(_, content)| content.len() > MAX_SECRET_BYTES) {
            Some((id, _)) => {
                let reason = format!("the secret {id:?} has more than {MAX_SECRET_BYTES} bytes");
                Err(ImageError::Option { reason, hint: Some("mount a file of the context, or a cache".to_owned()) })
            }
            None => Ok(()),
        }
    }

    /// Proxy variables, in the case that they were given in.
    pub(super) fn proxies(&self) -> BTreeMap<String, String> {
        let is_proxy = |name: &str| PROXY_ARGUMENTS.contains(&name.to_ascii_lowercase().as_str());
        self.build_args.iter().filter(|(name, _)| is_proxy(name)).map(|(n, v)| (n.clone(), v.clone())).collect()
    }
}

impl Building<'_> {
    /// A build argument without an ARG is mostly a misspelt one.
    pub(super) fn warn_of_unused_arguments(&mut self) {
        let file = self.request.imagefile;
        let in_stages = file.stages.iter().flat_map(|stage| &stage.steps).filter_map(|step| match &step.instruction {
            Instruction::Arg(arguments) => Some(arguments),
            _ => None,
        });
        let known: Vec<&str> = file.arguments.iter().chain(in_stages.flatten()).map(|argument| argument.name.as_str()).collect();
        let proxies = self.request.options.proxies();
        for name in self.request.options.build_args.keys() {
            if !known.contains(&name.as_str()) && !proxies.contains_key(name) {
                self.warnings.push((1, format!("the build argument {name} is not declared by any ARG")));
            }
        }
    }
}
