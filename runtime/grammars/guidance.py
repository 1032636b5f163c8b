"""llguidance: the default grammar engine. It knows all kinds of constraints."""

from ortloom.runtime.grammar_source import compile_limits, grammar_text
from ortloom.runtime.grammars.backend import GrammarMatcher
from ortloom.runtime.grammars.vocabulary import GrammarVocabulary
from ortloom.runtime.sampling_params import StructuredOutput


class GuidanceBackend:
    """Implements `GrammarBackend`.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary

    def compile(self, constraint: StructuredOutput) -> GrammarMatcher:
        """See GrammarBackend."""
        from llguidance import LLMatcher

        text = grammar_text(constraint, self._vocabulary.with_specials)
        tokenizer = self._vocabulary.tokenizer()
        matcher: GrammarMatcher = LLMatcher(tokenizer, text, log_level=0, limits=compile_limits())
        return matcher
