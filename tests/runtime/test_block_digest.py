"""The digests of prefixes: each is what its name says and finds what the others find."""

import hashlib
import sys
import types

import pytest
from fakes import Harness, solo_tokens

from ortloom.errors import ConfigError
from ortloom.runtime.block_digest import ALGORITHMS, cbor, load_digest

PROMPT = solo_tokens([9], 64)
BLOCK = (b"\x01\x02", [1, 23, 24, 300, 70000, 2**40], b"x")
CBOR = bytes.fromhex("83420102860117181819012c1a000111701b000001000000000041" + "78")


@pytest.fixture
def xxhash(monkeypatch):
    """A stand-in for the package: what matters is what it is given and that it is used."""
    module = types.ModuleType("xxhash")
    module.seen = []

    def digest(data):
        module.seen.append(data)
        return hashlib.md5(data).digest()

    module.xxh3_128_digest = digest
    monkeypatch.setitem(sys.modules, "xxhash", module)
    return module


def test_cbor_is_canonical():
    assert cbor([b"\x01\x02", list(BLOCK[1]), b"x"]) == CBOR
    assert cbor(-1) == b"\x20"
    assert cbor([0] * 24)[:2] == b"\x98\x18"
    with pytest.raises(TypeError):
        cbor("text")
    with pytest.raises(TypeError):
        cbor(1 << 64)


def test_each_name_is_its_own_digest(xxhash):
    whole = hashlib.sha256(CBOR).digest()
    assert load_digest("sha256_cbor")(*BLOCK) == whole
    assert load_digest("sha256_cbor_64bit")(*BLOCK) == whole[-8:]
    assert len(load_digest("builtin")(*BLOCK)) == 8
    assert len(load_digest("sha256")(*BLOCK)) == 32
    assert load_digest("xxhash_cbor")(*BLOCK) == hashlib.md5(CBOR).digest()
    assert xxhash.seen == [CBOR]
    found = {load_digest(name)(*BLOCK) for name in ALGORITHMS}
    assert len(found) == len(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_digest_finds_the_prefix_and_only_it(name, xxhash):
    engine = Harness(prefix_caching_hash_algo=name)
    for turn, prompt in enumerate((PROMPT[:50], PROMPT[:50], PROMPT[1:50])):
        engine.add(f"r{turn}", prompt, 3, cache_salt="s")
        engine.run()
        assert engine.tokens(f"r{turn}") == solo_tokens(prompt, 3)
    assert [engine.last(f"r{i}").num_cached_tokens for i in range(3)] == [0, 48, 0]
    assert engine.core.ready.cache_config["prefix_caching_hash_algo"] == name
    size = {"sha256": 32, "sha256_cbor": 32, "xxhash": 16, "xxhash_cbor": 16}.get(name, 8)
    assert {len(digest) for digest in engine.core.pool.cached} == {size}


def test_a_digest_that_is_not_there(monkeypatch):
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ConfigError, match="pip install xxhash"):
        load_digest("xxhash")
    with pytest.raises(ConfigError, match="'md5' is unknown"):
        load_digest("md5")
