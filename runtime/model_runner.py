"""Executes the scheduler's plans: inputs, graph calls, sampling.

Owns the session, the KV pools and the sampler; knows nothing of queues, clients or text. The
attributes are fixed once loaded.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ortloom.config import Config
from ortloom.errors import EngineError, InvalidRequest
from ortloom.models.bundle_files import inside
from ortloom.models.manifest import Manifest
from ortloom.runtime import machine
from ortloom.runtime.context_window import ContextWindow
from ortloom.runtime.grammar_trial import GrammarTrial
from ortloom.runtime.grammars.select import check_options
from ortloom.runtime.graph_calls import graph_calls, wants_prompt_logprobs
from ortloom.runtime.kv_cache_dtype import parse_kv_cache_dtype
from ortloom.runtime.kv_memory import KVDemand, activation_bytes, check_block_size, plan_kv
from ortloom.runtime.kv_pools import pool_specs
from ortloom.runtime.lifecycle import KV_CACHE, WEIGHTS
from ortloom.runtime.messages import EngineRequest, ProviderReport
from ortloom.runtime.model_inputs import InputBuilder, Segment
from ortloom.runtime.numa import bind_memory
from ortloom.runtime.providers.kv_cache import graph_kv_cache_dtype
from ortloom.runtime.providers.select import select
from ortloom.runtime.request import Request
from ortloom.runtime.residence import Residence, bind, give_back
from ortloom.runtime.sampler import NOT_FINITE, Sampler
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler_output import (
    ModelRunnerOutput,
    RowResult,
    ScheduledRequest,
    SchedulerOutput,
)
from ortloom.runtime.session import MAX_LOGITS_ROWS, OrtSession
from ortloom.runtime.structured_output import GrammarCompiler
from ortloom.runtime.user_processors import UserProcessors
from ortloom.runtime.weight_pages import drop_clean_pages, read_in_huge_pages

_PROFILE_BLOCKS = 2
_PLENTY = 1 << 30
"""Bytes that must be left beside the KV cache for what may never be needed."""


class ModelRunner:
    """A loaded model that has run a step. Made by `load`.

    Attributes:
        num_blocks: usable KV blocks, ids 1 .. num_blocks.
        block_size: tokens a block.
        vocab_size: V, columns of the logits.
        max_model_len: context length in tokens after fitting.
        kv_cache_bytes: size of the pools, the null block included.
        provider_report: what runs and why the others do not.
        notices: lines a user must see at start-up.
        cache_config: the cache's settings as text, for vllm:cache_config_info.
    """

    def __init__(
        self,
        config: Config,
        manifest: Manifest,
        session: OrtSession,
        max_call_tokens: int,
        provider_report: ProviderReport,
    ) -> None:
        tokenizer = manifest.tokenizer.tokenizer
        folder = Path(config.model.bundle)
        tokenizer_file = None if tokenizer is None else inside(folder, tokenizer.path)
        if config.model.tokenizer is not None:
            tokenizer_file = Path(config.model.tokenizer) / "tokenizer.json"
        self.vocab_size = manifest.architecture.vocab_size
        self.block_size = config.cache.block_size
        self.provider_report = provider_report
        self.num_blocks = 0
        self.max_model_len = 0
        self.kv_cache_bytes = 0
        self.notices: list[str] = []
        self.cache_config: dict[str, str] = {}
        self._weight_files = [inside(folder, weight.file.path) for weight in manifest.weights]
        self._max_logprobs = config.model.max_logprobs
        self._max_call_tokens = max_call_tokens
        self._session = session
        self._builder = InputBuilder(self.block_size, session.graph.io.positions_rows)
        eos = manifest.architecture.eos_token_ids
        outputs = config.structured_outputs
        trial = None
        if tokenizer_file is not None:
            trial = GrammarTrial(tokenizer_file, self.vocab_size, eos, outputs)
        self._grammars = GrammarCompiler(tokenizer_file, self.vocab_size, eos, trial, outputs)
        model = config.model
        self._users = UserProcessors(
            model.logits_processors, model.logits_processor_pattern, self.vocab_size
        )
        self._residence: Residence | None = None
        self._loaded = True
        self._absent: set[str] = set()
        self._sampler = Sampler(
            self.vocab_size,
            config.model.logprobs_mode,
            self._grammars,
            jump_forward=outputs.jump_forward,
            users=self._users,
        )
        if outputs.load_early and tokenizer_file is not None:
            self._grammars.load()

    @classmethod
    def load(cls, config: Config) -> "ModelRunner":
        """Open the bundle, choose the provider, run a first step, size and bind the KV pools.

        Raises:
            ManifestError: the folder is no usable bundle.
            ProviderUnavailable: the provider asked for cannot run here.
            ConfigError: KV cache or context settings that do not fit.
        """
        check_block_size(config.cache.block_size)
        check_options(config.structured_outputs)
        machine.keep_to(config.provider.cpu_affinity)  # before any thread that computes is started
        unbound = None
        if config.provider.numa_node is not None:
            unbound = bind_memory(config.provider.numa_node)
        folder = Path(config.model.bundle)
        manifest = Manifest.load(folder)
        if config.model.verify:
            manifest.verify_weights(folder)
        asked = parse_kv_cache_dtype(config.cache.kv_cache_dtype)
        selection = select(config.provider, manifest, kv_cache_dtype=asked.dtype)
        provider = selection.provider
        kv_cache_dtype = graph_kv_cache_dtype(provider, manifest, asked.dtype)
        graph = manifest.graph(provider.graph_variant, kv_cache_dtype)
        specs = pool_specs(graph)
        threads = config.provider.threads
        if not threads:
            threads = max(1, machine.default_threads() - config.provider.reserved_cpus)
        if provider.reads_weights_in_place:
            for weight in manifest.weights:
                read_in_huge_pages(inside(folder, weight.file.path), weight)
        session = OrtSession(provider, manifest, folder, graph, threads)
        report = selection.report
        report.detail = f"{report.detail}, {threads} threads"
        runner = cls(config, manifest, session, provider.max_call_tokens, report)
        if provider.reads_weights_in_place:
            runner._weight_files = []  # their pages are the weights: nothing to give back

        size = config.cache.block_size
        runner._residence = Residence(provider, manifest, folder, graph, threads, size)
        session.bind_pools(specs, provider.allocate_kv(specs, _PROFILE_BLOCKS, size))
        runner._try_steps(1, ((0, 1),))
        scheduler = config.scheduler
        step_tokens = min(provider.max_call_tokens, scheduler.max_num_batched_tokens or 2048)
        activations = 0
        if config.cache.num_blocks is None and config.cache.kv_cache_memory_bytes is None:
            activations = activation_bytes(runner._run_prompt, step_tokens)
        activations += min(MAX_LOGITS_ROWS, scheduler.max_num_seqs) * runner.vocab_size * 4
        block_bytes = size * sum(spec.bytes_per_token() for spec in specs)
        cache = config.cache
        window = ContextWindow.of(manifest, config.model.disable_sliding_window)
        demand = KVDemand(
            block_size=size,
            block_bytes=block_bytes,
            model_max_len=window.max_len,
            asked_max_len=config.model.max_model_len,
            max_num_seqs=scheduler.max_num_seqs,
            num_blocks=cache.num_blocks,
            memory_bytes=cache.kv_cache_memory_bytes,
            memory_fraction=cache.memory_fraction,
        )
        plan = plan_kv(demand, provider.free_memory(), activations)
        # Bound after the first steps: memory of theirs is taken when a request writes to it.
        session.bind_pools(specs, provider.allocate_kv(specs, plan.num_blocks, size))
        runner.trim()
        runner.num_blocks = plan.num_blocks
        runner.max_model_len = plan.max_model_len
        runner.kv_cache_bytes = (plan.num_blocks + 1) * block_bytes
        notice = [] if asked.notice is None else [asked.notice]
        if unbound is not None:
            notice.append(f"--numa-bind: memory is not bound to a node: {unbound}")
        runner.notices = [*notice, *window.notices, *provider.notices(), *plan.notices]
        runner.cache_config = {
            "block_size": str(size),
            "cache_dtype": kv_cache_dtype,
            "enable_prefix_caching": str(cache.enable_prefix_caching),
            "gpu_memory_utilization": str(cache.memory_fraction),
            "kv_cache_memory_bytes": str(runner.kv_cache_bytes),
            "num_gpu_blocks": str(plan.num_blocks),
            "num_gpu_blocks_override": str(cache.num_blocks),
            "kv_cache_source": plan.source,
        }
        return runner

    def execute(
        self, plan: SchedulerOutput, meanwhile: Callable[[], None] | None = None
    ) -> ModelRunnerOutput:
        """Run one step.

        Args:
            plan: of the step.
            meanwhile: called once in this thread while the first graph call runs.

        Raises:
            EngineError: the graph failed; the state of the cache is then unknown.
        """
        results = [RowResult() for _ in plan.scheduled]
        forward = 0.0
        for segments in graph_calls(plan.scheduled, self._max_call_tokens, MAX_LOGITS_ROWS):
            inputs = self._builder.build(segments)
            begin = time.perf_counter()
            logits = self._session.run(inputs, meanwhile)
            meanwhile = None
            forward += time.perf_counter() - begin
            if inputs.num_rows:
                self._read(plan.scheduled, segments, logits, results)
        return ModelRunnerOutput(results, forward)

    def _read(
        self,
        scheduled: list[ScheduledRequest],
        segments: list[Segment],
        logits: NDArray[np.float32],
        results: list[RowResult],
    ) -> None:
        """Turn the rows of one call into tokens and prompt logprobs."""
        rows: list[int] = []
        indices: list[int] = []
        row = 0
        for segment in segments:
            item = scheduled[segment.index]
            stop = row + segment.num_rows
            end = segment.start + segment.num_tokens
            if segment.num_rows and wants_prompt_logprobs(item):
                self._add_prompt_entries(segment, logits[row:stop], results[segment.index])
            if item.samples and end == item.start + item.num_tokens:
                rows.append(stop - 1)
                indices.append(segment.index)
            row = stop
        if not rows:
            return
        picked = logits if len(rows) == row else logits[rows]
        requests = [scheduled[index].request for index in indices]
        for index, result in zip(indices, self._sampler.sample(picked, requests), strict=True):
            result.prompt_logprobs = results[index].prompt_logprobs
            result.error = result.error or results[index].error
            results[index] = result

    def _add_prompt_entries(
        self, segment: Segment, logits: NDArray[np.float32], result: RowResult
    ) -> None:
        request = segment.request
        first = segment.start + segment.num_tokens - segment.num_rows
        last = min(segment.start + segment.num_tokens, request.num_prompt_tokens - 1)
        targets = request.prompt_token_ids[first + 1 : last + 1]
        rows = logits[: len(targets)]
        if not np.isfinite(rows.max(axis=1)).all():
            result.error = NOT_FINITE
            return
        num_top = request.sampling.prompt_logprobs or 0
        result.prompt_logprobs += self._sampler.prompt_logprobs(rows, targets, num_top)

    def remove(self, request_id: str) -> None:
        """Forget what is kept of a request; unknown ids are ignored."""
        self._sampler.remove(request_id)

    def validate(self, request: EngineRequest) -> None:
        """Check a request before it is admitted.

        Raises:
            InvalidRequest: token ids outside the vocabulary, parameters out of range, or a
                constraint that cannot be compiled or satisfied.
        """
        ids = request.prompt_token_ids
        if not ids:
            raise InvalidRequest("The prompt must not be empty.", "prompt")
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise InvalidRequest(
                f"The prompt contains a token id outside the vocabulary of {self.vocab_size}.",
                "prompt",
            )
        request.sampling.validated(self.vocab_size, self._max_logprobs)
        self._users.validate(request.sampling)
        if request.sampling.structured_output is not None:
            self._grammars.validate(request.sampling.structured_output)
        if request.sampling.thinking is not None:
            self._grammars.vocabulary.token_bytes(0)  # no step should wait for its tokenizer
        if request.sampling.bad_words:
            self._grammars.vocabulary.load()

    def warm_up(self) -> None:
        """A prefill and a decode step in block 1, while no request owns it."""
        self._try_steps(4, ((0, 4), (4, 1)))
        self.trim()

    def read_ahead(self) -> None:
        """Have the grammars' tokenizer read and their process started, unless memory is short: both
        take some 16 times the size of the tokenizer's file, maybe for nothing."""
        if machine.memory_left() > self.kv_cache_bytes + _PLENTY:
            self._grammars.begin_to_load()

    def _try_steps(self, prompt_tokens: int, steps: tuple[tuple[int, int], ...]) -> None:
        """Steps of (first token, tokens) of a request of no client in block 1, with sampling."""
        sampling = SamplingParams(temperature=0.0)
        request = Request("warm-up", [0] * prompt_tokens, sampling, prompt_tokens + len(steps))
        for start, count in steps:
            item = ScheduledRequest(request, start, count, True, [1])
            result = self.execute(SchedulerOutput([item])).rows[0]
            request.token_ids.append(result.token_id or 0)
        self.remove(request.request_id)

    def release(self, part: str, discard: bool) -> None:
        """Give the memory of a part back to the system; no step may run until it is restored.

        Args:
            part: `weights` or `kv_cache`.
            discard: drop the weight files from the system's page cache too.
        """
        home = self._home()
        if part == KV_CACHE:
            if self._loaded:
                bind(self._session, home.specs, home.placeholder())
        else:
            self._loaded = False
            del self._session
            give_back()
            if discard:
                home.forget_files()
        self._absent.add(part)

    def restore(self, part: str) -> None:
        """Have a part again: weights as they are in the bundle, an empty KV cache."""
        home = self._home()
        if part == WEIGHTS:
            self._session = home.open()
            self._loaded = True
        self._absent.discard(part)
        if self._loaded:
            absent = KV_CACHE in self._absent
            pools = home.placeholder() if absent else home.pools(self.num_blocks)
            bind(self._session, home.specs, pools)

    def _home(self) -> Residence:
        if self._residence is None:
            raise EngineError("this runner cannot give its memory back")
        return self._residence

    def trim(self) -> int:
        """Let go of weight pages that are resident without need; for idle moments.

        Returns:
            Bytes given back.
        """
        return drop_clean_pages(self._weight_files)

    def _run_prompt(self, num_tokens: int) -> None:
        """One graph call over a prompt of `num_tokens`, for the profile run."""
        request = Request("profile", [0] * num_tokens, SamplingParams(), num_tokens)
        blocks = list(range(1, _PROFILE_BLOCKS + 1))
        segment = Segment(0, request, 0, num_tokens, 1, blocks)
        self._session.run(self._builder.build([segment]))

    def close(self) -> None:
        """Let go of the session, the pools and the grammars' process."""
        self._grammars.close()
        if self._loaded:
            self._loaded = False
            del self._session
