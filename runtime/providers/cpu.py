"""The CPU provider: ONNX Runtime's CPU kernels with our op library."""

import onnxruntime as ort

from ortloom.errors import KernelRefused, KernelUnavailable
from ortloom.kernels import load, team
from ortloom.kernels.isa import tier_is_forced
from ortloom.kernels.library import library_is_named
from ortloom.models.manifest import Manifest
from ortloom.runtime.providers.gpu_probe import missing_graph
from ortloom.runtime.providers.host_options import SPIN_MICROSECONDS, host_session_options
from ortloom.runtime.providers.plain import PlainProvider


class CpuProvider(PlainProvider):
    """The cpu graph with the registered op library."""

    name = "cpu"
    graph_variant = "cpu"
    kv_cache_dtypes = ("float32", "float16", "bfloat16", "int8_per_token_head")
    max_call_tokens = 512
    reads_weights_in_place = True

    def available(self, manifest: Manifest | None) -> str | None:
        """Needs a cpu graph, and an op library that loads and passes its self-test.

        Raises:
            KernelRefused: an instruction-set tier is forced or a library named that cannot be had;
                both fail closed, so no other provider may take over.
        """
        missing = missing_graph(manifest, self.graph_variant)
        if missing is not None:
            return missing
        try:
            load.isa_tier()  # a wrong tier's reason in our own words, not ONNX Runtime's
            load.self_test()
        except KernelUnavailable as error:
            if tier_is_forced() or library_is_named():
                raise KernelRefused(str(error)) from error
            return str(error)
        return None

    def session_options(self, manifest: Manifest, model: bytes, threads: int) -> ort.SessionOptions:
        """Host options with the op library registered.

        The library's team does the parallel work; ONNX Runtime's own pool stays at one thread, so
        that two teams never compete for the cores.
        """
        team.configure(threads, SPIN_MICROSECONDS)
        options = host_session_options(1)
        load.register(options, model)
        return options

    def detail(self) -> str:
        """Instruction-set tier of our ops."""
        return f"onnxruntime {ort.__version__}, ortloom ops on {load.isa_tier()}"

    def notices(self) -> list[str]:
        """None."""
        return []
