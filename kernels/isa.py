"""Which instruction set tier the op library uses, and why it does not use the others.

The tier covers our own ops: linears, attention, norms, embedding and the sampler.
"""

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

from ortloom.errors import KernelUnavailable
from ortloom.kernels.library import library_path

ISA_VARIABLE = "ORTLOOM_CPU_ISA"
"""Forces a tier by name; an unknown name or a tier the CPU cannot run is an error. As for the other
variables, nothing and "auto" leave the choice to the library."""

ISA_ALIAS_VARIABLE = "VT_CPU_MATMUL_TIER"
"""Read where ORTLOOM_CPU_ISA is not set, as the next ones are."""

DOT_VARIABLES = ("VT_CPU_Q8_DOT", "VT_CPU_QUANT_MMLA", "VT_CPU_QUANT_REPACK")
"""Ask for arm64's dot product or int8 matrix tier, or forbid it (csrc/isa_choice.cc)."""


@dataclass(frozen=True)
class TierState:
    """One tier of the binary. `state` is "used", "available", or "lacks …" with what is missing."""

    name: str
    state: str


@dataclass(frozen=True)
class IsaReport:
    """All tiers, best first; `error` says why none can be used (a wrong ORTLOOM_CPU_ISA)."""

    tiers: tuple[TierState, ...]
    error: str | None = None

    @property
    def used(self) -> str:
        """Name of the tier in use.

        Raises:
            KernelUnavailable: ORTLOOM_CPU_ISA names a tier that does not exist or cannot run.
        """
        for tier in self.tiers:
            if tier.state == "used":
                return tier.name
        raise KernelUnavailable(self.error or "the op library reports no tier")


def tier_is_forced() -> bool:
    """Whether the environment says anything of the tier, so that nothing else may stand in."""
    names = (ISA_VARIABLE, ISA_ALIAS_VARIABLE, *DOT_VARIABLES)
    return any(os.environ.get(name, "") not in ("", "auto") for name in names)


def parse_report(text: str) -> IsaReport:
    """Read the library's report: a line a tier, name and state separated by a tab."""
    tiers: list[TierState] = []
    error: str | None = None
    for line in text.splitlines():
        name, _, state = line.partition("\t")
        if name == "error":
            error = state
        else:
            tiers.append(TierState(name, state))
    return IsaReport(tuple(tiers), error)


def isa_report(path: Path | None = None) -> IsaReport:
    """Ask the library (by default the installed one); reads the environment each time.

    Raises:
        KernelUnavailable: there is no library, or it cannot be loaded.
    """
    path = path if path is not None else library_path()
    try:
        library = ctypes.CDLL(str(path))
        ask = library.OrtloomIsaReport
    except (OSError, AttributeError) as error:
        raise KernelUnavailable(f"{path} cannot be loaded: {error}") from error
    ask.restype = ctypes.c_char_p
    answer: bytes = ask()
    return parse_report(answer.decode())
