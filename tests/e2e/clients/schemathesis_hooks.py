"""Hooks of Schemathesis: bodies that get past the checks of all fields at once.

A body with random values in fifty optional fields is nearly always refused for one of them. Two of
three bodies keep their required members and a few others; most of those name the served model and
hold messages with text, so that they are rendered, queued and generated.
"""

import json
import random

import schemathesis

NEEDED = {
    "prompt",
    "messages",
    "input",
    "token_ids",
    "tokens",
    "sampling_params",
    "max_tokens",
    "model",
    "generate_response",
    "generate_responses",
    "generate_chunk",
    "chat_request",
    "completion_request",
    "stream",
}
KEPT = 3
PARTS = ("text", "a\u0301 \U0001f600", "", "\ud800", "<|im_end|>", "\x00")


def thinned(body, chance):
    """The required members, and a few of the others."""
    others = [name for name in body if name not in NEEDED]
    kept = set(chance.sample(others, min(KEPT, len(others))))
    return {name: value for name, value in body.items() if name in NEEDED or name in kept}


def mended(body, chance):
    """The same with values in the places that random ones cannot fill."""
    body = dict(body)
    if "model" in body and chance.random() < 0.9:
        body["model"] = None if chance.random() < 0.3 and "max_tokens" not in body else "m"
    messages = body.get("messages")
    if isinstance(messages, list):
        body["messages"] = [spoken(message, chance) for message in messages]
    for name in ("chat_request", "completion_request", "sampling_params"):
        if isinstance(body.get(name), dict):
            body[name] = mended(thinned(body[name], chance), chance)
    for name in ("token_ids", "tokens"):
        if isinstance(body.get(name), list) and chance.random() < 0.8:
            body[name] = [t % 49152 if isinstance(t, int) else t for t in body[name]]
    return body


def spoken(message, chance):
    if isinstance(message, list):
        return [spoken(one, chance) for one in message]
    if not isinstance(message, dict) or chance.random() < 0.2:
        return message
    text = chance.choice(PARTS)
    content = text if chance.random() < 0.5 else [{"type": "text", "text": text}]
    role = chance.choice(("user", "assistant", "system", "tool"))
    return {**message, "role": role, "content": content}


@schemathesis.hook
def map_body(context, body):
    if not isinstance(body, dict):
        return body
    chance = random.Random(json.dumps(body, sort_keys=True, default=repr))
    if chance.random() < 1 / 3:
        return body
    return mended(thinned(body, chance), chance)
