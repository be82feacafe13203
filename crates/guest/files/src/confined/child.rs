//! The confined process: sets its limits, does the job, writes the answer.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::thread;

use arenite_documents::{DocumentError, Format, MAX_DOCUMENT_BYTES, markdown, view};
use rustix::process::{Resource, Rlimit, setrlimit};

use super::job::{Fault, Job, JobOutput};
use super::{JOB, fetch, unpack};

/// The most address space, in bytes: for a document, its unpacked content, and the result.
const MAX_MEMORY: u64 = 1 << 30;
/// The most open descriptors.
const MAX_DESCRIPTORS: u64 = 64;
/// Stack of the reading thread, in bytes: web pages may be nested deep. Only touched pages cost memory.
const STACK_BYTES: usize = 64 << 20;

/// Runs the job from the environment.
pub fn main() -> io::Result<()> {
    let job: Job = serde_json::from_str(&std::env::var(JOB).map_err(io::Error::other)?)?;
    limit(&job)?;
    // A panic is part of the answer; nothing reads the printed message.
    std::panic::set_hook(Box::new(|_| ()));
    let worker = thread::Builder::new().stack_size(STACK_BYTES).spawn(move || run(job))?;
    let answer = worker.join().unwrap_or_else(|_| {
        Err(DocumentError::Malformed { format: "document".to_owned(), reason: "its reader gave up on it".to_owned() }.into())
    });
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &answer)?;
    out.flush()
}

fn limit(job: &Job) -> io::Result<()> {
    let limits = job.limits();
    for (resource, most) in [
        (Resource::As, MAX_MEMORY),
        // The guest enforces the time. This limit applies if the guest is gone.
        (Resource::Cpu, limits.time.as_secs()),
        (Resource::Fsize, limits.file_bytes),
        (Resource::Nofile, MAX_DESCRIPTORS),
        (Resource::Core, 0),
    ] {
        setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?;
    }
    // When the sandbox's memory runs out, this process is the likely cause. Best effort: /proc may be absent in tests.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

fn run(job: Job) -> Result<JobOutput, Fault> {
    match job {
        Job::View { name, selection } => {
            let bytes = input(MAX_DOCUMENT_BYTES)?;
            let format = Format::detect(&bytes, Some(&name), None)?;
            Ok(JobOutput::Content(view(&bytes, format, &selection)?))
        }
        Job::Markdown { name } => convert(&input(MAX_DOCUMENT_BYTES)?, Some(&name), None),
        Job::DataUri => {
            let (bytes, media_type) = data_uri(&input(2 * MAX_DOCUMENT_BYTES)?)?;
            convert(&bytes, None, media_type.as_deref())
        }
        Job::Fetch { uri, closed } => {
            let fetched = fetch::fetch(&uri, &closed)?;
            convert(&fetched.bytes, fetched.name.as_deref(), fetched.media_type.as_deref())
        }
        Job::FindSkills { directory } => unpack::find(&directory).map(JobOutput::Skills),
        Job::UnpackSkills { directory, scratch, name, fallback } => {
            let archive = stdin()?;
            let unpacked = unpack::unpack(archive, &directory, &scratch, name.as_deref(), &fallback);
            // Removes what is left: everything after a failure, leftovers after a success.
            let _ = std::fs::remove_dir_all(&scratch);
            unpacked.map(JobOutput::Skills)
        }
    }
}

fn stdin() -> Result<File, Fault> {
    let descriptor = io::stdin().as_fd().try_clone_to_owned();
    descriptor.map(File::from).map_err(|e| Fault::io("could not take the input", e))
}

/// Reads descriptor 0 to its end.
fn input(most: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    stdin()?.take(most + 1).read_to_end(&mut bytes).map_err(|e| Fault::io("could not read it", e))?;
    if bytes.len() as u64 > most {
        return Err(too_large());
    }
    Ok(bytes)
}

pub(super) fn too_large() -> Fault {
    DocumentError::TooLarge { what: format!("a document of more than {} MiB", MAX_DOCUMENT_BYTES >> 20) }.into()
}

fn convert(bytes: &[u8], name: Option<&str>, media_type: Option<&str>) -> Result<JobOutput, Fault> {
    let format = Format::detect(bytes, name, media_type)?;
    let charset = media_type.and_then(|m| parameter(m, "charset"));
    Ok(JobOutput::Content(markdown(bytes, format, charset.as_deref())?))
}

/// A parameter of a media type: `text/html; charset="utf-8"`.
fn parameter(media_type: &str, name: &str) -> Option<String> {
    media_type.split(';').skip(1).find_map(|part| {
        let (key, value) = part.split_once('=')?;
        key.trim().eq_ignore_ascii_case(name).then(|| value.trim().trim_matches('"').to_owned())
    })
}

/// The content of `data:[type][;base64],content`, and its media type.
fn data_uri(uri: &[u8]) -> Result<(Vec<u8>, Option<String>), Fault> {
    use base64::Engine;
    use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

    const BASE64: GeneralPurpose = GeneralPurpose::new(
        &base64::alphabet::STANDARD,
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
    );
    let malformed = || Fault::refused("the data URI is malformed: it has the form data:[type][;base64],content");
    let rest = uri.get(..5).filter(|s| s.eq_ignore_ascii_case(b"data:")).map(|_| &uri[5..]).ok_or_else(malformed)?;
    let comma = rest.iter().position(|b| *b == b',').ok_or_else(malformed)?;
    let head = std::str::from_utf8(&rest[..comma]).map_err(|_| malformed())?;
    let content = percent_encoding::percent_decode(&rest[comma + 1..]);
    let (head, is_base64) = match head.len().checked_sub(7).and_then(|at| head.split_at_checked(at)) {
        Some((head, end)) if end.eq_ignore_ascii_case(";base64") => (head, true),
        _ => (head, false),
    };
    let bytes = if is_base64 {
        let text: Vec<u8> = content.filter(|b| !b.is_ascii_whitespace()).collect();
        BASE64.decode(text).map_err(|e| Fault::io("the data URI's content is not base64", e))?
    } else {
        content.collect()
    };
    if bytes.len() as u64 > MAX_DOCUMENT_BYTES {
        return Err(too_large());
    }
    Ok((bytes, Some(head.to_owned()).filter(|h| !h.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_uris_carry_bytes_and_a_type() {
        let read = |uri: &str| data_uri(uri.as_bytes()).ok();
        let read = |uri| read(uri).map(|(bytes, media)| (String::from_utf8(bytes).unwrap(), media));
        let some = |text: &str, media: &str| Some((text.to_owned(), Some(media.to_owned())));
        assert_eq!(read("data:text/html;charset=utf-8;base64,PGI+"), some("<b>", "text/html;charset=utf-8"));
        assert_eq!(read("DATA:text/html;BASE64,PGI%2b"), some("<b>", "text/html"));
        assert_eq!(read("data:,a%20b,c"), Some(("a b,c".to_owned(), None)));
        assert_eq!(read("data:;base64,YQ"), Some(("a".to_owned(), None)));
        for bad in ["data:text/html", "data:;base64,*", "dat", "http://x"] {
            assert_eq!(read(bad), None, "{bad}");
        }
        assert_eq!(parameter("text/html; Charset=\"UTF-8\"", "charset").as_deref(), Some("UTF-8"));
    }
}
