//! Matrices prepared for multiplication, and the few fused forms that blocks are made of.
//!
//! A [`Projection`] is an `[out, in]` weight, dense or quantized, laid out once at load for the device that
//! will use it. Callers give rows of activations and never learn which it is. On a GPU everything here
//! composes MLX ops; on the CPU each call is one primitive over our own kernels.

use std::sync::Arc;

use crate::kernels::cpu::dense::{DMatrix, Elements};
use crate::kernels::cpu::matrix::Matrix;
use crate::kernels::cpu::pack::{QMatrix, Scales};
use crate::kernels::{self, Factor};
use crate::quant::{self, QuantMode, QuantSpec};
use crate::{Array, Dtype, Error, Result, fast};

/// Root mean square norm, arXiv 1910.07467: `x / rms(x) · weight`.
#[derive(Clone)]
pub struct RmsNorm {
    /// `[D]`
    pub weight: Array,
    pub eps: f32,
}

impl RmsNorm {
    /// Normalises the last axis.
    pub fn forward(&self, x: &Array) -> Array {
        match kernels::on_cpu() {
            true => in_f32(x, |x| kernels::rms_norm(x, &self.weight.astype(Dtype::Float32), self.eps)),
            false => fast::rms_norm(x, Some(&self.weight), self.eps),
        }
    }
}

/// Layer norm, arXiv 1607.06450: `(x - mean(x)) / deviation(x) · weight + bias`.
#[derive(Clone)]
pub struct LayerNorm {
    /// `[W]`, as wide as a row.
    pub weight: Option<Array>,
    /// `[W]`
    pub bias: Option<Array>,
    /// Entries that are normalised together: a row, or a head of it.
    pub dim: usize,
    pub eps: f32,
}

impl LayerNorm {
    /// Normalises each `dim` entries of the last axis.
    pub fn forward(&self, x: &Array) -> Array {
        if kernels::on_cpu() {
            let wide = |x: &Array| x.astype(Dtype::Float32);
            let (weight, bias) = (self.weight.as_ref().map(wide), self.bias.as_ref().map(wide));
            return in_f32(x, |x| kernels::layer_norm(x, weight.as_ref(), bias.as_ref(), self.dim, self.eps));
        }
        if x.dim(-1) as usize == self.dim {
            return fast::layer_norm(x, self.weight.as_ref(), self.bias.as_ref(), self.eps);
        }
        let heads = x.reshape(&[-1, self.dim as i32]);
        let y = fast::layer_norm(&heads, None, None, self.eps).reshape(x.shape());
        let y = self.weight.as_ref().map_or(y.clone(), |weight| &y * weight);
        self.bias.as_ref().map_or(y.clone(), |bias| &y + bias)
    }
}

/// The nonlinearity of a gated unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    Silu,
    Gelu,
    /// The tanh approximation.
    GeluTanh,
}

impl Act {
    pub fn forward(self, x: &Array) -> Array {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu => x.gelu(),
            Self::GeluTanh => x.gelu_approx(),
        }
    }
}

/// Digits that the CPU kernels keep of an activation. It is a choice per model: rows stay exact only when
/// prefill and decode agree on it. A GPU ignores it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// One int8 plane: fast, about 2·10⁻³ of the logits' own spread off.
    A8,
    /// Two planes: as fast as memory allows in decode, 50 times closer than bfloat16.
    #[default]
    A16,
    /// Three planes: matches float32.
    A24,
}

/// An `[out, in]` matrix, with an optional bias `[out]`, ready to multiply. Cloning shares it.
#[derive(Clone)]
pub struct Projection {
    weight: Weight,
    bias: Option<Array>,
    width: Width,
    n_in: usize,
    n_out: usize,
}

#[derive(Clone)]
enum Weight {
    Dense(Array),
    Quantized {
        words: Array,
        scales: Array,
        biases: Option<Array>,
        spec: QuantSpec,
    },
    /// In the layout of our CPU kernels.
    Packed(Arc<Matrix>),
}

impl Projection {
    /// `weight: [out, in]` in any float type.
    pub fn dense(weight: Array, bias: Option<Array>, width: Width) -> Result<Self> {
        weight.eval()?;
        let (n_out, n_in) = (weight.dim(0) as usize, weight.dim(1) as usize);
        let weight = match kernels::on_cpu() {
            true => Weight::Packed(Arc::new(Matrix::Dense(pack_dense(&weight)?))),
            false => Weight::Dense(weight),
        };
        Ok(Self { weight, bias, width, n_in, n_out })
    }

    /// `words: [out, in · bits / 32]` uint32, `scales` (and `biases` in affine mode) `[out, in / group_size]`.
    pub fn quantized(
        words: Array,
        scales: Array,
        biases: Option<Array>,
        spec: QuantSpec,
        bias: Option<Array>,
        width: Width,
    ) -> Result<Self> {
        crate::eval([&words, &scales].into_iter().chain(&biases))?;
        let (n_out, n_in) = (words.dim(0) as usize, words.dim(1) as usize * 32 / spec.bits as usize);
        let packed = match kernels::on_cpu() {
            true => pack(spec, (n_out, n_in), &words, &scales, biases.as_ref())?,
            false => None,
        };
        let weight = match packed {
            Some(packed) => Weight::Packed(Arc::new(packed)),
            None => Weight::Quantized { words, scales, biases, spec },
        };
        Ok(Self { weight, bias, width, n_in, n_out })
    }

    /// The packed matrix as one expert's.
    pub(crate) fn into_expert(self, bias: Option<Vec<f32>>) -> Result<kernels::Expert> {
        match self.weight {
            Weight::Packed(weight) => Ok(kernels::Expert { weight, bias }),
            _ => Err(Error::Kernel("experts need a format that the CPU kernels have".into())),
        }
    }

    pub fn n_in(&self) -> usize {
        self.n_in
    }

    pub fn n_out(&self) -> usize {
        self.n_out
    }

    /// Whether the weight is a copy in our kernels' layout.
    pub fn is_packed(&self) -> bool {
        matches!(self.weight, Weight::Packed(_))
    }

    pub fn nbytes(&self) -> usize {
        let weight = match &self.weight {
            Weight::Dense(w) => w.nbytes(),
            Weight::Quantized { words, scales, biases, .. } => {
                words.nbytes() + scales.nbytes() + biases.as_ref().map_or(0, Array::nbytes)
            }
            Weight::Packed(packed) => packed.nbytes(),
        };
        weight + self.bias.as_ref().map_or(0, Array::nbytes)
    }

    /// `x · Wᵀ + bias`: `[N, in] → [N, out]`, in the type of `x`.
    pub fn forward(&self, x: &Array) -> Array {
        let y = match &self.weight {
            Weight::Packed(_) => {
                let [y] = norm_project(x, None, [self]);
                return y;
            }
            Weight::Dense(w) => x.matmul(&w.astype(x.dtype()).transpose(&[1, 0])),
            Weight::Quantized { words, scales, biases, spec } => {
                if kernels::on_cpu() {
                    kernels::count_fallback("quantized_matmul");
                }
                quant::quantized_matmul(x, words, scales, biases.as_ref(), *spec)
            }
        };
        match &self.bias {
            Some(bias) => &y + &bias.astype(y.dtype()),
            None => y,
        }
    }

    /// Rows `ids: [N]` of the matrix, as `dtype`: `[N, in]`.
    pub fn rows(&self, ids: &Array, dtype: Dtype) -> Array {
        match &self.weight {
            Weight::Packed(packed) => kernels::rows(packed, ids).astype(dtype),
            Weight::Dense(w) => w.take(ids, 0).astype(dtype),
            Weight::Quantized { words, scales, biases, spec } => {
                // MLX decodes in the type of the scales, which would round a float16 scale's product.
                let group = |x: &Array| match spec.mode {
                    QuantMode::Affine => x.take(ids, 0).astype(Dtype::Float32),
                    _ => x.take(ids, 0),
                };
                let biases = biases.as_ref().map(group);
                quant::dequantize(&words.take(ids, 0), &group(scales), biases.as_ref(), *spec, dtype)
            }
        }
    }

    /// What our kernels take, if they have the format.
    fn factor(&self) -> Option<Factor<'_>> {
        match &self.weight {
            Weight::Packed(weight) => Some(Factor { weight, bias: self.bias.as_ref(), width: self.width }),
            _ => None,
        }
    }
}

/// Projects `norm(x): [N, in]` by several matrices that share it.
pub fn norm_project<const M: usize>(
    x: &Array,
    norm: Option<&RmsNorm>,
    projections: [&Projection; M],
) -> [Array; M] {
    let factors: Option<Vec<Factor<'_>>> = projections.iter().map(|p| p.factor()).collect();
    if let Some(factors) = factors {
        let ys = kernels::project(&x.astype(Dtype::Float32), norm, &factors, None);
        let ys: Vec<Array> = ys.into_iter().map(|y| y.astype(x.dtype())).collect();
        return ys.try_into().expect("one result for each projection");
    }
    let x = normed(x, norm);
    projections.map(|p| p.forward(&x))
}

/// `act(gate(norm(x))) · up(norm(x))`: `[N, in] → [N, hidden]`.
pub fn glu(x: &Array, norm: Option<&RmsNorm>, gate: &Projection, up: &Projection, act: Act) -> Array {
    if let (Some(gate), Some(up)) = (gate.factor(), up.factor()) {
        return in_f32(x, |x| kernels::glu(x, norm, &gate, &up, act));
    }
    let x = normed(x, norm);
    &act.forward(&gate.forward(&x)) * &up.forward(&x)
}

/// `residual + x · Wᵀ + bias`, all `[N, …]`.
pub fn project_add(x: &Array, projection: &Projection, residual: &Array) -> Array {
    match projection.factor() {
        Some(factor) => {
            let residual = residual.astype(Dtype::Float32);
            in_f32(x, |x| kernels::project(x, None, &[factor], Some(&residual)).remove(0))
        }
        None => residual + &projection.forward(x),
    }
}

/// The largest entry of each row of `logits: [N, V]`: `[N]` uint32 ids, the first of equals, and their
/// log-probabilities, `[N]` float32. A row with NaN has the log-probability NaN.
pub fn pick(logits: &Array) -> [Array; 2] {
    let logits = logits.astype(Dtype::Float32);
    if kernels::on_cpu() {
        return kernels::pick(&logits);
    }
    let ids = logits.argmax(-1, true);
    let logprobs = &logits.take_along_axis(&ids, -1) - &logits.logsumexp(-1, true);
    [ids.reshape(&[-1]), logprobs.reshape(&[-1])]
}

fn normed(x: &Array, norm: Option<&RmsNorm>) -> Array {
    norm.map_or_else(|| x.clone(), |n| n.forward(x))
}

/// Our kernels compute in float32, whatever type activations are kept in.
fn in_f32(x: &Array, f: impl FnOnce(&Array) -> Array) -> Array {
    f(&x.astype(Dtype::Float32)).astype(x.dtype())
}

fn pack_dense(weight: &Array) -> Result<DMatrix> {
    let (n, k) = (weight.dim(0) as usize, weight.dim(1) as usize);
    Ok(match weight.dtype() {
        Dtype::Float16 => DMatrix::pack(n, k, Elements::F16(&weight.host()?)),
        Dtype::Bfloat16 => DMatrix::pack(n, k, Elements::Bf16(&weight.host()?)),
        _ => DMatrix::pack(n, k, Elements::F32(&weight.astype(Dtype::Float32).host()?)),
    })
}

fn pack(
    spec: QuantSpec,
    size: (usize, usize),
    words: &Array,
    scales: &Array,
    biases: Option<&Array>,
) -> Result<Option<Matrix>> {
    let words = words.host::<u32>()?;
    if spec.mode == QuantMode::Mxfp8 {
        let whole = scales.dtype() == Dtype::Uint8 && size.1.is_multiple_of(spec.group_size as usize);
        let scales = if whole { scales.host::<u8>()? } else { return Ok(None) };
        let codes = Elements::Mxfp8 { words: &words, scales: &scales };
        return Ok(Some(Matrix::Dense(DMatrix::pack(size.0, size.1, codes))));
    }
    let packed = match scales.dtype() {
        Dtype::Float32 => {
            let (scales, biases) = (scales.host()?, biases.map(Array::host).transpose()?);
            QMatrix::pack(spec, size, &words, Scales::F32(&scales), biases.as_deref().map(Scales::F32))
        }
        Dtype::Float16 => {
            let (scales, biases) = (scales.host()?, biases.map(Array::host).transpose()?);
            QMatrix::pack(spec, size, &words, Scales::F16(&scales), biases.as_deref().map(Scales::F16))
        }
        Dtype::Bfloat16 => {
            let (scales, biases) = (scales.host()?, biases.map(Array::host).transpose()?);
            QMatrix::pack(spec, size, &words, Scales::Bf16(&scales), biases.as_deref().map(Scales::Bf16))
        }
        Dtype::Uint8 => QMatrix::pack(spec, size, &words, Scales::Bytes(&scales.host()?), None),
        _ => None,
    };
    Ok(packed.map(Matrix::Quantized))
}
