"""outlines-core as the grammar engine, where it is installed: regular expressions and what can be
written as one. Its compile time grows with the vocabulary and the length of the expression."""

import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from numpy.typing import NDArray

from ortloom.errors import InvalidRequest
from ortloom.runtime.grammar_source import check_size, choices_of, schema_of
from ortloom.runtime.grammars.backend import GrammarMatcher
from ortloom.runtime.grammars.eager import EagerMatcher, set_bits
from ortloom.runtime.grammars.vocabulary import GrammarVocabulary
from ortloom.runtime.sampling_params import StructuredOutput

if TYPE_CHECKING:
    import outlines_core

_PARAM = "structured_outputs"
_NO_WHITESPACE = ""


class OutlinesBackend:
    """Implements `GrammarBackend`.

    Args:
        vocabulary: of the model.

    Raises:
        InvalidRequest: the bundle has no tokenizer.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        from outlines_core import Vocabulary

        self._vocabulary = vocabulary
        if not vocabulary.end_ids:
            raise InvalidRequest("outlines-core needs a model with an end token.", _PARAM)
        tokens: dict[bytes | str, list[int]] = {}
        for token, data in enumerate(vocabulary.token_bytes()):
            if data is not None and token not in vocabulary.end_ids:
                tokens.setdefault(data, []).append(token)
        self._tokens = Vocabulary(vocabulary.end_ids[0], tokens)

    def compile(self, constraint: StructuredOutput) -> GrammarMatcher:
        """See GrammarBackend."""
        from outlines_core import Index

        check_size(constraint)
        try:
            index = Index(_pattern(constraint), self._tokens)
        except InvalidRequest:
            raise
        except Exception as error:  # ValueError and kinds of the engine's own
            reason = " ".join(str(error).split())[:400]
            message = f"Invalid {constraint.kind} constraint: {reason}"
            raise InvalidRequest(message, _PARAM) from None
        return OutlinesMatcher(self._vocabulary, index)


class OutlinesMatcher(EagerMatcher):
    """A place in an automaton.

    Args:
        vocabulary: of the model.
        index: the automaton.
    """

    def __init__(self, vocabulary: GrammarVocabulary, index: "outlines_core.Index") -> None:
        from outlines_core import Guide

        super().__init__(vocabulary)
        self._index = index
        self._guide = Guide(index)
        self.look()

    def begin(self) -> "OutlinesMatcher":
        """See EagerMatcher."""
        return OutlinesMatcher(self.vocabulary, self._index)

    def take(self, token: int) -> bool:
        """See EagerMatcher."""
        if not self._guide.accepts_tokens([token]):
            return False
        self._guide.advance(token, return_tokens=False)
        return True

    def fill(self, bits: NDArray[np.int32]) -> bool:
        """See EagerMatcher."""
        set_bits(bits, self._guide.get_tokens())
        return bool(self._guide.is_finished())


def _pattern(constraint: StructuredOutput) -> str:
    from outlines_core.json_schema import build_regex_from_schema

    match constraint.kind:
        case "regex":
            return constraint.value
        case "choice":
            return "|".join(f"({re.escape(choice)})" for choice in choices_of(constraint))
        case "json" | "json_object":
            blanks = constraint.whitespace_pattern
            if blanks is None and constraint.disable_any_whitespace:
                blanks = _NO_WHITESPACE
            schema = msgspec.json.encode(schema_of(constraint)).decode()
            return str(build_regex_from_schema(schema, blanks))
        case _:
            raise InvalidRequest(
                f"The grammar backend 'outlines' has no {constraint.kind} constraints.", _PARAM
            )
