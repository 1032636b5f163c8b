"""Cases and runners that the kernel tests share, handed out as fixtures."""

import sys
from pathlib import Path

import pytest

from ortloom.kernels import isa
from ortloom.kernels.contract import PagedAttentionAttributes
from ortloom.kernels.pool_values import STORAGE

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # tests are no package
    sys.path.insert(0, HERE)

from attention_steps import Request, StepFactory, packed  # noqa: E402
from closeness import assert_close  # noqa: E402
from layer_cases import ChainRunner, LayerRunner  # noqa: E402
from op_mutants import MutantCompiler  # noqa: E402
from op_runners import (  # noqa: E402
    NodeRunner,
    OpRunner,
    run_bound,
    session_options,
    use_threads,
)

# Sessions run in these; the narrow tiers of SSE have the lanes of the portable one and are gone
# through in test_op_host.py, where a tier costs a second.
HOST_ONLY_TIERS = ("sse2", "sse2+f16c")
RUNNABLE_TIERS = [
    t.name
    for t in isa.isa_report().tiers
    if not t.state.startswith("lacks") and t.name not in HOST_ONLY_TIERS
]
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


@pytest.fixture(scope="session")
def compile_mutant(tmp_path_factory):
    return MutantCompiler(tmp_path_factory.mktemp("mutants"))


@pytest.fixture
def steps():
    return StepFactory


@pytest.fixture
def run_layer():
    patch = pytest.MonkeyPatch()
    yield LayerRunner(patch, session_options, use_threads)
    patch.undo()


@pytest.fixture
def run_chain(run_node, run_op):
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
