"""Which engine requests belong to an id that a client knows.

Fronts name an engine request `<response id>-<8 hex>-<number>`; a response id is a prefix of its
route and the id the client gave, or a random one.
"""

from collections.abc import Collection, Iterable

PREFIXES = ("cmpl-", "chatcmpl-", "generate-tokens-", "resp_", "resp-", "msg_", "msg-")


def names_of(request_id: str) -> set[str]:
    """The ids under which a client may know an engine request."""
    response = request_id.rsplit("-", 2)[0]
    bare = (response.removeprefix(p) for p in PREFIXES if response.startswith(p))
    return {request_id, response, *bare}


def belonging_to(names: Collection[str], request_ids: Iterable[str]) -> list[str]:
    """Those of `request_ids` that one of `names` means."""
    wanted = set(names)
    return [request_id for request_id in request_ids if names_of(request_id) & wanted]
