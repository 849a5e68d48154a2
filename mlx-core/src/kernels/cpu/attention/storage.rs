//! Types that keys and values are stored in.

use half::{bf16, f16};

pub trait Storage: Copy + Default + Send + Sync + 'static {
    fn narrow(x: f32) -> Self;
    /// Slices of one length.
    fn widen(from: &[Self], to: &mut [f32]);
    fn stored(from: &[Self]) -> Stored<'_>;
}

/// A slice that knows its type.
#[derive(Clone, Copy)]
pub enum Stored<'a> {
    F32(&'a [f32]),
    Bf16(&'a [bf16]),
    F16(&'a [f16]),
}

impl Storage for f32 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    fn stored(from: &[Self]) -> Stored<'_> {
        Stored::F32(from)
    }
}

impl Storage for bf16 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        bf16::from_f32(x)
    }
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
    fn stored(from: &[Self]) -> Stored<'_> {
        Stored::Bf16(from)
    }
}

impl Storage for f16 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        f16::from_f32(x)
    }
    #[inline(always)]
    fn widen(from: &[Self], to: &mut [f32]) {
        for (to, from) in to.iter_mut().zip(from) {
            let bits = u32::from(from.to_bits());
            // Moved into a float's place, the exponent is 112 too small, also that of a denormal.
            let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
            let special = f32::from_bits(0x7f80_0000 | (bits & 0x3ff) << 13);
            let x = if bits & 0x7c00 == 0x7c00 { special } else { magnitude };
            *to = f32::from_bits(x.to_bits() | (bits & 0x8000) << 16);
        }
    }
    fn stored(from: &[Self]) -> Stored<'_> {
        Stored::F16(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_widens_exactly() {
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0f32; all.len()];
        f16::widen(&all, &mut wide);
        for (h, x) in all.iter().zip(wide) {
            assert!(h.to_f32().to_bits() == x.to_bits() || h.is_nan() && x.is_nan(), "{h:?} became {x}");
        }
    }
}
