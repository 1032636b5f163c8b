"""One graph variant under ONNX Runtime, with pools of its own."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime

from ortloom.errors import KernelUnavailable
from ortloom.exporter.verify.routing import Choices, expose_routing
from ortloom.exporter.verify.schedule import BLOCK_SIZE, LENGTHS, NUM_BLOCKS, Step
from ortloom.kernels import layer_contract, load, team
from ortloom.kernels.pool_values import MOST, STORAGE, bfloat16_bits
from ortloom.models.manifest import Graph, KVGroup

Logits = npt.NDArray[np.float32]

JUNK = 50.0
"""Standard deviation of what the pools hold before the first call."""


def narrowed(graph: bytes, window: int) -> bytes:
    """The graph with every attention window cut to `window` tokens."""
    model = onnx.load_from_string(graph)
    changed = False
    for node in model.graph.node:
        if layer_contract.pool_slots(node.op_type) is None:
            continue
        for attribute in node.attribute:
            if attribute.name == "local_window_size" and attribute.i > window:
                attribute.i = window
                changed = True
    if not changed:
        return graph
    return bytes(model.SerializeToString(deterministic=True))


class GraphRunner:
    """Runs steps on one set of pools.

    Args:
        graph: serialised model.
        root: bundle folder (weights are found relative to it).
        described: the variant's names.
        kv_groups: pool geometry.
        use_library: run `ortloom` ops natively where the library is there, else by their bodies.
        threads: of the library's team, or of ONNX Runtime without it.

    Attributes:
        native: whether the library runs the ops.
        choices: the experts of each token in the last run of both sequences whole; empty where
            the graph has no experts.
    """

    def __init__(
        self,
        graph: bytes,
        root: Path,
        described: Graph,
        kv_groups: Iterable[KVGroup],
        use_library: bool = True,
        threads: int = 2,
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry(
            "session.model_external_initializers_file_folder_path", str(root)
        )
        graph, self._routing = expose_routing(graph)
        self.choices: Choices = {}
        self.native = False
        if use_library:
            try:
                load.register(options)
                team.configure(threads, spin_microseconds=100)
                options.intra_op_num_threads = 1
                self.native = True
            except KernelUnavailable:
                self.native = False
        self._session = onnxruntime.InferenceSession(
            graph, options, providers=["CPUExecutionProvider"]
        )
        self._io = described.io
        self._groups = tuple(kv_groups)
        self._types = {spec.name: spec.dtype for spec in described.inputs}

    def run(self, calls: Iterable[Step]) -> dict[tuple[int, int], Logits]:
        """Logits by (sequence, position), from fresh pools full of junk."""
        binding = self._session.io_binding()
        pools = self._bind_pools(binding)
        found: dict[tuple[int, int], Logits] = {}
        chosen: dict[int, dict[tuple[int, int], Any]] = {layer: {} for layer in self._routing}
        for step in calls:
            for name, array in step.inputs.items():
                binding.bind_cpu_input(getattr(self._io, name), array)
            for output in (self._io.logits, *self._routing.values()):
                binding.bind_output(output, "cpu")
            self._session.run_with_iobinding(binding)
            # in the order in which they were bound
            names = [*pools, self._io.logits, *self._routing.values()]
            values = dict(zip(names, binding.get_outputs(), strict=True))
            logits = values[self._io.logits].numpy()
            found.update(zip(step.rows, np.array(logits), strict=True))
            for layer, output in self._routing.items():
                chosen[layer].update(zip(step.rows, np.array(values[output].numpy()), strict=True))
        self.choices = {
            layer: [np.stack([ids[s, p] for p in range(n)]) for s, n in enumerate(LENGTHS)]
            for layer, ids in sorted(chosen.items())
        }
        del pools
        return found

    def _bind_pools(self, binding: Any) -> dict[str, Any]:
        """Pools full of junk, each bound as input and output; by the name of the output."""
        junk = np.random.default_rng(11)
        geometry = {layer: group for group in self._groups for layer in group.layers}
        io = self._io
        pools = {}
        for layer in range(len(io.k_cache)):
            group = geometry[layer]
            for names, outputs, tail in (
                (io.k_cache, io.k_cache_out, (group.kv_heads, group.head_dim_k)),
                (io.v_cache, io.v_cache_out, (group.kv_heads, group.head_dim_v)),
                (io.k_scale, io.k_scale_out, (group.kv_heads,)),
                (io.v_scale, io.v_scale_out, (group.kv_heads,)),
            ):
                if names:
                    shape = (NUM_BLOCKS, BLOCK_SIZE, *tail)
                    value = _junk_pool(junk, self._types[names[layer]], shape)
                    binding.bind_ortvalue_input(names[layer], value)
                    binding.bind_ortvalue_output(outputs[layer], value)
                    pools[outputs[layer]] = value
        return pools


def _junk_pool(junk: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Any:
    array = junk.standard_normal(shape, dtype=np.float32) * np.float32(JUNK)
    if kind == "bfloat16":
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            bfloat16_bits(array), onnx.TensorProto.BFLOAT16
        )
    if kind == "int8":
        array = np.clip(array, -MOST, MOST)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array.astype(STORAGE[kind]))
