//! The files in which installers keep the names and versions of packages.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The most packages in one answer.
const MAX_PACKAGES: usize = 10_000;
/// The bytes to read of a package's metadata: name and version come first.
const MAX_HEAD_BYTES: u64 = 16 << 10;
/// The most of a package.json that is read, in bytes.
const MAX_JSON_BYTES: u64 = 1 << 20;

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
pub struct Package {
    pub name: String,
    pub version: String,
    /// `name==version` (Python) or `name@version` (Node.js), as installers take it; some clients look for these words.
    pub spec: String,
}

fn entries(dir: &Path) -> impl Iterator<Item = PathBuf> {
    std::fs::read_dir(dir).into_iter().flatten().flatten().take(MAX_PACKAGES).map(|e| e.path())
}

/// The directories in which the Pythons under `prefixes` keep packages.
pub(super) fn python_directories(prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for prefix in prefixes {
        for lib in entries(&prefix.join("lib")) {
            let name = lib.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
            if !name.starts_with("python3") {
                continue;
            }
            found.extend(["site-packages", "dist-packages"].map(|d| lib.join(d)).into_iter().filter(|d| d.is_dir()));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Reads name and version from a distribution's metadata.
fn metadata(path: &Path) -> Option<(String, String)> {
    let reader = BufReader::new(File::open(path).ok()?.take(MAX_HEAD_BYTES));
    let (mut name, mut version) = (None, None);
    for line in reader.split(b'\n') {
        let line = line.ok()?;
        let line = String::from_utf8_lossy(&line);
        let line = line.trim_end();
        match line.split_once(": ") {
            Some(("Name", value)) => name = name.or(Some(value.trim().to_owned())),
            Some(("Version", value)) => version = version.or(Some(value.trim().to_owned())),
            _ if line.is_empty() => break,
            _ => {}
        }
        if name.is_some() && version.is_some() {
            break;
        }
    }
    Some((name?, version?))
}

/// The packages in directories. Of several with one name, the first.
pub(super) fn python(directories: &[PathBuf]) -> Vec<Package> {
    let mut packages = BTreeMap::new();
    for entry in directories.iter().flat_map(|d| entries(d)) {
        let Some(extension) = entry.extension() else {
            continue;
        };
        let file = match extension.to_str() {
            Some("dist-info") => entry.join("METADATA"),
            Some("egg-info") if entry.is_dir() => entry.join("PKG-INFO"),
            Some("egg-info") => entry,
            _ => continue,
        };
        if packages.len() >= MAX_PACKAGES {
            break;
        }
        if let Some((name, version)) = metadata(&file) {
            let key = name.to_lowercase().replace(['_', '.'], "-");
            packages.entry(key).or_insert_with(|| Package { spec: format!("{name}=={version}"), name, version });
        }
    }
    packages.into_values().collect()
}

#[derive(Deserialize)]
struct Manifest {
    name: String,
    version: String,
}

/// The package in this directory.
pub(super) fn nodejs_package(dir: &Path) -> Option<Package> {
    let file = File::open(dir.join("package.json")).ok()?;
    let Manifest { name, version } = serde_json::from_reader(BufReader::new(file.take(MAX_JSON_BYTES))).ok()?;
    Some(Package { spec: format!("{name}@{version}"), name, version })
}

/// The packages in directories like `/usr/local/lib/node_modules`, including scoped ones. Of several with one name, the first.
pub(super) fn nodejs(directories: &[PathBuf]) -> Vec<Package> {
    let mut packages = BTreeMap::new();
    for entry in directories.iter().flat_map(|d| entries(d)) {
        let name = entry.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let scope = if name.starts_with('@') { entries(&entry).collect() } else { vec![entry] };
        for dir in scope {
            if packages.len() >= MAX_PACKAGES {
                return packages.into_values().collect();
            }
            if let Some(package) = nodejs_package(&dir) {
                packages.entry(package.name.clone()).or_insert(package);
            }
        }
    }
    packages.into_values().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn write(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn packages_are_read_from_their_files() {
        let root = std::env::temp_dir().join(format!("arenite-packages-{}", std::process::id()));
        let site = root.join("lib/python3.11/site-packages");
        write(
            &site.join("ruamel.yaml-1.0.dist-info/METADATA"),
            "Metadata-Version: 2.1\nName: ruamel.yaml\nVersion: 1.0\n\nName: no\n",
        );
        write(&site.join("old.egg-info"), "Name: old\nVersion: 0.1\n");
        write(&site.join("dir.egg-info/PKG-INFO"), "Name: dir\r\nVersion: 2\r\n");
        write(&site.join("broken-1.dist-info/METADATA"), "Name: broken\n\nVersion: 3\n");
        write(&site.join("requests/__init__.py"), "");
        let directories = python_directories(&[root.clone(), root.join("missing")]);
        let specs = |packages: Vec<Package>| packages.into_iter().map(|p| p.spec).collect::<Vec<_>>();
        assert_eq!(specs(python(&directories)), ["dir==2", "old==0.1", "ruamel.yaml==1.0"]);
        let modules = root.join("node_modules");
        write(&modules.join("npm/package.json"), r#"{"name": "npm", "version": "10.1.0"}"#);
        write(&modules.join("@scope/x/package.json"), r#"{"name": "@scope/x", "version": "1.0.0"}"#);
        write(&modules.join("bad/package.json"), "{");
        assert_eq!(specs(nodejs(&[modules])), ["@scope/x@1.0.0", "npm@10.1.0"]);
        fs::remove_dir_all(root).unwrap();
    }
}
