//! Experts of a checkpoint: stacked as one tensor per matrix, or one by one.

use std::collections::BTreeMap;

use mlx_core::experts::{BiasedStack, StackParts};

use super::{LoadError, Result, Tensor, Weights, checkpoint_error};

impl Weights {
    /// One matrix of `n` experts, `[n, out, in]`, dense or quantized as stored, with optional biases `[n, out]`.
    pub fn experts(
        &self,
        name: &str,
        n: usize,
        [n_in, n_out]: [usize; 2],
        bias: bool,
    ) -> Result<BiasedStack> {
        let w = self.at(name);
        let bias = bias.then(|| w.array("bias", &[n, n_out])).transpose()?;
        let width = w.width();
        if !w.has("scales") {
            let weight = w.take("weight", &[n, n_out, n_in])?;
            let stack = BiasedStack::new(StackParts::Dense(weight.to_array()), bias, width)?;
            weight.forget();
            return Ok(stack);
        }
        let spec = w.stored_spec(n_in)?;
        let groups = [n, n_out, n_in / spec.group_size as usize];
        let words = w.take("weight", &[n, n_out, n_in * spec.bits as usize / 32])?;
        let scales = w.take("scales", &groups)?;
        let biases = match spec.mode {
            mlx_core::quant::QuantMode::Affine => Some(w.take("biases", &groups)?),
            _ => None,
        };
        let parts = StackParts::Quantized {
            words: words.to_array(),
            scales: scales.to_array(),
            biases: biases.as_ref().map(Tensor::to_array),
            spec,
        };
        let stack = BiasedStack::new(parts, bias, width)?;
        [&words, &scales].into_iter().chain(&biases).for_each(Tensor::forget);
        Ok(stack)
    }

    /// Stacks what a checkpoint holds one by one: `….{from}.{e}.{old}.weight` becomes `….{to}.{new}.weight`.
    pub fn stacked_experts(self, from: &str, to: &str, names: &[(&str, &str)]) -> Result<Self> {
        let mut found: BTreeMap<String, BTreeMap<usize, Tensor>> = BTreeMap::new();
        let from = format!(".{from}.");
        let stacked_name = |name: &str| {
            let (prefix, rest) = name.split_once(&from)?;
            let (expert, rest) = rest.split_once('.')?;
            let (old, suffix) = rest.split_once('.')?;
            let new = names.iter().find(|(name, _)| *name == old)?.1;
            Some((format!("{prefix}.{to}.{new}.{suffix}"), expert.parse::<usize>().ok()?))
        };
        self.store.tensors.borrow_mut().retain(|name, tensor| match stacked_name(name) {
            Some((stack, expert)) => {
                found.entry(stack).or_default().insert(expert, tensor.clone());
                false
            }
            None => true,
        });
        for (name, parts) in found {
            let gap = parts.keys().enumerate().find(|(i, e)| i != *e).map(|(i, _)| i);
            if let Some(expert) = gap {
                return Err(LoadError::Missing { name: format!("{name} (of expert {expert})") });
            }
            let parts: Vec<Tensor> = parts.into_values().collect();
            let stacked = Tensor::stacked(&parts).ok_or_else(|| checkpoint_error(&name))?;
            self.store.tensors.borrow_mut().insert(name, stacked);
        }
        Ok(self)
    }
}
