//! Installed kernels: one directory each below Jupyter's data directories, with a `kernel.json` in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::workers::Kind;

/// The most bytes of a `kernel.json`.
const MAX_FILE: u64 = 64 << 10;
/// The most kernels to read.
const MAX_KERNELS: usize = 100;

/// How to interrupt a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum InterruptMode {
    #[default]
    Signal,
    Message,
}

#[derive(Debug, Deserialize)]
struct KernelJson {
    argv: Vec<String>,
    #[serde(default)]
    language: String,
    #[serde(default)]
    interrupt_mode: InterruptMode,
    #[serde(default)]
    env: BTreeMap<String, String>,
}

/// An installed kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KernelSpec {
    pub(super) name: String,
    /// The canonical path: two names of one directory are one kernel.
    pub(super) dir: PathBuf,
    pub(super) argv: Vec<String>,
    /// In lower case.
    pub(super) language: String,
    pub(super) interrupt_mode: InterruptMode,
    pub(super) env: BTreeMap<String, String>,
}

impl KernelSpec {
    /// The command that starts it.
    pub(super) fn command(&self, connection_file: &Path) -> Vec<String> {
        let filled = self.argv.iter().map(|word| {
            word.replace("{connection_file}", &connection_file.display().to_string())
                .replace("{resource_dir}", &self.dir.display().to_string())
        });
        filled.collect()
    }
}

/// All installed kernels by name. If two directories have the same name, the first in Jupyter's order counts.
pub(super) async fn installed(runtime: &Runtime) -> Result<BTreeMap<String, KernelSpec>, Failure> {
    let env: BTreeMap<String, String> = runtime.environment(&runtime.user, &[]).into_iter().collect();
    let home = runtime.user.home.clone();
    let look = move |_: &_| Ok(look(&data_directories(&env, &home)));
    runtime.workers.run(Kind::Scan, &runtime.user, look).await
}

/// Jupyter's search path: the configured directories, the user's, the Python's, the system's.
fn data_directories(env: &BTreeMap<String, String>, home: &Path) -> Vec<PathBuf> {
    let list = |name: &str| -> Vec<PathBuf> {
        let text = env.get(name).map_or("", String::as_str);
        text.split(':').filter(|dir| dir.starts_with('/')).map(PathBuf::from).collect()
    };
    let home = env.get("HOME").map_or_else(|| home.to_owned(), PathBuf::from);
    let mut found = list("JUPYTER_PATH");
    match env.get("JUPYTER_DATA_DIR") {
        Some(dir) => found.push(dir.into()),
        None => found.push(home.join(".local/share/jupyter")),
    }
    found.extend(env.get("VIRTUAL_ENV").map(|prefix| Path::new(prefix).join("share/jupyter")));
    // The first Python on the search path determines the prefix, as it does for Jupyter.
    let python = list("PATH").into_iter().find(|dir| dir.join("python3").exists() || dir.join("python").exists());
    found.extend(python.and_then(|dir| Some(dir.parent()?.join("share/jupyter"))));
    found.extend(["/usr/local/share/jupyter", "/usr/share/jupyter"].map(PathBuf::from));
    found
}

fn look(directories: &[PathBuf]) -> BTreeMap<String, KernelSpec> {
    let mut found = BTreeMap::new();
    for directory in directories {
        let entries = std::fs::read_dir(directory.join("kernels")).into_iter().flatten().flatten();
        for entry in entries.take(MAX_KERNELS) {
            let name = entry.file_name().to_string_lossy().to_ascii_lowercase();
            if found.len() >= MAX_KERNELS || !is_name(&name) || found.contains_key(&name) {
                continue;
            }
            if let Some(spec) = read(&name, &entry.path()) {
                found.insert(name, spec);
            }
        }
    }
    found
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn read(name: &str, dir: &Path) -> Option<KernelSpec> {
    let dir = std::fs::canonicalize(dir).ok()?;
    let mut text = String::new();
    File::open(dir.join("kernel.json")).ok()?.take(MAX_FILE).read_to_string(&mut text).ok()?;
    let KernelJson { mut argv, language, interrupt_mode, env } = serde_json::from_str(&text).ok()?;
    let program = argv.first_mut()?;
    // For Jupyter, these names mean its own Python: the one of the prefix that the kernel is installed under.
    if is_any_python(program) {
        let own = dir.ancestors().nth(4).map(|prefix| prefix.join("bin/python3")).filter(|python| python.exists());
        *program = own.map_or_else(|| "python3".to_owned(), |python| python.display().to_string());
    }
    Some(KernelSpec { name: name.to_owned(), dir, argv, language: language.to_ascii_lowercase(), interrupt_mode, env })
}

/// `python`, `python3` or `python3.11`.
fn is_any_python(program: &str) -> bool {
    let version = program.strip_prefix("python");
    version.is_some_and(|v| v.is_empty() || v.starts_with('3') && v.bytes().all(|b| b.is_ascii_digit() || b == b'.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_found_as_they_are_installed() {
        let root = std::env::temp_dir().join(format!("arenite-kernels-{}", std::process::id()));
        let (prefix, system) = (root.join("venv"), root.join("system"));
        let put = |dir: &Path, name: &str, text: &str| {
            let dir = dir.join("kernels").join(name);
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("kernel.json"), text).unwrap();
        };
        let python =
            r#"{"argv": ["python", "-f", "{connection_file}"], "language": "Python", "display_name": "x", "metadata": {}}"#;
        put(&prefix.join("share/jupyter"), "python3", python);
        put(&system, "Python3", r#"{"argv": ["/other"]}"#);
        put(&system, "ir", r#"{"argv": ["R", "{resource_dir}"], "interrupt_mode": "message", "env": {"A": "b"}}"#);
        put(&system, "broken", "{");
        put(&system, "empty", r#"{"argv": []}"#);
        std::fs::create_dir_all(prefix.join("bin")).unwrap();
        std::fs::write(prefix.join("bin/python3"), "").unwrap();
        std::os::unix::fs::symlink("python3", prefix.join("share/jupyter/kernels/python3.12")).unwrap();
        let found = look(&[prefix.join("share/jupyter"), root.join("missing"), system]);
        assert_eq!(found.keys().collect::<Vec<_>>(), ["ir", "python3", "python3.12"]);
        assert_eq!(found["python3"].dir, found["python3.12"].dir, "one kernel under two names");
        let interpreter = std::fs::canonicalize(&prefix).unwrap().join("bin/python3").display().to_string();
        assert_eq!(found["python3"].command(Path::new("/c.json")), [&interpreter, "-f", "/c.json"]);
        assert_eq!((found["ir"].interrupt_mode, found["ir"].env["A"].as_str()), (InterruptMode::Message, "b"));
        std::fs::remove_dir_all(root).unwrap();
        assert!(is_any_python("python3.11") && !is_any_python("pythonic") && !is_any_python("/usr/bin/python3"));
    }
}
