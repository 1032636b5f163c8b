"""What always holds between the pool, the tables and the scheduler.

`check` runs after every step of the property tests and when an engine with
`log.debug_invariants` goes idle. A violation is a bug of ours, never a user's error.
"""

from collections import Counter

from ortloom.runtime.block_pool import NULL_BLOCK_ID, BlockPool
from ortloom.runtime.request import Request, RequestStatus
from ortloom.runtime.scheduler import Scheduler
from ortloom.runtime.scheduler_output import SchedulerOutput


class InvariantViolation(RuntimeError):
    """An invariant is broken; the text names the block or request."""


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise InvariantViolation(text)


def check(pool: BlockPool, scheduler: Scheduler) -> None:
    """All invariants of a moment between two steps.

    Raises:
        InvariantViolation: naming the first one that does not hold.
    """
    check_references(pool, scheduler)
    check_free_queue(pool)
    check_cache_index(pool)
    for request in scheduler.running:
        check_running(pool, scheduler, request)
    for request in scheduler.waiting:
        _require(
            not request.block_ids and request.num_computed_tokens == 0,
            f"waiting request {request.request_id} holds blocks",
        )
        _require(
            request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED),
            f"waiting request {request.request_id} is {request.status}",
        )
    live = len(scheduler.running) + len(scheduler.waiting)
    _require(live == len(scheduler.requests), "a request is neither waiting nor running, or both")
    _require(
        len(scheduler.running) <= scheduler.limits.max_num_seqs, "more requests run than allowed"
    )


def check_references(pool: BlockPool, scheduler: Scheduler) -> None:
    """Reference counts are the number of tables that list a block; the null block is in none."""
    held = Counter(i for r in scheduler.requests.values() for i in r.block_ids)
    _require(NULL_BLOCK_ID not in held, "the null block is in a table")
    for block in pool.blocks:
        _require(
            block.ref_count == held[block.block_id],
            f"block {block.block_id} counts {block.ref_count} holders, tables list "
            f"{held[block.block_id]}",
        )
    _require(len(held) + pool.num_free == pool.num_blocks, "free and used blocks are not all")


def check_free_queue(pool: BlockPool) -> None:
    """The queue links both ways, holds each unheld block once, and nothing else."""
    seen = set()
    for block in pool.free_queue:
        _require(block.ref_count == 0, f"held block {block.block_id} is in the free queue")
        _require(block.block_id not in seen, f"block {block.block_id} is in the free queue twice")
        after, before = block.next, block.previous
        _require(
            after is not None
            and before is not None
            and after.previous is block
            and before.next is block,
            f"links of block {block.block_id} do not agree",
        )
        seen.add(block.block_id)
    _require(len(seen) == pool.num_free, "the free queue miscounts")
    _require(NULL_BLOCK_ID not in seen, "the null block is free")


def check_cache_index(pool: BlockPool) -> None:
    """A block has a hash exactly if the index finds it by that hash."""
    hashed = [b for b in pool.blocks if b.block_hash is not None]
    _require(len(hashed) == len(pool.cached), "the prefix index and the blocks' hashes differ")
    for block in hashed:
        assert block.block_hash is not None
        _require(
            pool.cached.get(block.block_hash.digest) is block,
            f"block {block.block_id} has a hash that does not lead to it",
        )


def check_running(pool: BlockPool, scheduler: Scheduler, request: Request) -> None:
    """Computed tokens lie in the table; blocks still to be written belong to this request alone."""
    name = request.request_id
    size = scheduler.kv.block_size
    _require(request.status is RequestStatus.RUNNING, f"running request {name} is not RUNNING")
    _require(scheduler.requests.get(name) is request, f"running request {name} is not known")
    _require(
        request.num_computed_tokens <= len(request.block_ids) * size,
        f"request {name} has more computed tokens than places",
    )
    _require(
        request.num_computed_tokens < request.num_tokens <= request.max_total_tokens,
        f"request {name} has {request.num_tokens} tokens, {request.num_computed_tokens} computed, "
        f"limit {request.max_total_tokens}",
    )
    for block_id in request.block_ids[request.num_computed_tokens // size :]:
        block = pool.blocks[block_id]
        _require(
            block.ref_count == 1 and block.block_hash is None,
            f"block {block_id} is written by {name} and visible to others",
        )
    _require(
        len(set(request.block_ids)) == len(request.block_ids), f"a block is twice in {name}'s table"
    )


def check_plan(scheduler: Scheduler, plan: SchedulerOutput) -> None:
    """A step keeps its budget and places every token; a request is in it once.

    Raises:
        InvariantViolation: naming the request.
    """
    limits = scheduler.limits
    _require(plan.num_tokens <= limits.max_num_batched_tokens, "the token budget is exceeded")
    _require(len(plan.scheduled) <= limits.max_num_seqs, "the step has too many requests")
    ids = [item.request.request_id for item in plan.scheduled]
    _require(len(set(ids)) == len(ids), "a request is in the step twice")
    for item in plan.scheduled:
        end = item.start + item.num_tokens
        _require(item.num_tokens > 0, f"{item.request.request_id} computes nothing")
        _require(end <= item.request.num_tokens, f"{item.request.request_id} passes its tokens")
        _require(
            end <= len(item.block_ids) * scheduler.kv.block_size,
            f"{item.request.request_id} has no places for its tokens",
        )


class TableWatch:
    """Sees to it that tables only grow while a request runs."""

    def __init__(self) -> None:
        self._tables: dict[int, tuple[int, list[int]]] = {}

    def check(self, scheduler: Scheduler) -> None:
        """Compare with the call before.

        Raises:
            InvariantViolation: an entry changed without a preemption.
        """
        seen: dict[int, tuple[int, list[int]]] = {}
        for request in scheduler.running:
            before = self._tables.get(request.serial)
            if before is not None and before[0] == request.num_preemptions:
                old = before[1]
                _require(
                    request.block_ids[: len(old)] == old,
                    f"the table of {request.request_id} changed",
                )
            seen[request.serial] = (request.num_preemptions, list(request.block_ids))
        self._tables = seen
