"""`logprobs_detail`: each token in both distributions, and what each draw could have taken.

Opt-in by request; without it no reply has these members. `raw_logprob` and `rank` are the model's
own, `processed_logprob` is that of the distribution the token was drawn from, whatever the server's
logprobs mode. `sampling_mask` has an entry a token: the ids the draw could have taken, likeliest
first, or null where that was the whole vocabulary.
"""

from collections.abc import Sequence
from typing import Any

from ortloom.runtime.messages import SamplingMask, TokenDetail
from ortloom.server.openai.wire_common import GenerationRequest


def add_details(entries: list[dict[str, Any]], details: Sequence[TokenDetail]) -> None:
    """Add the members to entries that stand for one token each; none where `details` is empty."""
    for entry, detail in zip(entries, details, strict=False):
        entry["raw_logprob"] = detail.raw_logprob
        entry["processed_logprob"] = detail.processed_logprob
        entry["rank"] = detail.rank


def add_detail_lists(
    logprobs: dict[str, Any], details: Sequence[TokenDetail], num_prompt: int
) -> None:
    """Add the members as lists beside `tokens`; prompt tokens, which nobody drew, have null.

    Args:
        logprobs: the `logprobs` member of a completion.
        details: of its output tokens.
        num_prompt: prompt tokens that stand before them.
    """
    before: list[float | int | None] = [None] * num_prompt
    logprobs["raw_logprob"] = before + [d.raw_logprob for d in details]
    logprobs["processed_logprob"] = before + [d.processed_logprob for d in details]
    logprobs["rank"] = before + [d.rank for d in details]


def mask_member(body: GenerationRequest, masks: list[SamplingMask]) -> dict[str, Any]:
    """The choice's own member, or none if it was not asked for."""
    return {"sampling_mask": masks} if body.logprobs_detail else {}
