"""Tiny models with made-up weights: their logits and greedy tokens as mlx-lm computes them in float32.

A family is an entry of `FAMILIES`: a base config and, by case name, what each case changes in it.
"""

import copy
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


# The dense families. What they share with Llama in one case each; what they add, one case for each path.
DENSE = LLAMA | {"head_dim": 16}
ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4, "sliding_window": 8}
AFFINE_4 = {"quantization": {"group_size": 32, "bits": 4}}


def dense(model_type: str, cases: dict, **changes) -> tuple[dict, dict]:
    """A family like Llama, with 4-bit matrices in one more case."""
    base = {key: value for key, value in (DENSE | {"model_type": model_type} | changes).items() if value is not ...}
    return base, cases | {"affine_4_32": AFFINE_4}


def tower(text: dict, **changes) -> dict:
    """The config of a model that sees, whose language model is `text`."""
    keys = {key: value for key, value in text.items() if value is not ...}
    return {"model_type": changes.pop("model_type"), "vocab_size": text["vocab_size"], "text_config": keys} | changes


TIED = {"tie_word_embeddings": True}
GEMMA3 = {
    "head_dim": 16,
    "num_hidden_layers": 4,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "query_pre_attn_scalar": 24,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": ...,
}
GEMMA4 = {
    "head_dim": 16,
    "global_head_dim": 24,
    "num_hidden_layers": 8,
    "num_kv_shared_layers": 3,
    "sliding_window": 8,
    "sliding_window_pattern": 3,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": 128,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": ...,
    "rope_theta": ...,
}
GEMMA3_4B = {
    "query_pre_attn_scalar": 16,
    "num_hidden_layers": 7,
    "sliding_window_pattern": 6,
    "rope_theta": 1000000.0,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}
GRANITE = {
    "logits_scaling": 3.0,
    "attention_multiplier": 0.2,
    "embedding_multiplier": 1.7,
    "residual_multiplier": 0.6,
    "attention_bias": False,
    "mlp_bias": False,
}
MINISTRAL3 = {
    "rope_theta": ...,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "llama_4_scaling_beta": 0.3,
        "original_max_position_embeddings": 8,
    },
}
LAYER_NORM = {"rms_norm_eps": ..., "layer_norm_eps": 1e-5}
NO_BIASES = {"attention_bias": False, "mlp_bias": False}
GPT_NEOX = LAYER_NORM | {"rotary_emb_base": 10000, "rotary_pct": 0.5, "num_key_value_heads": ..., "head_dim": ...}
GPT2 = {
    "model_type": "gpt2",
    "vocab_size": 128,
    "n_ctx": 256,
    "n_embd": 64,
    "n_head": 4,
    "n_layer": 3,
    "n_positions": 256,
    "layer_norm_epsilon": 1e-5,
}
PHI3_LONGROPE = {
    "rope_scaling": LONGROPE["rope_scaling"] | {"type": "longrope"},
    "original_max_position_embeddings": 64,
}

# Mixtures of experts.
QWEN3_MOE = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 32,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
}
GLM4_MOE = {
    "moe_intermediate_size": 32,
    "norm_topk_prob": True,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 2,
    "n_routed_experts": 8,
    "routed_scaling_factor": 1.5,
    "num_experts_per_tok": 3,
    "first_k_dense_replace": 1,
    "rope_scaling": None,
    "use_qk_norm": True,
    "attention_bias": False,
    "partial_rotary_factor": 0.5,
}
QWEN2_MOE = {
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 96,
    "head_dim": ...,
}
GPT_OSS = {"num_local_experts": 6, "num_experts_per_tok": 3, "sliding_window": 8, "num_hidden_layers": 4, "intermediate_size": 64}
MXFP4_EXPERTS = {"quantization": {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    | {path: False for i in range(4) for path in [f"model.layers.{i}.self_attn.{p}_proj" for p in "qkvo"] + [f"model.layers.{i}.mlp.router"]}
    | {"model.embed_tokens": False, "lm_head": False}}

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
    "qwen2": dense("qwen2", {"untied": {}, "tied": TIED}),
    "qwen3": dense("qwen3", {"untied": {}, "tied": TIED, "head_dim": {"head_dim": 24}}, max_position_embeddings=2048),
    "gemma2": dense("gemma2", {"plain": {}, "head_scalar": {"query_pre_attn_scalar": 16.0}}, query_pre_attn_scalar=24.0, tie_word_embeddings=...),
    "gemma3_text": dense(
        "gemma3_text",
        {"plain": {}, "scaled": {"rope_scaling": {"type": "linear", "factor": 8.0}}, "head_scalar": GEMMA3_4B},
        **GEMMA3,
    ),
    "gemma3": (tower(DENSE | {"model_type": "gemma3_text"} | GEMMA3, model_type="gemma3"), {"plain": {}}),
    "smollm3": dense(
        "smollm3",
        {"pattern": {}, "tied": TIED, "listed": {"no_rope_layers": [0, 1, 1, 0, 1]}},
        num_hidden_layers=5,
    ),
    "phi3": dense(
        "phi3",
        {
            "plain": {},
            "tied": TIED,
            "longrope": PHI3_LONGROPE,
            "partial": {"partial_rotary_factor": 0.75},
            "unknown_scaling": {"rope_scaling": {"type": "yarn", "long_factor": [1.0]}},
        },
    ),
    "glm": dense("glm", {"tied": TIED, "untied": {}, "bias": {"attention_bias": True}}),
    "glm4": dense(
        "glm4", {"plain": {}, "bias": {"attention_bias": True}}, partial_rotary_factor=0.5, attention_bias=False
    ),
    "olmo2": dense("olmo2", {"untied": {}, "tied": TIED}),
    "olmo3": dense(
        "olmo3",
        {
            "listed": ALTERNATING,
            "default_pattern": {},
            "yarn": rope("yarn", factor=4.0, original_max_position_embeddings=64),
        },
        num_hidden_layers=5,
        sliding_window=8,
    ),
    "cohere": dense(
        "cohere",
        {"plain": {}, "bias": {"attention_bias": True, "layer_norm_bias": True}, "qk_norm": {"use_qk_norm": True}},
        logit_scale=0.5,
        head_dim=...,
        tie_word_embeddings=...,
        **LAYER_NORM,
    ),
    "cohere2": dense(
        "cohere2",
        {"plain": {}, "bias": {"attention_bias": True, "layer_norm_bias": True}},
        num_hidden_layers=5,
        sliding_window=8,
        logit_scale=0.5,
        tie_word_embeddings=...,
        **LAYER_NORM,
    ),
    "ministral3": dense("ministral3", {"untied": {}, "tied": TIED, "sliding": ALTERNATING}, **MINISTRAL3),
    "mistral3": (
        tower(DENSE | MINISTRAL3 | {"model_type": "ministral3"}, model_type="mistral3"),
        {"ministral3": {}, "llama": tower(DENSE | {"model_type": "mistral"}, model_type="mistral3")},
    ),
    "qwen2_vl": (
        tower(DENSE | {"model_type": "qwen2_vl"}, model_type="qwen2_vl"),
        {
            "nested": {},
            "mrope": tower(DENSE | rope("mrope", type="mrope", mrope_section=[2, 3, 3]), model_type="qwen2_5_vl"),
        },
    ),
    "qwen3_vl": (tower(DENSE | {"model_type": "qwen3_vl_text"}, model_type="qwen3_vl"), {"nested": {}}),
    "qwen3_moe": dense(
        "qwen3_moe",
        {"every_layer": {}, "some_layers": {"decoder_sparse_step": 2}, "listed": {"mlp_only_layers": [0]}, "raw": {"norm_topk_prob": False}, "tied": TIED},
        **QWEN3_MOE,
    ),
    "glm4_moe": dense("glm4_moe", {"plain": {}, "groups": {"n_group": 4, "topk_group": 2}, "no_norm": {"use_qk_norm": False, "attention_bias": True, "norm_topk_prob": False, "n_shared_experts": None}}, **GLM4_MOE),
    "qwen2_moe": dense("qwen2_moe", {"shared": {}}, **QWEN2_MOE),
    "mixtral": dense("mixtral", {"untied": {}, "tied": TIED}, num_local_experts=6, num_experts_per_tok=2, head_dim=...),
    "olmoe": dense("olmoe", {"plain": {}, "normed": {"norm_topk_prob": True}, "bias": {"mlp_bias": True, "attention_bias": True}}, num_experts=6, num_experts_per_tok=3, intermediate_size=32),
    "gpt_oss": dense("gpt_oss", {"plain": {}, "yarn": YARN, "listed": {"layer_types": ["full_attention", "sliding_attention"] * 2}, "mxfp4": MXFP4_EXPERTS}, **GPT_OSS),
    "granite": dense(
        "granite",
        {"untied": {}, "tied": TIED, "biases": {"attention_bias": True, "mlp_bias": True}},
        head_dim=...,
        **GRANITE,
    ),
    "exaone4": dense(
        "exaone4",
        {
            "local_and_global": {"sliding_window": 8, "sliding_window_pattern": "LLG"},
            "full": {"sliding_window": None, "sliding_window_pattern": None},
            "tied": TIED | {"sliding_window": 8, "sliding_window_pattern": "LG"},
        },
        rope_scaling=LLAMA3["rope_scaling"],
        sliding_window=8,
        sliding_window_pattern="LLLG",
        num_hidden_layers=4,
    ),
    "seed_oss": dense("seed_oss", {"qkv_bias": {"attention_bias": True}, "o_bias": {"attention_out_bias": True}}),
    "ernie4_5": dense("ernie4_5", {"plain": {}, "bias": {"use_bias": True}}, use_bias=False),
    "internlm3": dense("internlm3", {"plain": {}, "biases": {"bias": True, "qkv_bias": True}}, head_dim=...),
    "starcoder2": dense("starcoder2", {"untied": {}, "tied": TIED}, rms_norm_eps=..., norm_epsilon=1e-4, head_dim=...),
    "gpt2": (GPT2, {"plain": {}, "affine_4_32": AFFINE_4}),
    "gpt_neox": dense("gpt_neox", {"parallel": {}, "sequential": {"use_parallel_residual": False}}, **GPT_NEOX),
    "stablelm": dense(
        "stablelm",
        {
            "sequential": {},
            "parallel": {"use_parallel_residual": True},
            "qk_norm": {"qk_layernorm": True},
            "bias": {"use_qkv_bias": True},
        },
        use_qkv_bias=False,
        partial_rotary_factor=0.5,
        head_dim=...,
        tie_word_embeddings=...,
        **LAYER_NORM,
    ),
    "nemotron": dense(
        "nemotron",
        {"plain": {}, "tied": TIED, "biases": {"attention_bias": True, "mlp_bias": True}},
        hidden_act="relu2",
        norm_eps=1e-5,
        rms_norm_eps=...,
    ),
    "gemma": dense("gemma", {"plain": {}}, tie_word_embeddings=...),
    "minicpm": dense(
        "minicpm", {"untied": {}, "tied": TIED}, dim_model_base=24, scale_depth=1.4, scale_emb=3.0, head_dim=...
    ),
    "helium": dense("helium", {"untied": {}, "bias": {"attention_bias": True, "mlp_bias": True}}, **NO_BIASES),
    "mimo": dense("mimo", {"untied": {}, "tied": TIED}, head_dim=...),
    "telechat3": dense(
        "telechat3",
        {
            "plain": {},
            "biases": {"attention_bias": True, "mlp_bias": True},
            "yarn": rope("telechat3-yarn", factor=4.0, original_max_position_embeddings=64),
        },
    ),
    "phi": dense(
        "phi", {"plain": {}}, partial_rotary_factor=0.5, head_dim=..., tie_word_embeddings=..., **LAYER_NORM
    ),
    "internlm2": dense("internlm2", {"plain": {"bias": False}, "bias": {}, "tied": TIED}, head_dim=...),
    "exaone": dense(
        "exaone",
        {"untied": {}, "tied": TIED, "biases": {"attention_bias": True, "mlp_bias": True}},
        num_hidden_layers=...,
        num_layers=3,
        rms_norm_eps=...,
        layer_norm_epsilon=1e-5,
    ),
    "apertus": dense(
        "apertus", {"untied": {}, "tied": TIED}, post_norm=False, qk_norm=True, head_dim=..., **NO_BIASES
    ),
    "gemma4_text": dense(
        "gemma4_text",
        {
            "borrowing": {},
            "narrow": {"use_double_wide_mlp": False},
            "no_layer_inputs": {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0},
            "k_eq_v": {"attention_k_eq_v": True, "num_global_key_value_heads": 1, "num_key_value_heads": 2},
            "listed": {"layer_types": ["full_attention", "sliding_attention"] * 4, "num_kv_shared_layers": 4},
        },
        **GEMMA4,
    ),
    "gemma4": (
        tower(
            DENSE | {"model_type": "gemma4_text"} | GEMMA4, model_type="gemma4", vision_config=None, audio_config=None
        ),
        {"plain": {}},
    ),
    "hunyuan_v1_dense": dense(
        "hunyuan_v1_dense",
        {
            "untied": {},
            "tied": TIED,
            "no_qk_norm": {"use_qk_norm": False, "attention_bias": True},
            "alpha": {"rope_scaling": {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}},
        },
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
    vocab = config.get("vocab_size") or config["text_config"]["vocab_size"]
    model, stored = build(config)
    prompt = prompt_ids(n_prompt, vocab)
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
    model = Model(Args.from_dict(copy.deepcopy(config)))
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
