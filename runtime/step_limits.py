"""How much one step may compute."""

from ortloom.errors import ConfigError


class StepLimits:
    """Limits of one step, resolved.

    Args:
        max_num_seqs: running requests.
        max_num_batched_tokens: tokens of one step.
        chunked_prefill: whether a prompt may be computed in parts.
        long_prefill_token_threshold: longest part of one request a step; 0 = no limit.
        max_model_len: the context; with chunked_prefill off it must fit one step.

    Raises:
        ConfigError: the limits contradict each other.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        chunked_prefill: bool,
        long_prefill_token_threshold: int,
        max_model_len: int,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < 1:
            raise ConfigError("--max-num-seqs and --max-num-batched-tokens must be at least 1")
        if not chunked_prefill and max_num_batched_tokens < max_model_len:
            raise ConfigError(
                f"--max-num-batched-tokens ({max_num_batched_tokens}) is below the context "
                f"({max_model_len} tokens) and chunked prefill is off: raise it, lower "
                f"--max-model-len, or drop --no-enable-chunked-prefill"
            )
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.chunked_prefill = chunked_prefill
        self.threshold = long_prefill_token_threshold

    def chunk(self, wanted: int, budget: int) -> int:
        """How many of `wanted` tokens one request gets of `budget`; 0 = not in this step."""
        if not self.chunked_prefill:
            return wanted if wanted <= budget else 0
        if self.threshold > 0:
            wanted = min(wanted, self.threshold)
        return min(wanted, budget)
