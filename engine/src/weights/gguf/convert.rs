//! A file's tensor as a checkpoint's: the order of its rows, and a format that MLX has.

use std::borrow::Cow;
use std::ops::Range;

use mlx_core::Dtype;
use mlx_core::quant::{QuantMode, QuantSpec};

use super::affine::{Packed, is_narrow, pack, spec_of};
use super::blocks::{GgmlType, decode};
use super::model::Fallback;
use super::{GgufError, Result, TensorInfo};
use crate::weights::tensor::Tensor;

/// How a file's tensor differs from the checkpoint's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Layout {
    Same,
    /// So many heads' rows interleave the halves of rotary pairs.
    Permuted(usize),
    /// A norm's whole weight, where the checkpoint holds `weight - 1`.
    WholeNorm,
}

pub(super) struct Converted {
    pub spec: Option<QuantSpec>,
    /// By the last part of their names.
    pub tensors: Vec<(&'static str, Tensor)>,
}

/// What `info` becomes; the work itself is done when the tensors are read.
pub(super) fn convert(
    path: &str,
    info: &TensorInfo,
    layout: Layout,
    fallback: Fallback,
) -> Result<Converted> {
    if let Layout::Permuted(heads) = layout {
        let rows = n_rows(info, layout);
        let divides = heads.checked_mul(2).is_some_and(|n| n != 0 && rows.is_multiple_of(n));
        if !divides {
            let message = format!("{heads} heads do not divide its rows {:?}", info.shape);
            return Err(GgufError::Tensor { name: path.into(), message });
        }
    }
    let plain = match info.kind {
        _ if layout == Layout::WholeNorm => return Ok(one(centred(info))),
        GgmlType::F32 => Some(Dtype::Float32),
        GgmlType::F16 => Some(Dtype::Float16),
        GgmlType::BF16 => Some(Dtype::Bfloat16),
        _ => None,
    };
    let (source, shape) = (info.clone(), info.shape.clone());
    if let Some(dtype) = plain {
        let (file, range) = info.mapping();
        return Ok(one(match layout {
            Layout::Permuted(_) => Tensor::deferred(vec![(shape, dtype)], move || {
                vec![rows(&source, layout, 0..n_rows(&source, layout)).into_owned()]
            })
            .remove(0),
            _ => Tensor::mapped(file.clone(), range, shape, dtype),
        }));
    }
    let Some(spec) = spec_of(info.kind).or((fallback == Fallback::Affine8).then_some(EIGHT_BITS)) else {
        let values = move || vec![halves(&source, layout)];
        return Ok(one(Tensor::deferred(vec![(shape, Dtype::Bfloat16)], values).remove(0)));
    };
    let of_cols = |cols: usize| [&shape[..shape.len() - 1], &[cols]].concat();
    let scales = match spec.mode {
        QuantMode::Affine if is_narrow(info.kind, info.bytes()) => Dtype::Float16,
        QuantMode::Affine => Dtype::Float32,
        _ => Dtype::Uint8,
    };
    let groups = of_cols(info.cols() / spec.group_size as usize);
    let words = of_cols(info.cols() * spec.bits as usize / 32);
    let mut parts = vec![(words, Dtype::Uint32), (groups.clone(), scales)];
    if spec.mode == QuantMode::Affine {
        parts.push((groups, scales));
    }
    let tensors = Tensor::deferred(parts, move || packed(&source, layout, spec, scales));
    Ok(Converted {
        spec: Some(spec),
        tensors: ["weight", "scales", "biases"].into_iter().zip(tensors).collect(),
    })
}

/// For formats that MLX has no counterpart of.
const EIGHT_BITS: QuantSpec = QuantSpec { group_size: 32, bits: 8, mode: QuantMode::Affine };

fn one(tensor: Tensor) -> Converted {
    Converted { spec: None, tensors: vec![("weight", tensor)] }
}

/// Words, scales and biases as bytes.
fn packed(info: &TensorInfo, layout: Layout, spec: QuantSpec, scales: Dtype) -> Vec<Vec<u8>> {
    let groups = info.shape.iter().product::<usize>() / spec.group_size as usize;
    let mut whole = Packed::new(spec, groups);
    let per_row = groups / n_rows(info, layout);
    let shares: Vec<_> = shares(info, layout).into_iter().map(|rows| (rows.len() * per_row, rows)).collect();
    let parts = whole.split(&shares.iter().map(|(groups, _)| *groups).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for (mut part, (_, range)) in parts.into_iter().zip(shares) {
            scope.spawn(move || pack(info.kind, &rows(info, layout, range), &mut part));
        }
    });
    mlx_core::file::forget(info.bytes());
    whole.into_bytes(scales == Dtype::Float16)
}

/// The values as bfloat16.
fn halves(info: &TensorInfo, layout: Layout) -> Vec<u8> {
    let mut out = vec![0; info.shape.iter().product::<usize>() * 2];
    let row = out.len() / n_rows(info, layout);
    let mut rest = out.as_mut_slice();
    std::thread::scope(|scope| {
        for range in shares(info, layout) {
            let part = rest.split_off_mut(..range.len() * row).unwrap_or_default();
            scope.spawn(move || {
                let mut values = vec![0.0; part.len() / 2];
                decode(info.kind, &rows(info, layout, range), &mut values);
                for (to, x) in part.chunks_exact_mut(2).zip(values) {
                    to.copy_from_slice(&half::bf16::from_f32(x).to_le_bytes());
                }
            });
        }
    });
    out
}

/// What a layout orders: a permuted vector's entries, else rows of the last axis.
fn n_rows(info: &TensorInfo, layout: Layout) -> usize {
    match (layout, info.shape.as_slice()) {
        (Layout::Permuted(_), [rows, ..]) => *rows,
        (_, [rows @ .., _]) => rows.iter().product(),
        (_, []) => 1,
    }
}

/// The rows in equal shares, one for each core; of small tensors one share.
fn shares(info: &TensorInfo, layout: Layout) -> Vec<Range<usize>> {
    const SMALL: usize = 1 << 15;
    let rows = n_rows(info, layout);
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get()).min(16);
    let n = if info.bytes().len() < SMALL { 1 } else { cores.min(rows) };
    (0..n).map(|i| rows * i / n..rows * (i + 1) / n).collect()
}

/// Rows `range` in a checkpoint's order. GGUF's llama layout interleaves the halves of each head's rotary pairs:
/// row `2i + j` of a head is the checkpoint's row `j · n / 2 + i`.
fn rows(info: &TensorInfo, layout: Layout, range: Range<usize>) -> Cow<'_, [u8]> {
    let rows = n_rows(info, layout);
    let stride = info.bytes().len() / rows;
    let Layout::Permuted(heads) = layout else {
        return Cow::Borrowed(&info.bytes()[range.start * stride..range.end * stride]);
    };
    let per_head = rows / heads;
    let mut out = Vec::with_capacity(range.len() * stride);
    for row in range {
        let (head, r) = (row / per_head, row % per_head);
        let (j, i) = (r / (per_head / 2), r % (per_head / 2));
        let from = (head * per_head + 2 * i + j) * stride;
        out.extend_from_slice(&info.bytes()[from..from + stride]);
    }
    Cow::Owned(out)
}

/// A norm's weights less one.
fn centred(info: &TensorInfo) -> Tensor {
    let mut values = vec![0.0; info.shape.iter().product()];
    decode(info.kind, info.bytes(), &mut values);
    let bytes = values.iter().flat_map(|x| (x - 1.0).to_le_bytes()).collect();
    Tensor::owned(bytes, info.shape.clone(), Dtype::Float32)
}
