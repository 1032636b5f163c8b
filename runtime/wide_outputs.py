"""Outputs with very many prompt logprobs, cut into messages that a client can read one at a time.

Reading a message cannot be interrupted: whole, the logprobs of a prompt over the vocabulary would
hold all other requests of a front up.
"""

import msgspec

from ortloom.runtime.messages import EngineOutput, TokenLogprobs

ENTRIES_A_MESSAGE = 100_000
"""Takes some 20 ms to read."""


def in_messages(outputs: list[EngineOutput]) -> list[list[EngineOutput]]:
    """The outputs of one message, or of several where a prompt's logprobs are too many."""
    messages: list[list[EngineOutput]] = []
    rest: list[EngineOutput] = []
    for output in outputs:
        groups = _groups(output.prompt_logprobs)
        if len(groups) <= 1:
            rest.append(output)
            continue
        for group in groups[:-1]:
            part = EngineOutput(output.request_id, prompt_logprobs=group, part=True)
            messages.append([part])
        rest.append(msgspec.structs.replace(output, prompt_logprobs=groups[-1]))
    if rest:
        messages.append(rest)
    return messages


def _groups(
    positions: list[TokenLogprobs | None] | None,
) -> list[list[TokenLogprobs | None]]:
    groups: list[list[TokenLogprobs | None]] = []
    current: list[TokenLogprobs | None] = []
    entries = 0
    for position in positions or ():
        count = 0 if position is None else len(position.token_ids)
        if current and entries + count > ENTRIES_A_MESSAGE:
            groups.append(current)
            current, entries = [], 0
        current.append(position)
        entries += count
    if current:
        groups.append(current)
    return groups
