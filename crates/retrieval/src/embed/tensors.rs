//! Reads tensors of a safetensors file.
//!
//! Layout: the header's length in 8 bytes, the header in JSON with each tensor's type, shape and position, then the numbers. It
//! is read in pieces, so a model is never in memory twice. Claimed sizes are checked against the file's size.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;

use super::Reasoned;

/// The limit of the format's own library.
const MAX_HEADER: u64 = 100_000_000;
/// Bytes read at a time: a multiple of every type's size.
const PIECE: usize = 1 << 20;

pub(super) struct Tensors {
    file: File,
    /// The position of the numbers.
    base: u64,
    entries: HashMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: (u64, u64),
}

impl Tensors {
    pub(super) fn open(path: &Path) -> Reasoned<Self> {
        let shown = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let unreadable = |error: std::io::Error| format!("could not read {shown}: {error}");
        let damaged = |what: &str| format!("{shown} is no safetensors file, or damaged: {what}");
        let mut file = File::open(path).map_err(unreadable)?;
        let size = file.metadata().map_err(unreadable)?.len();
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|_| damaged("it is too short"))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER || length > size - 8 {
            return Err(damaged("its header is longer than itself"));
        }
        let mut header = Vec::new();
        (&mut file).take(length).read_to_end(&mut header).map_err(unreadable)?;
        let mut header: HashMap<String, serde_json::Value> =
            serde_json::from_slice(&header).map_err(|error| damaged(&error.to_string()))?;
        header.remove("__metadata__");
        let base = 8 + length;
        let mut entries = HashMap::new();
        for (name, entry) in header {
            let entry: Entry = serde_json::from_value(entry).map_err(|error| damaged(&format!("{name}: {error}")))?;
            let (begin, end) = entry.data_offsets;
            let count = entry.shape.iter().try_fold(1usize, |product, one| product.checked_mul(*one));
            let wanted = count.zip(width(&entry.dtype)).and_then(|(count, width)| count.checked_mul(width));
            if begin > end || end > size - base || wanted.is_some_and(|wanted| wanted as u64 != end - begin) || count.is_none() {
                return Err(damaged(&format!("{name} is not where or as large as the header says")));
            }
            entries.insert(name, entry);
        }
        Ok(Self { file, base, entries })
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.entries.get(name).map(|entry| entry.shape.as_slice())
    }

    /// The floats of a tensor with this shape.
    pub(super) fn floats(&mut self, name: &str, shape: &[usize]) -> Reasoned<Vec<f32>> {
        let decode: fn(&[u8], &mut Vec<f32>) = match self.kind(name)? {
            "F32" => |bytes, out| out.extend(bytes.as_chunks().0.iter().map(|four| f32::from_le_bytes(*four))),
            "F16" => |bytes, out| out.extend(bytes.as_chunks().0.iter().map(|two| half(u16::from_le_bytes(*two)))),
            "BF16" => |bytes, out| out.extend(bytes.as_chunks().0.iter().map(|two| brain(u16::from_le_bytes(*two)))),
            "F64" => |bytes, out| out.extend(bytes.as_chunks().0.iter().map(|eight| f64::from_le_bytes(*eight) as f32)),
            "I8" => |bytes, out| out.extend(bytes.iter().map(|byte| f32::from(byte.cast_signed()))),
            other => return Err(format!("the tensor {name} is of {other}; F32, F16, BF16, F64 and I8 can be read")),
        };
        self.numbers(name, shape, decode)
    }

    /// The integers of a tensor with this shape.
    pub(super) fn integers(&mut self, name: &str, shape: &[usize]) -> Reasoned<Vec<i64>> {
        let decode: fn(&[u8], &mut Vec<i64>) = match self.kind(name)? {
            "I64" => |bytes, out| out.extend(bytes.as_chunks().0.iter().map(|eight| i64::from_le_bytes(*eight))),
            "I32" => |bytes, out| out.extend(bytes.as_chunks().0.iter().map(|four| i64::from(i32::from_le_bytes(*four)))),
            other => return Err(format!("the tensor {name} is of {other}; I64 and I32 can be read")),
        };
        self.numbers(name, shape, decode)
    }

    fn kind(&self, name: &str) -> Reasoned<&str> {
        self.entries.get(name).map(|entry| entry.dtype.as_str()).ok_or_else(|| format!("the tensor {name} is missing"))
    }

    fn numbers<T>(&mut self, name: &str, shape: &[usize], decode: fn(&[u8], &mut Vec<T>)) -> Reasoned<Vec<T>> {
        let entry = self.entries.get(name).ok_or_else(|| format!("the tensor {name} is missing"))?;
        if entry.shape != shape {
            return Err(format!("the tensor {name} has the shape {:?}, and {shape:?} is needed", entry.shape));
        }
        let unreadable = |error| format!("could not read the tensor {name}: {error}");
        let (begin, end) = entry.data_offsets;
        self.file.seek(SeekFrom::Start(self.base + begin)).map_err(unreadable)?;
        let mut numbers = Vec::with_capacity(shape.iter().product());
        let mut left = end - begin;
        let mut bytes = vec![0; PIECE.min(left as usize)];
        while left > 0 {
            let piece = &mut bytes[..PIECE.min(left as usize)];
            self.file.read_exact(piece).map_err(unreadable)?;
            decode(piece, &mut numbers);
            left -= piece.len() as u64;
        }
        Ok(numbers)
    }
}

/// Size of a number in bytes; none for unsupported types.
fn width(dtype: &str) -> Option<usize> {
    match dtype {
        "I8" | "U8" | "BOOL" => Some(1),
        "F16" | "BF16" | "I16" | "U16" => Some(2),
        "F32" | "I32" | "U32" => Some(4),
        "F64" | "I64" | "U64" => Some(8),
        _ => None,
    }
}

/// The upper half of an `f32`.
fn brain(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// An IEEE half: 1 bit of sign, 5 of exponent, 10 of fraction.
fn half(bits: u16) -> f32 {
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

/// Writes the tensors of a test's model.
#[cfg(test)]
pub(super) fn write(path: &Path, tensors: &[(&str, &str, Vec<usize>, Vec<u8>)]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    header.insert("__metadata__".to_owned(), serde_json::json!({"format": "pt"}));
    for (name, dtype, shape, bytes) in tensors {
        let offsets = [data.len(), data.len() + bytes.len()];
        header.insert((*name).to_owned(), serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets}));
        data.extend_from_slice(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(bytes: &[u8]) -> Reasoned<Tensors> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        Tensors::open(&path)
    }

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    #[test]
    fn numbers_of_each_type_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        // 1.5, -2 and the smallest half; then infinity.
        let halves = [0x3e00u16, 0xc000, 0x0001, 0x7c00].iter().flat_map(|one| one.to_le_bytes()).collect();
        let brain = [0x3fc0u16, 0xc000].iter().flat_map(|one| one.to_le_bytes()).collect();
        let floats = [1.5f32, -2.0].iter().flat_map(|one| one.to_le_bytes()).collect();
        let doubles = [1.5f64, -2.0].iter().flat_map(|one| one.to_le_bytes()).collect();
        let whole = [7i64, -1].iter().flat_map(|one| one.to_le_bytes()).collect();
        let tensors = [
            ("f16", "F16", vec![2, 2], halves),
            ("bf16", "BF16", vec![2], brain),
            ("f32", "F32", vec![2, 1], floats),
            ("f64", "F64", vec![2], doubles),
            ("i8", "I8", vec![2], vec![3, 0xff]),
            ("i64", "I64", vec![2], whole),
        ];
        write(&path, &tensors);
        let mut read = Tensors::open(&path).unwrap();
        assert_eq!(read.floats("f16", &[2, 2]).unwrap(), [1.5, -2.0, 5.960_464_5e-8, f32::INFINITY]);
        assert_eq!(read.floats("bf16", &[2]).unwrap(), [1.5, -2.0]);
        assert_eq!(read.floats("f32", &[2, 1]).unwrap(), [1.5, -2.0]);
        assert_eq!(read.floats("f64", &[2]).unwrap(), [1.5, -2.0]);
        assert_eq!(read.floats("i8", &[2]).unwrap(), [3.0, -1.0]);
        assert_eq!(read.integers("i64", &[2]).unwrap(), [7, -1]);
        assert!(read.floats("f32", &[1, 2]).unwrap_err().contains("[2, 1]"));
        assert!(read.floats("i64", &[2]).unwrap_err().contains("I64"));
        assert!(read.floats("none", &[2]).unwrap_err().contains("missing"));
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let sound = file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, &[0; 4]);
        assert!(parse(&sound).is_ok());
        let mut damaged =
            vec![Vec::new(), vec![1, 0, 0], vec![0xff; 64], file("", &[]), file("[]", &[]), file(r#"{"a":1}"#, &[])];
        for entry in [
            r#"{"dtype":"F32","shape":[1],"data_offsets":[0,8]}"#,
            r#"{"dtype":"F32","shape":[1],"data_offsets":[4,0]}"#,
            r#"{"dtype":"F32","shape":[2],"data_offsets":[0,4]}"#,
            r#"{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}"#,
            r#"{"dtype":"Q4","shape":[4611686018427387904,8],"data_offsets":[0,4]}"#,
            r#"{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}"#,
            r#"{"dtype":"F32","shape":[1],"data_offsets":[18446744073709551615,18446744073709551615]}"#,
        ] {
            damaged.push(file(&format!(r#"{{"a":{entry}}}"#), &[0; 4]));
        }
        damaged.extend((0..sound.len()).map(|end| sound[..end].to_vec()));
        for bytes in damaged {
            assert!(parse(&bytes).is_err(), "{:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
