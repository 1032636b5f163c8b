"""lm-format-enforcer as the grammar engine, where it is installed.

JSON schemas, regular expressions and choices, followed character by character in Python.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ortloom.errors import InvalidRequest
from ortloom.runtime.grammar_source import check_size, choices_of, schema_of
from ortloom.runtime.grammars.backend import GrammarMatcher
from ortloom.runtime.grammars.eager import EagerMatcher, set_bits
from ortloom.runtime.grammars.vocabulary import GrammarVocabulary
from ortloom.runtime.sampling_params import StructuredOutput

if TYPE_CHECKING:
    from lmformatenforcer import CharacterLevelParser, TokenEnforcerTokenizerData

_PARAM = "structured_outputs"


class FormatEnforcerBackend:
    """Implements `GrammarBackend`. Tokens that hold a part of a character only are never allowed.

    Args:
        vocabulary: of the model.

    Raises:
        InvalidRequest: the bundle has no tokenizer.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        from lmformatenforcer import TokenEnforcerTokenizerData

        self._vocabulary = vocabulary
        texts: dict[int, str] = {}
        for token, data in enumerate(vocabulary.token_bytes()):
            try:
                if data is not None:
                    texts[token] = data.decode()
            except UnicodeDecodeError:
                continue
        self._data = TokenEnforcerTokenizerData(
            [(token, text, True) for token, text in texts.items()],
            lambda ids: "".join(texts.get(token, "") for token in ids),
            list(vocabulary.end_ids),
            False,
            vocabulary.vocab_size,
        )

    def compile(self, constraint: StructuredOutput) -> GrammarMatcher:
        """See GrammarBackend."""
        check_size(constraint)
        if constraint.whitespace_pattern is not None or constraint.disable_any_whitespace:
            raise InvalidRequest(
                "lm-format-enforcer has no whitespace_pattern and no disable_any_whitespace.",
                _PARAM,
            )
        try:
            parser = _parser(constraint)
        except InvalidRequest:
            raise
        except Exception as error:  # of several kinds, none of them declared
            reason = " ".join(str(error).split())[:400]
            message = f"Invalid {constraint.kind} constraint: {reason}"
            raise InvalidRequest(message, _PARAM) from None
        return FormatEnforcerMatcher(self._vocabulary, self._data, parser)


class FormatEnforcerMatcher(EagerMatcher):
    """A place in a parser.

    Args:
        vocabulary: of the model.
        data: the vocabulary in the engine's form.
        parser: at the start.
    """

    def __init__(
        self,
        vocabulary: GrammarVocabulary,
        data: "TokenEnforcerTokenizerData",
        parser: "CharacterLevelParser",
    ) -> None:
        from lmformatenforcer import TokenEnforcer

        super().__init__(vocabulary)
        self._data = data
        self._parser = parser
        self._enforcer = TokenEnforcer(data, parser)
        self._ends = frozenset(vocabulary.end_ids)
        self._allowed: list[int] = []
        self._sequence: list[int] = []
        self.look()

    def begin(self) -> "FormatEnforcerMatcher":
        """See EagerMatcher."""
        return FormatEnforcerMatcher(self.vocabulary, self._data, self._parser)

    def take(self, token: int) -> bool:
        """See EagerMatcher."""
        if token not in self._allowed or token in self._ends:
            return False
        self._sequence.append(token)
        return True

    def fill(self, bits: NDArray[np.int32]) -> bool:
        """See EagerMatcher."""
        self._allowed = self._enforcer.get_allowed_tokens(self._sequence).allowed_tokens
        if self._sequence:  # the engine keeps every place it has been at; the last one is enough
            self._enforcer.prefix_states.pop(tuple(self._sequence[:-1]), None)
        set_bits(bits, self._allowed)
        return any(token in self._ends for token in self._allowed)


def _parser(constraint: StructuredOutput) -> "CharacterLevelParser":
    from lmformatenforcer import JsonSchemaParser, RegexParser, StringParser, UnionParser

    match constraint.kind:
        case "json" | "json_object":
            return JsonSchemaParser(schema_of(constraint))
        case "regex":
            return RegexParser(constraint.value)
        case "choice":
            return UnionParser([StringParser(choice) for choice in choices_of(constraint)])
        case _:
            raise InvalidRequest(
                f"The grammar backend 'lm-format-enforcer' has no {constraint.kind} constraints.",
                _PARAM,
            )
