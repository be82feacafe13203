//! Bounded answers: what exceeds the bound can be read from a file.

use arenite_guest_files::files::Failure;
use arenite_guest_runtime::Runtime;
use arenite_guest_runtime::workers::Kind;

/// Maximum characters of one text in an answer.
pub(super) const SHOWN_CHARS: usize = 30_000;
/// The directory in which longer texts are kept whole.
const DIR: &str = "/tmp/tool-output";
/// Maximum kept texts: the oldest are deleted first.
const KEPT: usize = 32;

/// A text that fits, or its first and last part.
pub(super) struct Bounded {
    pub(super) text: String,
    /// Where to read the rest.
    pub(super) hint: Option<String>,
}

/// Cuts a text that is longer than [`SHOWN_CHARS`], and keeps the whole text in a file of the sandbox's user.
pub(super) async fn bounded(runtime: &Runtime, text: String) -> Bounded {
    let chars = text.chars().count();
    if chars <= SHOWN_CHARS {
        return Bounded { text, hint: None };
    }
    let half = SHOWN_CHARS / 2;
    let at = |n: usize| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    let (head, tail) = (&text[..at(half)], &text[at(chars - half)..]);
    let shown = format!("{head}\n\n[… {} of {chars} characters are left out here …]\n\n{tail}", chars - SHOWN_CHARS);
    let hint = match keep(runtime, text).await {
        Ok(path) => format!(
            "the answer was cut; all of it is in {path}: read it in parts with sandbox_file_operations \
             (action read, start_line, end_line), or search it"
        ),
        Err(error) => format!("the answer was cut, and the whole of it could not be kept: {error}"),
    };
    Bounded { text: shown, hint: Some(hint) }
}

/// Cuts a list to the entries that fit. Returns the number of entries before, if some were cut.
pub(super) fn cut_list<T: serde::Serialize>(list: &mut Vec<T>) -> Option<usize> {
    let mut chars = 0;
    let fits = list.iter().position(|entry| {
        chars += serde_json::to_string(entry).map_or(0, |json| json.chars().count() + 1);
        chars > SHOWN_CHARS
    });
    let whole = list.len();
    list.truncate(fits?);
    Some(whole)
}

async fn keep(runtime: &Runtime, text: String) -> Result<String, Failure> {
    let path = format!("{DIR}/{}.txt", arenite_guest_runtime::random_id());
    let written = path.clone();
    let work = move |_: &_| {
        let failed = |error| Failure::io(error, &written);
        std::fs::create_dir_all(DIR).map_err(failed)?;
        let mut kept: Vec<_> = std::fs::read_dir(DIR).map_err(failed)?.flatten().collect();
        kept.sort_by_key(|entry| entry.metadata().and_then(|m| m.modified()).ok());
        for old in kept.iter().rev().skip(KEPT - 1) {
            // The file may belong to another user.
            let _ = std::fs::remove_file(old.path());
        }
        // A new file with an unpredictable name, whatever is in the directory.
        let mut file = std::fs::File::create_new(&written).map_err(failed)?;
        std::io::Write::write_all(&mut file, text.as_bytes()).map_err(failed)
    };
    runtime.workers.run(Kind::Brief, &runtime.user, work).await?;
    Ok(path)
}
