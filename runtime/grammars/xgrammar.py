"""xgrammar as the grammar engine, where it is installed.

Its package imports PyTorch, which takes seconds at the first constraint; nothing else of this
server does.
"""

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ortloom.errors import InvalidRequest
from ortloom.runtime.grammar_source import check_size, choices_of, schema_of
from ortloom.runtime.grammars.backend import GrammarMatcher
from ortloom.runtime.grammars.eager import EagerMatcher
from ortloom.runtime.grammars.vocabulary import GrammarVocabulary
from ortloom.runtime.sampling_params import StructuredOutput

if TYPE_CHECKING:
    import xgrammar

_PARAM = "structured_outputs"


class XGrammarBackend:
    """Implements `GrammarBackend`.

    Args:
        vocabulary: of the model.

    Raises:
        InvalidRequest: the bundle has no tokenizer.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        import xgrammar

        self._vocabulary = vocabulary
        table = [data or b"" for data in vocabulary.token_bytes()]
        info = xgrammar.TokenizerInfo(
            table,
            xgrammar.VocabType.RAW,
            vocab_size=vocabulary.vocab_size,
            stop_token_ids=list(vocabulary.end_ids),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, constraint: StructuredOutput) -> GrammarMatcher:
        """See GrammarBackend."""
        check_size(constraint)
        if constraint.whitespace_pattern is not None:
            raise InvalidRequest("xgrammar knows no whitespace_pattern.", _PARAM)
        try:
            compiled = self._compiled(constraint)
        except InvalidRequest:
            raise
        except Exception as error:  # of several kinds, none of them declared
            reason = " ".join(str(error).split())[-400:]
            message = f"Invalid {constraint.kind} constraint: {reason}"
            raise InvalidRequest(message, _PARAM) from None
        return XGrammarMatcher(self._vocabulary, compiled)

    def _compiled(self, constraint: StructuredOutput) -> "xgrammar.CompiledGrammar":
        import xgrammar

        text = constraint.value
        whitespace = not constraint.disable_any_whitespace
        match constraint.kind:
            case "json" | "json_object":
                return self._compiler.compile_json_schema(
                    schema_of(constraint), any_whitespace=whitespace, strict_mode=False
                )
            case "regex":
                return self._compiler.compile_regex(text)
            case "choice":
                ways = " | ".join(_quoted(choice) for choice in choices_of(constraint))
                return self._compiler.compile_grammar(f"root ::= {ways}")
            case "grammar":
                if "::=" in text:
                    return self._compiler.compile_grammar(text)
                return self._compiler.compile_lark(text)
            case "structural_tag":
                return self._compiler.compile_structural_tag(_newer(text, xgrammar))


class XGrammarMatcher(EagerMatcher):
    """A place in a compiled grammar.

    Args:
        vocabulary: of the model.
        compiled: the grammar.
    """

    def __init__(self, vocabulary: GrammarVocabulary, compiled: "xgrammar.CompiledGrammar") -> None:
        import xgrammar

        super().__init__(vocabulary)
        self._compiled = compiled
        self._matcher = xgrammar.GrammarMatcher(compiled)
        self.look()

    def begin(self) -> "XGrammarMatcher":
        """See EagerMatcher."""
        return XGrammarMatcher(self.vocabulary, self._compiled)

    def take(self, token: int) -> bool:
        """See EagerMatcher."""
        return bool(self._matcher.accept_token(token))

    def fill(self, bits: NDArray[np.int32]) -> bool:
        """See EagerMatcher."""
        if not self._matcher.fill_next_token_bitmask(bits[np.newaxis]):
            bits[:] = -1
        return bool(self._matcher.is_completed())


def _quoted(text: str) -> str:
    """A string of xgrammar's EBNF."""
    made = ""
    for char in text:
        if char in '"\\':
            made += "\\" + char
        else:
            made += char if char.isascii() and char.isprintable() else f"\\U{ord(char):08x}"
    return f'"{made}"'


def _newer(text: str, module: Any) -> Any:
    """A structural tag in the form that xgrammar reads; the older form is turned into it."""
    data = json.loads(text)
    if isinstance(data, dict) and "format" not in data and "structures" in data:
        tags = [
            {
                "type": "tag",
                "begin": s["begin"],
                "content": {"type": "json_schema", "json_schema": s.get("schema", True)},
                "end": s["end"],
            }
            for s in data["structures"]
        ]
        data = {"format": {"type": "triggered_tags", "triggers": data["triggers"], "tags": tags}}
    return module.StructuralTag.model_validate({**data, "type": "structural_tag"})
