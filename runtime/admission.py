"""From a wire message to a `Request`: the checks that stand between a client and the scheduler."""

import random

from ortloom.errors import ContextLengthExceeded, InvalidRequest, QueueFull
from ortloom.runtime.messages import EngineRequest, RequestTimes
from ortloom.runtime.request import Request
from ortloom.runtime.scheduler import Scheduler

SEED_BITS = 63


class Admission:
    """Checks and completes requests.

    Args:
        scheduler: asked for ids in use and queue lengths.
        max_model_len: context in tokens.
        vocab_size: token ids are below it.
        max_logprobs: cap of logprobs; -1 = none.
        max_num_queued_reqs: cap of live requests, waiting and running; None = no cap.
        max_num_queued_tokens: cap of prompt tokens that are not computed yet; None = no cap.
        seed: start of the generator that gives unseeded requests their seed.
        trace_replay: whether requests may force their output.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        max_model_len: int,
        vocab_size: int,
        max_logprobs: int,
        max_num_queued_reqs: int | None,
        max_num_queued_tokens: int | None,
        seed: int,
        trace_replay: bool = False,
    ) -> None:
        self._trace_replay = trace_replay
        self._scheduler = scheduler
        self._max_model_len = max_model_len
        self._vocab_size = vocab_size
        self._max_logprobs = max_logprobs
        self._max_reqs = max_num_queued_reqs
        self._max_tokens = max_num_queued_tokens
        self._seeds = random.Random(seed)
        self._serial = 0

    def admit(self, message: EngineRequest, client_id: bytes, num_pending: int = 0) -> Request:
        """The scheduler-side request of a message.

        Args:
            message: as received.
            client_id: who gets the outputs.
            num_pending: requests on their way to the scheduler that it does not know yet.

        Raises:
            InvalidRequest: it can never be served; names the field.
            ContextLengthExceeded: the prompt leaves no room in the context or the KV cache.
            QueueFull: an admission limit is reached.
        """
        self._check_prompt(message)
        sampling = message.sampling.validated(self._vocab_size, self._max_logprobs)
        self._check_trace(message)
        total = self._max_total_tokens(message)
        self._check_capacity(message, num_pending)
        now = self._scheduler.clock()
        arrival = min(message.arrival_time or now, now)
        self._serial += 1
        seed = sampling.seed
        return Request(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            sampling=sampling,
            max_total_tokens=total,
            priority=message.priority,
            arrival_time=arrival,
            cache_salt=message.cache_salt,
            client_id=client_id,
            serial=self._serial,
            seed=self._seeds.getrandbits(SEED_BITS) if seed is None else seed,
            times=RequestTimes(queued=now),
        )

    def _check_prompt(self, message: EngineRequest) -> None:
        if message.request_id in self._scheduler.requests:
            raise InvalidRequest(f"request id '{message.request_id}' is in use.", "request_id")
        prompt = message.prompt_token_ids
        if not prompt:
            raise InvalidRequest("The prompt must hold at least one token.", "prompt")
        low, high = min(prompt), max(prompt)
        if low < 0 or high >= self._vocab_size:
            bad = low if low < 0 else high
            raise InvalidRequest(
                f"Token id {bad} is out of vocabulary ({self._vocab_size} ids).", "prompt"
            )

    def _check_trace(self, message: EngineRequest) -> None:
        trace = message.sampling.trace_decode_token_ids
        if trace is None:
            return
        if not self._trace_replay:
            raise InvalidRequest(
                "trace_decode_token_ids needs the server flag --enable-trace-replay.",
                "trace_decode_token_ids",
            )
        if message.sampling.structured_output is not None:
            raise InvalidRequest(
                "trace_decode_token_ids cannot be combined with structured outputs.",
                "trace_decode_token_ids",
            )
        bad = next((t for t in trace if not 0 <= t < self._vocab_size), None)
        if bad is not None:
            raise InvalidRequest(
                f"Token id {bad} is out of vocabulary ({self._vocab_size} ids).",
                "trace_decode_token_ids",
            )

    def _max_total_tokens(self, message: EngineRequest) -> int:
        """Prompt plus output, clamped to the context and to what the KV cache can ever hold (the
        last token of a sequence needs no place there)."""
        length = len(message.prompt_token_ids)
        wanted = message.sampling.max_tokens
        context = self._max_model_len
        if length > context or (length == context and wanted != 0):
            raise ContextLengthExceeded(
                f"This model's maximum context length is {context} tokens, but the prompt has "
                f"{length} tokens.",
                "prompt",
            )
        places = self._scheduler.kv.capacity_tokens
        if length > places:
            raise ContextLengthExceeded(
                f"The prompt has {length} tokens, but the KV cache holds {places} tokens in all.",
                "prompt",
            )
        limit = min(context, places + 1)
        return limit if wanted is None else min(length + wanted, limit)

    def _check_capacity(self, message: EngineRequest, num_pending: int) -> None:
        live = len(self._scheduler.requests) + num_pending
        if self._max_reqs is not None and live >= self._max_reqs:
            raise QueueFull(f"The queue is full: {live} requests of {self._max_reqs}.")
        if self._max_tokens is not None:
            tokens = self._scheduler.num_pending_prefill_tokens + len(message.prompt_token_ids)
            if tokens > self._max_tokens:
                raise QueueFull(f"The queue is full: {tokens} prompt tokens of {self._max_tokens}.")
