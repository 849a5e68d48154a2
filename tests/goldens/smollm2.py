"""The default model as mlx-lm runs it: the GGUF written out as an MLX folder, and greedy answers from it.

The export loses nothing: Q4_1 is MLX's affine 4-bit in groups of 32, Q8_0 its affine 8-bit, and the float16
block scales are kept in float32, so mlx-lm's activations are float32 too.
"""

import json
from pathlib import Path

import mlx.core as mx
import numpy as np
from gguf import GGUFReader, GGMLQuantizationType as Kind

# Asked as one user message each, through the model's own chat template.
QUESTIONS = [
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain why the sky is blue in two sentences.",
    "List five fruits.",
    "What is 12 plus 30?",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
    "Give me a recipe for pancakes.",
    "What does a compiler do?",
    "Name three programming languages and one use of each.",
    "Summarize the story of Cinderella.",
    "How do plants make food?",
    "Write a Python function that adds two numbers.",
    "What is the largest planet in the solar system?",
    "Tell me a joke about cats.",
    "Why is exercise good for the heart?",
    "Describe a rainy day in a big city.",
    "What happened in the year 1969?",
    "Write an email asking for a day off.",
    "How many legs does a spider have, and how many does an ant have?",
]

# llama.cpp's names for what an MLX checkpoint calls by the names on the right.
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def export(gguf: Path, folder: Path) -> None:
    """Writes the llama GGUF as an MLX folder: config.json, model.safetensors, tokenizer.json and template."""
    reader = GGUFReader(gguf)
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(reader)
    weights = {}
    for tensor in reader.tensors:
        heads = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
        part = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        weights |= mlx_tensors(tensor, config[heads[part]] if part in heads else None)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    write_tokenizer(reader, folder)


def config_of(reader: GGUFReader) -> dict:
    get = lambda key: reader.fields[key].contents()
    float32 = lambda key: float(np.float32(get(key)))
    kinds = {tensor.tensor_type for tensor in reader.tensors}
    quantization = {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}}
    if Kind.Q4_1 not in kinds:
        quantization = {"group_size": 32, "bits": 8}
    return {
        "model_type": "llama",
        "hidden_size": get("llama.embedding_length"),
        "num_hidden_layers": get("llama.block_count"),
        "intermediate_size": get("llama.feed_forward_length"),
        "num_attention_heads": get("llama.attention.head_count"),
        "num_key_value_heads": get("llama.attention.head_count_kv"),
        "rms_norm_eps": float32("llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": float32("llama.rope.freq_base"),
        "max_position_embeddings": get("llama.context_length"),
        "vocab_size": get("llama.vocab_size"),
        "tie_word_embeddings": True,
        "bos_token_id": get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": get("tokenizer.ggml.eos_token_id"),
    } | ({} if Kind.BF16 in kinds else {"quantization": quantization})


def mlx_tensors(tensor, heads: int | None) -> dict[str, mx.array]:
    path = mlx_path(tensor.name)
    if tensor.tensor_type == Kind.F32:
        return {f"{path}.weight": mx.array(np.array(tensor.data))}
    if tensor.tensor_type == Kind.BF16:
        halves = np.ascontiguousarray(tensor.data).view(np.uint16)
        return {f"{path}.weight": mx.array(unpermute(halves, heads) if heads else halves).view(mx.bfloat16)}
    codes, scales, biases = blocks(tensor)
    if heads:
        codes, scales, biases = (unpermute(x, heads) for x in (codes, scales, biases))
    bits = 8 if tensor.tensor_type == Kind.Q8_0 else 4
    return {
        f"{path}.weight": mx.array(pack(codes, bits)),
        f"{path}.scales": mx.array(scales),
        f"{path}.biases": mx.array(biases),
    }


def mlx_path(name: str) -> str:
    if name.startswith("blk."):
        _, layer, part, _ = name.split(".")
        return f"model.layers.{layer}.{BLOCK_NAMES[part]}"
    return {"token_embd.weight": "model.embed_tokens", "output_norm.weight": "model.norm"}[name]


def blocks(tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes `[out, in]`, scales and biases `[out, in / 32]` of a Q4_1 or Q8_0 matrix."""
    rows = tensor.data.shape[0]
    halves = lambda raw: np.ascontiguousarray(raw).view(np.float16).astype(np.float32)[..., 0]
    if tensor.tensor_type == Kind.Q8_0:
        raw = tensor.data.reshape(rows, -1, 34)
        scales = halves(raw[..., :2])
        codes = (np.ascontiguousarray(raw[..., 2:]).view(np.int8).astype(np.int16) + 128).astype(np.uint32)
        biases = -128.0 * scales
    elif tensor.tensor_type == Kind.Q4_1:
        raw = tensor.data.reshape(rows, -1, 20)
        scales, biases = halves(raw[..., :2]), halves(raw[..., 2:4])
        nibbles = raw[..., 4:]
        # A block's first sixteen codes are the low halves of its bytes.
        codes = np.concatenate([nibbles & 15, nibbles >> 4], axis=-1).astype(np.uint32)
    else:
        raise SystemExit(f"{tensor.name}: {tensor.tensor_type.name} has no exact MLX form here")
    return codes.reshape(rows, -1), scales, biases.astype(np.float32)


def unpermute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Undoes the pairing of rotary rows that llama.cpp's converter does."""
    paired = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows.shape))


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    per_word = 32 // bits
    words = codes.reshape(codes.shape[0], -1, per_word) << (np.arange(per_word, dtype=np.uint32) * bits)
    return np.bitwise_or.reduce(words, axis=-1).astype(np.uint32)


def write_tokenizer(reader: GGUFReader, folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    get = lambda key: reader.fields[f"tokenizer.ggml.{key}"].contents()
    tokens, kinds = get("tokens"), get("token_type")
    merges = [tuple(merge.split(" ")) for merge in get("merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3
    special = [token for token, kind in zip(tokens, kinds) if kind == control]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens[get("bos_token_id")],
        "eos_token": tokens[get("eos_token_id")],
        "clean_up_tokenization_spaces": False,
        "chat_template": reader.fields["tokenizer.chat_template"].contents(),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))


def greedy(folder: Path, out: Path, n_tokens: int = 64) -> None:
    """Runs every question to `n_tokens` or its end, and writes ids, text and the lead of each choice."""
    from mlx_lm import load
    from mlx_lm.generate import generate_step

    model, tokenizer = load(str(folder))
    cases = []
    for question in QUESTIONS:
        prompt = tokenizer.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True)
        tokens, leads, logprobs_of = [], [], []
        for token, logprobs in generate_step(mx.array(prompt), model, max_tokens=n_tokens):
            second, first = np.sort(np.array(logprobs))[-2:]
            tokens.append(int(token))
            leads.append(round(float(first - second), 6))
            logprobs_of.append(round(float(first), 6))
            if token in tokenizer.eos_token_ids:
                break
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        print(f"{question!r}: {text!r}", flush=True)
        cases.append(
            {"question": question, "prompt": prompt, "tokens": tokens, "text": text, "lead": leads}
            | {"logprob": logprobs_of}
        )
    assert cases[0]["text"] == "The capital of France is Paris.", cases[0]["text"]
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(case) for case in cases)
    out.write_text(f"[\n{lines}\n]\n")
