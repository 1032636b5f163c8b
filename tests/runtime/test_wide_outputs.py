"""Prompt logprobs over a vocabulary travel in parts and arrive as one."""

import asyncio

from ortloom.runtime import wide_outputs
from ortloom.runtime.messages import EngineOutput, TokenLogprobs
from ortloom.runtime.output_stream import OutputStream
from ortloom.runtime.wide_outputs import in_messages


def position(number, width):
    return TokenLogprobs([number] * width, [-1.0] * width, [1] * width)


def test_narrow_outputs_stay_in_one_message():
    outputs = [EngineOutput("a", [1]), EngineOutput("b", prompt_logprobs=[None, position(1, 5)])]
    assert in_messages(outputs) == [outputs]


def test_wide_ones_are_cut_and_joined(monkeypatch):
    monkeypatch.setattr(wide_outputs, "ENTRIES_A_MESSAGE", 100)
    whole = [None, *(position(i, 60) for i in range(5)), position(9, 300)]
    outputs = [
        EngineOutput("a", [1]),
        EngineOutput("wide", [7], prompt_logprobs=list(whole), finish_reason="length"),
        EngineOutput("b", [2]),
    ]
    messages = in_messages(outputs)
    assert len(messages) == 6
    assert all([o.request_id for o in m] == ["wide"] and m[0].part for m in messages[:-1])
    assert [o.request_id for o in messages[-1]] == ["a", "wide", "b"]

    async def read():
        stream = OutputStream()
        for message in messages:
            for output in message:
                if output.request_id == "wide":
                    stream.push(output)
        return await stream.next(), stream.ended

    output, ended = asyncio.run(read())
    assert output.prompt_logprobs == whole
    assert (output.new_token_ids, output.part, ended) == ([7], False, True)
