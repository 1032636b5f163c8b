"""`stream_interval`: pieces of one choice put together until enough tokens came."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from ortloom.server.context import FrontContext
from ortloom.server.openai.sample import Piece


def interval_of(front: FrontContext, asked: int | None) -> int:
    """Tokens a piece of a stream has at least: as the request says, else as --stream-interval."""
    return front.config.scheduler.stream_interval if asked is None else asked


def joined(pieces: AsyncGenerator[Piece, None], front: FrontContext) -> AsyncGenerator[Piece, None]:
    """For routes whose requests name no interval: by --stream-interval, else as they come."""
    interval = interval_of(front, None)
    return pieces if interval == 1 else every(pieces, interval)


async def every(
    pieces: AsyncGenerator[Piece, None], interval: int | None
) -> AsyncGenerator[Piece, None]:
    """The same text and tokens in fewer pieces.

    The first piece with tokens of a choice and the one that ends it are never delayed. Pieces
    without either (they report progress of the prompt) are dropped; prompt logprobs in one move
    to the next.

    Args:
        pieces: as `generate` gives them.
        interval: tokens a piece has at least; None and 1 change nothing.
    """
    waiting: dict[int, Piece] = {}
    started: set[int] = set()
    async with aclosing(pieces):
        async for piece in pieces:
            held = waiting.pop(piece.index, None)
            if not piece.token_ids and piece.finish_reason is None:
                if held is not None or piece.output.prompt_logprobs is not None:
                    waiting[piece.index] = held or piece
                continue
            if held is not None:
                piece = _joined(held, piece)
            enough = interval is None or len(piece.token_ids) >= interval
            if enough or piece.finish_reason is not None or piece.index not in started:
                started.add(piece.index)
                yield piece
            else:
                waiting[piece.index] = piece


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
