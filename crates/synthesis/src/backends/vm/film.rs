//! Storage of sessions' films.

use std::path::{Path, PathBuf};

use crate::error::SynthesisError;

/// Writes a session's film into the folder, and returns its path.
///
/// # Errors
/// Why it could not be written.
pub(super) async fn keep(folder: &Path, session: &str, film: Vec<u8>) -> Result<PathBuf, SynthesisError> {
    let path = folder.join(format!("{}.mp4", file_name(session)));
    let target = path.clone();
    let write = move || {
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder)?;
        }
        // Written completely or not at all.
        let part = target.with_extension("mp4.part");
        std::fs::write(&part, film)?;
        std::fs::rename(part, target)
    };
    let written = tokio::task::spawn_blocking(write).await?;
    written.map_err(|error| SynthesisError::io(format!("could not write {}", path.display()), error))?;
    Ok(path)
}

/// A session's id contains only such characters; other characters don't reach the path.
fn file_name(session: &str) -> String {
    session.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '-' }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_film_is_written_into_its_folder_whatever_the_session_is_called() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("deep/er");
        let kept = keep(&folder, "../../vm_w_001_ab12", vec![1, 2]).await.unwrap();
        assert_eq!(kept, folder.join("------vm_w_001_ab12.mp4"));
        assert_eq!(std::fs::read(&kept).unwrap(), [1, 2]);
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        let error = keep(&kept, "x", Vec::new()).await.unwrap_err().to_string();
        assert!(error.contains("could not write"), "{error}");
    }
}
