"""Tags whose names carry a suffix of the model's own (`<think:a1b2>`): the suffix taken off."""

import re
from collections.abc import Iterable


class SuffixedTags:
    """Rewrites `<tag:suffix>` and `</tag:suffix>` to the plain tags in text that comes in pieces.

    Args:
        tags: names of the tags that may have one.
    """

    def __init__(self, tags: Iterable[str]) -> None:
        names = tuple(tags)
        any_name = "|".join(re.escape(name) for name in names)
        self._whole = re.compile(rf"(</?(?:{any_name})):[^\s<>]{{1,64}}>")
        self._begun = re.compile(rf"</?(?:{any_name}):[^\s<>]{{0,64}}")
        heads = (f"<{slash}{name}" for slash in ("", "/") for name in names)
        self._heads = {head[:size] for head in heads for size in range(1, len(head) + 1)}
        self._held = ""

    def push(self, text: str) -> str:
        """The text without suffixes, as far as it is certain."""
        text = self._held + text
        cut = text.rfind("<")
        tail = text[cut:] if cut >= 0 else ""
        self._held = tail if tail in self._heads or self._begun.fullmatch(tail) else ""
        return self._whole.sub(r"\1>", text[: len(text) - len(self._held)])

    def finish(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held
