"""How near an op's output and pools must come to the oracle's."""

import numpy as np

from ortloom.kernels.contract import POOLS, TOLERANCES
from ortloom.kernels.pool_values import element_type, widened


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
