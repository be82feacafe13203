//! The keys that secrets are encrypted with: lines of a file, or of a command's output.
//!
//! The first key encrypts. All of them decrypt, so that a key can be replaced: a new first line, a re-encryption, and then the
//! earlier line can go.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, RandomizedNonceKey};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use tokio::io::AsyncReadExt;
use zeroize::Zeroizing;

/// The file in the data directory, unless another source is configured.
const FILE: &str = "secrets.key";
const KEY_BYTES: usize = 32;
/// The most keys: the current one, and those of replacements that did not end.
const MAX_KEYS: usize = 16;
const MAX_SOURCE_BYTES: usize = 16 << 10;
const COMMAND_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the keys are.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SecretKeySource {
    /// A file in the data directory, created when the first secret is set.
    #[default]
    DataDir,
    File(PathBuf),
    /// Run by `sh -c`. Prints what the file would have, for example from a vault.
    Command(String),
}

/// An encryption key.
struct Key {
    /// Its hash, to find it by.
    id: String,
    cipher: RandomizedNonceKey,
}

/// The keys in their order.
pub(super) struct Keys(Vec<Key>);

/// An encrypted text.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) struct Sealed {
    /// The id of its key.
    pub(super) key: String,
    /// Nonce, ciphertext and tag, in base64.
    pub(super) text: String,
}

impl SecretKeySource {
    /// Reads the keys. With `create`, a missing file in the data directory is created with a random key.
    pub(super) async fn read(&self, data_dir: &Path, create: bool) -> Result<Arc<Keys>, String> {
        let text = match self {
            Self::DataDir => of_file(&data_dir.join(FILE), create),
            Self::File(path) => of_file(path, false),
            Self::Command(command) => of_command(command).await,
        };
        Keys::parse(&text?).map(Arc::new)
    }
}

fn of_file(path: &Path, create: bool) -> Result<Zeroizing<String>, String> {
    let failed = |error: io::Error| format!("{} could not be read: {error}", path.display());
    let read = |file: std::fs::File| {
        let mut text = Zeroizing::new(String::new());
        file.take(MAX_SOURCE_BYTES as u64).read_to_string(&mut text).map(|_| text)
    };
    match std::fs::File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && create => {}
        file => return file.and_then(read).map_err(failed),
    }
    // Another process may create it at the same time: a complete file takes the name, and the first one stays.
    let key = Zeroizing::new(new_key());
    let temporary = path.with_extension(format!("key.new-{}", std::process::id()));
    let write = || {
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        writeln!(file, "{}", *key)?;
        file.sync_all()?;
        match std::fs::hard_link(&temporary, path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => std::fs::remove_file(&temporary),
        }
    };
    write().map_err(|error| format!("{} could not be created: {error}", path.display()))?;
    std::fs::File::open(path).and_then(read).map_err(failed)
}

async fn of_command(command: &str) -> Result<Zeroizing<String>, String> {
    let failed = |what: &str| format!("the command for the keys of secrets {what}");
    let mut child = tokio::process::Command::new("sh")
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| failed(&format!("could not be started: {error}")))?;
    let output = child.stdout.take().ok_or_else(|| failed("has no output"))?;
    let run = async {
        let mut text = Zeroizing::new(String::new());
        output.take(MAX_SOURCE_BYTES as u64).read_to_string(&mut text).await?;
        Ok::<_, io::Error>((text, child.wait().await?))
    };
    match tokio::time::timeout(COMMAND_TIMEOUT, run).await {
        Err(_) => Err(failed(&format!("did not end within {} seconds", COMMAND_TIMEOUT.as_secs()))),
        Ok(Err(error)) => Err(failed(&format!("could not be read: {error}"))),
        Ok(Ok((_, status))) if !status.success() => Err(failed(&format!("failed: {status}"))),
        Ok(Ok((text, _))) => Ok(text),
    }
}

/// A random key, as a line of a key file has it.
pub fn new_key() -> String {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    getrandom::fill(&mut *key).expect("the kernel's random source answers");
    STANDARD.encode(*key)
}

impl Keys {
    fn parse(text: &str) -> Result<Self, String> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
        let keys: Vec<Key> = lines.map(Key::parse).collect::<Option<_>>().ok_or_else(|| {
            format!("a key of secrets is {KEY_BYTES} random bytes in base64; arenite secret generate-key prints one")
        })?;
        match keys.len() {
            1..=MAX_KEYS => Ok(Self(keys)),
            0 => Err("there is no key for secrets; arenite secret generate-key prints one".to_owned()),
            _ => Err(format!("there are more than {MAX_KEYS} keys for secrets")),
        }
    }

    /// The id of the key that encrypts.
    pub(super) fn current(&self) -> &str {
        &self.0[0].id
    }

    pub(super) fn has(&self, id: &str) -> bool {
        self.0.iter().any(|key| key.id == id)
    }

    /// Encrypts with the first key. The context is needed again to decrypt.
    pub(super) fn seal(&self, context: &str, text: &str) -> Sealed {
        let key = &self.0[0];
        let mut bytes = text.as_bytes().to_vec();
        let nonce = key.cipher.seal_in_place_append_tag(Aad::from(context), &mut bytes).expect("a text of this size fits");
        let sealed = [nonce.as_ref().as_slice(), &bytes].concat();
        Sealed { key: key.id.clone(), text: STANDARD.encode(sealed) }
    }

    /// None: no key fits, or it was changed, or it is of another context.
    pub(super) fn open(&self, context: &str, sealed: &Sealed) -> Option<Zeroizing<String>> {
        let key = self.0.iter().find(|key| key.id == sealed.key)?;
        let mut bytes = Zeroizing::new(STANDARD.decode(&sealed.text).ok()?);
        let (nonce, text) = bytes.split_at_mut_checked(NONCE_LEN)?;
        let nonce = aws_lc_rs::aead::Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = key.cipher.open_in_place(nonce, Aad::from(context), text).ok()?;
        Some(Zeroizing::new(std::str::from_utf8(text).ok()?.to_owned()))
    }
}

impl Key {
    fn parse(line: &str) -> Option<Self> {
        let bytes = Zeroizing::new(STANDARD.decode(line).ok().filter(|bytes| bytes.len() == KEY_BYTES)?);
        let id = hex::encode(&Sha256::digest(&*bytes)[..6]);
        Some(Self { id, cipher: RandomizedNonceKey::new(&AES_256_GCM, &bytes).ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encrypted_opens_with_its_key_and_context_alone() {
        let (old, new) = (new_key(), new_key());
        let first = Keys::parse(&format!("# comment\n{old}\n")).unwrap();
        let sealed = first.seal("acme/api", "tüpsecret");
        assert!(!sealed.text.contains("secret"));
        assert_ne!(sealed, first.seal("acme/api", "tüpsecret"), "the nonce is random");
        assert_eq!(first.open("acme/api", &sealed).unwrap().as_str(), "tüpsecret");
        assert_eq!(first.open("other/api", &sealed), None);
        let changed = Sealed { text: sealed.text.replace(['A', 'B', 'C'], "D"), ..sealed.clone() };
        assert!(changed == sealed || first.open("acme/api", &changed).is_none());
        for text in ["", "AAAA", "no base64"] {
            assert_eq!(first.open("acme/api", &Sealed { text: text.to_owned(), ..sealed.clone() }), None, "{text:?}");
        }

        let both = Keys::parse(&format!("{new}\n{old}")).unwrap();
        assert!(both.has(&sealed.key) && both.current() != sealed.key);
        assert_eq!(both.open("acme/api", &sealed).unwrap().as_str(), "tüpsecret");
        assert_eq!(Keys::parse(&new).unwrap().open("acme/api", &sealed), None);
    }

    #[test]
    fn keys_are_32_bytes_in_base64() {
        let many = vec![new_key(); MAX_KEYS + 1].join("\n");
        for text in ["", "\n# nothing\n", "c2hvcnQ=", "not base64!", &new_key()[1..], &many] {
            assert!(Keys::parse(text).is_err(), "{text:?}");
        }
    }

    #[tokio::test]
    async fn keys_come_from_a_file_or_a_command() {
        let dir = tempfile::tempdir().unwrap();
        let source = SecretKeySource::DataDir;
        assert!(source.read(dir.path(), false).await.is_err(), "it is created with the first secret");
        let made = source.read(dir.path(), true).await.unwrap();
        assert_eq!(source.read(dir.path(), true).await.unwrap().current(), made.current());
        let path = dir.path().join(FILE);
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "no temporary file is left");

        let by_command = SecretKeySource::Command(format!("cat '{}'", path.display()));
        assert_eq!(by_command.read(dir.path(), true).await.unwrap().current(), made.current());
        for bad in ["exit 3", "true", "yes"] {
            assert!(SecretKeySource::Command(bad.to_owned()).read(dir.path(), true).await.is_err(), "{bad}");
        }
        assert!(SecretKeySource::File(dir.path().join("none")).read(dir.path(), true).await.is_err());
    }
}
