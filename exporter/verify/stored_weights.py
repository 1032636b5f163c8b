"""The values that a bundle's weight file holds, by the names of transformers' parameters."""

from pathlib import Path
from typing import Any, cast

import numpy as np

from ortloom.errors import ParityFailed
from ortloom.exporter.weights import Array
from ortloom.kernels.packed_contract import Format, PackedAttributes
from ortloom.kernels.packed_reference import unpacked_weight
from ortloom.kernels.packing import unpack_float
from ortloom.models.manifest import Manifest
from ortloom.models.weight_file import WeightTensor

_BITS = {"bfloat16": "uint16"}
"""Type of the manifest → NumPy type of the same size, where NumPy has no such type."""

_PARTS = {"scales": "scales", "mins": "mins"}
"""Suffix of a tensor beside the panels → the name the oracle has for it."""


class StoredWeights:
    """Reads parameters back from the weight files of the bundle in `root`."""

    def __init__(self, root: Path) -> None:
        self._tensors: dict[str, tuple[np.ndarray[Any, Any], WeightTensor]] = {}
        for file in Manifest.load(root).weights:
            data = np.memmap(root / file.file.path, np.uint8, "r")
            self._tensors.update({tensor.name: (data, tensor) for tensor in file.tensors})

    def _array(self, name: str) -> Array:
        data, tensor = self._tensors[name]
        raw = data[tensor.offset : tensor.offset + tensor.length]
        return raw.view(_BITS.get(tensor.dtype, tensor.dtype)).reshape(tensor.shape)

    def values(self, name: str, shape: tuple[int, ...]) -> Array:
        """A parameter's values fp32 of `shape`: [N, K], experts [E, N, K], or a vector.

        Raises:
            ParityFailed: the bundle has no such parameter, or not of this shape.
        """
        found: Array
        if name in self._tensors:
            found = np.asarray(self._array(name), dtype=np.float32)
        else:
            parts = {
                stored.rpartition(".")[2]: self._array(stored)
                for stored in self._tensors
                if stored.rpartition(".")[0] == name
            }
            kinds = [kind for kind in parts if kind not in _PARTS]
            if len(kinds) != 1 or len(shape) not in (2, 3):
                raise ParityFailed(f"the weights of the bundle do not hold '{name}'")
            form = cast("Format", kinds[0])
            given = {_PARTS.get(kind, "weight"): array for kind, array in parts.items()}
            found = _unpacked(form, given, shape)
        if found.shape != shape:
            raise ParityFailed(
                f"'{name}' has shape {list(found.shape)} in the bundle, {list(shape)} in the model"
            )
        return found


def _unpacked(form: Format, parts: dict[str, Array], shape: tuple[int, ...]) -> Array:
    """Values [N, K], or [E, N, K], of panels and what lies beside them."""
    if len(shape) == 3:
        experts = range(shape[0])
        return np.stack(
            [_unpacked(form, {k: a[e] for k, a in parts.items()}, shape[1:]) for e in experts]
        )
    rows, width = shape
    if "scales" not in parts:
        return unpack_float(parts["weight"], form, rows)
    blocks = parts["scales"].shape[1]
    return unpacked_weight(PackedAttributes(form, rows, width, width // blocks), parts)
