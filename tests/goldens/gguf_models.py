"""What a GGUF of a tiny model holds: names and keys as the `gguf` package has them, and what conversion to GGUF does to
the weights of each architecture. The numbers to compare with are those of the tiny model itself.
"""

import json
from pathlib import Path

import gguf
from gguf.constants import MODEL_ARCH_NAMES, Keys

# Architecture, and the cases to describe.
CASES = {
    "LLAMA": ["llama/untied", "llama/attention_bias", "mistral/head_dim"],
    "QWEN2": ["qwen2/untied", "qwen2/tied"],
    "QWEN3": ["qwen3/head_dim"],
    "GEMMA": ["gemma/plain"],
    "GEMMA2": ["gemma2/head_scalar"],
    "GEMMA3": ["gemma3_text/head_scalar"],
    "PHI3": ["phi3/plain", "phi3/longrope", "phi3/partial"],
    "GRANITE": ["granite/tied"],
    "GLM4": ["glm4/bias"],
    "OLMO2": ["olmo2/untied"],
    "SMOLLM3": ["smollm3/pattern"],
    "STABLELM": ["stablelm/sequential", "stablelm/parallel", "stablelm/qk_norm", "stablelm/bias"],
    "STARCODER2": ["starcoder2/untied", "starcoder2/tied"],
}
PERMUTED = {"LLAMA", "GRANITE", "SMOLLM3"}
WHOLE_NORMS = {"GEMMA", "GEMMA2", "GEMMA3"}


def make(root: Path) -> None:
    folder = root / "gguf"
    folder.mkdir(exist_ok=True)
    for arch, cases in CASES.items():
        for case in cases:
            stored = json.loads((root / "tiny" / case / "case.json").read_text())
            text = json.dumps({"case": case} | describe(arch, stored["config"], stored["tensors"]), indent=1)
            (folder / f"{case.replace('/', '-')}.json").write_text(text + "\n")


def describe(arch: str, config: dict, shapes: dict) -> dict:
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, arch), config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors = {}
    for name, shape in shapes.items():
        path, kind = name.rsplit(".", 1)
        if ".norms." in path:  # a vector for each head, which GGUF stacks
            path, head = path.rsplit(".norms.", 1)
            stacked = tensors.setdefault(f"{names.get_name(path)}.{kind}", {"from": [], "shape": [0, *shape]})
            stacked["from"].append(name)
            stacked["shape"][0] += 1
            continue
        entry = {"from": [name], "shape": shape}
        if arch in PERMUTED and (n := heads.get(path.rsplit(".", 1)[-1])):
            entry["permuted"] = n
        if arch in WHOLE_NORMS and path.endswith("norm"):
            entry["plus"] = 1
        tensors[f"{names.get_name(path)}.{kind}"] = entry
    scaling = config.get("rope_scaling") or {}
    for length in ("long", "short"):
        if factors := scaling.get(f"{length}_factor"):
            tensors[f"rope_factors_{length}.weight"] = {"values": factors, "shape": [len(factors)]}
    return {"metadata": metadata(arch, config), "tensors": tensors}


def metadata(arch: str, config: dict) -> dict:
    name = MODEL_ARCH_NAMES[getattr(gguf.MODEL_ARCH, arch)]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    scaling = config.get("rope_scaling") or {}
    values = {
        Keys.LLM.BLOCK_COUNT: config["num_hidden_layers"],
        Keys.LLM.EMBEDDING_LENGTH: config["hidden_size"],
        Keys.LLM.FEED_FORWARD_LENGTH: config["intermediate_size"],
        Keys.LLM.CONTEXT_LENGTH: config["max_position_embeddings"],
        Keys.Attention.HEAD_COUNT: config["num_attention_heads"],
        Keys.Attention.HEAD_COUNT_KV: config["num_key_value_heads"],
        Keys.Attention.KEY_LENGTH: config.get("head_dim"),
        Keys.Attention.LAYERNORM_RMS_EPS: config.get("rms_norm_eps"),
        Keys.Attention.LAYERNORM_EPS: config.get("layer_norm_eps", config.get("norm_epsilon")),
        Keys.Rope.FREQ_BASE: float(config["rope_theta"]),
        Keys.Rope.DIMENSION_COUNT: int(head_dim * config.get("partial_rotary_factor", 1.0)),
        Keys.Rope.SCALING_ORIG_CTX_LEN: config.get("original_max_position_embeddings"),
        Keys.LLM.ATTN_LOGIT_SOFTCAPPING: 50.0 if arch == "GEMMA2" else None,
        Keys.LLM.FINAL_LOGIT_SOFTCAPPING: 30.0 if arch == "GEMMA2" else None,
        Keys.Attention.SLIDING_WINDOW: config.get("sliding_window"),
        Keys.LLM.LOGIT_SCALE: config.get("logits_scaling"),
        Keys.Attention.SCALE: config.get("attention_multiplier"),
        Keys.LLM.EMBEDDING_SCALE: config.get("embedding_multiplier"),
        Keys.LLM.RESIDUAL_SCALE: config.get("residual_multiplier"),
    }
    if scaling.get("rope_type") == "linear":
        values |= {Keys.Rope.SCALING_TYPE: "linear", Keys.Rope.SCALING_FACTOR: scaling["factor"]}
    known = {key.format(arch=name): value for key, value in values.items() if value is not None}
    return {"general.architecture": name} | known
