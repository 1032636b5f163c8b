"""Sampling parameters of one request, as the engine sees them (token ids only, no text)."""

from typing import Literal

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.models.thinking import Thinking

SAMPLING_EPS = 1e-5
"""Temperatures below this are greedy."""

MIN_TEMPERATURE = 1e-2
"""A temperature between SAMPLING_EPS and this is raised to it."""

MAX_TOP_K = 2**31 - 1
"""A larger top_k cuts nothing either."""


class StructuredOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """One constraint. `kind` json holds a JSON schema text, regex a pattern, grammar a Lark text,
    choice a JSON list of strings; json_object any JSON object (value unused)."""

    kind: Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]
    value: str = ""
    whitespace_pattern: str | None = None
    disable_any_whitespace: bool = False


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Immutable after `validated`. Field names and ranges are vLLM's.

    `max_tokens` None = up to the context limit. `logprobs`/`prompt_logprobs` None = off, 0 = the
    sampled token only, -1 = the whole vocabulary. `eos_token_ids` end the request (stop_reason
    null) unless `ignore_eos`; `stop_token_ids` end it with the id as stop_reason.
    `stop` strings are applied by the caller that owns text (front or LLM), not by the engine.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 and -1 = off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    seed: int | None = None
    sample_index: int = 0  # which of n samples; part of the random key
    n: int = 1
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    eos_token_ids: list[int] = []
    stop_token_ids: list[int] = []
    secondary_eos_token_ids: list[int] = []  # from generation_config; stop_reason is the id
    stop: list[str] = []
    include_stop_str_in_output: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    structured_output: StructuredOutput | None = None
    thinking: Thinking | None = None  # the constraint begins, and the budget ends, with it
    skip_special_tokens: bool = True
    hidden_token_ids: list[int] = []  # not shown even where special tokens are
    spaces_between_special_tokens: bool = True
    detokenize: bool = True

    @property
    def slow_to_check(self) -> bool:
        """True when checking the request may take longer than many steps."""
        return self.structured_output is not None or bool(self.bad_words or self.thinking)

    @property
    def greedy(self) -> bool:
        """True when the highest logit is always taken."""
        return self.temperature < SAMPLING_EPS

    def validated(self, vocab_size: int | None = None, max_logprobs: int = 20) -> "SamplingParams":
        """A normalised copy.

        Args:
            vocab_size: upper bound of token ids; None skips that check.
            max_logprobs: cap of logprobs and prompt_logprobs; -1 = none.

        Raises:
            InvalidRequest: a value is out of range; `param` names the field.
        """
        check_ranges(self)
        check_logprobs(self, max_logprobs, vocab_size)
        if vocab_size is not None:
            check_token_ids(self, vocab_size)
        changes: dict[str, object] = {}
        if SAMPLING_EPS <= self.temperature < MIN_TEMPERATURE:
            changes["temperature"] = MIN_TEMPERATURE
        if self.top_k > MAX_TOP_K:
            changes["top_k"] = MAX_TOP_K
        if self.greedy:
            changes |= {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
        if self.seed == -1:
            changes["seed"] = None
        if self.logit_bias is not None:
            changes["logit_bias"] = {
                k: min(100.0, max(-100.0, v)) for k, v in self.logit_bias.items()
            }
        return msgspec.structs.replace(self, **changes)


def _finite(value: float) -> bool:
    return value == value and value not in (float("inf"), float("-inf"))


def check_ranges(p: SamplingParams) -> None:
    """Range checks that need no model facts.

    Raises:
        InvalidRequest: naming the field and the value's limits.
    """
    ranges: list[tuple[str, float, bool, str]] = [
        ("temperature", p.temperature, 0 <= p.temperature <= 2, "between 0 and 2"),
        ("top_p", p.top_p, 0 < p.top_p <= 1, "in (0, 1]"),
        ("top_k", p.top_k, p.top_k >= -1, "-1, 0 (off) or at least 1"),
        ("min_p", p.min_p, 0 <= p.min_p <= 1, "between 0 and 1"),
        ("repetition_penalty", p.repetition_penalty, p.repetition_penalty > 0, "above 0"),
        ("presence_penalty", p.presence_penalty, -2 <= p.presence_penalty <= 2, "in [-2, 2]"),
        ("frequency_penalty", p.frequency_penalty, -2 <= p.frequency_penalty <= 2, "in [-2, 2]"),
        ("min_tokens", p.min_tokens, p.min_tokens >= 0, "at least 0"),
        ("n", p.n, p.n >= 1, "at least 1"),
    ]
    for name, value, good, rule in ranges:
        if not (_finite(value) and good):
            raise InvalidRequest(f"{name} must be {rule}, got {value}.", name)
    if p.n > 1 and p.greedy:
        raise InvalidRequest(f"n must be 1 when using greedy sampling, got {p.n}.", "n")
    if p.max_tokens is not None and p.max_tokens < 0:
        raise InvalidRequest(f"max_tokens must be at least 0, got {p.max_tokens}.", "max_tokens")
    if p.max_tokens is not None and p.min_tokens > p.max_tokens:
        raise InvalidRequest(
            f"min_tokens must be at most max_tokens ({p.max_tokens}), got {p.min_tokens}.",
            "min_tokens",
        )
    if p.seed is not None and not -(2**63) <= p.seed < 2**63:
        raise InvalidRequest("seed must fit into 64 bits.", "seed")
    if any(not word for word in p.bad_words or ()):
        raise InvalidRequest("bad_words cannot contain an empty string.", "bad_words")
    if any(not s for s in p.stop):
        raise InvalidRequest("stop cannot contain an empty string.", "stop")
    if p.stop and not p.detokenize:
        raise InvalidRequest("stop strings need detokenize.", "stop")
    for key, bias in (p.logit_bias or {}).items():
        if not _finite(bias):
            raise InvalidRequest(f"logit_bias[{key}] must be a finite number.", "logit_bias")


def check_logprobs(p: SamplingParams, max_logprobs: int, vocab_size: int | None) -> None:
    """Caps of logprobs and prompt_logprobs.

    Raises:
        InvalidRequest: over the cap, or negative other than -1.
    """
    cap = max_logprobs if max_logprobs >= 0 else (vocab_size or 2**31)
    for name, value in (("logprobs", p.logprobs), ("prompt_logprobs", p.prompt_logprobs)):
        if value is None:
            continue
        if value < -1:
            raise InvalidRequest(f"{name} must be -1 or at least 0, got {value}.", name)
        wanted = (vocab_size or 2**31) if value == -1 else value
        if wanted > cap:
            raise InvalidRequest(
                f"Requested {name} of {value} is above the maximum of {max_logprobs}.", name
            )
    if p.logprob_token_ids is not None and p.logprobs is None:
        raise InvalidRequest("logprob_token_ids needs logprobs.", "logprob_token_ids")


def check_token_ids(p: SamplingParams, vocab_size: int) -> None:
    """Every token id lies in the vocabulary.

    Raises:
        InvalidRequest: naming the field and the id.
    """
    groups: list[tuple[str, list[int] | None]] = [
        ("logit_bias", list(p.logit_bias) if p.logit_bias is not None else None),
        ("allowed_token_ids", p.allowed_token_ids),
        ("logprob_token_ids", p.logprob_token_ids),
        ("stop_token_ids", p.stop_token_ids),
    ]
    for name, ids in groups:
        for token in ids or ():
            if not 0 <= token < vocab_size:
                raise InvalidRequest(
                    f"{name} contains token id {token}, which is outside the vocabulary of "
                    f"{vocab_size}.",
                    name,
                )
    if p.allowed_token_ids is not None and not p.allowed_token_ids:
        raise InvalidRequest("allowed_token_ids must not be empty.", "allowed_token_ids")
