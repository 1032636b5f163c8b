"""How a weight matrix is stored: the format of its panels, see kernels/packed_contract.py."""

import math
from dataclasses import dataclass
from typing import Any, Literal

from ortloom.kernels.packed_contract import PANEL, Format, PackedAttributes

ScaleType = Literal["float16", "float32"]


@dataclass(frozen=True)
class PackedForm:
    """The stored form of one matrix.

    Attributes:
        format: of the panels.
        block_size: of scales and minima, 0 for floating formats.
        scale_dtype: of scales and minima.
        has_mins: the blocks have minima.
        native: the values of the source's own blocks, unchanged.
    """

    format: Format
    block_size: int = 0
    scale_dtype: ScaleType = "float16"
    has_mins: bool = False
    native: bool = False

    @property
    def quantised(self) -> bool:
        """Whether the values are codes with scales."""
        return self.block_size > 0

    @property
    def element_bits(self) -> int:
        """Bits of an element of the panels."""
        return {"f32": 32, "f16": 16, "bf16": 16, "u8": 8, "u4": 4}[self.format]

    def attributes(self, shape: tuple[int, int]) -> dict[str, Any]:
        """Attributes of a node that reads a matrix [N, K] of this form."""
        made = PackedAttributes(self.format, shape[0], shape[1], self.block_size)
        return {
            "format": made.format,
            "N": made.N,
            "K": made.K,
            "block_size": made.block_size,
        }

    def sizes(self, shape: tuple[int, ...]) -> dict[str, int]:
        """Bytes of each stored tensor of a matrix [N, K] or of experts [E, N, K], by the suffix of
        its name."""
        *experts, count, width = shape
        rows = -(-count // PANEL) * PANEL * math.prod(experts)
        found: dict[str, int] = {self.format: rows * width * self.element_bits // 8}
        if self.quantised:
            blocks = rows * (width // self.block_size)
            found["scales"] = blocks * (2 if self.scale_dtype == "float16" else 4)
            if self.has_mins:
                found["mins"] = found["scales"]
        return found
