//! What several commands share: finding a model and loading it, with progress on a terminal.

use std::sync::Arc;

use anyhow::{Context, Result};
use clap::ValueEnum;
use engine::hub::{self, ModelFiles};
use engine::{LoadOptions, Loaded};
use mlx_core::Dtype;
use mlx_core::projection::Width;

use crate::{env, progress};

pub fn load(name: &str, files: &ModelFiles, options: &LoadOptions) -> Result<Loaded> {
    let bar = progress::load();
    let report = {
        let bar = bar.clone();
        move |done: usize, total: usize| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
    };
    let loaded = engine::load(files, options, Arc::new(report));
    bar.finish_and_clear();
    loaded.with_context(|| format!("cannot load {name}"))
}

pub fn find(name: &str) -> Result<ModelFiles> {
    let mut bar: Option<(String, indicatif::ProgressBar)> = None;
    let files = hub::resolve(name, &env::hub_settings(), &mut |p| {
        if bar.as_ref().is_none_or(|(file, _)| *file != p.file) {
            bar = Some((p.file.clone(), progress::download(&p.file, p.total)));
        }
        if let Some((_, bar)) = &bar {
            bar.set_position(p.done);
        }
    });
    if let Some((_, bar)) = bar {
        bar.finish_and_clear();
    }
    Ok(files?)
}

#[derive(Clone, Copy, ValueEnum)]
pub enum WidthArg {
    A8,
    A16,
    A24,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum DtypeArg {
    Float32,
    Float16,
    Bfloat16,
}

impl From<WidthArg> for Width {
    fn from(arg: WidthArg) -> Self {
        match arg {
            WidthArg::A8 => Self::A8,
            WidthArg::A16 => Self::A16,
            WidthArg::A24 => Self::A24,
        }
    }
}

impl From<DtypeArg> for Dtype {
    fn from(arg: DtypeArg) -> Self {
        match arg {
            DtypeArg::Float32 => Self::Float32,
            DtypeArg::Float16 => Self::Float16,
            DtypeArg::Bfloat16 => Self::Bfloat16,
        }
    }
}
