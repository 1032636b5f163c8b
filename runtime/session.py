"""One ONNX Runtime session of a bundle's graph, with one IOBinding for its whole life.

The graph file holds no weights; they are external data below the bundle folder, which ONNX Runtime
maps itself. Pools are bound once, the same OrtValue as input and output, so ops update them in
place. Step arrays are bound again only when an address or a shape changed. Names come from the
manifest.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ortloom.errors import EngineError, ManifestError, ProviderUnavailable
from ortloom.models.bundle_files import inside
from ortloom.models.manifest import Graph, Manifest
from ortloom.runtime.kv_pools import PoolSpec
from ortloom.runtime.model_inputs import ModelInputs
from ortloom.runtime.providers.base import ExecutionProvider

MAX_LOGITS_ROWS = 256
"""Most rows of logits one graph call computes."""

_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


class OrtSession:
    """Runs one graph.

    Args:
        provider: supplies session options; what the session really uses is compared with it.
        manifest: the bundle's.
        folder: the bundle's folder.
        graph: the variant to run.
        threads: intra-op threads.

    Raises:
        ManifestError: the graph does not load, or lacks a named input or output.
        ProviderUnavailable: the session does not use the provider it was made for.
    """

    def __init__(
        self,
        provider: ExecutionProvider,
        manifest: Manifest,
        folder: Path,
        graph: Graph,
        threads: int,
    ) -> None:
        self._graph = graph
        self._vocab_size = manifest.architecture.vocab_size
        model = inside(folder, graph.file.path).read_bytes()
        options = provider.session_options(manifest, model, threads)
        options.add_session_config_entry(_EXTERNAL_FOLDER, str(folder.resolve()))
        try:
            self._session = ort.InferenceSession(
                model, options, providers=provider.provider_options()
            )
        except Exception as error:  # ONNX Runtime's exceptions share no base of their own
            text = " ".join(str(error).split())[:600]
            raise ManifestError(f"ONNX Runtime cannot load '{graph.file.path}': {text}") from None
        used = self._session.get_providers()
        if used[0] != provider.ort_provider:
            raise ProviderUnavailable(
                f"provider {provider.name} was asked for, but the session runs on {used[0]}"
            )
        self._check_names()
        self._binding = self._session.io_binding()
        self._pools: list[ort.OrtValue] = []
        self._logits: NDArray[np.float32] = np.empty(0, np.float32)
        self._bound: tuple[int, int, int, int, int] | None = None
        self._view: NDArray[np.float32] = self._logits.reshape(0, self._vocab_size)
        self._runner: ThreadPoolExecutor | None = None

    @property
    def graph(self) -> Graph:
        """What it runs."""
        return self._graph

    @property
    def provider_names(self) -> list[str]:
        """What the session uses, best first."""
        return list(self._session.get_providers())

    def _check_names(self) -> None:
        io = self._graph.io
        wanted_in = {
            io.input_ids,
            io.positions,
            io.cu_seqlens,
            io.past_seqlens,
            io.block_table,
            io.slot_mapping,
            io.logits_indices,
            *io.k_cache,
            *io.v_cache,
            *io.k_scale,
            *io.v_scale,
        }
        wanted_out = {
            io.logits,
            *io.k_cache_out,
            *io.v_cache_out,
            *io.k_scale_out,
            *io.v_scale_out,
        }
        inputs = {value.name for value in self._session.get_inputs()}
        outputs = {value.name for value in self._session.get_outputs()}
        wrong = (wanted_in ^ inputs) | (wanted_out - outputs)
        if wrong:
            raise ManifestError(
                f"graph '{self._graph.file.path}' and the manifest disagree about "
                f"{', '.join(sorted(wrong))}"
            )

    def bind_pools(self, specs: Sequence[PoolSpec], pools: Sequence[ort.OrtValue]) -> None:
        """Bind each pool as input and output; the pools stay alive with the session."""
        for spec, pool in zip(specs, pools, strict=True):
            self._binding.bind_ortvalue_input(spec.name, pool)
            self._binding.bind_ortvalue_output(spec.output, pool)
        self._pools = list(pools)

    def run(
        self, inputs: ModelInputs, meanwhile: Callable[[], None] | None = None
    ) -> NDArray[np.float32]:
        """One graph call.

        Args:
            inputs: of the call.
            meanwhile: called in this thread while the graph runs in another one.

        Returns:
            Logits [N, V] f32 in a buffer that the next call overwrites; the caller may change it.

        Raises:
            EngineError: the graph failed.
        """
        if inputs.shape_key != self._bound:
            self._bind(inputs)
        try:
            if meanwhile is None:
                self._session.run_with_iobinding(self._binding)
            else:
                self._run_beside(meanwhile)
        except Exception as error:  # see __init__
            self._bound = None
            text = " ".join(str(error).split())[:600]
            raise EngineError(f"the graph failed: {text}") from error
        return self._view

    def _run_beside(self, meanwhile: Callable[[], None]) -> None:
        if self._runner is None:
            self._runner = ThreadPoolExecutor(1, thread_name_prefix="ortloom-graph")
        running = self._runner.submit(self._session.run_with_iobinding, self._binding)
        try:
            meanwhile()
        finally:
            running.result()

    def _bind(self, inputs: ModelInputs) -> None:
        io, binding = self._graph.io, self._binding
        for name, array in (
            (io.input_ids, inputs.input_ids),
            (io.positions, inputs.positions),
            (io.cu_seqlens, inputs.cu_seqlens),
            (io.past_seqlens, inputs.past_seqlens),
            (io.block_table, inputs.block_table),
            (io.slot_mapping, inputs.slot_mapping),
            (io.logits_indices, inputs.logits_indices),
        ):
            binding.bind_cpu_input(name, array)
        rows = len(inputs.logits_indices)
        if self._view.shape[0] != rows:
            self._view = self._logits_view(rows)
            shape = list(self._view.shape)
            pointer = self._view.ctypes.data
            binding.bind_output(io.logits, "cpu", 0, np.float32, shape, pointer)
        self._bound = inputs.shape_key

    def _logits_view(self, rows: int) -> NDArray[np.float32]:
        """[rows, V] at the start of one buffer that grows to MAX_LOGITS_ROWS at most."""
        size = rows * self._vocab_size
        if size > len(self._logits):
            grown = min(max(16, 1 << (rows - 1).bit_length()), MAX_LOGITS_ROWS)
            self._logits = np.empty(max(rows, grown) * self._vocab_size, np.float32)
        return self._logits[:size].reshape(rows, self._vocab_size)
