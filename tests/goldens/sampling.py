"""What mlx-lm's processors and filters leave of a distribution, before the draw."""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm import sample_utils

import weights

VOCAB = 48
HISTORY = [3, 9, 9, 40, 3, 17, 3, 25, 0, 47, 9, 12, 31, 31, 6, 3, 22, 8, 40, 19, 2, 9, 14, 33, 7, 3]

# How far the made-up logits reach to either side of zero.
FLAT, PLAIN, SHARP = 0.5, 4.0, 12.0

CASES = [
    (PLAIN, {}),
    (PLAIN, {"top_p": 0.5}),
    (PLAIN, {"top_p": 0.9}),
    (FLAT, {"top_p": 0.9}),
    (SHARP, {"top_p": 0.9}),
    (SHARP, {"top_p": 1e-6}),
    (PLAIN, {"top_p": 1.0}),
    (PLAIN, {"top_k": 1}),
    (PLAIN, {"top_k": 7}),
    (FLAT, {"top_k": 40}),
    (PLAIN, {"min_p": 0.05}),
    (FLAT, {"min_p": 0.7}),
    (SHARP, {"min_p": 0.5, "min_tokens_to_keep": 5}),
    (PLAIN, {"min_p": 1.0}),
    (PLAIN, {"xtc_probability": 1.0}),
    (PLAIN, {"xtc_probability": 1.0, "xtc_threshold": 0.05}),
    (PLAIN, {"xtc_probability": 1.0, "xtc_threshold": 0.02, "xtc_special_tokens": [5, 11, 30]}),
    (SHARP, {"xtc_probability": 1.0, "xtc_threshold": 0.5}),
    (FLAT, {"xtc_probability": 1.0, "xtc_threshold": 0.0}),
    (PLAIN, {"top_p": 0.8, "top_k": 5}),
    (PLAIN, {"top_p": 0.95, "min_p": 0.05}),
    (FLAT, {"top_p": 0.6, "min_p": 0.5, "top_k": 9}),
    (PLAIN, {"top_p": 0.9, "min_p": 0.02, "xtc_probability": 1.0, "xtc_threshold": 0.06, "top_k": 6}),
    (PLAIN, {"repetition_penalty": 1.3}),
    (PLAIN, {"repetition_penalty": 0.8, "repetition_context_size": 4}),
    (PLAIN, {"repetition_penalty": 1.5, "repetition_context_size": 100}),
    (PLAIN, {"presence_penalty": 0.7}),
    (PLAIN, {"presence_penalty": -0.5, "presence_context_size": 6}),
    (PLAIN, {"frequency_penalty": 0.4}),
    (PLAIN, {"frequency_penalty": 0.4, "frequency_context_size": 100}),
    (PLAIN, {"logit_bias": {"4": 5.0, "9": -100.0}}),
    (PLAIN, {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.1}),
    (PLAIN, {"logit_bias": {"3": 2.5}, "repetition_penalty": 1.4, "top_p": 0.85, "min_p": 0.03, "top_k": 11}),
    (SHARP, {"frequency_penalty": 1.5, "presence_penalty": 1.0, "top_k": 4, "top_p": 0.99}),
]
PROCESSORS = {"logit_bias"} | {
    f"{kind}_{part}" for kind in ("repetition", "presence", "frequency") for part in ("penalty", "context_size")
}


def make(out: Path) -> None:
    cases = [case(f"sampling.{i}", reach, params) for i, (reach, params) in enumerate(CASES)]
    lines = ",\n".join(json.dumps(case) for case in cases)
    out.write_text(f'{{"history": {HISTORY},\n"cases": [\n{lines}\n]}}\n')
    print(f"{len(cases)} cases")


def case(name: str, reach: float, params: dict) -> dict:
    logits = mx.array(weights.uniform(name, VOCAB) * np.float32(reach))[None]
    settings = {key: value for key, value in params.items() if key in PROCESSORS}
    if "logit_bias" in settings:
        settings["logit_bias"] = {int(token): bias for token, bias in settings["logit_bias"].items()}
    for process in sample_utils.make_logits_processors(**settings):
        logits = process(mx.array(HISTORY), logits)
    logprobs = logits - mx.logsumexp(logits, keepdims=True)
    filtered = np.array(before_draw(logprobs, {k: v for k, v in params.items() if k not in PROCESSORS}))[0]
    return {
        "logits": name,
        "reach": reach,
        "params": params,
        "logprobs": [round(float(x), 6) for x in np.array(logprobs)[0]],
        "kept": [int(i) for i in np.flatnonzero(np.isfinite(filtered))],
    }


def before_draw(logprobs: mx.array, settings: dict) -> mx.array:
    """Runs the sampler with its last step replaced by one that returns what it was about to draw from."""
    draw = sample_utils.categorical_sampling
    sample_utils.categorical_sampling = lambda filtered, temp: filtered
    try:
        return sample_utils.make_sampler(temp=1.0, **settings)(logprobs)
    finally:
        sample_utils.categorical_sampling = draw
