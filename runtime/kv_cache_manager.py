r"""Block tables of requests over a BlockPool: the only code that touches the pool.

    request.block_ids:   [ 12 |  7 |  3 | 41 |  9 ]        append-only while the request runs
                          \____ hits ____/ \_ own _/
    tokens:              0 ............ num_computed_tokens ..... len(block_ids) * block_size

Blocks below num_computed_tokens // block_size are full: they are read-only and, after `commit`,
findable by others. Blocks above are written by this request alone.
"""

from ortloom.runtime.block_digest import load_digest
from ortloom.runtime.block_hash import BlockHash, extend_chain
from ortloom.runtime.block_pool import Block, BlockPool
from ortloom.runtime.request import Request


class KVCacheManager:
    """Finds, allocates, publishes and frees KV blocks.

    Args:
        pool: the ledger.
        block_size: tokens a block holds.
        enable_caching: whether full blocks are shared by prefix.
        algorithm: name of the digest of prefixes, see `block_digest`.

    Raises:
        ConfigError: no such digest here.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        enable_caching: bool,
        algorithm: str = "sha256",
    ) -> None:
        self._digest = load_digest(algorithm)
        self.pool = pool
        self.block_size = block_size
        self.enable_caching = enable_caching

    @property
    def capacity_tokens(self) -> int:
        """Tokens the whole pool holds."""
        return self.pool.num_blocks * self.block_size

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens fill."""
        return -(-num_tokens // self.block_size)

    def reads_cache(self, request: Request) -> bool:
        """Whether a prefix may be reused (not while prompt logprobs are missing)."""
        if not self.enable_caching:
            return False
        wanted = request.sampling.prompt_logprobs is not None
        return not wanted or len(request.prompt_logprobs) >= request.num_prompt_tokens

    def find_cached_prefix(self, request: Request) -> list[Block]:
        """Leading full blocks of the known tokens that are cached, without taking references.

        At least the last known token is left out, since its logits are needed. `block_hashes` of
        the request is extended by what was looked up.
        """
        if not self.reads_cache(request):
            return []
        hits: list[Block] = []
        for index in range((request.num_tokens - 1) // self.block_size):
            block = self.pool.find(self._hash_of(request, index))
            if block is None or block.block_hash is None:
                break
            if request.block_hashes[index] is not block.block_hash:
                request.block_hashes[index] = block.block_hash
                del request.block_hashes[index + 1 :]
            hits.append(block)
        return hits

    def num_available(self, hits: list[Block]) -> int:
        """Free blocks left once `hits` are held."""
        return self.pool.num_free - sum(block.ref_count == 0 for block in hits)

    def allocate(self, request: Request, num_tokens: int, hits: list[Block]) -> bool:
        """Grow the table to hold `num_tokens` tokens, starting with `hits` if the table is empty.

        Returns:
            False if the pool has too few free blocks; nothing is changed then.
        """
        missing = self._missing(request, num_tokens, hits)
        if missing <= 0 and not hits:
            return True
        if missing > self.num_available(hits):
            return False
        self.pool.touch(hits)
        try:
            taken = self.pool.take(missing) if missing > 0 else []
        except BaseException:
            self.pool.release(hits)
            raise
        if hits:
            request.num_committed_blocks = len(hits)
            request.block_ids.extend(block.block_id for block in hits)
        request.block_ids.extend(block.block_id for block in taken)
        return True

    def commit(self, request: Request) -> None:
        """Publish blocks that are full of computed tokens; call after the step that did it."""
        if not self.enable_caching:
            return
        first = request.num_committed_blocks
        last = request.num_computed_tokens // self.block_size
        for index in range(first, last):
            block = self.pool.blocks[request.block_ids[index]]
            self.pool.cache(block, self._hash_of(request, index))
        request.num_committed_blocks = max(first, last)

    def free(self, request: Request) -> None:
        """Give all blocks back; cached contents stay findable until they are reused."""
        self.pool.release([self.pool.blocks[i] for i in request.block_ids])
        request.block_ids = []
        request.num_committed_blocks = 0

    def reset(self) -> bool:
        """Forget all cached prefixes; False while any block is held."""
        return self.pool.reset()

    def _missing(self, request: Request, num_tokens: int, hits: list[Block]) -> int:
        return self.blocks_for(num_tokens) - len(request.block_ids) - len(hits)

    def _hash_of(self, request: Request, index: int) -> BlockHash:
        """The chain node of block `index`; nodes before it exist already."""
        chain = request.block_hashes
        if index >= len(chain):
            size = self.block_size
            tokens = request.token_ids[index * size : (index + 1) * size]
            parent = chain[index - 1] if index else None
            chain.append(extend_chain(parent, tokens, request.cache_salt, self._digest))
        return chain[index]
