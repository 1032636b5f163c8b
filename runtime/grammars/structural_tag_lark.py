"""From a structural tag's tree to a Lark grammar of llguidance.

Free text is one greedy lexeme; a trigger, or what ends free text, is a lazy one, which ends the
text at its first occurrence. Special tokens cannot be spelled by text: they stand as ids.
"""

import json
from collections.abc import Callable

from ortloom.errors import InvalidRequest
from ortloom.runtime.grammars.schema_options import SchemaOptions
from ortloom.runtime.grammars.structural_tag import (
    AnyText,
    ConstString,
    Format,
    Grammar,
    JsonSchema,
    Optional,
    Or,
    Plus,
    Regex,
    Repeat,
    Sequence,
    Star,
    Tag,
    TagsWithSeparator,
    Token,
    TriggeredTags,
)

_PARAM = "structured_outputs"
_ANY = r"/(.|\n)*/"
_NOTHING = '""'


def structural_tag_lark(
    root: Format,
    with_specials: Callable[[str], list[str | int]],
    options: SchemaOptions,
    to_lark: Callable[[str], str],
) -> str:
    """The grammar's text.

    Args:
        root: the checked tree.
        with_specials: cuts a text at its special tokens.
        options: of the JSON schemas in it.
        to_lark: turns an EBNF or Lark grammar into Lark.

    Raises:
        InvalidRequest: a token that is none.
    """
    writer = _Writer(with_specials, options, to_lark)
    start = writer.expression(root)
    return "\n".join(["%llguidance {}", f"start: {start}", *writer.rules]) + "\n"


class _Writer:
    """Writes expressions, and rules where an expression cannot say it."""

    def __init__(
        self,
        with_specials: Callable[[str], list[str | int]],
        options: SchemaOptions,
        to_lark: Callable[[str], str],
    ) -> None:
        self._with_specials = with_specials
        self._options = options
        self._to_lark = to_lark
        self.rules: list[str] = []

    def expression(self, node: Format) -> str:
        match node:
            case ConstString(value):
                return self._literal(value)
            case JsonSchema(schema):
                return f"%json {json.dumps(self._options.inline(schema), ensure_ascii=False)}"
            case AnyText(excludes):
                return self._text(excludes)
            case Regex(pattern):
                return self._terminal(_regex(pattern))
            case Grammar(grammar):
                return f"%lark {{\n{self._to_lark(grammar)}\n}}"
            case Token():
                return self._token(node)
            case Sequence(elements):
                return self._group(" ".join(self.expression(e) for e in elements))
            case Or(elements):
                return self._group(" | ".join(self.expression(e) for e in elements))
            case Tag():
                return self._tag(node)
            case TriggeredTags():
                return self._triggered(node)
            case TagsWithSeparator():
                return self._separated(node)
            case Optional(content):
                return f"{self._named(content)}?"
            case Plus(content):
                return f"{self._named(content)}+"
            case Star(content):
                return f"{self._named(content)}*"
            case Repeat(low, high, content):
                most = "" if high == -1 else str(high)
                return f"{self._named(content)}{{{low},{most}}}"

    # ---- tags

    def _tag(self, tag: Tag) -> str:
        begin = self._token(tag.begin) if isinstance(tag.begin, Token) else self._literal(tag.begin)
        return self._group(f"{begin} {self._content(tag)}")

    def _content(self, tag: Tag) -> str:
        """What follows a tag's beginning, its end included."""
        end = tag.end
        ends = end if isinstance(end, list) else [end]
        if isinstance(tag.content, AnyText):
            return self._text_up_to(tag.content.excludes, ends)
        spelled = [self._token(e) if isinstance(e, Token) else self._literal(e) for e in ends]
        return f"{self.expression(tag.content)} {self._group(' | '.join(spelled))}"

    def _triggered(self, node: TriggeredTags) -> str:
        inner = [self._opened(node, tag) for tag in node.tags]
        text = self._text(node.excludes)
        within = self._rule(" | ".join(inner))
        first = self._rule(" | ".join(self._tag(tag) for tag in node.tags))
        if node.at_least_one:
            return first if node.stop_after_first else self._group(f"{first} {within}* {text}")
        if node.stop_after_first:
            return self._group(f"{within} | {text}")
        return self._group(f"{within}* {text}")

    def _opened(self, node: TriggeredTags, tag: Tag) -> str:
        """Free text up to the trigger, then the rest of the tag."""
        begin = str(tag.begin)
        trigger = max((t for t in node.triggers if begin.startswith(t)), key=len)
        opening = self._text_up_to(node.excludes, [trigger])
        return f"{opening} {self._literal(begin[len(trigger) :])} {self._content(tag)}"

    def _separated(self, node: TagsWithSeparator) -> str:
        tag = self._rule(" | ".join(self._tag(tag) for tag in node.tags))
        several = tag
        if not node.stop_after_first:
            several = f"{tag} ({self._literal(node.separator)} {tag})*"
        return self._group(several) + ("" if node.at_least_one else "?")

    # ---- texts

    def _text(self, excludes: list[str]) -> str:
        return self._terminal(_free_text(excludes))

    def _text_up_to(self, excludes: list[str], ends: list[str] | list[str | Token]) -> str:
        """Free text and the first of `ends` that comes."""
        ways: list[str] = []
        plain: list[str] = []
        for end in ends:
            if isinstance(end, Token):
                ways.append(f"{self._text(excludes)} {self._token(end)}")
                continue
            pieces = self._with_specials(end)
            if not pieces:
                ways.append(self._text(excludes))
            elif isinstance(pieces[0], int):
                ways.append(f"{self._text(excludes)} {self._spelled(pieces)}")
            elif len(pieces) > 1:
                lazy = self._lazy(excludes, [pieces[0]])
                ways.append(f"{lazy} {self._spelled(pieces[1:])}")
            else:
                plain.append(end)
        if plain:
            ways.append(self._lazy(excludes, plain))
        return self._group(" | ".join(ways))

    def _lazy(self, excludes: list[str], ends: list[str]) -> str:
        name = f"lazy_{len(self.rules)}"
        last = " | ".join(_quoted(end) for end in ends)
        self.rules.append(f"{name}[lazy]: {_free_text(excludes)} ({last})")
        return name

    def _literal(self, text: str) -> str:
        return self._spelled(self._with_specials(text)) if text else _NOTHING

    def _spelled(self, pieces: list[str | int]) -> str:
        return " ".join(_quoted(p) if isinstance(p, str) else f"<[{p}]>" for p in pieces)

    def _token(self, token: Token) -> str:
        if isinstance(token.token, int):
            return f"<[{token.token}]>"
        pieces = self._with_specials(token.token)
        if len(pieces) != 1 or isinstance(pieces[0], str):
            raise InvalidRequest(
                f"Invalid structural tag: '{token.token[:60]}' is no special token.", _PARAM
            )
        return f"<[{pieces[0]}]>"

    # ---- rules

    def _group(self, expression: str) -> str:
        return f"({expression})"

    def _named(self, content: Format) -> str:
        return self._rule(self.expression(content))

    def _rule(self, expression: str) -> str:
        name = f"rule_{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name

    def _terminal(self, expression: str) -> str:
        name = f"TEXT_{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _regex(pattern: str) -> str:
    """A pattern between slashes, with the slashes inside it escaped."""
    escaped = ""
    backslash = False
    for char in pattern:
        if char == "/" and not backslash:
            escaped += "\\"
        escaped += "\\n" if char == "\n" else char
        backslash = char == "\\" and not backslash
    return f"/{escaped}/"


def _free_text(excludes: list[str]) -> str:
    if not excludes:
        return _ANY
    unwanted = " | ".join(_quoted(text) for text in excludes)
    return f"({_ANY} & ~({_ANY} ({unwanted}) {_ANY}))"
