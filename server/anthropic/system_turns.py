"""System messages inside a conversation: kept where they are, or folded into their neighbours.

The head of a prompt must stay what it was in the turn before, or the prefix cache finds nothing; so
text that comes later is never moved there. Many templates refuse a system message that is not the
first, or write it elsewhere: with those its text goes into the words beside it.
"""

import functools

from ortloom.errors import InvalidRequest
from ortloom.models.chat_template import ChatTemplate, Message
from ortloom.server.anthropic.wire import InputMessage
from ortloom.server.openai.messages import template_messages
from ortloom.server.openai.wire_chat import ChatMessage

_GAP = "\n\n"
_BEFORE = "An answer nobody gave"
_INLINE = "A remark nobody made"
"""Texts no template writes by itself."""


def after_results(messages: list[InputMessage]) -> list[InputMessage]:
    """System messages between a call of the model and its results, moved behind the results."""
    out: list[InputMessage] = []
    held: list[InputMessage] = []
    waiting = False
    for message in messages:
        if message.role == "system":
            (held if waiting else out).append(message)
            continue
        if message.role == "assistant":
            out += held
            held = []
        out.append(message)
        if message.role == "user":
            out += held
            held = []
        waiting = message.role == "assistant" and _calls(message)
    return out + held


def _calls(message: InputMessage) -> bool:
    blocks = message.content
    return not isinstance(blocks, str) and any(block.type == "tool_use" for block in blocks)


def placed(
    system: str, messages: list[ChatMessage], template: ChatTemplate | None
) -> list[ChatMessage]:
    """The conversation as the template gets it: at most one system message at its head.

    Args:
        system: the system prompt, may be empty.
        messages: all turns; system messages that lead them are joined to the prompt.
        template: decides about later ones; None = fold.
    """
    leading = 0
    while leading < len(messages) and messages[leading].role == "system":
        leading += 1
    texts = [system, *(str(m.content) for m in messages[:leading])]
    prompt = _GAP.join(text for text in texts if text)
    rest = messages[leading:]
    if any(m.role == "system" for m in rest) and not (prompt and _keeps_places(template)):
        rest = _folded(rest)
    return [ChatMessage(role="system", content=prompt), *rest] if prompt else rest


def _folded(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Each system text joined to the user's words or tool result before it, else after it."""
    out: list[ChatMessage] = []
    pending: list[str] = []
    for message in messages:
        if message.role == "system":
            text = str(message.content)
            if out and out[-1].role in ("user", "tool") and not pending:
                out[-1] = _extended(out[-1], text, at_end=True)
            else:
                pending.append(text)
            continue
        if pending:
            text = _GAP.join(pending)
            pending = []
            if message.role == "user":
                message = _extended(message, text, at_end=False)
            else:
                out.append(ChatMessage(role="user", content=text))
        out.append(message)
    return [*out, ChatMessage(role="user", content=_GAP.join(pending))] if pending else out


def _extended(message: ChatMessage, text: str, *, at_end: bool) -> ChatMessage:
    """A copy with more text, in the part at that end."""

    def joined(own: str) -> str:
        return _GAP.join(t for t in ((own, text) if at_end else (text, own)) if t)

    content = message.content
    if isinstance(content, list):
        at = -1 if at_end else 0
        parts = list(content)
        parts[at] = {**parts[at], "text": joined(parts[at]["text"])}
        return ChatMessage(role=message.role, content=parts, tool_call_id=message.tool_call_id)
    return ChatMessage(
        role=message.role, content=joined(content or ""), tool_call_id=message.tool_call_id
    )


@functools.lru_cache(maxsize=4)
def _keeps_places(template: ChatTemplate | None) -> bool:
    """Whether a system message in the middle is written there, as a turn of its own kind, and
    changes nothing else."""
    if template is None:
        return False
    head = [
        ChatMessage(role="system", content="Rules"),
        ChatMessage(role="user", content="What?"),
        ChatMessage(role="assistant", content=_BEFORE),
    ]
    tail = ChatMessage(role="user", content="And then?")

    def inserted(role: str) -> str | None:
        """What a message of a role adds, None where it is not in its place or changes the rest."""
        with_it = _written(template, [*head, ChatMessage(role=role, content=_INLINE), tail])
        if base is None or with_it is None or len(with_it) <= len(base):
            return None
        size = len(with_it) - len(base)
        same = 0
        while same < len(base) and with_it[same] == base[same]:
            same += 1
        in_place = same > base.find(_BEFORE) and with_it[same + size :] == base[same:]
        return with_it[same : same + size] if in_place else None

    base = _written(template, [*head, tail])
    segment = inserted("system")
    return segment is not None and segment.count(_INLINE) == 1 and segment != inserted("user")


def _written(template: ChatTemplate, messages: list[ChatMessage]) -> str | None:
    listed: list[Message] = template_messages(messages, template.content_format)
    try:
        return template.render(listed)
    except InvalidRequest:
        return None
