"""A model runner without a model, and helpers that drive an engine step by step.

FakeModelRunner keeps a KV memory of (token, position) pairs and, like a model, sees nothing but
what the block table leads to. Its next token is a hash of that content and of the seed, so a
wrong block, a stale prefix or a skipped position changes the output.
"""

import hashlib
import time
from collections import defaultdict

from ortloom.config import (
    CacheConfig,
    Config,
    LogConfig,
    ModelConfig,
    SchedulerConfig,
)
from ortloom.errors import InvalidRequest
from ortloom.runtime import invariants
from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.messages import EngineRequest, ProviderReport, TokenLogprobs
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler_output import ModelRunnerOutput, RowResult

VOCAB = 64
EOS = 2
SECONDARY_EOS = 3


class Boom(RuntimeError):
    """An injected fault."""


def next_token(history, seed, vocab=VOCAB, banned=()):
    """The token that follows a history: never a special one unless asked for below."""
    text = ",".join(map(str, history)) + f"|{seed}"
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    token = 8 + number % (vocab - 8)
    return token if token not in banned else 8


class FakeModelRunner:
    """See the module. Attributes are those of ModelRunner.

    `forced` maps a request id to tokens it draws first; `faults` holds step numbers that raise;
    `row_errors` maps a request id to an error of its row (`text` or `text@param`);
    `step_seconds` slows every step; from step `break_at` on nothing works.
    """

    def __init__(
        self, num_blocks=64, block_size=16, max_model_len=None, step_seconds=0.0, break_at=0
    ):
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.vocab_size = VOCAB
        self.max_model_len = max_model_len or num_blocks * block_size
        self.kv_cache_bytes = num_blocks * block_size * 8
        self.provider_report = ProviderReport("fake", "fake", losing={"cuda": "no device"})
        self.cache_config = {"num_gpu_blocks": str(num_blocks)}
        self.notices = ["a notice"]
        self.memory = {}
        self.forced = {}
        self.faults = set()
        self.row_errors = {}
        self.broken = False
        self.break_at = break_at
        self.step_seconds = step_seconds
        self.num_steps = 0
        self.num_warm_ups = 0
        self.num_overlapped = 0
        self.removed = []
        self.absent = {}  # part -> whether its files were dropped too
        self.chunks = defaultdict(list)

    def read_ahead(self):
        pass

    def warm_up(self):
        self.num_warm_ups += 1
        if self.broken:
            raise Boom("the device is gone")

    def release(self, part, discard):
        assert part not in self.absent
        self.absent[part] = discard
        if part == "kv_cache":
            self.memory.clear()

    def restore(self, part):
        del self.absent[part]

    def validate(self, request):
        grammar = request.sampling.structured_output
        if grammar is not None and grammar.value == "slow":
            time.sleep(0.3)
        if grammar is not None and grammar.value == "bad":
            raise InvalidRequest("the grammar does not compile", "structured_outputs")

    def remove(self, request_id):
        self.removed.append(request_id)

    def execute(self, plan, meanwhile=None):
        assert not self.absent
        self.num_steps += 1
        if meanwhile is not None:
            self.num_overlapped += 1
            meanwhile()
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.broken |= self.num_steps == self.break_at
        if self.broken or self.num_steps in self.faults:
            raise Boom("injected")
        for item in plan.scheduled:
            request = item.request
            self.chunks[request.request_id].append((item.start, item.num_tokens))
            for position in range(item.start, item.start + item.num_tokens):
                block = item.block_ids[position // self.block_size]
                assert 1 <= block <= self.num_blocks
                slot = (block, position % self.block_size)
                self.memory[slot] = (request.token_ids[position], position)
        return ModelRunnerOutput([self._row(item) for item in plan.scheduled])

    def _row(self, item):
        request = item.request
        if request.request_id in self.row_errors:
            error, _, param = self.row_errors[request.request_id].partition("@")
            return RowResult(error=error, error_param=param or None)
        history = self._read(item)
        row = RowResult()
        if request.sampling.prompt_logprobs is not None:
            last = min(item.start + item.num_tokens, request.num_prompt_tokens - 1)
            for position in range(item.start + 1, last + 1):
                seen = history[:position]
                value = -next_token(seen, 0) / VOCAB
                token = request.token_ids[position]
                row.prompt_logprobs.append(TokenLogprobs([token], [value], [1]))
        if item.samples:
            forced = self.forced.get(request.request_id, ())
            index = request.num_output_tokens
            if index < len(forced):
                row.token_id = forced[index]
            else:
                row.token_id = next_token(history, 0 if request.sampling.greedy else request.seed)
            if request.sampling.logprobs is not None:
                row.logprobs = TokenLogprobs([row.token_id], [-0.5], [1])
        return row

    def _read(self, item):
        """The tokens that the block table leads to."""
        history = []
        for position in range(item.start + item.num_tokens):
            block = item.block_ids[position // self.block_size]
            token, stored = self.memory[(block, position % self.block_size)]
            assert stored == position, "a slot holds another position's entry"
            history.append(token)
        return history


def make_config(**options):
    """A Config from flat options: fields of the scheduler, cache, model and log sections."""
    sections = {"scheduler": SchedulerConfig, "cache": CacheConfig, "log": LogConfig}
    built = {}
    for name, kind in sections.items():
        fields = {k: options.pop(k) for k in kind.__struct_fields__ if k in options}
        built[name] = kind(**fields)
    return Config(model=ModelConfig(bundle="fake", **options), **built)


def greedy(**fields):
    return SamplingParams(**{"temperature": 0.0, "eos_token_ids": [EOS], **fields})


def make_request(request_id, prompt, max_tokens=8, **fields):
    outer = {k: fields.pop(k) for k in ("priority", "cache_salt", "arrival_time") if k in fields}
    sampling = greedy(max_tokens=max_tokens, **fields)
    return EngineRequest(request_id, list(prompt), sampling, **outer)


def solo_tokens(prompt, num_tokens, seed=0):
    """What a request with these tokens generates when nothing disturbs it."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, seed))
    return tokens[len(prompt) :]


class Clock:
    """Time that moves when told."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class CollectingOutbox:
    """Keeps what was sent; `unreachable` and `stuck` clients refuse."""

    def __init__(self):
        self.messages = []
        self.unreachable = set()
        self.stuck = set()

    def send(self, client_id, message):
        if client_id in self.unreachable:
            return "gone"
        if client_id in self.stuck:
            return "full"
        self.messages.append((client_id, message))
        return "sent"


class Harness:
    """An EngineCore driven step by step, with invariants checked after each step."""

    def __init__(self, runner=None, clock=None, **options):
        self.runner = runner or FakeModelRunner()
        self.clock = clock or Clock()
        self.core = EngineCore(make_config(**options), self.runner, self.clock)
        self.outbox = CollectingOutbox()
        self.watch = invariants.TableWatch()
        self.client = b"c1"

    @property
    def scheduler(self):
        return self.core.scheduler

    @property
    def stats(self):
        return self.core.scheduler.stats()

    def send(self, message, client=None):
        self.core.apply(client or self.client, message)

    def add(self, request_id, prompt, max_tokens=8, client=None, **fields):
        self.send(make_request(request_id, prompt, max_tokens, **fields), client)

    def step(self):
        self.clock.now += 0.01
        self.core.step()
        self.core.flush(self.outbox)
        invariants.check(self.core.pool, self.scheduler)
        self.watch.check(self.scheduler)

    def run(self, max_steps=20_000):
        for _ in range(max_steps):
            self.step()
            if not self.scheduler.has_work:
                return self
        raise AssertionError(f"still busy after {max_steps} steps")

    def outputs(self, request_id):
        """All outputs of one request, in order."""
        return [
            output
            for _, message in self.outbox.messages
            for output in getattr(message, "outputs", ())
            if output.request_id == request_id
        ]

    def tokens(self, request_id):
        return [t for output in self.outputs(request_id) for t in output.new_token_ids]

    def last(self, request_id):
        return self.outputs(request_id)[-1]

    def assert_idle(self):
        stats = self.stats
        assert (stats.num_requests_running, stats.num_requests_waiting) == (0, 0)
        assert stats.kv_cache_usage == 0.0
        assert self.core.pool.num_free == self.core.pool.num_blocks
