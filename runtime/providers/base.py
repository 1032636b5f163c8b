"""What the runtime needs from an execution provider.

To add one: a file beside this with a class of this shape, and its place in `select.ORDER`.
"""

from collections.abc import Sequence
from typing import Protocol

import onnxruntime as ort

from ortloom.models.manifest import Manifest
from ortloom.runtime.kv_pools import PoolSpec


class ExecutionProvider(Protocol):
    """One way to run a bundle's graphs."""

    @property
    def name(self) -> str:
        """The value of --provider."""

    @property
    def graph_variant(self) -> str:
        """The bundle's graph this provider runs."""

    @property
    def ort_provider(self) -> str:
        """ONNX Runtime's name; the session must report it first."""

    @property
    def kv_cache_dtypes(self) -> tuple[str, ...]:
        """What its KV cache can hold, in the words of --kv-cache-dtype; the first is auto's."""

    @property
    def max_call_tokens(self) -> int:
        """Most packed tokens one graph call gets; longer steps run as several calls."""

    @property
    def reads_weights_in_place(self) -> bool:
        """Whether steps read the map of the weight file itself, rather than copies made at load."""

    def available(self, manifest: Manifest | None) -> str | None:
        """Why this provider cannot run the bundle here and what mends it, or None if it can.

        Without a manifest only the machine is looked at.
        """

    def session_options(self, manifest: Manifest, model: bytes, threads: int) -> ort.SessionOptions:
        """Session options, custom ops registered."""

    def provider_options(self) -> list[tuple[str, dict[str, str]]]:
        """ONNX Runtime providers with their options, in order of preference."""

    def allocate_kv(
        self, pools: Sequence[PoolSpec], num_blocks: int, block_size: int
    ) -> list[ort.OrtValue]:
        """Zeroed pools [num_blocks + 1, block_size, ...] where the graph reads them."""

    def free_memory(self) -> int:
        """Bytes left where pools live."""

    def detail(self) -> str:
        """What runs, for people: ISA tier, library, device."""

    def notices(self) -> list[str]:
        """Lines a user must see once at start-up."""
