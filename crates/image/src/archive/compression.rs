//! Layers are tars, plain or compressed with gzip or zstd. Their first bytes say which: media types are missing or wrong in many
//! archives.

use std::io::{self, BufRead, BufReader, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Formats that no layer has, for the message.
const OTHERS: [(&[u8], &str); 2] = [(b"BZh", "bzip2"), (&[0xfd, b'7', b'z', b'X', b'Z'], "xz")];

/// The plain tar of a layer.
pub(crate) fn plain<'a>(layer: impl Read + 'a) -> io::Result<Box<dyn Read + 'a>> {
    let mut layer = BufReader::with_capacity(256 << 10, layer);
    let start = fill(&mut layer)?;
    if start.starts_with(GZIP) {
        return Ok(Box::new(MultiGzDecoder::new(layer)));
    }
    // Its first frame may be one to skip, with one of sixteen numbers.
    if start.starts_with(ZSTD) || (start.len() >= 4 && start[0] & 0xf0 == 0x50 && start[1..4] == [0x2a, 0x4d, 0x18]) {
        return Ok(Box::new(ZstdFrames { source: layer, decoder: FrameDecoder::new(), is_open: false }));
    }
    if let Some((_, name)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
        return Err(io::Error::other(format!("layers compressed with {name} are not supported")));
    }
    Ok(Box::new(layer))
}

/// The first bytes of a layer, which stay unread.
fn fill<R: Read>(layer: &mut BufReader<R>) -> io::Result<Vec<u8>> {
    loop {
        match layer.fill_buf() {
            Ok(bytes) => return Ok(bytes[..bytes.len().min(8)].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// All frames of a zstd stream.
struct ZstdFrames<R> {
    source: R,
    decoder: FrameDecoder,
    is_open: bool,
}

impl<R: BufRead> ZstdFrames<R> {
    /// Starts the next frame; returns whether there is one.
    fn next_frame(&mut self) -> io::Result<bool> {
        while !self.source.fill_buf()?.is_empty() {
            match self.decoder.reset(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    let length = u64::from(length);
                    if io::copy(&mut (&mut self.source).take(length), &mut io::sink())? < length {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            if !self.is_open {
                if !self.next_frame()? {
                    return Ok(0);
                }
                self.is_open = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
            }
            match self.decoder.read(buffer)? {
                0 => self.is_open = false,
                n => return Ok(n),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;
    use ruzstd::encoding::{CompressionLevel, compress_to_vec};

    use super::*;

    fn read(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        plain(bytes)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn layers_are_read_whatever_they_are_compressed_with() {
        let text: Vec<u8> = (0..300_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        let gzip = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let zstd = |bytes: &[u8]| compress_to_vec(bytes, CompressionLevel::Fastest);
        let (first, second) = text.split_at(400_000);
        let skipped = [&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
        for (what, bytes) in [
            ("plain", text.clone()),
            ("gzip", gzip(&text)),
            ("two members", [gzip(first), gzip(second)].concat()),
            ("zstd", zstd(&text)),
            ("two frames", [zstd(first), zstd(second)].concat()),
            ("frames to skip", [skipped.clone(), zstd(&text), skipped].concat()),
        ] {
            assert!(read(&bytes).unwrap() == text, "{what}");
            if what != "plain" {
                assert!(read(&bytes[..bytes.len() - 2]).is_err(), "{what}");
            }
        }
        assert_eq!(read(b"").unwrap(), b"");
        assert!(read(b"BZh91AY").unwrap_err().to_string().contains("bzip2"));
    }
}
