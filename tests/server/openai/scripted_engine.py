"""An engine client that answers from a script: same protocol, known tokens, known failures."""

import asyncio
import threading

from ortloom.runtime.messages import (
    EngineOutput,
    EngineReady,
    EngineStats,
    ProviderReport,
    RequestTimes,
    TokenDetail,
    TokenLogprobs,
)


class ScriptedEngine:
    """Gives each request the tokens of `reply(request)`, some tokens an output.

    Attributes:
        reply: request -> token ids it would generate without end; cycled if short.
        step: tokens an output.
        refusal: raised before the first output.
        failure: (number of tokens, exception) raised after that many tokens.
        mask: the sampling mask of every token.
        controls: the control calls so far.
        cached: num_cached_tokens of every request.
        offers: outputs are offered to the taker.
        taken: outputs that it took.
        delay: seconds before the first output.
        hold: when set to an Event, outputs after the first wait for it.
    """

    def __init__(self, vocab_size):
        self.vocab_size = vocab_size
        self.all_closed = threading.Event()
        self.stats = EngineStats()
        self.reset()

    def reset(self):
        """As new, for the next test."""
        self.reply = lambda request: [1]
        self.step = 1
        self.refusal = None
        self.failure = None
        self.cached = 0
        self.offers = True
        self.taken = 0
        self.delay = 0.0
        self.hold = None
        self.mask = [1, 2]
        self.requests = []
        self.controls = []
        self.open = set()
        self.stopped = []
        self.produced = 0
        self.dead = None
        self.ready = EngineReady(
            max_model_len=64,
            vocab_size=self.vocab_size,
            block_size=16,
            num_blocks=64,
            kv_cache_bytes=1,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            enable_prefix_caching=True,
            provider=ProviderReport("scripted", "plain"),
        )

    async def start(self):
        pass

    async def close(self):
        pass

    async def reset_prefix_cache(self, reset_running_requests=False):
        self.controls.append(("reset_prefix_cache", reset_running_requests))
        return True

    async def control(self, call):
        self.controls.append(call)
        return {}

    async def fetch_stats(self):
        return self.stats

    async def abort(self, request_ids, finish_reason="abort"):
        self.stopped += [(r, finish_reason) for r in request_ids]

    async def generate(self, request, taker=None):
        self.requests.append(request)
        if self.refusal is not None:
            raise self.refusal
        self.open.add(request.request_id)
        self.all_closed.clear()
        try:
            async for output in self._outputs(request):
                # whoever reads this generator waits for it, so all that the taker wants is its
                if taker is not None and self.offers and taker(output):
                    self.taken += 1
                else:
                    yield output
        finally:
            self.open.discard(request.request_id)
            if not self.open:
                self.all_closed.set()

    async def _outputs(self, request):
        tokens, done = self.reply(request), []
        sampling = request.sampling
        first = True
        await asyncio.sleep(self.delay)
        while True:
            batch, reason, stop_reason = [], None, None
            if sampling.max_tokens == 0:
                reason = "length"
            while len(batch) < self.step and reason is None:
                if self.failure is not None and len(done) >= self.failure[0]:
                    raise self.failure[1]
                token = tokens[len(done) % len(tokens)]
                batch.append(token)
                done.append(token)
                reason, stop_reason = self._finish(sampling, done, token)
            self.produced += len(batch)
            if not first and self.hold is not None:
                await self.hold.wait()
            await asyncio.sleep(0)
            yield EngineOutput(
                request_id=request.request_id,
                new_token_ids=batch,
                logprobs=self._logprobs(batch, sampling),
                details=[TokenDetail(-1.5, -0.25, 7) for _ in batch]
                if sampling.logprobs_detail
                else None,
                masks=[self.mask for _ in batch] if sampling.sampling_mask else None,
                prompt_logprobs=self._prompt_logprobs(request) if first else None,
                finish_reason=reason,
                stop_reason=stop_reason,
                num_cached_tokens=self.cached,
                times=RequestTimes(1.0, 1.0, 1.0, 1.0) if first or reason else None,
            )
            first = False
            if reason is not None:
                return

    def _finish(self, sampling, done, token):
        if len(done) >= sampling.min_tokens:
            if not sampling.ignore_eos and token in sampling.eos_token_ids:
                return "stop", None
            if token in sampling.stop_token_ids:
                return "stop", token
            if not sampling.ignore_eos and token in sampling.secondary_eos_token_ids:
                return "stop", token
        return ("length", None) if len(done) >= sampling.max_tokens else (None, None)

    def _logprobs(self, tokens, sampling):
        if sampling.logprobs is None:
            return None
        return [self._position(token, sampling.logprobs) for token in tokens]

    def _position(self, token, count):
        """Own token at -1.5, the likeliest others are ids 10, 11, …; one is cut."""
        count = self.vocab_size - 10 if count < 0 else count
        others = list(range(10, 10 + count))
        values = [-0.5 - 0.25 * i for i in range(count)]
        if count:
            values[-1] = float("-inf")
        ranks = list(range(1, count + 1))
        return TokenLogprobs([token, *others], [-1.5, *values], [7, *ranks])

    def _prompt_logprobs(self, request):
        count = request.sampling.prompt_logprobs
        if count is None:
            return None
        return [None, *(self._position(t, count) for t in request.prompt_token_ids[1:])]
