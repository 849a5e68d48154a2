//! What to fetch, compile and link, as a function of the target, the backend and the environment. Pure, so
//! that the plans of machines that nobody has at hand are tested too.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub const MLX_VERSION: &str = "0.32.4";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Cpu,
    Metal,
    Cuda12,
    Cuda13,
}

impl Backend {
    pub const ALL: [Self; 4] = [Self::Cpu, Self::Metal, Self::Cuda12, Self::Cuda13];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Metal => "metal",
            Self::Cuda12 => "cuda12",
            Self::Cuda13 => "cuda13",
        }
    }

    /// The file in `vendor/` that pins its packages.
    pub fn requirements(self) -> &'static str {
        match self {
            Self::Cpu => "mlx-cpu.txt",
            Self::Metal => "mlx-metal.txt",
            Self::Cuda12 => "mlx-cuda-12.txt",
            Self::Cuda13 => "mlx-cuda-13.txt",
        }
    }
}

/// The machine that the build is for, and the one that it runs on.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// A target triple.
    pub target: String,
    /// `sw_vers -productVersion`, where the build runs on macOS.
    pub macos: Option<(u32, u32)>,
    pub env: BTreeMap<String, String>,
}

/// Where MLX comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mlx {
    /// `FORERUN_MLX_DIR`: a folder with `include/` and `lib/`.
    Given(PathBuf),
    /// Packages pinned by a file in `vendor/`, unpacked into a folder of the cache.
    Wheels {
        requirements: &'static str,
        /// pip's platform tags, best first.
        platforms: Vec<String>,
        folder: PathBuf,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    pub backend: Backend,
    pub cache: PathBuf,
    pub mlx: Mlx,
    /// `FORERUN_MLXC_DIR`: mlx-c's sources; otherwise the pinned package's.
    pub mlxc: Option<PathBuf>,
    /// Files that must be in MLX's folder.
    pub must_have: Vec<&'static str>,
    /// Dynamic libraries to link beside mlx-c.
    pub libraries: Vec<&'static str>,
}

impl Plan {
    /// The folder with `include/` and `lib/`.
    pub fn mlx_dir(&self) -> PathBuf {
        match &self.mlx {
            Mlx::Given(dir) => dir.clone(),
            // Every wheel holds the one Python package `mlx`.
            Mlx::Wheels { folder, .. } => folder.join("mlx"),
        }
    }
}

pub fn plan(machine: &Machine) -> Result<Plan, String> {
    let apple = machine.target.ends_with("-apple-darwin");
    let linux = machine.target.contains("-linux-gnu");
    let backend = backend(machine, apple)?;
    match (backend, apple, linux) {
        (Backend::Metal, true, _) if machine.target.starts_with("aarch64") => {}
        (Backend::Metal, ..) => return Err(format!("metal needs Apple silicon, not {}", machine.target)),
        (Backend::Cpu | Backend::Cuda12 | Backend::Cuda13, _, true) => {}
        (Backend::Cpu, true, _) => {
            return Err("no MLX is packaged for macOS without Metal: leave FORERUN_BACKEND out".into());
        }
        _ => return Err(format!("no MLX is packaged for {} with {}", machine.target, backend.name())),
    }
    let var = |name: &str| machine.env.get(name).filter(|v| !v.is_empty());
    let cache = cache(machine, apple)?;
    let mlx = match var("FORERUN_MLX_DIR") {
        Some(dir) => Mlx::Given(dir.into()),
        None => {
            let platforms = platforms(machine, backend)?;
            let build = if apple { format!("-{}", platforms[0]) } else { String::new() };
            let arch = machine.target.split('-').next().unwrap_or_default();
            let folder = cache.join(format!("mlx-{MLX_VERSION}-{}-{arch}{build}", backend.name()));
            Mlx::Wheels { requirements: backend.requirements(), platforms, folder }
        }
    };
    let must_have = match backend {
        Backend::Metal => vec!["include/mlx/mlx.h", "lib/libmlx.dylib", "lib/mlx.metallib"],
        _ => vec!["include/mlx/mlx.h", "lib/libmlx.so"],
    };
    let libraries = if apple { vec!["mlx", "c++"] } else { vec!["mlx", "stdc++"] };
    Ok(Plan { backend, cache, mlx, mlxc: var("FORERUN_MLXC_DIR").map(PathBuf::from), must_have, libraries })
}

fn backend(machine: &Machine, apple: bool) -> Result<Backend, String> {
    match machine.env.get("FORERUN_BACKEND").map(String::as_str) {
        None | Some("") => Ok(if apple { Backend::Metal } else { Backend::Cpu }),
        Some(name) => Backend::ALL.into_iter().find(|b| b.name() == name).ok_or_else(|| {
            format!("FORERUN_BACKEND={name} is not a backend; it is cpu, metal, cuda12 or cuda13")
        }),
    }
}

/// The same rule as the program's own cache.
fn cache(machine: &Machine, apple: bool) -> Result<PathBuf, String> {
    let var = |name: &str| machine.env.get(name).filter(|v| !v.is_empty()).map(Path::new);
    let home = || {
        let missing = "no HOME: set FORERUN_CACHE_DIR to a folder for MLX and compiled libraries";
        var("HOME").ok_or_else(|| missing.to_owned())
    };
    if let Some(dir) = var("FORERUN_CACHE_DIR") {
        return Ok(dir.into());
    }
    Ok(match var("XDG_CACHE_HOME") {
        Some(xdg) => xdg.join("forerun"),
        None if apple => home()?.join("Library/Caches/forerun"),
        None => home()?.join(".cache/forerun"),
    })
}

/// Tags of the packages that run on the target.
fn platforms(machine: &Machine, backend: Backend) -> Result<Vec<String>, String> {
    let arch = machine.target.split('-').next().unwrap_or_default();
    match backend {
        Backend::Metal => Ok(vec![metal_build(machine.macos).to_owned()]),
        Backend::Cpu if matches!(arch, "x86_64" | "aarch64") => Ok(vec![format!("manylinux_2_35_{arch}")]),
        // NVIDIA's own packages are built for older systems.
        Backend::Cuda12 | Backend::Cuda13 if matches!(arch, "x86_64" | "aarch64") => {
            let tags = ["manylinux_2_35", "manylinux_2_27", "manylinux_2_18", "manylinux2014"];
            Ok(tags.map(|tag| format!("{tag}_{arch}")).to_vec())
        }
        _ => Err(format!("no MLX is packaged for {}", machine.target)),
    }
}

/// The Metal build for a system. Only the one for macOS 26.2 and later has the kernels for the matrix units of
/// M5-class chips. When building elsewhere, the one that runs everywhere.
pub fn metal_build(macos: Option<(u32, u32)>) -> &'static str {
    match macos {
        Some(version) if (26, 2) <= version => "macosx_26_0_arm64",
        Some((major, _)) if 15 <= major => "macosx_15_0_arm64",
        _ => "macosx_14_0_arm64",
    }
}

/// `15.3.1` as (15, 3).
pub fn parse_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next().unwrap_or(Some(0))?))
}
