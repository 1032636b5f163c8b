"""What fronts ask each other about stored responses: frames as on the control socket."""

import asyncio

import msgspec

_LENGTH = 4


class Fetch(msgspec.Struct, tag="fetch"):
    """The response with this id; its conversation only where it is needed."""

    response_id: str
    conversation: bool = False


class FetchItem(msgspec.Struct, tag="item"):
    """An output item."""

    item_id: str


class Cancel(msgspec.Struct, tag="cancel"):
    """End a response that is being generated, and give what it came to."""

    response_id: str


class GiveUp(msgspec.Struct, tag="give_up"):
    """Forget a finished response, since there is a new one of its id."""

    response_id: str


class Follow(msgspec.Struct, tag="follow"):
    """The events from a number on, as they come."""

    response_id: str
    start: int


class Copy(msgspec.Struct, tag="copy"):
    """A response as it stands; `messages` is its conversation as JSON, if that was asked for."""

    status: str
    body: bytes
    streamed: bool
    messages: bytes = b"[]"
    size: int = 0


class Item(msgspec.Struct, tag="found_item"):
    """An output item as JSON."""

    body: bytes


class Missing(msgspec.Struct, tag="missing"):
    """There is no such thing here."""


class GivenUp(msgspec.Struct, tag="given_up"):
    """Whether the id is free now; False while the response is being generated."""

    free: bool


class Frames(msgspec.Struct, tag="frames"):
    """Some events."""

    data: bytes


class End(msgspec.Struct, tag="end"):
    """There are no more events."""


Question = Fetch | FetchItem | Cancel | GiveUp | Follow
Answer = Copy | Item | Missing | GivenUp | Frames | End

_decode_question = msgspec.msgpack.Decoder(Question).decode
_decode_answer = msgspec.msgpack.Decoder(Answer).decode


async def read_question(reader: asyncio.StreamReader) -> Question:
    """The one question of a connection.

    Raises:
        asyncio.IncompleteReadError: the other end hung up.
    """
    return _decode_question(await _body(reader))


async def read_answer(reader: asyncio.StreamReader) -> Answer:
    """The next answer; raises as `read_question`."""
    return _decode_answer(await _body(reader))


async def _body(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(_LENGTH)
    return await reader.readexactly(int.from_bytes(head, "little"))
