//! Installed Python and Node.js packages, read from their files: running pip or npm takes a second.

mod metadata;

use std::path::{Path, PathBuf};

pub use metadata::Package;

use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::programs::{self, Program};
use arenite_guest_runtime::workers::Kind;

/// The Python packages that the sandbox's user can import.
pub async fn python(runtime: &Runtime) -> Result<Vec<Package>, Failure> {
    let env = runtime.environment(&runtime.user, &[]);
    let home = runtime.user.home.clone();
    let look = move |_: &_| {
        let environment = env.iter().find(|(name, _)| name == "VIRTUAL_ENV").map(|(_, value)| value.as_str());
        Ok(python_in(&python_prefixes(&programs::search_path(&env), &home, environment)))
    };
    runtime.workers.run(Kind::Scan, &runtime.user, look).await
}

/// The global Node.js packages, including npm.
pub async fn nodejs(runtime: &Runtime) -> Result<Vec<Package>, Failure> {
    let env = runtime.environment(&runtime.user, &[]);
    let look = move |_: &_| {
        let path = programs::search_path(&env);
        let mut packages = metadata::nodejs(&node_directories(&path, &env));
        for package in npm(&path).into_iter().filter_map(|(_, package)| package) {
            if packages.iter().all(|p| p.name != package.name) {
                packages.push(package);
            }
        }
        packages.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(packages)
    };
    runtime.workers.run(Kind::Scan, &runtime.user, look).await
}

pub fn names<'a>(names: impl IntoIterator<Item = &'a str>) -> impl Iterator<Item = String> {
    names.into_iter().map(str::to_owned)
}

/// Prefixes under which Pythons keep packages: the user's own, those on the search path, the system's.
pub fn python_prefixes(path: &[PathBuf], home: &Path, environment: Option<&str>) -> Vec<PathBuf> {
    let python = programs::find(names(["python3", "python"]), path);
    let resolved = python.iter().filter_map(|p| p.file.parent()?.parent()).map(Path::to_owned);
    let on_path = python.iter().filter_map(|p| p.path.parent()?.parent()).map(Path::to_owned);
    let mut prefixes: Vec<PathBuf> = environment.map(PathBuf::from).into_iter().chain(on_path).collect();
    prefixes.push(home.join(".local"));
    prefixes.extend(resolved);
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    prefixes
}

/// Debian keeps its own modules beside the versions, in `python3/dist-packages`, which the pattern also matches.
pub fn python_in(prefixes: &[PathBuf]) -> Vec<Package> {
    let mut directories: Vec<PathBuf> = Vec::new();
    for prefix in prefixes {
        for directory in metadata::python_directories(std::slice::from_ref(prefix)) {
            if !directories.contains(&directory) {
                directories.push(directory);
            }
        }
    }
    metadata::python(&directories)
}

/// Directories of global Node.js packages: of npm's configured prefix, of the Node.js on the search path, and the usual ones.
pub fn node_directories(path: &[PathBuf], env: &[(String, String)]) -> Vec<PathBuf> {
    let variable = |name: &str| env.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.clone());
    let told = variable("NPM_CONFIG_PREFIX").map(|prefix| PathBuf::from(prefix).join("lib/node_modules"));
    let by_path = variable("NODE_PATH").unwrap_or_default();
    let by_path = by_path.split(':').filter(|d| d.starts_with('/')).map(PathBuf::from).collect::<Vec<_>>();
    let own = programs::find(names(["node"]), path)
        .iter()
        .filter_map(|p| Some(p.file.parent()?.parent()?.join("lib/node_modules")))
        .collect::<Vec<_>>();
    let usual = ["/usr/local/lib/node_modules", "/usr/lib/node_modules"].map(PathBuf::from);
    let mut directories: Vec<PathBuf> = Vec::new();
    for directory in told.into_iter().chain(by_path).chain(own).chain(usual) {
        if !directories.contains(&directory) {
            directories.push(directory);
        }
    }
    directories
}

/// The npm on the search path, which distributions may install outside the global packages.
pub fn npm(path: &[PathBuf]) -> Vec<(Program, Option<Package>)> {
    programs::find(names(["npm"]), path)
        .into_iter()
        .map(|program| {
            let package = program
                .file
                .ancestors()
                .skip(1)
                .take(4)
                .find_map(|dir| metadata::nodejs_package(dir).filter(|p| p.name == "npm"));
            (program, package)
        })
        .collect()
}
