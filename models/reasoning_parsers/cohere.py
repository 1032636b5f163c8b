"""cohere_command3 and cohere_command4: a thinking block, then blocks of text or actions.

    <|START_THINKING|>Two and two.<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>

Blanks before the reasoning and after it, and the markers of text blocks are left out, and of
citations (`<co>4</co: 0:[1]>`) the cited text
alone stays. Actions stay in the content as they are, for the tool-call parser.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.reasoning_parsers.marked import MarkedReasoning, Mode

_CITED = ("</co:", "</co")
_TAG_END = Markers(">")
_ACTIONS = ("<|START_ACTION|>", "<|END_ACTION|>")


class CohereReasoning(MarkedReasoning):
    """Outside until the thinking block, which the template may have begun."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "<|START_THINKING|>"
    end: ClassVar[str | None] = "<|END_THINKING|>"
    calls: ClassVar[tuple[str, ...]] = _ACTIONS[:1]
    dropped: ClassVar[tuple[str, ...]] = (
        "<|START_RESPONSE|>",
        "<|END_RESPONSE|>",
        "<|START_TEXT|>",
        "<|END_TEXT|>",
        "<|CHATBOT_TOKEN|>",
        "<|START_OF_TURN_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<co>",
        *_CITED,
    )
    _outer = Markers("<|START_THINKING|>", *dropped, *_ACTIONS)
    _thinking = Markers("<|END_THINKING|>", _ACTIONS[0], "<co>", *_CITED)
    _action_end = Markers(_ACTIONS[1])
    _inside = ""  # "tag": the rest of a citation's closing tag; "action": a list of calls
    _trimming = False

    def _default(self) -> Mode:
        return Mode.OUTSIDE

    def _step(self) -> bool:
        if self._mode is Mode.HEAD:
            return super()._step()
        if self._inside:
            return self._step_inside()
        reasoning = self._mode is Mode.REASONING
        text, marker = self._until(self._thinking if reasoning else self._outer)
        if self._trimming:
            text = text.lstrip()
            self._trimming = not text
        (self._reasoning if reasoning else self._content).append(text)
        if marker == self.start:
            self._mode, self._trimming = Mode.REASONING, True
        elif marker == self.end:
            self._mode, self._trimming = Mode.CONTENT, True
        elif marker in _ACTIONS:
            self._content.append(marker or "")
            self._mode, self._trimming = Mode.CONTENT, False
            self._inside = "action" if marker == _ACTIONS[0] else ""
        elif marker in _CITED:
            self._inside = "tag"
        return marker is not None

    def _step_inside(self) -> bool:
        text, marker = self._until(_TAG_END if self._inside == "tag" else self._action_end)
        if self._inside == "action":
            self._content.append(text + (marker or ""))
        if marker is not None:
            self._inside = ""
        return marker is not None
