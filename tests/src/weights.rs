//! Weights as a pure function of a tensor's name and shape: the Rust half of `goldens/weights.py`, bit for bit.
//! `goldens/README.md` defines the formula.

/// Row-major float32 values of the tensor `name`.
pub fn tensor(name: &str, shape: &[usize]) -> Vec<f32> {
    let n = shape.iter().product();
    let u = (0..n).map(|i| uniform(name, i));
    if name.contains("norm") || name.contains("scalar") {
        return u.map(|u| 1.0 + 0.1 * u).collect();
    }
    match shape {
        [_, .., last] => {
            let scale = (1.0 / (*last as f64).sqrt()) as f32;
            u.map(|u| u * scale).collect()
        }
        _ => u.map(|u| 0.1 * u).collect(),
    }
}

/// Element `i` of the stream that belongs to `name`, in [-1, 1).
pub fn uniform(name: &str, i: usize) -> f32 {
    let state = fnv1a(name.as_bytes()).wrapping_add((i as u64).wrapping_mul(GOLDEN_RATIO));
    (splitmix(state) >> 40) as f32 * 2f32.powi(-23) - 1.0
}

const GOLDEN_RATIO: u64 = 0x9E37_79B9_7F4A_7C15;

/// FNV-1a, 64 bits.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325, |state, byte| (state ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

/// The output of SplitMix64 (Steele, Lea and Flood, 2014) for the state before its step.
fn splitmix(state: u64) -> u64 {
    let z = state.wrapping_add(GOLDEN_RATIO);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that `goldens/weights.py` gives.
    #[test]
    fn the_formula_is_the_one_of_the_goldens() {
        let check = |name: &str, shape: &[usize], bits: &[u32]| {
            let got: Vec<u32> = tensor(name, shape).iter().take(bits.len()).map(|x| x.to_bits()).collect();
            assert_eq!(got, bits, "{name}");
        };
        check("model.embed_tokens.weight", &[4, 72], &[0xBCF8_8594, 0xBD2D_C2D2, 0x3B4D_3771, 0xBD72_DCFF]);
        check("model.norm.weight", &[8], &[0x3F68_E490, 0x3F6D_74D6, 0x3F7A_FC3E, 0x3F83_997C]);
        check(
            "model.layers.0.self_attn.q_proj.bias",
            &[8],
            &[0x3D14_CCE3, 0x3C7B_2C4D, 0xBDB9_56C8, 0xBD2D_E147],
        );
    }
}
