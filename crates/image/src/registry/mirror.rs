//! Mirrors of registries: pull-through caches, and copies of their images.

use std::fmt;
use std::str::FromStr;

use super::Reference;

/// Images below a prefix that another place has, too: `docker.io=mirror.example:5000/hub`. There,
/// `docker.io/library/python:3.12` is `mirror.example:5000/hub/library/python:3.12`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    prefix: String,
    place: String,
}

impl Mirror {
    /// The same image in the mirror; none if the prefix is another.
    pub(crate) fn mirrored(&self, reference: &Reference) -> Option<Reference> {
        let full = reference.to_string();
        let rest = full.strip_prefix(&self.prefix)?;
        rest.starts_with(['/', ':', '@']).then(|| format!("{}{rest}", self.place).parse().ok())?
    }
}

impl FromStr for Mirror {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || format!("{text:?} is not a mirror: write PREFIX=PLACE, such as docker.io=mirror.example:5000/hub");
        let (prefix, place) = text.split_once('=').ok_or_else(refuse)?;
        // Both start with a registry's host.
        let is_place = |place: &str| {
            let host = place.split('/').next().unwrap_or_default();
            let parsed = format!("{place}/x").parse::<Reference>();
            parsed.is_ok_and(|reference| reference.registry == host && reference.tag.as_deref() == Some("latest"))
        };
        if !is_place(prefix) || !is_place(place) {
            return Err(refuse());
        }
        Ok(Self { prefix: prefix.to_owned(), place: place.to_owned() })
    }
}

impl fmt::Display for Mirror {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.prefix, self.place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_has_what_is_below_its_prefix() {
        let hub: Mirror = "docker.io=mirror.example:5000/hub".parse().unwrap();
        let team: Mirror = "ghcr.io/team=localhost:5000".parse().unwrap();
        let digest = format!("sha256:{}", "a".repeat(64));
        for (mirror, text, expected) in [
            (&hub, "python:3.12", Some("mirror.example:5000/hub/library/python:3.12".to_owned())),
            (&hub, "ghcr.io/team/app", None),
            (&team, "ghcr.io/team/app:1", Some("localhost:5000/app:1".to_owned())),
            (&team, "ghcr.io/teams/app:1", None),
            (&team, &format!("ghcr.io/team/app@{digest}"), Some(format!("localhost:5000/app@{digest}"))),
        ] {
            let found = mirror.mirrored(&text.parse().unwrap()).map(|reference| reference.to_string());
            assert_eq!(found, expected, "{mirror} {text}");
        }
        for text in
            ["", "docker.io", "docker.io=", "=a.example", "python=a.example", "docker.io=https://a.example", "a.b=c.d:x/e"]
        {
            assert!(text.parse::<Mirror>().is_err(), "{text}");
        }
    }
}
