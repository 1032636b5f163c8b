"""Small parsers with formats of their own, for tests of what stands around parsers."""

import json
import re

from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser, ReasoningSplit
from ortloom.models.tool_parsers.tool_parser import (
    ArgumentsDelta,
    CallStart,
    ContentDelta,
    ParsedTools,
    ToolCall,
    ToolParser,
)


def held_back(text, marker):
    """Characters at the end of a text that may begin a marker."""
    return next((n for n in range(len(marker) - 1, 0, -1) if text.endswith(marker[:n])), 0)


class BracketCalls(ToolParser):
    """`[[name {...}]]`; text after the first call is dropped."""

    call_id = None

    def __init__(self, tools, template_kwargs=None):
        super().__init__(tools, template_kwargs)
        self._text, self._calls, self._in_call = "", 0, False

    def push(self, text):
        self._text += text
        events = []
        while True:
            if self._in_call:
                body, end, rest = self._text.partition("]]")
                if not end:
                    return events
                name, _, arguments = body.partition(" ")
                events += [
                    CallStart(self._calls, name, self.call_id),
                    ArgumentsDelta(self._calls, arguments or "{}"),
                ]
                self._calls += 1
                self._text, self._in_call = rest, False
                continue
            before, start, rest = self._text.partition("[[")
            if not start:
                keep = held_back(self._text, "[[")
                before = self._text[: len(self._text) - keep]
            if not self._calls:
                events.append(ContentDelta(before))
            if not start:
                self._text = self._text[len(before) :]
                return events
            self._text, self._in_call = rest, True

    def finish(self):
        left = self._text if not self._in_call and not self._calls else ""
        return [ContentDelta(left)]

    def parse(self, text):
        calls = [
            ToolCall(m[1], m[2] or "{}", self.call_id)
            for m in re.finditer(r"\[\[(\w+) ?(.*?)\]\]", text)
        ]
        return ParsedTools(text.partition("[[")[0] or None if calls else text, tuple(calls))


class OwnIdCalls(BracketCalls):
    call_id = "own:0"
    keeps_special_tokens = True
    grammar_calls = False


class AngleThinking(ReasoningParser):
    """`reasoning</r>content`; begins inside."""

    start = "<r>"
    end = "</r>"

    def __init__(self, template_kwargs=None, prompt=None):
        super().__init__(template_kwargs, prompt)
        self._inside = self.template_kwargs.get("enable_thinking", True)
        self._text = ""

    @property
    def reasoning(self):
        return self._inside

    def push(self, text):
        if not self._inside:
            return ReasoningSplit("", text)
        self._text = (self._text + text).removeprefix("<r>")
        before, end, rest = self._text.partition("</r>")
        if end:
            self._inside, self._text = False, ""
            return ReasoningSplit(before, rest)
        keep = max(held_back(self._text, "</r>"), len(self._text) if self._text in "<r>" else 0)
        out = self._text[: len(self._text) - keep]
        self._text = self._text[len(out) :]
        return ReasoningSplit(out, "")

    def finish(self):
        left, self._text = self._text, ""
        return ReasoningSplit(left, "")

    def parse(self, text):
        if not self._inside:
            return None, text
        before, end, rest = text.removeprefix("<r>").partition("</r>")
        return before or None, (rest or None) if end else None


def folded(events):
    """A stream's events as (reasoning, content, [(name, arguments)])."""
    from ortloom.server.openai.output_parts import ReasoningDelta

    reasoning = content = ""
    calls = []
    for event in events:
        match event:
            case ReasoningDelta(text):
                assert text
                reasoning += text
            case ContentDelta(text):
                assert text
                content += text
            case CallStart(index, name, call_id):
                assert index == len(calls)
                assert call_id
                calls.append([name, ""])
            case ArgumentsDelta(index, fragment):
                assert fragment
                calls[index][1] += fragment
    return reasoning, content, [(n, json.loads(a)) for n, a in calls]
