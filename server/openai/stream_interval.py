"""`stream_interval`: pieces of one choice put together until enough tokens came."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from ortloom.server.context import FrontContext
from ortloom.server.openai.sample import Piece


def interval_of(front: FrontContext, asked: int | None) -> int:
    """Tokens a piece of a stream has at least: as the request says, else as --stream-interval."""
    return front.config.scheduler.stream_interval if asked is None else asked


class Spacing:
    """Puts the pieces of a stream together.

    The first piece with tokens of a choice and the one that ends it are never delayed. Pieces
    without either (they report progress of the prompt) are dropped; prompt logprobs in one move
    to the next.

    Args:
        interval: tokens a piece has at least; None and 1 change nothing.

    Attributes:
        most_tokens: that a piece is put together from, about.
        passes: a piece with tokens of a choice that has begun would be due as it is.
    """

    def __init__(self, interval: int | None) -> None:
        self.most_tokens = 1 if interval is None else interval
        self.passes = self.most_tokens == 1
        self._waiting: dict[int, Piece] = {}
        self._started: set[int] = set()

    def push(self, piece: Piece) -> Piece | None:
        """Add a piece; what is due now, with all that waited before it."""
        index = piece.index
        held = self._waiting.pop(index, None)
        if not piece.token_ids and piece.finish_reason is None:
            if held is not None or piece.output.prompt_logprobs is not None:
                self._waiting[index] = held or piece
                self.passes = False
            return None
        if held is not None:
            piece = _joined(held, piece)
        enough = len(piece.token_ids) >= self.most_tokens
        if enough or piece.finish_reason is not None or index not in self._started:
            self._started.add(index)
            return piece
        self._waiting[index] = piece
        return None


async def spaced(
    pieces: AsyncGenerator[Piece, None], spacing: Spacing
) -> AsyncGenerator[Piece, None]:
    """The same text and tokens in fewer pieces."""
    async with aclosing(pieces):
        async for piece in pieces:
            due = spacing.push(piece)
            if due is not None:
                yield due


def _joined(first: Piece, second: Piece) -> Piece:
    output = second.output
    if output.prompt_logprobs is None:
        scored = first.output.prompt_logprobs
        output = msgspec.structs.replace(output, prompt_logprobs=scored)
    return Piece(
        index=first.index,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=first.logprobs + second.logprobs,
        output=output,
        finish_reason=second.finish_reason,
        stop_reason=second.stop_reason,
        details=first.details + second.details,
        masks=first.masks + second.masks,
    )
