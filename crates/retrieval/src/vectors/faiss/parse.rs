use std::path::Path;

use super::{Block, Kind, List, Metric};
use crate::{Error, Result};

const MOST_DIMENSIONS: usize = 1 << 16;
const KINDS: &str = "IndexFlatIP (IxFI), IndexFlatL2 (IxF2, IxFl), IndexIVFFlat (IwFl), and IndexIDMap (IxMp, IxM2) around these";

pub(super) struct Parsed {
    pub(super) dimension: usize,
    pub(super) metric: Metric,
    pub(super) count: usize,
    pub(super) kind: Kind,
}

pub(super) fn index(bytes: &[u8], path: &Path) -> Result<Parsed> {
    let mut reader = Reader { bytes, at: 0, path };
    let four = reader.four()?;
    let Some(identified) = [*b"IxMp", *b"IxM2"].contains(&four).then(|| reader.header()).transpose()? else {
        return reader.bare(four);
    };
    let four = reader.four()?;
    let mut parsed = reader.bare(four)?;
    if (parsed.dimension, parsed.count) != (identified.dimension, identified.count) {
        return Err(reader.wrong("an IndexIDMap and what it holds have different sizes"));
    }
    let map = reader.ids(parsed.count)?;
    match &mut parsed.kind {
        Kind::Flat { ids, .. } => *ids = Some(map),
        Kind::Ivf { ids, .. } => {
            for id in ids {
                *id = *map.get(*id as usize).ok_or_else(|| reader.wrong("an IndexIDMap has no id for a vector"))?;
            }
        }
    }
    Ok(parsed)
}

/// The header of every index.
struct Header {
    dimension: usize,
    count: usize,
    metric: Metric,
}

/// Reads the file. Numbers in it are checked against the file's length.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    path: &'a Path,
}

impl Reader<'_> {
    fn wrong(&self, reason: impl Into<String>) -> Error {
        Error::corrupt(self.path, reason)
    }

    fn take(&mut self, count: usize) -> Result<&[u8]> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            return Err(self.wrong(format!(
                "it ends at byte {}, and {count} more are wanted from byte {} on",
                self.bytes.len(),
                self.at
            )));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn four(&mut self) -> Result<[u8; 4]> {
        self.array()
    }

    fn size(&mut self) -> Result<usize> {
        let number = u64::from_le_bytes(self.array()?);
        usize::try_from(number).map_err(|_| self.wrong(format!("it speaks of {number} things")))
    }

    /// A vector of items with `bytes` bytes each, with the length from the file, not read yet.
    fn vector(&mut self, bytes: usize) -> Result<Block> {
        let count = self.size()?;
        let at = self.at;
        let length = count.checked_mul(bytes).ok_or_else(|| self.wrong(format!("it speaks of {count} things")))?;
        self.take(length)?;
        Ok(Block { at, count })
    }

    fn header(&mut self) -> Result<Header> {
        let dimension = u32::from_le_bytes(self.array()?) as usize;
        let count = self.size()?;
        self.take(17)?;
        let metric = match u32::from_le_bytes(self.array()?) {
            0 => Metric::InnerProduct,
            1 => Metric::L2,
            other => {
                return Err(self.wrong(format!("its metric is faiss's number {other}; 0 and 1 (inner product, L2) can be read")));
            }
        };
        if !(1..=MOST_DIMENSIONS).contains(&dimension) || count >= u32::MAX as usize {
            return Err(self.wrong(format!("it speaks of {count} vectors of {dimension} dimensions")));
        }
        Ok(Header { dimension, count, metric })
    }

    fn bare(&mut self, four: [u8; 4]) -> Result<Parsed> {
        match &four {
            b"IxFI" | b"IxF2" | b"IxFl" => {
                let (Header { dimension, count, metric }, rows) = self.flat()?;
                Ok(Parsed { dimension, metric, count, kind: Kind::Flat { rows, ids: None } })
            }
            b"IwFl" => self.inverted(),
            _ => Err(self.wrong(format!(
                "it holds an index of faiss's kind {:?}; what can be read are {KINDS}",
                four.escape_ascii().to_string()
            ))),
        }
    }

    fn flat(&mut self) -> Result<(Header, Block)> {
        let header = self.header()?;
        let numbers = self.vector(4)?;
        if header.count.checked_mul(header.dimension) != Some(numbers.count) {
            return Err(self.wrong("its vectors are not as many as it says"));
        }
        let rows = Block { at: numbers.at, count: header.count };
        Ok((header, rows))
    }

    fn inverted(&mut self) -> Result<Parsed> {
        let Header { dimension, count, metric } = self.header()?;
        let (lists, probes) = (self.size()?, self.size()?);
        let four = self.four()?;
        if ![b"IxFI", b"IxF2", b"IxFl"].contains(&&four) {
            return Err(self.wrong(format!(
                "its lists are found by an index of faiss's kind {:?}; only flat ones can be read",
                four.escape_ascii().to_string()
            )));
        }
        let (quantizer, centres) = self.flat()?;
        if quantizer.dimension != dimension || quantizer.count != lists {
            return Err(self.wrong("its lists and what finds them have different sizes"));
        }
        // The direct map leads from ids to lists, which no search needs.
        let direct = self.array::<1>()?[0];
        self.vector(8)?;
        if direct == 2 {
            self.vector(16)?;
        }
        let (lists, ids) = self.lists(lists, dimension * 4, count)?;
        let kind = Kind::Ivf { probes: probes.max(1), centres, nearest: quantizer.metric, lists, ids };
        Ok(Parsed { dimension, metric, count, kind })
    }

    fn lists(&mut self, wanted: usize, code: usize, count: usize) -> Result<(Vec<List>, Vec<u32>)> {
        let four = self.four()?;
        if four != *b"ilar" {
            return Err(
                self.wrong(format!("its lists are of faiss's kind {:?}; only ilar can be read", four.escape_ascii().to_string()))
            );
        }
        if (self.size()?, self.size()?) != (wanted, code) {
            return Err(self.wrong("its lists are not those of its vectors"));
        }
        let mut sizes = vec![0; wanted];
        match &self.four()? {
            b"full" => {
                if self.size()? != wanted {
                    return Err(self.wrong("its lists are not as many as it says"));
                }
                for size in &mut sizes {
                    *size = self.size()?;
                }
            }
            b"sprs" => {
                for _ in 0..self.size()? / 2 {
                    let (list, size) = (self.size()?, self.size()?);
                    *sizes.get_mut(list).ok_or_else(|| self.wrong(format!("it has no list {list}")))? = size;
                }
            }
            other => {
                return Err(self.wrong(format!(
                    "its lists are stored as {:?}; full and sprs can be read",
                    other.escape_ascii().to_string()
                )));
            }
        }
        let mut lists = Vec::with_capacity(wanted);
        let mut ids = Vec::new();
        for size in sizes {
            let at = self.at;
            self.take(size.checked_mul(code).ok_or_else(|| self.wrong(format!("it speaks of {size} things")))?)?;
            lists.push(List { rows: Block { at, count: size }, ids: ids.len() });
            ids.extend(self.some_ids(size)?);
        }
        if ids.len() != count {
            return Err(self.wrong("its lists don't hold all of its vectors"));
        }
        Ok((lists, ids))
    }

    fn ids(&mut self, wanted: usize) -> Result<Vec<u32>> {
        if self.size()? != wanted {
            return Err(self.wrong("its ids are not as many as its vectors"));
        }
        self.some_ids(wanted)
    }

    fn some_ids(&mut self, count: usize) -> Result<Vec<u32>> {
        let bytes = count.checked_mul(8).ok_or_else(|| self.wrong(format!("it speaks of {count} things")))?;
        let ids: Option<Vec<u32>> = self
            .take(bytes)?
            .as_chunks::<8>()
            .0
            .iter()
            .map(|id| u32::try_from(u64::from_le_bytes(*id)).ok().filter(|id| *id < u32::MAX))
            .collect();
        ids.ok_or_else(|| self.wrong(format!("an id is negative or beyond {}", u32::MAX - 1)))
    }
}
