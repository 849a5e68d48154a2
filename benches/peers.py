"""Forerun beside llama.cpp and mlx-lm, on the same weights and threads.

    python3 benches/peers.py [--rounds 5] [--threads 2] [--models q4_1,q8_0,bf16] [--engines ...] [--measures ...]

Fetches and builds the peers once into the user's cache (a venv with mlx-lm, llama.cpp from the source package
of llama-cpp-python), makes the models, runs all engines in turn `rounds` times, a process a measure, and prints
the medians as a table. README.md explains the measures.
"""

import argparse
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
MEASURES = ["decode@32", "prefill@512", "prefill@2048", "rows@8", "verify@1", "verify@4", "verify@16", "decode@4096"]
ENGINES = ["forerun", "llama.cpp", "mlx-lm"]
# At depth 4096 mlx-lm would read its prompt for minutes.
TOO_LONG = {("mlx-lm", "decode@4096")}
PACKAGES = ["mlx[cpu]==0.32.4", "mlx-lm==0.32.2", "gguf==0.19.0", "numpy", "cmake", "ninja"]
LLAMA = "llama-cpp-python==0.3.36"
LLAMA_FLAGS = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"]
LLAMA_FLAGS += ["-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_SERVER=OFF"]
GGUF = "models/smollm2-135m-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    args = arguments()
    peers = Peers(cache() / "peers", args.jobs)
    models = {name: peers.model(name) for name in args.models}
    commands = {
        (model, measure, engine): command(peers, engine, files, measure, args.threads)
        for model, files in models.items()
        for measure in args.measures
        for engine in args.engines
        if (engine, measure) not in TOO_LONG
    }
    results = {key: [] for key in commands}
    for n in range(args.rounds):
        for key, argv in commands.items():
            print(f"\rround {n + 1}/{args.rounds}: {' '.join(key):40}", end="", file=sys.stderr, flush=True)
            results[key].append(run(argv))
    print(file=sys.stderr)
    report(results, args)


def arguments() -> argparse.Namespace:
    names = lambda text: text.split(",")
    parser = argparse.ArgumentParser(description="Forerun beside llama.cpp and mlx-lm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="of the peers' build")
    parser.add_argument("--models", type=names, default=["q4_1", "q8_0", "bf16"])
    parser.add_argument("--engines", type=names, default=ENGINES)
    parser.add_argument("--measures", type=names, default=MEASURES)
    return parser.parse_args()


def cache() -> Path:
    if folder := os.environ.get("FORERUN_CACHE_DIR"):
        return Path(folder)
    xdg = os.environ.get("XDG_CACHE_HOME")
    home = Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    return (Path(xdg) if xdg else home) / "forerun"


class Peers:
    """What the runs need, made at first use below `folder`."""

    def __init__(self, folder: Path, jobs: int):
        self.folder, self.jobs = folder, jobs
        self.python = folder / "venv" / "bin" / "python"
        self.bin = folder / "llama.cpp" / "build" / "bin"
        self.measure = ROOT / "target" / "release" / "measure"
        folder.mkdir(parents=True, exist_ok=True)
        self.venv()
        self.llama()
        cargo = ["cargo", "build", "--release", "-p", "benches", "--bin", "measure", "--target-dir", ROOT / "target"]
        subprocess.run(cargo, cwd=ROOT, check=True)

    def venv(self) -> None:
        done = self.folder / "venv" / "complete"
        if not done.exists():
            subprocess.run([sys.executable, "-m", "venv", self.folder / "venv"], check=True)
            subprocess.run([self.python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
            done.touch()

    def llama(self) -> None:
        if (self.bin / "llama-batched-bench").exists() and (self.bin / "llama-bench").exists():
            return
        tools = self.python.parent
        # pip asks a source package for its metadata before it keeps it; nothing is built for that.
        fetch = [self.python, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", "llama-cpp-python"]
        subprocess.run([*fetch, "-d", self.folder, LLAMA], check=True)
        archive = next(self.folder.glob("llama_cpp_python-*.tar.gz"))
        prefix = f"{archive.name.removesuffix('.tar.gz')}/vendor/llama.cpp/"
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                if member.name.startswith(prefix):
                    member.name = member.name.removeprefix(prefix)
                    tar.extract(member, self.folder / "llama.cpp", filter="data")
        archive.unlink()
        source, env = self.folder / "llama.cpp", os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
        subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", source / "build", *LLAMA_FLAGS], check=True, env=env)
        build = ["cmake", "--build", source / "build", "-j", str(self.jobs), "--target"]
        subprocess.run([*build, "llama-bench", "llama-batched-bench"], check=True, env=env)

    def model(self, name: str) -> dict[str, Path]:
        """The GGUF file of a variant, and the MLX folder of the same weights."""
        original = cache() / GGUF
        if not original.exists():
            generate = ["cargo", "run", "--release", "--", "generate", "--max-tokens", "1"]
            subprocess.run(generate, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        gguf = original if name == "q4_1" else self.folder / f"smollm2-{name}.gguf"
        folder = self.folder / f"smollm2-{name}-mlx"
        if not (gguf.exists() and (folder / "config.json").exists()):
            script = Path(__file__).with_name("variants.py")
            subprocess.run([self.python, script, original, name, gguf, folder], check=True)
        return {"gguf": gguf, "mlx": folder}


def command(peers: Peers, engine: str, files: dict[str, Path], measure: str, threads: int) -> list:
    if engine == "forerun":
        return [peers.measure, files["gguf"], measure, str(threads)]
    if engine == "mlx-lm":
        return [peers.python, Path(__file__).with_name("mlx_lm_measure.py"), files["mlx"], measure]
    name, n = measure.split("@")
    if name == "rows":
        batched = [peers.bin / "llama-batched-bench", "-m", files["gguf"], "-t", str(threads), "-tb", str(threads)]
        return [*batched, "-npp", "32", "-ntg", "64", "-npl", n, "-c", "2048", "--output-format", "jsonl"]
    shape = {
        "decode": ["-p", "0", "-n", "32" if int(n) >= 1024 else "128", "-d", n],
        "prefill": ["-p", n, "-n", "0"],
        "verify": ["-p", n, "-n", "0", "-d", "32"],
    }[name]
    return [peers.bin / "llama-bench", "-m", files["gguf"], "-t", str(threads), "-r", "1", "-o", "jsonl", *shape]


def run(argv: list) -> tuple[float, float]:
    """Tokens per second, and the process's peak memory in MB."""
    with subprocess.Popen([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        output = process.stdout.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if process.returncode or not lines:
        raise SystemExit(f"\n{' '.join(map(str, argv))} failed")
    result = json.loads(lines[-1])
    rate = next(result[key] for key in ("tokens_per_s", "avg_ts", "speed_tg") if key in result)
    return rate, usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def report(results: dict, args: argparse.Namespace) -> None:
    print(f"tokens per second (peak memory in MB), median of {args.rounds}, {args.threads} threads\n")
    others = [engine for engine in args.engines if engine != "forerun"]
    print("| model | measure |" + "".join(f" {e} |" for e in args.engines) + "".join(f" × {e} |" for e in others))
    print("|" + "---|" * (2 + len(args.engines) + len(others)))
    for model in args.models:
        for measure in args.measures:
            rates, cells = {}, []
            for engine in args.engines:
                if runs := results.get((model, measure, engine)):
                    rates[engine] = median(rate for rate, _ in runs)
                    cells.append(f"{rates[engine]:.1f} ({median(peak for _, peak in runs):.0f})")
                else:
                    cells.append("–")
            both = lambda engine: "forerun" in rates and engine in rates
            ratios = [f"{rates['forerun'] / rates[e]:.2f}" if both(e) else "–" for e in others]
            print(f"| {model} | {measure} | " + " | ".join(cells + ratios) + " |")


main()
