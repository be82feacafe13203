//! The functions between the matrix products.
//!
//! They are written for automatic vectorisation: without calls and branches. Each is accurate to the last few bits of an `f32`.

use ndarray::{Array2, ArrayViewMut2};

/// The activation of a model's feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    Gelu,
    /// GELU approximated with a hyperbolic tangent, as some models were trained with.
    GeluTanh,
    Relu,
}

impl Activation {
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "gelu" => Some(Self::Gelu),
            "gelu_new" | "gelu_fast" | "gelu_pytorch_tanh" => Some(Self::GeluTanh),
            "relu" => Some(Self::Relu),
            _ => None,
        }
    }

    pub(super) fn apply(self, numbers: &mut [f32]) {
        match self {
            Self::Gelu => numbers.iter_mut().for_each(|x| *x *= 0.5 + 0.5 * erf(*x * std::f32::consts::FRAC_1_SQRT_2)),
            Self::GeluTanh => numbers.iter_mut().for_each(|x| {
                // Half of 1 + tanh(y) is the logistic function of 2y.
                let twice = 2.0 * 0.797_884_6 * (*x + 0.044_715 * *x * *x * *x);
                *x /= 1.0 + exp(-twice);
            }),
            Self::Relu => numbers.iter_mut().for_each(|x| *x = x.max(0.0)),
        }
    }
}

/// The error function, as a quotient of polynomials; beyond 4 it is 1 to an `f32`.
fn erf(x: f32) -> f32 {
    let x = x.clamp(-4.0, 4.0);
    let y = x * x;
    let above = [-2.726_142_3e-10, 2.770_681_4e-8, -2.101_024e-6, -5.692_506_4e-5, -7.349_906_3e-4, -2.954_6e-3, -1.609_603_3e-2];
    let below = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329_2e-3, -1.426_474e-2];
    let at = |terms: &[f32]| terms.iter().fold(0.0, |sum, term| sum * y + term);
    x * at(&above) / at(&below)
}

/// The exponential function: a power of two, times a polynomial for the rest.
fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    // Adding this rounds to a whole number, which is then in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    let rounded = x * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    // ln 2 in two parts, so that its product with a whole number is exact.
    let rest = x - whole * 0.693_359_4 - whole * -2.121_944_4e-4;
    let terms = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let power = f32::from_bits(rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23);
    terms.iter().fold(0.0, |sum, term| sum * rest + term) * power
}

/// Scales the exponentials of each row to a sum of 1.
pub(super) fn softmax(rows: &mut [f32], width: usize) {
    for row in rows.chunks_exact_mut(width) {
        let most = largest(row);
        row.iter_mut().for_each(|x| *x = exp(*x - most));
        let scale = 1.0 / sum(row);
        row.iter_mut().for_each(|x| *x *= scale);
    }
}

/// Normalises each row to a mean of 0 and a variance of 1, then scales and shifts it by the model's parameters.
pub(super) struct LayerNorm {
    pub(super) scale: Vec<f32>,
    pub(super) shift: Vec<f32>,
    pub(super) epsilon: f32,
}

impl LayerNorm {
    pub(super) fn apply(&self, rows: &mut [f32]) {
        let width = self.scale.len();
        for row in rows.chunks_exact_mut(width) {
            let mean = sum(row) / width as f32;
            row.iter_mut().for_each(|x| *x -= mean);
            let factor = 1.0 / (squares(row) / width as f32 + self.epsilon).sqrt();
            let learned = self.scale.iter().zip(&self.shift);
            row.iter_mut().zip(learned).for_each(|(x, (scale, shift))| *x = *x * factor * scale + shift);
        }
    }
}

/// A product with a matrix, plus a row.
pub(super) struct Linear {
    /// One column per output.
    pub(super) weight: Array2<f32>,
    pub(super) bias: Vec<f32>,
}

impl Linear {
    pub(super) fn apply(&self, rows: &Array2<f32>) -> Array2<f32> {
        let mut out = Array2::zeros((rows.nrows(), self.bias.len()));
        out.rows_mut()
            .into_iter()
            .for_each(|mut row| row.as_slice_mut().into_iter().for_each(|row| row.copy_from_slice(&self.bias)));
        ndarray::linalg::general_mat_mul(1.0, rows, &self.weight, 1.0, &mut out);
        out
    }
}

/// A square matrix in reused memory.
pub(super) fn square(memory: &mut Vec<f32>, size: usize) -> ArrayViewMut2<'_, f32> {
    if memory.len() < size * size {
        memory.resize(size * size, 0.0);
    }
    ArrayViewMut2::from_shape((size, size), &mut memory[..size * size]).expect("the slice has as many numbers as the square")
}

/// Eight parallel sums: a single one would wait for itself at each step.
fn sum(row: &[f32]) -> f32 {
    let (eights, rest) = row.as_chunks::<8>();
    let mut sums = [0.0; 8];
    eights.iter().for_each(|eight| sums.iter_mut().zip(eight).for_each(|(sum, x)| *sum += x));
    sums.iter().sum::<f32>() + rest.iter().sum::<f32>()
}

fn squares(row: &[f32]) -> f32 {
    let (eights, rest) = row.as_chunks::<8>();
    let mut sums = [0.0; 8];
    eights.iter().for_each(|eight| sums.iter_mut().zip(eight).for_each(|(sum, x)| *sum += x * x));
    sums.iter().sum::<f32>() + rest.iter().map(|x| x * x).sum::<f32>()
}

fn largest(row: &[f32]) -> f32 {
    let (eights, rest) = row.as_chunks::<8>();
    let mut most = [f32::NEG_INFINITY; 8];
    eights.iter().for_each(|eight| most.iter_mut().zip(eight).for_each(|(most, x)| *most = if *x > *most { *x } else { *most }));
    most.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computed by its series, in double precision.
    fn exact_erf(x: f64) -> f64 {
        let terms = (0..200).scan(x, |term, n| {
            let now = *term / f64::from(2 * n + 1);
            *term *= -x * x / f64::from(n + 1);
            Some(now)
        });
        terms.sum::<f64>() * 2.0 / std::f64::consts::PI.sqrt()
    }

    #[test]
    fn functions_are_as_exact_as_their_numbers() {
        for step in -4000..=4000 {
            let x = step as f32 / 1000.0;
            assert!((f64::from(erf(x)) - exact_erf(f64::from(x))).abs() < 5e-7, "erf {x}");
        }
        assert!((erf(50.0) - 1.0).abs() < 5e-7 && (erf(-1e30) + 1.0).abs() < 5e-7);
        for step in -8700..=8800 {
            let x = step as f32 / 100.0;
            assert!((f64::from(exp(x)) / f64::from(x).exp() - 1.0).abs() < 5e-7, "exp {x}");
        }
        assert!(exp(f32::NEG_INFINITY) < 1e-37 && exp(1e9).is_finite());
    }

    #[test]
    fn activations_are_what_they_are_named() {
        let of = |name: &str, x: f32| {
            let mut one = [x];
            Activation::named(name).unwrap().apply(&mut one);
            one[0]
        };
        // Computed with PyTorch.
        for (name, x, wanted) in [
            ("gelu", 1.0, 0.841_344_7),
            ("gelu", -0.5, -0.154_268_77),
            ("gelu_new", 1.0, 0.841_191_95),
            ("gelu_new", -0.5, -0.154_285_97),
            ("relu", -0.5, 0.0),
            ("relu", 2.0, 2.0),
        ] {
            assert!((of(name, x) - wanted).abs() < 1e-6, "{name} {x} {}", of(name, x));
        }
        assert_eq!(Activation::named("swish"), None);
    }

    #[test]
    fn rows_are_brought_to_what_they_should_be() {
        let mut rows: Vec<f32> = (0..22).map(|one| one as f32).collect();
        softmax(&mut rows, 11);
        let (first, second) = rows.split_at(11);
        assert!((first.iter().sum::<f32>() - 1.0).abs() < 1e-6 && (first[10] / first[9] - std::f32::consts::E).abs() < 1e-5);
        assert!(first.iter().zip(second).all(|(one, other)| (one - other).abs() < 1e-7));
        let norm = LayerNorm { scale: vec![1.0, 2.0], shift: vec![0.0, 1.0], epsilon: 0.0 };
        let mut row = [3.0, 7.0];
        norm.apply(&mut row);
        assert_eq!(row, [-1.0, 3.0]);
    }
}
