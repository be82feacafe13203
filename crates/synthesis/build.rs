//! Embeds the Python package with the plugin host, which runs backends and tools written in Python.

use std::fmt::Write;
use std::path::{Path, PathBuf};

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    // The directory at run time: a copied target folder may contain this program as built for another checkout.
    let root = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../../clients/python/src");
    println!("cargo::rerun-if-changed={}", root.join("sandbox").display());
    let mut files = Vec::new();
    gather(&root.join("sandbox"), &mut files);
    files.sort();
    let mut code = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&root).unwrap_or(&file);
        // Writing to a string does not fail.
        let _ = writeln!(code, "({:?}, include_str!({:?})),", name.display().to_string(), file.display().to_string());
    }
    code.push(']');
    if let Err(error) = std::fs::write(out.join("package.rs"), code) {
        println!("cargo::error=could not write the list of the Python package: {error}");
    }
}

fn gather(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            gather(&path, files);
        } else if path.extension().is_some_and(|ending| ending == "py") {
            files.push(path);
        }
    }
}
