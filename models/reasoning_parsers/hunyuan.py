"""hunyuan_a13b: `<think>`, then `<answer>`, each with newlines that belong to the tags.

<think>
Two and two.
</think>
<answer>
4
</answer>
"""

from typing import ClassVar

from ortloom.models.reasoning_parsers.marked import MarkedReasoning, Mode


class HunyuanReasoning(MarkedReasoning):
    """Outside until the start tag."""

    keeps_special_tokens = True
    start: ClassVar[str | None] = "<think>"
    end: ClassVar[str | None] = "</think>"
    starts: ClassVar[tuple[str, ...]] = ("<think>\n", "<think>")
    ends: ClassVar[tuple[str, ...]] = tuple(
        f"{before}</think>{after}"
        for before in ("\n", "")
        for after in ("\n<answer>\n", "\n<answer>", "<answer>\n", "<answer>", "")
    )
    dropped: ClassVar[tuple[str, ...]] = ("\n</answer>", "</answer>", "<answer>\n", "<answer>")

    def _default(self) -> Mode:
        return Mode.OUTSIDE
