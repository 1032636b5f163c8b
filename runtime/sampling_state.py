"""What the sampler keeps of one request between steps."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ortloom.models.thinking import ThinkingTracker
from ortloom.runtime.bad_words import BadWords
from ortloom.runtime.logits_processors import LogitsProcessors
from ortloom.runtime.request import Request
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.scheduler_output import RowResult
from ortloom.runtime.structured_output import GrammarCompiler, GrammarState
from ortloom.runtime.thinking_gate import ThinkingGate
from ortloom.runtime.user_processors import UserProcessors

if TYPE_CHECKING:
    from ortloom.runtime.native_sampler import NativeRow

NOT_FINITE = "the model produced logits that are not finite"
NOTHING_ALLOWED = "no token is allowed by the constraints of this request"
GRAMMAR_PARAM = "structured_outputs"


def restricting(params: SamplingParams) -> str:
    """The field that leaves no token to choose."""
    if params.structured_output is not None:
        return GRAMMAR_PARAM
    return "bad_words" if params.allowed_token_ids is None else "allowed_token_ids"


@dataclass(slots=True)
class SamplingState:
    """Follows the output tokens of `request`."""

    request: Request
    processors: LogitsProcessors
    grammar: GrammarState | ThinkingGate | None
    plain: bool  # greedy, nothing changes the logits, nothing to report
    jumps: bool = False  # tokens that the gate forces are added without a step of their own
    observed: int = 0  # output tokens the processors have counted
    native: "NativeRow | None" = None  # what the op library is given, once it has been used

    @classmethod
    def start(
        cls,
        request: Request,
        vocab_size: int,
        grammars: GrammarCompiler,
        jump_forward: bool = False,
        users: UserProcessors | None = None,
    ) -> "SamplingState":
        """The state of a request whose output has not been looked at.

        Args:
            request: of the scheduler.
            vocab_size: V.
            grammars: compiler of constraints.
            jump_forward: add forced tokens; a request with logprobs or with processors of a user
                computes each one all the same.
            users: the server's processors of users.

        Raises:
            InvalidRequest: its grammar cannot be compiled.
        """
        params = request.sampling
        words = BadWords(params.bad_words, grammars.vocabulary) if params.bad_words else None
        custom = [] if users is None else users.for_request(params)
        processors = LogitsProcessors(params, request.prompt_token_ids, vocab_size, words, custom)
        grammar: GrammarState | None = None
        if params.structured_output is not None:
            ends = params.eos_token_ids + params.secondary_eos_token_ids
            grammar = grammars.start(params.structured_output, ends)
        gate: GrammarState | ThinkingGate | None = grammar
        if params.thinking is not None:
            tracker = ThinkingTracker(
                params.thinking, grammars.vocabulary.token_bytes, request.prompt_token_ids
            )
            gate = ThinkingGate(params.thinking, tracker, grammar, vocab_size)
        plain = (
            params.greedy
            and params.logprobs is None
            and not params.logprobs_detail
            and not params.sampling_mask
            and gate is None
            and not processors.active
        )
        # A position that is reported needs a step of its own.
        reported = params.logprobs is not None or params.logprobs_detail or params.sampling_mask
        bound = gate is not None
        jumps = jump_forward and bound and not reported and not custom and words is None
        return cls(request, processors, gate, plain, jumps)

    def observe(self) -> None:
        """Count the output tokens that are new since the last call."""
        tokens = self.request.token_ids
        known = len(self.request.prompt_token_ids) + self.observed
        if len(tokens) > known:
            self.processors.observe(tokens[known:])
            self.observed += len(tokens) - known

    def grammar_failure(self) -> RowResult | None:
        """The result of a row whose grammar cannot go on, if it cannot."""
        if self.grammar is None or self.grammar.error is None:
            return None
        return RowResult(error=self.grammar.error, error_param=GRAMMAR_PARAM)

    def nothing_allowed(self) -> RowResult:
        """The result of a row whose constraints leave no token."""
        return RowResult(error=NOTHING_ALLOWED, error_param=restricting(self.request.sampling))

    def forced_after(self, token: int) -> list[int]:
        """The tokens that must follow `token`, which was just drawn.

        They are those that sampling could only draw: the grammar allows no other one, and no
        processor forbids them. Ends at a token that ends the request or at its length limit.
        """
        grammar = self.grammar
        request = self.request
        if grammar is None:
            return []
        known = len(request.prompt_token_ids)
        output = [*request.token_ids[known:], token]
        room = request.max_total_tokens - known - len(output)
        forced: list[int] = []
        grammar.advance(output)
        while len(forced) < room and grammar.error is None:
            found = grammar.forced()
            if found is None or not self._permits(found, output, grammar.complete):
                break
            forced.append(found)
            output.append(found)
            grammar.advance(output)
        return forced

    def _permits(self, token: int, output: list[int], complete: bool) -> bool:
        """Whether the processors leave a token that the grammar forces."""
        processors = self.processors
        if not processors.active:
            return True
        if processors.allowed is not None and token not in processors.allowed:
            return False
        if token in processors.forbidden(output, len(output)):
            return False
        held_back = not complete and processors.holds_back_ends(len(output))
        return not (held_back and token in processors.end_ids)
