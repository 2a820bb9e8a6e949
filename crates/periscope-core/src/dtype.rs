//! Element types and how a Rust value stands for one.
//!
//! A [`DType`] is data (it is stored in images and compared at submit); an [`Element`] is the Rust type that
//! reads and writes it. `bool` is an [`Element`] stored as one `u8`, but not a [`PodElement`]: a slice of `bool` over
//! memory that a device wrote would be undefined behaviour, so slices of it are of `u8`.
//! The 8-bit and 4-bit floats have no Rust type: they can be copied and viewed, not read as numbers.

use std::fmt;

use bytemuck::Pod;
use half::{bf16, f16};

macro_rules! dtypes {
    ($($variant:ident = $code:literal, $name:literal, $size:literal, $doc:literal;)*) => {
        /// The type of a tensor's elements.
        #[derive(Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DType {
            $(#[doc = $doc] $variant = $code,)*
        }

        impl DType {
            /// Every element type, in the order of their codes.
            pub const ALL: &'static [DType] = &[$(DType::$variant),*];

            /// Bytes of one element.
            #[must_use]
            #[inline]
            pub const fn size_bytes(self) -> u64 {
                match self { $(DType::$variant => $size,)* }
            }

            /// The name used in messages and on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(DType::$variant => $name,)* }
            }

            /// The element type with this code, as stored in an image.
            #[must_use]
            pub const fn from_code(code: u8) -> Option<DType> {
                match code { $($code => Some(DType::$variant),)* _ => None }
            }
        }
    };
}

dtypes! {
    F64 = 0, "f64", 8, "IEEE 754 binary64.";
    F32 = 1, "f32", 4, "IEEE 754 binary32.";
    F16 = 2, "f16", 2, "IEEE 754 binary16.";
    BF16 = 3, "bf16", 2, "The upper half of a binary32.";
    I8 = 4, "i8", 1, "Signed 8-bit integer.";
    I16 = 5, "i16", 2, "Signed 16-bit integer.";
    I32 = 6, "i32", 4, "Signed 32-bit integer.";
    I64 = 7, "i64", 8, "Signed 64-bit integer.";
    U8 = 8, "u8", 1, "Unsigned 8-bit integer.";
    U16 = 9, "u16", 2, "Unsigned 16-bit integer.";
    U32 = 10, "u32", 4, "Unsigned 32-bit integer.";
    U64 = 11, "u64", 8, "Unsigned 64-bit integer.";
    Bool = 12, "bool", 1, "Stored as one byte: 0 is false, anything else is true.";
    F8E4M3 = 13, "f8e4m3", 1, "Opaque 8-bit float (OCP E4M3): copied and viewed, not read as a number.";
    F8E5M2 = 14, "f8e5m2", 1, "Opaque 8-bit float (OCP E5M2): copied and viewed, not read as a number.";
    F4E2M1X2 = 15, "f4e2m1x2", 1, "Two opaque 4-bit floats (OCP E2M1) in one byte: copied and viewed, not read as numbers.";
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that stands for one element of a tensor. Sealed: the set is that of [`DType`].
pub trait Element: sealed::Sealed + Copy + PartialEq + fmt::Debug + Send + Sync + 'static {
    /// The element type that this Rust type reads and writes.
    const DTYPE: DType;
    /// What lies in memory: as wide as the element, and every bit pattern is valid.
    type Stored: Pod + Send + Sync;
    /// The value of what lies in memory.
    fn from_stored(stored: Self::Stored) -> Self;
    /// What to put in memory for this value.
    fn to_stored(self) -> Self::Stored;
    /// The element's bits in the low end of a `u64`, as the untyped interface carries them.
    fn to_bits64(self) -> u64 {
        let mut bits = [0u8; 8];
        let stored = self.to_stored();
        let bytes = bytemuck::bytes_of(&stored);
        bits[..bytes.len()].copy_from_slice(bytes);
        u64::from_le_bytes(bits)
    }
    /// The value whose bits are in the low end of `bits`; the rest is ignored.
    fn from_bits64(bits: u64) -> Self {
        let bits = bits.to_le_bytes();
        Self::from_stored(bytemuck::pod_read_unaligned(&bits[..size_of::<Self::Stored>()]))
    }
}

/// An [`Element`] whose values are what lies in memory, so that slices of it can be handed out. All but `bool`.
pub trait PodElement: Element<Stored = Self> + Pod {}

macro_rules! pod_elements {
    ($($ty:ty => $dtype:ident),* $(,)?) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {
            const DTYPE: DType = DType::$dtype;
            type Stored = $ty;
            #[inline]
            fn from_stored(stored: $ty) -> $ty { stored }
            #[inline]
            fn to_stored(self) -> $ty { self }
        }
        impl PodElement for $ty {}
    )*};
}

pod_elements! {
    f64 => F64, f32 => F32, f16 => F16, bf16 => BF16,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

impl sealed::Sealed for bool {}
impl Element for bool {
    const DTYPE: DType = DType::Bool;
    type Stored = u8;
    #[inline]
    fn from_stored(stored: u8) -> bool {
        stored != 0
    }
    #[inline]
    fn to_stored(self) -> u8 {
        u8::from(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_positions_and_round_trip() {
        for (position, &dtype) in DType::ALL.iter().enumerate() {
            assert_eq!(dtype as usize, position);
            assert_eq!(DType::from_code(dtype as u8), Some(dtype));
        }
        assert_eq!(DType::from_code(DType::ALL.len() as u8), None);
    }

    #[test]
    fn bits_round_trip_at_the_exact_width() {
        assert_eq!(u16::from_bits64(0xdead_beef_0000_1234), 0x1234);
        assert_eq!((-1i8).to_bits64(), 0xff);
        assert_eq!(i64::from_bits64((-5i64).to_bits64()), -5);
        assert_eq!(f32::from_bits64(1.5f32.to_bits64()), 1.5);
        assert_eq!(bf16::from_bits64(bf16::from_f32(2.0).to_bits64()), bf16::from_f32(2.0));
        assert_eq!(true.to_bits64(), 1);
        assert!(bool::from_bits64(0x80));
        assert!(!bool::from_bits64(0x100));
    }

    #[test]
    fn stored_width_is_the_dtype_width() {
        fn check<T: Element>() {
            assert_eq!(size_of::<T::Stored>() as u64, T::DTYPE.size_bytes());
        }
        check::<f64>();
        check::<f32>();
        check::<f16>();
        check::<bf16>();
        check::<i8>();
        check::<i64>();
        check::<bool>();
    }
}
