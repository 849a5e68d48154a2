//! Rotary positions. Angles are computed in float64, so a position of a million turns as exactly as the first.

/// The cosine and sine of every pair at every token.
pub struct Table {
    pairs: usize,
    /// `[tokens, 2 · pairs]`: cosines, then sines.
    turns: Vec<f32>,
}

impl Table {
    /// Pair `i` of token `t` turns by `positions[t] / periods(t)[i]`.
    pub fn new<'p>(
        positions: &[usize],
        pairs: usize,
        periods: impl Fn(usize) -> std::borrow::Cow<'p, [f32]>,
    ) -> Self {
        let mut turns = Vec::with_capacity(positions.len() * 2 * pairs);
        for position in positions {
            let periods = periods(*position);
            let angles = periods.iter().map(|p| *position as f64 / f64::from(*p));
            let (sines, cosines): (Vec<f32>, Vec<f32>) =
                angles.map(|a| a.sin_cos()).map(|(s, c)| (s as f32, c as f32)).unzip();
            turns.extend(cosines);
            turns.extend(sines);
        }
        Self { pairs, turns }
    }

    /// Turns the first `2 · pairs` entries of each head of `x: [heads, d]` at token `t`, multiplied by `mscale`.
    pub fn rotate(&self, x: &mut [f32], d: usize, t: usize, traditional: bool, mscale: f32) {
        let (cosines, sines) = self.turns[2 * self.pairs * t..][..2 * self.pairs].split_at(self.pairs);
        for head in x.chunks_exact_mut(d) {
            let head = &mut head[..2 * self.pairs];
            if mscale != 1.0 {
                head.iter_mut().for_each(|x| *x *= mscale);
            }
            if traditional {
                for ((x, cos), sin) in head.chunks_exact_mut(2).zip(cosines).zip(sines) {
                    (x[0], x[1]) = (x[0] * cos - x[1] * sin, x[0] * sin + x[1] * cos);
                }
            } else {
                let (a, b) = head.split_at_mut(self.pairs);
                for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cosines).zip(sines) {
                    (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    #[test]
    fn far_positions_turn_exactly() {
        let periods = [1.0f32, 7.5];
        let table = Table::new(&[0, 1_000_003], 2, |_| Cow::Borrowed(&periods));
        // cos and sin of 1000003 and of 1000003 / 7.5, reduced by 2π in 60 digits.
        let want = [-0.877_986_5, 0.478_685_4, -0.170_437_84, -0.985_368_43];
        for (traditional, order) in [(false, [0, 2, 1, 3]), (true, [0, 1, 2, 3])] {
            let mut x = [0f32; 5];
            // Each pair starts as (1, 0); the fifth entry stays.
            x[order[0]] = 1.0;
            x[order[2]] = 1.0;
            x[4] = 9.0;
            let start = x;
            table.rotate(&mut x, 5, 0, traditional, 1.0);
            assert_eq!(x, start);
            table.rotate(&mut x, 5, 1, traditional, 1.0);
            let got = order.map(|i| x[i]);
            for (got, want) in got.iter().zip(want) {
                assert!((got - want).abs() < 1e-7, "{got} instead of {want}");
            }
            assert_eq!(x[4], 9.0);
        }
    }

    #[test]
    fn mscale_multiplies_what_turns() {
        let table = Table::new(&[0], 1, |_| Cow::Borrowed(&[1.0]));
        let mut x = [1.0, 2.0, 3.0];
        table.rotate(&mut x, 3, 0, false, 2.0);
        assert_eq!(x, [2.0, 4.0, 3.0]);
    }
}
