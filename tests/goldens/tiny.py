"""Tiny models with made-up weights: their logits and greedy tokens as mlx-lm computes them in float32.

A family is an entry of `FAMILIES`: a base config and, by case name, what each case changes in it.
"""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import _get_classes

import weights

N_PROMPT = 28
N_GREEDY = 16
# Long prompts keep the logits of their last positions only.
N_KEPT = 32

LLAMA = {
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
# Wide enough for every group size.
WIDE = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
LONG = {"n_prompt": 220}


def rope(kind: str, **settings) -> dict:
    return {"rope_scaling": {"rope_type": kind, **settings}}


def quantized(bits: int, group_size: int, mode: str | None = None, **by_path) -> dict:
    spec = {"group_size": group_size, "bits": bits} | ({"mode": mode} if mode else {})
    # The embedding of an fp mode would be decoded to bfloat16, and all activations with it.
    dense = {} if mode is None else {"model.embed_tokens": False}
    return WIDE | {"quantization": spec | dense | {path.replace("__", "."): s for path, s in by_path.items()}}


PAIRS = 8  # of a head of 16
LONGROPE = rope(
    "longrope",
    original_max_position_embeddings=64,
    short_factor=[1.0 + 0.05 * i for i in range(PAIRS)],
    long_factor=[1.0 + 0.7 * i for i in range(PAIRS)],
)
LLAMA3 = rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}

FAMILIES = {
    "llama": (
        LLAMA,
        {
            "untied": {},
            "tied": {"tie_word_embeddings": True},
            "smollm": {"tie_word_embeddings": True, "num_attention_heads": 9, "num_key_value_heads": 3}
            | {"hidden_size": 72, "intermediate_size": 192, "rope_theta": 100000.0},
            "attention_bias": {"attention_bias": True},
            "mlp_bias": {"mlp_bias": True},
            "all_biases_tied": {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True},
            "head_dim": {"head_dim": 24},
            "mha": {"num_key_value_heads": 4},
            "mqa": {"num_key_value_heads": 1},
            "no_kv_heads_named": {"num_key_value_heads": None},
            "eps": {"rms_norm_eps": 1e-2},
            "rope_traditional": {"rope_traditional": True},
            "rope_default": rope("default"),
            "rope_linear": {"rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope_dynamic": rope("dynamic", factor=2.0),
            "rope_dynamic_past": rope("dynamic", factor=2.0) | {"max_position_embeddings": 16, "stepwise": True},
            "rope_llama3": LLAMA3,
            "rope_llama3_long": LLAMA3 | LONG,
            "rope_yarn": YARN,
            "rope_yarn_long": YARN | LONG,
            "rope_yarn_betas": rope("yarn", factor=8.0, original_max_position_embeddings=128, beta_fast=16)
            | {"rope_traditional": True},
            "rope_yarn_mscale": rope(
                "yarn", factor=4.0, original_max_position_embeddings=64, mscale=0.7, mscale_all_dim=0.5
            ),
            "rope_longrope": LONGROPE,
            "rope_longrope_long": LONGROPE | LONG,
            "sliding_mixed": MIXED,
            "sliding_mixed_long": MIXED | LONG,
            "affine_4_64": quantized(4, 64),
            "affine_4_32": quantized(4, 32),
            "affine_4_128": quantized(4, 128),
            "affine_2_32": quantized(2, 32),
            "affine_3_64": quantized(3, 64),
            "affine_5_64": quantized(5, 64),
            "affine_6_64": quantized(6, 64),
            "affine_8_32": quantized(8, 32),
            "affine_4_tied": quantized(4, 64) | {"tie_word_embeddings": True},
            "affine_4_biases": quantized(4, 32) | {"attention_bias": True, "mlp_bias": True},
            "mxfp4": quantized(4, 32, "mxfp4"),
            "mxfp8": quantized(8, 32, "mxfp8"),
            "nvfp4": quantized(4, 16, "nvfp4"),
            "overrides": quantized(
                4,
                64,
                model__embed_tokens={"group_size": 32, "bits": 8},
                lm_head={"group_size": 64, "bits": 6},
                model__layers__0__mlp__down_proj=False,
                model__layers__1__self_attn__v_proj={"group_size": 32, "bits": 4, "mode": "mxfp4"},
            ),
        },
    ),
    "mistral": (
        LLAMA | {"model_type": "mistral", "sliding_window": 4096, "rope_theta": 1000000.0},
        {"plain": {}, "head_dim": {"head_dim": 32}, "window_without_layer_types": {"sliding_window": 8}},
    ),
}


def make(root: Path, names: list[str]) -> None:
    """Writes the cases called `family/case`, or all of them when `names` is empty."""
    known = {f"{family}/{case}" for family, (_, cases) in FAMILIES.items() for case in cases}
    if unknown := set(names) - known:
        raise SystemExit(f"no such case: {', '.join(sorted(unknown))}")
    for family, (base, cases) in FAMILIES.items():
        for case, changes in cases.items():
            if not names or f"{family}/{case}" in names:
                make_case(root / "tiny" / family / case, base | changes)


def make_case(folder: Path, config: dict) -> None:
    n_prompt, stepwise = config.pop("n_prompt", N_PROMPT), config.pop("stepwise", False)
    model, stored = build(config)
    prompt = prompt_ids(n_prompt, config["vocab_size"])
    logits, greedy, leads = run(model, prompt, stepwise)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "case.json").write_text(dump({"config": config} | stored))
    mx.save_safetensors(
        str(folder / "expected.safetensors"),
        {
            "prompt": mx.array(prompt, mx.uint32),
            "logits": mx.array(logits[-N_KEPT:] if n_prompt > N_PROMPT else logits),
            "greedy": mx.array(greedy, mx.uint32),
            "lead": mx.array(leads, mx.float32),
        },
    )
    print(f"{folder.parent.name}/{folder.name}: smallest lead {min(leads):.4f}, deviation {logits.std():.3f}")


def build(config: dict) -> tuple[nn.Module, dict]:
    """The model, and which float tensors its checkpoint is made of, with the format of each quantized matrix."""
    Model, Args = _get_classes(config)
    model = Model(Args.from_dict(config))
    shapes = {name: list(value.shape) for name, value in tree_flatten(model.parameters())}
    made = [(name, mx.array(weights.tensor(name, tuple(shape)))) for name, shape in shapes.items()]
    model.load_weights(made, strict=True)
    formats = quantize(model, config["quantization"]) if "quantization" in config else {}
    model.eval()
    mx.eval(model.parameters())
    return model, {"tensors": shapes, "quantized": formats}


def quantize(model: nn.Module, settings: dict) -> dict:
    default = {key: value for key, value in settings.items() if not isinstance(value, (dict, bool))}
    formats = {}

    def choose(path: str, module: nn.Module):
        chosen = settings.get(path, default)
        if not chosen or not hasattr(module, "to_quantized"):
            return False
        formats[path] = {"mode": "affine"} | chosen
        return formats[path]

    nn.quantize(model, class_predicate=choose)
    return formats


def prompt_ids(n: int, vocab: int) -> list[int]:
    return [int(x) % vocab for x in weights.splitmix(np.arange(n, dtype=np.uint64))]


def run(model: nn.Module, prompt: list[int], stepwise: bool) -> tuple[np.ndarray, list[int], list[float]]:
    """Logits of every prompt position, the greedy tokens after it, and by how much each one led."""
    cache = make_prompt_cache(model)
    forward = lambda ids: np.array(model(mx.array([ids]), cache=cache)[0])
    chunks = [[token] for token in prompt] if stepwise else [prompt]
    logits = np.concatenate([forward(chunk) for chunk in chunks])
    assert logits.dtype == np.float32, logits.dtype
    assert np.isfinite(logits).all()
    greedy, leads, last = [], [], logits[-1]
    for _ in range(N_GREEDY):
        second, first = np.sort(last)[-2:]
        greedy.append(int(last.argmax()))
        leads.append(float(first - second))
        last = forward(greedy[-1:])[-1]
    return logits, greedy, leads


def dump(value: dict) -> str:
    """JSON with one line for each tensor and each setting."""
    lines = lambda table: ",\n".join(f"  {json.dumps(key)}: {json.dumps(v)}" for key, v in table.items())
    return "{" + ",".join(f'\n "{key}": {{\n{lines(table)}\n }}' for key, table in value.items()) + "\n}\n"
