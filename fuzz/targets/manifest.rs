//! The documents of images, each for itself and together in an archive that is loaded.
//!
//! An input is the parts of an archive, with `%%` between them. The first line of a part is its name, `@` stands for the digest
//! of its content there, and `@N` in it for that of a later part. `@L` is a layer.
#![no_main]

use std::sync::LazyLock;

use arenite_fuzz::{Scratch, repair};
use arenite_image::fuzz;
use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("manifest"));
/// Marks an input that is an archive as it is, but for its check sums.
const RAW: &[u8] = b"%%raw\n";
/// Maximum number of parts.
const PARTS: usize = 10;

fuzz_target!(|data: &[u8]| {
    if let Some(raw) = data.strip_prefix(RAW) {
        let mut raw = raw.to_vec();
        repair(&mut raw);
        fuzz::load(SCRATCH.dir(), &raw);
        return SCRATCH.check();
    }
    let Ok(text) = std::str::from_utf8(data) else { return fuzz::documents(data) };
    fuzz::load(SCRATCH.dir(), &archive(text));
    SCRATCH.check();
});

fn archive(text: &str) -> Vec<u8> {
    let layer = vec![0; 1024];
    let of_layer = hex(&layer);
    let mut digests = vec![String::new(); PARTS];
    let mut parts = vec![(format!("blobs/sha256/{of_layer}"), layer)];
    let given: Vec<&str> = text.split("\n%%\n").take(PARTS).collect();
    for (number, part) in given.iter().enumerate().rev() {
        let (name, content) = part.split_once('\n').unwrap_or((part, ""));
        let mut content = content.replace("@L", &of_layer);
        for (number, digest) in digests.iter().enumerate().filter(|(_, digest)| !digest.is_empty()) {
            content = content.replace(&format!("@{number}"), digest);
        }
        fuzz::documents(content.as_bytes());
        let digest = hex(content.as_bytes());
        parts.push((name.replace('@', &digest), content.into_bytes()));
        digests[number] = digest;
    }
    let mut out = Vec::new();
    for (name, content) in parts {
        let mut header = tar::Header::new_gnu();
        let field = &mut header.as_old_mut().name;
        let length = name.len().min(field.len());
        field[..length].copy_from_slice(&name.as_bytes()[..length]);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        out.extend_from_slice(header.as_bytes());
        out.extend(content);
        out.resize(out.len().next_multiple_of(512), 0);
    }
    out
}

fn hex(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}
