//! Sixteen float lanes, whatever the registers: a kernel written once over [`Lanes`] gives the same bits on
//! every instruction set, since each method is one IEEE operation (or a fused multiply-add) per lane.

use half::{bf16, f16};

use super::isa::Isa;

/// A kernel that [`dispatch`] compiles for each instruction set. `run` must be `#[inline(always)]`.
pub(super) trait Kernel {
    fn run<L: Lanes>(self, lanes: L);
}

/// Proof that an instruction set is there: a value exists only inside [`dispatch`].
pub trait Lanes: Copy {
    type V: Copy;
    /// Whether there are registers for 16 accumulators of 16 lanes and more.
    const WIDE: bool;

    fn splat(self, x: f32) -> Self::V;
    fn load(self, from: &[f32; 16]) -> Self::V;
    fn store(self, v: Self::V, to: &mut [f32; 16]);
    /// Widened, which is exact.
    fn load_bf16(self, from: &[bf16; 16]) -> Self::V {
        self.load(&from.map(|x| f32::from_bits(u32::from(x.to_bits()) << 16)))
    }
    /// Widened, which is exact.
    fn load_f16(self, from: &[f16; 16]) -> Self::V {
        self.load(&from.map(widen_f16))
    }
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a` where `a > b`, else `b`.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `v`, and zero where `x < bound`.
    fn zero_below(self, x: Self::V, bound: Self::V, v: Self::V) -> Self::V;
    /// `2^n`, from the bits of `n + 1.5 · 2^23`.
    fn power(self, shifted: Self::V) -> Self::V;
    /// Lane `j` of row `i` becomes lane `i` of row `j`.
    fn transpose(self, rows: [Self::V; 16]) -> [Self::V; 16];

    /// 2^x for x ≤ 127, within 2 units in the last place; zero below the normal range; NaN stays NaN.
    #[inline(always)]
    fn exp2(self, x: Self::V) -> Self::V {
        let magic = self.splat(MAGIC);
        let shifted = self.add(x, magic);
        let f = self.sub(x, self.sub(shifted, magic));
        let mut p = self.splat(POWERS[7]);
        for c in POWERS[..7].iter().rev() {
            p = self.fma(p, f, self.splat(*c));
        }
        self.zero_below(x, self.splat(-126.0), self.mul(p, self.power(shifted)))
    }
}

#[inline(always)]
fn widen_f16(x: f16) -> f32 {
    let bits = u32::from(x.to_bits());
    // Moved into a float's place, the exponent is 112 too small, also that of a denormal.
    let magnitude = f32::from_bits((bits & 0x7fff) << 13) * f32::from_bits((112 + 127) << 23);
    let special = f32::from_bits(0x7f80_0000 | (bits & 0x3ff) << 13);
    let x = if bits & 0x7c00 == 0x7c00 { special } else { magnitude };
    f32::from_bits(x.to_bits() | (bits & 0x8000) << 16)
}

/// Adding 1.5 · 2^23 leaves a float's integer part in its low bits, rounded to even.
const MAGIC: f32 = 12_582_912.0;

/// ln(2)^i / i!: the Taylor series of 2^f, exact to rounding on [-1/2, 1/2].
const POWERS: [f32; 8] = [
    1.0,
    std::f32::consts::LN_2,
    0.240_226_5,
    0.055_504_11,
    0.009_618_129,
    0.001_333_355_8,
    0.000_154_035_3,
    0.000_015_252_734,
];

/// The scalar form of [`Lanes::exp2`], with the same bits.
#[inline(always)]
pub(super) fn exp2(x: f32) -> f32 {
    let shifted = x + MAGIC;
    let f = x - (shifted - MAGIC);
    let mut p = POWERS[7];
    for c in POWERS[..7].iter().rev() {
        p = p.mul_add(f, *c);
    }
    if x < -126.0 { 0.0 } else { p * power(shifted) }
}

#[inline(always)]
fn power(shifted: f32) -> f32 {
    f32::from_bits((shifted.to_bits() << 23).wrapping_add(0x3f80_0000))
}

/// Runs the kernel on the instruction set.
///
/// # Panics
/// If this machine lacks it.
pub(super) fn dispatch(isa: Isa, kernel: impl Kernel) {
    assert!(isa.available(), "{isa:?} is not available here");
    match isa {
        // SAFETY: the instruction set was checked right above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::avx512(kernel) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::avx2(kernel) },
        _ => kernel.run(Portable),
    }
}

/// Plain Rust. The compiler makes NEON of it on ARM, where a fused multiply-add needs no feature.
#[derive(Clone, Copy)]
struct Portable;

#[inline(always)]
fn each(a: [f32; 16], b: [f32; 16], f: impl Fn(f32, f32) -> f32) -> [f32; 16] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Lanes for Portable {
    type V = [f32; 16];
    const WIDE: bool = false;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; 16]
    }
    #[inline(always)]
    fn load(self, from: &[f32; 16]) -> Self::V {
        *from
    }
    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; 16]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        each(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn zero_below(self, x: Self::V, bound: Self::V, v: Self::V) -> Self::V {
        std::array::from_fn(|i| if x[i] < bound[i] { 0.0 } else { v[i] })
    }
    #[inline(always)]
    fn power(self, shifted: Self::V) -> Self::V {
        shifted.map(power)
    }
    #[inline(always)]
    fn transpose(self, rows: [Self::V; 16]) -> [Self::V; 16] {
        std::array::from_fn(|j| std::array::from_fn(|i| rows[i][j]))
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use half::{bf16, f16};

    use super::{Kernel, Lanes};

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma")]
    pub(super) fn avx512(kernel: impl Kernel) {
        kernel.run(Avx512(()));
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn avx2(kernel: impl Kernel) {
        kernel.run(Avx2(()));
    }

    #[derive(Clone, Copy)]
    struct Avx512(());
    #[derive(Clone, Copy)]
    struct Avx2(());

    impl Lanes for Avx512 {
        type V = __m512;
        const WIDE: bool = true;

        #[inline(always)]
        fn splat(self, x: f32) -> __m512 {
            // SAFETY: an `Avx512` exists only where the features are enabled; so below.
            unsafe { _mm512_set1_ps(x) }
        }
        #[inline(always)]
        fn load(self, from: &[f32; 16]) -> __m512 {
            // SAFETY: 16 readable floats; unaligned is allowed.
            unsafe { _mm512_loadu_ps(from.as_ptr()) }
        }
        #[inline(always)]
        fn store(self, v: __m512, to: &mut [f32; 16]) {
            // SAFETY: 16 writable floats; unaligned is allowed.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr(), v) }
        }
        #[inline(always)]
        fn load_bf16(self, from: &[bf16; 16]) -> __m512 {
            // SAFETY: 16 readable halves; unaligned is allowed.
            unsafe {
                let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
                _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
            }
        }
        #[inline(always)]
        fn load_f16(self, from: &[f16; 16]) -> __m512 {
            // SAFETY: 16 readable halves; unaligned is allowed.
            unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
        }
        #[inline(always)]
        fn add(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: features.
            unsafe { _mm512_add_ps(a, b) }
        }
        #[inline(always)]
        fn sub(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: features.
            unsafe { _mm512_sub_ps(a, b) }
        }
        #[inline(always)]
        fn mul(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: features.
            unsafe { _mm512_mul_ps(a, b) }
        }
        #[inline(always)]
        fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
            // SAFETY: features.
            unsafe { _mm512_fmadd_ps(a, b, c) }
        }
        #[inline(always)]
        fn max(self, a: __m512, b: __m512) -> __m512 {
            // SAFETY: features.
            unsafe { _mm512_max_ps(a, b) }
        }
        #[inline(always)]
        fn zero_below(self, x: __m512, bound: __m512, v: __m512) -> __m512 {
            // SAFETY: features.
            unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLT_UQ>(x, bound), v) }
        }
        #[inline(always)]
        fn power(self, shifted: __m512) -> __m512 {
            // SAFETY: features.
            unsafe {
                let n = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
                _mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f80_0000)))
            }
        }
        #[inline(always)]
        fn transpose(self, r: [__m512; 16]) -> [__m512; 16] {
            // SAFETY: features.
            unsafe {
                let mut u = r;
                for i in 0..4 {
                    let (a, b) = (
                        _mm512_unpacklo_ps(r[4 * i], r[4 * i + 1]),
                        _mm512_unpackhi_ps(r[4 * i], r[4 * i + 1]),
                    );
                    let (c, d) = (
                        _mm512_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]),
                        _mm512_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]),
                    );
                    u[4 * i] = pair512::<false>(a, c);
                    u[4 * i + 1] = pair512::<true>(a, c);
                    u[4 * i + 2] = pair512::<false>(b, d);
                    u[4 * i + 3] = pair512::<true>(b, d);
                }
                // Quarter q of u[4i + c] holds column 4q + c of rows 4i..4i + 4.
                let mut out = r;
                for c in 0..4 {
                    let even = _mm512_shuffle_f32x4::<0x88>(u[c], u[4 + c]);
                    let odd = _mm512_shuffle_f32x4::<0xdd>(u[c], u[4 + c]);
                    let even2 = _mm512_shuffle_f32x4::<0x88>(u[8 + c], u[12 + c]);
                    let odd2 = _mm512_shuffle_f32x4::<0xdd>(u[8 + c], u[12 + c]);
                    out[c] = _mm512_shuffle_f32x4::<0x88>(even, even2);
                    out[4 + c] = _mm512_shuffle_f32x4::<0x88>(odd, odd2);
                    out[8 + c] = _mm512_shuffle_f32x4::<0xdd>(even, even2);
                    out[12 + c] = _mm512_shuffle_f32x4::<0xdd>(odd, odd2);
                }
                out
            }
        }
    }

    /// The low (or high) pairs of floats of each quarter of `a` and `b`, taken in turn.
    #[inline(always)]
    fn pair512<const HIGH: bool>(a: __m512, b: __m512) -> __m512 {
        // SAFETY: called with vectors of an `Avx512` only.
        unsafe {
            let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
            _mm512_castpd_ps(if HIGH { _mm512_unpackhi_pd(a, b) } else { _mm512_unpacklo_pd(a, b) })
        }
    }

    impl Lanes for Avx2 {
        type V = [__m256; 2];
        const WIDE: bool = false;

        #[inline(always)]
        fn splat(self, x: f32) -> Self::V {
            // SAFETY: an `Avx2` exists only where the features are enabled; so below.
            unsafe { [_mm256_set1_ps(x); 2] }
        }
        #[inline(always)]
        fn load(self, from: &[f32; 16]) -> Self::V {
            // SAFETY: 16 readable floats; unaligned is allowed.
            unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
        }
        #[inline(always)]
        fn store(self, v: Self::V, to: &mut [f32; 16]) {
            // SAFETY: 16 writable floats; unaligned is allowed.
            unsafe {
                _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
                _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
            }
        }
        #[inline(always)]
        fn add(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: features.
            unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
        }
        #[inline(always)]
        fn sub(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: features.
            unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
        }
        #[inline(always)]
        fn mul(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: features.
            unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
        }
        #[inline(always)]
        fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
            // SAFETY: features.
            unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
        }
        #[inline(always)]
        fn max(self, a: Self::V, b: Self::V) -> Self::V {
            // SAFETY: features.
            unsafe { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
        }
        #[inline(always)]
        fn zero_below(self, x: Self::V, bound: Self::V, v: Self::V) -> Self::V {
            let mut out = v;
            for i in 0..2 {
                // SAFETY: features.
                out[i] = unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLT_UQ>(x[i], bound[i]), v[i]) };
            }
            out
        }
        #[inline(always)]
        fn power(self, shifted: Self::V) -> Self::V {
            let mut out = shifted;
            for out in &mut out {
                // SAFETY: features.
                *out = unsafe {
                    let n = _mm256_slli_epi32::<23>(_mm256_castps_si256(*out));
                    _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f80_0000)))
                };
            }
            out
        }
        #[inline(always)]
        fn transpose(self, r: [Self::V; 16]) -> [Self::V; 16] {
            let mut out = r;
            for rows in 0..2 {
                for columns in 0..2 {
                    let part = transpose8(std::array::from_fn(|i| r[8 * rows + i][columns]));
                    for (i, v) in part.into_iter().enumerate() {
                        out[8 * columns + i][rows] = v;
                    }
                }
            }
            out
        }
    }

    #[inline(always)]
    fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
        // SAFETY: called with vectors of an `Avx2` only.
        unsafe {
            let mut u = r;
            for i in 0..2 {
                let (a, b) =
                    (_mm256_unpacklo_ps(r[4 * i], r[4 * i + 1]), _mm256_unpackhi_ps(r[4 * i], r[4 * i + 1]));
                let (c, d) = (
                    _mm256_unpacklo_ps(r[4 * i + 2], r[4 * i + 3]),
                    _mm256_unpackhi_ps(r[4 * i + 2], r[4 * i + 3]),
                );
                u[4 * i] = _mm256_shuffle_ps::<0x44>(a, c);
                u[4 * i + 1] = _mm256_shuffle_ps::<0xee>(a, c);
                u[4 * i + 2] = _mm256_shuffle_ps::<0x44>(b, d);
                u[4 * i + 3] = _mm256_shuffle_ps::<0xee>(b, d);
            }
            // Half h of u[4i + c] holds column 4h + c of rows 4i..4i + 4.
            let mut out = r;
            for c in 0..4 {
                out[c] = _mm256_permute2f128_ps::<0x20>(u[c], u[4 + c]);
                out[4 + c] = _mm256_permute2f128_ps::<0x31>(u[c], u[4 + c]);
            }
            out
        }
    }
}
