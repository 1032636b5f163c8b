"""When a request ends, by its token ids. Stop strings are the caller's, who owns the text."""

from ortloom.runtime.messages import FinishReason
from ortloom.runtime.request import Request, RequestStatus
from ortloom.runtime.sampling_params import RepetitionDetection

STATUS_OF: dict[FinishReason, RequestStatus] = {
    "stop": RequestStatus.FINISHED_STOPPED,
    "repetition": RequestStatus.FINISHED_STOPPED,
    "length": RequestStatus.FINISHED_LENGTH,
    "abort": RequestStatus.FINISHED_ABORTED,
    "error": RequestStatus.FINISHED_ERROR,
}


def check_finish(request: Request) -> tuple[FinishReason, int | None] | None:
    """Finish reason and stop reason after the newest token, or None to go on.

    Before min_tokens nothing ends a request. EOS ids of the model give stop reason None; stop ids
    of the user, and secondary EOS ids (generation_config.json), give the id. ignore_eos switches
    both kinds of EOS off and leaves the user's ids.
    """
    sampling = request.sampling
    if request.num_output_tokens and request.num_output_tokens >= sampling.min_tokens:
        token = request.token_ids[-1]
        if not sampling.ignore_eos and token in sampling.eos_token_ids:
            return "stop", None
        if token in sampling.stop_token_ids:
            return "stop", token
        if not sampling.ignore_eos and token in sampling.secondary_eos_token_ids:
            return "stop", token
        repetition = sampling.repetition_detection
        if repetition is not None and repeats(request, repetition):
            return "repetition", None
    if request.num_tokens >= request.max_total_tokens:
        return "length", None
    return None


def repeats(request: Request, rule: RepetitionDetection) -> bool:
    """Whether the output ends with `min_count` copies of one pattern of the sizes allowed."""
    tokens = request.token_ids
    output = request.num_output_tokens
    last = tokens[-1]
    for size in range(max(rule.min_pattern_size, 1), rule.max_pattern_size + 1):
        length = size * rule.min_count
        if length > output:
            return False
        # The newest token repeats at every pattern's end, or the whole cannot: a cheap first look.
        if tokens[-1 - size] != last:
            continue
        tail = tokens[-length:]
        if tail[size:] == tail[:-size]:
            return True
    return False
