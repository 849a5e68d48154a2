//! VNNI: 64 products of a byte and a signed byte in one instruction.

use std::arch::x86_64::*;

use super::super::pack::{FP4_CODES, ScaleKind, chunk, e4m3};
use super::{Tile, dispatch};

/// # Safety
/// The machine must have AVX-512 VNNI, and the tile's pointers must lead to a panel, to its activations and to
/// its output.
pub(super) unsafe fn tile(t: &Tile<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch!(t) }
}

/// A chunk's codes as vectors of 16 rows by 4 inputs; `p` is at its first plane.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn unpack<const BITS: usize, const FP4: bool>(p: *const u8, vectors: usize, w: &mut [__m512i; 8]) {
    // SAFETY: the chunk has `BITS · vectors / 8` words of 16 rows.
    let word = |j: usize| unsafe { _mm512_loadu_si512(p.add(j * 64).cast()) };
    if BITS == 8 {
        for (j, w) in w.iter_mut().enumerate().take(vectors) {
            *w = word(j);
        }
        return;
    }
    let mut at = 0;
    let mut shift = 0;
    if BITS & 4 != 0 {
        let low = _mm512_set1_epi8(15);
        for j in 0..vectors / 2 {
            let v = word(j);
            w[2 * j] = _mm512_and_si512(v, low);
            w[2 * j + 1] = _mm512_and_si512(_mm512_srli_epi32::<4>(v), low);
        }
        at = vectors / 2;
        shift = 4;
    }
    if BITS & 2 != 0 {
        let low = _mm512_set1_epi8(3);
        for (j, w) in w.iter_mut().enumerate().take(vectors) {
            let v = _mm512_srl_epi32(word(at + j / 4), _mm_cvtsi32_si128((j % 4 * 2) as i32));
            let v = _mm512_and_si512(v, low);
            *w = if shift == 0 { v } else { _mm512_or_si512(*w, _mm512_slli_epi32::<4>(v)) };
        }
        at += vectors.div_ceil(4);
        shift += 2;
    }
    if BITS & 1 != 0 {
        let low = _mm512_set1_epi8(1);
        for (j, w) in w.iter_mut().enumerate().take(vectors) {
            let v = _mm512_srl_epi32(word(at), _mm_cvtsi32_si128(j as i32));
            let v = _mm512_sll_epi32(_mm512_and_si512(v, low), _mm_cvtsi32_si128(shift));
            *w = _mm512_or_si512(*w, v);
        }
    }
    if FP4 {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(FP4_CODES.as_ptr().cast())) };
        for w in w.iter_mut().take(vectors) {
            *w = _mm512_shuffle_epi8(table, *w);
        }
    }
}

/// Scales and biases of the 16 rows.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn scales(kind: ScaleKind, p: *const u8) -> (__m512, __m512) {
    // SAFETY: the block ends with the scales of its kind.
    unsafe {
        match kind {
            ScaleKind::F32 => (_mm512_loadu_ps(p.cast()), _mm512_loadu_ps(p.add(64).cast())),
            ScaleKind::Bf16 => {
                let wide = |p: *const u8| {
                    let h = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
                    _mm512_castsi512_ps(_mm512_slli_epi32::<16>(h))
                };
                (wide(p), wide(p.add(32)))
            }
            ScaleKind::F16 => (
                _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())),
                _mm512_cvtph_ps(_mm256_loadu_si256(p.add(32).cast())),
            ),
            ScaleKind::E8m0 | ScaleKind::E4m3 => fp4_scales(kind, p),
        }
    }
}

/// Halved, because FP4 codes are doubled; apart, so that the common kinds stay in the loop.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
unsafe fn fp4_scales(kind: ScaleKind, p: *const u8) -> (__m512, __m512) {
    // SAFETY: the block ends with 16 bytes of scales.
    unsafe {
        let half = _mm512_set1_ps(0.5);
        let scale = if kind == ScaleKind::E8m0 {
            let e = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
            let x = _mm512_castsi512_ps(_mm512_slli_epi32::<23>(e));
            let zero = _mm512_cmpeq_epi32_mask(e, _mm512_setzero_si512());
            let x = _mm512_mask_blend_ps(zero, x, _mm512_set1_ps(f32::from_bits(0x0040_0000)));
            let nan = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
            _mm512_mask_blend_ps(nan, x, _mm512_set1_ps(f32::NAN))
        } else {
            let bytes = std::slice::from_raw_parts(p, 16);
            let values: [f32; 16] = std::array::from_fn(|i| e4m3(bytes[i]));
            _mm512_loadu_ps(values.as_ptr())
        };
        let scale = _mm512_mul_ps(scale, half);
        (scale, _mm512_mul_ps(scale, _mm512_set1_ps(-12.0)))
    }
}

/// 16 columns by R rows, all of K.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn kernel<const R: usize, const BITS: usize, const FP4: bool, const PLANES: usize>(t: &Tile<'_>) {
    let group = t.x.group;
    // A constant where it can be one, so that loops over a chunk unroll.
    let chunk = if FP4 { chunk(group) } else { 32 };
    let vectors = chunk / 4;
    let codes = group * BITS * 2;
    let x_block = R * (PLANES * group + 8);
    let (mut wp, mut xp) = (t.weights, t.acts);
    let mut acc = [_mm512_setzero_ps(); R];
    for _ in 0..t.w.k / group {
        let mut dots = [_mm512_setzero_si512(); R];
        let mut top = [_mm512_setzero_si512(); R];
        for c in 0..group / chunk {
            let mut w = [_mm512_setzero_si512(); 8];
            // SAFETY: chunk `c` of the block, here and below; activations likewise.
            unsafe {
                unpack::<BITS, FP4>(wp.add(c * chunk * BITS * 2), vectors, &mut w);
            }
            for m in 0..R {
                // SAFETY: see above.
                let x = unsafe { xp.add(m * PLANES * group + c * chunk).cast::<i32>() };
                // SAFETY: see above; four inputs of plane `p`.
                let input = |p: usize, j: usize| unsafe {
                    _mm512_set1_epi32(x.add(p * group / 4 + j).read_unaligned())
                };
                let plane = |mut sum: __m512i, p: usize| {
                    for (j, w) in w.iter().enumerate().take(vectors) {
                        sum = _mm512_dpbusd_epi32(sum, *w, input(p, j));
                    }
                    sum
                };
                if PLANES == 1 {
                    dots[m] = plane(dots[m], 0);
                } else {
                    let mut high = _mm512_setzero_si512();
                    let mut low = dots[m];
                    for (j, w) in w.iter().enumerate().take(vectors) {
                        high = _mm512_dpbusd_epi32(high, *w, input(PLANES - 2, j));
                        low = _mm512_dpbusd_epi32(low, *w, input(PLANES - 1, j));
                    }
                    dots[m] = _mm512_add_epi32(low, _mm512_slli_epi32::<8>(high));
                    if PLANES == 3 {
                        top[m] = plane(top[m], 0);
                    }
                }
            }
        }
        // SAFETY: scales follow the codes, sums follow the activations' codes.
        unsafe {
            let (scale, bias) = scales(t.w.kind, wp.add(codes));
            let floats = xp.add(R * PLANES * group).cast::<f32>();
            for m in 0..R {
                let x_scale = _mm512_set1_ps(floats.add(m).read_unaligned());
                let sum = _mm512_set1_ps(floats.add(R + m).read_unaligned());
                let mut dot = _mm512_cvtepi32_ps(dots[m]);
                if PLANES == 3 {
                    dot = _mm512_fmadd_ps(_mm512_set1_ps(65_536.0), _mm512_cvtepi32_ps(top[m]), dot);
                }
                let p = _mm512_fmadd_ps(scale, dot, _mm512_mul_ps(bias, sum));
                acc[m] = _mm512_fmadd_ps(x_scale, p, acc[m]);
            }
            wp = wp.add(t.w.block);
            xp = xp.add(x_block);
        }
    }
    let mask = ((1u32 << t.columns) - 1) as u16;
    for (m, acc) in acc.iter().enumerate() {
        // SAFETY: the mask keeps to the columns that exist.
        unsafe { _mm512_mask_storeu_ps(t.y.add(m * t.w.n), mask, *acc) };
    }
}
