"""Headers of harmony messages: role, channel, recipient."""

import re
from dataclasses import dataclass

CHANNEL, START, MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>")
LONGEST_HEADER = 1024
"""Characters of a header that are read."""

_TO = re.compile(r"\bto=([^\s<]+)")
_NAMED = re.compile(r"<\|channel\|>\s*(\w+)")
_FUNCTIONS = "functions."
BEGUN = re.compile(r"\s*(?:t|to|to=[^\s<]{0,200}\s*)?")
"""What a header can begin with that the prompt's `<|start|>assistant` began."""


@dataclass(frozen=True, slots=True)
class HarmonyHeader:
    """What a header says; `function` is the name behind `functions.`."""

    channel: str | None
    recipient: str | None
    function: str | None

    @property
    def shown(self) -> bool:
        """Whether the message is for the reader: to nobody, in another channel than analysis."""
        return self.recipient is None and self.channel != "analysis"


def read_header(text: str) -> HarmonyHeader:
    """The header that stands before `<|message|>`."""
    channel, recipient = _NAMED.search(text), _TO.search(text)
    to = recipient[1] if recipient is not None else None
    name = to.removeprefix(_FUNCTIONS) if to is not None and to.startswith(_FUNCTIONS) else None
    return HarmonyHeader(channel[1] if channel is not None else None, to, name or None)
