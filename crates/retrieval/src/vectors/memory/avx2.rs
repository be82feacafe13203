//! Scores with AVX2, FMA and F16C, several queries and rows at a time: a fetched row serves four queries, and fetched numbers
//! of a query serve three rows. That is what sixteen registers hold.

use std::arch::x86_64::*;

use super::{LANES, Metric, Precision, Rows};

/// Whether this processor supports the functions here; the standard library caches it.
pub(super) fn usable() -> bool {
    is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
}

/// Numbers as stored in a row.
trait Stored {
    const BYTES: usize;

    /// # Safety
    /// Eight numbers can be read from `at`, and the processor is `usable`.
    unsafe fn load(at: *const u8) -> __m256;
}

struct F32;
struct F16;
struct I8;

impl Stored for F32 {
    const BYTES: usize = 4;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: as the trait says; the address need not be aligned.
        unsafe { _mm256_loadu_ps(at.cast()) }
    }
}

impl Stored for F16 {
    const BYTES: usize = 2;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: as the trait says; the address need not be aligned.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(at.cast())) }
    }
}

impl Stored for I8 {
    const BYTES: usize = 1;

    #[inline(always)]
    unsafe fn load(at: *const u8) -> __m256 {
        // SAFETY: as the trait says; the address need not be aligned.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at.cast()))) }
    }
}

/// # Safety
/// The processor is `usable`; rows are below the count; queries are filled up to whole lanes; `out` has a place for each pair.
pub(super) unsafe fn score(matrix: &Rows<'_>, metric: Metric, queries: &[&[f32]], rows: &[u32], out: &mut [f32]) {
    // SAFETY: passed on from the caller.
    unsafe {
        match (matrix.precision, metric) {
            (Precision::F32, Metric::InnerProduct) => all::<F32, false>(matrix, queries, rows, out),
            (Precision::F32, Metric::L2) => all::<F32, true>(matrix, queries, rows, out),
            (Precision::F16, Metric::InnerProduct) => all::<F16, false>(matrix, queries, rows, out),
            (Precision::F16, Metric::L2) => all::<F16, true>(matrix, queries, rows, out),
            (Precision::I8, Metric::InnerProduct) => all::<I8, false>(matrix, queries, rows, out),
            (Precision::I8, Metric::L2) => all::<I8, true>(matrix, queries, rows, out),
        }
    }
}

/// # Safety
/// As `score`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn all<T: Stored, const L2: bool>(matrix: &Rows<'_>, queries: &[&[f32]], rows: &[u32], out: &mut [f32]) {
    let mut rest = queries;
    let mut out = out;
    while !rest.is_empty() {
        let taken = rest.len().min(4);
        let (now, later) = rest.split_at(taken);
        let (scores, others) = out.split_at_mut(taken * rows.len());
        // SAFETY: passed on from the caller; the first number says how many queries `now` has.
        unsafe {
            match taken {
                4 => strip::<T, L2, 4, 3>(matrix, now, rows, scores),
                3 => strip::<T, L2, 3, 4>(matrix, now, rows, scores),
                2 => strip::<T, L2, 2, 4>(matrix, now, rows, scores),
                _ => strip::<T, L2, 1, 4>(matrix, now, rows, scores),
            }
        }
        (rest, out) = (later, others);
    }
}

/// # Safety
/// As `score`, and there are `Q` queries.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strip<T: Stored, const L2: bool, const Q: usize, const R: usize>(
    matrix: &Rows<'_>,
    queries: &[&[f32]],
    rows: &[u32],
    out: &mut [f32],
) {
    let count = rows.len();
    let whole = count / R * R;
    for at in (0..whole).step_by(R) {
        // SAFETY: passed on from the caller; `R` rows follow.
        unsafe { tile::<T, L2, Q, R>(matrix, queries, &rows[at..], count, &mut out[at..]) };
    }
    for at in whole..count {
        // SAFETY: passed on from the caller; one row follows.
        unsafe { tile::<T, L2, Q, 1>(matrix, queries, &rows[at..], count, &mut out[at..]) };
    }
}

/// `Q` queries against the first `R` of `rows`; a query's scores are `step` positions after those of the previous one.
///
/// # Safety
/// As `score`, and there are `Q` queries and at least `R` rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tile<T: Stored, const L2: bool, const Q: usize, const R: usize>(
    matrix: &Rows<'_>,
    queries: &[&[f32]],
    rows: &[u32],
    step: usize,
    out: &mut [f32],
) {
    let mut from = [matrix.bytes.as_ptr(); R];
    let mut scales = [1.0f32; R];
    for r in 0..R {
        // SAFETY: a row below the count begins inside of the bytes.
        from[r] = unsafe { from[r].add(rows[r] as usize * matrix.stride) };
        scales[r] = matrix.scale(rows[r]);
    }
    let mut query = [std::ptr::null::<f32>(); Q];
    for q in 0..Q {
        query[q] = queries[q].as_ptr();
    }

    let mut sums = [[_mm256_setzero_ps(); R]; Q];
    let whole = matrix.width / LANES * LANES;
    let mut at = 0;
    while at < whole {
        let mut row = [_mm256_setzero_ps(); R];
        for r in 0..R {
            // SAFETY: eight numbers from `at` on lie in the row, since `whole` is not more than its width.
            row[r] = unsafe { T::load(from[r].add(at * T::BYTES)) };
        }
        for q in 0..Q {
            // SAFETY: a query is at least as long as the row's width in whole lanes.
            let numbers = unsafe { _mm256_loadu_ps(query[q].add(at)) };
            for r in 0..R {
                sums[q][r] = step_on::<L2>(sums[q][r], numbers, row[r], scales[r]);
            }
        }
        at += LANES;
    }
    if at < matrix.width {
        for r in 0..R {
            let mut last = [0u8; LANES * 4];
            let bytes = (matrix.width - at) * T::BYTES;
            let begin = rows[r] as usize * matrix.stride + at * T::BYTES;
            last[..bytes].copy_from_slice(&matrix.bytes[begin..begin + bytes]);
            // SAFETY: eight of the widest numbers have room in `last`.
            let row = unsafe { T::load(last.as_ptr()) };
            for q in 0..Q {
                // SAFETY: a query is filled up to whole lanes.
                let numbers = unsafe { _mm256_loadu_ps(query[q].add(at)) };
                sums[q][r] = step_on::<L2>(sums[q][r], numbers, row, scales[r]);
            }
        }
    }
    for q in 0..Q {
        for r in 0..R {
            let sum = total(sums[q][r]);
            out[q * step + r] = if L2 { -sum } else { sum * scales[r] };
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn step_on<const L2: bool>(sum: __m256, query: __m256, row: __m256, scale: f32) -> __m256 {
    if L2 {
        let apart = _mm256_fnmadd_ps(row, _mm256_set1_ps(scale), query);
        _mm256_fmadd_ps(apart, apart, sum)
    } else {
        _mm256_fmadd_ps(row, query, sum)
    }
}

#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn total(sums: __m256) -> f32 {
    let four = _mm_add_ps(_mm256_castps256_ps128(sums), _mm256_extractf128_ps::<1>(sums));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
}
