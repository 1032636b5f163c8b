"""The sandbox chat templates run in, and what can be read off a template without running it.

The environment offers what templates of the hub expect: trimmed blocks, loop controls, `tojson`
that keeps non-ASCII text, `raise_exception`, `strftime_now` and the `generation` block. Nothing a
template does can change the objects it is given.
"""

import json
import re
from datetime import datetime
from typing import Any, Literal, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ortloom.errors import InvalidRequest

ContentFormat = Literal["string", "openai"]


_BINDABLE_BUILTIN = "raise_exception"
"""The one name of the sandbox's own that a request may bind."""


class TemplateRefusal(Exception):
    """A template called `raise_exception`; the text is the template's own sentence."""


class _GenerationBlock(Extension):
    """`{% generation %} … {% endgeneration %}` marks the model's own words; renders its body."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """Parse to the body in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefusal(str(message))


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def make_environment() -> jinja2.Environment:
    """A fresh sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationBlock]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


ENVIRONMENT = make_environment()
"""Shared; compiled templates keep no state of a rendering in it."""


def compile_template(source: str) -> jinja2.Template:
    """Compile.

    Raises:
        InvalidRequest: the text is no valid template.
    """
    try:
        return ENVIRONMENT.from_string(source)
    except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
        # a SyntaxError is Python's own: what the template was made into nests too deeply for it
        reason = error.msg if isinstance(error, SyntaxError) else error
        raise InvalidRequest(f"The chat template cannot be parsed: {reason}") from None


def variables_of(source: str) -> frozenset[str]:
    """Names a caller may bind: those the template reads and does not set."""
    try:
        tree = ENVIRONMENT.parse(source)
        names = {n.name for n in tree.find_all(nodes.Name)} & {_BINDABLE_BUILTIN}
        return frozenset(meta.find_undeclared_variables(tree) | names)
    except jinja2.TemplateError:
        return frozenset()


def is_builtin(name: str) -> bool:
    """True for names of the sandbox's own globals, filters and tests that cannot be bound."""
    if name == _BINDABLE_BUILTIN:
        return False
    e = ENVIRONMENT
    return name in e.globals or name in e.filters or name in e.tests


def content_format_of(source: str) -> ContentFormat:
    """Whether the template walks over the parts of a message's content.

    It does if some loop runs over `<message>.content` (or a name set from it), where `<message>`
    may have any name.
    """
    try:
        tree = ENVIRONMENT.parse(source)
    except jinja2.TemplateError:
        return "string"
    aliases = {
        node.target.name
        for node in tree.find_all(nodes.Assign)
        if isinstance(node.target, nodes.Name) and _is_content(node.node, frozenset())
    }
    loops = tree.find_all(nodes.For)
    walks = any(_is_content(loop.iter, frozenset(aliases)) for loop in loops)
    return "openai" if walks else "string"


def _is_content(node: nodes.Node, aliases: frozenset[str]) -> bool:
    """The expression reads a member `content`, possibly through filters."""
    while isinstance(node, nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, nodes.Name):
        return node.name in aliases
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return False


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Render.

    Raises:
        InvalidRequest: the template refuses its input or fails on it; the text says why.
    """
    try:
        return template.render(**variables)
    except TemplateRefusal as refusal:
        raise InvalidRequest(str(refusal) or "The chat template refuses the messages.") from None
    except RecursionError:
        raise InvalidRequest("The chat template nests too deeply.") from None
    except Exception as error:  # a template can fail with any error of the expressions in it
        raise InvalidRequest(f"The chat template failed: {describe(error)}") from None


def describe(error: Exception) -> str:
    """An error of a template in one sentence, without names of Python internals."""
    if isinstance(error, jinja2.UndefinedError):
        name = re.search(r"'([^']*)'[^']*$", str(error))
        return "it reads a value that is not there" + (f" ('{name[1]}')" if name else "")
    if isinstance(error, jinja2.TemplateError):
        return str(error)
    kind = {
        KeyError: "a member is missing",
        TypeError: "a value has a type it does not expect",
        AttributeError: "a value has a type it does not expect",
        ValueError: "a value is not what it expects",
    }
    for known, sentence in kind.items():
        if isinstance(error, known):
            return sentence
    return "an expression in it cannot be evaluated"
