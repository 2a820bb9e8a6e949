//! Whether a predicated task runs: one device element against a constant, as values of the element's type.

use std::cmp::Ordering;

use half::{bf16, f16};
use periscope_core::task::Comparison;
use periscope_core::{DType, Element};

/// Compares the element at `address` with the constant in the low bits of `constant_bits`.
///
/// Floats compare as IEEE 754 says: -0 equals 0, and every comparison with a NaN but "not equal" is false. `false` is less
/// than `true`. The opaque types have no order, so only their bits can be equal or not.
///
/// # Safety
/// An element of `dtype` lies at `address`, aligned, and nothing writes it meanwhile.
pub(crate) unsafe fn holds(dtype: DType, address: *const u8, comparison: Comparison, constant_bits: u64) -> bool {
    /// # Safety
    /// As above, for the element type of `T`.
    unsafe fn order<T: Element + PartialOrd>(address: *const u8, constant_bits: u64) -> Option<Ordering> {
        // SAFETY: the caller's promise; every bit pattern is a valid `Stored`.
        let element = T::from_stored(unsafe { address.cast::<T::Stored>().read() });
        element.partial_cmp(&T::from_bits64(constant_bits))
    }
    // SAFETY: in each arm the type is that of `dtype`, of which the caller promised an element.
    let ordering = unsafe {
        match dtype {
            DType::F64 => order::<f64>(address, constant_bits),
            DType::F32 => order::<f32>(address, constant_bits),
            DType::F16 => order::<f16>(address, constant_bits),
            DType::BF16 => order::<bf16>(address, constant_bits),
            DType::I8 => order::<i8>(address, constant_bits),
            DType::I16 => order::<i16>(address, constant_bits),
            DType::I32 => order::<i32>(address, constant_bits),
            DType::I64 => order::<i64>(address, constant_bits),
            DType::U8 => order::<u8>(address, constant_bits),
            DType::U16 => order::<u16>(address, constant_bits),
            DType::U32 => order::<u32>(address, constant_bits),
            DType::U64 => order::<u64>(address, constant_bits),
            DType::Bool => order::<bool>(address, constant_bits),
            DType::F8E4M3 | DType::F8E5M2 | DType::F4E2M1X2 => {
                order::<u8>(address, constant_bits).filter(|&ordering| ordering == Ordering::Equal)
            }
        }
    };
    comparison.holds(ordering)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: Element>(element: T, constant: T, expected: [bool; 6]) {
        use Comparison::{Eq, Ge, Gt, Le, Lt, Ne};
        let stored = element.to_stored();
        for (comparison, expected) in [Eq, Ne, Lt, Le, Gt, Ge].into_iter().zip(expected) {
            // The constant's upper bits are nobody's.
            let junk = if T::DTYPE.size_bytes() == 8 { 0 } else { u64::MAX << (T::DTYPE.size_bytes() * 8) };
            // SAFETY: `stored` is an element of the type.
            let got = unsafe { holds(T::DTYPE, (&raw const stored).cast(), comparison, constant.to_bits64() | junk) };
            assert_eq!(got, expected, "{element:?} {comparison:?} {constant:?}");
        }
    }

    const EQUAL: [bool; 6] = [true, false, false, true, false, true];
    const LESS: [bool; 6] = [false, true, true, true, false, false];
    const GREATER: [bool; 6] = [false, true, false, false, true, true];
    const UNORDERED: [bool; 6] = [false, true, false, false, false, false];

    #[test]
    fn values_compare_as_their_type_does() {
        check(-0.0f32, 0.0, EQUAL);
        check(f64::NAN, f64::NAN, UNORDERED);
        check(1.0f64, f64::INFINITY, LESS);
        check(f16::from_f32(-1.0), f16::from_f32(1.0), LESS);
        check(f16::NAN, f16::ONE, UNORDERED);
        check(bf16::from_f32(3.0), bf16::from_f32(-3.0), GREATER);
        check(-1i8, 1, LESS);
        check(-1i16, 1, LESS);
        check(i32::MIN, i32::MAX, LESS);
        check(-1i64, 0, LESS);
        check(255u8, 1, GREATER);
        check(0x8000u16, 0x7fff, GREATER);
        check(u32::MAX, 1, GREATER);
        check(u64::MAX, u64::MAX, EQUAL);
        check(false, true, LESS);
        check(true, true, EQUAL);
    }

    #[test]
    fn any_byte_but_zero_is_true_and_opaque_types_only_equal() {
        let byte = 7u8;
        // SAFETY: one byte is an element of either type.
        unsafe {
            assert!(holds(DType::Bool, &raw const byte, Comparison::Eq, 1));
            assert!(holds(DType::F8E4M3, &raw const byte, Comparison::Eq, 7));
            assert!(holds(DType::F8E4M3, &raw const byte, Comparison::Ne, 8));
            assert!(!holds(DType::F8E4M3, &raw const byte, Comparison::Lt, 8));
        }
    }
}
