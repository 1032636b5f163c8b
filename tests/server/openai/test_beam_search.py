"""Beam search against an exhaustive one, over an engine whose probabilities are a hash."""

import asyncio
import hashlib
import math

import pytest

from ortloom.runtime.messages import EngineOutput, TokenLogprobs
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.openai.beam_search import BeamOptions, BeamSearch, beam_pieces
from ortloom.server.openai.generation import GenerationJob, PromptJob

VOCAB, EOS = 12, 3


def logprobs_after(tokens):
    """log p of each id [VOCAB] after some tokens; the end is likely now and then."""
    digest = hashlib.sha256(repr(tokens).encode()).digest()
    weights = [1 + byte % 50 for byte in digest[:VOCAB]]
    total = sum(weights)
    return [math.log(weight / total) for weight in weights]


class HashEngine:
    """One token a request, with the top entries that were asked for."""

    def __init__(self):
        self.asked = []

    async def generate(self, request):
        self.asked.append(request)
        values = logprobs_after(request.prompt_token_ids)
        order = sorted(range(VOCAB), key=lambda t: (-values[t], t))[: request.sampling.logprobs]
        own = order[-1]
        ids = [own, *order]
        entry = TokenLogprobs(ids, [values[t] for t in ids], [order.index(t) + 1 for t in ids])
        yield EngineOutput(
            request.request_id, [own], [entry], finish_reason="length", num_cached_tokens=2
        )


def oracle(prompt, width, max_tokens, penalty, ignore_eos):
    """The search as it is described, without ever stopping early."""
    beams, done = [((), 0.0)], []

    def score(beam):
        length = len(prompt) + len(beam[0])
        if not ignore_eos and beam[0][-1:] == (EOS,):
            length -= 1
        return beam[1] / length**penalty

    for _ in range(max_tokens):
        new = []
        for tokens, total in beams:
            values = logprobs_after([*prompt, *tokens])
            order = sorted(range(VOCAB), key=lambda t: (-values[t], t))[: 2 * width]
            for token in order:
                beam = ((*tokens, token), total + values[token])
                (done if token == EOS and not ignore_eos else new).append(beam)
        beams = sorted(new, key=score, reverse=True)[:width]
    best = sorted(done + beams, key=score, reverse=True)[:width]
    return [(list(tokens), pytest.approx(total)) for tokens, total in best]


def job_of(width, prompt, max_tokens, **fields):
    params = SamplingParams(n=width, eos_token_ids=[EOS], temperature=1.0, **fields)
    return GenerationJob(
        "cmpl-x", [PromptJob(prompt, None, max_tokens)], params, width, 0, None, 0.0
    )


@pytest.mark.parametrize("ignore_eos", [False, True])
@pytest.mark.parametrize("penalty", [-0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_finds_what_an_exhaustive_search_finds(width, penalty, ignore_eos):
    for prompt in ([1, 2], [5], [7, 7, 7]):
        job = job_of(width, prompt, 5, ignore_eos=ignore_eos)
        options = BeamOptions(width, penalty)
        search = BeamSearch(job, job.prompts[0], options, HashEngine())
        found = [(b.token_ids, b.sum_logprob) for b in asyncio.run(search.run())]
        assert found == oracle(prompt, width, 5, penalty, ignore_eos)


def test_stops_early_only_when_nothing_can_change():
    job = job_of(2, [1, 2], 40)
    engine = HashEngine()
    found = asyncio.run(BeamSearch(job, job.prompts[0], BeamOptions(2, 0.0), engine).run())
    assert [b.token_ids for b in found] == [t for t, _ in oracle([1, 2], 2, 40, 0.0, False)]
    assert len(engine.asked) < 2 * 40


async def pieces(job, width):
    return [p async for p in beam_pieces(job, BeamOptions(width, 1.0), HashEngine(), None)]


def test_pieces_carry_the_reply_of_each_choice():
    job = job_of(3, [1, 2], 6, logprobs=2)
    made = asyncio.run(pieces(job, 3))
    assert [p.index for p in made] == [0, 1, 2]
    assert {p.finish_reason for p in made} <= {"stop", "length"}
    for piece in made:
        assert len(piece.logprobs) == len(piece.token_ids)
        assert all(len(entry.token_ids) == 3 for entry in piece.logprobs)
        assert [entry.token_ids[0] for entry in piece.logprobs] == piece.token_ids
        if piece.finish_reason == "stop":
            assert piece.stop_reason == EOS
            assert EOS not in piece.token_ids


def test_over_http(app, engine, tokenizer):
    body = {"prompt": "The sea", "max_tokens": 3, "n": 2, "use_beam_search": True}
    reply = app.post("/v1/completions", {**body, "temperature": 0})
    assert reply.status_code == 200, reply.text
    data = reply.json()
    assert [c["index"] for c in data["choices"]] == [0, 1]
    assert data["usage"]["completion_tokens"] == 6
    assert all(r.sampling.logprobs == 4 for r in engine.requests)
    assert not engine.open


@pytest.mark.parametrize(
    ("extra", "param"),
    [
        ({"stream": True}, "stream"),
        ({"length_penalty": 11}, "length_penalty"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ],
)
def test_refusals(app, extra, param):
    check_refusal(app, extra, param)


def test_processors_of_a_request_are_refused(serve):
    with serve(model={"logits_processor_pattern": ".*"}) as app:
        check_refusal(app, {"logits_processors": ["json.loads"]}, "logits_processors")


def check_refusal(app, extra, param):
    body = {"prompt": "The sea", "max_tokens": 3, "n": 2, "use_beam_search": True, **extra}
    reply = app.post("/v1/completions", body)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == param
