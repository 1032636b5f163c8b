"""The prompt of a chat request: messages through the chat template to token ids.

POST /tokenize uses the same function, so it tells exactly what chat would send.
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.models.chat_template import resolve_kwargs
from ortloom.models.template_worker import RenderJob
from ortloom.server.context import FrontContext
from ortloom.server.openai.messages import template_messages, template_tools
from ortloom.server.openai.to_engine import encode, tokenizer_of
from ortloom.server.openai.untrusted_template import render_untrusted
from ortloom.server.openai.wire_chat import ChatMessage, TemplateFields

_INLINE_PIECES = 1024
"""Messages and parts that are rendered on the event loop; more go to a thread."""


@dataclass(slots=True, frozen=True)
class ChatPrompt:
    """Rendered text and its token ids."""

    text: str
    token_ids: list[int]


async def chat_prompt(
    fields: TemplateFields, add_special_tokens: bool, front: FrontContext, *, limited: bool = False
) -> ChatPrompt:
    """Render and tokenise.

    Args:
        fields: messages and everything else the template sees.
        add_special_tokens: let the tokenizer add its own (templates usually write them).
        front: the model's template and the server's default variables.
        limited: refuse at once what cannot fit into the context.

    Raises:
        ContextLengthExceeded: it cannot fit.
        InvalidRequest: no message, no template, a field that does not fit, or the template
            refuses.
    """
    if fields.mm_processor_kwargs is not None or fields.media_io_kwargs is not None:
        raise UnsupportedParameter(
            "mm_processor_kwargs and media_io_kwargs are not supported: the model takes text only."
        )
    own_template = _own_template(fields, front)
    if not fields.messages:
        raise InvalidRequest("There is no message; a conversation has at least one.", "messages")
    if (fields.add_generation_prompt is not False) and fields.continue_final_message:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt cannot both be true; set "
            "add_generation_prompt to false."
        )
    kwargs = template_variables(fields, front)
    if own_template is not None:
        text = await _render_own(own_template, fields, kwargs, front)
    elif _pieces(fields.messages) <= _INLINE_PIECES:
        text = _render(fields, kwargs, front)
    else:
        loop = asyncio.get_running_loop()
        text = await loop.run_in_executor(front.long_texts, _render, fields, kwargs, front)
    return ChatPrompt(text, await encode(text, add_special_tokens, front, limited=limited))


def _pieces(messages: list[ChatMessage]) -> int:
    """Messages, and parts of their contents."""
    parts = (len(m.content) for m in messages if isinstance(m.content, list))
    return len(messages) + sum(parts)


def template_variables(fields: TemplateFields, front: FrontContext) -> dict[str, Any]:
    """The variables a request's template is given beside messages and tools.

    Raises:
        InvalidRequest: a reserved name.
    """
    return resolve_kwargs(
        front.config.front.default_chat_template_kwargs,
        fields.chat_template_kwargs,
        {"reasoning_effort": fields.reasoning_effort, "documents": fields.documents},
    )


def _own_template(fields: TemplateFields, front: FrontContext) -> str | None:
    """The request's template text, if it brings one and may."""
    if fields.chat_template is None:
        return None
    if not front.config.front.trust_request_chat_template:
        raise InvalidRequest(
            "chat_template is taken from requests only with --trust-request-chat-template."
        )
    return fields.chat_template


def _render(fields: TemplateFields, kwargs: dict[str, Any], front: FrontContext) -> str:
    """By the model's template, in this process."""
    template = front.chat_template
    if template is None:
        tokenizer_of(front)  # without one there is no template either
        raise InvalidRequest(
            "The model has no chat template; give one with --chat-template.", "messages"
        )
    form = front.config.front.chat_template_content_format
    return template.render(
        template_messages(fields.messages, template.content_format if form == "auto" else form),
        tools=template_tools(fields.tools),
        documents=kwargs.pop("documents", None),
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        kwargs=kwargs,
    )


async def _render_own(
    source: str, fields: TemplateFields, kwargs: dict[str, Any], front: FrontContext
) -> str:
    """By the request's template, in a child process."""
    job = RenderJob(
        source=source,
        special_tokens=tokenizer_of(front).special_tokens,
        form=front.config.front.chat_template_content_format,
        messages={
            "string": template_messages(fields.messages, "string"),
            "openai": template_messages(fields.messages, "openai"),
        },
        tools=template_tools(fields.tools),
        documents=kwargs.pop("documents", None),
        add_generation_prompt=fields.add_generation_prompt is not False,
        continue_final_message=bool(fields.continue_final_message),
        kwargs=kwargs,
    )
    return await render_untrusted(job, front.own_templates)
