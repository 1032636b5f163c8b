"""Cases and runners that the kernel tests share, handed out as fixtures."""

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
import pytest

from ortloom.kernels import isa, load
from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.probe_model import paged_attention_model

RUNNABLE_TIERS = [t.name for t in isa.isa_report().tiers if not t.state.startswith("lacks")]
TOLERANCE = 5e-6  # of the largest output


def session_options(threads=1):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def run_bound(session, inputs):
    """Run with each pool bound as input and output; gives (output, key pool, value pool)."""
    # An OrtValue made from an array shares its memory and does not keep it alive.
    arrays = {name: np.array(array) for name, array in inputs.items()}
    tokens, width = inputs["query"].shape
    if "key" not in inputs:
        width -= 2 * inputs["key_cache"].shape[2] * inputs["key_cache"].shape[3]
    output = np.full((tokens, width), np.nan, dtype=np.float32)
    binding = session.io_binding()
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    for name in ("key_cache", "value_cache"):
        binding.bind_ortvalue_output(f"{name}_out", values[name])
    binding.bind_ortvalue_output("output", ort.OrtValue.ortvalue_from_numpy(output))
    session.run_with_iobinding(binding)
    return output, arrays["key_cache"], arrays["value_cache"]


class OpRunner:
    """Runs single-node models on the op library; keeps one session for each kind."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._sessions = {}

    def session(self, attributes, names, threads=1, tier=None):
        key = (attributes, tuple(sorted(names)), threads, tier)
        if key not in self._sessions:
            with self._monkeypatch.context() as patch:
                if tier is not None:
                    patch.setenv(isa.ISA_VARIABLE, tier)
                options = session_options(threads)
                load.register(options)
            self._sessions[key] = ort.InferenceSession(
                paged_attention_model(attributes, tuple(names)),
                options,
                providers=["CPUExecutionProvider"],
            )
        return self._sessions[key]

    def __call__(self, attributes, inputs, threads=1, tier=None):
        return run_bound(self.session(attributes, inputs, threads, tier), inputs)


@dataclass(frozen=True)
class Request:
    """Tokens in the cache before the step, and tokens added by it."""

    past: int
    added: int


class StepFactory:
    """Draws the inputs of one call."""

    def __init__(self, seed):
        self.generator = np.random.default_rng(seed)

    def floats(self, *shape):
        return self.generator.standard_normal(shape, dtype=np.float32)

    def step(
        self,
        attributes,
        requests,
        *,
        head_size=64,
        block_size=16,
        rotary_half=None,
        sinks=False,
        norms=False,
        spare_blocks=1,
    ):
        """Blocks are spread at random over a pool of which every slot holds data.

        The last block of the pool always belongs to the last request, so that a write or read at
        slot -1 taken as "the last slot" would hit live data.
        """
        heads, kv_heads = attributes.num_heads, attributes.kv_num_heads
        needed = [-(-(r.past + r.added) // block_size) for r in requests]
        num_blocks = 1 + sum(needed) + spare_blocks
        free = list(self.generator.permutation(np.arange(1, num_blocks - 1)))
        table = np.full((len(requests), max(needed) + 1), -1, dtype=np.int32)
        slots = []
        for r, request in enumerate(requests):
            for block in range(needed[r]):
                table[r, block] = free.pop()
            if r == len(requests) - 1:
                table[r, needed[r] - 1] = num_blocks - 1
            for p in range(request.past, request.past + request.added):
                slots.append(table[r, p // block_size] * block_size + p % block_size)
        tokens = len(slots)
        pool = (num_blocks, block_size, kv_heads, head_size)
        inputs = {
            "query": self.floats(tokens, heads * head_size),
            "key": self.floats(tokens, kv_heads * head_size),
            "value": self.floats(tokens, kv_heads * head_size),
            "key_cache": self.floats(*pool),
            "value_cache": self.floats(*pool),
            "cumulative_sequence_length": np.cumsum(
                [0, *(r.added for r in requests)], dtype=np.int32
            ),
            "past_seqlens": np.array([r.past for r in requests], dtype=np.int32),
            "block_table": table,
            "slot_mapping": np.array(slots, dtype=np.int32),
        }
        if attributes.do_rotary:
            half = rotary_half if rotary_half is not None else head_size // 2
            positions = np.arange(max(r.past + r.added for r in requests))
            angles = positions[:, None] * 10000.0 ** (-np.arange(half) / half)
            inputs["cos_cache"] = np.cos(angles).astype(np.float32)
            inputs["sin_cache"] = np.sin(angles).astype(np.float32)
        if sinks:
            inputs["head_sink"] = self.floats(heads)
        if norms:
            inputs["q_norm_weight"] = self.floats(head_size)
            inputs["k_norm_weight"] = self.floats(head_size)
        return inputs


def packed(inputs):
    """The same call with query, key and value as one packed QKV tensor."""
    rest = {n: a for n, a in inputs.items() if n not in ("query", "key", "value")}
    parts = [inputs[name] for name in ("query", "key", "value")]
    return {"query": np.concatenate(parts, axis=1), **rest}


def assert_close(got, expected, *, tolerance=TOLERANCE, first_block=0):
    """Output and pools (from `first_block` on) agree within tolerance x the largest value."""
    output, key_pool, value_pool = got
    for name, a, b in (
        ("output", output, expected.output),
        ("key_cache", key_pool[first_block:], expected.key_cache[first_block:]),
        ("value_cache", value_pool[first_block:], expected.value_cache[first_block:]),
    ):
        limit = tolerance * max(float(np.abs(b).max()), 1e-3)
        difference = float(np.abs(a - b).max())
        assert difference <= limit, f"{name} is off by {difference:g} > {limit:g}"


@pytest.fixture(params=RUNNABLE_TIERS)
def tier(request):
    return request.param


@pytest.fixture
def run_op():
    patch = pytest.MonkeyPatch()
    yield OpRunner(patch)
    patch.undo()


@pytest.fixture
def steps():
    return StepFactory


@pytest.fixture
def pack():
    return packed


@pytest.fixture
def close():
    return assert_close


@pytest.fixture
def bound():
    return run_bound


@pytest.fixture
def options():
    return session_options


@pytest.fixture
def request_of():
    return Request


@pytest.fixture
def attributes_of():
    return PagedAttentionAttributes
