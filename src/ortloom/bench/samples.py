"""A prompt to send, and a whole workload of them."""

import msgspec


class Sample(msgspec.Struct, frozen=True):
    """One prompt. `prompt_len` is in tokens, special tokens that the server adds included;
    `output_len` is how many tokens to ask for."""

    prompt: str
    prompt_len: int
    output_len: int


class Workload(msgspec.Struct, frozen=True):
    """`samples` are measured, in this order. `trial` is for the test request and warm-ups; data
    sets that make their prompts give it one of its own, so that it fills no prefix cache."""

    samples: list[Sample]
    trial: Sample
