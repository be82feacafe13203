//! Seeds of the target `layer`: they are not text, so code makes them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Writes them into the folder that the environment names, if it does.
pub fn write_if_wanted() {
    if let Some(folder) = std::env::var_os("ARENITE_FUZZ_SEEDS").map(PathBuf::from) {
        write_all(&folder).expect("the folder is writable");
    }
}

fn write_all(folder: &Path) -> std::io::Result<()> {
    let tar = tar()?;
    write(folder, "tar", 1, &tar)?;
    write(folder, "tar-as-it-is", 0, &tar)?;
    for program in ["gzip", "zstd", "bzip2"] {
        // A seed less, where one is not installed.
        if let Ok(compressed) = piped(program, &tar) {
            write(folder, program, 0, &compressed)?;
        }
    }
    // A start for each kind of entry, and layers on top of each other.
    for kind in 0..16u8 {
        let entry = [0, kind, 1, 0, 1, 0, 0, 0, 0];
        write(folder, &format!("kind-{kind}"), 2, &entry.repeat(3))?;
        let above = [0, 2, 1, 0, 0, 1, 0, 0, 230, kind, 1, 0, 1, 0, 0, 0, 0, 230, kind, 64, 16, 1, 0, 0];
        write(folder, &format!("layers-{kind}"), 2, &above)?;
    }
    Ok(())
}

fn write(folder: &Path, name: &str, kind: u8, content: &[u8]) -> std::io::Result<()> {
    std::fs::write(folder.join(name), [&[kind], content].concat())
}

fn tar() -> std::io::Result<Vec<u8>> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    let mut add = |kind, name: &str, link: &str, content: &[u8]| {
        header.set_entry_type(kind);
        (header.set_mode(0o755), header.set_uid(0), header.set_gid(0), header.set_mtime(1));
        header.set_size(content.len() as u64);
        if link.is_empty() {
            builder.append_data(&mut header, name, content)
        } else {
            builder.append_link(&mut header, name, link)
        }
    };
    use tar::EntryType as E;
    add(E::Directory, "a", "", b"")?;
    add(E::Regular, "a/file", "", b"content")?;
    add(E::Regular, &format!("a/{}", "n".repeat(150)), "", b"")?;
    add(E::Symlink, "a/link", "../etc", b"")?;
    add(E::Regular, "a/link/passwd", "", b"x")?;
    add(E::Link, "a/second", "a/file", b"")?;
    add(E::Regular, "a/.wh.gone", "", b"")?;
    add(E::Regular, "a/.wh..wh..opq", "", b"")?;
    let records = [("mtime", &b"5.5"[..]), ("SCHILY.xattr.user.a", b"b"), ("GNU.sparse.map", b"0,1"), ("GNU.sparse.size", b"9")];
    builder.append_pax_extensions(records)?;
    let mut header = tar::Header::new_gnu();
    (header.set_size(1), header.set_mode(0o644), header.set_uid(0), header.set_gid(0));
    builder.append_data(&mut header, "sparse", &b"x"[..])?;
    builder.into_inner()
}

fn piped(program: &str, input: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut child = Command::new(program).arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    // The output fits into the pipe.
    child.stdin.take().ok_or(std::io::ErrorKind::BrokenPipe)?.write_all(input)?;
    Ok(child.wait_with_output()?.stdout)
}
