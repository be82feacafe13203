//! The image `base`: as it comes with Arenite, and the same steps on another image.

use std::path::Path;

use arenite_image::{Entry, Image, ImageError, Imagefile, RootView};
use arenite_model::ImageName;

use super::image::{Prepared, refused};
use super::registry;
use crate::failure::{Attempt, Failure};
use crate::output;

/// The Imagefile of `base`.
pub(super) const BASE: &str = include_str!("../../../../images/base.Imagefile");

/// Its lines that differ on another image.
const FROM: &str = "FROM debootstrap:bookworm\n";
const UPDATE: &str = "    apt-get update; \\\n";
const ADD_USER: &str = "    useradd ";
/// On other images, the user's name or id may be taken.
const REMOVE_USER: &str = r#"    for user in gem $(getent passwd 1000 | cut -d: -f1); do \
        if id "$user" >/dev/null 2>&1; then userdel "$user"; fi; \
    done; \
"#;
/// Maximum number of characters of a distribution's name in a message.
const NAME_CHARS: usize = 80;

/// The steps of `base` on an image with apt.
pub(super) fn imagefile_on(from: &ImageName) -> Result<Imagefile, Failure> {
    Imagefile::parse(text_on(from).as_bytes()).map_err(|error| refused(&error.into()))
}

fn text_on(from: &ImageName) -> String {
    let check = format!(
        r#"    missing=; \
    for package in {}; do \
        apt-cache show "$package" >/dev/null 2>&1 || missing="$missing $package"; \
    done; \
    if [ -n "$missing" ]; then echo "apt has no packages of these names here:$missing" >&2; exit 1; fi; \
"#,
        packages().collect::<Vec<_>>().join(" ")
    );
    BASE.replacen(FROM, &format!("FROM {from}\nUSER root\n"), 1).replacen(UPDATE, &format!("{UPDATE}{check}"), 1).replacen(
        ADD_USER,
        &format!("{REMOVE_USER}{ADD_USER}"),
        1,
    )
}

/// The packages that the Imagefile installs.
fn packages() -> impl Iterator<Item = &'static str> {
    let listed = BASE.split_once("--no-install-recommends \\\n").map_or("", |(_, rest)| rest);
    let listed = listed.split_once(';').map_or("", |(listed, _)| listed);
    listed.split_whitespace().filter(|word| *word != "\\").chain(["npm"])
}

/// Finds the image that `base` is built on, or pulls it, and checks that it has apt.
pub(super) fn find(from: &ImageName, data_dir: &Path) -> Result<(), Failure> {
    let prepared = Prepared::new(data_dir)?;
    let image = match prepared.images().get(from) {
        Ok(image) => image,
        Err(ImageError::NotFound { .. }) => registry::pull_image(&prepared, from)?,
        Err(error) => return Err(refused(&error)),
    };
    check(&image)
}

fn check(image: &Image) -> Result<(), Failure> {
    let read = || -> std::io::Result<(bool, Option<String>)> {
        let root = RootView::open(image.layers.iter().map(|layer| layer.dir.as_path()))?;
        let has_apt = matches!(root.resolve(Path::new("/usr/bin/apt-get"), true)?.entry, Entry::File(_));
        // An image may have no such file, or one that is no text.
        let release = root.read(Path::new("/etc/os-release"), MAX_RELEASE_BYTES).ok().flatten().unwrap_or_default();
        Ok((has_apt, distribution(&String::from_utf8_lossy(&release))))
    };
    let (has_apt, distribution) = read().attempt(|| format!("could not read image {}", image.name))?;
    if has_apt {
        return Ok(());
    }
    let distribution = distribution.map(|name| format!(" ({name})")).unwrap_or_default();
    let packages = packages().collect::<Vec<_>>().join(", ");
    let name = &image.name;
    Err(Failure::new(format!(
        "image {name}{distribution} has no apt-get, so these packages of base can't be installed: {packages}"
    ))
    .hint(format!("use it as it is: arenite create --image {name}; or install what it has packages for with a Dockerfile")))
}

/// Maximum size of `/etc/os-release`, in bytes.
const MAX_RELEASE_BYTES: u64 = 64 << 10;

/// The name of a distribution, as its `os-release` has it.
fn distribution(release: &str) -> Option<String> {
    let value = |key: &str| release.lines().find_map(|line| line.strip_prefix(key));
    let name = value("PRETTY_NAME=").or_else(|| value("NAME="))?.trim_matches(['"', '\'']);
    Some(output::harmless(name).chars().take(NAME_CHARS).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_image_that_comes_along_is_valid_and_copies_nothing() {
        Imagefile::parse(BASE.as_bytes()).unwrap();
        assert!(!BASE.lines().any(|line| line.starts_with("COPY")));
    }

    #[test]
    fn the_steps_of_base_go_on_another_image() {
        let name: ImageName = "registry.example:5000/team/debian:12".parse().unwrap();
        imagefile_on(&name).unwrap();
        let text = text_on(&name);
        assert!(text.contains("FROM registry.example:5000/team/debian:12\nUSER root\n") && !text.contains("debootstrap"));
        let packages: Vec<_> = packages().collect();
        assert!(packages.len() > 20 && packages.iter().all(|name| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-')));
        for package in ["bash", "python3", "nodejs", "npm"] {
            assert!(packages.contains(&package), "{package}");
        }
        // Before the first package is installed, and before the user is added.
        let at = |text: &str, part: &str| text.find(part).unwrap();
        assert!(at(&text, "apt-cache show") < at(&text, "apt-get install") && at(&text, "userdel") < at(&text, "useradd"));
    }

    #[test]
    fn a_distribution_says_its_name() {
        for (release, wanted) in [
            ("NAME=\"Alpine Linux\"\nID=alpine\nPRETTY_NAME=\"Alpine Linux v3.20\"\n", Some("Alpine Linux v3.20")),
            ("NAME='Void'\n", Some("Void")),
            ("ID=x\n", None),
            ("", None),
        ] {
            assert_eq!(distribution(release).as_deref(), wanted);
        }
    }
}
