"""An engine process that computes nothing: `python -m benchmarks.sse.engine` in place of
`ortloom.runtime.engine_process`.

It speaks the real messages over the real socket. Every SSE_STEP seconds each running request gets
the next token of a prose text, all of a step in one message a client, as the real engine sends
them. A request's `max_tokens` ends it; nothing else does.
"""

import argparse
import itertools
import os
import signal
import sys
import time
from pathlib import Path

from benchmarks.sse.bundle import PROSE
from ortloom.config import Config
from ortloom.models.tokenizer import Tokenizer
from ortloom.parent_death import die_with_parent
from ortloom.runtime.engine_process import read_config
from ortloom.runtime.messages import (
    ClientMessage,
    EngineAbort,
    EngineControl,
    EngineOutput,
    EngineOutputs,
    EngineReady,
    EngineReply,
    EngineRequest,
    EngineStats,
    ProviderReport,
    RequestTimes,
    TokenLogprobs,
)
from ortloom.runtime.zmq_endpoint import ZmqEndpoint


class Running:
    """One request on its way."""

    def __init__(self, client: bytes, request: EngineRequest, place: int) -> None:
        self.client = client
        self.request = request
        self.place = place
        self.made = 0


class ScriptedEngine:
    """Paces tokens.

    Args:
        endpoint: the socket.
        tokens: token ids of the text.
        vocabulary: size of it.
        step: seconds a step takes.
    """

    def __init__(
        self, endpoint: ZmqEndpoint, tokens: list[int], vocabulary: int, step: float
    ) -> None:
        self._endpoint = endpoint
        self._tokens = tokens
        self._vocabulary = vocabulary
        self._step = step
        self._running: dict[str, Running] = {}
        self._places = itertools.count(0, 97)  # the streams are at different places of the text
        self._stats = EngineStats(iteration_tokens=[0] * 14)
        self.stopping = False

    def run(self) -> None:
        """Serve until `stopping`."""
        due = time.monotonic()
        while not self.stopping:
            now = time.monotonic()
            wait = max(0.0, due - now) if self._running else 0.2
            for client, message in self._endpoint.drain(wait):
                self._take(client, message)
            if not self._running:
                due = time.monotonic()
            elif time.monotonic() >= due:
                self._advance()
                due += self._step

    def _take(self, client: bytes, message: ClientMessage) -> None:
        match message:
            case EngineRequest(request_id=request_id):
                self._running[request_id] = Running(client, message, next(self._places))
            case EngineAbort(request_ids=request_ids):
                for request_id in request_ids:
                    self._running.pop(request_id, None)
            case EngineControl(method="hello"):
                self._endpoint.send(client, self._ready())
            case EngineControl(call_id=call_id):
                self._endpoint.send(client, EngineReply(call_id, stats=self._stats))

    def _ready(self) -> EngineReady:
        return EngineReady(
            max_model_len=1_000_000,
            vocab_size=self._vocabulary,
            block_size=16,
            num_blocks=1_000_000,
            kv_cache_bytes=1,
            max_num_seqs=1024,
            max_num_batched_tokens=1024,
            enable_prefix_caching=False,
            provider=ProviderReport("scripted", "scripted"),
            engine_pid=os.getpid(),
        )

    def _advance(self) -> None:
        outputs: dict[bytes, list[EngineOutput]] = {}
        now = time.monotonic()
        for request_id, running in list(self._running.items()):
            outputs.setdefault(running.client, []).append(self._next(running, now))
            if running.made >= running.request.sampling.max_tokens:
                del self._running[request_id]
        self._stats.num_steps += 1
        self._stats.num_requests_running = len(self._running)
        self._stats.generation_tokens += sum(map(len, outputs.values()))
        for client, items in outputs.items():
            self._endpoint.send(client, EngineOutputs(items, self._stats, now))

    def _next(self, running: Running, now: float) -> EngineOutput:
        sampling = running.request.sampling
        token = self._tokens[(running.place + running.made) % len(self._tokens)]
        running.made += 1
        ends = running.made >= sampling.max_tokens
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = [self._position(token, sampling.logprobs)]
        times = RequestTimes(now, now, now, now) if running.made == 1 or ends else None
        return EngineOutput(
            running.request.request_id,
            [token],
            logprobs,
            finish_reason="length" if ends else None,
            times=times,
        )

    def _position(self, token: int, count: int) -> TokenLogprobs:
        others = [(token + 37 * i) % self._vocabulary for i in range(count)]
        values = [-0.1234567 - 0.7654321 * i for i in range(count)]
        return TokenLogprobs([token, *others], [-0.1234567, *values], [1, *range(1, count + 1)])


def main() -> int:
    """Entry of the process; the arguments are those of the real one."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--config", default="-")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--ahead", action="store_true")
    options = parser.parse_args()
    die_with_parent(options.parent)
    config: Config = read_config(options.config)
    endpoint = ZmqEndpoint(options.address)
    tokenizer = Tokenizer.load(Path(config.model.tokenizer or config.model.bundle))
    tokens = tokenizer.encode(PROSE.read_text("utf-8"), add_special_tokens=False)
    step = float(os.environ.get("SSE_STEP", "0.05"))
    engine = ScriptedEngine(endpoint, tokens, tokenizer.vocab_size, step)

    def stop(*_: object) -> None:
        engine.stopping = True

    signal.set_wakeup_fd(endpoint.wake_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    engine.run()
    endpoint.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
