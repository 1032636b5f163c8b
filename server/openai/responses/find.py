"""Stored responses by their ids, on this front or on another one."""

from collections.abc import Iterable
from typing import Any

from ortloom.errors import ResponseNotFound, ResponseRefused
from ortloom.server.context import FrontContext
from ortloom.server.openai.responses.kept import KeptResponse

PREFIX = "resp_"


async def find_response(
    response_id: str, front: FrontContext, *, conversation: bool = False
) -> KeptResponse:
    """A stored response.

    Args:
        response_id: `resp_…`.
        front: that was asked.
        conversation: it is needed too.

    Raises:
        ResponseRefused: this is no id of a response.
        ResponseNotFound: it is not there, or not any more.
        FrontBusy: the front that has it does not answer.
    """
    shown = response_id[:80]
    if not response_id.startswith(PREFIX):
        raise ResponseRefused(
            f"'{shown}' is no id of a response; those begin with '{PREFIX}'.", "response_id"
        )
    found: KeptResponse | None = front.responses.get(response_id)
    if found is None and front.peers is not None:
        found = await front.peers.find(response_id, conversation=conversation)
    if found is None:
        raise ResponseNotFound(f"Response '{shown}' was not found.", "response_id")
    return found


async def find_items(item_ids: Iterable[str], front: FrontContext) -> dict[str, dict[str, Any]]:
    """Output items of stored responses by their ids; unknown ones are left out.

    Raises:
        FrontBusy: the front that has one does not answer.
    """
    found = {}
    for item_id in item_ids:
        item = front.responses.item(item_id)
        if item is None and front.peers is not None:
            item = await front.peers.item(item_id)
        if item is not None:
            found[item_id] = item
    return found


async def check_free(response_id: str, front: FrontContext) -> None:
    """Nobody else's response with this id is being generated in the background.

    Raises:
        ResponseRefused: it is.
        FrontBusy: the front that has it does not answer.
    """
    existing: KeptResponse | None = front.responses.get(response_id)
    if existing is None and front.peers is not None:
        existing = await front.peers.find(response_id)
    if existing is not None and not existing.finished:
        raise _still_generated(response_id)


async def take_id(response_id: str, front: FrontContext) -> None:
    """Make an id this front's, to store a response under it at once; a finished response that
    another front has under it is forgotten.

    Raises:
        ResponseRefused: somebody else's response with this id is being generated.
        FrontBusy: the front that has it does not answer.
    """
    if front.peers is not None and not await front.peers.take(response_id):
        raise _still_generated(response_id)
    existing = front.responses.get(response_id)
    if existing is not None and not existing.finished:
        raise _still_generated(response_id)


def _still_generated(response_id: str) -> ResponseRefused:
    return ResponseRefused(
        f"A response with the id '{response_id[:80]}' is still being generated.", "request_id"
    )
