//! A weight in the layout of whichever kernel multiplies it.

use super::dense::DMatrix;
use super::pack::QMatrix;

pub enum Matrix {
    Quantized(QMatrix),
    Dense(DMatrix),
}

impl Matrix {
    pub fn n(&self) -> usize {
        match self {
            Self::Quantized(w) => w.n(),
            Self::Dense(w) => w.n(),
        }
    }

    pub fn k(&self) -> usize {
        match self {
            Self::Quantized(w) => w.k(),
            Self::Dense(w) => w.k(),
        }
    }

    pub fn nbytes(&self) -> usize {
        match self {
            Self::Quantized(w) => w.nbytes(),
            Self::Dense(w) => w.nbytes(),
        }
    }

    /// Writes one row as floats.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Quantized(w) => w.row(row, out),
            Self::Dense(w) => w.row(row, out),
        }
    }
}
