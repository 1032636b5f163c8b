"""What a reply of `/inference/v1/generate` says, as the derender routes read it."""

from collections.abc import Sequence

from ortloom.errors import InvalidRequest
from ortloom.server.context import FrontContext
from ortloom.server.openai.replay import output_of
from ortloom.server.openai.to_engine import check_token_ids, engine_ready
from ortloom.server.openai.wire_derender import Generated


def check_generated(reply: Generated, front: FrontContext) -> None:
    """Refuse what no engine of ours says.

    Raises:
        InvalidRequest: text instead of tokens, ids the model lacks, or logprobs of other tokens.
    """
    if reply.output_mode != "tokens":
        raise InvalidRequest("Only replies in output_mode tokens can be derendered.", "output_mode")
    most = engine_ready(front)
    for choice in reply.choices:
        ids = choice.token_ids or []
        check_token_ids(ids, most.vocab_size)
        content = choice.logprobs.content if choice.logprobs is not None else None
        if content is not None and len(content) != len(ids):
            raise InvalidRequest(
                f"A choice has {len(ids)} token ids and {len(content)} logprobs.", "logprobs"
            )


def has_detail(reply: Generated) -> bool:
    """Whether every choice has its details."""
    return all(output_of(choice).details is not None for choice in reply.choices)


def most_listed(replies: Sequence[Generated]) -> int | None:
    """How many top tokens the replies list at most; None = no logprobs."""
    found = [
        len(entry.top_logprobs)
        for reply in replies
        for choice in reply.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or ()
    ]
    return max(found) if found else None


def id_of(reply: Generated, prefix: str) -> str:
    """The id of the OpenAI reply it stands for; `prefix` is that of its kind."""
    given = (reply.request_id or "").removeprefix("generate-tokens-")
    return f"{prefix}-{given.removeprefix(prefix + '-')}"
