//! References to images of registries, read as Docker reads them.

use std::fmt;
use std::str::FromStr;

use arenite_model::ImageName;

use crate::archive::oci::hex_of;

/// The registry of references that name none.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The host that answers for it.
const DEFAULT_HOST: &str = "registry-1.docker.io";

/// An image of a registry: `python:3.12-slim`, `localhost:5000/team/app`, or `ghcr.io/team/app@sha256:…`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// Host and perhaps port, such as `localhost:5000`.
    pub registry: String,
    /// The path in the registry, such as `library/python`.
    pub repository: String,
    /// `latest` if the reference has neither tag nor digest.
    pub tag: Option<String>,
    /// `sha256:` and 64 hexadecimal digits. It counts more than the tag.
    pub digest: Option<String>,
}

impl Reference {
    /// The host and port to connect to.
    pub(crate) fn host(&self) -> &str {
        if self.registry == DEFAULT_REGISTRY { DEFAULT_HOST } else { &self.registry }
    }

    /// The last part of the manifest's address: digest or tag.
    pub(crate) fn version(&self) -> &str {
        self.digest.as_deref().or(self.tag.as_deref()).unwrap_or("latest")
    }

    /// The image's name on this host, which is the reference as people write it: without the default registry and tag.
    pub fn name(&self) -> Option<ImageName> {
        let name = self.to_string().parse().ok()?;
        Some(crate::store::canonical(&name))
    }

    /// The same repository with a digest.
    pub(crate) fn with_digest(&self, hex: &str) -> Self {
        Self { tag: None, digest: Some(format!("sha256:{hex}")), ..self.clone() }
    }
}

/// Whether the first part of a path names a registry, if more parts follow.
pub(crate) fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.registry, self.repository)?;
        match (&self.digest, &self.tag) {
            (Some(digest), _) => write!(f, "@{digest}"),
            (None, Some(tag)) => write!(f, ":{tag}"),
            (None, None) => Ok(()),
        }
    }
}

impl FromStr for Reference {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rest, digest) = text.split_once('@').map_or((text, None), |(rest, digest)| (rest, Some(digest)));
        if digest.is_some_and(|digest| hex_of(digest).is_none()) {
            return Err(format!("{text:?} is not a reference: after @ come sha256: and 64 hexadecimal digits"));
        }
        let (path, tag) = match rest.rsplit_once(':') {
            Some((path, tag)) if !tag.contains('/') => (path, Some(tag)),
            _ => (rest, None),
        };
        let (registry, repository) = match path.split_once('/') {
            Some((first, repository)) if is_registry(first) => (first, repository.to_owned()),
            Some(_) => (DEFAULT_REGISTRY, path.to_owned()),
            None => (DEFAULT_REGISTRY, format!("library/{path}")),
        };
        let registry = if registry == "index.docker.io" { DEFAULT_REGISTRY } else { registry };
        let repository = match repository.contains('/') || registry != DEFAULT_REGISTRY {
            true => repository,
            false => format!("library/{repository}"),
        };
        let is_default = tag.is_none() && digest.is_none();
        let reference = Self {
            registry: registry.to_owned(),
            repository,
            tag: tag.map(str::to_owned).or_else(|| is_default.then(|| "latest".to_owned())),
            digest: digest.map(str::to_owned),
        };
        // A name of an image has the same form. The tag is checked beside a digest too, which counts in its place.
        let path = format!("{}/{}", reference.registry, reference.repository);
        let part = |sign: char, part: &Option<String>| part.as_ref().map(|part| format!("{sign}{part}")).unwrap_or_default();
        let whole = format!("{path}{}{}", part(':', &reference.tag), part('@', &reference.digest));
        match whole.parse::<ImageName>() {
            Ok(_) => Ok(reference),
            Err(_) => Err(format!("{text:?} is not a reference: it has the form [HOST[:PORT]/]PATH[:TAG][@sha256:DIGEST]")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_as_docker_reads_them() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (text, full, host, name) in [
            ("python", "docker.io/library/python:latest", DEFAULT_HOST, "python"),
            ("python:3.12-Slim", "docker.io/library/python:3.12-Slim", DEFAULT_HOST, "python:3.12-Slim"),
            ("docker.io/python", "docker.io/library/python:latest", DEFAULT_HOST, "python"),
            ("index.docker.io/library/python:1", "docker.io/library/python:1", DEFAULT_HOST, "python:1"),
            ("team/app", "docker.io/team/app:latest", DEFAULT_HOST, "team/app"),
            ("localhost/app", "localhost/app:latest", "localhost", "localhost/app"),
            ("localhost:5000/app", "localhost:5000/app:latest", "localhost:5000", "localhost:5000/app"),
            ("r.example/a/b/c:1.0", "r.example/a/b/c:1.0", "r.example", "r.example/a/b/c:1.0"),
            ("localhost:5000", "docker.io/library/localhost:5000", DEFAULT_HOST, "localhost:5000"),
            ("library/a/b", "docker.io/library/a/b:latest", DEFAULT_HOST, "library/a/b"),
            ("docker.io/r.example/a", "docker.io/r.example/a:latest", DEFAULT_HOST, "docker.io/r.example/a"),
            ("docker.io/localhost/a:1", "docker.io/localhost/a:1", DEFAULT_HOST, "docker.io/localhost/a:1"),
        ] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!((reference.to_string().as_str(), reference.host()), (full, host), "{text}");
            assert_eq!(reference.name().unwrap().as_str(), name, "{text}");
            let named: Reference = name.parse().unwrap();
            assert_eq!(named.to_string(), full, "{text}: the image's name is another reference");
        }
        for text in [format!("app:1@{digest}"), format!("app@{digest}")] {
            let reference: Reference = text.parse().unwrap();
            assert_eq!(reference.to_string(), format!("docker.io/library/app@{digest}"));
            assert_eq!((reference.version(), reference.name().unwrap().as_str()), (&*digest, &*format!("app@{digest}")));
        }
        for text in
            ["", "Python", "a//b", "../a", "a:b:c", "a@sha256:1", "https://r.example/a", "r.example:x/a", "a b", "r.example/"]
        {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
        for text in ["a:b:c", "a:", "a:-", "a:b c"].map(|tagged| format!("{tagged}@{digest}")) {
            assert!(text.parse::<Reference>().is_err(), "{text:?}");
        }
    }
}
