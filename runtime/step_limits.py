"""How much one step may compute."""

from ortloom.config import SchedulerConfig
from ortloom.errors import ConfigError

DEFAULT_BATCHED_TOKENS = 2048

LONG_SHARE = 0.04
"""Share of the context from which a prompt is long where several are computed side by side and no
threshold is given."""


class StepLimits:
    """Limits of one step, resolved.

    Args:
        config: the limits asked for.
        max_model_len: the context; with chunked prefill off it must fit one step.

    Attributes:
        max_num_seqs: running requests, active ones where fewer of them are allowed.
        max_num_batched_tokens: tokens of one step, scheduled ones where fewer of them are allowed.
        threshold: the most tokens of one request in a step; 0 = no limit of its own.
        adaptive: whether the threshold is raised to a fair share of the step.
        max_partial: prompts that are computed in parts side by side; 0 = no limit of its own.
        max_long_partial: those of them that are longer than the threshold.

    Raises:
        ConfigError: the limits contradict each other.
    """

    def __init__(self, config: SchedulerConfig, max_model_len: int) -> None:
        tokens = config.max_num_batched_tokens
        if tokens is None:
            tokens = DEFAULT_BATCHED_TOKENS
            if not config.enable_chunked_prefill:
                tokens = max(tokens, max_model_len)
        if config.max_num_scheduled_tokens is not None:
            if config.max_num_scheduled_tokens > tokens:
                raise ConfigError(
                    f"--max-num-scheduled-tokens ({config.max_num_scheduled_tokens}) must be at "
                    f"most --max-num-batched-tokens ({tokens})"
                )
            tokens = config.max_num_scheduled_tokens
        seats = config.max_num_active_seqs or config.max_num_seqs
        if seats < 1 or tokens < 1:
            raise ConfigError("--max-num-seqs and --max-num-batched-tokens must be at least 1")
        if not config.enable_chunked_prefill and tokens < max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens ({tokens}) is below the context "
                f"({max_model_len} tokens) and chunked prefill is off: raise it, lower "
                f"--max-model-len, or drop --no-enable-chunked-prefill"
            )
        self.max_num_seqs = min(seats, config.max_num_seqs)
        self.max_num_batched_tokens = tokens
        self.chunked_prefill = config.enable_chunked_prefill
        self.threshold = config.long_prefill_token_threshold
        self.max_partial = 0
        self.max_long_partial = 0
        if config.max_num_partial_prefills > 1 and config.enable_chunked_prefill:
            self.max_partial = config.max_num_partial_prefills
            self.max_long_partial = config.max_long_partial_prefills
            self.threshold = self.threshold or max(1, int(max_model_len * LONG_SHARE))
        self.adaptive = config.long_prefill_token_threshold_adaptive
        self.reserve_full_prompt = config.reserve_full_prompt
        self.watermark = config.watermark
        self.admission_interval = config.prefill_schedule_interval

    def chunk(self, wanted: int, budget: int, sharers: int = 1) -> int:
        """How many of `wanted` tokens one request gets of `budget`; 0 = not in this step.

        Args:
            wanted: tokens the request lacks.
            budget: tokens the step has left.
            sharers: requests with a prompt to compute among which a whole step is shared.
        """
        if not self.chunked_prefill:
            return wanted if wanted <= budget else 0
        if self.threshold > 0:
            most = self.threshold
            if self.adaptive:
                most = max(most, self.max_num_batched_tokens // max(1, sharers))
            wanted = min(wanted, most)
        return min(wanted, budget)

    def is_long(self, num_tokens: int) -> bool:
        """Whether a request of so many known tokens counts as long."""
        return self.threshold > 0 and num_tokens > self.threshold
