//! The only module of this crate with `unsafe`: memory-mapped files, and SIMD arithmetic on eight numbers at once.
//!
//! A file is written under another name, renamed into place, and never changed or truncated afterwards. Programs that manage
//! the files must keep that rule: if a mapped file is truncated in place, the next read behind its end kills the process with
//! SIGBUS. Lengths are checked when a file is opened, and all later reads were checked against that length.
#![allow(unsafe_code)]

use std::{fs::File, path::Path};

use memmap2::Mmap;

use super::{Metric, precision::Precision};
use crate::{Error, Result};

#[cfg(target_arch = "x86_64")]
mod avx2;

#[cfg(target_endian = "big")]
compile_error!("the files of vectors are little-endian and are read in place");

/// A memory-mapped file.
pub(crate) struct Mapped {
    map: Mmap,
}

impl Mapped {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(Error::io("open", path))?;
        let about = file.metadata().map_err(Error::io("look at", path))?;
        if !about.is_file() {
            return Err(Error::Invalid(format!("{} is not a file", path.display())));
        }
        if about.len() == 0 {
            return Err(Error::corrupt(path, "it is empty"));
        }
        // SAFETY: the bytes don't change while they are mapped, as the module's rule says: a file that has its name already is
        // never written.
        let map = unsafe { Mmap::map(&file) }.map_err(Error::io("map", path))?;
        Ok(Self { map })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// `count` values from the byte `at` on; none if the file ends before, or if `at` is not a multiple of the value's size.
    pub(crate) fn slice<T: Plain>(&self, at: usize, count: usize) -> Option<&[T]> {
        let end = count.checked_mul(size_of::<T>())?.checked_add(at)?;
        values(self.map.get(at..end)?)
    }
}

/// Numbers for which any bytes are valid.
///
/// # Safety
/// Every pattern of bits is a value of the type, and it has no padding.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: every pattern of 32 bits is an integer.
unsafe impl Plain for u32 {}
// SAFETY: every pattern of 32 bits is a float, if only a NaN.
unsafe impl Plain for f32 {}

/// The bytes as values, if they start at an address fit for the type and end with a whole value.
fn values<T: Plain>(bytes: &[u8]) -> Option<&[T]> {
    // SAFETY: `Plain` says that every pattern of bits is a value; `align_to` takes care of the address and the length.
    let (before, values, after) = unsafe { bytes.align_to::<T>() };
    (before.is_empty() && after.is_empty()).then_some(values)
}

/// Number of values per SIMD operation; queries are padded with zeros to a multiple of it.
pub(crate) const LANES: usize = 8;

/// A query padded with zeros to whole lanes.
pub(crate) fn padded(query: &[f32]) -> Vec<f32> {
    let mut padded = Vec::with_capacity(query.len().next_multiple_of(LANES));
    padded.extend_from_slice(query);
    padded.resize(query.len().next_multiple_of(LANES), 0.0);
    padded
}

/// Vectors of equal length, contiguous in memory, at any address.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    bytes: &'a [u8],
    count: usize,
    stride: usize,
    width: usize,
    precision: Precision,
    scales: &'a [f32],
}

impl<'a> Rows<'a> {
    /// `count` rows of `width` numbers, `stride` bytes from one to the next. None if the bytes or the scales (only for `I8`) do
    /// not suffice.
    pub(crate) fn new(
        bytes: &'a [u8],
        count: usize,
        stride: usize,
        width: usize,
        precision: Precision,
        scales: &'a [f32],
    ) -> Option<Self> {
        let fits = width.checked_mul(precision.bytes())? <= stride && count.checked_mul(stride)? <= bytes.len();
        let scaled = precision != Precision::I8 || scales.len() >= count;
        (fits && scaled && width > 0).then_some(Self { bytes, count, stride, width, precision, scales })
    }

    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Bytes from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// A row's numbers, padded to whole lanes; without a copy if they already are.
    pub(crate) fn decoded<'b>(&'b self, row: u32, scratch: &'b mut Vec<f32>) -> &'b [f32] {
        let at = row as usize * self.stride;
        let padded = self.width.next_multiple_of(LANES);
        let row_bytes = &self.bytes[at..at + self.stride];
        if self.precision == Precision::F32
            && let Some(bytes) = row_bytes.get(..padded * 4)
            && self.width == padded
            && let Some(values) = values(bytes)
        {
            return values;
        }
        scratch.clear();
        self.precision.decode(&row_bytes[..self.width * self.precision.bytes()], self.scale(row), scratch);
        scratch.resize(padded, 0.0);
        scratch
    }

    fn scale(&self, row: u32) -> f32 {
        self.scales.get(row as usize).copied().unwrap_or(1.0)
    }

    /// Prefetches the start of a row that is scored soon.
    #[inline]
    pub(crate) fn prefetch(&self, row: u32) {
        #[cfg(target_arch = "x86_64")]
        if let Some(bytes) = self.bytes.get(row as usize * self.stride..) {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            for line in bytes[..self.stride.min(bytes.len())].chunks(64).take(PREFETCHED) {
                // SAFETY: prefetching reads nothing, and the address lies in the slice.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = row;
    }

    /// Scores each of `queries` against each of `rows` of this matrix: `out` gets the first query's scores, then the second's.
    /// Higher is better: the inner product, or the negated squared distance. A score depends only on its query and its row, not
    /// on what else is scored in the same call.
    pub(crate) fn score(&self, metric: Metric, queries: &[&[f32]], rows: &[u32], out: &mut [f32]) {
        let padded = self.width.next_multiple_of(LANES);
        assert!(out.len() == queries.len() * rows.len(), "a score has its place");
        assert!(queries.iter().all(|query| query.len() >= padded), "queries are filled up to whole lanes");
        assert!(rows.iter().all(|row| (*row as usize) < self.count), "rows that are scored exist");
        #[cfg(target_arch = "x86_64")]
        if avx2::usable() {
            // SAFETY: the processor can do it, and the lengths were just checked: every row lies in `bytes` by what `new` checked.
            unsafe { avx2::score(self, metric, queries, rows, out) };
            return;
        }
        self.score_portably(metric, queries, rows, out);
    }

    /// `score` for other processors.
    fn score_portably(&self, metric: Metric, queries: &[&[f32]], rows: &[u32], out: &mut [f32]) {
        let mut numbers = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let numbers = self.decoded(*row, &mut numbers);
            for (number, query) in queries.iter().enumerate() {
                out[number * rows.len() + at] = portable(metric, query, numbers);
            }
        }
    }
}

/// Lines of 64 bytes that are prefetched; the processor's own prefetching continues from there. Eight and twenty-four were
/// slower.
#[cfg(target_arch = "x86_64")]
const PREFETCHED: usize = 4;

fn portable(metric: Metric, query: &[f32], row: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    for (query, row) in query.chunks_exact(LANES).zip(row.chunks_exact(LANES)) {
        for lane in 0..LANES {
            sums[lane] += match metric {
                Metric::InnerProduct => query[lane] * row[lane],
                Metric::L2 => (query[lane] - row[lane]) * (query[lane] - row[lane]),
            };
        }
    }
    let sum: f32 = sums.iter().sum();
    if metric == Metric::L2 { -sum } else { sum }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::testing::Numbers;

    fn naive(metric: Metric, query: &[f32], row: &[f32]) -> f64 {
        let pairs = query.iter().zip(row).map(|(a, b)| (f64::from(*a), f64::from(*b)));
        match metric {
            Metric::InnerProduct => pairs.map(|(a, b)| a * b).sum(),
            Metric::L2 => -pairs.map(|(a, b)| (a - b) * (a - b)).sum::<f64>(),
        }
    }

    #[test]
    fn scores_are_what_a_plain_loop_says() {
        let mut numbers = Numbers::new(7);
        for dimension in [1, 3, 7, 8, 9, 15, 16, 31, 100, 384, 385] {
            for precision in [Precision::F32, Precision::F16, Precision::I8] {
                // One extra byte before the rows: they need not be aligned.
                let (mut bytes, mut scales, mut plain) = (vec![0u8], Vec::new(), Vec::new());
                for _ in 0..11 {
                    let row = numbers.vector(dimension);
                    let begin = bytes.len();
                    let scale = precision.encode(&row, &mut bytes).unwrap();
                    scales.push(scale);
                    let mut decoded = Vec::new();
                    precision.decode(&bytes[begin..], scale, &mut decoded);
                    let worst = row.iter().zip(&decoded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(worst < 0.02, "{precision:?} is off by {worst}");
                    plain.push(decoded);
                }
                let stride = dimension * precision.bytes();
                let rows = Rows::new(&bytes[1..], 11, stride, dimension, precision, &scales).unwrap();
                let queries: Vec<Vec<f32>> = (0..7).map(|_| padded(&numbers.vector(dimension))).collect();
                let chosen = [10, 0, 3, 3, 9, 1, 2, 7];
                for metric in [Metric::InnerProduct, Metric::L2] {
                    for many in 0..=queries.len() {
                        let queries: Vec<&[f32]> = queries[..many].iter().map(Vec::as_slice).collect();
                        let (mut out, mut portably) = (vec![0.0; many * 8], vec![0.0; many * 8]);
                        rows.score(metric, &queries, &chosen, &mut out);
                        rows.score_portably(metric, &queries, &chosen, &mut portably);
                        for (at, score) in out.iter().enumerate() {
                            let wanted = naive(metric, queries[at / 8], &plain[chosen[at % 8] as usize]);
                            let slack = 1e-5 * (dimension as f64).max(wanted.abs());
                            assert!((f64::from(*score) - wanted).abs() < slack, "{precision:?} {metric:?} {dimension}");
                            assert!((f64::from(portably[at]) - wanted).abs() < slack, "portably {precision:?} {dimension}");
                        }
                        // Alone or with others, a pair scores the same to the last bit.
                        for (number, query) in queries.iter().enumerate() {
                            for (at, row) in chosen.iter().enumerate() {
                                let mut alone = [0.0];
                                rows.score(metric, &[query], &[*row], &mut alone);
                                assert_eq!(alone[0].to_bits(), out[number * 8 + at].to_bits());
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn rows_that_do_not_fit_are_refused() {
        let bytes = [0u8; 64];
        assert!(Rows::new(&bytes, 2, 32, 8, Precision::F32, &[]).is_some());
        assert!(Rows::new(&bytes, 3, 32, 8, Precision::F32, &[]).is_none());
        assert!(Rows::new(&bytes, 2, 32, 9, Precision::F32, &[]).is_none());
        assert!(Rows::new(&bytes, 2, 32, 0, Precision::F32, &[]).is_none());
        assert!(Rows::new(&bytes, 2, 32, 8, Precision::I8, &[1.0]).is_none());
        assert!(Rows::new(&bytes, usize::MAX, 32, 8, Precision::F32, &[]).is_none());
        assert!(values::<u32>(&bytes[..3]).is_none());
    }
}
