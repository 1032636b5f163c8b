"""The ledger of KV blocks: who holds a block, which are free, which still hold a known prefix.

A block is in exactly one of these states (block 0, the null block, is in none of them):

    held         ref_count > 0, not in the free queue; may also be cached (others can join it)
    free+cached  ref_count = 0, in the free queue, contents still findable by their hash
    free         ref_count = 0, in the free queue, contents worthless

Free blocks sit in a doubly linked queue threaded through the blocks: taking from the front, adding
at either end and removing from the middle (a prefix hit) are O(1) without allocation. Blocks
without a hash go to the front, cached ones to the back, the last block of a sequence first; so
the next victim is a worthless block, then the tail of the prefix that was left longest ago.

This module does not know requests or model memory.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from ortloom.runtime.block_hash import BlockHash
from ortloom.runtime.kv_residency import KVResidency

NULL_BLOCK_ID = 0
"""Never given out; tables and slots of -1 map to it in the graph."""


class OutOfBlocks(RuntimeError):
    """More blocks were taken than are free; callers check `num_free` first."""


class Block:
    """One KV block. `previous` and `next` thread the free queue; None outside it."""

    __slots__ = ("block_hash", "block_id", "next", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.block_hash: BlockHash | None = None
        self.previous: Block | None = None
        self.next: Block | None = None


class FreeBlockQueue:
    """Intrusive doubly linked list of free blocks; the front is taken first."""

    def __init__(self) -> None:
        self._head = Block(-1)
        self._tail = Block(-1)
        self._head.next = self._tail
        self._tail.previous = self._head
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Block]:
        block = self._head.next
        while block is not None and block is not self._tail:
            yield block
            block = block.next

    def push_front(self, block: Block) -> None:
        """Put a block where it is taken next."""
        self._insert(block, self._head)

    def push_back(self, block: Block) -> None:
        """Put a block where it is taken last."""
        before = self._tail.previous
        assert before is not None
        self._insert(block, before)

    def pop_front(self) -> Block:
        """Take the next block.

        Raises:
            OutOfBlocks: the queue is empty.
        """
        block = self._head.next
        if block is None or block is self._tail:
            raise OutOfBlocks("no free block")
        self.remove(block)
        return block

    def remove(self, block: Block) -> None:
        """Unlink a block from anywhere in the queue."""
        before, after = block.previous, block.next
        if before is None or after is None:
            raise OutOfBlocks(f"block {block.block_id} is not free")
        before.next, after.previous = after, before
        block.previous = block.next = None
        self._count -= 1

    def _insert(self, block: Block, before: Block) -> None:
        after = before.next
        assert after is not None
        block.previous, block.next = before, after
        before.next = after.previous = block
        self._count += 1


class PrefixListener(Protocol):
    """Hears what becomes of cached prefixes."""

    def stored(self, block: BlockHash) -> None:
        """A block became findable."""

    def removed(self, block: BlockHash) -> None:
        """A block is no longer findable."""

    def cleared(self) -> None:
        """No block is findable any more."""


class BlockPool:
    """Blocks 1 .. num_blocks with their reference counts and the prefix index.

    Args:
        num_blocks: usable blocks; the null block is not among them.
        listener: told what becomes of cached prefixes.

    Attributes:
        residency: measures how long blocks keep their contents; None = nobody does.
    """

    def __init__(self, num_blocks: int, listener: PrefixListener | None = None) -> None:
        self._listener = listener
        self.num_blocks = num_blocks
        self.blocks = [Block(i) for i in range(num_blocks + 1)]
        self.free_queue = FreeBlockQueue()
        for block in self.blocks[1:]:
            self.free_queue.push_back(block)
        self.cached: dict[bytes, Block] = {}
        self.residency: KVResidency | None = None

    @property
    def num_free(self) -> int:
        """Blocks nobody holds."""
        return len(self.free_queue)

    @property
    def num_used(self) -> int:
        """Blocks somebody holds."""
        return self.num_blocks - len(self.free_queue)

    @property
    def usage(self) -> float:
        """Share of blocks in use, 0..1."""
        return self.num_used / self.num_blocks if self.num_blocks else 0.0

    def find(self, block_hash: BlockHash) -> Block | None:
        """The block that holds exactly this prefix, or None. Does not take a reference."""
        block = self.cached.get(block_hash.digest)
        if block is None or block.block_hash is None:
            return None
        return block if block_hash.same_prefix(block.block_hash) else None

    def touch(self, blocks: Iterable[Block]) -> None:
        """Take a reference on cached blocks, pulling free ones out of the queue."""
        for block in blocks:
            if block.ref_count == 0:
                self.free_queue.remove(block)
            block.ref_count += 1
            if self.residency is not None:
                self.residency.used(block.block_id)

    def take(self, count: int) -> list[Block]:
        """Hand out free blocks with ref_count 1; what they held is forgotten.

        Raises:
            OutOfBlocks: fewer are free; nothing is changed then.
        """
        if count > len(self.free_queue):
            raise OutOfBlocks(f"{count} blocks wanted, {len(self.free_queue)} are free")
        taken = [self.free_queue.pop_front() for _ in range(count)]
        for block in taken:
            if self.residency is not None:
                if block.block_hash is not None:
                    self.residency.dropped(block.block_id)
                self.residency.taken(block.block_id)
            self._forget(block)
            block.ref_count = 1
        return taken

    def release(self, blocks: Sequence[Block]) -> None:
        """Drop one reference each. Give a sequence's blocks in table order: its tail is reused
        before its head."""
        for block in reversed(blocks):
            if block.ref_count < 1:
                raise OutOfBlocks(f"block {block.block_id} was released twice")
            block.ref_count -= 1
            if block.ref_count == 0:
                if block.block_hash is None:
                    self.free_queue.push_front(block)
                else:
                    self.free_queue.push_back(block)

    def cache(self, block: Block, block_hash: BlockHash) -> None:
        """Make a held, full block findable. The first block of a digest keeps it: an equal prefix
        computed twice is indexed once, and a colliding one is not indexed."""
        if block.block_hash is None and block_hash.digest not in self.cached:
            block.block_hash = block_hash
            self.cached[block_hash.digest] = block
            if self._listener is not None:
                self._listener.stored(block_hash)

    def reset(self) -> bool:
        """Forget all prefixes; False (and nothing done) while a block is held."""
        if self.num_used:
            return False
        for block in self.cached.values():
            block.block_hash = None
        self.cached.clear()
        if self.residency is not None:
            self.residency.reset()
        if self._listener is not None:
            self._listener.cleared()
        return True

    def _forget(self, block: Block) -> None:
        if block.block_hash is not None:
            del self.cached[block.block_hash.digest]
            if self._listener is not None:
                self._listener.removed(block.block_hash)
            block.block_hash = None
