//! What a dense panel stores of a weight: a float of some width, or the 8-bit float of a scaled group.

use half::f16;

use crate::kernels::cpu::attention::Storage;
use crate::kernels::cpu::lanes::Lanes;

pub(super) trait Element: Copy + Send + Sync + 'static {
    /// Inputs of a partial sum.
    const PART: usize;
    /// Whether each partial sum has a scale of its own.
    const SCALED: bool;

    /// Times [`UNIT`] where elements are scaled.
    fn widen(self) -> f32;
    /// Sixteen of [`Element::widen`].
    fn load<L: Lanes>(l: L, from: &[Self; 16]) -> L::V;
}

impl<T: Storage> Element for T {
    const PART: usize = 64;
    const SCALED: bool = false;

    #[inline(always)]
    fn widen(self) -> f32 {
        Storage::widen(self)
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; 16]) -> L::V {
        Storage::load(l, from)
    }
}

/// A code of MXFP8: 4 exponent and 3 mantissa bits, without infinities.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct E4m3(pub(super) u8);

/// The bits of a code, moved into a half's place, are `1 / UNIT` of its value: their exponents are biased by 7 and 15.
pub(super) const UNIT: f32 = 256.0;

impl E4m3 {
    /// The bits are those of a number in the half's place, so a matrix notes NaN in the group's scale instead.
    pub(super) fn is_nan(self) -> bool {
        self.0 & 0x7f == 0x7f
    }

    #[inline(always)]
    fn half(self) -> f16 {
        let bits = u16::from(self.0);
        f16::from_bits((bits & 0x80) << 8 | (bits & 0x7f) << 7)
    }
}

impl Element for E4m3 {
    const PART: usize = 32;
    const SCALED: bool = true;

    #[inline(always)]
    fn widen(self) -> f32 {
        self.half().to_f32()
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; 16]) -> L::V {
        l.load_f16(&from.map(Self::half))
    }
}
