//! Finds a model by its name.

use std::path::{Path, PathBuf};

use super::{EmbedderSpec, Reasoned, named};
use crate::Result;

/// The spec of a local model, named by its folder or as on Hugging Face's hub, such as `intfloat/e5-base-v2`. A model of the
/// hub has to be in its cache (`$HF_HUB_CACHE`, `$HF_HOME/hub` or `~/.cache/huggingface/hub`): nothing is downloaded.
pub fn from_model_name(name: &str) -> Result<EmbedderSpec> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = variable("HF_HUB_CACHE")
        .or_else(|| variable("HF_HOME").map(|home| home.join("hub")))
        .or_else(|| variable("XDG_CACHE_HOME").map(|caches| caches.join("huggingface/hub")))
        .or_else(|| variable("HOME").map(|home| home.join(".cache/huggingface/hub")));
    locate(name, cache.as_deref()).map_err(named(name))
}

fn locate(name: &str, cache: Option<&Path>) -> Reasoned<EmbedderSpec> {
    let folder = Path::new(name);
    if folder.is_dir() {
        // An index may be opened from another folder than it was created in.
        let folder = folder.canonicalize().map_err(|error| format!("the folder can't be used: {error}"))?;
        return spec(folder);
    }
    if !is_of_the_hub(name) {
        return Err("there is no such folder, and it is no name of a model on the hub, such as intfloat/e5-base-v2".to_owned());
    }
    let absent = || {
        let told = cache.map_or("no folder".to_owned(), |cache| cache.display().to_string());
        format!(
            "there is no such folder, and no such model in the hub's cache ({told}); fetch it with: hf download {name}, or give the \
             path of a folder that holds it"
        )
    };
    let cached = cache.ok_or_else(absent)?.join(format!("models--{}", name.replace('/', "--")));
    snapshot(&cached).ok_or_else(absent).and_then(spec)
}

/// Whether the name is an owner and a name, without a path out of the cache.
fn is_of_the_hub(name: &str) -> bool {
    let part = |part: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        !part.is_empty() && !part.starts_with('.') && part.chars().all(plain)
    };
    let parts: Vec<&str> = name.split('/').collect();
    parts.len() <= 2 && parts.iter().all(|one| part(one))
}

/// The snapshot of `main`, else the most recently written one, of those that contain a model.
fn snapshot(cached: &Path) -> Option<PathBuf> {
    let snapshots = cached.join("snapshots");
    let whole = |folder: &PathBuf| folder.join("config.json").is_file();
    let main = std::fs::read_to_string(cached.join("refs/main")).ok();
    let main = main.map(|hash| snapshots.join(hash.trim())).filter(|folder| folder.parent() == Some(&snapshots) && whole(folder));
    main.or_else(|| {
        let folders = std::fs::read_dir(&snapshots).ok()?.flatten().map(|entry| entry.path()).filter(whole);
        folders.max_by_key(|folder| (folder.metadata().and_then(|data| data.modified()).ok(), folder.clone()))
    })
}

/// The kind of model in the folder: a vector for each token, or an encoder.
fn spec(path: PathBuf) -> Reasoned<EmbedderSpec> {
    let text = std::fs::read(path.join("config.json"))
        .map_err(|error| format!("{} holds no model: could not read its config.json: {error}", path.display()))?;
    let config: serde_json::Value =
        serde_json::from_slice(&text).map_err(|error| format!("config.json in {} can't be read: {error}", path.display()))?;
    Ok(if config["model_type"] == "model2vec" {
        EmbedderSpec::Static { path }
    } else {
        EmbedderSpec::Encoder { path, prefixes: None }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn model(folder: &Path, kind: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("config.json"), format!(r#"{{"model_type": "{kind}"}}"#)).unwrap();
    }

    #[test]
    fn a_model_is_found_in_a_folder_or_in_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let cached = root.join("hub/models--intfloat--e5-base-v2");
        for hash in ["aaaa", "bbbb"] {
            model(&cached.join("snapshots").join(hash), "bert");
        }
        let find = |name: &str| locate(name, Some(&root.join("hub")));
        let encoder = |path: PathBuf| EmbedderSpec::Encoder { path, prefixes: None };
        assert_eq!(find("intfloat/e5-base-v2").unwrap(), encoder(cached.join("snapshots/bbbb")));
        fs::create_dir_all(cached.join("refs")).unwrap();
        fs::write(cached.join("refs/main"), "aaaa\n").unwrap();
        assert_eq!(find("intfloat/e5-base-v2").unwrap(), encoder(cached.join("snapshots/aaaa")));
        model(&root.join("mine"), "model2vec");
        let path = root.join("mine");
        assert_eq!(find(path.to_str().unwrap()).unwrap(), EmbedderSpec::Static { path });
    }

    #[test]
    fn what_is_not_there_is_told_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let find = |name: &str| locate(name, Some(dir.path())).unwrap_err();
        assert!(find("intfloat/e5-base-v2").contains("hf download intfloat/e5-base-v2"));
        // Neither leaves the cache.
        fs::create_dir_all(dir.path().join("models--a/snapshots")).unwrap();
        fs::create_dir_all(dir.path().join("models--a/refs")).unwrap();
        fs::write(dir.path().join("models--a/refs/main"), "../../../etc").unwrap();
        assert!(find("a").contains("hf download"));
        for name in ["../a", "a/../b", "a/b/c", "", "a b", "./none"] {
            assert!(find(name).contains("no such folder, and it is no name"), "{name}");
        }
        assert!(find(dir.path().to_str().unwrap()).contains("config.json"));
    }
}
