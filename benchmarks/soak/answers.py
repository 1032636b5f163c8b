"""What is answered: a reply and a stream in one form, and the order that chunks must have."""

import json
from collections.abc import Iterable
from typing import Any

Answer = list[dict[str, Any]]
"""One dict a choice: text, token_ids, logprobs, finish_reason, stop_reason."""

_LISTS = ("tokens", "token_logprobs", "top_logprobs")


class WrongOrder(AssertionError):
    """Chunks that no client could put together."""


def of_reply(reply: dict[str, Any], chat: bool) -> Answer:
    """The answer of a whole reply."""
    answer = []
    for index, choice in enumerate(reply["choices"]):
        assert choice["index"] == index, reply
        text = (choice["message"]["content"] or "") if chat else choice["text"]
        answer.append(
            {
                "text": text,
                "token_ids": choice["token_ids"],
                "logprobs": _scored([choice.get("logprobs")], chat),
                "finish_reason": choice["finish_reason"],
                "stop_reason": choice.get("stop_reason"),
            }
        )
    return answer


def of_events(lines: Iterable[str], chat: bool, with_usage: bool) -> tuple[Answer, Any]:
    """The answer of a stream, and its usage.

    Raises:
        WrongOrder: something comes after its end, or before its beginning.
    """
    choices: dict[int, dict[str, Any]] = {}
    usage, ended, identity = None, False, None
    for line in lines:
        if not line:
            continue
        _check(line.startswith("data: "), line)
        _check(not ended, f"after [DONE]: {line}")
        if line == "data: [DONE]":
            ended = True
            continue
        chunk = json.loads(line[6:])
        _check(usage is None, f"after the usage: {line}")
        identity = identity or (chunk["id"], chunk["created"], chunk["model"])
        _check(identity == (chunk["id"], chunk["created"], chunk["model"]), line)
        if not chunk["choices"]:
            usage = chunk["usage"]
        for choice in chunk["choices"]:
            _add(choices, choice, chat, line)
    _check(ended, "no [DONE]")
    _check((usage is not None) == with_usage, "usage")
    answer = []
    for index in range(len(choices)):
        one = choices[index]
        _check(one["finish_reason"] is not None, f"choice {index} has no end")
        answer.append({**one, "logprobs": _scored(one["logprobs"], chat)})
    return answer, usage


def _add(choices: dict[int, dict[str, Any]], choice: dict[str, Any], chat: bool, line: str) -> None:
    index = choice["index"]
    delta = choice["delta"] if chat else choice
    if index not in choices:
        _check(not chat or delta.get("role") == "assistant", f"no role first: {line}")
        choices[index] = {
            "text": "",
            "token_ids": [],
            "logprobs": [],
            "finish_reason": None,
            "stop_reason": None,
        }
    else:
        _check(not chat or not delta.get("role"), f"a role again: {line}")
    one = choices[index]
    _check(one["finish_reason"] is None, f"after the end of choice {index}: {line}")
    scored = choice.get("logprobs")
    if not chat and scored is not None and scored["text_offset"]:
        # counted from the text that was sent, not from what is held back for a stop string
        _check(scored["text_offset"][0] == len(one["text"]), f"text_offset: {line}")
    one["text"] += (delta.get("content") if chat else delta["text"]) or ""
    one["token_ids"] += choice.get("token_ids") or []
    one["logprobs"].append(scored)
    one["finish_reason"] = choice["finish_reason"]
    one["stop_reason"] = choice.get("stop_reason")


def _scored(parts: list[Any], chat: bool) -> Any:
    """Logprobs of all parts as one; None where there are none."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    if chat:
        return [entry for part in given for entry in part["content"] or []]
    return {name: [entry for part in given for entry in part[name] or []] for name in _LISTS}


def _check(right: bool, what: str) -> None:
    if not right:
        raise WrongOrder(what)
