//! Comparing what a run left with the reference.

use half::{bf16, f16};
use periscope::{DType, HostTensor};

/// What a run must leave in one entry tensor.
#[derive(Clone, Debug)]
pub struct Expected {
    /// The tensor's position among the entry tensors.
    pub tensor: usize,
    /// Its values.
    pub values: HostTensor,
    /// Largest accepted error relative to the expected value.
    pub rtol: f64,
    /// Largest accepted error beside that. An element passes if |got - expected| <= atol + rtol·|expected|.
    pub atol: f64,
}

/// The outcome of a comparison.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Check {
    /// Every element is within its tolerance.
    pub pass: bool,
    /// Largest |got - expected|.
    pub max_abs_err: f64,
    /// Largest |got - expected| / |expected|, where `expected` is not 0.
    pub max_rel_err: f64,
    /// The tolerance asked for (the widest, if there are several tensors).
    pub rtol: f64,
    /// The tolerance asked for.
    pub atol: f64,
}

impl Default for Check {
    fn default() -> Self {
        Check { pass: true, max_abs_err: 0.0, max_rel_err: 0.0, rtol: 0.0, atol: 0.0 }
    }
}

impl Check {
    /// Takes another tensor's comparison into account.
    pub(crate) fn and(self, other: Check) -> Check {
        Check {
            pass: self.pass && other.pass,
            max_abs_err: self.max_abs_err.max(other.max_abs_err),
            max_rel_err: self.max_rel_err.max(other.max_rel_err),
            rtol: self.rtol.max(other.rtol),
            atol: self.atol.max(other.atol),
        }
    }
}

impl Expected {
    /// Compares the tensor's bytes after a run. Zero tolerances ask for the same bits.
    #[must_use]
    pub fn compare(&self, got: &[u8]) -> Check {
        let expected = self.values.bytes();
        let mut check = Check { rtol: self.rtol, atol: self.atol, ..Check::default() };
        if got.len() != expected.len() {
            return Check { pass: false, max_abs_err: f64::INFINITY, max_rel_err: f64::INFINITY, ..check };
        }
        let size = self.values.dtype().size_bytes() as usize;
        for (got, expected) in got.chunks_exact(size).zip(expected.chunks_exact(size)) {
            if got == expected {
                continue;
            }
            let (got, expected) = (to_f64(self.values.dtype(), got), to_f64(self.values.dtype(), expected));
            let error = (got - expected).abs();
            // A NaN is an infinite error: `max` alone would drop it.
            let error = if error.is_nan() { f64::INFINITY } else { error };
            check.max_abs_err = check.max_abs_err.max(error);
            if expected != 0.0 {
                check.max_rel_err = check.max_rel_err.max(error / expected.abs());
            }
            let exact = self.rtol == 0.0 && self.atol == 0.0;
            check.pass &= !exact && error <= self.atol + self.rtol * expected.abs();
        }
        check
    }
}

fn to_f64(dtype: DType, bytes: &[u8]) -> f64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(word);
    match dtype {
        DType::F64 => f64::from_bits(bits),
        DType::F32 => f64::from(f32::from_bits(bits as u32)),
        DType::F16 => f16::from_bits(bits as u16).to_f64(),
        DType::BF16 => bf16::from_bits(bits as u16).to_f64(),
        DType::I8 => f64::from(bits as i8),
        DType::I16 => f64::from(bits as i16),
        DType::I32 => f64::from(bits as i32),
        DType::I64 => bits as i64 as f64,
        // Unsigned numbers, and opaque bits.
        _ => bits as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(values: &[f32], tolerance: f64) -> Expected {
        let values = HostTensor::from_slice(&[values.len() as u64], values).unwrap();
        Expected { tensor: 0, values, rtol: tolerance, atol: tolerance }
    }

    fn bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn tolerance_is_per_element_and_nan_never_passes() {
        let reference = expected(&[1.0, 100.0], 1e-3);
        assert!(reference.compare(&bytes(&[1.0015, 100.1])).pass);
        assert!(!reference.compare(&bytes(&[1.003, 100.0])).pass);
        assert!(!reference.compare(&bytes(&[1.0, f32::NAN])).pass);
        assert!(!reference.compare(&bytes(&[1.0])).pass);
    }

    #[test]
    fn zero_tolerance_means_the_same_bits() {
        let reference = expected(&[0.0], 0.0);
        assert!(reference.compare(&bytes(&[0.0])).pass);
        assert!(!reference.compare(&bytes(&[-0.0])).pass);
    }
}
