//! Random numbers as a pure function of where they are used.

/// A Gumbel variate for `token` at `position`: adding one to each log-probability and taking the largest
/// draws from the distribution.
pub(super) fn gumbel(seed: u64, position: usize, token: u64) -> f64 {
    -(-uniform(seed, position, token).ln()).ln()
}

/// A uniform number in (0, 1), never either end.
pub(super) fn uniform(seed: u64, position: usize, lane: u64) -> f64 {
    let bits = mix(mix(mix(seed) ^ position as u64) ^ lane);
    ((bits >> 11) as f64 + 0.5) * (1.0 / (1u64 << 53) as f64)
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
