"""Blocks of every stored format with what the Python package `gguf` decodes from them, and a hash of each tensor of
the default model.

    python gguf_blocks.py SmolLM2-135M-Instruct.Q4_1.gguf
"""

import hashlib
import json
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize
from safetensors.numpy import save_file

# Offsets of the float16 scales in a block: random bits there could be infinite.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82], T.Q3_K: [108],
    T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0], T.IQ4_XS: [0], T.MXFP4: [],
}
VALUES = 512


def blocks(kind, rng):
    block, nbytes = GGML_QUANT_SIZES[kind]
    count = VALUES // block
    data = rng.integers(0, 256, (count, nbytes), dtype=np.uint8)
    for at in SCALES[kind]:
        data[:, at : at + 2] = rng.normal(0, 0.1, (count, 1)).astype(np.float16).view(np.uint8)
    if kind == T.MXFP4:
        data[:, 0] = rng.integers(0, 255, count)
    return data


def main():
    here = Path(__file__).parent
    rng = np.random.default_rng(7)
    tensors = {}
    for kind in SCALES:
        data = blocks(kind, rng)
        tensors[f"{kind.name}.blocks"] = data.reshape(-1)
        tensors[f"{kind.name}.values"] = dequantize(data, kind).reshape(-1).astype(np.float32)
    save_file(tensors, here / "gguf_blocks.safetensors")

    hashes = {}
    for tensor in gguf.GGUFReader(sys.argv[1]).tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype("<f4")
        hashes[tensor.name] = hashlib.sha256(values.tobytes()).hexdigest()
    (here / "smollm2" / "gguf.json").write_text(json.dumps(hashes, indent=0) + "\n")


main()
