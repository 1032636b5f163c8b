"""A client that reads tokens: what it asks at load, and its loop of steps.

It is started against servers with and without the flags it knows. At load it finds out with
one-token requests what the server tells; then each step streams token ids and checks that every
number fits the others.
"""

import json
import math
import os
import sys

import pytest

served = sys.modules["ortloom_test_served"]

COMPLETIONS = "/v1/completions"
GENERATE = "/inference/v1/generate"
CUT = -9999.0
PROMPT = "The capital of France is"
TINY = {
    "image_url": "data:image/png;base64,iVBORw0KGgo=",
    "audio_url": "data:audio/wav;base64,UklGRg==",
    "video_url": "data:video/mp4;base64,AAAAGA==",
}


class Page:
    """The client's side of one server."""

    def __init__(self, server, key=None):
        self.http = server.client
        if key is not None:
            self.http.headers["authorization"] = f"Bearer {key}"
        self.card = self.http.get("/v1/models").json()["data"][0]
        self.model = self.card["id"]

    def ids(self, text):
        return self.http.post("/tokenize", json={"prompt": text}).json()["tokens"]

    def load(self):
        """The seven requests at load, as a record of what the server was started with."""
        assert self.card["max_model_len"] == 512
        assert self.http.get("/version").json()["version"]
        ids = self.ids(PROMPT)
        return {
            "mode": self.mode(ids),
            **self.scale_out(ids),
            "greedy": self.greedy(ids),
            "kinds": {kind: self.takes(kind, ids) for kind in TINY},
        }

    def mode(self, ids):
        """Two of five listed tokens survive top_k; the others show the mode."""
        asked = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 1}
        asked |= {"top_k": 2, "logprobs": 5, "return_tokens_as_token_ids": True}
        reply = self.http.post(COMPLETIONS, json=asked)
        assert reply.status_code == 200, reply.text
        values = list(reply.json()["choices"][0]["logprobs"]["top_logprobs"][0].values())
        assert len(values) == 5
        processed = sum(value == CUT for value in values) == 3
        logprobs = sum(math.exp(v) for v in values if v != CUT) <= 1 + 1e-6
        return ("processed_" if processed else "raw_") + ("logprobs" if logprobs else "logits")

    def scale_out(self, ids):
        params = {"max_tokens": 1, "temperature": 1, "top_k": 5, "logprobs": 1}
        asked = {"model": self.model, "token_ids": ids, "sampling_params": params}
        reply = self.http.post(GENERATE, json=asked)
        if reply.status_code in (403, 404):
            return {"scale_out": False, "masks": False}
        (choice,) = reply.json()["choices"]
        assert choice["logprobs"]["content"][0]["rank"] >= 1
        return {"scale_out": True, "masks": choice["sampling_mask"] is not None}

    def greedy(self, ids):
        asked = {"prompt": ids, "max_tokens": 1, "temperature": 0}
        return self.http.post(COMPLETIONS, json=asked).status_code == 200

    def takes(self, kind, ids):
        part = {"type": kind, kind: {"url": TINY[kind]}}
        asked = {"token_ids": ids, "content_parts": [part], "sampling_params": {"max_tokens": 1}}
        reply = self.http.post(GENERATE, json=asked)
        if reply.status_code == 400:
            assert "text only" in reply.json()["error"]["message"]
        return reply.status_code == 200

    def stream(self, path, asked):
        with self.http.stream("POST", path, json={**asked, "stream": True}) as reply:
            assert reply.status_code == 200
            lines = [line[6:] for line in reply.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def completion_step(self, ids, **sampling):
        """Tokens of a step without the flag: (id, logprob, listed values by id, None, None)."""
        asked = {"model": self.model, "prompt": ids, "max_tokens": 8, "logprobs": 5}
        asked |= {"return_token_ids": True, "return_tokens_as_token_ids": True, "seed": 3}
        asked |= {"stream_options": {"include_usage": True}, **sampling}
        events = self.stream(COMPLETIONS, asked)
        tokens = []
        for event in events[:-1]:
            (choice,) = event["choices"]
            logprobs = choice["logprobs"]
            for position, token in enumerate(choice["token_ids"]):
                top = logprobs["top_logprobs"][position]
                listed = {int(name.removeprefix("token_id:")): v for name, v in top.items()}
                tokens.append((token, logprobs["token_logprobs"][position], listed, None, None))
        assert events[-1]["usage"]["completion_tokens"] == len(tokens)
        assert events[-2]["choices"][0]["finish_reason"]
        return tokens

    def generate_step(self, ids, **sampling):
        """The same with it: (id, logprob, listed, rank, mask)."""
        params = {"max_tokens": 8, "logprobs": 5, "seed": 3, **sampling}
        asked = {"model": self.model, "token_ids": ids, "sampling_params": params}
        events = self.stream(GENERATE, {**asked, "return_token_ids": True})
        assert events[0]["prompt_token_ids"] == ids
        tokens = []
        for event in events:
            (choice,) = event["choices"]
            masks = choice["sampling_mask"] or [None] * len(choice["token_ids"])
            entries = choice["logprobs"]["content"]
            for token, entry, mask in zip(choice["token_ids"], entries, masks, strict=True):
                listed = {e["token_id"]: e["logprob"] for e in entry["top_logprobs"]}
                assert entry["token_id"] == token
                tokens.append((token, entry["logprob"], listed, entry["rank"], mask))
        return tokens


def check_tokens(tokens, top_k=0, logprobs=True):
    """Every number fits the others."""
    for token, value, listed, rank, mask in tokens:
        assert listed[token] == value
        if logprobs:
            assert sum(math.exp(v) for v in listed.values() if v != CUT) <= 1 + 1e-6
        likelier = sum(v > value for v in listed.values())
        if rank is not None and any(v < value for v in listed.values()):
            assert rank == 1 + likelier  # every likelier one is listed; float32 logits do not tie
        if mask is not None:
            assert token in mask
            assert len(set(mask)) == len(mask) <= top_k
            assert {t for t, v in listed.items() if v != CUT} <= set(mask)
            assert not {t for t, v in listed.items() if v == CUT} & set(mask)


def serve(bundle, *flags):
    flags = ("--max-model-len", "512", "--num-gpu-blocks-override", "128", *flags)
    return served.Served(bundle, *flags)


@pytest.mark.parametrize("mode", ["raw_logprobs", "raw_logits"])
def test_without_flags(demo_bundle, mode):
    with serve(demo_bundle, "--logprobs-mode", mode) as server:
        page = Page(server)
        assert page.load() == {
            "mode": mode,
            "scale_out": False,
            "masks": False,
            "greedy": True,
            "kinds": dict.fromkeys(TINY, False),
        }
        ids = page.ids(PROMPT)
        for sampling in ({"temperature": 0}, {"temperature": 1, "top_k": 20, "top_p": 0.9}):
            tokens = page.completion_step(ids, **sampling)
            check_tokens(tokens, logprobs=mode.endswith("probs"))
            ids = ids + [token for token, *_ in tokens]


def test_scale_out_with_a_key(demo_bundle):
    with serve(demo_bundle, "--enable-scale-out", "--api-key", "k") as server:
        assert server.client.get("/v1/models").status_code == 401
        page = Page(server, key="k")
        record = page.load()
        assert (record["mode"], record["scale_out"], record["masks"]) == (
            "raw_logprobs",
            True,
            False,
        )
        ids = page.ids(PROMPT)
        hits = server.metrics()["vllm:prefix_cache_hits_total"]
        for sampling in ({"temperature": 0}, {"temperature": 1, "top_k": 20}, {"temperature": 1}):
            tokens = page.generate_step(ids, **sampling)
            check_tokens(tokens)
            assert all(rank >= 1 for *_, rank, _ in tokens)
            ids = ids + [token for token, *_ in tokens]
        assert server.metrics()["vllm:prefix_cache_hits_total"] > hits
        greedy = page.generate_step(page.ids(PROMPT), temperature=0)
        also = page.completion_step(page.ids(PROMPT), temperature=0)
        assert [t[:3] for t in greedy] == [t[:3] for t in also]


def test_masks(demo_bundle):
    flags = ("--enable-scale-out", "--return-sampling-mask")
    with serve(demo_bundle, *flags, "--logprobs-mode", "processed_logprobs") as server:
        page = Page(server)
        record = page.load()
        assert record["mode"] == "processed_logprobs"
        assert record["masks"]
        assert not record["greedy"]
        ids = page.ids(PROMPT)
        for sampling in (
            {"temperature": 0.05, "top_k": 128},
            {"temperature": 1, "top_k": 3},
            {"temperature": 1.5, "top_k": 40, "top_p": 0.8},
            {"temperature": 1, "top_k": 9, "min_p": 0.1, "repetition_penalty": 1.2},
            {"temperature": 1, "top_k": 1},
        ):
            tokens = page.generate_step(ids, **sampling)
            check_tokens(tokens, sampling["top_k"])
            ids = ids + [token for token, *_ in tokens]
        assert all(mask == [token] for token, *_, mask in tokens)
        for path, body in (
            (COMPLETIONS, {"prompt": ids}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
        ):
            assert server.client.post(path, json={**body, "temperature": 0}).status_code == 400
            assert server.client.post(path, json={**body, "top_k": 0}).status_code == 400
        assert_detail(page, ids)


def assert_detail(page, ids):
    """Raw and processed values, rank and mask together, here beside the server's own mask."""
    params = {"max_tokens": 4, "temperature": 2, "top_k": 20, "seed": 1, "logprobs": 20}
    asked = {"token_ids": ids, "sampling_params": params, "logprobs_detail": True}
    (choice,) = page.http.post(GENERATE, json=asked).json()["choices"]
    for entry, mask in zip(choice["logprobs"]["content"], choice["sampling_mask"], strict=True):
        assert entry["processed_logprob"] == entry["logprob"]
        assert entry["raw_logprob"] < 0
        assert entry["rank"] == 1 + mask.index(entry["token_id"])  # temperature keeps the order


QWEN = ("Qwen/Qwen3.5-0.8B", "--revision", "2fc06364715b967f1860aea9cf38778875588b17")
GEMMA = ("google/gemma-4-E2B-it", "--revision", "3e22461f65e89153144f8adb70e3b8c2cc9845a7")
DRAFTER = {
    "method": "mtp",
    "model": "google/gemma-4-E2B-it-assistant",
    "revision": "2d874ef7d29f9a30599a1e4b3c1cbc9595f005df",
    "num_speculative_tokens": 6,
}
DETAILED = ("--per-request-spec-decode-metrics", "detailed")
MASKS = ("--return-sampling-mask", "--logprobs-mode", "processed_logprobs")
OWN_LAYER = {"method": "mtp", "num_speculative_tokens": 2}

LINES = {
    "scale out": ((*QWEN, "--enable-scale-out"), None),
    "drafter": (
        (*GEMMA, "--enable-scale-out", "--speculative-config", json.dumps(DRAFTER), *DETAILED),
        "speculative decoding is not built",
    ),
    "own layer": (
        (*QWEN, "--enable-scale-out", "--speculative-config", json.dumps(OWN_LAYER), *DETAILED),
        "speculative decoding is not built",
    ),
    "masks": ((*QWEN, "--enable-scale-out", *MASKS), None),
}
"""The four command lines of the page, word for word, and the part that is missing for one."""


@pytest.mark.parametrize("line", LINES)
def test_the_command_lines_parse_or_name_what_is_missing(tmp_path, line):
    """Without a network: the model is only looked for once every flag was taken."""
    words, missing = LINES[line]
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "HF_HOME": str(tmp_path)}
    done = served.run_cli("serve", *words, env={**environment, "HF_HUB_OFFLINE": "1"})
    if missing is None:
        assert f"revision '{words[2]}', is no path on this machine" in done.stderr
        assert "the hub cannot be reached" in done.stderr
        assert done.returncode == 1
    else:
        assert f"argument --speculative-config: known, but not in this build yet: {missing}" in (
            done.stderr
        )
        assert done.returncode == 2


def test_masks_need_processed_logprobs(tmp_path):
    done = served.run_cli("serve", str(tmp_path / "none"), "--return-sampling-mask")
    assert done.returncode == 2
    assert "processed_logprobs" in done.stderr
