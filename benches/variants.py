"""`variants.py ORIGINAL NAME GGUF FOLDER`: the default model in another format, as GGUF and as an MLX folder."""

import sys
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType as Kind
from gguf import GGUFReader, GGUFValueType, GGUFWriter, quants

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "goldens"))
import smollm2

KINDS = {"q8_0": (Kind.Q8_0, 7), "bf16": (Kind.BF16, 32)}


def convert(original: Path, kind: Kind, file_type: int, out: Path) -> None:
    """Decodes every matrix and stores it again as `kind`; everything else is copied."""
    reader = GGUFReader(original)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        if tensor.tensor_type == Kind.F32:
            writer.add_tensor(tensor.name, np.array(tensor.data))
        else:
            values = quants.dequantize(tensor.data, tensor.tensor_type)
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


original, name, gguf, folder = sys.argv[1:]
if name in KINDS:
    convert(Path(original), *KINDS[name], Path(gguf))
smollm2.export(Path(gguf), Path(folder))
