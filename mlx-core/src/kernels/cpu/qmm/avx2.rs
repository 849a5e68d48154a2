//! AVX2: products of bytes in pairs, widened in two steps. A panel is done in two halves of 8 rows.

use std::arch::x86_64::*;

use super::super::pack::{FP4_CODES, ROWS, ScaleKind, chunk, scale_bias};
use super::{Tile, dispatch};

/// # Safety
/// The machine must have AVX2, FMA and F16C, and the tile's pointers must lead to a panel, to its activations
/// and to its output.
pub(super) unsafe fn tile(t: &Tile<'_>) {
    // SAFETY: the caller's promise.
    unsafe { dispatch!(t) }
}

/// A chunk's codes of half a panel, as vectors of 8 rows by 4 inputs.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack<const BITS: usize, const FP4: bool>(
    p: *const u8,
    half: usize,
    vectors: usize,
    w: &mut [__m256i; 8],
) {
    // SAFETY: the chunk has `BITS · vectors / 8` words of 16 rows.
    let word = |j: usize| unsafe { _mm256_loadu_si256(p.add(j * 64 + half * 32).cast()) };
    if BITS == 8 {
        for (j, w) in w.iter_mut().enumerate().take(vectors) {
            *w = word(j);
        }
        return;
    }
    let mut at = 0;
    let mut shift = 0;
    if BITS & 4 != 0 {
        let low = _mm256_set1_epi8(15);
        for j in 0..vectors / 2 {
            let v = word(j);
            w[2 * j] = _mm256_and_si256(v, low);
            w[2 * j + 1] = _mm256_and_si256(_mm256_srli_epi32::<4>(v), low);
        }
        at = vectors / 2;
        shift = 4;
    }
    if BITS & 2 != 0 {
        let low = _mm256_set1_epi8(3);
        for (j, w) in w.iter_mut().enumerate().take(vectors) {
            let v = _mm256_srl_epi32(word(at + j / 4), _mm_cvtsi32_si128((j % 4 * 2) as i32));
            let v = _mm256_and_si256(v, low);
            *w = if shift == 0 { v } else { _mm256_or_si256(*w, _mm256_slli_epi32::<4>(v)) };
        }
        at += vectors.div_ceil(4);
        shift += 2;
    }
    if BITS & 1 != 0 {
        let low = _mm256_set1_epi8(1);
        for (j, w) in w.iter_mut().enumerate().take(vectors) {
            let v = _mm256_srl_epi32(word(at), _mm_cvtsi32_si128(j as i32));
            let v = _mm256_sll_epi32(_mm256_and_si256(v, low), _mm_cvtsi32_si128(shift));
            *w = _mm256_or_si256(*w, v);
        }
    }
    if FP4 {
        // SAFETY: the table has 16 bytes.
        let table = unsafe { _mm256_broadcastsi128_si256(_mm_loadu_si128(FP4_CODES.as_ptr().cast())) };
        for w in w.iter_mut().take(vectors) {
            *w = _mm256_shuffle_epi8(table, *w);
        }
    }
}

/// Scales and biases of 8 of the 16 rows.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn scales(t: &Tile<'_>, p: *const u8, half: usize) -> (__m256, __m256) {
    // SAFETY: the block ends with the scales of its kind.
    unsafe {
        let get = |p: *const u8| match t.w.kind {
            ScaleKind::F32 => _mm256_loadu_ps(p.add(half * 32).cast()),
            ScaleKind::Bf16 => {
                let v = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.add(half * 16).cast()));
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v))
            }
            _ => _mm256_cvtph_ps(_mm_loadu_si128(p.add(half * 16).cast())),
        };
        match t.w.kind {
            ScaleKind::F32 => return (get(p), get(p.add(64))),
            ScaleKind::Bf16 | ScaleKind::F16 => return (get(p), get(p.add(32))),
            ScaleKind::E8m0 | ScaleKind::E4m3 => {}
        }
        let bytes = std::slice::from_raw_parts(p, ROWS);
        let pairs: [(f32, f32); 8] = std::array::from_fn(|i| scale_bias(t.w.kind, bytes, half * 8 + i));
        let (scales, biases) = (pairs.map(|p| p.0), pairs.map(|p| p.1));
        (_mm256_loadu_ps(scales.as_ptr()), _mm256_loadu_ps(biases.as_ptr()))
    }
}

/// A chunk's inputs against 8 rows. Codes are at most 24, so eight sums of two products fit in 16 bits only up
/// to 15; larger codes come in two parts of at most 15.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dot(w: &[__m256i; 8], vectors: usize, x: *const i32) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for (j, w) in w.iter().enumerate().take(vectors) {
        // SAFETY: four inputs of the chunk.
        let x = unsafe { _mm256_set1_epi32(x.add(j).read_unaligned()) };
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(*w, x));
    }
    _mm256_madd_epi16(sum, _mm256_set1_epi16(1))
}

/// Adds the dots of all planes, shifted left by SHIFT.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn dots<const R: usize, const PLANES: usize, const SHIFT: i32>(
    (group, vectors): (usize, usize),
    sums: &mut [__m256i; R],
    top: &mut [__m256i; R],
    w: &[__m256i; 8],
    xp: *const u8,
) {
    for m in 0..R {
        // SAFETY: row `m` of the tile, and its planes.
        unsafe {
            let x = xp.add(m * PLANES * group).cast::<i32>();
            let mut d = dot(w, vectors, x);
            if PLANES == 3 {
                top[m] = _mm256_add_epi32(top[m], _mm256_slli_epi32::<SHIFT>(d));
                d = dot(w, vectors, x.add(group / 4));
            }
            if PLANES >= 2 {
                let low = dot(w, vectors, x.add((PLANES - 1) * group / 4));
                d = _mm256_add_epi32(_mm256_slli_epi32::<8>(d), low);
            }
            sums[m] = _mm256_add_epi32(sums[m], _mm256_slli_epi32::<SHIFT>(d));
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn kernel<const R: usize, const BITS: usize, const FP4: bool, const PLANES: usize>(t: &Tile<'_>) {
    let group = t.x.group;
    let chunk = if FP4 { chunk(group) } else { 32 };
    let size = (group, chunk / 4);
    let codes = group * BITS * 2;
    let x_block = R * (PLANES * group + 8);
    let low = _mm256_set1_epi8(15);
    for half in 0..2 {
        let (mut wp, mut xp) = (t.weights, t.acts);
        let mut acc = [_mm256_setzero_ps(); R];
        for _ in 0..t.w.k / group {
            let mut sums = [_mm256_setzero_si256(); R];
            let mut top = [_mm256_setzero_si256(); R];
            for c in 0..group / chunk {
                let mut w = [_mm256_setzero_si256(); 8];
                // SAFETY: chunk `c` of the block and of the activations.
                unsafe {
                    let (p, x) = (wp.add(c * chunk * BITS * 2), xp.add(c * chunk));
                    unpack::<BITS, FP4>(p, half, chunk / 4, &mut w);
                    if BITS <= 4 && !FP4 {
                        dots::<R, PLANES, 0>(size, &mut sums, &mut top, &w, x);
                    } else {
                        let high = w.map(|w| _mm256_and_si256(_mm256_srli_epi32::<4>(w), low));
                        let low = w.map(|w| _mm256_and_si256(w, low));
                        dots::<R, PLANES, 0>(size, &mut sums, &mut top, &low, x);
                        dots::<R, PLANES, 4>(size, &mut sums, &mut top, &high, x);
                    }
                }
            }
            // SAFETY: scales follow the codes, sums follow the activations' codes.
            unsafe {
                let (scale, bias) = scales(t, wp.add(codes), half);
                let floats = xp.add(R * PLANES * group).cast::<f32>();
                for m in 0..R {
                    let x_scale = _mm256_set1_ps(floats.add(m).read_unaligned());
                    let sum = _mm256_set1_ps(floats.add(R + m).read_unaligned());
                    let mut dot = _mm256_cvtepi32_ps(sums[m]);
                    if PLANES == 3 {
                        dot = _mm256_fmadd_ps(_mm256_set1_ps(65_536.0), _mm256_cvtepi32_ps(top[m]), dot);
                    }
                    let p = _mm256_fmadd_ps(scale, dot, _mm256_mul_ps(bias, sum));
                    acc[m] = _mm256_fmadd_ps(x_scale, p, acc[m]);
                }
                wp = wp.add(t.w.block);
                xp = xp.add(x_block);
            }
        }
        for (m, acc) in acc.iter().enumerate() {
            let mut lanes = [0f32; 8];
            // SAFETY: eight lanes, and only columns that exist are written.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), *acc);
                for (i, lane) in lanes.iter().enumerate().take(t.columns.saturating_sub(half * 8)) {
                    *t.y.add(m * t.w.n + half * 8 + i) = *lane;
                }
            }
        }
    }
}
