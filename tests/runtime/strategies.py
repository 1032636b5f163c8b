"""Hypothesis strategies: random engines and random lives of requests."""

from dataclasses import dataclass

from hypothesis import strategies as st

BLOCK_SIZE = 4


@dataclass(frozen=True)
class Arrival:
    """One request: `step` it comes at, and `abort_after` steps later it is aborted (or never)."""

    step: int
    prompt: tuple[int, ...]
    max_tokens: int
    priority: int
    salt: str | None
    seeded: int | None
    prompt_logprobs: bool
    abort_after: int | None


@dataclass(frozen=True)
class Scenario:
    """An engine's limits and what happens to it."""

    num_blocks: int
    max_num_seqs: int
    budget: int
    threshold: int
    chunked: bool
    caching: bool
    policy: str
    rules: dict[str, object]
    arrivals: tuple[Arrival, ...]
    resets: frozenset[int]


# Prompts share prefixes often: they are cut from two base texts and may get a tail of their own.
_BASES = [[8 + (7 * i) % 40 for i in range(40)], [8 + (3 * i + 1) % 40 for i in range(40)]]


@st.composite
def arrivals(draw, capacity):
    base = draw(st.sampled_from(_BASES))
    head = base[: draw(st.integers(1, min(24, capacity - 2)))]
    tail = draw(st.lists(st.integers(8, 47), max_size=3))
    prompt = (head + tail)[: capacity - 2]
    return Arrival(
        step=draw(st.integers(0, 12)),
        prompt=tuple(prompt),
        max_tokens=draw(st.integers(0, 14)),
        priority=draw(st.integers(-2, 2)),
        salt=draw(st.sampled_from([None, None, "a", "b"])),
        seeded=draw(st.sampled_from([None, None, 7, 8])),
        prompt_logprobs=draw(st.sampled_from([False, False, False, True])),
        abort_after=draw(st.sampled_from([None, None, None, 0, 1, 5])),
    )


@st.composite
def rules(draw):
    """Options of the scheduler beside the limits of a step."""
    partial = draw(st.sampled_from([1, 1, 2, 3]))
    return {
        "max_num_partial_prefills": partial,
        "max_long_partial_prefills": draw(st.integers(1, partial)),
        "long_prefill_token_threshold_adaptive": draw(st.booleans()),
        "reserve_full_prompt": draw(st.booleans()),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.3])),
        "prefill_schedule_interval": draw(st.sampled_from([1, 1, 3])),
        "max_num_active_seqs": draw(st.sampled_from([None, None, 1, 2])),
    }


@st.composite
def scenarios(draw):
    num_blocks = draw(st.integers(4, 20))
    capacity = num_blocks * BLOCK_SIZE
    chunked = draw(st.booleans())
    budget = draw(st.integers(1, 24)) if chunked else capacity
    return Scenario(
        num_blocks=num_blocks,
        max_num_seqs=draw(st.integers(1, 8)),
        budget=budget,
        threshold=draw(st.sampled_from([0, 0, 3])),
        chunked=chunked,
        caching=draw(st.booleans()),
        policy=draw(st.sampled_from(["fcfs", "priority", "lpm"])),
        rules=draw(rules()),
        arrivals=tuple(draw(st.lists(arrivals(capacity), min_size=1, max_size=10))),
        resets=draw(st.frozensets(st.integers(1, 20), max_size=2)),
    )
