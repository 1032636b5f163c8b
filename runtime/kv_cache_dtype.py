"""The values of `--kv-cache-dtype`: what the KV cache holds.

The words are vLLM's, with two of our own: float32, and int8 for int8_per_token_head.
"""

from dataclasses import dataclass

from ortloom.errors import ConfigError

INT8 = "int8_per_token_head"

ACCEPTED = ("auto", "float32", "float16", "bfloat16", INT8)
"""Values that mean themselves; auto leaves it to the provider."""

EIGHT_BIT = ("fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc", "fp8_per_token_head")
"""8-bit floats, which take as many bytes as int8 and are stored as such, with a notice."""

REFUSED = {
    "fp8_ds_mla": "it is the layout of latent attention (MLA), which no bundle has",
    "turboquant_k8v4": "codebooks are not supported",
    "turboquant_4bit_nc": "codebooks are not supported",
    "turboquant_k3v4_nc": "codebooks are not supported",
    "turboquant_3bit_nc": "codebooks are not supported",
    "int4_per_token_head": "4-bit keys and values are not supported",
    "nvfp4": "4-bit floats need a GPU that computes with them",
    "nvfp4_4over6": "4-bit floats need a GPU that computes with them",
}
"""Values of vLLM that nothing here can serve, with the reason."""


@dataclass(frozen=True, slots=True)
class KVCacheChoice:
    """One of `ACCEPTED`, and a line for the user if it is not what was written."""

    dtype: str
    notice: str | None = None


def parse_kv_cache_dtype(value: str) -> KVCacheChoice:
    """The meaning of a value of the flag.

    Raises:
        ConfigError: nothing here stores that, or no such value; the text says what to write.
    """
    if value in ACCEPTED:
        return KVCacheChoice(value)
    if value == "int8":
        return KVCacheChoice(INT8)
    if value in EIGHT_BIT:
        return KVCacheChoice(
            INT8, f"--kv-cache-dtype {value}: the KV cache is stored as {INT8}, of the same size"
        )
    allowed = f"choose from {', '.join((*ACCEPTED, 'int8'))}"
    if value in REFUSED:
        raise ConfigError(
            f"argument --kv-cache-dtype: '{value}' cannot be had here: {REFUSED[value]}; {allowed}"
        )
    raise ConfigError(f"argument --kv-cache-dtype: '{value}' is unknown ({allowed})")
