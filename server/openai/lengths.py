"""Length rules: what is kept of a prompt, and how many tokens may be generated."""

from dataclasses import dataclass

from ortloom.errors import ContextLengthExceeded, InvalidRequest

COMPLETION_MAX_TOKENS = 16
"""Output limit of a completion request that names none."""


@dataclass(frozen=True, slots=True)
class OutputLimit:
    """What bounds the output.

    Attributes:
        requested: the request's own limit; None = not given, 0 or less = none of the client's.
        default: limit of the route when none is given; None = up to the context.
        ceilings: limits of the server (generation config, front) that always hold.
        max_model_len: context in tokens.
        prompt_only: a requested limit of exactly 0 means 0: nothing is generated.
    """

    requested: int | None
    default: int | None
    ceilings: tuple[int | None, ...]
    max_model_len: int
    prompt_only: bool = False

    def check(self) -> None:
        """Refuse a limit no prompt could have room for.

        Raises:
            InvalidRequest: above the context by itself.
        """
        if self.requested is not None and self.requested > self.max_model_len:
            raise InvalidRequest(
                f"max_tokens={self.requested} is above the maximum context length of "
                f"{self.max_model_len} tokens.",
                "max_tokens",
            )

    def resolve(self, prompt_tokens: int) -> int:
        """Tokens that may be generated after a prompt; at least 1 unless only it is wanted.

        Raises:
            ContextLengthExceeded: the prompt leaves no room.
            InvalidRequest: as `check`.
        """
        self.check()
        room = self.max_model_len - prompt_tokens
        if room <= 0:
            raise ContextLengthExceeded(
                f"The maximum context length is {self.max_model_len} tokens, but the prompt has "
                f"{prompt_tokens} tokens and leaves no room for output.",
                "input_tokens",
            )
        if self.prompt_only and self.requested == 0:
            return 0
        wanted = self.default if self.requested is None else self.requested
        limits = [room] if wanted is None or wanted <= 0 else [room, wanted]
        return max(1, min(limits + [c for c in self.ceilings if c is not None]))

    def prompt_budget(self) -> int:
        """Prompt tokens that leave room for the output asked for; at least 1."""
        wanted = self.default if self.requested is None else self.requested
        reserve = 1 if wanted is None or wanted <= 0 else wanted
        return max(1, self.max_model_len - reserve)


def truncate(
    token_ids: list[int], keep: int | None, side: str | None, limit: OutputLimit
) -> list[int]:
    """The part of a prompt that `truncate_prompt_tokens` keeps.

    Args:
        token_ids: the prompt.
        keep: tokens to keep; -1 = as many as leave room for the output; None = all.
        side: `left` drops at the left (the default), `right` at the right.
        limit: the request's output limit.

    Raises:
        InvalidRequest: `keep` is 0, below -1 or above the context.
    """
    if keep is None:
        return token_ids
    if keep == 0 or keep < -1 or keep > limit.max_model_len:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be -1 or between 1 and the maximum context length of "
            f"{limit.max_model_len}, got {keep}.",
            "truncate_prompt_tokens",
        )
    count = limit.prompt_budget() if keep == -1 else keep
    if len(token_ids) <= count:
        return token_ids
    return token_ids[:count] if side == "right" else token_ids[-count:]
