"""mlx-lm's side of `peers.py`: `mlx_lm_measure.py FOLDER MEASURE`, one line of JSON like `measure`."""

import json
import sys
import time

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load

# mlx-lm's rates on a CPU do not depend on the length, which would only make the run longer.
MOST_READ, N_DECODED = 128, 24


def main(folder: str, measure: str) -> None:
    name, n = measure.split("@")
    model, _ = load(folder)
    rate = {"decode": decode, "prefill": prefill, "rows": rows, "verify": verify}[name](model, int(n))
    print(json.dumps({"engine": "mlx-lm", "measure": measure, "tokens_per_s": round(rate, 3)}))


def ids(rows: int, n: int) -> mx.array:
    return mx.array([[1000 + i * 7919 % 40_000 for i in range(n)]] * rows)


def forward(model, tokens: mx.array, cache) -> mx.array:
    token = mx.argmax(model(tokens, cache=cache)[:, -1], axis=-1, keepdims=True)
    mx.eval(token, [c.state for c in cache])
    return token


def decode(model, depth: int, n_rows: int = 1) -> float:
    cache = make_prompt_cache(model)
    token = forward(model, ids(n_rows, depth), cache)
    start = time.perf_counter()
    for _ in range(N_DECODED):
        token = forward(model, token, cache)
    return n_rows * N_DECODED / (time.perf_counter() - start)


def rows(model, n_rows: int) -> float:
    return decode(model, 32, n_rows)


def prefill(model, n: int) -> float:
    forward(model, ids(1, 4), make_prompt_cache(model))
    start = time.perf_counter()
    forward(model, ids(1, min(n, MOST_READ)), make_prompt_cache(model))
    return min(n, MOST_READ) / (time.perf_counter() - start)


def verify(model, width: int) -> float:
    cache = make_prompt_cache(model)
    forward(model, ids(1, 32), cache)
    start = time.perf_counter()
    for _ in range(4):
        forward(model, ids(1, width), cache)
    return 4 * width / (time.perf_counter() - start)


main(*sys.argv[1:])
