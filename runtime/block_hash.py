"""Identity of a full block of tokens together with everything before it.

A `BlockHash` is a node of a chain: digest of (parent digest, this block's tokens, extras). The
digest finds a cached block; the tokens, extras and parents held in the node decide whether it
really is the same prefix, so two prefixes with equal digests never share memory.
"""

import hashlib
from collections.abc import Sequence

from ortloom.runtime.block_digest import BlockDigest

ROOT_DIGEST = hashlib.sha256(b"ortloom prefix chain 1").digest()
"""Parent digest of the first block of every sequence."""


class BlockHash:
    """One node of a prefix chain; treat as immutable.

    `extra` holds what else makes KV differ for equal tokens (the tenant's salt). It belongs to the
    first block only; later blocks inherit it through `parent`.
    """

    __slots__ = ("digest", "extra", "parent", "token_ids")

    def __init__(
        self,
        digest: bytes,
        parent: "BlockHash | None",
        token_ids: tuple[int, ...],
        extra: bytes,
    ) -> None:
        self.digest = digest
        self.parent = parent
        self.token_ids = token_ids
        self.extra = extra

    def same_prefix(self, other: "BlockHash") -> bool:
        """True if both stand for the same tokens and extras from position 0 on.

        Equal parents are joined into one object on the way, so later compares of the same pair
        stop at once.
        """
        mine: BlockHash | None = self
        theirs: BlockHash | None = other
        while mine is not theirs:
            if mine is None or theirs is None:
                return False
            if (
                mine.digest != theirs.digest
                or mine.token_ids != theirs.token_ids
                or mine.extra != theirs.extra
            ):
                return False
            mine, theirs = mine.parent, theirs.parent
        other.parent = self.parent
        return True


def extend_chain(
    parent: BlockHash | None,
    token_ids: Sequence[int],
    salt: str | None,
    digest_block: BlockDigest,
) -> BlockHash:
    """The node after `parent` (None = the first block).

    Args:
        parent: node of the block before.
        token_ids: exactly the tokens of this full block.
        salt: the request's cache_salt; enters the first block only.
        digest_block: see `block_digest`.
    """
    first = parent is None
    extra = b"" if salt is None or not first else b"salt:" + salt.encode()
    digest = digest_block(ROOT_DIGEST if parent is None else parent.digest, token_ids, extra)
    return BlockHash(digest, parent, tuple(token_ids), extra)
