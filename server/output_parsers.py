"""The parsers of one front, chosen once at its start."""

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ortloom.config import FrontConfig
from ortloom.errors import ConfigError
from ortloom.models.parser_plugin import run_plugin
from ortloom.models.reasoning_parsers import registry as reasoning_registry
from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser
from ortloom.models.tool_parsers import registry as tool_registry
from ortloom.models.tool_parsers.tool_parser import ToolParser
from ortloom.server.call_forms import CALL_FORMS, CallForm
from ortloom.server.own_syntax import OWN_SYNTAX, OwnSyntax

if TYPE_CHECKING:
    from ortloom.models.chat_template import ChatTemplate
    from ortloom.models.tokenizer import Tokenizer

logger = logging.getLogger("ortloom.server")

StrictLevel = Literal["auto", "function", "parameter"]


@dataclass(frozen=True, slots=True)
class ThinkingMarkers:
    """The markers around reasoning, and what is written when a budget is used up.

    Attributes:
        start, end: as text; `start` empty = there is none.
        start_token, end_token: their ids where they are tokens of their own.
        other_ends: texts that end reasoning as `end` does.
        closing: ids that end reasoning.
    """

    start: str
    end: str
    start_token: int | None
    end_token: int | None
    other_ends: tuple[str, ...]
    closing: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OutputParsers:
    """What takes the text of samples apart; without arguments nothing does.

    Attributes:
        tool: the format of tool calls; None = `--tool-call-parser` is not set.
        auto: a model may call tools as it likes (`--enable-auto-tool-choice`).
        form: how the format's calls can be enforced; None = they cannot.
        syntax: how the format's calls are written, where they are no plain JSON when forced.
        strict: least strictness of calls.
        reasoning: the format of reasoning; None = `--reasoning-parser` is not set.
        markers: of the reasoning; None = nothing tells where it ends.
        hidden: ids of special tokens that are part of no format; never shown because of a parser.
    """

    tool: type[ToolParser] | None = None
    auto: bool = False
    form: CallForm | None = None
    syntax: OwnSyntax | None = None
    strict: StrictLevel = "auto"
    reasoning: type[ReasoningParser] | None = None
    markers: ThinkingMarkers | None = None
    hidden: tuple[int, ...] = ()

    @property
    def any(self) -> bool:
        """A parser is set: streams then send no chunk for a step that shows nothing."""
        return self.tool is not None or self.reasoning is not None


def load_parsers(
    front: FrontConfig, tokenizer: "Tokenizer | None", template: "ChatTemplate | None"
) -> OutputParsers:
    """Run the plugins and choose the parsers.

    Args:
        front: the settings.
        tokenizer: tells which markers are tokens of their own; None = there is no text to parse.
        template: `auto` is told from its text.

    Raises:
        ConfigError: a plugin fails, a name is unknown, or calls cannot be as strict as asked for.
    """
    if front.tool_parser_plugin is not None:
        run_plugin(front.tool_parser_plugin, "argument --tool-parser-plugin")
    if front.reasoning_parser_plugin is not None:
        run_plugin(front.reasoning_parser_plugin, "argument --reasoning-parser-plugin")
    source = None if template is None else template.source
    tool_name, reasoning_name = front.tool_call_parser, front.reasoning_parser
    if tool_name == "auto":
        tool_name = tool_registry.detect(source)
        logger.info("tool-call parser by the chat template: %s", tool_name)
    if reasoning_name == "auto":
        reasoning_name = reasoning_registry.detect(source)
        logger.info("reasoning parser by the chat template: %s", reasoning_name)
    reasoning = None
    if reasoning_name not in (None, "none"):
        reasoning = reasoning_registry.reasoning_parser(str(reasoning_name))
    form = CALL_FORMS.get(tool_name or "")
    if front.tool_strict_level != "auto" and tool_name is not None and form is None:
        raise ConfigError(
            f"argument --tool-strict-level: calls of the parser '{tool_name}' cannot be enforced; "
            f"those of {', '.join(sorted(CALL_FORMS))} can"
        )
    return OutputParsers(
        tool=None if tool_name is None else tool_registry.tool_parser(tool_name),
        auto=front.enable_auto_tool_choice,
        form=form,
        syntax=OWN_SYNTAX.get(tool_name or ""),
        strict=front.tool_strict_level,
        reasoning=reasoning,
        markers=_markers(front, reasoning, tokenizer),
        hidden=_hidden(tokenizer),
    )


def _markers(
    front: FrontConfig, parser: type[ReasoningParser] | None, tokenizer: "Tokenizer | None"
) -> ThinkingMarkers | None:
    """The parser's markers, else those of `--reasoning-config`; a budget always ends with the
    latter's."""
    start = (parser.start if parser is not None else None) or front.reasoning_start or ""
    end = (parser.end if parser is not None else None) or front.reasoning_end
    if end is None or tokenizer is None:
        return None
    closing = front.reasoning_end or end
    if end not in closing:
        raise ConfigError(
            f"argument --reasoning-config: reasoning_end_str must hold {end!r}, the end of "
            "reasoning as the parser knows it"
        )
    return ThinkingMarkers(
        start=start,
        end=end,
        start_token=_token(start, tokenizer),
        end_token=_token(end, tokenizer),
        other_ends=tuple(getattr(parser, "calls", ())),
        closing=tuple(tokenizer.encode(closing, add_special_tokens=False)),
    )


def _hidden(tokenizer: "Tokenizer | None") -> tuple[int, ...]:
    """The tokens that begin, end and fill texts, as the tokenizer names them."""
    if tokenizer is None:
        return ()
    ids = (_token(text, tokenizer) for text in tokenizer.special_tokens.values())
    return tuple(sorted({i for i in ids if i is not None}))


def _token(marker: str, tokenizer: "Tokenizer") -> int | None:
    """The id of a marker that is a token of its own."""
    ids = tokenizer.encode(marker, add_special_tokens=False) if marker else []
    return ids[0] if len(ids) == 1 and tokenizer.is_added(ids[0]) else None
