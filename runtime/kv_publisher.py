"""Publishing KV events over ZeroMQ (--kv-events-config).

A subscriber gets [topic, sequence number, batch]; numbers are 8 bytes, big-endian, from 0 on. Who
missed some sends [empty frame, first number wanted] to the replay endpoint and gets [empty frame,
number, batch] for each that is still kept, then the number -1 with an empty batch.
"""

import logging
import queue
import threading
import time
from collections import deque

import msgspec
import zmq

from ortloom.config import KVEventsConfig
from ortloom.errors import ConfigError
from ortloom.runtime.kv_events import KVEvent, KVEventBatch

log = logging.getLogger("ortloom.engine")

END = (-1).to_bytes(8, "big", signed=True)

POLL_MS = 50


def bind_address(endpoint: str) -> bool:
    """Whether an endpoint is bound; a named host is connected to."""
    return "*" in endpoint or "::" in endpoint or endpoint.startswith(("ipc://", "inproc://"))


class KVPublisher:
    """Sends batches from a thread of its own, so that no subscriber slows a step down.

    Args:
        config: endpoints and sizes.

    Raises:
        ConfigError: an endpoint cannot be used.
    """

    def __init__(self, config: KVEventsConfig) -> None:
        self._topic = config.topic.encode()
        self._queue: queue.Queue[KVEventBatch | None] = queue.Queue(config.max_queue_size)
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=config.buffer_steps)
        self._encode = msgspec.msgpack.Encoder().encode
        self._next = 0
        self._dropped = 0
        self._context = zmq.Context()
        self._out = self._socket(zmq.PUB, config.endpoint, config.hwm, listens=False)
        self._replay: zmq.Socket[bytes] | None = None
        if config.replay_endpoint is not None:
            self._replay = self._socket(zmq.ROUTER, config.replay_endpoint, 0, listens=True)
        self._thread = threading.Thread(target=self._main, name="ortloom-kv-events", daemon=True)
        self._thread.start()

    def _socket(self, kind: int, endpoint: str, hwm: int, *, listens: bool) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        if hwm:
            socket.setsockopt(zmq.SNDHWM, hwm)
        try:
            if listens or bind_address(endpoint):
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            socket.close()
            self._context.destroy(linger=0)
            raise ConfigError(f"--kv-events-config: cannot use '{endpoint}': {error}") from None
        return socket

    def publish(self, events: list[KVEvent]) -> None:
        """Queue the events of a step; a full queue drops them, which is logged."""
        try:
            self._queue.put_nowait(KVEventBatch(time.time(), events))
        except queue.Full:
            self._dropped += 1
            if self._dropped == 1:
                log.warning("KV events are published too slowly: batches are dropped")

    def close(self) -> None:
        """Send what is queued, and end."""
        self._queue.put(None)
        self._thread.join()
        self._context.destroy(linger=500)

    def _main(self) -> None:
        while True:
            if self._replay is not None and self._replay.poll(0):
                self._answer(self._replay)
            try:
                batch = self._queue.get(timeout=POLL_MS / 1000 if self._replay else None)
            except queue.Empty:
                continue
            if batch is None:
                return
            payload = self._encode(batch)
            number, self._next = self._next, self._next + 1
            self._kept.append((number, payload))
            self._out.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    def _answer(self, replay: "zmq.Socket[bytes]") -> None:
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            log.warning("a replay request of KV events cannot be read")
            return
        client, first = frames[0], int.from_bytes(frames[2], "big")
        for number, payload in self._kept:
            if number >= first:
                replay.send_multipart([client, b"", number.to_bytes(8, "big"), payload])
        replay.send_multipart([client, b"", END, b""])
