"""The digests of prefix chains (--prefix-caching-hash-algo).

All of them hash the parent's digest, the tokens of a block and its extras. `sha256` and `xxhash`
read them in a form of our own; the cbor kinds read the canonical CBOR of the list [parent, tokens,
extras], which any program can make again. A digest only finds a block: its tokens are compared, so
a short or weak digest costs speed where two meet, never a wrong answer.
"""

import hashlib
from array import array
from collections.abc import Callable, Sequence

from ortloom.errors import ConfigError

BlockDigest = Callable[[bytes, Sequence[int], bytes], bytes]
"""(parent digest, tokens, extras) -> digest."""

ALGORITHMS = ("sha256", "sha256_cbor", "sha256_cbor_64bit", "xxhash", "xxhash_cbor", "builtin")


def load_digest(name: str) -> BlockDigest:
    """The function of a name.

    Raises:
        ConfigError: unknown, or its package is not installed.
    """
    if name in ("xxhash", "xxhash_cbor"):
        whole = _xxhash()
        if name == "xxhash":
            return lambda parent, tokens, extra: whole(_packed(parent, tokens, extra))
        return lambda parent, tokens, extra: whole(cbor([parent, list(tokens), extra]))
    known: dict[str, BlockDigest] = {
        "sha256": _sha256,
        "sha256_cbor": _sha256_cbor,
        "sha256_cbor_64bit": lambda *block: _sha256_cbor(*block)[-8:],
        "builtin": _builtin,
    }
    if name not in known:
        raise ConfigError(f"--prefix-caching-hash-algo: '{name}' is unknown")
    return known[name]


def _xxhash() -> Callable[[bytes], bytes]:
    try:
        import xxhash  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ConfigError(
            "--prefix-caching-hash-algo: xxhash is not installed: pip install xxhash"
        ) from None
    digest: Callable[[bytes], bytes] = xxhash.xxh3_128_digest
    return digest


def _packed(parent: bytes, token_ids: Sequence[int], extra: bytes) -> bytes:
    """The parent, the length-prefixed extras and the tokens as 64-bit integers."""
    tokens = array("q", token_ids).tobytes()
    return b"".join((parent, len(extra).to_bytes(4, "little"), extra, tokens))


def _sha256(parent: bytes, token_ids: Sequence[int], extra: bytes) -> bytes:
    return hashlib.sha256(_packed(parent, token_ids, extra)).digest()


def _sha256_cbor(parent: bytes, token_ids: Sequence[int], extra: bytes) -> bytes:
    return hashlib.sha256(cbor([parent, list(token_ids), extra])).digest()


def _builtin(parent: bytes, token_ids: Sequence[int], extra: bytes) -> bytes:
    """Python's own hash of a tuple; differs from process to process where extras are in it."""
    value = hash((parent, tuple(token_ids), extra))
    return value.to_bytes(8, "little", signed=True)


def cbor(value: object) -> bytes:
    """Canonical CBOR (RFC 8949, 4.2.1) of integers, byte strings and lists of them.

    Raises:
        TypeError: a value of another type.
    """
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(map(cbor, value))
    raise TypeError(f"no CBOR of {type(value).__name__} here")


def _head(kind: int, number: int) -> bytes:
    if number < 24:
        return bytes([kind << 5 | number])
    for code, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << (8 * size):
            return bytes([kind << 5 | code]) + number.to_bytes(size, "big")
    raise TypeError(f"{number} does not fit 64 bits")
