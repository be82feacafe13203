//! Image archives of generated files: a folder with the parts of an OCI image layout.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::Setting;
use crate::command::{self, program};
use crate::failure::{Attempt, Failure, Outcome};

const BLOCK: usize = 512;
const BLOBS: &str = "blobs/sha256";

/// A folder that is removed at the end.
pub(super) struct ImageDir {
    dir: PathBuf,
    /// The layers and the config below the new ones.
    below: Vec<Value>,
    config: Value,
}

/// A layer in the folder.
pub(super) struct LayerFile {
    path: PathBuf,
    /// Digest and size without compression.
    diff: String,
    pub(super) bytes: u64,
    media_type: &'static str,
}

impl Drop for ImageDir {
    fn drop(&mut self) {
        // Gigabytes, which the next run writes again.
        let _ = fs::remove_dir_all(&self.dir);
    }
}

impl ImageDir {
    /// Of an image without files below the new ones.
    pub(super) fn empty(dir: &Path) -> Result<Self, Failure> {
        let _ = fs::remove_dir_all(dir);
        let blobs = dir.join(BLOBS);
        fs::create_dir_all(&blobs).attempt(|| format!("could not make {}", blobs.display()))?;
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = json!({
            "architecture": architecture, "os": "linux", "config": {}, "rootfs": { "type": "layers", "diff_ids": [] },
        });
        Ok(Self { dir: dir.to_owned(), below: Vec::new(), config })
    }

    /// On top of the image `base`.
    pub(super) fn of_base(dir: &Path, setting: &Setting<'_>) -> Result<Self, Failure> {
        let mut made = Self::empty(dir)?;
        let archive = dir.join("base.tar");
        setting.image(&["save", "base", "--output", &archive.display().to_string()])?;
        command::output(program("tar").arg("-xf").arg(&archive).arg("-C").arg(dir))?;
        fs::remove_file(&archive).attempt(|| format!("could not remove {}", archive.display()))?;
        let index = made.read("index.json")?;
        let manifest = made.read(&blob(&index["manifests"][0])?)?;
        made.config = made.read(&blob(&manifest["config"])?)?;
        made.below = manifest["layers"].as_array().cloned().unwrap_or_default();
        Ok(made)
    }

    pub(super) fn path(&self) -> String {
        self.dir.display().to_string()
    }

    fn read(&self, part: &str) -> Result<Value, Failure> {
        let text = fs::read(self.dir.join(part)).attempt(|| format!("the archive has no {part}"))?;
        serde_json::from_slice(&text).attempt(|| format!("{part} is malformed"))
    }

    /// Writes a layer's tar.
    pub(super) fn layer(&self, name: &str, fill: impl FnOnce(&mut Tar) -> io::Result<()>) -> Result<LayerFile, Failure> {
        let path = self.dir.join(name);
        let written = File::create(&path).and_then(|file| {
            let mut tar = Tar { out: BufWriter::with_capacity(1 << 20, file), random: Random(0x9e37_79b9_7f4a_7c15) };
            fill(&mut tar)?;
            tar.out.write_all(&[0; 2 * BLOCK])?;
            tar.out.flush()
        });
        written.attempt(|| format!("could not write {}", path.display()))?;
        let (diff, bytes) = (sha256(&path)?, size(&path)?);
        Ok(LayerFile { path, diff, bytes, media_type: "application/vnd.oci.image.layer.v1.tar" })
    }

    pub(super) fn compress(&self, layer: LayerFile) -> Result<LayerFile, Failure> {
        command::output(program("gzip").arg("--force").arg(&layer.path))?;
        let path = layer.path.with_extension("gz");
        Ok(LayerFile { path, media_type: "application/vnd.oci.image.layer.v1.tar+gzip", ..layer })
    }

    /// Describes the image: its new layers are in this order above those below.
    pub(super) fn finish(&self, name: &str, layers: &[LayerFile]) -> Outcome {
        let mut config = self.config.clone();
        let mut described = self.below.clone();
        for layer in layers {
            let digest = self.add(&layer.path)?;
            let size = size(&self.dir.join(BLOBS).join(&digest))?;
            described.push(json!({ "mediaType": layer.media_type, "digest": format!("sha256:{digest}"), "size": size }));
            if let Some(diffs) = config["rootfs"]["diff_ids"].as_array_mut() {
                diffs.push(format!("sha256:{}", layer.diff).into());
            }
        }
        let config = self.document("application/vnd.oci.image.config.v1+json", &config)?;
        let archived = json!([{
            "Config": blob(&config)?, "RepoTags": [name], "Layers": described.iter().map(blob).collect::<Result<Vec<_>, _>>()?,
        }]);
        let media_type = "application/vnd.oci.image.manifest.v1+json";
        let manifest = json!({ "schemaVersion": 2, "mediaType": media_type, "config": config, "layers": described });
        let mut manifest = self.document(media_type, &manifest)?;
        manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": name });
        self.write("index.json", &json!({ "schemaVersion": 2, "manifests": [manifest] }))?;
        self.write("oci-layout", &json!({ "imageLayoutVersion": "1.0.0" }))?;
        self.write("manifest.json", &archived)
    }

    /// The parts in one file beside the folder's.
    pub(super) fn pack(&self) -> Result<String, Failure> {
        let archive = self.dir.join("archive.tar").display().to_string();
        let parts = ["blobs", "index.json", "oci-layout", "manifest.json"];
        command::output(program("tar").arg("-cf").arg(&archive).arg("-C").arg(&self.dir).args(parts))?;
        Ok(archive)
    }

    fn document(&self, media_type: &str, document: &Value) -> Result<Value, Failure> {
        self.write("document", document)?;
        let text = document.to_string();
        let digest = self.add(&self.dir.join("document"))?;
        Ok(json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": text.len() }))
    }

    fn write(&self, name: &str, document: &Value) -> Outcome {
        fs::write(self.dir.join(name), document.to_string()).attempt(|| format!("could not write {name}"))
    }

    /// Moves a file to its place as a blob; returns its digest.
    fn add(&self, path: &Path) -> Result<String, Failure> {
        let digest = sha256(path)?;
        fs::rename(path, self.dir.join(BLOBS).join(&digest)).attempt(|| format!("could not move {}", path.display()))?;
        Ok(digest)
    }
}

/// The part that a descriptor names.
fn blob(descriptor: &Value) -> Result<String, Failure> {
    let hex = descriptor["digest"].as_str().and_then(|digest| digest.strip_prefix("sha256:"));
    hex.map(|hex| format!("{BLOBS}/{hex}")).ok_or_else(|| Failure::new(format!("{descriptor} has no digest")))
}

fn sha256(path: &Path) -> Result<String, Failure> {
    let text = command::output(program("sha256sum").arg(path))?;
    Ok(text.split_whitespace().next().unwrap_or_default().to_owned())
}

fn size(path: &Path) -> Result<u64, Failure> {
    Ok(fs::metadata(path).attempt(|| format!("could not look at {}", path.display()))?.len())
}

/// A tar that is being written.
pub(super) struct Tar {
    out: BufWriter<File>,
    random: Random,
}

impl Tar {
    /// Directories with files of up to 12 KiB that look like text.
    pub(super) fn small_files(&mut self, dir: &str, directories: u64, each: u64) -> io::Result<()> {
        for directory in 0..directories {
            self.header(&format!("{dir}/{directory:05}/"), b'5', 0o755, 0)?;
            for file in 0..each {
                let size = 200 + self.random.next() % 12_000;
                self.header(&format!("{dir}/{directory:05}/{file}"), b'0', 0o644, size)?;
                self.content(size, false)?;
            }
        }
        Ok(())
    }

    pub(super) fn large_files(&mut self, dir: &str, files: u64, size: u64, is_random: bool) -> io::Result<()> {
        self.header(&format!("{dir}/"), b'5', 0o755, 0)?;
        for file in 0..files {
            self.header(&format!("{dir}/large-{file}"), b'0', 0o755, size)?;
            self.content(size, is_random)?;
        }
        Ok(())
    }

    /// Random bytes, or random words that compress to a third like those of programs and texts.
    fn content(&mut self, size: u64, is_random: bool) -> io::Result<()> {
        let mut piece = Vec::with_capacity(64 << 10);
        let mut left = usize::try_from(size).map_err(io::Error::other)?;
        while left > 0 {
            piece.clear();
            while piece.len() < left.min(64 << 10) {
                let number = self.random.next();
                if is_random {
                    piece.extend_from_slice(&number.to_le_bytes());
                } else {
                    piece.extend_from_slice(WORDS[(number % 64) as usize % WORDS.len()].as_bytes());
                    piece.extend_from_slice(&number.to_le_bytes()[..1]);
                }
            }
            piece.truncate(left);
            self.out.write_all(&piece)?;
            left -= piece.len();
        }
        self.out.write_all(&vec![0; (BLOCK - size as usize % BLOCK) % BLOCK])
    }

    fn header(&mut self, name: &str, kind: u8, mode: u32, size: u64) -> io::Result<()> {
        let mut block = [0; BLOCK];
        let mut put = |at: usize, text: &[u8]| block[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}\0{:07o}\0{:07o}\0{size:011o}\0{:011o}\0        ", 0, 0, 1_700_000_000).as_bytes());
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.write_all(&block)
    }
}

const WORDS: [&str; 12] = [
    "return ",
    "function",
    " the ",
    "error",
    "package ",
    "\n    ",
    "/usr/lib/",
    "self.",
    "license",
    "version ",
    "\x00\x00\x00\x00",
    "import ",
];

/// Xorshift: the same files in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
