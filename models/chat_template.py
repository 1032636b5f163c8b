"""Chat messages to prompt text: the bundle's template, or one a trusted request brings.

Works on plain dicts as templates see them (content a string or a list of parts, tool-call
arguments as objects). Does not know HTTP or tokens.
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ortloom.errors import ConfigError, InvalidRequest
from ortloom.models.template_environment import (
    ContentFormat,
    compile_template,
    content_format_of,
    is_builtin,
    render,
    variables_of,
)
from ortloom.models.tokenizer import Tokenizer

CHAT_TEMPLATE_NAME = "chat_template.jinja"

RESERVED_KWARGS = frozenset({"messages", "tools", "chat_template", "tokenize"})
"""Names `chat_template_kwargs` must not bind."""

_FINAL_MARK = "\ue000ortloom-final-message\ue001"
"""Stands at the end of an open last message while rendering; private-use characters."""

Message = dict[str, Any]


class ChatTemplate:
    """Compiled templates of one model.

    Args:
        sources: template texts by name; `default` is required, `tool_use` is taken for requests
            with tools.
        special_tokens: `bos_token` … as variables of the template.
    """

    def __init__(self, sources: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._sources = dict(sources)
        self._special = dict(special_tokens)
        self._compiled = {name: compile_template(text) for name, text in self._sources.items()}
        self._variables = {name: variables_of(text) for name, text in self._sources.items()}
        self.content_format: ContentFormat = content_format_of(self._sources["default"])

    @property
    def source(self) -> str:
        """The text of all templates."""
        return "\n".join(self._sources.values())

    @property
    def default_source(self) -> str:
        """Text of the default template."""
        return self._sources["default"]

    @classmethod
    def load(
        cls,
        folder: Path,
        tokenizer: Tokenizer,
        override: str | None = None,
        own_config: bool = True,
    ) -> "ChatTemplate | None":
        """The model's template: `override`, else chat_template.jinja, else tokenizer_config.json.

        None if there is none. The template of a tokenizer_config.json that is not the folder's own
        (`own_config` False) goes before chat_template.jinja.

        Raises:
            ConfigError: the template cannot be parsed.
        """
        sources = dict(tokenizer.chat_templates)
        path = folder / CHAT_TEMPLATE_NAME
        if override is not None:
            sources = {"default": override}
        elif path.is_file() and (own_config or not sources):
            sources = {**sources, "default": path.read_text("utf-8")}
        if not sources:
            return None
        if "default" not in sources:
            sources["default"] = next(iter(sources.values()))
        try:
            return cls(sources, tokenizer.special_tokens)
        except InvalidRequest as error:
            raise ConfigError(str(error)) from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        documents: list[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """Prompt text.

        Args:
            messages: messages as the template sees them.
            tools: tool objects, or None.
            documents: documents, or None.
            add_generation_prompt: open a message of the model at the end.
            continue_final_message: leave the last message open; nothing follows its text.
            kwargs: further variables; those the template never reads, and names of Jinja
                built-ins, are dropped.

        Raises:
            InvalidRequest: the template refuses or fails, or the last message's text is not in
                what it wrote.
        """
        name = "tool_use" if tools and "tool_use" in self._sources else "default"
        known = self._variables[name]
        extra = {
            key: value
            for key, value in (kwargs or {}).items()
            if key in known and not is_builtin(key)
        }
        variables: dict[str, Any] = {
            **self._special,
            **extra,
            "messages": list(messages),
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        if not continue_final_message:
            return render(self._compiled[name], variables)
        variables["messages"] = _marked(messages)
        return _cut(render(self._compiled[name], variables))


def _marked(messages: Sequence[Message]) -> list[Message]:
    """A copy whose last message's text ends with the mark."""
    if not messages:
        raise InvalidRequest("continue_final_message needs a message.", "messages")
    copied = [*messages[:-1], copy.deepcopy(messages[-1])]
    content = copied[-1].get("content")
    if isinstance(content, list):
        for part in reversed(content):
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                part["text"] += _FINAL_MARK + " "
                return copied
    elif isinstance(content, str):
        copied[-1]["content"] = content + _FINAL_MARK + " "
        return copied
    raise InvalidRequest("continue_final_message needs a last message with text.", "messages")


def _cut(text: str) -> str:
    """Everything before the mark; a template that trims the text also trims before the mark."""
    at = text.rfind(_FINAL_MARK)
    if at < 0:
        raise InvalidRequest(
            "continue_final_message: the chat template does not write the last message's text."
        )
    kept = text[at + len(_FINAL_MARK) :].startswith(" ")
    return text[:at] if kept else text[:at].rstrip()


def resolve_kwargs(
    defaults: Mapping[str, Any],
    requested: Mapping[str, Any] | None,
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    """Template variables in their order of precedence: server < request kwargs < request fields.

    A value of None or "auto" means "not set" and leaves the one below it.

    Raises:
        InvalidRequest: a reserved name.
    """
    for name in requested or ():
        if name in RESERVED_KWARGS:
            raise InvalidRequest(f"chat_template_kwargs must not contain '{name}'.")
    merged: dict[str, Any] = {}
    for layer in (defaults, requested or {}, fields):
        merged |= {k: v for k, v in layer.items() if v is not None and v != "auto"}
    effort = fields.get("reasoning_effort")
    if effort is not None and "enable_thinking" not in (requested or {}):
        merged["enable_thinking"] = effort != "none"
    return merged
