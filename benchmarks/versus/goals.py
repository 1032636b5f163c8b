"""What ortloom is held to: a ratio to the best peer, or 85 % of the machine's bound where that is
less."""

from dataclasses import dataclass

from benchmarks.versus.engines import Precision

SHARE_OF_BOUND = 0.85

RATIOS: dict[str, dict[Precision, float]] = {
    "decode1": {"int4": 1.5, "int8": 1.4, "bf16": 1.8, "fp32": 1.3},
    "batch8": {"int4": 1.5, "int8": 1.5, "bf16": 1.25, "fp32": 1.3},
    "batch32": {"int4": 1.5, "int8": 1.5, "bf16": 1.25, "fp32": 1.3},
    "prefill1024": {"int4": 1.2, "int8": 1.2, "bf16": 1.0, "fp32": 1.0},
}


@dataclass(frozen=True)
class Goal:
    """`figure` (tok/s) is the goal; `why` is its calculation."""

    figure: float
    why: str


def goal(case: str, precision: Precision, best_peer: float, bound: float) -> Goal | None:
    """The goal of a case, from the best peer's median and the bound of the same run; None where
    a case has none."""
    ratio = RATIOS.get(case, {}).get(precision)
    if ratio is None:
        return None
    wanted, possible = ratio * best_peer, SHARE_OF_BOUND * bound
    if wanted <= possible:
        return Goal(wanted, f"{ratio:g} x {best_peer:.1f} = {wanted:.1f}")
    return Goal(
        possible,
        f"{ratio:g} x {best_peer:.1f} = {wanted:.1f} is above {SHARE_OF_BOUND:.0%} of the bound "
        f"{bound:.1f} = {possible:.1f}",
    )
