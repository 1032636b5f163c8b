"""A Llama checkpoint in bf16 as a GGUF file: `gguf_file CHECKPOINT TOKENIZER.gguf OUT.gguf`.

The tokenizer's fields are those of another GGUF file, its tokens filled up to the checkpoint's
vocabulary. Tensors go from file to file one by one.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.versus.setup.synthetic import filler

NORMAL_TOKEN = 1
ALL_BF16 = 32
"""llama.cpp's number for a file whose matrices are bf16."""
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
IN_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

Words = npt.NDArray[np.uint16]


def gguf_name(name: str) -> str:
    """A tensor's name in GGUF.

    Raises:
        ValueError: it is none of a plain Llama model's.
    """
    if name in WHOLE:
        return WHOLE[name]
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    if match is None or match[2] not in IN_LAYER:
        raise ValueError(f"no GGUF name for the tensor {name}")
    return f"blk.{match[1]}.{IN_LAYER[match[2]]}.weight"


def interleaved(rows: Words, heads: int) -> Words:
    """Query or key rows [heads * head size, in] in llama.cpp's order.

    It rotates neighbours 2i, 2i + 1 of a head where Hugging Face rotates i and i + half.
    """
    halves = rows.reshape(heads, 2, -1, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write(checkpoint: Path, tokenizer: Path, out: Path) -> None:
    """The file; memory holds one tensor at a time."""
    import gguf
    import torch
    from safetensors import safe_open

    config = json.loads((checkpoint / "config.json").read_text())
    kinds = gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(out, "llama")
    _add_sizes(writer, config)
    _add_tokenizer(writer, gguf.GGUFReader(tokenizer), config["vocab_size"])
    with safe_open(checkpoint / "model.safetensors", "pt") as file:
        names = list(file.keys())
        for name in names:
            shape = file.get_slice(name).get_shape()
            # vectors are fp32 in every GGUF file
            kind, size = (kinds.F32, 4) if len(shape) == 1 else (kinds.BF16, 2)
            count = int(np.prod(shape)) * size
            writer.add_tensor_info(gguf_name(name), shape, np.dtype(np.uint16), count, kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for name in names:
            tensor = file.get_tensor(name)
            if tensor.dim() == 1:
                writer.write_tensor_data(tensor.float().numpy())
                continue
            words = tensor.view(torch.uint16).numpy()
            if name.endswith("q_proj.weight"):
                words = interleaved(words, config["num_attention_heads"])
            elif name.endswith("k_proj.weight"):
                words = interleaved(words, config["num_key_value_heads"])
            writer.write_tensor_data(words)
    writer.close()


def _add_sizes(writer: Any, config: dict[str, Any]) -> None:
    rope = config.get("rope_parameters") or config
    writer.add_name("synthetic llama")
    writer.add_file_type(ALL_BF16)
    writer.add_quantization_version(2)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])


def _add_tokenizer(writer: Any, reader: Any, size: int) -> None:
    for name, field in reader.fields.items():
        if not name.startswith("tokenizer."):
            continue
        value = field.contents()
        missing = range(len(value), size) if isinstance(value, list) else ()
        if name == "tokenizer.ggml.tokens":
            value += [filler(token) for token in missing]
        elif name == "tokenizer.ggml.token_type":
            value += [NORMAL_TOKEN for _ in missing]
        writer.add_key_value(name, value, field.types[0], *field.types[1:])


if __name__ == "__main__":
    write(*(Path(argument) for argument in sys.argv[1:4]))
