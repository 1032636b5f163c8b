"""Offline use of a bundle: `LLM(bundle).generate(prompts)`.

The engine runs in a thread of this process behind the same client interface as in the server. Text
lives here: tokenizer, chat template, stop strings.
"""

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import msgspec

from ortloom.config import (
    CacheConfig,
    Config,
    ModelConfig,
    ProviderConfig,
    SchedulerConfig,
    StructuredOutputsConfig,
)
from ortloom.errors import ContextLengthExceeded, InvalidRequest, OrtloomError
from ortloom.models.chat_template import ChatTemplate, Message
from ortloom.models.generation_config import GenerationDefaults
from ortloom.models.manifest import Manifest
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.background_loop import BackgroundLoop
from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.engine_protocols import Runner
from ortloom.runtime.in_process_client import InProcessClient
from ortloom.runtime.messages import EngineReady
from ortloom.runtime.offline_requests import OfflineJob, OfflineRequests
from ortloom.runtime.request_output import CompletionOutput, Logprob, RequestMetrics, RequestOutput
from ortloom.runtime.sampling_params import SamplingParams

__all__ = ["LLM", "CompletionOutput", "Logprob", "RequestMetrics", "RequestOutput"]

Prompt = str | Sequence[int]

DEFAULT_MAX_TOKENS = 16
"""Output limit where neither the caller nor the model's generation config says one."""


def load_core(config: Config) -> EngineCore:
    """A warm engine over the real ModelRunner."""
    from ortloom.runtime.model_runner import ModelRunner

    runner: Runner = ModelRunner.load(config)
    return EngineCore(config, runner)


class LLM:
    """A loaded bundle.

    Use as a context manager or call `close`. Calls may come from several threads; their requests
    are batched together.

    Args:
        bundle: the folder `ortloom export` wrote.
        tokenizer: another folder with tokenizer files; None = the bundle's.
        skip_tokenizer_init: token ids in and out only.
        max_model_len: context in tokens; None = the model's, fitted to the KV cache.
        generation_config: auto (the bundle's sampling defaults), vllm (neutral), or a folder.
        max_logprobs: cap of logprobs and prompt_logprobs; -1 = none.
        logprobs_mode: raw or processed, logprobs or logits.
        seed: start of the seeds that unseeded requests get.
        block_size: tokens a KV block.
        num_blocks: KV blocks; None = sized from memory.
        kv_cache_memory_bytes: KV cache size; `num_blocks` goes before it.
        kv_cache_dtype: what the KV cache holds: auto, float32, float16, bfloat16 or
            int8_per_token_head.
        enable_prefix_caching: share blocks of equal prefixes.
        max_num_seqs: requests that run together.
        max_num_batched_tokens: tokens a step; None = 2048.
        enable_chunked_prefill: compute long prompts in parts.
        scheduling_policy: fcfs, priority or lpm (longest cached prefix first).
        provider: auto, or one that must be used.
        threads: 0 = as many as there are physical cores for this process.
        structured_outputs: grammar engine, and whether tokens that a grammar forces are computed as
            one step.
        logits_processors: classes of your own that change logits, as module:Class.
        verify: hash weight contents first.

    Raises:
        OrtloomError: the bundle cannot be read or run here, with the reason.
    """

    def __init__(
        self,
        bundle: str | Path,
        *,
        tokenizer: str | Path | None = None,
        skip_tokenizer_init: bool = False,
        max_model_len: int | None = None,
        generation_config: str = "auto",
        max_logprobs: int = 20,
        logprobs_mode: Literal[
            "raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"
        ] = "raw_logprobs",
        seed: int = 0,
        block_size: int = 16,
        num_blocks: int | None = None,
        kv_cache_memory_bytes: int | None = None,
        kv_cache_dtype: str = "auto",
        enable_prefix_caching: bool = True,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int | None = None,
        enable_chunked_prefill: bool = True,
        scheduling_policy: Literal["fcfs", "priority", "lpm"] = "fcfs",
        provider: Literal["auto", "tensorrt", "tensorrt_ep", "cuda", "cpu", "plain"] = "auto",
        threads: int = 0,
        structured_outputs: StructuredOutputsConfig | None = None,
        logits_processors: Sequence[str] = (),
        verify: bool = False,
    ) -> None:
        self._start(
            Config(
                model=ModelConfig(
                    bundle=str(bundle),
                    tokenizer=None if tokenizer is None else str(tokenizer),
                    skip_tokenizer_init=skip_tokenizer_init,
                    max_model_len=max_model_len,
                    generation_config=generation_config,
                    max_logprobs=max_logprobs,
                    logprobs_mode=logprobs_mode,
                    seed=seed,
                    logits_processors=tuple(logits_processors),
                    verify=verify,
                ),
                cache=CacheConfig(
                    block_size=block_size,
                    num_blocks=num_blocks,
                    kv_cache_memory_bytes=kv_cache_memory_bytes,
                    kv_cache_dtype=kv_cache_dtype,
                    enable_prefix_caching=enable_prefix_caching,
                ),
                scheduler=SchedulerConfig(
                    max_num_seqs=max_num_seqs,
                    max_num_batched_tokens=max_num_batched_tokens,
                    enable_chunked_prefill=enable_chunked_prefill,
                    policy=scheduling_policy,
                ),
                structured_outputs=structured_outputs or StructuredOutputsConfig(),
                provider=ProviderConfig(provider=provider, threads=threads),
            )
        )

    @classmethod
    def from_config(cls, config: Config) -> "LLM":
        """An LLM of a whole configuration tree; its `front` and `log` sections are not used.

        Raises:
            OrtloomError: as the constructor.
        """
        llm = cls.__new__(cls)
        llm._start(config)
        return llm

    def _start(self, config: Config) -> None:
        self._config = config
        folder = Path(config.model.bundle)
        architecture = Manifest.load(folder).architecture
        self._eos_token_ids = list(architecture.eos_token_ids)
        self._vocab_size = architecture.vocab_size
        self._defaults = GenerationDefaults.resolve(
            folder,
            config.model.generation_config,
            config.model.override_generation_config,
            architecture.eos_token_ids,
        )
        self.tokenizer: Tokenizer | None = None
        self._template: ChatTemplate | None = None
        if not config.model.skip_tokenizer_init:
            source = Path(config.model.tokenizer or folder)
            named = config.model.tokenizer_config
            self.tokenizer = Tokenizer.load(source, None if named is None else Path(named))
            self._template = ChatTemplate.load(source, self.tokenizer, own_config=named is None)
        self._client = InProcessClient(lambda: load_core(config))
        self._requests = OfflineRequests(self._client, self.tokenizer)
        self._loop = BackgroundLoop("ortloom-llm")
        # Also runs when the object is dropped and when the interpreter ends.
        self._finalizer = weakref.finalize(self, _shut_down, self._loop, self._client)
        try:
            self._ready = self._loop.run(self._connect())
        except BaseException:
            self.close()
            raise

    async def _connect(self) -> EngineReady:
        await self._client.start()
        try:
            return await self._client.wait_ready()
        except OrtloomError:
            raise self._client.failure or RuntimeError("the engine did not start") from None

    @property
    def max_model_len(self) -> int:
        """Context in tokens."""
        return self._ready.max_model_len

    @property
    def engine(self) -> EngineReady:
        """Facts about the engine: provider, block count, notices."""
        return self._ready

    def get_default_sampling_params(self) -> SamplingParams:
        """What is used when no sampling parameters are given: those of the generation config."""
        defaults = self._defaults
        return SamplingParams(
            temperature=1.0 if defaults.temperature is None else defaults.temperature,
            top_p=1.0 if defaults.top_p is None else defaults.top_p,
            top_k=defaults.top_k or 0,
            min_p=defaults.min_p or 0.0,
            repetition_penalty=defaults.repetition_penalty or 1.0,
            max_tokens=defaults.max_new_tokens or DEFAULT_MAX_TOKENS,
        )

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> list[RequestOutput]:
        """Generate for one prompt or many; the results are in the order of the prompts.

        Args:
            prompts: text or token ids, or a list of them.
            sampling_params: one for all, one for each, or None for the model's defaults. With
                max_tokens None a request runs to the end of the context.
            priority: lower is served earlier (policy priority only).
            cache_salt: prefixes are shared among equal salts only.

        Raises:
            InvalidRequest: a prompt or parameter that cannot be served; nothing is generated then.
            ContextLengthExceeded: a prompt that leaves no room.
            EngineDead, RequestFailed: the engine failed.
        """
        listed = _as_list(prompts)
        params = self._params_for(len(listed), sampling_params)
        jobs = []
        for prompt, given in zip(listed, params, strict=True):
            token_ids = self._token_ids(prompt)
            text = prompt if isinstance(prompt, str) else None
            jobs.append(OfflineJob(text, token_ids, self._resolve(given, token_ids)))
        return self._loop.run(self._requests.generate_all(jobs, priority, cache_salt))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Generate the next message of one conversation or of many.

        Args:
            messages: a conversation (a list of messages), or a list of conversations.
            sampling_params: as in `generate`.
            chat_template: a template text instead of the bundle's.
            add_generation_prompt: open a message of the model at the end.
            continue_final_message: go on with the last message instead.
            tools: tool objects for the template.
            chat_template_kwargs: further variables of the template.

        Raises:
            InvalidRequest: as `generate`; or there is no template, or it refuses the messages.
        """
        template = self._template
        if chat_template is not None and self.tokenizer is not None:
            template = ChatTemplate({"default": chat_template}, self.tokenizer.special_tokens)
        if template is None or self.tokenizer is None:
            raise InvalidRequest("chat needs a tokenizer and a chat template.", "messages")
        prompts: list[Prompt] = []
        for conversation in _conversations(messages):
            text = template.render(
                conversation,
                tools=tools,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                kwargs=chat_template_kwargs,
            )
            prompts.append(self.tokenizer.encode(text, add_special_tokens=False))
        return self.generate(prompts, sampling_params)

    def reset_prefix_cache(self) -> bool:
        """Forget cached prefixes; False while requests run."""
        return self._loop.run(self._client.reset_prefix_cache())

    def close(self) -> None:
        """End all requests and free the engine; later calls raise RuntimeError."""
        self._finalizer()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- requests

    def _token_ids(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        if self.tokenizer is None:
            raise InvalidRequest("A text prompt needs a tokenizer; give token ids.", "prompt")
        return self.tokenizer.encode(prompt)

    def _params_for(
        self, count: int, given: SamplingParams | Sequence[SamplingParams] | None
    ) -> Sequence[SamplingParams]:
        if given is None:
            given = self.get_default_sampling_params()
        if isinstance(given, SamplingParams):
            return [given] * count
        if len(given) != count:
            raise InvalidRequest(
                f"There are {count} prompts and {len(given)} sampling parameters.",
                "sampling_params",
            )
        return given

    def _resolve(self, params: SamplingParams, token_ids: list[int]) -> SamplingParams:
        """Checked parameters with the model's end ids filled in."""
        context = self.max_model_len
        if not token_ids:
            raise InvalidRequest("The prompt must hold at least one token.", "prompt")
        if len(token_ids) >= context:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens, but the prompt has "
                f"{len(token_ids)} tokens.",
                "prompt",
            )
        for token in token_ids:
            if not 0 <= token < self._vocab_size:
                raise InvalidRequest(
                    f"Token id {token} is out of vocabulary ({self._vocab_size} ids).", "prompt"
                )
        if params.stop and self.tokenizer is None:
            raise InvalidRequest("Stop strings need a tokenizer.", "stop")
        changes: dict[str, Any] = {}
        if not params.eos_token_ids:
            changes["eos_token_ids"] = self._eos_token_ids
        if not params.secondary_eos_token_ids:
            changes["secondary_eos_token_ids"] = list(self._defaults.secondary_eos_token_ids)
        filled = msgspec.structs.replace(params, **changes)
        return filled.validated(self._vocab_size, self._config.model.max_logprobs)


def _shut_down(loop: BackgroundLoop, client: InProcessClient) -> None:
    loop.run(client.close())
    loop.stop()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str):
        return [prompts]
    listed: list[Any] = list(prompts)
    if listed and isinstance(listed[0], int):
        return [listed]
    return listed


def _conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[list[Message]]:
    listed: list[Any] = list(messages)
    if listed and isinstance(listed[0], Mapping):
        return [listed]
    return [list(conversation) for conversation in listed]
