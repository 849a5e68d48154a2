//! Build plans of machines that nobody has at hand, and the packages that they name.

#[path = "../build/plan.rs"]
mod plan;

use std::path::{Path, PathBuf};
use std::process::Command;

use plan::{metal_build, parse_version, Backend, Machine, Mlx, Plan};

fn machine(target: &str, env: &[(&str, &str)]) -> Machine {
    let env = [("HOME", "/home/u")].iter().chain(env).map(|(k, v)| ((*k).into(), (*v).into())).collect();
    Machine { target: target.into(), macos: None, env }
}

fn planned(target: &str, env: &[(&str, &str)]) -> Plan {
    plan::plan(&machine(target, env)).unwrap_or_else(|err| panic!("{target}: {err}"))
}

fn platforms(plan: &Plan) -> &[String] {
    match &plan.mlx {
        Mlx::Wheels { platforms, .. } => platforms,
        Mlx::Given(dir) => panic!("MLX is given in {}", dir.display()),
    }
}

const LINUX: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];
const MAC: &str = "aarch64-apple-darwin";

#[test]
fn linux_takes_the_cpu_unless_told_otherwise() {
    for target in LINUX {
        let arch = target.split('-').next().unwrap();
        let p = planned(target, &[]);
        assert_eq!((p.backend, p.cache.as_path()), (Backend::Cpu, Path::new("/home/u/.cache/forerun")));
        assert_eq!(platforms(&p), [format!("manylinux_2_35_{arch}")]);
        assert_eq!(p.libraries, ["mlx", "stdc++"]);
        assert!(p.must_have.contains(&"lib/libmlx.so"));
        assert!(p.mlx_dir().ends_with(format!("mlx-0.32.4-cpu-{arch}/mlx")));
        for (name, backend) in [("cuda12", Backend::Cuda12), ("cuda13", Backend::Cuda13)] {
            let p = planned(target, &[("FORERUN_BACKEND", name)]);
            assert_eq!(p.backend, backend);
            assert_eq!(platforms(&p)[0], format!("manylinux_2_35_{arch}"));
            assert!(p.mlx_dir().ends_with(format!("mlx-0.32.4-{name}-{arch}/mlx")));
        }
    }
}

#[test]
fn a_mac_takes_metal_built_for_its_system() {
    let p = planned(MAC, &[]);
    assert_eq!((p.backend, p.cache.as_path()), (Backend::Metal, Path::new("/home/u/Library/Caches/forerun")));
    assert_eq!(p.libraries, ["mlx", "c++"]);
    assert!(p.must_have.contains(&"lib/libmlx.dylib") && p.must_have.contains(&"lib/mlx.metallib"));
    let versions = [("14.7.1", 14), ("15.0", 15), ("26.1", 15), ("26.2", 26), ("27.0", 26)];
    for (version, build) in versions {
        assert_eq!(metal_build(parse_version(version)), format!("macosx_{build}_0_arm64"), "{version}");
    }
    assert_eq!(metal_build(None), "macosx_14_0_arm64", "elsewhere, the build that runs everywhere");
    assert_eq!(parse_version("garbage"), None);
}

#[test]
fn overrides_are_taken_in_order() {
    let p = planned(LINUX[0], &[("FORERUN_MLX_DIR", "/opt/mlx"), ("FORERUN_MLXC_DIR", "/src/mlx-c")]);
    assert_eq!((p.mlx, p.mlxc), (Mlx::Given("/opt/mlx".into()), Some(PathBuf::from("/src/mlx-c"))));
    let p = planned(LINUX[0], &[("XDG_CACHE_HOME", "/x"), ("FORERUN_CACHE_DIR", "")]);
    assert_eq!(p.cache, Path::new("/x/forerun"));
    let p = planned(MAC, &[("XDG_CACHE_HOME", "/x"), ("FORERUN_CACHE_DIR", "/c")]);
    assert_eq!(p.cache, Path::new("/c"));
}

#[test]
fn what_cannot_be_built_says_why() {
    let fails = |target: &str, env: &[(&str, &str)], part: &str| {
        let err = plan::plan(&machine(target, env)).expect_err(target);
        assert!(err.contains(part), "{err}");
    };
    fails(LINUX[0], &[("FORERUN_BACKEND", "vulkan")], "cuda13");
    fails(LINUX[0], &[("FORERUN_BACKEND", "metal")], "Apple silicon");
    fails("x86_64-apple-darwin", &[], "Apple silicon");
    fails(MAC, &[("FORERUN_BACKEND", "cpu")], "Metal");
    fails("riscv64gc-unknown-linux-gnu", &[], "riscv64");
    fails("x86_64-pc-windows-msvc", &[], "windows");
    let homeless = Machine { target: LINUX[0].into(), ..Machine::default() };
    assert!(plan::plan(&homeless).unwrap_err().contains("FORERUN_CACHE_DIR"));
}

fn vendor() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../vendor")
}

#[test]
fn every_requirement_is_pinned_by_hash() {
    for backend in Backend::ALL {
        let text = std::fs::read_to_string(vendor().join(backend.requirements())).unwrap();
        let lines: Vec<&str> = text.lines().filter(|l| !l.starts_with('#') && !l.is_empty()).collect();
        assert!(lines[0].starts_with("mlx-") && lines[0].contains("==0.32.4 "), "{}", lines[0]);
        for line in lines {
            let hashes: Vec<&str> = line.split(" --hash=sha256:").skip(1).collect();
            assert!(!hashes.is_empty() && hashes.iter().all(|h| h.len() == 64), "{line}");
        }
    }
}

/// Asks the registry, through pip, what it has under the pinned names; downloads only what is small.
fn report(requirement: &str, platform: &str) -> Option<serde_json::Value> {
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--dry-run", "--no-deps"])
        .args(["--only-binary=:all:", "--report", "-", "--target"])
        .arg(std::env::temp_dir().join("forerun-nothing-is-installed-here"))
        .args(["--platform", platform, requirement])
        .output()
        .ok()?;
    serde_json::from_slice(&output.stdout).ok()
}

#[test]
fn the_registry_has_the_pinned_packages() {
    if report("mlx-cpu==0.32.4", "manylinux_2_35_x86_64").is_none() {
        eprintln!("skipped: the registry cannot be reached");
        return;
    }
    let metal = ["14", "15", "26"].map(|v| format!("macosx_{v}_0_arm64"));
    let linux = ["x86_64", "aarch64"].map(|arch| format!("manylinux_2_35_{arch}"));
    let cases = Backend::ALL.into_iter().flat_map(|backend| match backend {
        Backend::Metal => metal.iter().map(move |p| (backend, p)).collect::<Vec<_>>(),
        _ => linux.iter().map(move |p| (backend, p)).collect(),
    });
    for (backend, platform) in cases {
        let text = std::fs::read_to_string(vendor().join(backend.requirements())).unwrap();
        let line = text.lines().find(|l| l.starts_with("mlx-")).unwrap();
        let name = line.split(' ').next().unwrap();
        let report = report(name, platform).unwrap_or_else(|| panic!("no {name} for {platform}"));
        let hash =
            report["install"][0]["download_info"]["archive_info"]["hashes"]["sha256"].as_str().unwrap();
        assert!(line.contains(hash), "{name} for {platform} has the hash {hash}, which is not pinned");
    }
}

/// The Metal packages hold what the plan links and loads.
#[test]
fn the_metal_packages_hold_what_is_linked() {
    let must_have = planned(MAC, &[]).must_have;
    for version in [14, 15, 26] {
        let folder = std::env::temp_dir().join(format!("forerun-metal-{version}"));
        std::fs::create_dir_all(&folder).unwrap();
        let wheel = folder.join(format!("mlx_metal-0.32.4-py3-none-macosx_{version}_0_arm64.whl"));
        let fetched = wheel.exists()
            || Command::new("python3")
                .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
                .args(["--only-binary=:all:", "--require-hashes", "--platform"])
                .arg(format!("macosx_{version}_0_arm64"))
                .arg("--requirement")
                .arg(vendor().join(Backend::Metal.requirements()))
                .arg("--dest")
                .arg(&folder)
                .status()
                .is_ok_and(|s| s.success());
        if !fetched {
            eprintln!("skipped: the registry cannot be reached");
            return;
        }
        let list = Command::new("python3").args(["-m", "zipfile", "-l"]).arg(&wheel).output().unwrap();
        let list = String::from_utf8_lossy(&list.stdout).into_owned();
        for file in &must_have {
            assert!(
                list.lines().any(|l| l.starts_with(&format!("mlx/{file} "))),
                "macOS {version}: no {file}"
            );
        }
    }
}
