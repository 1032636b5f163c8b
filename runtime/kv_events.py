"""What happens to cached blocks, in the form that vLLM publishes it.

A batch is the msgpack array [time, events, rank]; an event is an array that begins with its kind:
["BlockStored", hashes, parent, token_ids, block_size, lora_id, medium], ["BlockRemoved", hashes,
medium] or ["AllBlocksCleared"]. Hashes are the last 64 bits of the digests, as numbers.
"""

import msgspec

from ortloom.runtime.block_hash import BlockHash

MEDIUM = "GPU"
"""What readers of these events call the memory that the model reads, whatever it is."""


class BlockStored(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """Blocks that follow each other became findable; `parent` is the block before the first."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class BlockRemoved(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """Blocks are no longer findable."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    """Nothing is findable any more."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    """Events of one step; `ts` in unix seconds."""

    ts: float
    events: list[KVEvent]
    data_parallel_rank: int | None = None


def external(block_hash: BlockHash) -> int:
    """The number a block is known by outside."""
    return int.from_bytes(block_hash.digest[-8:], "big")


class KVEventLog:
    """Collects events between two calls of `take`; a BlockPool tells it.

    Args:
        block_size: tokens a block.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._events: list[KVEvent] = []
        self._last: BlockHash | None = None

    def stored(self, block: BlockHash) -> None:
        """A block became findable; blocks that follow each other are put into one event."""
        event = self._events[-1] if self._events else None
        if isinstance(event, BlockStored) and block.parent is self._last:
            event.block_hashes.append(external(block))
            event.token_ids.extend(block.token_ids)
        else:
            parent = None if block.parent is None else external(block.parent)
            tokens, size = list(block.token_ids), self._block_size
            hashes = [external(block)]
            self._events.append(BlockStored(hashes, parent, tokens, size, None, MEDIUM))
        self._last = block

    def removed(self, block: BlockHash) -> None:
        """A block was given to somebody else."""
        event = self._events[-1] if self._events else None
        if isinstance(event, BlockRemoved):
            event.block_hashes.append(external(block))
        else:
            self._events.append(BlockRemoved([external(block)], MEDIUM))

    def cleared(self) -> None:
        """All prefixes were forgotten."""
        self._events.append(AllBlocksCleared())

    def take(self) -> list[KVEvent]:
        """Events since the last call, in order."""
        events, self._events, self._last = self._events, [], None
        return events
