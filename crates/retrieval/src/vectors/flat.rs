use std::{
    fs::{self, File},
    io::{BufReader, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use super::{
    Metric, Precision, VectorIndex, check, check_base,
    crew::{cores, spread},
    memory::{LANES, Rows, padded},
    ranking::Best,
    scan::{Scan, Scratch},
    sealed::{self, HEADER, Magic, Sealed},
};
use crate::{Error, Hit, Ordinals, Result};

const MAGIC: Magic = *b"arenvecs";
const MOST_DIMENSIONS: usize = 1 << 16;
/// Bytes of rows that a thread takes at a time, and a fourth of the work that makes another thread worth starting.
const UNIT: usize = 1 << 20;
/// Number of queries that share a pass. More would only enlarge each one's state.
const PASS: usize = 64;

/// Vectors in a file, searched exactly. Rows start at multiples of 64 bytes; for [`Precision::I8`], the scales follow.
pub struct Flat {
    file: Sealed,
    dimension: usize,
    precision: Precision,
    metric: Metric,
    count: usize,
    threads: usize,
}

impl Flat {
    /// Maps a file and checks its header. Only [`Flat::verify`] checks the content; damage there only causes wrong scores.
    pub fn open(path: &Path) -> Result<Self> {
        let file = Sealed::open(path, &MAGIC, "vectors")?;
        let (Some(precision), Some(metric)) = (Precision::from_code(file.field(0)), Metric::from_code(file.field(4))) else {
            return Err(Error::corrupt(path, "its precision or metric is unknown"));
        };
        let (dimension, count) = (file.field(8) as usize, file.field(12) as usize);
        if !(1..=MOST_DIMENSIONS).contains(&dimension) {
            return Err(Error::corrupt(path, format!("its vectors have {dimension} dimensions")));
        }
        let scales = if precision == Precision::I8 { count * 4 } else { 0 };
        if file.body().len() != count * stride(dimension, precision) + scales {
            return Err(Error::corrupt(path, format!("{count} vectors need another length")));
        }
        Ok(Self { file, dimension, precision, metric, count, threads: cores() })
    }

    /// Limits a search to this number of threads. The default is one per core, which is also the maximum for all searches
    /// together.
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads: threads.max(1), ..self }
    }

    /// Reads the whole file and compares it with its checksum.
    pub fn verify(&self) -> Result<()> {
        self.file.verify()
    }

    pub fn metric(&self) -> Metric {
        self.metric
    }

    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// A vector, as precise as it is stored. None if there is no such row.
    pub fn row(&self, at: u32) -> Option<Vec<f32>> {
        let mut scratch = Vec::new();
        let there = (at as usize) < self.count;
        there.then(|| self.rows().decoded(at, &mut scratch)[..self.dimension].to_vec())
    }

    /// Identifies the content: a graph over these vectors stores it.
    pub(crate) fn digest(&self) -> &[u8] {
        self.file.digest()
    }

    pub(crate) fn rows(&self) -> Rows<'_> {
        let stride = stride(self.dimension, self.precision);
        let scaled = if self.precision == Precision::I8 { self.count } else { 0 };
        let scales = self.file.map().slice(HEADER + self.count * stride, scaled).unwrap_or_default();
        // A row's padding is zero, so scoring it costs less than finding its end.
        let width = self.dimension.next_multiple_of(LANES);
        Rows::new(self.file.body(), self.count, stride, width, self.precision, scales)
            .expect("the length was checked when the file was opened")
    }
}

impl VectorIndex for Flat {
    fn dimension(&self) -> usize {
        self.dimension
    }

    fn len(&self) -> usize {
        self.count
    }

    fn search_from(&self, base: u32, queries: &[&[f32]], k: usize, allowed: Option<&Ordinals>) -> Result<Vec<Vec<Hit>>> {
        check(queries, self.dimension)?;
        check_base(base, self.count)?;
        let scan = Scan { rows: self.rows(), metric: self.metric, ids: None, base, allowed };
        Ok(exactly(&scan, queries, k, self.threads))
    }
}

/// Scans all rows.
pub(crate) fn exactly(scan: &Scan<'_>, queries: &[&[f32]], k: usize, threads: usize) -> Vec<Vec<Hit>> {
    let count = scan.rows.len();
    let k = k.min(count);
    if k == 0 {
        return vec![Vec::new(); queries.len()];
    }
    let unit = (UNIT / scan.rows.stride().max(1)).max(1);
    let units = count.div_ceil(unit);
    let threads = threads.min(units.div_ceil(4));
    let queries: Vec<Vec<f32>> = queries.iter().map(|query| padded(query)).collect();
    let mut hits = Vec::with_capacity(queries.len());
    for pass in queries.chunks(PASS) {
        let pass: Vec<&[f32]> = pass.iter().map(Vec::as_slice).collect();
        let begin = || (pass.iter().map(|_| Best::new(k)).collect::<Vec<_>>(), Scratch::default());
        let found = spread(threads, units, begin, |(best, scratch), number| {
            let rows = (number * unit) as u32..((number + 1) * unit).min(count) as u32;
            scan.range(rows, &pass, best, scratch);
        });
        hits.extend(united(found.into_iter().map(|(best, _)| best)).into_iter().map(Best::into_hits));
    }
    hits
}

/// Merges the results of several threads, for each query.
pub(crate) fn united(found: impl Iterator<Item = Vec<Best>>) -> Vec<Best> {
    let join = |mut all: Vec<Best>, more: Vec<Best>| {
        all.iter_mut().zip(more).for_each(|(all, more)| all.absorb(more));
        all
    };
    found.reduce(join).unwrap_or_default()
}

/// Bytes from one row to the next.
pub(crate) fn stride(dimension: usize, precision: Precision) -> usize {
    (dimension * precision.bytes()).next_multiple_of(64)
}

/// Writes a file of vectors, one by one. Memory does not grow with their number.
pub struct FlatWriter {
    file: sealed::Writer,
    dimension: usize,
    precision: Precision,
    metric: Metric,
    count: u32,
    row: Vec<u8>,
    scales: Option<Scales>,
}

impl FlatWriter {
    /// Creates a writer. The file gets its name, and replaces one of that name, in [`FlatWriter::finish`].
    pub fn create(path: &Path, dimension: usize, precision: Precision, metric: Metric) -> Result<Self> {
        if !(1..=MOST_DIMENSIONS).contains(&dimension) {
            return Err(Error::Invalid(format!("vectors have 1 to {MOST_DIMENSIONS} dimensions, not {dimension}")));
        }
        let file = sealed::Writer::create(path)?;
        let scales = if precision == Precision::I8 { Some(Scales::create(path)?) } else { None };
        Ok(Self { file, dimension, precision, metric, count: 0, row: Vec::new(), scales })
    }

    /// Adds a vector and returns its ordinal. A refused one leaves the file unchanged.
    pub fn push(&mut self, vector: &[f32]) -> Result<u32> {
        if vector.len() != self.dimension {
            return Err(Error::Dimension { wanted: self.dimension, found: vector.len() });
        }
        if self.count == u32::MAX {
            return Err(Error::Invalid(format!("a file holds {} vectors at most", u32::MAX)));
        }
        self.row.clear();
        let scale = self.precision.encode(vector, &mut self.row)?;
        self.row.resize(stride(self.dimension, self.precision), 0);
        self.file.write(&self.row)?;
        if let Some(scales) = &mut self.scales {
            scales.file.write_all(&scale.to_le_bytes()).map_err(Error::io("write to", &scales.path))?;
        }
        self.count += 1;
        Ok(self.count - 1)
    }

    /// Puts the file in place, once it is on the disk, and returns the number of vectors.
    pub fn finish(mut self) -> Result<u32> {
        if let Some(mut scales) = self.scales.take() {
            scales.file.flush().map_err(Error::io("write to", &scales.path))?;
            let mut file = BufReader::new(File::open(&scales.path).map_err(Error::io("open", &scales.path))?);
            let mut some = [0; 4096];
            loop {
                let read = file.read(&mut some).map_err(Error::io("read", &scales.path))?;
                if read == 0 {
                    break;
                }
                self.file.write(&some[..read])?;
            }
        }
        let mut fields = [0; 72];
        let values = [self.precision.code(), self.metric.code(), self.dimension as u32, self.count];
        for (at, value) in values.into_iter().enumerate() {
            fields[at * 4..][..4].copy_from_slice(&value.to_le_bytes());
        }
        self.file.finish(&MAGIC, &fields)?;
        Ok(self.count)
    }
}

/// Scales are in a separate file until the rows are complete.
struct Scales {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Scales {
    fn create(path: &Path) -> Result<Self> {
        let path = sealed::beside(path)?;
        let file = File::create_new(&path).map_err(Error::io("create", &path))?;
        Ok(Self { path, file: BufWriter::new(file) })
    }
}

impl Drop for Scales {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{
        Vectors,
        testing::{Numbers, write},
    };

    fn naive(vectors: &[Vec<f32>], query: &[f32], metric: Metric) -> Vec<(f32, u32)> {
        let score = |row: &Vec<f32>| match metric {
            Metric::InnerProduct => row.iter().zip(query).map(|(a, b)| a * b).sum::<f32>(),
            Metric::L2 => -row.iter().zip(query).map(|(a, b)| (a - b) * (a - b)).sum::<f32>(),
        };
        let mut all: Vec<(f32, u32)> = vectors.iter().map(score).zip(0..).collect();
        all.sort_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));
        all
    }

    #[test]
    fn a_search_finds_what_a_plain_loop_finds() {
        let folder = tempfile::tempdir().unwrap();
        let mut numbers = Numbers::new(11);
        // Enough rows for several units and more than one thread, and more queries than share a pass.
        let vectors = numbers.clustered(7000, 201);
        let queries = numbers.clustered(66, 201);
        let asked: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
        let allowed: Ordinals = (0..7000).filter(|ordinal| ordinal % 7 == 3).collect();
        for (precision, slack) in [(Precision::F32, 1e-5), (Precision::F16, 2e-3), (Precision::I8, 2e-2)] {
            for metric in [Metric::InnerProduct, Metric::L2] {
                let flat = write(&folder.path().join("vectors"), &vectors, precision, metric);
                let found = flat.search_many(&asked, 10, None).unwrap();
                let filtered = flat.search_many(&asked, 10, Some(&allowed)).unwrap();
                let alone = flat.with_threads(1);
                for ((query, found), filtered) in queries.iter().zip(found).zip(filtered).step_by(13) {
                    let wanted = naive(&vectors, query, metric);
                    assert_eq!(found.len(), 10);
                    for (hit, wanted) in found.iter().zip(&wanted) {
                        assert!((hit.score - wanted.0).abs() < slack, "{precision:?} {metric:?}");
                    }
                    assert!(filtered.iter().all(|hit| hit.ordinal % 7 == 3) && filtered.len() == 10);
                    if precision == Precision::F32 {
                        let best = wanted.iter().find(|(_, ordinal)| allowed.contains(*ordinal)).unwrap();
                        assert_eq!((found[0].ordinal, filtered[0].ordinal), (wanted[0].1, best.1));
                    }
                    assert_eq!(alone.search(query, 10, None).unwrap(), found);
                }
            }
        }
    }

    #[test]
    fn what_is_asked_has_its_bounds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vectors");
        let flat = write(&path, &vec![vec![1.0, 0.0, 0.0]; 5], Precision::F32, Metric::InnerProduct);
        let query = [0.5, 1.0, 1.0];
        let ordinals = |hits: Vec<Hit>| hits.iter().map(|hit| hit.ordinal).collect::<Vec<_>>();
        assert_eq!(ordinals(flat.search(&query, 99, None).unwrap()), [0, 1, 2, 3, 4]);
        assert_eq!(ordinals(flat.search(&query, 3, Some(&(3..9).collect())).unwrap()), [3, 4]);
        assert!(flat.search(&query, 0, None).unwrap().is_empty());
        assert!(flat.search(&query, 3, Some(&Ordinals::default())).unwrap().is_empty());
        assert!(flat.search_many(&[], 3, None).unwrap().is_empty());
        assert!(matches!(flat.search(&query[1..], 3, None), Err(Error::Dimension { wanted: 3, found: 2 })));
        assert!(matches!(flat.search(&[0.0, f32::NAN, 0.0], 3, None), Err(Error::Invalid(_))));
        assert!(matches!(flat.search_from(u32::MAX - 2, &[&query], 3, None), Err(Error::Invalid(_))));

        let mut writer = FlatWriter::create(&path, 3, Precision::F16, Metric::L2).unwrap();
        assert!(matches!(writer.push(&[1.0]), Err(Error::Dimension { .. })));
        assert!(matches!(writer.push(&[1.0, f32::INFINITY, 0.0]), Err(Error::Invalid(_))));
        assert_eq!((writer.push(&query).unwrap(), writer.finish().unwrap()), (0, 1));
        assert_eq!(
            flat.search(&query, 1, None).unwrap()[0].score,
            0.5,
            "a file that is replaced stays what it was to its readers"
        );
        assert!(FlatWriter::create(&path, 0, Precision::F32, Metric::L2).is_err());

        let empty = folder.path().join("empty");
        FlatWriter::create(&empty, 3, Precision::F32, Metric::L2).unwrap().finish().unwrap();
        assert!(Flat::open(&empty).unwrap().search(&query, 3, None).unwrap().is_empty());
    }

    #[test]
    fn segments_are_searched_as_one() {
        let folder = tempfile::tempdir().unwrap();
        let vectors = Numbers::new(5).clustered(600, 20);
        let whole = write(&folder.path().join("whole"), &vectors, Precision::F32, Metric::InnerProduct);
        let mut parts = Vectors::new(20);
        for (number, part) in vectors.chunks(250).enumerate() {
            let flat = write(&folder.path().join(number.to_string()), part, Precision::F32, Metric::InnerProduct);
            let flat = std::sync::Arc::new(flat);
            assert!(number == 0 || parts.push(number as u32 * 250 - 1, flat.clone()).is_err());
            parts.push(number as u32 * 250, flat).unwrap();
        }
        let allowed: Ordinals = (100..580).step_by(3).collect();
        for query in &vectors[200..300] {
            for allowed in [None, Some(&allowed)] {
                assert_eq!(parts.search(query, 9, allowed).unwrap(), whole.search(query, 9, allowed).unwrap());
            }
        }
        assert_eq!((parts.len(), parts.search(&vectors[0], 700, None).unwrap().len()), (600, 600));
        assert!(matches!(parts.push(900, std::sync::Arc::new(Vectors::new(21))), Err(Error::Dimension { .. })));
    }
}
