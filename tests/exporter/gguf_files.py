"""Parts of the GGUF files that tests write: blocks of every type, metadata and a tokenizer."""

import gguf
import numpy as np

from ortloom.exporter.sources.gguf_config import INNER, OUTER

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K")
HIDDEN = 256  # K-quants come in blocks of 256
THEIRS = {ours: theirs for theirs, ours in INNER.items()}
OUTER_THEIRS = {ours: theirs for theirs, ours in OUTER.items()}


def stored_name(parameter):
    if parameter in OUTER_THEIRS:
        return OUTER_THEIRS[parameter]
    _, _, layer, *rest, kind = parameter.split(".")
    return f"blk.{layer}.{THEIRS['.'.join(rest)]}.{kind}"


def blocks(kind, shape, rng):
    """Stored bytes [rows, bytes] of random but sane blocks of a type."""
    quant = gguf.GGMLQuantizationType[kind]
    values = (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    if kind in ("F32", "F16"):
        return values.astype({"F32": np.float32, "F16": np.float16}[kind])
    if kind in ("BF16", "Q4_0", "Q4_1", "Q8_0"):
        return gguf.quants.quantize(values, quant)
    block, size = gguf.GGML_QUANT_SIZES[quant]
    count = shape[-1] // block
    data = rng.integers(0, 256, (*shape[:-1], count, size), dtype=np.uint8)
    scale = np.float16(0.002).tobytes()
    places = {"Q4_K": (0, 2), "Q6_K": (size - 2,)}[kind]
    for place in places:
        data[..., place : place + 2] = np.frombuffer(scale, dtype=np.uint8)
    return data.reshape(*shape[:-1], count * size)


def byte_tokens():
    """Byte-level tokens, two special ones, and merges, as in the tiny checkpoints."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = ["t h", "th e", "i n", "e r", "Ġ the"]
    tokens = [*alphabet, "<|start|>", "<|end|>", *(m.replace(" ", "") for m in merges)]
    return tokens + [f"<unused{i}>" for i in range(320 - len(tokens))], merges


def new_writer(path, arch, extra):
    """A writer with the metadata and the tokenizer of a tiny model; `extra` are more numbers."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(2)
    writer.add_feed_forward_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(64)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_rope_dimension_count(64)
    writer.add_vocab_size(320)
    for key, value in extra.items():
        writer.add_uint32(key.replace("__", "."), value)
    tokens, merges = byte_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    types = [3 if t.startswith("<|") else 1 for t in tokens]
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(257)
    writer.add_eot_token_id(256)
    writer.add_add_bos_token(False)
    writer.add_chat_template(
        "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}"
    )
    return writer


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
