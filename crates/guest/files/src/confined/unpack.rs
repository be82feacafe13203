//! Skills on disk: finds them in a directory, and moves them there from an archive.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use arenite_documents::front_matter;
use serde_json::Value;

use super::job::{Fault, FoundSkill};
use crate::skills::{MAX_METADATA_BYTES, MAX_SKILL_FILE_BYTES, MAX_SKILLS, SKILL_FILE, is_skill_name};

/// How deep to search a directory for skills.
const MAX_DEPTH: usize = 4;
/// The most entries that a search visits.
const MAX_VISITED: usize = 20_000;

/// Finds all skills at or below a directory. Directories below a skill belong to that skill, and links are not followed.
pub(super) fn find(directory: &Path) -> Result<Vec<FoundSkill>, Fault> {
    let io = |path: &Path, e: &io::Error| Fault::io(format!("could not look into {}", path.display()), e);
    let mut found = Vec::new();
    let mut visited = 0;
    let mut pending = vec![(directory.to_owned(), 0)];
    while let Some((directory, depth)) = pending.pop() {
        if directory.join(SKILL_FILE).symlink_metadata().is_ok_and(|m| m.is_file()) {
            found.push(read(&directory)?);
            if found.len() > MAX_SKILLS {
                return Err(Fault::refused(format!("there are more than {MAX_SKILLS} skills")));
            }
            continue;
        }
        if depth == MAX_DEPTH {
            continue;
        }
        for entry in fs::read_dir(&directory).map_err(|e| io(&directory, &e))? {
            let entry = entry.map_err(|e| io(&directory, &e))?;
            visited += 1;
            if visited > MAX_VISITED {
                return Err(Fault::refused(format!("there are more than {MAX_VISITED} files to look for skills in")));
            }
            let hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
            if !hidden && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push((entry.path(), depth + 1));
            }
        }
    }
    found.sort_by(|a, b| a.directory.cmp(&b.directory));
    Ok(found)
}

/// Reads a directory as a skill.
fn read(directory: &Path) -> Result<FoundSkill, Fault> {
    let path = directory.join(SKILL_FILE);
    let failed = |e: &dyn std::fmt::Display| Fault::io(format!("could not read {}", path.display()), e);
    if directory.to_str().is_none() {
        return Err(failed(&"its path is not utf-8"));
    }
    let mut text = String::new();
    let file = File::open(&path).map_err(|e| failed(&e))?;
    file.take(MAX_SKILL_FILE_BYTES + 1).read_to_string(&mut text).map_err(|e| failed(&e))?;
    if text.len() as u64 > MAX_SKILL_FILE_BYTES {
        return Err(failed(&format!("it is larger than {} MiB", MAX_SKILL_FILE_BYTES >> 20)));
    }
    let metadata = front_matter(&text).map_err(|e| failed(&e))?.fields;
    if serde_json::to_string(&metadata).map_or(usize::MAX, |json| json.len()) > MAX_METADATA_BYTES {
        return Err(failed(&format!("its front matter is larger than {} KiB", MAX_METADATA_BYTES >> 10)));
    }
    let own = metadata.get("name").and_then(Value::as_str).map(str::trim).filter(|name| !name.is_empty());
    let name = match own {
        Some(name) => name.to_owned(),
        None => directory.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    if !is_skill_name(&name) {
        return Err(failed(&format!("{name:?} is no name for a skill: it has letters, digits, dots, hyphens and underscores")));
    }
    Ok(FoundSkill { name, directory: directory.to_owned(), metadata })
}

/// Unpacks an archive next to the skills' target, checks the content, and moves it into place.
///
/// A skill at the archive's root becomes the directory `name`, or the directory of the skill's own name. In other archives, each
/// directory with skills in it is moved, or all of them below `name`. An older directory of a skill is exchanged; any other
/// existing directory stays and is an error.
pub(super) fn unpack(
    archive: File,
    directory: &Path,
    scratch: &Path,
    name: Option<&str>,
    fallback: &str,
) -> Result<Vec<FoundSkill>, Fault> {
    let write = |path: &Path| {
        let message = format!("could not write {}", path.display());
        move |e: io::Error| Fault::io(message, e)
    };
    fs::create_dir_all(directory).map_err(write(directory))?;
    let tree = scratch.join("new");
    fs::create_dir_all(&tree).map_err(write(&tree))?;
    arenite_documents::unpack(archive, &tree).map_err(|e| Fault::io("the archive was not unpacked", e))?;
    let found = find(&tree)?;
    if found.is_empty() {
        return Err(Fault::Refused {
            message: format!("the archive holds no {SKILL_FILE}"),
            hint: Some(format!("a skill is a directory with a file {SKILL_FILE}")),
        });
    }
    let moves = placements(&found, &tree, directory, name, fallback)?;
    for (_, to) in &moves {
        check_replaceable(to)?;
    }
    for (at, (from, to)) in moves.iter().enumerate() {
        let old = scratch.join(format!("old-{at}"));
        match fs::rename(to, &old) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(write(to)(e)),
            _ => {}
        }
        if let Some(parent) = to.parent() {
            fs::create_dir_all(parent).map_err(write(parent))?;
        }
        fs::rename(from, to).map_err(write(to))?;
    }
    let mut placed = Vec::new();
    for (_, to) in &moves {
        placed.extend(find(to)?);
    }
    Ok(placed)
}

/// Which directory is moved where.
fn placements(
    found: &[FoundSkill],
    tree: &Path,
    directory: &Path,
    name: Option<&str>,
    fallback: &str,
) -> Result<Vec<(PathBuf, PathBuf)>, Fault> {
    let at_root = found.iter().find(|skill| skill.directory == tree);
    if let Some(skill) = at_root {
        // Its directory's name is generated and says nothing.
        let own = skill.metadata.get("name").and(Some(skill.name.as_str()));
        return Ok(vec![(tree.to_owned(), directory.join(name.or(own).unwrap_or(fallback)))]);
    }
    if let Some(name) = name {
        // If the archive holds one directory, which is the skill, that directory is moved under another name.
        let from = if let [only] = found { only.directory.clone() } else { tree.to_owned() };
        return Ok(vec![(from, directory.join(name))]);
    }
    let mut moves: Vec<(PathBuf, PathBuf)> = Vec::new();
    for skill in found {
        let inside = skill.directory.strip_prefix(tree).map_err(|e| Fault::io("the archive is not below its directory", e))?;
        let Some(top) = inside.components().next() else { continue };
        let top = Path::new(top.as_os_str());
        if moves.iter().all(|(from, _)| *from != tree.join(top)) {
            moves.push((tree.join(top), directory.join(top)));
        }
    }
    Ok(moves)
}

/// Only a directory with skills may be exchanged.
fn check_replaceable(path: &Path) -> Result<(), Fault> {
    let exists = |reason: &str| {
        Err(Fault::Refused {
            message: format!("{} exists and {reason}", path.display()),
            hint: Some("give another path or name, or remove it first".to_owned()),
        })
    };
    match path.symlink_metadata() {
        Err(_) => Ok(()),
        Ok(found) if !found.is_dir() => exists("is no directory"),
        Ok(_) => match find(path) {
            Ok(skills) if !skills.is_empty() => Ok(()),
            _ => exists("holds no skill"),
        },
    }
}
