//! Types that keys and values are stored in.

use half::{bf16, f16};

use crate::kernels::cpu::lanes::Lanes;

pub trait Storage: Copy + Default + Send + Sync + 'static {
    /// The nearest value; one that is too large becomes the largest.
    fn narrow(x: f32) -> Self;
    fn widen(self) -> f32;
    /// Sixteen, widened, as a kernel's lanes.
    fn load<L: Lanes>(l: L, from: &[Self; 16]) -> L::V;
}

impl Storage for f32 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; 16]) -> L::V {
        l.load(from)
    }
}

impl Storage for bf16 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        bf16::from_f32(x)
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; 16]) -> L::V {
        l.load_bf16(from)
    }
}

impl Storage for f16 {
    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let max = f16::MAX.to_f32();
        f16::from_f32(if x.is_finite() { x.clamp(-max, max) } else { x })
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self.to_f32()
    }
    #[inline(always)]
    fn load<L: Lanes>(l: L, from: &[Self; 16]) -> L::V {
        l.load_f16(from)
    }
}
