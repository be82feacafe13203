//! The entries of a tar, with what PAX's and GNU's extensions say about them: long names, large sizes, attributes, and holes.
//!
//! The tar is hostile: each number is checked before it is used, and headers have a bounded size and number.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;

use tar::{EntryType, Header};

use super::BLOCK;
use super::pack::PAX_ATTRIBUTE;

/// Maximum size of one extension of an entry, in bytes.
const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Maximum number of extensions of one entry.
const MAX_EXTENSIONS: usize = 16;
/// Maximum number of pieces of a sparse file.
const MAX_PIECES: usize = 100_000;

/// A file, directory, or link of a tar.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) kind: EntryType,
    pub(crate) path: Vec<u8>,
    pub(crate) link: Vec<u8>,
    /// User and group.
    pub(crate) owner: (u64, u64),
    pub(crate) mode: u32,
    /// Seconds since 1970, and nanoseconds since then.
    pub(crate) mtime: (i64, i64),
    /// Extended attributes.
    pub(crate) attributes: Vec<(OsString, Vec<u8>)>,
    /// With the holes, in bytes.
    pub(crate) size: u64,
    /// Where the content of a sparse file belongs: offsets and lengths, ascending. None: all of it, from the start.
    pub(crate) pieces: Option<Vec<(u64, u64)>>,
}

/// Reads the entries of a tar one after the other.
pub(crate) struct Entries<R> {
    tar: R,
    /// Bytes of the current entry's content that were not read, and of the padding after it.
    left: u64,
    padding: u64,
}

impl<R: Read> Entries<R> {
    pub(crate) fn new(tar: R) -> Self {
        Self { tar, left: 0, padding: 0 }
    }

    /// The next entry; none at the end. Skips what was not read of the current one.
    pub(crate) fn next(&mut self) -> io::Result<Option<Entry>> {
        let mut extended = Extended::default();
        for _ in 0..=MAX_EXTENSIONS {
            let Some(header) = self.header()? else { return Ok(None) };
            match header.entry_type() {
                EntryType::XHeader => extended.add_records(&self.extension()?)?,
                EntryType::GNULongName => extended.path = Some(terminated(self.extension()?)),
                EntryType::GNULongLink => extended.link = Some(terminated(self.extension()?)),
                // Defaults for all entries, which layers don't use.
                EntryType::XGlobalHeader => drop(self.extension()?),
                _ => return self.entry(&header, extended).map(Some),
            }
        }
        Err(invalid("an entry has too many headers"))
    }

    /// The content of the current entry, without the holes of a sparse file.
    pub(crate) fn content(&mut self) -> impl Read {
        Content(self)
    }

    fn header(&mut self) -> io::Result<Option<Header>> {
        let rest = self.left + self.padding;
        if io::copy(&mut (&mut self.tar).take(rest), &mut io::sink())? < rest {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        (self.left, self.padding) = (0, 0);
        let mut block = [0; BLOCK as usize];
        let mut filled = 0;
        while filled < block.len() {
            match self.tar.read(&mut block[filled..]) {
                // Some programs leave out the empty blocks at the end.
                Ok(0) if filled == 0 => return Ok(None),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => filled += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if block == [0; BLOCK as usize] {
            return Ok(None);
        }
        // The sum counts its own field as spaces.
        let sum: u32 =
            block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum();
        let header = Header::from_byte_slice(&block).clone();
        if header.cksum().ok() != Some(sum) {
            return Err(invalid("it is not a tar, or a damaged one"));
        }
        self.set_size(header.entry_size()?)?;
        Ok(Some(header))
    }

    fn set_size(&mut self, size: u64) -> io::Result<()> {
        let padding = (BLOCK - size % BLOCK) % BLOCK;
        size.checked_add(padding).ok_or_else(|| invalid("an entry has an impossible size"))?;
        (self.left, self.padding) = (size, padding);
        Ok(())
    }

    fn extension(&mut self) -> io::Result<Vec<u8>> {
        if self.left > MAX_HEADER_BYTES {
            return Err(invalid(format!("a header has more than {MAX_HEADER_BYTES} bytes")));
        }
        let mut bytes = Vec::new();
        let size = self.left;
        self.content().read_to_end(&mut bytes)?;
        if bytes.len() as u64 == size { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn entry(&mut self, header: &Header, extended: Extended) -> io::Result<Entry> {
        let kind = header.entry_type();
        let has_content = !matches!(
            kind,
            EntryType::Link | EntryType::Symlink | EntryType::Char | EntryType::Block | EntryType::Directory | EntryType::Fifo
        );
        // As in Go's reader: what has no content has no size, whatever the header says.
        self.set_size(if has_content { extended.size.map_or_else(|| header.entry_size(), Ok)? } else { 0 })?;
        let mut size = self.left;
        let mut pieces = None;
        if kind == EntryType::GNUSparse {
            let of_header = self.old_pieces(header)?;
            (size, pieces) = (of_header.0, Some(of_header.1));
        } else if let Some(sparse) = &extended.sparse {
            size = sparse.size.ok_or_else(|| invalid("a sparse file has no size"))?;
            pieces = Some(if sparse.is_in_content { self.leading_pieces()? } else { sparse.pieces.clone() });
        }
        if let Some(pieces) = &pieces {
            check_pieces(pieces, size, self.left)?;
        }
        let path = match extended.sparse.and_then(|sparse| sparse.name).or(extended.path) {
            Some(path) => path,
            None => header.path_bytes().into_owned(),
        };
        Ok(Entry {
            kind: if kind == EntryType::GNUSparse { EntryType::Regular } else { kind },
            path,
            link: extended.link.or_else(|| header.link_name_bytes().map(|link| link.into_owned())).unwrap_or_default(),
            owner: (extended.uid.map_or_else(|| header.uid(), Ok)?, extended.gid.map_or_else(|| header.gid(), Ok)?),
            mode: header.mode()? & 0o7777,
            mtime: extended.mtime.map_or_else(|| header.mtime().map(|time| (i64::try_from(time).unwrap_or(0), 0)), Ok)?,
            attributes: extended.attributes,
            size,
            pieces,
        })
    }

    /// The size and pieces of GNU's older form: four in the header, and 21 in each block after it.
    fn old_pieces(&mut self, header: &Header) -> io::Result<(u64, Vec<(u64, u64)>)> {
        let gnu = header.as_gnu().ok_or_else(|| invalid("a sparse file has no header of GNU's tar"))?;
        let mut pieces = Vec::new();
        let mut add = |sparse: &tar::GnuSparseHeader| -> io::Result<()> {
            if !sparse.is_empty() {
                pieces.push((sparse.offset()?, sparse.length()?));
            }
            if pieces.len() > MAX_PIECES { Err(too_many_pieces()) } else { Ok(()) }
        };
        gnu.sparse.iter().try_for_each(&mut add)?;
        let mut goes_on = gnu.is_extended();
        while goes_on {
            let mut block = tar::GnuExtSparseHeader::new();
            self.tar.read_exact(block.as_mut_bytes())?;
            block.sparse().iter().try_for_each(&mut add)?;
            goes_on = block.is_extended();
            if block.sparse().iter().all(tar::GnuSparseHeader::is_empty) {
                break;
            }
        }
        Ok((gnu.real_size()?, pieces))
    }

    /// The pieces at the start of a sparse file's content: their number, offsets and lengths, a line each, up to a whole block.
    fn leading_pieces(&mut self) -> io::Result<Vec<(u64, u64)>> {
        let mut text = Vec::new();
        let mut numbers: Vec<u64> = Vec::new();
        let mut wanted = None;
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            let mut block = [0; BLOCK as usize];
            self.content().read_exact(&mut block)?;
            for byte in block {
                if wanted.is_some_and(|wanted| numbers.len() >= wanted) {
                    break;
                }
                if byte != b'\n' {
                    text.push(byte);
                    if text.len() > 20 {
                        return Err(invalid("a sparse file has a malformed map"));
                    }
                    continue;
                }
                let number = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
                let number: u64 = number.ok_or_else(|| invalid("a sparse file has a malformed map"))?;
                text.clear();
                if wanted.is_none() {
                    let count = usize::try_from(number).ok().filter(|count| *count <= MAX_PIECES);
                    wanted = Some(2 * count.ok_or_else(too_many_pieces)?);
                } else {
                    numbers.push(number);
                }
            }
        }
        Ok(numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect())
    }
}

struct Content<'a, R>(&'a mut Entries<R>);

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.0.left).unwrap_or(usize::MAX).min(buffer.len());
        if wanted == 0 {
            return Ok(0);
        }
        match self.0.tar.read(&mut buffer[..wanted])? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            n => {
                self.0.left -= n as u64;
                Ok(n)
            }
        }
    }
}

fn invalid(reason: impl Into<String>) -> io::Error {
    io::Error::other(reason.into())
}

fn too_many_pieces() -> io::Error {
    invalid(format!("a sparse file has more than {MAX_PIECES} pieces"))
}

/// Pieces are in order, within the file, and have exactly the content that there is.
fn check_pieces(pieces: &[(u64, u64)], size: u64, content: u64) -> io::Result<()> {
    let mut end = 0u64;
    let mut total = 0u64;
    for (offset, length) in pieces {
        let next = offset.checked_add(*length).filter(|next| *offset >= end && *next <= size);
        end = next.ok_or_else(|| invalid("a sparse file has impossible pieces"))?;
        total += length;
    }
    if total == content { Ok(()) } else { Err(invalid("a sparse file has another size than its pieces")) }
}

fn terminated(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    name
}

/// Reads a time in seconds since 1970, perhaps with a fraction.
pub(super) fn read_time(text: &str) -> Option<(i64, i64)> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: i64 = whole.parse().ok()?;
    let digits = fraction.get(..9).unwrap_or(fraction);
    let nanoseconds = format!("{digits:0<9}").parse().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    Some(match whole.starts_with('-') && nanoseconds > 0 {
        true => (seconds.checked_sub(1)?, 1_000_000_000 - nanoseconds),
        false => (seconds, nanoseconds),
    })
}

/// What the headers before an entry say about it.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    uid: Option<u64>,
    gid: Option<u64>,
    size: Option<u64>,
    mtime: Option<(i64, i64)>,
    attributes: Vec<(OsString, Vec<u8>)>,
    sparse: Option<Sparse>,
}

/// GNU's newer forms, in PAX records.
#[derive(Default)]
struct Sparse {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    pieces: Vec<(u64, u64)>,
    /// The map is at the start of the content.
    is_in_content: bool,
}

impl Extended {
    /// Adds the records of a PAX header. A value may have any bytes: its length says where it ends.
    fn add_records(&mut self, mut records: &[u8]) -> io::Result<()> {
        let malformed = || invalid("an entry has a malformed PAX header");
        while !records.is_empty() {
            let space = records.iter().position(|byte| *byte == b' ').ok_or_else(malformed)?;
            let digits = std::str::from_utf8(&records[..space]).map_err(|_| malformed())?;
            let length: usize = digits.parse().map_err(|_| malformed())?;
            let record = records.get(space + 1..length).and_then(|r| r.strip_suffix(b"\n")).ok_or_else(malformed)?;
            let equals = record.iter().position(|byte| *byte == b'=').ok_or_else(malformed)?;
            self.add_record(&record[..equals], &record[equals + 1..]).ok_or_else(malformed)??;
            records = &records[length..];
        }
        Ok(())
    }

    /// Returns none for a malformed value.
    fn add_record(&mut self, key: &[u8], value: &[u8]) -> Option<io::Result<()>> {
        let text = || std::str::from_utf8(value).ok();
        let number = || text()?.parse::<u64>().ok();
        match key {
            b"path" => self.path = Some(value.to_vec()),
            b"linkpath" => self.link = Some(value.to_vec()),
            b"uid" => self.uid = Some(number()?),
            b"gid" => self.gid = Some(number()?),
            b"size" => self.size = Some(number()?),
            b"mtime" => self.mtime = Some(read_time(text()?)?),
            _ => {
                if let Some(name) = key.strip_prefix(PAX_ATTRIBUTE.as_bytes()) {
                    self.attributes.push((OsStr::from_bytes(name).to_owned(), value.to_vec()));
                } else if let Some(key) = key.strip_prefix(b"GNU.sparse.") {
                    let sparse = self.sparse.get_or_insert_default();
                    match key {
                        b"name" => sparse.name = Some(value.to_vec()),
                        b"size" | b"realsize" => sparse.size = Some(number()?),
                        b"offset" => sparse.pieces.push((number()?, 0)),
                        b"numbytes" => sparse.pieces.last_mut()?.1 = number()?,
                        b"major" => sparse.is_in_content = number()? == 1,
                        b"map" => {
                            let numbers =
                                text()?.split(',').filter(|number| !number.is_empty()).map(|number| number.parse().ok());
                            let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
                            sparse.pieces =
                                numbers.chunks(2).map(|pair| Some((*pair.first()?, *pair.get(1)?))).collect::<Option<_>>()?;
                        }
                        _ => {}
                    }
                    if sparse.pieces.len() > MAX_PIECES {
                        return Some(Err(too_many_pieces()));
                    }
                }
            }
        }
        Some(Ok(()))
    }
}
