"""Cases and runners that the kernel tests share, handed out as fixtures."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from ortloom.kernels import isa, load, team
from ortloom.kernels.contract import POOLS, TOLERANCES, PagedAttentionAttributes
from ortloom.kernels.pool_values import STORAGE, bfloat16_bits, element_type, widened
from ortloom.kernels.probe_model import ELEMENT_TYPES, one_node_model, paged_attention_model

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # for packed_cases: tests are no package
    sys.path.insert(0, HERE)

# Sessions run in these; the narrow tiers of SSE have the lanes of the portable one and are gone
# through in test_op_host.py, where a tier costs a second.
HOST_ONLY_TIERS = ("sse2", "sse2+f16c")
RUNNABLE_TIERS = [
    t.name
    for t in isa.isa_report().tiers
    if not t.state.startswith("lacks") and t.name not in HOST_ONLY_TIERS
]
CSRC = Path(__file__).resolve().parents[2] / "kernels" / "csrc"
TIER_SOURCE = re.compile(r"_(avx|sse2|neon|dotprod|i8mm)")
TEAM_SPIN = 50  # microseconds


def use_threads(threads):
    """The ops' threads are the library's team, whatever session runs them."""
    if team.threads() != threads:
        team.configure(threads, TEAM_SPIN)


def session_options(threads=1):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def ort_value(array):
    """An OrtValue over the array's memory; uint16 is bfloat16."""
    if array.dtype == np.uint16:
        kind = ELEMENT_TYPES["bfloat16"]
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
    return ort.OrtValue.ortvalue_from_numpy(array)


def run_bound(session, inputs):
    """Run with each pool bound as input and output; gives (output, key pool, value pool), and the
    scale pools if there are any."""
    # An OrtValue made from an array shares its memory and does not keep it alive.
    arrays = {name: np.array(array) for name, array in inputs.items()}
    tokens, width = inputs["query"].shape
    if "key" not in inputs:
        width -= 2 * inputs["key_cache"].shape[2] * inputs["key_cache"].shape[3]
    output = np.full((tokens, width), np.nan, dtype=np.float32)
    binding = session.io_binding()
    values = {name: ort_value(array) for name, array in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    pools = [name for name in POOLS if name in arrays]
    for name in pools:
        binding.bind_ortvalue_output(f"{name}_out", values[name])
    binding.bind_ortvalue_output("output", ort.OrtValue.ortvalue_from_numpy(output))
    session.run_with_iobinding(binding)
    return output, *(arrays[name] for name in pools)


class OpRunner:
    """Runs single-node models on the op library; keeps one session for each kind."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._sessions = {}

    def session(self, attributes, inputs, tier=None):
        pools = element_type(inputs["key_cache"])
        key = (attributes, tuple(sorted(inputs)), pools, tier)
        if key not in self._sessions:
            with self._monkeypatch.context() as patch:
                if tier is not None:
                    patch.setenv(isa.ISA_VARIABLE, tier)
                options = session_options()
                load.register(options)
            self._sessions[key] = ort.InferenceSession(
                paged_attention_model(attributes, tuple(inputs), pools),
                options,
                providers=["CPUExecutionProvider"],
            )
        return self._sessions[key]

    def __call__(self, attributes, inputs, threads=1, tier=None):
        use_threads(threads)
        return run_bound(self.session(attributes, inputs, tier), inputs)


class NodeRunner:
    """Runs any other op of ours as a single-node model; keeps one session for each kind."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._sessions = {}

    def __call__(
        self, op, slots, outputs, attributes, inputs, *, threads=1, tier=None, library=None
    ):
        """`attributes` is a contract's dataclass; uint16 inputs are bfloat16.

        `library` is run in place of the installed one.
        """
        types = {
            name: ("bfloat16" if array.dtype == np.uint16 else array.dtype.name, array.ndim)
            for name, array in inputs.items()
        }
        key = (op, attributes, tuple(sorted(types.items())), tuple(outputs), tier, library)
        if key not in self._sessions:
            with self._monkeypatch.context() as patch:
                if tier is not None:
                    patch.setenv(isa.ISA_VARIABLE, tier)
                options = session_options()
                if library is None:
                    load.register(options)
                else:
                    options.register_custom_ops_library(str(library))
                model = one_node_model(op, asdict(attributes), slots, types, outputs)
                self._sessions[key] = ort.InferenceSession(
                    model, options, providers=["CPUExecutionProvider"]
                )
        use_threads(threads)
        values = {}
        kept = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in kept.items():
            values[name] = ort_value(array)
        got = self._sessions[key].run_with_ort_values(None, values)
        return [np.array(value.numpy()) for value in got]


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

    def pools(self, kind, shape):
        """Random pools, scale pools included where the type has them."""
        made = {name: self.floats(*shape) for name in ("key_cache", "value_cache")}
        if kind == "bfloat16":
            return {name: bfloat16_bits(array) for name, array in made.items()}
        if kind == "int8":
            codes = {name: np.clip(array * 40, -127, 127).astype(np.int8)
                     for name, array in made.items()}  # fmt: skip
            scales = {name: np.abs(self.floats(*shape[:3])) / 30 for name in ("k_scale", "v_scale")}
            return {**codes, **scales}
        return {name: array.astype(STORAGE[kind]) for name, array in made.items()}

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
        pools="float32",
    ):
        """Blocks are spread at random over pools of type `pools` of which every slot holds data.

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
            **self.pools(pools, pool),
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


def assert_close(got, expected, *, tolerance=None, first_block=0):
    """Output and pools (from `first_block` on) agree within tolerance x the largest value.

    Codes of int8 pools may differ by one step where a value lies between two, seldom.
    """
    kind = element_type(expected.key_cache)
    tolerance = TOLERANCES[kind] if tolerance is None else tolerance

    def near(name, a, b, allowed):
        limit = allowed * max(float(np.abs(b).max(initial=0)), 1e-3)
        difference = float(np.abs(a - b).max(initial=0))
        assert difference <= limit, f"{name} is off by {difference:g} > {limit:g}"

    output, *pools = got
    near("output", output, expected.output, tolerance)
    for name, found in zip(POOLS, pools, strict=False):
        a, b = found[first_block:], getattr(expected, name)[first_block:]
        assert a.dtype == b.dtype
        if a.dtype == np.int8:
            steps = np.abs(a.astype(np.int32) - b)
            assert steps.max() <= 1, f"{name}: a code is off by {steps.max()}"
            flipped = np.count_nonzero(steps)
            assert flipped <= max(2, 1e-4 * steps.size), f"{name}: {flipped} codes differ"
        else:
            scale_pool = name in ("k_scale", "v_scale")
            near(name, widened(a), widened(b), TOLERANCES["float32"] if scale_pool else tolerance)


HEAD_MAJOR_POOLS = [
    pytest.param(pools, id={"bfloat16": "bf16"}.get(pools, pools)) for pools in STORAGE
]


@pytest.fixture(params=HEAD_MAJOR_POOLS)
def pools(request):
    """An element type of pools in the head-major layout."""
    return request.param


@pytest.fixture(params=RUNNABLE_TIERS)
def tier(request):
    return request.param


@pytest.fixture
def run_op():
    patch = pytest.MonkeyPatch()
    yield OpRunner(patch)
    patch.undo()


@pytest.fixture
def run_node():
    patch = pytest.MonkeyPatch()
    yield NodeRunner(patch)
    patch.undo()


@pytest.fixture(autouse=True)
def one_thread_again():
    yield
    use_threads(1)


class MutantCompiler:
    """Builds the library from its sources with the portable tier alone, one line changed."""

    FLAGS = ("-std=c++17", "-fPIC", "-ffp-contract=off", "-pthread")
    BODIES = {
        "attention_body.h": "attention_portable",
        "linear_prepare.h": "linear_portable",
        "packed_experts.cc": "packed_experts",
    }

    def __init__(self, folder):
        self._folder = folder
        shutil.copytree(CSRC, folder, dirs_exist_ok=True)
        sources = [
            path for path in sorted(folder.glob("*.cc")) if not TIER_SOURCE.search(path.stem)
        ]
        with ThreadPoolExecutor(2) as pool:
            compiled = pool.map(
                lambda path: self._compile(path.with_suffix(".o"), "-c", path), sources
            )
        self._objects = dict(zip((path.stem for path in sources), compiled, strict=True))

    def _compile(self, output, *arguments):
        command = [os.environ.get("CXX", "g++"), *self.FLAGS, "-o", output, *arguments]
        subprocess.run([str(part) for part in command], check=True, timeout=300)
        return output

    def __call__(self, name, body, *replacements):
        header = self._folder / body
        text = changed_text = header.read_text()
        for old, new in zip(replacements[::2], replacements[1::2], strict=True):
            assert changed_text.count(old) == 1
            changed_text = changed_text.replace(old, new)
        header.write_text(changed_text)
        changed = self.BODIES.get(body, Path(body).stem)
        rest = [path for stem, path in self._objects.items() if stem != changed]
        library = self._folder / f"lib{name}.so"
        self._compile(library, "-O1", "-shared", self._folder / f"{changed}.cc", *rest)
        header.write_text(text)
        return library


@pytest.fixture(scope="session")
def compile_mutant(tmp_path_factory):
    return MutantCompiler(tmp_path_factory.mktemp("mutants"))


@pytest.fixture
def steps():
    return StepFactory


@pytest.fixture
def run_layer():
    from layer_cases import LayerRunner

    patch = pytest.MonkeyPatch()
    yield LayerRunner(patch, session_options, use_threads)
    patch.undo()


@pytest.fixture
def run_chain(run_node, run_op):
    from layer_cases import ChainRunner

    return ChainRunner(run_node, run_op)


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
